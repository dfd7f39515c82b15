"""A session as the bench the search drives: plans become arms that stay ready between visits."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from fasttrain_doctor.evidence import Floor
from fasttrain_doctor.tuners.bench import ArmFailed, Block, SessionEnded
from fasttrain_doctor.tuners.fixes import Plan
from fasttrain_doctor.tuners.session import Session

BLOCK_SECONDS = 15.0  # a block that takes longer is cut: its steps so far count
HANG_SECONDS = 90.0  # beyond a block's own limit, after which the loop counts as hung
MOST_READY = 3  # arms with workers kept ready; the oldest is closed beyond that (47 MB a worker)


class Driven:
    """Implements ``Bench`` over one session.

    A script that ends goes on in a new process; one that fails under a plan is that plan's failure.

    Args:
        session: the watched process, paused at a border.
        again: starts a new one, paused at a border; raises SessionEnded when there is to be none.
        workers: the script's own num_workers.
        batch: samples per step, where known.
        patience: seconds beyond a block's own limit after which the loop counts as hung.
        failed: told the exit status of a script that failed with nothing changed in it.
    """

    def __init__(
        self,
        session: Session,
        again: Callable[[str], Session],
        workers: int,
        batch: float | None,
        *,
        patience: Callable[[], float] = lambda: HANG_SECONDS,
        failed: Callable[[int], None] | None = None,
    ) -> None:
        self._session = session
        self._again = again
        self._workers = workers
        self._batch = batch
        self._patience, self._failed = patience, failed
        self._names: dict[str, str] = {}
        self._heavy: list[str] = []
        self.touched: dict[str, str] = {}

    def block(self, plan: Plan, steps: int) -> Block:
        """Train ``steps`` steps under ``plan``; see ``Bench.block``."""
        answer = self._anyway(dict(plan), None, steps)
        self.touched |= answer.get("touched", {})
        taken = int(answer["steps"])
        return Block(
            steps=taken,
            seconds=float(answer["seconds"]),
            samples=None if self._batch is None else self._batch * taken,
            step_seconds=tuple(answer["step_seconds"]),
            start=float(answer.get("start", 0.0)),
        )

    def floor(self, steps: int) -> tuple[Floor | None, str]:
        """Measure the replay floors beside the baseline; (None, why) where they cannot be.

        Raises:
            SessionEnded: nothing can be run any more.
        """
        base = self.block({}, steps)
        free, why = self._replay("free", max(steps, 12))
        ready, why_not = self._replay("ready", max(steps, 24))
        again = self.block({}, steps)
        if free is None and ready is None:
            return None, why or why_not
        baseline = (base.seconds + again.seconds) / (base.steps + again.steps)
        return Floor(free=free, ready=ready, baseline=baseline), ""

    def _replay(self, kind: str, steps: int) -> tuple[float | None, str]:
        try:
            answer = self._anyway({}, kind, steps)
            self._close(f"replay-{kind}")
        except ArmFailed as error:
            return None, error.reason
        return float(answer["seconds"]) / int(answer["steps"]), ""

    def _anyway(self, plan: dict[str, Any], replay: str | None, steps: int) -> dict[str, Any]:
        """Run a block, in a new process where the script has ended before it was done."""
        while True:
            try:
                return self._ask(plan, replay, steps)
            except SessionEnded as ended:
                status = self._session.child.wait(2)
                if status and self._failed is not None and not (plan or replay):
                    self._failed(status)
                self._session = self._again(ended.reason)
                self._names.clear()
                self._heavy.clear()
                if status != 0 and (plan or replay):
                    how = "hung" if status is None else f"exit status {status}"
                    raise ArmFailed(f"the script failed under it: {how}") from ended

    def _ask(self, plan: dict[str, Any], replay: str | None, steps: int) -> dict[str, Any]:
        name = f"replay-{replay}" if replay else self._name(plan)
        warm = self._warm(plan) if replay is None else 4
        answer = self._session.ask(
            {
                "do": "block",
                "arm": name,
                "plan": plan,
                "replay": replay,
                "steps": steps,
                "seconds": BLOCK_SECONDS,
                "warm": warm,
            },
            2 * BLOCK_SECONDS + self._patience(),
        )
        if "failed" in answer:
            self._close(name)
            self._forget(plan)
            raise ArmFailed(str(answer["failed"]))
        if not answer["steps"]:
            self._close(name)
            self._forget(plan)
            raise ArmFailed(f"no step finished within {2 * BLOCK_SECONDS:.0f} s")
        return answer

    def _name(self, plan: Mapping[str, Any]) -> str:
        text = json.dumps(plan, sort_keys=True)
        name = self._names.setdefault(text, f"arm{len(self._names)}")
        if _workers(plan, self._workers) and plan:
            if name in self._heavy:
                self._heavy.remove(name)
            self._heavy.append(name)
            if len(self._heavy) > MOST_READY:
                self._close(self._heavy[0])
        return name

    def _warm(self, plan: Mapping[str, Any]) -> int:
        """Steps of an arm's first visit that do not count: its workers start together and fill their queue at once."""
        workers = _workers(plan, self._workers)
        return max(2, 2 * workers)

    def _forget(self, plan: Mapping[str, Any]) -> None:
        self._names.pop(json.dumps(plan, sort_keys=True), None)

    def _close(self, name: str) -> None:
        if name in self._heavy:
            self._heavy.remove(name)
        answer = self._session.ask({"do": "close", "arm": name}, 30.0)
        if "failed" in answer:
            raise SessionEnded(f"an arm could not be closed: {answer['failed']}")


def _workers(plan: Mapping[str, Any], own: int) -> int:
    value = plan.get("dataloader-workers")
    return int(value.get("num_workers", own)) if isinstance(value, Mapping) else own
