"""The tensors inside a batch, whatever it is made of: dicts, lists, tuples, dataclasses, objects that can be moved."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

DEEPEST = 6
MOST = 256  # leaves looked at: a graph batch of thousands of lists is left alone


def _parts(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield (key, part) of a container in a fixed order; nothing for a leaf or something unknown."""
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, list | tuple):
        yield from enumerate(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from ((field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value))
    elif hasattr(value, "to") and hasattr(value, "__dict__"):
        yield from vars(value).items()


def leaves(batch: Any) -> list[Any]:
    """Return the tensors of ``batch`` in a fixed order, each once; at most 256, at most six containers deep."""
    import torch

    found: list[Any] = []
    seen: set[int] = set()

    def walk(value: Any, depth: int) -> None:
        if id(value) in seen or len(found) >= MOST or isinstance(value, str | bytes | int | float):
            return
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif depth < DEEPEST:
            for _, part in _parts(value):
                walk(part, depth + 1)

    walk(batch, 0)
    return found


def _rebuilt(value: Any, parts: dict[Any, Any]) -> Any:
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*parts.values())
    if isinstance(value, list | tuple):
        return type(value)(parts.values())
    made = copy.copy(value)
    for key, part in parts.items():
        if isinstance(value, Mapping):
            made[key] = part
        else:
            object.__setattr__(made, key, part)  # frozen dataclasses too
    return made


def replaced(batch: Any, change: Callable[[Any], Any]) -> Any:
    """Return ``batch`` with each tensor put through ``change``, in containers of the same kind.

    Containers that hold no changed tensor are passed on as they are; the others are new, the originals untouched.
    """
    import torch

    def walk(value: Any, depth: int) -> Any:
        if isinstance(value, torch.Tensor):
            return change(value)
        if depth >= DEEPEST or isinstance(value, str | bytes | int | float):
            return value
        parts = dict(_parts(value))
        changed = {key: walk(part, depth + 1) for key, part in parts.items()}
        return value if all(changed[key] is parts[key] for key in parts) else _rebuilt(value, changed)

    return walk(batch, 0)
