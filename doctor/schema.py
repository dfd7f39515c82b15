"""The schema number of ``diagnosis.json``: what each number changed, how older documents are read, the JSON Schema.

Raise ``SCHEMA`` (in ``diagnosis.py``) when a field is renamed, removed or changes meaning; add its line to ``HISTORY``
and the step that turns the previous form into it to ``UPGRADES``. A new optional field needs neither.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from fasttrain_doctor import __version__
from fasttrain_doctor.diagnosis import SCHEMA, Diagnosis
from fasttrain_doctor.errors import DoctorError

HISTORY: Mapping[int, str] = {
    1: "first public form",
}

Step = Callable[[dict[str, Any]], dict[str, Any]]

# schema number -> what turns a document of that number into the next one
UPGRADES: Mapping[int, Step] = {}

SCHEMA_FILE = Path(__file__).with_name("diagnosis.schema.json")


def upgrade(
    document: Mapping[str, Any], *, steps: Mapping[int, Step] = UPGRADES, current: int = SCHEMA, where: str = "this run"
) -> dict[str, Any]:
    """Return ``document`` in the form of schema ``current``.

    Raises:
        DoctorError: ``run-newer`` when it was written by a later version, ``run-corrupt`` when it has no usable number.
    """
    number = document.get("schema")
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise DoctorError("run-corrupt", f"{where}: no usable schema number (found {number!r}); it cannot be read")
    if number > current:
        raise DoctorError(
            "run-newer",
            f"{where}: written by fasttrain-doctor {document.get('tool', 'of unknown version')} (schema {number}); "
            f"{__version__} reads up to schema {current}; update fasttrain-doctor to read it",
        )
    document = dict(document)
    for old in range(number, current):
        document = {**steps[old](document), "schema": old + 1}
    return document


def decode(document: Mapping[str, Any], *, where: str = "this run") -> Diagnosis:
    """Turn a parsed ``diagnosis.json`` of any known schema into a ``Diagnosis``.

    Raises:
        DoctorError: ``run-newer`` or ``run-corrupt``.
    """
    current = upgrade(document, where=where)
    try:
        return msgspec.convert(current, Diagnosis)
    except msgspec.ValidationError as error:
        raise DoctorError("run-corrupt", f"{where}: not a whole diagnosis ({error})") from error


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of ``diagnosis.json``, generated from the types; every field is required."""
    schema: dict[str, Any] = msgspec.json.schema(Diagnosis)
    for definition in schema["$defs"].values():
        if "properties" in definition:
            definition["required"] = list(definition["properties"])  # unmeasured is null, never missing
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "fasttrain-doctor diagnosis",
        "x-history": {str(number): line for number, line in HISTORY.items()},
        **schema,
    }


def schema_text() -> str:
    """Return the text of the schema file that ships."""
    return json.dumps(json_schema(), indent=2) + "\n"


if __name__ == "__main__":
    SCHEMA_FILE.write_text(schema_text(), encoding="utf-8")
