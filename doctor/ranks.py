"""Which of several ranks the others wait for. Pure.

Ranks that exchange gradients take the same time for a step: who is late shows in who does not wait. What a rank works is
its step without collectives and without what its backward takes longer than the shortest one, since gradients are
exchanged within it: a late rank's own work is longest. Ranks that are on their own are compared by their whole step.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from fasttrain_doctor.diagnosis import Ranks
from fasttrain_doctor.evidence import Breakdown, Phase

STRAGGLES = 1.1  # a rank whose own work takes this many times the median's is a straggler
TOGETHER = 0.2  # of the mean step: ranks that differ by less keep step with each other, over not quite the same steps


def ranks_of(found: Mapping[str, Breakdown], world: int) -> tuple[Ranks, str]:
    """Return the ranks as they are made public, and the name of the one that a summary is made of: the slowest.

    Args:
        found: each rank that reported, by name.
        world: how many there are.
    """
    steps = {name: b.mean for name, b in found.items()}
    least, most = min(steps.values()), max(steps.values())
    together = len(found) > 1 and most - least <= TOGETHER * most
    work = _work(found) if together else steps
    slowest = max(work, key=lambda name: work[name])
    late = len(found) > 1 and work[slowest] > STRAGGLES * statistics.median_low(work.values())
    ranks = Ranks(world=world, reported=len(found), step=steps, work=work, straggler=slowest if late else None)
    return ranks, slowest if late or not together else max(steps, key=lambda name: steps[name])


def _work(found: Mapping[str, Breakdown]) -> dict[str, float]:
    shortest = min(b.phases.get(Phase.BACKWARD) or 0.0 for b in found.values())
    return {
        name: b.mean - (b.other.get("collective") or 0.0) - ((b.phases.get(Phase.BACKWARD) or 0.0) - shortest)
        for name, b in found.items()
    }
