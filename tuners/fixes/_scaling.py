"""Loss scaling for float16 in a loop that knows nothing of it, with a real ``torch.amp.GradScaler``.

Gradients are scaled only while a backward runs and are true again when it returns: clipping, logging, accumulation and
other code of the script between backward and step sees what it would see without scaling, and the scale may change at
any backward. What lies in ``.grad`` from earlier backwards is scaled along first, so that new contributions add up
(scales are powers of two: exact). A step whose gradients are not finite is skipped, as GradScaler does.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any


class _Stand:
    """What GradScaler sees of an optimizer: its parameters, and a step that is the one called in the script.

    It hides ``_step_supports_amp_scaling``: fused optimizers would unscale gradients that are unscaled already.
    """

    def __init__(self) -> None:
        self.param_groups: list[dict[str, Any]] = []
        self.call: Callable[[], Any] | None = None
        self.ran = False

    def gradients(self) -> list[Any]:
        return [p.grad for p in self.param_groups[0]["params"] if p.grad is not None]

    def step(self) -> Any:
        assert self.call is not None
        self.ran = True
        return self.call()


class LossScaling:
    """One GradScaler, made at the first backward, for all optimizers of the training."""

    def __init__(self, scale: float = 2.0**16) -> None:
        self._initial = scale
        self._scaler: Any = None
        self._modules: weakref.WeakSet[Any] = weakref.WeakSet()
        self._stands: weakref.WeakKeyDictionary[Any, _Stand] = weakref.WeakKeyDictionary()
        self._rest = _Stand()  # parameters of the model that no optimizer seen so far holds
        self._checked: set[int] = set()  # stands whose gradients were looked at since the last update
        self._stepped: dict[int, bool] = {}  # stand -> its step ran (False: skipped)

    @property
    def scale(self) -> float | None:
        """The present scale, None before the first backward."""
        return None if self._scaler is None else float(self._scaler.get_scale())

    def watch(self, module: Any) -> None:
        """Note a model that is trained: an optimizer is first seen at its step, after the first backward."""
        self._modules.add(module)

    def _claimed(self, optimizers: tuple[Any, ...]) -> list[_Stand]:
        """Return a stand for each optimizer and one for the rest; a parameter belongs to the first that holds it."""
        seen: set[int] = set()

        def fresh(parameters: Iterable[Any]) -> list[dict[str, Any]]:
            mine = [p for p in parameters if not (id(p) in seen or seen.add(id(p)))]  # type: ignore[func-returns-value]
            return [{"params": mine}]

        for optimizer in optimizers:
            stand = self._stands.setdefault(optimizer, _Stand())
            stand.param_groups = fresh(p for group in optimizer.param_groups for p in group["params"])
        self._rest.param_groups = fresh(p for module in self._modules for p in module.parameters())
        return [*(self._stands[optimizer] for optimizer in optimizers), self._rest]

    def backward(self, call: Callable[[Any], Any], tensors: Any, optimizers: tuple[Any, ...]) -> Any:
        """Run ``call`` on the scaled ``tensors`` (one or several roots); leave true gradients behind.

        Returns what ``call`` returns; gradients that are returned (``torch.autograd.grad``) are unscaled as well.
        """
        import torch

        alone = isinstance(tensors, torch.Tensor)
        if self._scaler is None:
            first = tensors if alone else next(iter(tensors))
            self._scaler = torch.amp.GradScaler(first.device.type, init_scale=self._initial)
        scaler = self._scaler
        if self._checked:
            scaler.update()
            self._checked.clear()
            self._stepped.clear()
        scaled = scaler.scale(tensors if alone else tuple(tensors))
        scale = float(scaler.get_scale())
        stands = self._claimed(optimizers)
        for stand in stands:
            if resting := stand.gradients():
                torch._foreach_mul_(resting, scale)
        try:
            result = call(scaled)
        finally:
            for stand in stands:
                if stand.gradients():
                    scaler.unscale_(stand)
                    self._checked.add(id(stand))
        return None if result is None else tuple(None if part is None else part / scale for part in result)

    def step(self, call: Callable[[], Any], optimizer: Any) -> Any:
        """Run ``call`` unless the optimizer's gradients are not finite; returns its result, None when skipped."""
        stand = self._stands.get(optimizer, self._rest)
        if id(stand) in self._stepped:  # a second step on the same gradients shares the first one's fate
            return call() if self._stepped[id(stand)] else None
        if id(stand) not in self._checked:
            return call()
        stand.call, stand.ran = call, False
        try:
            return self._scaler.step(stand)
        finally:
            self._stepped[id(stand)] = stand.ran
            stand.call = None
