"""The console that summaries and pages are printed with."""

from __future__ import annotations

from rich import console


class Console(console.Console):
    """Rich's, which leaves a reader that has gone to the command: rich itself would end the process with 1."""

    def on_broken_pipe(self) -> None:
        """Let the error out that this is called in the handling of."""
        raise  # noqa: PLE0704  (called inside rich's except clause)
