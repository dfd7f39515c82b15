"""The time of a fetch's samples, taken where the fetcher asks the data set for them."""

from __future__ import annotations

import time

from fasttrain_doctor.probe.items import Items
from fasttrain_doctor.probe.recorder import clock


class Slow:
    """A data set that takes long to say that it gives no samples all at once."""

    def __getitem__(self, index: int) -> int:
        return index

    def __getattr__(self, name: str) -> int:
        time.sleep(0.02)
        raise AttributeError(name)


def test_what_is_asked_before_the_first_sample_is_no_sample() -> None:
    items = Items(Slow(), [0, 1, 2], False, clock())
    assert not hasattr(items, "__getitems__")
    assert [items[i] for i in (0, 1, 2)] == [0, 1, 2]
    _, _, slowest, _, _ = items.facts()
    assert slowest < 10_000_000
