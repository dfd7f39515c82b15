"""GROW001: each step takes longer than the one before."""

from __future__ import annotations

from fasttrain_doctor.evidence import Evidence
from fasttrain_doctor.rules import Finding, Rule
from fasttrain_doctor.wording import line

LEAST = 0.03  # as elsewhere; and it only becomes more


def check(evidence: Evidence) -> Finding | None:
    """Fire where the steps of the window grew. What would go is what the mean lies above the first: half the growth."""
    trend = evidence.trend
    if trend is None or trend / 2 < LEAST:
        return None
    lost, steps = min(trend / 2, 1.0), evidence.breakdown.measured
    message = line(
        f"steps grew by {trend:.0%} of their mean within {steps} steps, and will go on to",
        "look for a list, a graph or a log that only gets longer",
    )
    return Finding(message, lost, {"trend_share": trend, "steps": steps})


RULE = Rule(code="GROW001", name="growing-step", fixes=(), check=check)
