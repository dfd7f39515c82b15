"""Watches a few scripts under other torch releases and prints what was seen: python -m tests.check_torch_versions.

    python -m tests.check_torch_versions [VERSION ...] [--folder FOLDER] [--python INTERPRETER]

Each version gets an environment of its own in the folder, made with pip from the package index unless it is there
already. The doctor itself runs on this interpreter; only the script runs on the other. No test runs this.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from fasttrain_doctor.evidence import Phase
from fasttrain_doctor.gather import understand
from tests.watched import HEAD, run

OLDEST, NEWEST = "2.1.2", "2.14.1"
MODEL = "net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)\n"
STEP = "opt.zero_grad(); loss_of(net(x), y).backward(); opt.step()\n"
GUARDED = "if __name__ == '__main__':\n    "
SCRIPTS = {
    "map": (MODEL + "for x, y in DataLoader(Points(160), batch_size=4): " + STEP, 40),
    "workers": (MODEL + GUARDED + "for x, y in DataLoader(Points(160), batch_size=4, num_workers=2): " + STEP, 40),
    "spawn": (
        MODEL
        + GUARDED
        + "for x, y in DataLoader(Points(80), batch_size=4, num_workers=1, multiprocessing_context='spawn'): "
        + STEP,
        20,
    ),
    "no loader": (MODEL + "x, y = torch.rand(4, 8), torch.arange(4)\nfor _ in range(30): " + STEP, 29),
    "autograd.grad": (
        MODEL
        + "for x, y in DataLoader(Points(80), batch_size=4):\n"
        + "    grads = torch.autograd.grad(loss_of(net(x), y), list(net.parameters()))\n"
        + "    for p, g in zip(net.parameters(), grads): p.grad = g\n"
        + "    opt.step()\n",
        20,
    ),
}


def interpreter(version: str, folder: Path) -> str | None:
    """Return the interpreter that has this torch, installed if need be; None, with pip's reason printed, if it cannot be."""
    home = folder / f"v{version}"
    python = home / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        older = tuple(map(int, version.split(".")[:2])) < (2, 3)
        words = [
            str(python),
            "-m",
            "pip",
            "install",
            "--no-cache-dir",
            f"torch=={version}",
            "numpy<2" if older else "numpy",
        ]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode:
            print(f"{version}: not installed: {done.stderr.strip().splitlines()[-1]}", flush=True)
            return None
    return str(python)


def row(name: str, python: str) -> tuple[str, bool]:
    """Watch one script; returns a line, and whether its steps are all there and nothing was lost."""
    source, expected = SCRIPTS[name]
    with tempfile.TemporaryDirectory() as folder:
        recorded, code, _, stderr = run(HEAD + source, Path(folder), launcher=("--", python))
    watched = understand(recorded)
    if watched is None:
        return f"no steps, status {code}: {stderr.strip()[-200:]}", False
    steps = len(watched.steps.steps)
    phases = ", ".join(
        f"{p.value} {'?' if (s := watched.breakdown.phases[p]) is None else f'{s * 1e3:.2f}'}" for p in Phase
    )
    lost = recorded.degraded()
    return f"{steps:3} of {expected} steps, ms: {phases}; lost: {lost or 'nothing'}", steps == expected and not lost


def main() -> int:
    """Print the table; returns 1 when something was lost or a step missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", default=[OLDEST, "2.4.1", NEWEST])
    parser.add_argument("--folder", type=Path, default=Path("build/torch"))
    parser.add_argument("--python", help="an interpreter that has a torch already, in place of versions")
    given = parser.parse_args()
    pythons = {"given": given.python} if given.python else {v: interpreter(v, given.folder) for v in given.versions}
    good = True
    for version, python in pythons.items():
        for name in SCRIPTS if python else ():
            line, whole = row(name, python)
            good &= whole
            print(f"{version:8} {name:14} {line}", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
