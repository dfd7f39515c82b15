"""Follows the training loop of this process: where a step ends, and what the parent wants done with the steps.

Steps are found for good by the parent, from the records; here it only matters that a border is never placed inside a
step, because at a border the loop may be paused for the parent's next command.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from fasttrain_doctor.probe import by_hand, state, window
from fasttrain_doctor.probe.compute_pool import pool
from fasttrain_doctor.probe.recorder import clock, thread_clock
from fasttrain_doctor.records import Call, Interval, Kind, Mark

if TYPE_CHECKING:
    from fasttrain_doctor.probe.device import Light

Key = tuple[object, ...]

_UPDATES_WITHOUT_NEXT = 3  # after so many the loader is no longer asked (itertools.cycle): updates are the borders
_BACKWARDS_WITHOUT_STEP = 3  # after so many there is no torch optimizer: a backward is the update
_LOOKS = 2  # forwards in evaluation mode in a row that make an evaluation; pseudo-labels take one
_MOST_FRAMES = 8  # of the user's code above a backward or an update
_BETWEEN_EVALUATIONS = 3  # steps; what comes more often than that is part of the step

_GRAD, _EVAL, _TRAINS = int(Call.GRAD), int(Call.EVAL), int(Call.TRAINS)  # a flag's arithmetic is slow in Python


class Program(Protocol):
    """What the parent asked for: told of each border, True when it is finished."""

    def border(self, now: int) -> bool:
        """Note a border; True when the program is finished."""
        ...

    def skip(self, ns: int) -> None:
        """Leave out time that is no step's."""
        ...

    def report(self) -> dict[str, Any]:
        """Return what is sent to the parent once finished."""
        ...


