"""The HTML report: self-contained, the view's numbers and no others, safe whatever a script is called; in a browser."""

from __future__ import annotations

import html as escaping
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fasttrain_doctor.reports import html, pages
from fasttrain_doctor.reports.charts import charts
from fasttrain_doctor.reports.view import view

from .samples import SAMPLES, SUCCESS

CHROMIUM = Path("/usr/bin/chromium")
ARGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
READINGS = [
    {
        "t": i * 0.5,
        "cpu": {"percent": [0.3 + 0.2 * math.sin(i + k) for k in range(2)]},
        "memory": {"used": 8e9 + i * 1e8},
    }
    for i in range(20)
]


def _without_scripts(text):
    return re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)


class _Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.seen = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, {name for name, _ in attrs}))


@pytest.mark.parametrize("name", SAMPLES)
def test_it_is_one_file_that_loads_nothing(name):
    text = html.render(view(SAMPLES[name], READINGS))
    assert len(text.encode()) < 6 * 2**20
    tags = _Tags(text).seen
    assert not [tag for tag, names in tags if tag in {"link", "iframe", "img", "object"} or "src" in names]
    assert not re.search(r"@import|url\(", _without_scripts(text))
    assert "default-src 'none'" in text
    assert "connect-src" not in text


@pytest.mark.parametrize("name", SAMPLES)
def test_its_essentials_read_without_scripts(name):
    shown = view(SAMPLES[name])
    said = escaping.unescape(_without_scripts(html.render(shown)))
    for needed in (shown.verdict, shown.kicker, shown.command, *(fact.text for fact in shown.facts)):
        assert needed in said
    for action in shown.actions:
        assert action.message in said
    for trial in shown.trials:
        assert trial.speedup in said


def test_sections_come_in_their_order():
    ids = re.findall(r'<section id="([\w-]+)"', html.render(view(SUCCESS)))
    assert ids == [
        "step", "do", "timeline", "loader", "outside", "operators", "hardware", "trials", "unmeasured", "environment", "reproduce",
    ]  # fmt: skip


def test_a_changed_file_heads_the_report():
    text = html.render(view(SAMPLES["unprotected"]))
    assert text.index("/data/cache/index.db") < text.index("<h1>")


def test_hostile_names_cannot_inject():
    text = html.render(view(SAMPLES["hostile"], READINGS))
    assert "<script>window.pwned" not in text
    assert "<img src=x" not in text
    assert "<svg onload" not in text
    assert "{{ 7 * 7 }}" in text


def test_the_payload_cannot_end_its_element():
    assert str(html._payload({"a": "</script><!--&"})) == '{"a":"\\u003c/script\\u003e\\u003c!--\\u0026"}'


def test_pages_are_folded_in_with_their_html_escaped():
    said = pages.render("# title\n\n## What it measures\n\n<script>x</script> | *y*\n")
    assert said == "<h4>What it measures</h4>\n<p>&lt;script&gt;x&lt;/script&gt; | <em>y</em></p>\n"


@pytest.mark.parametrize("name", ["no-such-page", "../../etc/passwd", "", "__init__"])
def test_a_page_that_is_not_there_is_no_fold(name):
    assert pages.page(name) is None


def test_charts_have_a_point_for_every_step_and_trial():
    figures = charts(view(SUCCESS, READINGS))
    assert sum(len(trace["x"]) for trace in figures["chart-timeline"]["data"]) == len(SUCCESS.step_seconds)
    pairs, spans = figures["chart-trials"]["data"]
    assert len(pairs["x"]) == sum(len(trial.pair_ratios) for trial in SUCCESS.trials)
    assert len(spans["x"]) == sum(trial.speedup is not None for trial in SUCCESS.trials)
    assert len(figures["chart-hardware-cpu"]["data"]) == 2


@pytest.fixture(scope="module")
def browser():
    if not CHROMIUM.exists():
        pytest.skip("Chromium is not installed (Debian: apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=str(CHROMIUM), args=ARGS)
        yield chromium
        chromium.close()


@pytest.fixture
def opened(browser, tmp_path):
    """Open a sample's report; the page keeps ``problems`` and ``requests`` seen on the way."""
    contexts = []

    def open_(name, width=1280, scheme="light", **options):
        file = tmp_path / f"{name}.html"
        file.write_text(html.render(view(SAMPLES[name], READINGS)))
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **options)
        contexts.append(context)
        page = context.new_page()
        page.problems, page.requests = [], []
        page.on("console", lambda message: page.problems.append(message.text))
        page.on("pageerror", lambda error: page.problems.append(str(error)))
        page.on("request", lambda request: page.requests.append(request.url))
        page.goto(file.as_uri())
        if options.get("java_script_enabled", True):
            page.wait_for_selector("html[data-drawn]")
        return page

    yield open_
    for context in contexts:
        context.close()


@pytest.mark.browser
@pytest.mark.parametrize("name", SAMPLES)
def test_every_chart_is_drawn_whole_and_nothing_is_asked_of_the_network(opened, name):
    page = opened(name)
    drawn = page.evaluate(
        "Object.fromEntries([...document.querySelectorAll('.chart')].map(c => [c.id, (c.data || []).map(t => t.x.length)]))"
    )
    figures = charts(view(SAMPLES[name], READINGS))
    assert drawn == {key: [len(trace["x"]) for trace in figure["data"]] for key, figure in figures.items()}
    assert page.problems == []
    assert len(page.requests) == 1
    assert page.evaluate("window.pwned") is None


@pytest.mark.browser
@pytest.mark.parametrize("name", ["success", "nothing-to-gain", "failed", "hostile"])
@pytest.mark.parametrize("width", [360, 820])
def test_a_narrow_window_scrolls_only_down(opened, name, width):
    page = opened(name, width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.browser
def test_the_theme_follows_the_system_and_switches(opened):
    page = opened("success", scheme="dark")
    background = "getComputedStyle(document.body).backgroundColor"
    ink = "document.getElementById('chart-timeline').layout.shapes[0].line.color"
    dark, dark_ink = page.evaluate(background), page.evaluate(ink)
    page.click("#theme")
    page.wait_for_selector("html[data-drawn=light]")
    assert page.evaluate(background) != dark
    assert page.evaluate(ink) != dark_ink
    assert page.inner_text("#theme") == "dark"
    assert page.problems == []


@pytest.mark.browser
def test_folds_open_and_close_by_keyboard_and_all_at_once(opened):
    page = opened("success")
    every = "[...document.querySelectorAll('details')].map(fold => fold.open)"
    assert not any(page.evaluate(every))
    page.focus("#step summary")
    page.keyboard.press("Enter")
    assert page.evaluate(every).count(True) == 1
    page.click("#folds")
    assert all(page.evaluate(every))
    page.click("#folds")
    assert not any(page.evaluate(every))


@pytest.mark.browser
def test_without_scripts_it_still_tells_and_offers_no_dead_buttons(opened):
    page = opened("success", java_script_enabled=False)
    assert page.inner_text("h1") == view(SUCCESS).verdict
    assert page.locator("button:visible").count() == 0
