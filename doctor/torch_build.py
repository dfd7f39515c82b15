"""Which torch an interpreter has, without importing it (that takes seconds). Standard library only.

Run by path with another interpreter it prints the same as JSON.
"""

from __future__ import annotations

import importlib.util
import json
import platform
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class TorchBuild:
    """Versions; ``torch`` is None where it is not installed, ``cuda`` and ``hip`` where it is built without."""

    python: str
    torch: str | None = None
    cuda: str | None = None
    hip: str | None = None


def torch_build() -> TorchBuild:
    """Read the version file of the torch that ``import torch`` would load."""
    python = platform.python_version()
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return TorchBuild(python)
    file = Path(spec.origin).with_name("version.py")
    try:
        values: dict[str, object] = {}
        exec(compile(file.read_text(), str(file), "exec"), values)  # noqa: S102  (torch's own file)
    except (OSError, SyntaxError, ImportError):
        return TorchBuild(python, torch="unknown")
    told = {name: value for name in ("cuda", "hip") if isinstance(value := values.get(name), str)}
    return TorchBuild(python, torch=str(values.get("__version__", "unknown")), **told)


if __name__ == "__main__":
    print(json.dumps(asdict(torch_build())))
