"""From what a case holds to the evidence, and from the evidence to the findings."""

from __future__ import annotations

from fasttrain_doctor.case import Case
from fasttrain_doctor.evidence import Evidence
from fasttrain_doctor.launch import Command
from fasttrain_doctor.rules import diagnose
from fasttrain_doctor.tuners.fixes import all_fixes


def judge(case: Case, command: Command) -> None:
    """Put the evidence and the rules' findings into the case; ``case.watched`` must be there."""
    watched = case.watched
    assert watched is not None
    case.evidence = Evidence(
        machine=case.machine,
        breakdown=watched.breakdown,
        loader=watched.loader,
        optimizers=watched.optimizers,
        model=watched.model,
        floor=case.floor,
        operators=tuple(case.operators or ()),
        device=case.device,
        packages=_packages(command),
        framework=watched.framework,
        world=watched.ranks.world,
        spans=watched.spans,
    )
    case.findings = diagnose(case.evidence)


def _packages(command: Command) -> frozenset[str]:
    """Return which packages some fix needs are there for the script: looked up here when its interpreter is ours."""
    import sys
    from importlib.util import find_spec

    if command.argv[0] != sys.executable:
        return frozenset()
    needed = {name for fix in all_fixes().values() for name in fix.needs}
    return frozenset(name for name in needed if find_spec(name) is not None)
