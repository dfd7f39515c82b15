"""Runs many training loops in one process: each in a child forked from one that has imported torch, under the probe."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from fasttrain_doctor.gather import understand
from fasttrain_doctor.launch import Streams, parse_target
from fasttrain_doctor.recorded import Recorded, read_probe
from fasttrain_doctor.tuners.bench import SessionEnded
from fasttrain_doctor.tuners.session import Session, Setup
from tests.conftest import environment
from tests.loop_shape import Shape
from tests.watched import HEAD, Seen

SECONDS = 170.0  # in all

# The first process trains a step of its own: from then on its children are its helpers and nobody's to stop.
DRIVER = (
    HEAD
    + """
import json, os, sys, traceback
net = Net(); loss_of(net(torch.zeros(4, 8)), torch.arange(4)).backward()
torch.optim.SGD(net.parameters(), 0.1).step()
ran = {}
for name in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        code = 1
        with open(name + ".out", "w", buffering=1) as out:
            os.dup2(out.fileno(), 1); os.dup2(out.fileno(), 2)
            try:
                file = os.path.abspath(name + ".py")
                exec(compile(open(file).read(), file, "exec"), {**globals(), "__file__": file})
                code = 0
            except SystemExit as ended:
                code = int(ended.code or 0)
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            os._exit(code)
    ran[name] = child, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    json.dump(ran, open("ran.json", "w"))
"""
)


def watch_all(shapes: Iterable[Shape], folder: Path) -> dict[str, Seen | str]:
    """Run shapes under the probe; returns what was understood of each, or its output where no step was found."""
    names = [shape.name for shape in shapes]
    for shape in shapes:
        (folder / f"{shape.name}.py").write_text(shape.script)
    (folder / "train.py").write_text(DRIVER)
    run_dir = folder / "run"
    probe = run_dir / "probe"
    probe.mkdir(parents=True)
    streams = Streams(run_dir / "out", run_dir / "err", terminals=(False, False, False))
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.chdir(folder))
        command = parse_target(["train.py", *names])
        session = stack.enter_context(Session(Setup(command, run_dir, probe, streams, environment())))
        if session.hello(60) is None:
            pytest.fail((run_dir / "err").read_text())
        with contextlib.suppress(SessionEnded):
            session.ask({"do": "observe", "steps": 10**9, "seconds": 0}, SECONDS)
        session.child.wait(20)
    recorded = read_probe(probe)
    ran = json.loads((folder / "ran.json").read_text())
    return {name: _seen(recorded, *ran[name], (folder / f"{name}.out").read_text()) for name in names if name in ran}


def _seen(recorded: Recorded, pid: int, code: int, output: str) -> Seen | str:
    family = {pid}
    while grown := {p.pid for p in recorded.processes if p.parent in family} - family:
        family |= grown
    own = Recorded(tuple(p for p in recorded.processes if p.pid in family))
    watched = understand(own)
    return output if watched is None else Seen(watched, own, code, output, output)
