"""Times the transforms of a data set one by one, for the length of a look; afterwards nothing is left of the timers.

A member whose class defines ``__call__`` in Python is timed on its class, so that the object itself is never touched.
Functions and what else cannot be had that way are put back in their list or attribute when the look is over; whoever
copies or pickles one meanwhile gets the original.
"""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any

from fasttrain_doctor.probe import unseen
from fasttrain_doctor.probe.recorder import clock
from fasttrain_doctor.probe.state import qualname

_NAMES = ("transform", "transforms", "target_transform")
_MOST = 32  # members
_DEPTH = 8  # data sets that wrap one another
_MISSING = object()
_ident = threading.get_ident


@dataclass(slots=True)
class Timer:
    """One member. ``ns`` and ``calls`` are of whole fetches once ``keep`` was called after each."""

    name: str
    ns: int = 0
    calls: int = 0
    first: int = 0  # when it was first called
    kept: tuple[int, int] = (0, 0)
    inside: set[int] = field(default_factory=set)  # threads in it: a call within a call is not counted again

    def keep(self) -> None:
        """Count what was seen so far: a fetch is over."""
        self.kept = self.ns, self.calls


@unseen.pass_over
def _timed(timer: Timer, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    ident = _ident()
    if ident in timer.inside:
        return call(*args, **kwargs)
    timer.inside.add(ident)
    t0 = clock()
    try:
        return call(*args, **kwargs)
    except BaseException as error:
        unseen.strip(error)
        raise
    finally:
        t1 = clock()
        timer.inside.discard(ident)
        timer.first = timer.first or t0
        timer.ns += t1 - t0
        timer.calls += 1


CODES: frozenset[CodeType] = frozenset({_timed.__code__})


class _InPlace:
    """Stands where a function stood. Copies and pickles are the original's."""

    def __init__(self, original: Any, timer: Timer) -> None:
        self.__dict__.update(_ftd_original=original, _ftd_timer=timer)

    @unseen.pass_over
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return _timed(self._ftd_timer, self._ftd_original, args, kwargs)
        except BaseException as error:
            unseen.strip(error)
            raise

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # what ``isinstance`` goes by
        return self._ftd_original.__class__

    def __eq__(self, other: object) -> bool:  # what ``in``, ``index`` and ``remove`` of its list go by
        return bool(self._ftd_original == getattr(other, "_ftd_original", other))

    def __hash__(self) -> int:
        return hash(self._ftd_original)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ftd_original, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._ftd_original, name, value)

    def __repr__(self) -> str:
        return repr(self._ftd_original)

    def __copy__(self) -> Any:
        return copy.copy(self._ftd_original)

    def __deepcopy__(self, memo: Any) -> Any:
        return copy.deepcopy(self._ftd_original, memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return copy.copy, (self._ftd_original,)


class Transforms:
    """The timers on one data set's transforms. ``why`` says what could not be timed, if anything."""

    def __init__(self) -> None:
        self.timers: dict[tuple[str, int], Timer] = {}  # (attribute, place in it) -> its timer
        self.why: str | None = None
        self._by_id: dict[int, Timer] = {}
        self._kept: list[Any] = []  # so that no identity is given to another object
        self._undo: list[Callable[[], None]] = []

    def put_on(self, dataset: Any) -> None:
        """Put timers on every transform that can be found from a data set; ``take_off`` must follow."""
        try:
            classes: dict[type, Any] = {}
            places: list[tuple[Any, Any, Timer]] = []
            seen: set[Any] = set()
            for owner, where, key, member in _members(dataset):
                on_class = _on_class(member)
                # A function may stand in many places, each of its own; an object is one wherever it stands.
                place = id(member) if on_class else (id(owner), where)
                if place in seen:
                    continue
                seen.add(place)
                if len(self.timers) >= _MOST and key not in self.timers:
                    self.why = f"there are more than {_MOST} transforms"
                    break
                timer = self.timers.setdefault(key, Timer(_name(member)))
                self._kept.append(member)
                if on_class:
                    self._by_id[id(member)] = timer
                    classes[type(member)] = type(member).__call__
                else:
                    places.append((owner, where, timer))
            for cls, call in classes.items():
                self._on_class(cls, call)
            for owner, where, timer in places:
                self._in_place(owner, where, timer)
        except Exception as error:
            self.take_off()
            self.timers.clear()
            self.why = f"{type(error).__name__}: {error}"[:200]

    def _on_class(self, cls: type, call: Any) -> None:
        by_id = self._by_id

        @unseen.wraps(call)
        def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
            timer = by_id.get(id(self))
            try:
                if timer is None:
                    return call(self, *args, **kwargs)
                return _timed(timer, functools.partial(call, self), args, kwargs)
            except BaseException as error:
                unseen.strip(error)
                raise

        own = cls.__dict__.get("__call__", _MISSING)
        type.__setattr__(cls, "__call__", __call__)

        def undo() -> None:
            if cls.__dict__.get("__call__") is not __call__:
                return  # the script has put another there meanwhile
            if own is _MISSING:
                type.__delattr__(cls, "__call__")
            else:
                type.__setattr__(cls, "__call__", own)

        self._undo.append(undo)

    def _in_place(self, owner: Any, where: Any, timer: Timer) -> None:
        if isinstance(owner, type):  # a method of the data set's class
            function = owner.__dict__[where]

            @unseen.wraps(function)
            def method(*args: Any, **kwargs: Any) -> Any:
                try:
                    return _timed(timer, function, args, kwargs)
                except BaseException as error:
                    unseen.strip(error)
                    raise

            type.__setattr__(owner, where, method)
            self._undo.append(lambda: type.__setattr__(owner, where, function))
            return
        held: Any = owner if issubclass(type(owner), (list, dict)) else _held(owner)
        if isinstance(where, tuple):  # (attribute that is a tuple, place in it)
            name, place = where
            before = held[name]
            original = before[place]
            after = (*before[:place], _InPlace(original, timer), *before[place + 1 :])
            held[name] = after
            self._undo.append(lambda: held.__setitem__(name, before) if held.get(name) is after else None)
            return
        original = held[where]
        instead = held[where] = _InPlace(original, timer)

        def undo() -> None:
            if isinstance(held, list):
                for i, value in enumerate(held):  # it may have moved
                    if value is instead:
                        held[i] = original
            elif held.get(where) is instead:
                held[where] = original

        self._undo.append(undo)

    def take_off(self) -> None:
        """Leave everything as it was."""
        while self._undo:
            self._undo.pop()()
        self._by_id.clear()
        self._kept.clear()

    def keep(self) -> None:
        """Count what was timed so far: a fetch is over."""
        for timer in self.timers.values():
            timer.keep()


def _on_class(member: Any) -> bool:
    """Whether a member's calls can be seen on its class: one made in Python, with a call that is a plain function."""
    cls = type(member)
    made = cls.__flags__ & 1 << 9  # Py_TPFLAGS_HEAPTYPE
    return bool(made) and isinstance(getattr(cls, "__call__", None), FunctionType)  # noqa: B004  which, not whether


def _name(member: Any) -> str:
    """Return a class's qualified name as ``describe.transforms`` does, a function's own."""
    while isinstance(member, functools.partial):
        member = member.func
    if isinstance(member, (FunctionType, MethodType, BuiltinFunctionType)):
        made_in = member.__module__  # None for what ``exec`` made
        name = f"{made_in}.{member.__qualname__}" if made_in else member.__qualname__
    else:
        name = qualname(member)
    # What a spawned worker's script is called there.
    return "__main__." + name.removeprefix("__mp_main__.") if name.startswith("__mp_main__.") else name


def _held(obj: Any) -> dict[str, Any]:
    """Return an object's own attributes. What stands for another object is not asked: it might open it, or fail."""
    try:
        held = object.__getattribute__(obj, "__dict__")
    except Exception:  # it has none, or a property in its place
        return {}
    return held if issubclass(type(held), dict) else {}


def _datasets(dataset: Any) -> Iterator[Any]:
    """Yield a data set and those that it wraps: Subset's, ConcatDataset's and the like."""
    pending: list[tuple[Any, int]] = [(dataset, 0)]
    seen: set[int] = set()
    while pending and len(seen) < _MOST:
        found, depth = pending.pop(0)
        if found is None or id(found) in seen or depth > _DEPTH:
            continue
        seen.add(id(found))
        yield found
        held = _held(found)
        pending.append((held.get("dataset"), depth + 1))
        inner: Any = held.get("datasets")
        if issubclass(type(inner), (list, tuple)):
            pending += [(each, depth + 1) for each in inner[:_MOST]]


def _members(dataset: Any) -> Iterator[tuple[Any, Any, tuple[str, int], Any]]:
    """Yield (owner, index or name in it, (attribute, place), member) of every transform found from a data set."""
    for found in _datasets(dataset):
        held = _held(found)
        whole = {id(held.get(name)) for name in ("transform", "target_transform")}
        names = [name for name in _NAMES if name in held] + [name for name in held if name not in _NAMES]
        for name in names:
            value = held[name]
            if name == "transforms" and whole & {id(v) for v in _held(value).values()} - {id(None)}:
                continue  # torchvision's pair of the two
            yield from _parts(found, name, value)
        method = type(found).__dict__.get("transform")
        if "transform" not in held and isinstance(method, FunctionType):
            yield type(found), "transform", ("transform", 0), method


def _parts(owner: Any, name: str, value: Any) -> Iterator[tuple[Any, Any, tuple[str, int], Any]]:
    """Yield a pipeline's members: of a list of callables, a Compose, a Sequential, or the one callable itself."""
    inner: Any = _held(value).get("transforms")
    modules: Any = _held(value).get("_modules")
    if isinstance(modules, dict) and "transforms" in modules and inner is None:  # a Compose of a ModuleList
        modules = _held(modules["transforms"]).get("_modules")
    elif not (isinstance(modules, dict) and type(value).__name__ in ("Sequential", "ModuleList")):
        modules = None
    if modules is not None:
        for i, member in enumerate(modules.values()):
            yield None, None, (name, i), member
    elif _pipeline(inner) and callable(value):
        yield from _listed(value, "transforms", name, inner)
    elif _pipeline(value):
        yield from _listed(owner, name, name, value)
    elif name in _NAMES and callable(value) and not isinstance(value, type):
        yield owner, name, (name, 0), value


def _pipeline(value: Any) -> bool:
    """Whether a value is a list or tuple of callables that are no classes."""
    return (
        issubclass(type(value), (list, tuple))
        and 0 < len(value) <= _MOST
        and all(callable(each) and not isinstance(each, type) for each in value)
    )


def _listed(owner: Any, attribute: str, name: str, steps: Any) -> Iterator[tuple[Any, Any, tuple[str, int], Any]]:
    for i, member in enumerate(steps):
        yield (steps, i, (name, i), member) if isinstance(steps, list) else (owner, (attribute, i), (name, i), member)
