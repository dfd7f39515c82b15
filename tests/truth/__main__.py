"""Plants causes into training scripts, asks the product what slows them, and prints how often it is right.

    python -m tests.truth [--write] [--family NAME ...] [--python INTERPRETER] [--pathologies]

``--python`` names an interpreter that has Lightning and transformers, where this one has not; ``--write`` puts what was
measured between its marks in the README. ``--pathologies`` diagnoses loops with a known cause each instead, with their
variants that lack it, and prints which rules speak.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.link_tree import ROOT
from tests.pathologies import PATHOLOGIES, table
from tests.truth import measures, tables
from tests.truth.blocks import Block, blocks
from tests.truth.causes import SHARES, causes_of, pairs_of, schedule
from tests.truth.running import Script, run

SCRIPTS = {
    "map": ("plain.py", None),
    "iterable": ("plain.py", None),
    "cnn": ("plain.py", None),
    "transformer": ("plain.py", None),
    "tabular": ("plain.py", None),
    "lightning": ("with_lightning.py", "lightning"),
    "transformers": ("with_transformers.py", "transformers"),
}
BEGIN, END = "<!-- truth: python -m tests.truth --write -->", "<!-- /truth -->"


def scripts(families: Sequence[str], python: str) -> list[Script]:
    """Return the scripts to run; what lacks its framework is skipped by name."""
    out = []
    for family in families:
        file, module = SCRIPTS[family]
        has = module is None or not subprocess.run([python, "-c", f"import {module}"], capture_output=True).returncode
        if not has:
            print(f"skipped: {family} ({python} has no {module})", flush=True)
            continue
        own = sys.executable if module is None else python
        out += [Script(family, workers, file, own) for workers in ((0,) if family == "tabular" else (0, 2))]
    return out


def measure(chosen: Sequence[Script], families: Sequence[str], shares: Sequence[float]) -> dict[Script, list[Block]]:
    """Run every script through its schedule."""
    out = {}
    for script in chosen:
        began = time.monotonic()
        pairs = [] if script.workers else pairs_of(script.family, families)
        plan = schedule(causes_of(script.family, script.workers), shares, pairs)
        with tempfile.TemporaryDirectory() as folder:
            out[script] = blocks(run(script, plan, Path(folder)))
        print(f"{script.name}: {len(plan)} blocks, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return out


def report(found: dict[Script, list[Block]]) -> str:
    """Return all tables."""
    ran = [b for script in found.values() for b in script]
    planned = [case for script in found.values() for case in measures.cases(script)]
    every = [case for case in planned if measures.is_truth(case)]
    single, double = ([c for c in every if len(c.causes) == n] for n in (1, 2))
    alarms = measures.false_alarms(ran)
    quiet = sum(not b.doses for b in ran)
    told = ", ".join(f"`{rule}` on {n}" for rule, n in alarms.most_common()) or "none"
    families = ", ".join(script.name for script in found)
    return "\n\n".join(
        [
            (
                f"{len(single)} cases of one cause, {len(double)} of two, {quiet} blocks of steps without any; left out, because "
                f"other programs on the machine took more than was planted: {len(planned) - len(every)}. Scripts: {families}."
            ),
            tables.measured(tables.figures(ran, single, double)),
            "Single causes by the part of the step that has grown most over the same script without a dose:",
            tables.matrix(measures.by_attribution(single).matrix),
            "The same by the rule whose loss has grown most:",
            tables.listed(measures.by_finding(single).matrix),
            f"Rules that spoke where nothing was planted: {told} of {quiet} blocks.",
        ]
    )


def write(text: str, readme: Path = ROOT / "README.md") -> None:
    """Put the tables between their marks."""
    before, _, rest = readme.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    readme.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def main() -> None:
    """Run the suite."""
    parser = argparse.ArgumentParser(prog="python -m tests.truth")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--family", nargs="+", choices=SCRIPTS, default=list(SCRIPTS))
    parser.add_argument("--shares", nargs="+", type=float, default=SHARES)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--pathologies", action="store_true")
    options = parser.parse_args()
    if options.pathologies:
        print(table(PATHOLOGIES))
        return
    chosen = scripts(options.family, options.python)
    text = report(measure(chosen, list(dict.fromkeys(s.family for s in chosen)), options.shares))
    print(text)
    if options.write:
        write(text)


if __name__ == "__main__":
    main()
