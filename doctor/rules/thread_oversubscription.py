"""CPU001: more compute threads than cores, and the step waits for those that do not run."""

from __future__ import annotations

from fasttrain_doctor.evidence import Evidence, Phase
from fasttrain_doctor.rules import Finding, Rule, own_load, waiting
from fasttrain_doctor.wording import count, line

# A thread that is not running holds up all that wait for it, but what of a queue goes with fewer threads is a guess up
# to here: other processes make some of it on any machine.
LEAST = 0.05
_COMPUTING = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)


def _computing(evidence: Evidence) -> float:
    """Return the share of the step that CPU threads compute in, 0 where the model is on a device."""
    if evidence.model is not None and evidence.model.device != "cpu":
        return 0.0
    return min(1.0, sum(evidence.breakdown.share(phase) or 0.0 for phase in _COMPUTING))


def _in_training(evidence: Evidence, workers: int) -> float:
    """Return the share of the step that the training process's own threads cost at most."""
    threads, cores = evidence.threads, evidence.machine.cores / evidence.world
    computing = _computing(evidence)
    if threads is None or threads < 2 or computing == 0 or threads + workers <= cores:
        return 0.0
    pressed = None if evidence.pressure is None else evidence.pressure.cpu
    # The pressure counts tasks anywhere: it is this process's own doing only where its threads alone are too many.
    return max(evidence.queued or 0.0, computing * (pressed or 0.0) if threads > cores else 0.0)


def _in_workers(evidence: Evidence, workers: int) -> float:
    """Return the share of the step that the threads of the workers cost at most."""
    each, cores = evidence.worker_threads, evidence.machine.cores / evidence.world
    if each is None or each < 2 or each * workers <= cores:
        return 0.0
    pressed = None if evidence.pressure is None else evidence.pressure.cpu
    return max(evidence.breakdown.contention or 0.0, pressed or 0.0) * (waiting(evidence) or 0.0)


def check(evidence: Evidence) -> Finding | None:
    """Fire where threads of training process or workers are too many for the cores and something waits for a core."""
    workers = 0 if evidence.loader is None else evidence.loader.num_workers
    if not own_load(evidence):
        return None
    own, theirs = _in_training(evidence, workers), _in_workers(evidence, workers)
    lost = min(1.0, own + theirs)
    if lost < LEAST:
        return None
    cores, share = evidence.machine.cores, max(1, int(evidence.machine.cores / evidence.world))
    ranks = f"{evidence.world} ranks of " if evidence.world > 1 else ""
    if own >= theirs:
        alone = (evidence.threads or 0) > share
        beside = "" if alone or not workers else f" beside {workers} workers"
        fewer = share if alone else max(1, share - workers)
        said = f"{ranks}{evidence.threads} compute threads{beside}"
        hint = f"torch.set_num_threads({fewer})"
    else:
        said = f"{ranks}{workers} workers of {evidence.worker_threads} threads"
        hint = "one thread each: worker_init_fn"
    message = line(
        f"threads that wait for a core cost up to {lost:.0%} of each step", f"{said}, {count(cores)} CPU cores", hint
    )
    facts: dict[str, object] = {
        "threads": evidence.threads,
        "worker_threads": evidence.worker_threads,
        "num_workers": workers,
        "world": evidence.world,
        "cores": cores,
        "queued": evidence.queued,
        "contention": evidence.breakdown.contention,
        "pressure": None if evidence.pressure is None else evidence.pressure.cpu,
    }
    return Finding(message, lost, facts)


RULE = Rule(code="CPU001", name="thread-oversubscription", fixes=(), check=check)
