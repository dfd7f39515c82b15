"""Show a Markdown page: laid out on a terminal, as it is in a pipe."""

from __future__ import annotations

from typing import IO

WIDEST = 100  # longer lines are hard to read


def show(text: str, file: IO[str]) -> None:
    """Print the Markdown ``text`` to ``file``."""
    if not file.isatty():
        file.write(text)
        return
    from rich.markdown import Markdown

    from fasttrain_doctor.reports.printing import Console

    console = Console(file=file)
    console.print(Markdown(text), width=min(console.width, WIDEST))
