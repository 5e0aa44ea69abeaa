"""The live page in Chromium, over folders that grow while it is open."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from browser import serious_faults
from growing import append, curve, rollouts, write_log, writer

pytestmark = pytest.mark.integration

SERVE = "import sys; from equipoise.cli.main import run; sys.argv = ['equipoise', 'dash', *sys.argv[1:]]; run()"
DRAWN = "document.querySelectorAll('.js-plotly-plot .main-svg').length >= 6"

# As run folders, as keys of a log and as models; a slash would be a folder of its own in a name.
HOSTILE = (
    "<script>window.pwned=1<\u2215script>",
    "<img src=x onerror=window.pwned=1>",
    "<svg onload=window.pwned=1>",
    "'\"><img src=x onerror=window.pwned=1>",
    "<a href=javascript:window.pwned=1>x",
    "<iframe srcdoc=<script>window.pwned=1>",
    "<b>bold<i>",
    "${window.pwned=1}",
    "{{window.pwned=1}}",
    "%{customdata} $\\href{javascript:window.pwned=1}{x}$",
    "&lt;b&gt; &amp; &#60;",
    "<style>*{display:none}",
    "javascript:window.pwned=1",
    "__proto__",
    "constructor",
    "<math><mtext><table><mglyph><style><img src=x onerror=window.pwned=1>",
)


@contextmanager
def served(folder, *words, **environment):
    """The address of `equipoise dash FOLDER` in a process of its own."""
    command = [sys.executable, "-c", SERVE, str(folder), "--port", "0", "--every", "0.2", "--json", *words]
    known = {name: value for name, value in os.environ.items() if name != "EQUIPOISE_DASH_TOKEN"} | environment
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=known) as process:
        try:
            yield json.loads(process.stdout.readline())["address"]
        finally:
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (0, "")  # also with a page open


def wait(tab, expression, arg=None):
    """Until the expression holds. Playwright's own way evaluates a string inside the page, which its policy forbids."""
    for _ in range(300):
        if tab.evaluate(expression, arg):
            return
        tab.wait_for_timeout(100)
    pytest.fail(f"never came true: {expression}")


def quiet(page, address):
    """Nothing was said, stopped or popped up, nothing ran, and no request went elsewhere."""
    assert page.said == []
    assert page.popped == []
    assert page.stopped() == []
    assert page.tab.evaluate("window.pwned") is None
    here = urlsplit(address).netloc
    assert [url for url in page.asked if not url.startswith(("data:", "blob:")) and urlsplit(url).netloc != here] == []


def points(tab, panel):
    """{run: its steps} as Plotly holds them in a panel."""
    return tab.evaluate(
        "(n) => Object.fromEntries(document.querySelectorAll('.plot')[n].data.map((trace) => [trace.name, Array.from(trace.x)]))",
        panel,
    )


@pytest.fixture
def folder(tmp_path):
    """Two runs: one with rollouts whose entropy drains, one with nothing but a log."""
    run = writer(tmp_path / "drained", steps=100)
    for step in range(1, 11):
        run.write(rollouts(step, entropy=1.0 if step <= 3 else 0.1))
    write_log(tmp_path / "drained", [*curve(10), {"step": 10, "eval/pass@1": 0.25, "eval/pass@8": 0.5}])
    write_log(tmp_path / "bare", curve(5))
    return tmp_path


def test_points_alerts_and_runs_appear_without_a_reload(visit, folder):
    with served(folder) as address:
        page = visit(address, offline=False)
        tab = page.tab
        wait(tab, DRAWN)
        tab.wait_for_selector("#alerts li")
        tab.evaluate("window.same = true")
        assert points(tab, 0) == {"bare": [1, 2, 3, 4, 5], "drained": [*range(1, 11)]}
        append(folder / "bare", "".join(json.dumps(line) + "\n" for line in curve(2, first=6)))
        wait(tab, "document.querySelectorAll('.plot')[0].data[0].x.length === 7")
        assert points(tab, 0)["bare"] == [1, 2, 3, 4, 5, 6, 7]
        assert tab.inner_text("#runs tr:nth-child(1) td:nth-child(3)") == "7"
        append(folder / "bare", '{"step": 8, "entropy": 0.1')  # torn: not yet
        write_log(folder / "late", curve(3))
        wait(tab, "document.querySelectorAll('#runs tr').length === 3")
        wait(tab, "document.querySelectorAll('.plot')[0].data.length === 3")
        assert points(tab, 0)["bare"][-1] == 7
        append(folder / "bare", ', "reward": 0.5}\n')
        wait(tab, "document.querySelectorAll('.plot')[0].data[0].x.length === 8")
        text = tab.inner_text("#alerts")
        assert "mean token entropy changed by" in text
        assert "95% interval" in text
        assert tab.evaluate("window.same") is True  # no reload
        buttons = tab.evaluate("[...document.querySelectorAll('.modebar-btn')].map((button) => button.dataset.title)")
        assert "Zoom" in buttons
        assert not [title for title in buttons if "share" in title.lower() or "cloud" in title.lower()]
        quiet(page, address)


