"""What the parent can ask for at a border, and what it is told. Message formats: see ``tuners/session.py``."""

from __future__ import annotations

import itertools
from typing import Any

from fasttrain_doctor.probe import arms, looking, price, state, stop, window
from fasttrain_doctor.probe.loop import Loop
from fasttrain_doctor.probe.recorder import clock


class Steps:
    """Runs the loop for ``steps`` steps or ``seconds``, after ``warm`` that do not count, and keeps the step times."""

    def __init__(self, name: str, steps: int, seconds: float, warm: int = 0) -> None:
        self.name = name
        self.steps, self.limit, self.warm = steps, int(seconds * 1e9), warm
        self.began = clock()
        self.skipped = 0
        self.times: list[int] = []

    def border(self, now: int) -> bool:
        """Note a border; True when enough steps have run."""
        self.times.append(now - self.skipped)
        done = len(self.times) - 1 - self.warm
        if done >= self.steps:
            return True
        return self.limit > 0 and now - self.began > self.limit and done >= 1

    def skip(self, ns: int) -> None:
        """Leave out time that is no step's: between epochs, evaluation, other loaders."""
        self.skipped += ns

    def report(self) -> dict[str, Any]:
        """Return what was measured: seconds over the counted steps, and each step's."""
        counted = self.times[self.warm :]
        steps = [(b - a) / 1e9 for a, b in itertools.pairwise(counted)]
        return {
            "done": self.name,
            "steps": len(steps),
            "seconds": sum(steps),
            "step_seconds": steps,
            "all_seconds": (clock() - self.began) / 1e9,
        }


class Profile(Steps):
    """A few steps under torch.profiler; the trace goes to ``path``."""

    def __init__(self, steps: int, path: str) -> None:
        from fasttrain_doctor.probe.deep import Deep

        super().__init__("profile", steps, 60.0)
        self.deep = Deep(path)
        self.deep.start()

    def border(self, now: int) -> bool:
        """Close one profiled step and open the next."""
        self.deep.border()
        return super().border(now)

    def report(self) -> dict[str, Any]:
        """Write the trace; returns its path with the steps' times."""
        return super().report() | {"path": self.deep.finish()}


class Look(Steps):
    """A look inside for at least ``steps`` steps and ``seconds``, but no longer than twice that time."""

    def __init__(self, loop: Loop, steps: int, seconds: float) -> None:
        super().__init__("look", steps, 2 * seconds)
        self.loop, self.least = loop, int(seconds * 1e9)
        self.look = looking.begin(loop)

    def border(self, now: int) -> bool:
        """Note a border; True when both have passed."""
        return super().border(now) and now - self.began >= self.least

    def report(self) -> dict[str, Any]:
        """End the look; what was seen is in the processes' facts."""
        looking.end(self.loop, self.look)
        return super().report()


def carry_out(loop: Loop, command: dict[str, Any]) -> dict[str, Any] | None:
    """Carry out one command; the answer, or None when the loop must run first."""
    try:
        answer: dict[str, Any] | None = _COMMANDS[command["do"]](loop, command)
        return answer
    except Exception as error:
        loop.program = None
        arms.quiet(loop)
        return {"failed": f"{type(error).__name__}: {error}"[:500], "do": command["do"]}


def reported(loop: Loop) -> dict[str, Any]:
    """Return the finished program's report, or why there is none: a full disk, most often."""
    try:
        return report(loop)
    except Exception as error:
        arms.quiet(loop)
        return {"failed": f"{type(error).__name__}: {error}"[:500]}


def report(loop: Loop) -> dict[str, Any]:
    """Return the finished program's report and take it off the loop."""
    program, loop.program = loop.program, None
    assert program is not None
    message = program.report()
    message |= {"updates": loop.updates, "began": loop.began}
    if message["done"] == "observe":
        message |= price.measure()
        window.end()
    if message["done"] == "block":
        message |= arms.rest(loop)
    return message


def _observe(loop: Loop, command: dict[str, Any]) -> None:
    state.recorder.on = True
    loop.program = Steps("observe", command["steps"], command["seconds"])
    window.begin()


def _run(loop: Loop, command: dict[str, Any]) -> None:
    state.recorder.on = True  # should the script end in it, the parent reads the steps from the records
    loop.program = Steps("run", command["steps"], command["seconds"], command["warm"])


def _border(loop: Loop, command: dict[str, Any]) -> dict[str, Any]:
    loop.anchor = command.get("anchor")
    return {"done": "border"}


def _look(loop: Loop, command: dict[str, Any]) -> None:
    state.recorder.on = False
    loop.program = Look(loop, command["steps"], command["seconds"])


def _profile(loop: Loop, command: dict[str, Any]) -> None:
    state.recorder.on = False
    loop.program = Profile(command["steps"], command["path"])


def _block(loop: Loop, command: dict[str, Any]) -> None:
    state.recorder.on = False
    started = arms.activate(loop, command["arm"], command["plan"], command.get("replay"))
    program = Steps("block", command["steps"], command["seconds"], command["warm"] if started else 1)
    loop.program = program


def _losses(loop: Loop, command: dict[str, Any]) -> dict[str, Any]:
    kept, loop.losses = loop.losses or [], None
    return {"done": "losses", "losses": read_losses(kept)}


def read_losses(kept: list[Any]) -> list[float]:
    """Read losses off their device: the only read of theirs, after all is measured."""
    return [float(x.float().item()) for x in kept]


def _close(loop: Loop, command: dict[str, Any]) -> dict[str, Any]:
    arms.close(loop, command["arm"])
    return {"done": "close"}


def _stop(loop: Loop, command: dict[str, Any]) -> None:
    stop.stop(0)


_COMMANDS: dict[str, Any] = {
    "observe": _observe,
    "run": _run,
    "border": _border,
    "look": _look,
    "profile": _profile,
    "block": _block,
    "losses": _losses,
    "close": _close,
    "stop": _stop,
}
