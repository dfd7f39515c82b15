"""Write TOML, and find the lines of one top-level table in a text that others wrote."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_BARE = re.compile(r"^[A-Za-z0-9_-]+$")
_SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}


def string(text: str) -> str:
    """Return ``text`` as a basic string.

    Raises:
        ValueError: it holds a lone surrogate (a file name that is not text), which TOML cannot hold.
    """
    if any(0xD800 <= ord(char) <= 0xDFFF for char in text):
        raise ValueError(f"not text that TOML can hold: {text!r}")
    return '"' + "".join(_SHORT.get(c) or (f"\\u{ord(c):04X}" if c < " " or c == "\x7f" else c) for c in text) + '"'


def key(name: str) -> str:
    """Return a key, bare where it can be."""
    return name if _BARE.match(name) else string(name)


def value(given: object) -> str:
    """Return a value on one line: booleans, numbers, strings, flat lists and tables of those.

    Raises:
        ValueError: another type, a number that TOML cannot hold, or text it cannot hold.
    """
    if isinstance(given, bool):
        return "true" if given else "false"
    if isinstance(given, int):
        if not -(2**63) <= given < 2**63:
            raise ValueError(f"a whole number of more than 64 bits: {given}")
        return str(given)
    if isinstance(given, float):
        return repr(given)
    if isinstance(given, str):
        return string(given)
    if isinstance(given, Mapping):
        return "{ " + ", ".join(f"{key(str(k))} = {value(v)}" for k, v in given.items()) + " }" if given else "{}"
    if isinstance(given, list | tuple):
        return "[" + ", ".join(value(part) for part in given) + "]"
    raise ValueError(f"no TOML for {type(given).__name__}")


def lines_of(text: str) -> list[str]:
    """Split at line feeds alone, which are kept: ``str.splitlines`` also splits inside strings, at U+0085 and others."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


@dataclass(frozen=True, slots=True)
class Block:
    """Lines of a text that belong to one top-level table, subtables included. ``name`` None: before any table."""

    name: str | None
    lines: tuple[str, ...]  # line ends kept

    @property
    def text(self) -> str:
        """The lines together."""
        return "".join(self.lines)


def _table_of(line: str) -> str | None:
    """Return the first key of a table header, None for any other line."""
    if not line.lstrip().startswith("["):
        return None
    try:
        table = tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return None
    return next(iter(table), None)


def blocks(text: str) -> Iterator[Block]:
    """Yield the runs of lines of each top-level table, in order; joined, they are ``text``.

    Comments right above a header belong to the table they introduce. A table whose parts are scattered comes in
    several blocks.
    """
    name: str | None = None
    lines: list[str] = []
    for line in lines_of(text):
        table = _table_of(line)
        if table is not None and table != name:
            above = len(lines)
            while above and lines[above - 1].lstrip().startswith("#"):
                above -= 1
            introduction, lines = lines[above:], lines[:above]
            if lines:
                yield Block(name, tuple(lines))
            name, lines = table, introduction
        lines.append(line)
    if lines:
        yield Block(name, tuple(lines))
