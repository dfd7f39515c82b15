"""The public JSON: every field there, validated by the schema that ships, older forms upgraded, newer ones refused."""

from __future__ import annotations

import json
from dataclasses import fields

import jsonschema
import pytest

from fasttrain_doctor import schema
from fasttrain_doctor.diagnosis import SCHEMA, Diagnosis
from fasttrain_doctor.errors import DoctorError
from fasttrain_doctor.reports.json import dumps

from .samples import SAMPLES


def test_every_number_has_its_line_of_history_and_every_older_one_its_step():
    assert sorted(schema.HISTORY) == list(range(1, SCHEMA + 1))
    assert sorted(schema.UPGRADES) == list(range(1, SCHEMA))


def test_the_schema_file_is_the_one_the_types_give():
    assert schema.SCHEMA_FILE.read_text() == schema.schema_text(), "run: python -m fasttrain_doctor.schema"


@pytest.mark.parametrize("name", SAMPLES)
def test_what_is_written_validates(name):
    jsonschema.Draft202012Validator(json.loads(schema.SCHEMA_FILE.read_text())).validate(
        json.loads(dumps(SAMPLES[name]))
    )


def test_a_missing_field_does_not_validate():
    document = json.loads(dumps(SAMPLES["success"]))
    del document["floor"]
    with pytest.raises(jsonschema.ValidationError, match="'floor' is a required property"):
        jsonschema.validate(document, schema.json_schema())


@pytest.mark.parametrize("name", SAMPLES)
def test_null_is_written_and_nothing_is_missing(name):
    assert list(json.loads(dumps(SAMPLES[name]))) == [field.name for field in fields(Diagnosis)]


@pytest.mark.parametrize("name", SAMPLES)
def test_reading_gives_back_what_was_written(name):
    assert schema.decode(json.loads(dumps(SAMPLES[name]))) == SAMPLES[name]


def test_a_newer_schema_is_refused_by_the_name_of_its_version():
    with pytest.raises(DoctorError, match=r"fasttrain-doctor 9\.9\.9 \(schema 99\)") as caught:
        schema.upgrade({"schema": 99, "tool": "9.9.9"})
    assert caught.value.slug == "run-newer"


@pytest.mark.parametrize("number", [None, "1", 0, -3, True, 1.5])
def test_no_usable_number_is_a_corrupt_run(number):
    with pytest.raises(DoctorError) as caught:
        schema.upgrade({"schema": number})
    assert caught.value.slug == "run-corrupt"


def test_an_older_document_goes_through_every_step_in_order():
    def to_two(document):
        return {"renamed": document["old_name"]}

    def to_three(document):
        return {**document, "renamed": document["renamed"] * 2}

    old = {"schema": 1, "old_name": 4}
    new = schema.upgrade(old, steps={1: to_two, 2: to_three}, current=3)

    assert new == {"schema": 3, "renamed": 8}
    assert old == {"schema": 1, "old_name": 4}


def test_a_document_of_another_shape_is_a_corrupt_run():
    document = json.loads(dumps(SAMPLES["success"]))
    document["step"] = {"mean": "fast"}
    with pytest.raises(DoctorError, match=r"\$\.step\.mean") as caught:
        schema.decode(document, where="runs/x")
    assert caught.value.slug == "run-corrupt"
