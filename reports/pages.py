"""The pages of rules and fixes as HTML, to fold into a report. Raw HTML in them is escaped."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

from markdown_it import MarkdownIt
from markupsafe import Markup

_PLACES = ("fasttrain_doctor.rules", "fasttrain_doctor.tuners.fixes")
_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")


@cache
def page(name: str) -> Markup | None:
    """Return the page of a rule or a fix without its title, headings two levels down; None when it has none."""
    if not _NAME.fullmatch(name):
        return None
    for place in _PLACES:
        file = resources.files(place) / f"{name.replace('-', '_')}.md"
        if file.is_file():
            return Markup(render(file.read_text(encoding="utf-8")))  # noqa: S704 (html=False escapes what is in it)
    return None


def render(text: str) -> str:
    """Turn Markdown into HTML."""
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = parser.parse(text)
    if tokens and tokens[0].type == "heading_open" and tokens[0].tag == "h1":
        tokens = tokens[3:]
    for token in tokens:
        if token.type in {"heading_open", "heading_close"}:
            token.tag = f"h{min(6, int(token.tag[1]) + 2)}"
    return str(parser.renderer.render(tokens, parser.options, {}))
