"""What the commands' arguments are made of: where our options end and the script begins, durations, effects."""

from __future__ import annotations

import re

import click

_DURATION = re.compile(r"(?:(?P<h>\d+(?:\.\d+)?)h)?(?:(?P<m>\d+(?:\.\d+)?)m)?(?:(?P<s>\d+(?:\.\d+)?)s?)?")


def duration(text: str | float) -> float:
    """Return the seconds of ``90s``, ``3m`` or ``1h30m``; a bare number is seconds.

    Raises:
        click.BadParameter: it is none of these, or no time at all.
    """
    if isinstance(text, float):  # a default
        return text
    match = _DURATION.fullmatch(text.strip().lower())
    hours, minutes, seconds = (float(match[part] or 0) if match else 0.0 for part in "hms")
    total = 3600 * hours + 60 * minutes + seconds
    if total <= 0:
        raise click.BadParameter(f"expected a time such as 90s, 3m or 1h, got {text!r}")
    return total


class Verbs(click.Group):
    """The commands, in the order they are defined; a script's name in their place draws a better message."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  (click's signature)
        """Return the names in the order in which one comes to need them."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; of a script, say which command it wants."""
        if args[0].endswith(".py"):
            ctx.fail(f"{args[0]} is not a command; did you mean: {ctx.command_path} diagnose {args[0]}")
        return super().resolve_command(ctx, args)


class ScriptCommand(click.Command):
    """A command that ends in somebody's script: our options come first, all else is the script's, verbatim.

    The target reaches the command as the argument ``target``: ``train.py ARGS``, ``-m MODULE ARGS`` or
    ``-- PROGRAM ARGS``, as the user wrote it.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Hand click our own options only, and keep the rest from it."""
        own, target = self.split(args)
        ctx.meta["misplaced"] = self.misplaced(target)
        return super().parse_args(ctx, [*own, "--", *target] if target else own)

    def split(self, args: list[str]) -> tuple[list[str], list[str]]:
        """Return our options and the target."""
        takes_value = {name for option in self._options() if not option.is_flag for name in option.opts}
        at = 0
        while at < len(args) and args[at].startswith("-") and args[at] not in ("-", "--"):
            if args[at].startswith("-m") and "-m" not in takes_value:
                module = [args[at][2:]] if args[at] != "-m" else []
                return args[:at], ["-m", *module, *args[at + 1 :]]
            at += 2 if args[at] in takes_value else 1
        return args[:at], args[at:]

    def misplaced(self, target: list[str]) -> list[str]:
        """Return our long options that were written after the script; none where a ``--`` says that all is meant."""
        if "--" in target:
            return []
        ours = {name for option in self._options() for name in (*option.opts, *option.secondary_opts)}
        return [word for word in target[1:] if word.startswith("--") and word.partition("=")[0] in ours - {"--help"}]

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the usual form; the examples below it show the others."""
        formatter.write_usage(ctx.command_path, "[OPTIONS] SCRIPT [ARGS]...")

    def _options(self) -> list[click.Option]:
        return [param for param in self.params if isinstance(param, click.Option)]


def hint(target: list[str], misplaced: list[str]) -> str:
    """Return what to say about our options that were written after the script and so belong to it."""
    names = ", ".join(f"`{word}`" for word in misplaced)
    script = target[1] if target[0] == "-m" else target[0]
    return f"hint: {names} was passed on to {script}; options of fasttrain-doctor come before it"
