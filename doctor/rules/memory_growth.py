"""MEM001: the processes of the script keep more memory with every step."""

from __future__ import annotations

from fasttrain_doctor.evidence import Evidence
from fasttrain_doctor.rules import Finding, Rule
from fasttrain_doctor.wording import lasting, line, size

# A day: shorter than most trainings whose growth hurts. Slower growth cannot be told from caches that will fill up in a
# window of a minute or two: 100 GB in a day are 70 MB a minute.
SOON = 24 * 3600.0


def check(evidence: Evidence) -> Finding | None:
    """Fire where memory grows steadily and what is left would be used up within a day. A warning: it costs no time yet."""
    growth = None if evidence.pressure is None else evidence.pressure.growth
    free = evidence.machine.memory_free
    if growth is None or growth <= 0 or free is None:
        return None
    left = free / growth
    if left > SOON:
        return None
    workers = 0 if evidence.loader is None else evidence.loader.num_workers
    hint = "losses kept with their graph" + (", Python lists shared with workers" if workers else "")
    message = line(
        f"memory grows {size(growth)} a second: the {size(free)} left last {lasting(left)}",
        f"look for {hint}",
    )
    facts: dict[str, object] = {
        "growth_bytes": growth,
        "free_bytes": free,
        "left_seconds": left,
        "num_workers": workers,
    }
    return Finding(message, 0.0, facts)


RULE = Rule(code="MEM001", name="memory-growth", fixes=(), check=check)
