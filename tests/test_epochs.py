"""What training costs apart from its steps: start-up, ends of epochs, ranks that others wait for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fasttrain_doctor.epochs import epoch_cost, epoch_of, startup_of
from fasttrain_doctor.evidence import Breakdown
from fasttrain_doctor.gather import Watched, understand
from fasttrain_doctor.ranks import ranks_of
from fasttrain_doctor.recorded import Recorded
from fasttrain_doctor.records import Call, Kind, Span
from tests.evidence_samples import breakdown
from tests.records_made import Script

MS = 0.001
LOADER = {
    "fact": "loader", "id": 1, "num_workers": 2, "prefetch_factor": 2, "pin_memory": False, "persistent_workers": False,
    "batch_size": 8, "length": 50, "dataset": "D", "dataset_length": 400, "iterable": False, "sampler": "R",
    "file": "t.py", "line": 3, "start_method": None, "worker_init_fn": False,
}  # fmt: skip


class Epochs(Script):
    """A loop of several epochs; each end evaluates, saves and prints, and starts the loader anew."""

    def __init__(self, *, first: float = 30.0) -> None:
        super().__init__()
        self.now = 100.0
        self.first = first

    def start(self, make: float, wait: float, number: int) -> None:
        self._add(Kind.ITERATOR, make, obj=number, a=1, b=2)
        self._add(Kind.NEXT, wait, obj=number, a=1)

    def epoch(self, number: int, steps: int = 6, *, make: float = 20.0, wait: float = 11.0) -> None:
        self.start(make, wait, number)
        for i in range(steps):
            if i:
                self._add(Kind.NEXT, 1.0, obj=number, a=1)
            self.forward(self.first if self.now < 140 else 2.0)
            self.backward(2.0)
            self.update(1.0)
        self._add(Kind.NEXT, 0.1, obj=number, a=1, flag=1)

    def end(self, *, evaluate: float = 40.0) -> None:
        if evaluate:
            self._add(Kind.NEXT, 5.0, obj=99, a=2)
            self.forward(evaluate - 10.0, Call.EVAL | Call.TRAINS)
            self._add(Kind.SPAN, 3.0, flag=Span.LOGGING)
            self.forward(5.0, Call.EVAL | Call.TRAINS)
        self._add(Kind.SPAN, 7.0, flag=Span.CHECKPOINT)
        self._add(Kind.SPAN, 1.0, flag=Span.LOGGING)
        self.gap(4.0)


def understood(script: Script, **loader: object) -> Watched:
    facts = (LOADER | loader, {"fact": "process", "clock": 40_000_000, "threads": 1})
    watched = understand(Recorded((replace(script.process, facts=facts),)))
    assert watched is not None
    return watched


def three_epochs() -> Epochs:
    script = Epochs()
    for number in (1, 2, 3):
        script.epoch(number)
        if number < 3:
            script.end()
    return script


def test_an_epoch_is_its_start_evaluation_checkpoint_logging_and_the_rest():
    cost = epoch_cost(understood(three_epochs()))
    assert cost.batches == 6
    assert cost.start == pytest.approx(30 * MS, rel=0.01)  # 20 to make it, 10 of its first wait beyond the usual 1
    assert cost.eval == pytest.approx(40 * MS)
    assert (cost.checkpoint, cost.logging) == (pytest.approx(7 * MS), pytest.approx(4 * MS))
    assert cost.other == pytest.approx(4 * MS)


def test_an_evaluation_every_second_epoch_counts_half_for_each():
    script = Epochs()
    for number in (1, 2, 3):
        script.epoch(number)
        script.end(evaluate=40.0 if number == 2 else 0)
    assert epoch_cost(understood(script)).eval == pytest.approx(20 * MS)


def test_a_whole_epoch_is_projected_from_its_length():
    script = Epochs()
    script.epoch(1)
    watched = understood(script)
    epoch = epoch_of(watched)
    assert epoch.batches == 50
    assert epoch.steps == pytest.approx(50 * watched.breakdown.mean)
    assert epoch.whole == pytest.approx((epoch.steps or 0) + (epoch.start or 0))
    unknown = epoch_of(understood(script, length=None))
    assert (unknown.steps, unknown.whole, unknown.shares) == (None, None, None)


def test_an_epoch_that_was_seen_whole_counts_by_what_it_took():
    watched = understood(three_epochs(), length=None)
    epoch = epoch_of(watched)
    assert epoch.batches == 6
    assert epoch.whole == pytest.approx(6 * watched.breakdown.mean + 85 * MS, rel=0.01)
    assert sum((epoch.shares or {}).values()) == pytest.approx(1)
    assert epoch_of(understood(three_epochs(), length=7)).batches == 7  # the last one led to no update


@pytest.mark.parametrize(
    ("loader", "seen"),
    [({}, True), ({"persistent_workers": True}, False), ({"num_workers": 0}, False)],
    ids=["new workers", "workers that stay", "no workers"],
)
def test_the_first_start_stands_for_the_others_only_where_workers_are_started_anew(loader, seen):
    script = Epochs()
    script.epoch(1)
    cost = epoch_cost(understood(script, **loader))
    assert (cost.start is not None) == seen
    assert (cost.eval, cost.checkpoint, cost.logging, cost.other) == (None,) * 4


def test_start_up_is_told_in_its_order():
    startup = startup_of(understood(three_epochs()), 0.01)
    assert startup.imports == pytest.approx(30 * MS)
    assert startup.setup == pytest.approx(60 * MS)
    assert (startup.workers, startup.first_batch) == (pytest.approx(20 * MS), pytest.approx(11 * MS))
    assert startup.first_step == pytest.approx(28 * MS, rel=0.05)


def rank(mean: float, **phases: float) -> Breakdown:
    made = breakdown(**phases)
    return replace(made, mean=mean)


def test_ranks_on_their_own_are_compared_by_their_step():
    ranks, slowest = ranks_of({"0": rank(1.0), "1": rank(1.3), "2": rank(1.0)}, 4)
    assert (ranks.straggler, slowest, ranks.world, ranks.reported) == ("1", "1", 4, 3)
    assert ranks.work == ranks.step


def test_of_ranks_that_keep_step_the_one_that_does_not_wait_is_late():
    late = rank(1.0, prepare=0.4, forward=0.2, backward=0.3)
    waiting = rank(1.01, prepare=0.1, forward=0.2, backward=0.61)
    ranks, slowest = ranks_of({"0": waiting, "1": late, "2": waiting}, 3)
    assert (ranks.straggler, slowest) == ("1", "1")
    assert ranks.work["0"] == pytest.approx(0.7)
    in_collectives = {str(i): rank(1.0, forward=1.0) for i in range(2)}
    in_collectives["0"] = replace(in_collectives["0"], other={"collective": 0.4})
    assert ranks_of(in_collectives, 2)[0].straggler == "1"


def test_even_ranks_and_a_single_one_have_no_straggler():
    assert ranks_of({"0": rank(1.0), "1": rank(1.02)}, 2)[0].straggler is None
    assert ranks_of({"0": rank(1.0)}, 1)[0].straggler is None
