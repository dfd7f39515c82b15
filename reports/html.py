"""The HTML report: one self-contained file that loads nothing. It arranges what ``view.py`` made.

Its content security policy allows exactly the scripts written here, by their hashes: whatever a hostile name manages to
smuggle into the page cannot run.
"""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from fasttrain_doctor.reports.charts import charts
from fasttrain_doctor.reports.pages import page
from fasttrain_doctor.reports.shown import ReportView


def render(view: ReportView) -> str:
    """Return the report of ``view`` as one HTML document."""
    from plotly.offline import get_plotlyjs

    environment = Environment(
        loader=PackageLoader("fasttrain_doctor.reports"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    figures = charts(view)
    scripts = [_source(environment, "report.js")]
    if figures:
        scripts.insert(0, get_plotlyjs())
    return environment.get_template("report.html.j2").render(
        view=view,
        style=Markup(_source(environment, "report.css")),  # noqa: S704 (our own file)
        scripts=[Markup(script) for script in scripts],  # noqa: S704 (our own and plotly's)
        hashes=" ".join(f"'sha256-{_digest(script)}'" for script in scripts),
        figures=set(figures),
        payload=_payload(figures),
        page=page,
    )


def _source(environment: Environment, name: str) -> str:
    assert environment.loader is not None
    return environment.loader.get_source(environment, name)[0]


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _payload(value: Any) -> Markup:
    """Return JSON that cannot end the element it stands in."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for character, escaped in (("&", "\\u0026"), ("<", "\\u003c"), (">", "\\u003e")):
        text = text.replace(character, escaped)
    return Markup(text)  # noqa: S704 (escaped above)
