"""The command line: arguments in, exit code out. What the commands do is in ``api`` and its neighbours.

Imports are inside the commands: ``fasttrain-doctor --help`` must not wait for torch, optuna or pandas.
"""

from __future__ import annotations

import dataclasses
import json as json_format
import sys
from pathlib import Path
from typing import Any

import click

from fasttrain_doctor import __version__, interrupts
from fasttrain_doctor.cli_ending import ending, standard_streams, told
from fasttrain_doctor.cli_parts import ScriptCommand, Verbs, duration, hint
from fasttrain_doctor.evidence import Effect

SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 80}
EFFECTS = [effect.name.lower() for effect in Effect]
FOLDER = click.Path(path_type=Path)


@click.group(cls=Verbs, context_settings=SETTINGS, no_args_is_help=True)
@click.version_option(__version__, prog_name="fasttrain-doctor", message="%(prog)s %(version)s")
def cli() -> None:
    """Find out why a PyTorch training script is slow, and prove the fix.

    \b
      fasttrain-doctor diagnose train.py --epochs 10   where the time goes
      fasttrain-doctor apply                           keep what was proven
      fasttrain-doctor run train.py --epochs 10        train with it
    """


@cli.command(cls=ScriptCommand, short_help="Say what slows a script and what helps.")
@click.argument("target", nargs=-1, type=click.UNPROCESSED)
@click.option("--python", metavar="PATH", help="Interpreter for the script (default: this one).")
@click.option("--out", type=FOLDER, metavar="DIR", help="Keep runs in DIR (default: .fasttrain-doctor/runs).")
@click.option("--budget", type=duration, metavar="TIME", help="Most time for the whole, e.g. 90s, 1h (3m).")
@click.option("--no-trials", is_flag=True, help="Only measure; try no fix.")
@click.option(
    "--allow", type=click.Choice(EFFECTS), metavar="EFFECT", default="precision",
    help="Most a fix may change: exact, reseeded, rounding, precision (default), training.",
)  # fmt: skip
@click.option("--timeout", type=duration, metavar="TIME", default=600.0, help="Longest wait for the first step (10m).")
@click.option("--steps", type=click.IntRange(min=1), metavar="N", help="Measure N steps after warm-up.")
@click.option("--max-workers", type=click.IntRange(min=0), metavar="N", help="Try no more loader workers than N.")
@click.option("--json", is_flag=True, help="Print the diagnosis as JSON, and nothing else.")
@click.option("--quiet", is_flag=True, help="Show neither progress nor the script's output.")
@click.pass_context
def diagnose(ctx: click.Context, /, target: tuple[str, ...], allow: str, no_trials: bool, **given: Any) -> int:
    """Run a script for a short while; say what slows it and what helps.

    \b
      fasttrain-doctor diagnose train.py --epochs 10
      fasttrain-doctor diagnose --budget 3m -m pkg.train --lr 0.1
      fasttrain-doctor diagnose -- torchrun --nproc-per-node 2 train.py
    """
    from fasttrain_doctor import api

    if ctx.meta["misplaced"] and not given["quiet"]:
        click.echo(hint(list(target), ctx.meta["misplaced"]), err=True)
    outcome = api.diagnose(list(target), api.Options(trials=not no_trials, allow=Effect[allow.upper()], **given))
    return told(outcome, as_json=given["json"], quiet=given["quiet"])


@cli.command()
@click.argument("run", required=False)
@click.option("--dry-run", is_flag=True, help="Show what would be written; write nothing.")
@click.option("--force", is_flag=True, help="Overwrite a fasttrain.toml that was edited by hand.")
def apply(run: str | None, dry_run: bool, force: bool) -> None:
    """Write what a run has proven to fasttrain.toml.

    RUN is a run's name, the beginning of one, or a path; the latest run if left out.

    \b
      fasttrain-doctor apply
      fasttrain-doctor apply --dry-run 20261130-210604-train
    """
    from fasttrain_doctor import api
    from fasttrain_doctor.run import load

    click.echo(api.apply(load(run), dry_run=dry_run, force=force).rstrip())


