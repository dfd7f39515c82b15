"""The diagnosis as JSON: the public contract, in the order of its types."""

from __future__ import annotations

import msgspec

from fasttrain_doctor.diagnosis import Diagnosis


def dumps(diagnosis: Diagnosis) -> str:
    """Return ``diagnosis`` as indented JSON with a final newline; unmeasured parts are null, none is missing."""
    return msgspec.json.format(msgspec.json.encode(diagnosis), indent=2).decode() + "\n"
