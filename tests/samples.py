"""Diagnoses of runs as they really end, for the tests of everything that tells them."""

from __future__ import annotations

from dataclasses import replace

from fasttrain_doctor.diagnosis import (
    Candidate,
    Change,
    Diagnosis,
    FloorFacts,
    Interval,
    LoaderRole,
    Loop,
    NotMeasured,
    Startup,
    StepTime,
)

from .sample_success import CPU_MACHINE, GPU_WHY, SUCCESS, WORKERS, window

_CPU_ABSENT = [NotMeasured(what="GPU", why=GPU_WHY), NotMeasured(what="h2d", why=GPU_WHY)]

NOTHING_TO_GAIN = replace(
    SUCCESS,
    script="main.py",
    command=["python", "main.py"],
    machine=CPU_MACHINE,
    clock="host",
    not_measured=_CPU_ABSENT,
    loop=Loop(file="main.py", lines=(88, 101), loaders=[LoaderRole(role="train", file="main.py", line=71)]),
    step=StepTime(mean=0.2143, median=0.2139, p10=0.2101, p90=0.2199),
    phases={
        "io": 0.0001,
        "prepare": 0.0012,
        "h2d": None,
        "forward": 0.071,
        "backward": 0.1379,
        "optimizer": 0.0036,
        "other": 0.0005,
    },
    data=0.0013,
    hidden={"io": 0.0021, "prepare": 0.031, "h2d": None},
    loader=replace(
        SUCCESS.loader,
        num_workers=2,
        prefetch_factor=2,
        transforms=None,
        hot_lines=None,
        stages=None,
        fetches=None,
        reads=None,
        lock=None,
    ),
    epoch=replace(
        SUCCESS.epoch, start=None, eval=None, checkpoint=None, logging=None, other=None, whole=None, shares=None
    ),
    floor=FloorFacts(step=0.2129, ceiling=1.01, baseline=0.215),
    findings=[],
    trials=[],
    tuned=None,
    operators=[replace(op, device="cpu", seconds=op.seconds * 6) for op in SUCCESS.operators],
    device=None,
    moved=[],
    step_seconds=window(0.2143),
    executions=1,
    seconds=31.2,
)

NO_PROVEN_GAIN = replace(
    SUCCESS,
    findings=[SUCCESS.findings[1]],
    trials=[replace(SUCCESS.trials[2], settings={"fused-optimizer": True}, over={})],
    tuned=None,
    phases={
        "io": 0.001,
        "prepare": 0.002,
        "h2d": 0.004,
        "forward": 0.045,
        "backward": 0.061,
        "optimizer": 0.004,
        "other": 0.001,
    },
    data=0.003,
    floor=FloorFacts(step=0.115, ceiling=1.03, baseline=0.1185),
)

CANDIDATE = replace(
    SUCCESS,
    trials=SUCCESS.trials[:-1],
    tuned=None,
    candidate=Candidate(
        settings=WORKERS,
        effect="reseeded",
        speedup=Interval(mid=2.31, low=0.97, high=3.4),
        reason="three fresh process pairs disagreed (0.97x to 3.40x)",
    ),
)

DEGRADED = replace(
    CANDIDATE,
    status="degraded",
    degraded=[
        "io and prepare could not be told apart: /proc/thread-self/schedstat is not there",
        "the script failed at step 212 (RuntimeError: CUDA out of memory); what came before it stands",
    ],
    not_measured=[
        NotMeasured(what="io and prepare", why="/proc/thread-self/schedstat is not there"),
        NotMeasured(what="operators", why="the script uses torch.profiler itself"),
        NotMeasured(what="trials", why="the script failed before they began"),
    ],
    phases={**SUCCESS.phases, "io": None, "prepare": None},
    operators=None,
    device=None,
    trace=None,
    trials=[],
    candidate=None,
    noise=None,
)

FAILED = replace(
    SUCCESS,
    status="failed",
    degraded=["train.py failed at step 3: ValueError: expected 3 channels, got 4"],
    not_measured=[NotMeasured(what="steps", why="3 steps ran and 12 are needed")],
    loop=None,
    steps=None,
    step=None,
    phases=None,
    data=None,
    other=None,
    hidden=None,
    contention=None,
    queued=None,
    trend=None,
    loader=None,
    epoch=None,
    ranks=None,
    pressure=None,
    debug=None,
    floor=None,
    findings=[],
    trials=[],
    noise=None,
    tuned=None,
    operators=None,
    device=None,
    trace=None,
    overhead=None,
    step_seconds=[],
    executions=1,
    seconds=6.1,
    clock=None,
    startup=Startup(imports=2.9, setup=None, workers=None, first_batch=None, first_step=None),
    moved=[],
)

NO_TRIALS = replace(
    SUCCESS,
    trials=[],
    tuned=None,
    noise=None,
    executions=1,
    not_measured=[NotMeasured(what="trials", why="--no-trials was given")],
)

UNPROTECTED = replace(
    SUCCESS,
    unprotected=[Change(path="/data/cache/index.db", what="rewritten in place; no original was kept")],
)

INTERRUPTED = replace(CANDIDATE, status="interrupted", candidate=None, trials=SUCCESS.trials[:2], noise=0.02)

HOSTILE = replace(
    SUCCESS,
    script="</script><script>window.pwned=1</script>.py",
    command=["python", "</script><script>window.pwned=1</script>.py", "--name", "\"'><img src=x onerror=pwned=1>"],
    loop=Loop(file="<b>x</b>.py", lines=(1, 2), loaders=[]),
    findings=[
        replace(
            SUCCESS.findings[0],
            message="reads `</script><script>window.pwned=1</script>`",
            evidence={"<img src=x onerror=pwned=1>": "{{ 7 * 7 }}</script>"},
        )
    ],
    operators=[replace(SUCCESS.operators[0], name="<svg onload=pwned=1>")],
)

SAMPLES: dict[str, Diagnosis] = {
    "success": SUCCESS,
    "nothing-to-gain": NOTHING_TO_GAIN,
    "no-proven-gain": NO_PROVEN_GAIN,
    "candidate": CANDIDATE,
    "degraded": DEGRADED,
    "failed": FAILED,
    "no-trials": NO_TRIALS,
    "unprotected": UNPROTECTED,
    "interrupted": INTERRUPTED,
    "hostile": HOSTILE,
}