@cli.command(cls=ScriptCommand)
@click.argument("target", nargs=-1, type=click.UNPROCESSED)
@click.option("--python", metavar="PATH", help="Interpreter for the script (default: this one).")
def run(target: tuple[str, ...], python: str | None) -> int:
    """Train with the settings of fasttrain.toml, the script unedited.

    Nothing is measured; the exit code is the script's own.

    \b
      fasttrain-doctor run train.py --epochs 90
      fasttrain-doctor run -- torchrun --nproc-per-node 2 train.py
    """
    from fasttrain_doctor import api

    return api.train(list(target), python)


@cli.command()
@click.argument("run", required=False)
def report(run: str | None) -> None:
    """Write a run's HTML report anew and print its path.

    \b
      fasttrain-doctor report
      fasttrain-doctor report 20261130-210604-train
    """
    from fasttrain_doctor import api
    from fasttrain_doctor.run import load

    click.echo(api.report(load(run)))


@cli.command()
@click.argument("name", required=False)
def explain(name: str | None) -> None:
    """Explain a bottleneck or a fix; without NAME, list them all.

    \b
      fasttrain-doctor explain IO001
      fasttrain-doctor explain dataloader-workers
    """
    from fasttrain_doctor import explain as pages
    from fasttrain_doctor.reports import page

    if name is None:
        click.echo(pages.index(), nl=False)
    else:
        page.show(pages.find(name).text(), sys.stdout)


@cli.command()
@click.option("--json", is_flag=True, help="Print the facts as JSON.")
def check(json: bool) -> None:
    """Describe this machine, and what on it will limit training."""
    from fasttrain_doctor import machine

    facts = machine.machine()
    limits = machine.limits(facts)
    if json:
        click.echo(json_format.dumps({"machine": dataclasses.asdict(facts), "limits": limits}, indent=2, default=str))
    else:
        from fasttrain_doctor.reports import listing

        click.echo(listing.machine(facts, limits), nl=False)


@cli.command()
@click.option("--out", type=FOLDER, metavar="DIR", help="The folder given to diagnose --out.")
def runs(out: Path | None) -> None:
    """List the runs kept in this folder, newest first."""
    from fasttrain_doctor import api
    from fasttrain_doctor.reports import listing

    click.echo(listing.runs(api.list_runs(out)), nl=False)


@cli.command()
@click.argument("run")
def restore(run: str) -> None:
    """Put back the files that an interrupted RUN left changed.

    Any next command does so by itself; this names what was done.
    """
    from fasttrain_doctor import api
    from fasttrain_doctor.run import load

    click.echo(api.restore(load(run)).rstrip())


@cli.command()
@click.option("--keep", is_flag=True, help="Keep the demo's folder, to try more on it.")
@click.option("--quiet", is_flag=True, help="Show neither progress nor the script's output.")
def demo(keep: bool, quiet: bool) -> int:
    """Diagnose a bundled training script on photos made for it."""
    from fasttrain_doctor import api
    from fasttrain_doctor.demo import SCRIPT, place

    with place(keep=keep) as said:
        click.echo(said, err=True)
        outcome = api.diagnose([SCRIPT], api.Options(quiet=quiet))
        code = told(outcome, as_json=False, quiet=quiet)
        click.echo(f"in: {Path.cwd()}{'' if keep else ' (its photos are removed now; --keep keeps them)'}")
    return code


def main(args: list[str] | None = None) -> int:
    """Run the command line and return the exit code; every ending is explained."""
    standard_streams()
    with interrupts.once(last=True), ending() as end:
        with cli.make_context("fasttrain-doctor", sys.argv[1:] if args is None else list(args)) as context:
            end.code = cli.invoke(context) or 0
        sys.stdout.flush()
    return end.code


if __name__ == "__main__":
    sys.exit(main())
