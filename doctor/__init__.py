"""Diagnose and speed up PyTorch training scripts without editing them."""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"
__all__ = ["DoctorError", "Options", "Run", "__version__", "apply", "diagnose", "enable", "load", "report", "restore"]

if TYPE_CHECKING:
    from fasttrain_doctor.api import Options, apply, diagnose, load, report, restore
    from fasttrain_doctor.enabling import enable
    from fasttrain_doctor.errors import DoctorError
    from fasttrain_doctor.run import Run
else:
    _HOMES = {"DoctorError": "errors", "Run": "run", "enable": "enabling"}

    def __getattr__(name: str) -> object:
        """Import public names on first use: the probe imports this file inside the user's process."""
        if name in __all__:
            import importlib

            return getattr(importlib.import_module(f"{__name__}.{_HOMES.get(name, 'api')}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
