"""Put batches into page-locked memory and let their copies to the device run while the host goes on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from fasttrain_doctor.evidence import Effect, Evidence
from fasttrain_doctor.tuners.fixes import Change, Fix, Options, Value
from fasttrain_doctor.tuners.fixes._accelerator import copy_share, missing
from fasttrain_doctor.tuners.fixes._nested import leaves

WORTH = 0.02  # exposed copies below this share of the step are not worth a trial
KEPT = 2  # batches whose tensors are known: a loop that fetches one ahead copies the one before


class _Batches:
    """Knows the memory of the newest training batches: only their copies become non-blocking.

    A page-locked buffer of the script's own may be written again right after its copy, which then must be complete.
    """

    def __init__(self) -> None:
        self._known: deque[frozenset[int]] = deque(maxlen=KEPT)

    def batches(self, fetch: Callable[[], Any]) -> Callable[[], Any]:
        """Return ``fetch`` that also notes the memory of what it gives."""

        def following() -> Any:
            batch = fetch()
            self._known.append(frozenset(_memory(leaf) for leaf in leaves(batch)))
            return batch

        return following

    def copy(self, call: Callable[..., Any], tensor: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Copy a page-locked tensor of a training batch without blocking, unless the script says how."""
        said = "non_blocking" in kwargs or any(isinstance(arg, bool) for arg in args)
        if said or not tensor.is_pinned() or not any(_memory(tensor) in known for known in self._known):
            return call(tensor, *args, **kwargs)
        return call(tensor, *args, **{**kwargs, "non_blocking": True})

    def close(self) -> None:
        """Forget the batches."""
        self._known.clear()


def _memory(tensor: Any) -> int:
    """Return the address of a tensor's storage: a view (``batch[:, 1:]``) is known by it too; 0 where it has none."""
    try:
        return int(tensor.untyped_storage().data_ptr())
    except (NotImplementedError, RuntimeError):  # sparse and nested layouts, fake tensors
        return 0


def options(evidence: Evidence) -> Options:
    """Offer it where copies to the device are exposed and the loader is torch's."""
    reason = missing(evidence)
    loader, share = evidence.loader, copy_share(evidence)
    if not reason and loader is None:
        reason = "no training loader was seen: the batches are made some other way"
    elif not reason and loader is not None and loader.kind != "torch":
        reason = f"the batches come from `{loader.kind}`, which pins in its own way"
    elif not reason and share is None:
        reason = "the time of copies to the device was not measured"
    elif not reason and share is not None and share < WORTH:
        reason = f"copies to the device take only {share:.1%} of the step"
    return Options(reason=reason) if reason else Options((True,))


def effect(_: Evidence, __: Value) -> Effect:
    """Judge: the same bytes arrive, in stream order."""
    return Effect.EXACT


def expected(evidence: Evidence, _: Value) -> float | None:
    """Guess that three quarters of the exposed copies go: staging through pageable memory is most of them."""
    share = copy_share(evidence)
    return None if share is None else 1 / (1 - 0.75 * min(max(share, 0.0), 0.95))


def install(value: Value) -> Change:
    """Pin in the loader, copy without blocking.

    Raises:
        ValueError: the value is not ``true``.
    """
    if value is not True:
        raise ValueError(f"pin-memory takes true, got {value!r}")
    held = _Batches()
    return Change(loader={"pin_memory": True}, batches=held.batches, copy=held.copy, close=held.close)


def applied(_: Value) -> str:
    """Word the change."""
    return "pin_memory=True, copies of training batches non-blocking"


FIX = Fix(
    name="pin-memory",
    summary="page-locked batches, copied to the device while the host goes on",
    effect=effect,
    options=options,
    install=install,
    applied=applied,
    expected=expected,
    device_only=True,
)
