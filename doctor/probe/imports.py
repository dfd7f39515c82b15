"""Runs something after a module has been imported, without importing it and without staying in the way."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from fasttrain_doctor.probe import state, unseen


class _Import:
    def __init__(self, name: str, then: Callable[[Any], None]) -> None:
        self.name, self.then = name, then

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        import importlib.util

        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute, then = spec.loader.exec_module, self.then

            def exec_module(module: Any) -> None:
                try:
                    execute(module)
                except BaseException as error:
                    unseen.strip(error)
                    raise
                try:
                    then(module)
                except Exception as error:
                    state.degraded(f"import-{name}", error)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def on_import(name: str, then: Callable[[Any], None]) -> None:
    """Call ``then(module)`` now if ``name`` is imported, else right after its import."""
    if name in sys.modules:
        then(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Import(name, then))
