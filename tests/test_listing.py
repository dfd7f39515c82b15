"""The commands that look round: the machine, the runs kept here, a run that is not there."""

from __future__ import annotations

import json
import os

import pytest


def test_check_tells_of_this_machine(doctor):
    said = doctor.command("check")
    assert said.code == 0, said.stderr
    assert "CPU cores" in said.stdout
    facts = json.loads(doctor.command("check", "--json").stdout)
    assert 0 < facts["machine"]["cores"] <= facts["machine"]["logical_cores"] == os.cpu_count()
    assert isinstance(facts["limits"], list)


def test_runs_are_listed_newest_first_and_broken_ones_by_what_is_wrong(doctor):
    assert doctor.command("runs").stdout == "no runs here; start with: fasttrain-doctor diagnose train.py\n"
    from fasttrain_doctor.run import create_run

    kept = doctor.folder / "kept"
    first = create_run(kept, "train.py").run
    second = create_run(kept, "other.py").run
    first.info_file.write_text("{")
    header, *rows = doctor.command("runs", "--out", str(kept)).stdout.splitlines()
    assert header.split() == ["RUN", "STATUS", "STEP", "TUNED"]
    statuses = {row.split()[0]: row.split()[1] for row in rows}
    assert statuses == {first.id: "corrupt", second.id: "running"}


@pytest.mark.parametrize("verb", ["report", "restore", "apply"])
def test_a_run_that_is_not_there_is_a_usage_error(doctor, verb):
    said = doctor.command(verb, "nonsense")
    assert said.code == 2
    assert said.stderr.startswith("fasttrain-doctor: error[run-missing]: nonsense")
