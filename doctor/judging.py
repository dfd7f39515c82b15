"""From what a case holds to the evidence, and from the evidence to the findings."""

from __future__ import annotations

from fasttrain_doctor.case import Case
from fasttrain_doctor.copies import copies_of
from fasttrain_doctor.epochs import epoch_cost
from fasttrain_doctor.evidence import Evidence
from fasttrain_doctor.launch import Command
from fasttrain_doctor.rules import diagnose
from fasttrain_doctor.trend import growth
from fasttrain_doctor.tuners.fixes import all_fixes
from fasttrain_doctor.window_facts import batch_of, debug_of, queued_of, threads_of, worker_threads_of


def judge(case: Case, command: Command) -> None:
    """Put the evidence and the rules' findings into the case; ``case.watched`` must be there."""
    watched = case.watched
    assert watched is not None
    process, measured = watched.process, watched.window.measured
    tensors, objects = batch_of(process, watched.loader_fact)
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
        look=case.look,
        fetches=watched.fetches,
        pressure=case.pressure,
        epoch=epoch_cost(watched),
        copies=copies_of(process, watched.steps, measured),
        debug=debug_of(process),
        threads=threads_of(process),
        worker_threads=worker_threads_of(watched.workers),
        queued=queued_of(process),
        trend=growth([step.seconds for step in measured]),
        batch_tensors=tensors,
        batch_objects=objects,
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
