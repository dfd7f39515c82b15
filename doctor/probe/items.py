"""Times the samples of one fetch: stands in for the data set while a fetcher fetches, and only for the fetcher.

The fetchers ask a data set for ``[index]`` or ``__getitems__``, an iterable's iterator for ``__next__``, and nothing
else (torch.utils.data._utils.fetch, torch 1.8 to 2.14). Whatever else is asked for is the data set's own answer.
"""

from __future__ import annotations

import operator
from typing import Any

from fasttrain_doctor.evidence import TAIL
from fasttrain_doctor.probe import unseen
from fasttrain_doctor.probe.recorder import clock


class Samples:
    """When the samples of one fetch were there. ``marks``: its begin, then the end of each sample.

    ``whole``: they came all at once, from ``__getitems__`` or from an index that is a list.
    """

    __slots__ = ("_source", "indices", "marks", "whole")

    def __init__(self, source: Any, index: Any, single: bool, began: int) -> None:
        self._source = source
        self.indices = (index,) if single else index
        self.marks = [began]
        self.whole = single and isinstance(index, (list, tuple))

    @property
    def count(self) -> int:
        """How many samples were there; of those that came all at once as many as were asked for."""
        if self.whole:
            return len(self.indices) if hasattr(self.indices, "__len__") else 1
        return len(self.marks) - 1

    def facts(self) -> tuple[int, int, int, int, int]:
        """Return (index of the slowest + 1 or 0, slow samples, slowest, excess, median) in ns, -1 where not known."""
        marks = self.marks
        if self.whole:
            return 0, 0, -1, -1, -1
        if len(marks) == 2:
            slowest = marks[1] - marks[0]
            return self._index(0), 0, slowest, 0, slowest
        took = list(map(operator.sub, marks[1:], marks))
        ordered = sorted(took)
        slowest, typical = ordered[-1], ordered[(len(took) - 1) // 2]
        limit = int(TAIL * typical)
        if slowest <= limit:
            return self._index(took.index(slowest)), 0, slowest, 0, typical
        slow = [t - limit for t in took if t > limit]
        return self._index(took.index(slowest)), min(len(slow), 255), slowest, sum(slow), typical

    def _index(self, place: int) -> int:
        try:
            index = operator.index(self.indices[place])
        except Exception:
            return 0  # a key, or an iterable's: not a number
        return index + 1 if 0 <= index < 2**32 - 1 else 0


class Items(Samples):
    """In place of a map-style data set."""

    __slots__ = ()

    @unseen.pass_over
    def __getitem__(self, index: Any) -> Any:
        try:
            sample = self._source[index]
        except BaseException as error:
            unseen.strip(error)
            raise
        self.marks.append(clock())
        return sample

    @unseen.pass_over
    def __getattr__(self, name: str) -> Any:
        try:
            found = getattr(self._source, name)
        except BaseException as error:
            unseen.strip(error)
            raise
        finally:
            if len(self.marks) == 1:  # what is asked beforehand is no sample's: a tiny first one would look slow
                self.marks[0] = clock()
        if name != "__getitems__" or not found:
            return found
        if _one_by_one(self._source, found):
            return self._each
        return _All(self, found)

    @unseen.pass_over
    def _each(self, indices: Any) -> list[Any]:
        try:
            return list(map(self.__getitem__, indices))
        except BaseException as error:
            unseen.strip(error)
            raise


class _All:
    """A data set's own ``__getitems__``: all samples at once."""

    __slots__ = ("_items", "_original")

    def __init__(self, items: Items, original: Any) -> None:
        self._items, self._original = items, original

    @unseen.pass_over
    def __call__(self, indices: Any) -> Any:
        try:
            samples = self._original(indices)
        except BaseException as error:
            unseen.strip(error)
            raise
        items = self._items
        items.marks.append(clock())
        items.whole = True
        return samples


class Draws(Samples):
    """In place of an iterable's iterator."""

    __slots__ = ()

    @unseen.pass_over
    def __next__(self) -> Any:
        try:
            sample = next(self._source)
        except BaseException as error:
            unseen.strip(error)
            raise
        self.marks.append(clock())
        return sample


def _one_by_one(dataset: Any, found: Any) -> bool:
    """Whether ``__getitems__`` is that of torch's Subset and only asks for one sample after the other."""
    from torch.utils.data import Subset

    own = getattr(Subset, "__getitems__", None)
    if type(dataset) is not Subset or getattr(found, "__func__", None) is not own:
        return False
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return not callable(getattr(dataset, "__getitems__", None))


CODES = frozenset(f.__code__ for f in (Items.__getitem__, _All.__call__, Draws.__next__))
