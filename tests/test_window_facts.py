"""What is read at the window's ends, and what is made of it: modes for debugging, threads, waiting for a CPU, batches."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from fasttrain_doctor.evidence import Debug
from fasttrain_doctor.probe import describe
from fasttrain_doctor.window_facts import batch_of, debug_of, queued_of, threads_of, worker_threads_of
from tests.records_made import process

ASK = """
import json, os, sys, torch
from fasttrain_doctor.probe import window
for before in json.loads(sys.argv[1]):
    exec(before)
    print(json.dumps(window.modes()), flush=True)
os._exit(0)
"""
HARMLESS = "import faulthandler; faulthandler.enable(); torch.backends.cudnn.benchmark = False"
MODES = {
    "anomaly detection": "torch.autograd.set_detect_anomaly(True)",
    "deterministic algorithms": "torch.use_deterministic_algorithms(True)",
    "a debugger": "import bdb; d = bdb.Bdb(); d.reset(); d.botframe = None; sys.settrace(d.trace_dispatch)",
    "a Python profiler": "import cProfile; p = cProfile.Profile(); p.enable()",
    "tracing of memory allocation": "import tracemalloc; tracemalloc.start()",
    "the script's own torch profiler": "own = torch.autograd.profiler.profile(); own.__enter__()",
}


def modes(*before: str, options: tuple[str, ...] = (), **env: str) -> list[set[str]]:
    """The modes seen after each of these statements."""
    command = [sys.executable, *options, "-c", ASK, json.dumps(before)]
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": "/usr/bin", **env})
    assert done.returncode == 0, done.stderr
    return [{name for name, _ in json.loads(line)} for line in done.stdout.splitlines()]


def test_each_mode_for_debugging_is_seen_and_a_plain_script_has_none():
    plain, traced, *others = modes(HARMLESS, "sys.settrace(lambda *a: None)", "sys.settrace(None)", *MODES.values())
    assert plain == set()
    assert traced == {"a trace function"}
    assert others == [set(list(MODES)[:i]) for i in range(len(MODES) + 1)]


def test_modes_of_the_interpreter_and_of_libraries_are_seen():
    assert modes("", options=("-X", "dev")) == [{"Python's development mode"}]
    environment = {"PYTHONMALLOC": "debug", "ONEDNN_VERBOSE": "1", "NCCL_DEBUG": "TRACE"}
    assert modes("", **environment) == [{"checked memory allocation", "a line per operation"}]


def ends(*waited: tuple[str, int, int], debug: object = ()) -> tuple[dict[str, object], ...]:
    return tuple(
        {"fact": "window", "end": end, "waited": ns, "clock": clock, "debug": debug, "threads": 4}
        for end, ns, clock in waited
    )


def test_waiting_for_a_cpu_is_a_share_of_the_watched_time_alone():
    watched = replace(
        process([]), facts=ends(("begin", 0, 0), ("end", 30, 100), ("begin", 500, 900), ("end", 510, 1000))
    )
    assert queued_of(watched) == pytest.approx(0.2)
    assert queued_of(replace(watched, facts=watched.facts[:1])) is None
    assert queued_of(replace(watched, facts=ends(("begin", -1, 0), ("end", -1, 100)))) is None


def test_a_mode_that_is_on_for_the_forward_alone_counts():
    plain = replace(process([]), facts=ends(("begin", 0, 0)))
    assert debug_of(plain) == ()
    assert debug_of(process([])) is None
    forward = replace(plain, facts=(*plain.facts, {"fact": "model", "anomaly": True}))
    assert [mode.name for mode in debug_of(forward) or ()] == ["anomaly detection"]
    twice = replace(plain, facts=ends(("begin", 0, 0), ("end", 0, 9), debug=[["a debugger", "sys.gettrace()"]]))
    assert debug_of(twice) == (Debug("a debugger", "sys.gettrace()"),)


def test_threads_are_those_at_the_end_of_the_window_and_a_workers_those_of_opencv_too():
    facts = ({"fact": "process", "threads": 16}, *ends(("begin", 0, 0)))
    assert threads_of(replace(process([]), facts=facts)) == 4
    assert threads_of(replace(process([]), facts=facts[:1])) == 16
    looks = ({"fact": "rng", "worker": True, "threads": 1, "cv2_threads": 16},)
    assert worker_threads_of([replace(process([]), facts=looks)]) == 16
    assert worker_threads_of([]) is None


@pytest.mark.parametrize(
    ("data", "tensors", "objects"),
    [
        (torch.ones(3), 1, 0),
        ([torch.ones(2)] * 1000, 1000, 0),
        ({"ids": list(range(100_000)), "x": torch.ones(4), "none": None}, 1, 100_000),
        ([("name", torch.ones(1))] * 64, 64, 64),
        ([[1] * 300] * 300, 0, 90_000),
    ],
)
def test_a_batch_is_counted_and_a_long_one_not_looked_through(data, tensors, objects):
    facts = describe.batch(data)
    assert (facts["batch_tensors"], facts["batch_objects"]) == (tensors, objects)
    known = replace(process([]), facts=({"fact": "batch", "loader": 1, **facts},))
    assert batch_of(known, {"id": 1}) == (tensors, objects)
    assert batch_of(known, {"id": 2}) == (None, None)


class Closed(torch.utils.data.Dataset):
    """As data sets that pass every name on to what they have not opened yet."""

    def __getitem__(self, index):
        return index

    def __len__(self):
        return 4

    def __getattr__(self, name):
        raise RuntimeError(f"{name} was asked for too early")


def test_a_loader_is_described_whatever_its_data_set_does_when_asked():
    loader = torch.utils.data.DataLoader(range(4), batch_size=2)
    loader.__dict__["dataset"] = Closed()
    facts = describe.loader(loader)
    assert facts["dataset"].endswith("Closed")
    assert facts["batch_size"] == 2
    assert facts["transforms"] is None