def test_the_numbers_on_the_page_are_those_of_the_state(visit, folder):
    with served(folder) as address:
        page = visit(address, offline=False)
        tab = page.tab
        wait(tab, "document.querySelectorAll('.plot')[2].data?.length")
        told = tab.evaluate("fetch('/state').then((answer) => answer.json())")
        judged = next(block["judged"] for block in told["runs"] if block["head"]["name"] == "drained")
        marks = tab.evaluate(
            "(() => { const t = document.querySelectorAll('.plot')[2].data[0]; return [Array.from(t.x), Array.from(t.y)]; })()"
        )
        assert marks == [[row[0] for row in judged["groups"]], [row[2] for row in judged["groups"]]]
        assert marks[1] == [0.25] * 10  # every fourth group is all wrong
        tab.click("#runs tr:nth-child(2) button.name")
        shown = tab.inner_text("#detail-body")
        for finding in judged["findings"]:
            assert finding["reading"] in shown
        frontier = tab.evaluate(
            "document.querySelectorAll('.plot')[3].data.map((t) => [Array.from(t.x), Array.from(t.y)])"
        )
        assert [[0.25], [0.5]] in frontier  # as logged
        quiet(page, address)


def test_a_metric_is_chosen_and_followed(visit, folder):
    with served(folder) as address:
        page = visit(address, offline=False)
        tab = page.tab
        wait(tab, DRAWN)
        tab.select_option(".card:nth-child(5) select", label="seconds/update")
        wait(tab, "document.querySelectorAll('.plot')[4].data?.[0]?.y[0] === 0.5")
        append(folder / "bare", json.dumps({"step": 6, "seconds/update": 0.75}) + "\n")
        wait(tab, "Array.from(document.querySelectorAll('.plot')[4].data[0].y).at(-1) === 0.75")
        tab.uncheck("#runs tr:nth-child(1) input")
        wait(tab, "document.querySelectorAll('.plot')[4].data.length === 1")
        tab.click("#none")
        tab.wait_for_selector(".card:nth-child(1) .plot.empty")
        quiet(page, address)


def test_hostile_names_are_shown_literally_and_do_nothing(visit, tmp_path):
    for number, text in enumerate(HOSTILE):
        run = writer(tmp_path / text, model=text)
        run.write([row | {"run_id": text, "env": text, "prompt": text} for row in rollouts(1, prompts=12, samples=2)])
        write_log(tmp_path / text, [*curve(3), {"step": 3, **{f"{each} {number}": 1.0 for each in HOSTILE}}])
    with served(tmp_path) as address:
        page = visit(address, offline=False)
        tab = page.tab
        wait(tab, DRAWN)
        wait(tab, f"document.querySelectorAll('#runs tr').length === {len(HOSTILE)}")
        tab.click("#all")
        assert sorted(tab.locator("#runs button.name").all_text_contents()) == sorted(HOSTILE)
        offered = tab.locator(".card:nth-child(5) option").all_text_contents()
        assert {f"{text} 0" for text in HOSTILE} <= set(offered)
        for text in HOSTILE[:4]:
            tab.select_option(".card:nth-child(5) select", label=f"{text} 0")
            wait(
                tab,
                "(text) => document.querySelectorAll('.plot')[4].querySelector('.ytitle')?.textContent.startsWith(text)",
                text[:12],
            )
        for name in tab.locator("#runs button.name").all()[:4]:
            name.click()
        tab.hover(".card:nth-child(1) .nsewdrag", force=True)
        assert tab.locator("main script, main img, main iframe, main style, main math").count() == 0
        quiet(page, address)


def test_a_folder_that_vanishes_and_a_server_that_ends_are_said(visit, folder):
    with served(folder) as address:
        page = visit(address, offline=False)
        tab = page.tab
        wait(tab, DRAWN)
        (folder / "bare" / "metrics.jsonl").unlink()
        (folder / "bare").rmdir()
        wait(tab, "document.querySelector('#runs').textContent.includes('folder is gone')")
        quiet(page, address)
    wait(tab, "document.querySelector('#status').textContent.includes('no connection')")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1360, 390])
def test_readable_by_all(visit, folder, scheme, width):
    with served(folder) as address:
        page = visit(address, offline=False, color_scheme=scheme, viewport={"width": width, "height": 900})
        tab = page.tab
        wait(tab, DRAWN)
        tab.wait_for_selector("#alerts li")
        tab.click("#runs button.name")
        assert serious_faults(tab) == []
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        tab.keyboard.press("Tab")
        assert tab.evaluate("document.activeElement !== document.body")


def test_the_token_is_asked_for_and_leaves_the_address(visit, folder):
    with served(folder, EQUIPOISE_DASH_TOKEN="a-token-of-some-length") as address:
        bare = address.partition("?")[0]
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", bare)
        refused = visit(bare, offline=False)
        assert "needs its token" in refused.tab.inner_text("body")
        page = visit(address, offline=False)
        wait(page.tab, DRAWN)
        assert page.tab.url == bare
        quiet(page, address)
