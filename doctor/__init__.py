"""Diagnose and speed up PyTorch training scripts without editing them."""

from __future__ import annotations

__version__ = "0.1.0"

_PUBLIC = {
    "diagnose": "api",
    "apply": "api",
    "report": "api",
    "load": "api",
    "enable": "enable",
    "Run": "run",
    "DoctorError": "errors",
}

__all__ = ["DoctorError", "Run", "__version__", "apply", "diagnose", "enable", "load", "report"]


def __getattr__(name: str) -> object:
    """Import public names on first use: the probe imports this file inside the user's process."""
    if name in _PUBLIC:
        import importlib

        return getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
