"""One line on a trial, for the progress."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fasttrain_doctor.diagnosis import TrialFacts
from fasttrain_doctor.tuners.fixes import all_fixes


def said(trial: TrialFacts) -> str:
    """Return what was tried and what came of it."""
    plan = _settings(trial.settings)
    if trial.speedup is not None:
        return f"compared {plan}: {trial.verdict}, {trial.speedup.mid:.2f}x in {trial.pairs} pairs"
    if trial.pair_ratios:
        return f"looked at {plan}: about {trial.pair_ratios[-1]:.3g}x"
    return f"tried {plan}: {trial.verdict}, {trial.reason}"


def _settings(plan: Mapping[str, Any]) -> str:
    fixes = all_fixes()
    return ", ".join(fixes[name].applied(value) if name in fixes else name for name, value in plan.items()) or "nothing"
