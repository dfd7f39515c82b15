"""Loaded by the interpreter of a watched script before anything of the script's own: arms the probe on ``import torch``.

Standard library only, and nothing here may raise: the script must start as if this file were not there.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType

sys.dont_write_bytecode, _wrote = True, sys.dont_write_bytecode


def _take_ourselves_out() -> None:
    """Take this folder off ``sys.path`` (it stays on PYTHONPATH for children) and run the user's own sitecustomize.

    Raises:
        ImportError: there is none, which ``site`` takes as it always does: no module of that name is left.
    """
    import importlib
    import importlib.machinery
    import os

    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [p for p in sys.path if os.path.abspath(p or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize")
    if spec is None or spec.loader is None:
        raise ImportError("there is no other", name="sitecustomize")
    sys.modules.pop("sitecustomize", None)
    importlib.import_module("sitecustomize")


class _Package:
    """Serves ``fasttrain_doctor`` and its parts from where the doctor is installed; nothing else of that place."""

    def __init__(self, folders: dict[str, str]) -> None:
        self.folders = folders

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if not name.startswith("fasttrain_doctor"):
            return None
        import importlib.machinery
        import importlib.util
        import os

        folder = self.folders.get(name)
        if folder is not None:
            init = os.path.join(folder, "__init__.py")
            return importlib.util.spec_from_file_location(name, init, submodule_search_locations=[folder])
        parent, _, _leaf = name.rpartition(".")
        folder = self.folders.get(parent)
        if folder is None:
            return None
        return importlib.machinery.PathFinder.find_spec(name, [folder])


class _OnTorch:
    """Calls the probe once ``torch`` has been imported, then gets out of the way."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        import importlib.util

        spec = importlib.util.find_spec("torch")
        if spec is None or spec.loader is None:
            return spec
        spec.loader = _Armed(spec.loader)  # type: ignore[assignment]
        return spec


class _Armed:
    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def __getattr__(self, name: str) -> object:
        return getattr(self.loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        try:
            self.loader.exec_module(module)
        except BaseException as error:
            if error.__traceback__ is not None:
                error.__traceback__ = error.__traceback__.tb_next  # this frame's own
            raise
        try:
            from fasttrain_doctor.probe.arm import arm

            arm()
        except Exception as error:
            sys.stderr.write(f"fasttrain-doctor: the probe could not be armed: {error!r}\n")


def _install() -> None:
    import json
    import os

    folders = json.loads(os.environ["FASTTRAIN_DOCTOR_PACKAGE"])
    sys.meta_path.insert(0, _Package(folders))
    sys.meta_path.insert(0, _OnTorch())
    if "FASTTRAIN_DOCTOR_GUARD" in os.environ:
        from fasttrain_doctor.probe import before_torch

        before_torch.begin()


try:
    import os as _os

    if "FASTTRAIN_DOCTOR_PACKAGE" in _os.environ:
        _install()
except Exception as _error:
    sys.stderr.write(f"fasttrain-doctor: the script runs unwatched: {_error!r}\n")
finally:
    sys.dont_write_bytecode = _wrote
    _take_ourselves_out()
