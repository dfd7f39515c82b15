"""Copy the next batch to the device on a stream of its own while this one is being computed.

The script keeps seeing host batches. Which of their tensors it moves, and how, is learned from what it asks for; from
then on those tensors of the *next* batch are copied ahead, and its request is answered with the copy that is already
under way. A tensor that was changed after the copy began, or a request that differs, is served as if nothing were here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from fasttrain_doctor.evidence import Effect, Evidence
from fasttrain_doctor.tuners.fixes import Change, Fix, Options, Value
from fasttrain_doctor.tuners.fixes._accelerator import copy_share, missing
from fasttrain_doctor.tuners.fixes._nested import leaves

WORTH = 0.02


class Side(Protocol):
    """A place beside the device's main queue of work."""

    def issue(self, device: Any) -> AbstractContextManager[Any]:
        """Make copies begun inside the context run beside the main queue of ``device``."""

    def mark(self, device: Any) -> Any:
        """Return a mark behind what was issued so far."""

    def hand_over(self, tensor: Any, mark: Any) -> Any:
        """Make the main queue wait for ``mark``, and keep the tensor's memory until that queue is done with it."""


class Streams:
    """CUDA streams, one for each device copied to."""

    def __init__(self) -> None:
        self._streams: dict[Any, Any] = {}

    def issue(self, device: Any) -> AbstractContextManager[Any]:
        """Enter the side stream of ``device``."""
        import torch

        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        made: AbstractContextManager[Any] = torch.cuda.stream(self._streams[device])
        return made

    def mark(self, device: Any) -> Any:
        """Record an event on the side stream."""
        return self._streams[device].record_event()

    def hand_over(self, tensor: Any, mark: Any) -> Any:
        """Let the current stream wait for the event, and tell the allocator who uses the memory."""
        import torch

        main = torch.cuda.current_stream(tensor.device)
        main.wait_event(mark)  # not wait_stream: the batch after this one is already on the side stream
        tensor.record_stream(main)
        return tensor


@dataclass(frozen=True, slots=True)
class _Request:
    """How the script moves one tensor of its batches, and where that brought it."""

    call: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    device: Any

    def asks(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        return self.args == args and dict(self.kwargs) == dict(kwargs)


@dataclass(slots=True)
class _Fetched:
    """A batch, or the exception that came in its place; its tensors by identity; copies under way."""

    batch: Any = None
    error: Exception | None = None
    places: dict[int, int] = field(default_factory=dict)
    copies: dict[int, tuple[_Request, int, Any, Any]] = field(default_factory=dict)  # request, version, copy, mark
    tensors: list[Any] = field(default_factory=list)  # keeps the identities valid


class Ahead:
    """Fetches one batch ahead and copies of it what the script was seen to copy."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self._wanted: dict[int, _Request] = {}
        self._current: _Fetched | None = None

    def batches(self, fetch: Callable[[], Any]) -> Callable[[], Any]:
        """Return a function that hands out what ``fetch`` gives, one batch late."""
        ahead: list[_Fetched] = []

        def following() -> Any:
            now = ahead.pop() if ahead else self._fetched(fetch)
            if now.error is not None:
                self._current = None
                raise now.error
            if self._current is not None:
                for place in self._current.copies:  # copied ahead and not asked for: the loop has changed
                    self._wanted.pop(place, None)
            self._current = now
            ahead.append(self._fetched(fetch))
            return now.batch

        return following

    def _fetched(self, fetch: Callable[[], Any]) -> _Fetched:
        try:
            batch = fetch()
        except Exception as error:  # StopIteration, or the dataset's own: raised when it is its turn
            return _Fetched(error=error)
        made = _Fetched(batch, tensors=leaves(batch))
        made.places = {id(tensor): place for place, tensor in enumerate(made.tensors)}
        for place, request in self._wanted.items():
            if place < len(made.tensors) and made.tensors[place].device.type == "cpu":
                tensor = made.tensors[place]
                with self._side.issue(request.device):
                    copied = request.call(tensor, *request.args, **{**request.kwargs, "non_blocking": True})
                made.copies[place] = (request, tensor._version, copied, self._side.mark(request.device))  # noqa: SLF001
        return made

    def copy(self, call: Callable[..., Any], tensor: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Answer a request to move ``tensor`` with the copy under way, or serve it and learn it."""
        place = self._current.places.get(id(tensor)) if self._current is not None else None
        if place is None or self._current is None:
            return call(tensor, *args, **kwargs)
        request, version, copied, mark = self._current.copies.pop(place, (None, None, None, None))
        if request is not None and version == tensor._version and request.asks(args, kwargs):  # noqa: SLF001
            return self._side.hand_over(copied, mark)
        moved = call(tensor, *args, **kwargs)
        # A positional non_blocking cannot be given again by name; a tensor as argument cannot be compared.
        if not any(isinstance(arg, bool) or hasattr(arg, "shape") for arg in args):
            self._wanted[place] = _Request(call, args, kwargs, moved.device)
        return moved

    def close(self) -> None:
        """Let go of the batch at hand."""
        self._current = None
        self._wanted.clear()


def options(evidence: Evidence) -> Options:
    """Offer it where copies to the device are exposed and the loader is torch's."""
    reason = missing(evidence)
    loader, share = evidence.loader, copy_share(evidence)
    if not reason and loader is None:
        reason = "no training loader was seen: there is no next batch to fetch ahead"
    elif not reason and loader is not None and loader.kind != "torch":
        reason = f"the batches come from `{loader.kind}`, whose batches cannot be pinned from outside"
    elif not reason and share is None:
        reason = "the time of copies to the device was not measured"
    elif not reason and share is not None and share < WORTH:
        reason = f"copies to the device take only {share:.1%} of the step"
    return Options(reason=reason) if reason else Options((True,))


def effect(evidence: Evidence, _: Value) -> Effect:
    """Judge: the same bytes; but without workers the next batch draws its random numbers before this step does."""
    loader = evidence.loader
    if loader is not None and (loader.num_workers > 0 or loader.rng_untouched is True):
        return Effect.EXACT
    return Effect.RESEEDED


def expected(evidence: Evidence, _: Value) -> float | None:
    """Guess that nearly all of the exposed copies hide behind compute."""
    share = copy_share(evidence)
    return None if share is None else 1 / (1 - 0.9 * min(max(share, 0.0), 0.95))


def change(side: Side) -> Change:
    """Return the change with its copies on ``side``."""
    ahead = Ahead(side)
    return Change(loader={"pin_memory": True}, batches=ahead.batches, copy=ahead.copy, close=ahead.close)


def install(value: Value) -> Change:
    """Pin in the loader (a copy from pageable memory would block), fetch and copy one batch ahead.

    Raises:
        ValueError: the value is not ``true``.
    """
    if value is not True:
        raise ValueError(f"stream-prefetch takes true, got {value!r}")
    return change(Streams())


def applied(_: Value) -> str:
    """Word the change."""
    return "pin_memory=True, the next batch copied to the device on a stream of its own"


FIX = Fix(
    name="stream-prefetch",
    summary="copy the next batch to the device while this one is being computed",
    effect=effect,
    options=options,
    install=install,
    applied=applied,
    expected=expected,
    device_only=True,
)