class Loop:
    """The loop's state. ``off`` passes everything through; ``began`` is set by the first update."""

    def __init__(self, command: Callable[[Loop], None] | None) -> None:
        self._command = command
        self.off = False
        self.began = False
        self.thread = 0
        self.training: set[Key] = set()
        self.elsewhere: set[Key] = set()  # loaders that another thread has asked
        self.steps = 0
        self.updates = 0
        self.backwards = 0
        self.optimizer_steps = 0
        self.anchor: int | None = None  # the optimizer whose step closes the cycle, where no loader is asked
        self.program: Program | None = None
        self.take: Callable[[Any, Key], Callable[[], Any] | None] | None = None  # an arm's source of batches
        self.on_forward: Callable[[Any], None] | None = None
        self.on_backward: Callable[[Any, Any, Any], Callable[..., Any]] | None = None
        self.on_copy: Callable[[Any, Any, Any, Any], Any] | None = None
        self.on_step: Callable[[Any], None] | None = None
        self.on_border: list[Callable[[], None]] = []
        self.losses: list[Any] | None = None
        self.device: Light | None = None
        self._pending = False
        self._forward = False  # a training forward has begun and its backward has not
        self._since_next = 0
        self._asked: set[Key] = set()
        self._looked = False  # a forward without gradients has run since a batch was asked for
        self._last_key: Key | None = None
        self._in_backward = False
        self._late: list[int] = []  # optimizers that stepped in it
        self._aside = 0  # when something that is not a step began (an epoch's end, evaluation)
        self._computing = False  # a training forward has run since the last update
        self._looks = 0  # forwards in evaluation mode since then, the first of them at:
        self._first_look = 0
        self._evaluated = -_BETWEEN_EVALUATIONS  # the step after which an evaluation was last seen
        self.on_first_update: Callable[[], None] | None = None
        self._places_left = 12

    # -- told by the hooks ------------------------------------------------------------------------------------------

    def before_next(self, key: Key) -> None:
        """Note that a loader is asked for its next batch."""
        if threading.get_ident() != self.thread and self.thread:
            self.elsewhere.add(key)
            return
        if self.device is not None:
            self._mark(Interval.OTHER)
        by_hand.update.close()
        if self._looked:  # the forward without gradients was the end of an evaluation, not a teacher's
            self._asked.clear()
            self._looked = False
        if key in self.training:
            self._since_next = 0
            self._return()
            if self._pending:
                self._border()
        elif self.began and not self._aside and self.training:
            self._aside = clock()
        self._asked.add(key)

    def after_next(self, key: Key, data: Any) -> None:
        """Note that a batch was handed out."""
        if threading.get_ident() == self.thread or not self.thread:
            self._last_key = key
            if self.device is not None:
                self._mark(Interval.DATA)

    def ended(self, key: Key) -> None:
        """Note that a loader is exhausted: what follows until it is asked again is not a step."""
        if threading.get_ident() != self.thread:
            return
        if key == self._last_key:  # what is trained on next is none of its batches
            self._last_key = None
            self._asked.discard(key)
        if key in self.training and not self._aside:
            self._aside = clock()

    def _look(self) -> None:
        """Note a forward of an evaluation, whose batches may come from no loader: it is not a step's either."""
        if self._computing or not self.began or threading.get_ident() != self.thread:
            return
        self._looks += 1
        if self._looks == 1:
            self._first_look = clock()
        elif self._looks == _LOOKS:
            if not self._aside and self.steps - self._evaluated > _BETWEEN_EVALUATIONS:
                self._aside = self._first_look
            self._evaluated = self.steps

    def _return(self) -> None:
        """Go on with the training after what is not a step, if there was any."""
        if self._aside:
            if self.program is not None:
                self.program.skip(clock() - self._aside)
            self._aside = 0

    def source(self, iterator: Any, key: Key) -> Callable[[], Any] | None:
        """Return an arm's source of batches for this iterator, or None for its own."""
        return None if self.take is None else self.take(iterator, key)

    def before_forward(self, module: Any, flag: int) -> None:
        """Note an outermost forward; without gradients it may mark what was fetched before it as evaluation."""
        if not flag & _GRAD:
            self._looked = True
            if flag & _EVAL and flag & _TRAINS:
                self._asked.clear()
                self._look()
            return
        if not flag & _TRAINS:
            return
        if self.unasked:
            self._return()
        self._computing, self._looks = True, 0
        if self.device is not None and not self._forward:
            self._forward = True
            self._mark(Interval.OTHER)
        if self.on_forward is not None:
            self.on_forward(module)

    def before_backward(self, call: Callable[..., Any], args: Any, kwargs: Any) -> Callable[..., Any]:
        """Note a backward; returns what to call in place of ``call``."""
        if not self.thread or threading.get_ident() == self.thread:
            self._in_backward = True
        if self.device is not None:
            self._forward = False
            self._mark(Interval.FORWARD)
        by_hand.update.before_backward(args, kwargs)
        if pool.looking and self._in_backward:
            pool.before(clock())
        if self.losses is not None:
            self._keep_loss(args, kwargs)
        if self.on_backward is not None:
            return self.on_backward(call, args, kwargs)
        return call

    def _keep_loss(self, args: Any, kwargs: Any) -> None:
        root = args[0] if args else kwargs.get("tensors", kwargs.get("outputs"))
        if isinstance(root, (list, tuple)):
            root = root[0] if root else None
        if root is not None and hasattr(root, "detach") and self.losses is not None and len(self.losses) < 4096:
            # A copy of its own memory, kept on its device: reading it now would synchronise.
            self.losses.append(root.detach().mean().clone())

    def after_backward(self) -> None:
        """Note that a backward is done: the batches that led to it are training batches."""
        if not self.thread:
            self.thread = threading.get_ident()
        elif threading.get_ident() != self.thread:
            return
        if self.device is not None:
            self._mark(Interval.BACKWARD)
        if pool.looking:
            pool.after(clock())
        self._in_backward = False
        self.backwards += 1
        self.training |= self._asked
        if self._last_key is not None:
            self.training.add(self._last_key)
        self._asked.clear()
        self._looked = False
        self._note_place()
        if self._late:
            late, self._late = self._late, []
            self._updated(self.anchor if self.anchor in late else late[-1])
        elif self.optimizer_steps == 0 and self.backwards >= _BACKWARDS_WITHOUT_STEP:
            by_hand.watch()
            by_hand.update.after_backward()
            self._updated(None)

    def before_step(self, optimizer: Any) -> None:
        """Note that an optimizer is about to step; one that steps in a backward interrupts it."""
        if self.device is not None:
            self._mark(Interval.BACKWARD if self._in_backward else Interval.OTHER)
        if self.on_step is not None:
            self.on_step(optimizer)

    def after_step(self, serial: int) -> None:
        """Note that an optimizer has stepped; within a backward, whose hooks another thread may run, no step ends yet."""
        if self.thread and threading.get_ident() != self.thread and not self._in_backward:
            return
        if self.device is not None:
            self._mark(Interval.OPTIMIZER)
        self.optimizer_steps += 1
        if self._in_backward:
            self._late.append(serial)
            return
        self._note_place()
        self._updated(serial)

    @property
    def unasked(self) -> bool:
        """Whether batches come from no loader that this thread asks."""
        return not self.training or self._since_next > _UPDATES_WITHOUT_NEXT

    # -- borders ----------------------------------------------------------------------------------------------------

    def _updated(self, serial: int | None) -> None:
        if not self.began:
            self.began = True
            rank, world = state.rank()
            state.recorder.fact("rank", rank=rank, world=world)
            window.begin()  # ranks that nobody asks to observe say it here
        self.updates += 1
        self._computing, self._looks = False, 0
        if self.on_first_update is not None:
            told, self.on_first_update = self.on_first_update, None
            told()
        self._pending = True
        self._since_next += 1
        if self.unasked and (self.anchor is None or serial is None or serial == self.anchor):
            self._border()

    def _border(self) -> None:
        self._pending = False
        self.steps += 1
        for told in tuple(self.on_border):
            told()
        if self.program is not None:
            if not self.program.border(clock()):
                return
        elif self._command is None:
            return
        t0, cpu0 = clock(), thread_clock()
        if self._command is not None:
            self._command(self)
        state.recorder.write(Kind.MARK, Mark.CONTROL, 0, t0, clock(), cpu0, thread_clock())

    def places(self, most: int) -> None:
        """Bound how many places of the user's code are still noted."""
        self._places_left = most

    def free(self) -> None:
        """Let the script go on unpaused."""
        self._command = None
        self.program = None

    def _mark(self, interval: Interval) -> None:
        if self.device is not None and (threading.get_ident() == self.thread or self._in_backward):
            self.device.mark(interval)

    def _note_place(self) -> None:
        if self._places_left > 0:
            self._places_left -= 1
            at = list(islice(state.user_lines(3), _MOST_FRAMES))
            if at:
                file, line, function = at[0]
                state.recorder.fact("at", file=file, line=line, function=function, stack=[place[:2] for place in at])
