"""The stages of a diagnosis in order: watch, look inside, look deep, replay, judge, try, confirm.

Each leaves what it found in the case.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fasttrain_doctor import endings, epochs, gather, journal, judging, looking, profiling, snapshot, watching
from fasttrain_doctor.case import Case
from fasttrain_doctor.diagnosis import Change, TrialFacts
from fasttrain_doctor.errors import DoctorError, NothingMeasured, UsageError
from fasttrain_doctor.evidence import Effect
from fasttrain_doctor.launch import Command, Streams
from fasttrain_doctor.progress import Progress
from fasttrain_doctor.recorded import read_probe
from fasttrain_doctor.run import RunWriter
from fasttrain_doctor.sampling import read_samples
from fasttrain_doctor.tried import said
from fasttrain_doctor.tuners.arms import USED_UP
from fasttrain_doctor.tuners.bench import SessionEnded
from fasttrain_doctor.tuners.driven import HANG_SECONDS, Driven
from fasttrain_doctor.tuners.fixes import Plan
from fasttrain_doctor.tuners.process import STEADY, WINDOW
from fasttrain_doctor.tuners.session import Session, Setup

DATA_WORTH = 0.02  # a share of the step below which the replay floor has nothing to say
MOST_STARTS = 6  # new processes a search may need where the script is short
FLOOR_STEPS = 8
LATER = 30.0  # seconds that a start may take beyond four times the first one's, before it counts as hung
LEAST_PATIENCE = 10.0  # seconds beyond a block's own limit before the loop counts as hung, whatever is left


@dataclass(frozen=True, slots=True)
class Limits:
    """What a diagnosis may do: seconds in all, seconds until a hang, what fixes may change."""

    budget: float
    timeout: float
    steps: int | None
    trials: bool
    allow: Effect
    max_workers: int | None


class Diagnosing:
    """One diagnosis under way. ``run`` goes through the stages; ``clean`` leaves the user's files as they were."""

    def __init__(
        self,
        command: Command,
        writer: RunWriter,
        case: Case,
        limits: Limits,
        streams: Streams,
        progress: Progress,
    ) -> None:
        self.command, self.writer, self.case, self.limits = command, writer, case, limits
        self.streams, self.progress = streams, progress
        self.began = time.monotonic()
        self.started = 0.0  # seconds from the start of a process until its loop was found
        self._session: Session | None = None
        folders = {Path.cwd(), *([command.script.resolve().parent] if command.script is not None else [])}
        self._before = snapshot.snapshot(sorted(folders))
        self._put_back: set[str] = set()

    @property
    def _probe(self) -> Path:
        """Where the newest start of the script writes."""
        run = self.writer.run
        return run.probe if self.case.executions <= 1 else run.trials / f"{self.case.executions - 1:02d}"

    def left(self) -> float:
        """Seconds of the budget left."""
        return self.limits.budget - (time.monotonic() - self.began)

    def run(self) -> None:
        """Go through the stages.

        Raises:
            ScriptFailed, NothingMeasured: before enough was measured.
        """
        with ExitStack() as stack:
            stack.callback(self._end_session)
            session = self._start(self.streams)
            if not self.watch(session):
                return
            case = self.case
            profiling.profile(self, session)  # it takes fewer steps: a short script may not have them for both
            looking.look(self, session)
            world = case.watched.ranks.world if case.watched is not None else 1
            if world > 1:
                why = f"{world} ranks train together: blocks of one rank alone compare nothing"
                case.missing("floor", why)
                case.missing("trials", why)
                self.judge()
                return
            bench = self._bench(session)
            self.replay(bench)
            self.judge()
            if self.limits.trials:
                self.search(bench)
            else:
                case.missing("trials", "trials were turned off")
        self.clean()
        if self.limits.trials and not self.case.interrupted:
            self.confirm()

    # -- processes --------------------------------------------------------------------------------------------------

    def _setup(self, streams: Streams) -> Setup:
        """Return what the next start of the script is made with."""
        self.case.executions += 1
        self._probe.mkdir(mode=0o700, exist_ok=True)
        return Setup(self.command, self.writer.run.folder, self._probe, streams, os.environ)

    def fresh_setup(self, plan: Plan, loader: Mapping[str, Any], seed: int) -> Setup:
        """Return what a confirming process is started with; it counts as one more start of the script."""
        setup = self._setup(self._quiet_streams())
        return replace(setup, plan=dict(plan), loader=dict(loader), seed=seed)

    def _start(self, streams: Streams) -> Session:
        """Start the script and wait until its loop has been found."""
        session = Session(self._setup(streams))
        self._session = session
        try:
            session.__enter__()
        except OSError as error:  # a file that may be executed but is no program, most often
            raise UsageError("program-fails", f"{self.command.argv[0]} cannot be started: {error}") from error
        timeout = self.limits.timeout
        if self.started:  # it has started before: no need to wait as long as for a stranger
            timeout = min(timeout, 4 * self.started + LATER)
        hello = session.hello(timeout)
        self.started = self.started or time.monotonic() - session.started
        if hello is None:
            raise endings.unmeasured(session, self._probe, self.command.name, timeout)
        return session

    def _again(self, reason: str) -> Session:
        """Start the script anew for a search that has not ended."""
        if self.case.executions > MOST_STARTS:
            raise SessionEnded(f"{reason}; it was started {self.case.executions} times already")
        if self.left() <= 0:
            raise SessionEnded(f"{reason}, and the budget was used up")
        self.clean()
        self.progress.say(f"{reason}: starting it again")
        try:
            session = self._start(self._quiet_streams())
        except DoctorError as error:
            raise SessionEnded(str(error)) from error
        self._border(session)
        return session

    def _quiet_streams(self) -> Streams:
        run = self.writer.run
        name = f"{self.case.executions:02d}"
        return Streams(
            run.trials / f"{name}.stdout.log", run.trials / f"{name}.stderr.log", terminals=self.streams.terminals
        )

    def _end_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.stop()

    def clean(self) -> None:
        """Stop the script and put the user's files back."""
        self._end_session()
        first = self.case.executions <= 1
        done = journal.restore(self.writer.run.folder, discard=not first)
        self._put_back |= set(done.put_back)
        known = {(c.path, c.what) for c in self.case.unprotected}
        for path, why in done.unprotected:
            if (path, why) not in known:
                self.case.unprotected.append(Change(path=path, what=why))
        if first:
            self.case.moved += done.moved

    def compare_folders(self) -> None:
        """Note files that changed and were not kept aside."""
        known = {change.path for change in self.case.unprotected}
        for before in (self._before, snapshot.saved_to(self.writer.run.folder)):
            for changed in snapshot.changes(before, snapshot.now(before), self._put_back):
                if changed.path not in known and not snapshot.in_use(changed.path):
                    known.add(changed.path)
                    self.case.unprotected.append(Change(path=changed.path, what=changed.what))

    def salvage(self, why: str) -> None:
        """Make what can be made of a diagnosis that was cut short."""
        if self.case.watched is None:
            self.case.watched = gather.understand(read_probe(self.writer.run.probe))
        if self.case.watched is None:
            self.case.failed = f"{why} before three whole steps had run"
        elif not self.case.findings:
            self.judge()
        self.case.missing("trials", why)

    # -- stages -----------------------------------------------------------------------------------------------------

    def watch(self, session: Session) -> bool:
        """Watch the window; False when the script ended in it and enough was seen to judge, but not to go on."""
        self.progress.say(f"found the training loop after {self.started:.1f} s; watching it")
        limits = self.limits
        seen = watching.watch(session, self._probe, limits.steps, limits.timeout, limits.budget)
        self.case.degraded += seen.degraded
        if seen.watched is None or seen.watched.breakdown.measured < 3:
            name = self.command.name
            if seen.ended is None:
                raise NothingMeasured("too-few-steps", f"{name} took no three whole steps past its warm-up")
            raise endings.unmeasured(session, self._probe, name, self.limits.timeout, seen.watched)
        self.case.watched = seen.watched
        self.case.startup = epochs.startup_of(seen.watched, session.started)
        self.case.overhead = seen.overhead
        if seen.ended is not None:
            self._note_end(session, seen.ended)
            self.judge()
            return False
        try:
            self._border(session)
        except SessionEnded as ended:
            self._note_end(session, ended.reason)
            self.judge()
            return False
        return True

    def patience(self) -> float:
        """Return the seconds beyond what steps should take after which the loop counts as hung."""
        return max(LEAST_PATIENCE, min(HANG_SECONDS, self.limits.timeout, self.left()))

    def _border(self, session: Session) -> None:
        assert self.case.watched is not None
        session.ask({"do": "border", "anchor": self.case.watched.steps.anchor}, 60)

    def _note_end(self, session: Session, reason: str) -> None:
        status = session.child.wait(5)
        if status:
            self.note_failure(endings.how(status))
        for what in ("look", "floor", "operators", "trials"):
            self.case.missing(
                what, f"{reason} after {len(self.case.watched.window.every)} steps" if self.case.watched else reason
            )

    def note_failure(self, how: str) -> None:
        """Note once that the script failed although nothing was changed in it."""
        what = f"the script failed after the window ({how})"
        if what not in self.case.degraded:
            self.case.degraded.append(what)

    def _bench(self, session: Session) -> Driven:
        watched = self.case.watched
        assert watched is not None
        workers = watched.loader.num_workers if watched.loader is not None else 0
        return Driven(
            session,
            self._again,
            workers,
            watched.breakdown.samples_per_step,
            patience=self.patience,
            failed=lambda status: self.note_failure(endings.how(status)),
        )

    def replay(self, bench: Driven) -> None:
        """Measure the replay floor where data takes enough of the step to be worth it."""
        watched = self.case.watched
        assert watched is not None
        b = watched.breakdown
        if watched.loader is None or not b.data:
            return
        if b.data < DATA_WORTH * b.mean:
            self.case.missing("floor", f"data takes {b.data / b.mean:.1%} of the step: nothing to gain there")
            return
        if b.mean * 4 * FLOOR_STEPS > 0.3 * max(self.left(), 1.0):
            self.case.missing("floor", "steps are too slow for the budget")
            return
        self.progress.say("replaying one batch: the floor if data cost nothing")
        try:
            self.case.floor, why = bench.floor(FLOOR_STEPS)
        except SessionEnded as error:
            self.case.missing("floor", error.reason)
            return
        if self.case.floor is None:
            self.case.missing("floor", why)

    def judge(self) -> None:
        """Let the rules look at what is known."""
        self.case.samples = read_samples(self.writer.run.samples_file)
        judging.judge(self.case, self.command)
        for rule, finding in self.case.findings:
            self.progress.say(f"{rule.code} {rule.name}: {finding.message}")

    def search(self, bench: Driven) -> None:
        """Try fixes on paired blocks; the winner is left as a candidate for the confirmation."""
        from fasttrain_doctor.tuners.search import search

        assert self.case.evidence is not None
        assert self.case.watched is not None
        # What a confirmation takes: six processes, each with its start, its window and its end.
        step = self.case.watched.breakdown.mean
        reserve = min(0.6 * self.limits.budget, 6 * (self.started + 2.5 + max(WINDOW, (STEADY + 3) * step)))

        class Deadline:
            left = staticmethod(lambda: self.left() - reserve)

        def tried(trial: TrialFacts) -> None:
            self.case.trials.append(trial)
            self.progress.say(said(trial))

        result = search(
            bench,
            self.case.evidence,
            self.case.findings,
            allow=self.limits.allow,
            budget=Deadline(),
            max_workers=self.limits.max_workers,
            on_trial=tried,
        )
        self.case.trials = list(result.trials)
        self.case.noise = None if result.noise is None else result.noise.half_width()
        for skipped in result.skipped:
            self.case.missing(skipped.fix, skipped.reason)
        self.case.search = result
        if result.stopped_because == USED_UP:
            self.case.out_of_time(reserve, self.limits.budget)
        self.progress.say(f"search over: {result.stopped_because}")

    def confirm(self) -> None:
        """Prove the winner in fresh processes."""
        from fasttrain_doctor.confirming import confirm_plan

        confirm_plan(self)
