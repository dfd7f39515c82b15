"""Find the page of a bottleneck or a fix by any name it goes by."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal

from fasttrain_doctor import rules
from fasttrain_doctor.errors import UsageError
from fasttrain_doctor.tuners import fixes


@dataclass(frozen=True, slots=True)
class Page:
    """A page that ships beside the module it explains. ``code`` is empty for fixes."""

    kind: Literal["bottleneck", "fix"]
    name: str
    code: str
    summary: str
    path: Path

    def text(self) -> str:
        """Return the page, in Markdown."""
        return self.path.read_text(encoding="utf-8")


def pages() -> list[Page]:
    """Return every page: bottlenecks by code, then fixes by name."""
    bottlenecks = [
        Page("bottleneck", module.RULE.name, module.RULE.code, _first_line(module), _beside(module))
        for module in _modules(rules)
    ]
    changes = [Page("fix", module.FIX.name, "", module.FIX.summary, _beside(module)) for module in _modules(fixes)]
    return sorted(bottlenecks, key=lambda page: page.code) + sorted(changes, key=lambda page: page.name)


def find(name: str) -> Page:
    """Return the page of a bottleneck (``IO001``, ``input-wait-io``) or a fix (``dataloader-workers``).

    Case and the choice of ``-`` or ``_`` do not matter.

    Raises:
        UsageError: ``unknown-name``, with the nearest names there are.
    """
    known = {key.lower(): page for page in pages() for key in (page.name, page.code) if key}
    asked = name.strip().lower().replace("_", "-")
    if asked in known:
        return known[asked]
    near = difflib.get_close_matches(asked, known, n=3, cutoff=0.5)
    near = list(dict.fromkeys(known[key].name for key in near))
    hint = f"did you mean {' or '.join(near)}?" if near else "all names: fasttrain-doctor explain"
    raise UsageError("unknown-name", f"nothing is called {name!r}; {hint}")


def index() -> str:
    """Return the list of all pages as plain text, 80 columns wide."""
    everything = pages()
    names = max(len(page.name) for page in everything) + 2
    codes = max(len(page.code) for page in everything) + 2
    blocks = []
    for kind, title in (("bottleneck", "Bottlenecks:"), ("fix", "Fixes:")):
        lines = [title]
        for page in everything:
            if page.kind == kind:
                label = f"  {page.code:{codes}}{page.name:{names}}"
                lines += textwrap.wrap(page.summary, 80, initial_indent=label, subsequent_indent=" " * len(label))
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def _modules(package: ModuleType) -> Iterator[ModuleType]:
    for found in pkgutil.iter_modules(package.__path__):
        if not found.name.startswith("_"):
            yield importlib.import_module(f"{package.__name__}.{found.name}")


def _first_line(module: ModuleType) -> str:
    line = (module.__doc__ or "").splitlines()[0]
    return line.partition(": ")[2].rstrip(".") or line


def _beside(module: ModuleType) -> Path:
    return Path(str(module.__file__)).with_suffix(".md")
