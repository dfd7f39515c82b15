"""The diagnosis as JSON: the public contract, in the order of its types."""

from __future__ import annotations

from typing import Any

import msgspec

from fasttrain_doctor.diagnosis import Diagnosis


def dumps(diagnosis: Diagnosis) -> str:
    """Return ``diagnosis`` as indented JSON with a final newline; unmeasured parts are null, none is missing."""
    try:
        raw = msgspec.json.encode(diagnosis)
    except UnicodeEncodeError:  # a path that is no text: Python holds its bytes as lone surrogates
        raw = msgspec.json.encode(_sayable(msgspec.to_builtins(diagnosis)))
    return msgspec.json.format(raw, indent=2).decode() + "\n"


def _sayable(value: Any) -> Any:
    """Return builtins with every text such that UTF-8 can hold it."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if isinstance(value, dict):
        return {_sayable(key): _sayable(held) for key, held in value.items()}
    if isinstance(value, list):
        return [_sayable(held) for held in value]
    return value
