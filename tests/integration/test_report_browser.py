"""The report in a real browser: it draws, answers keys, saves files, asks for nothing, and obeys no text that it shows."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from browser import serious_faults
from hostile import PAYLOADS, hostile_run
from long_runs import long_run

from equipoise.views.report import report

pytestmark = pytest.mark.integration
EXAMPLES = Path(__file__).parents[2] / "src" / "equipoise" / "lab" / "examples"


@pytest.fixture(scope="module")
def example(tmp_path_factory) -> Path:
    """The report of a run that fails in both loops, 198 of its rollouts shown."""
    page = tmp_path_factory.mktemp("example") / "report.html"
    report(EXAMPLES / "both.parquet", EXAMPLES / "base.parquet", page)
    return page


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> Path:
    """The report that the demo writes, of two arms."""
    from equipoise.lab.demo import run_demo

    folder = tmp_path_factory.mktemp("demo")
    found = run_demo(folder, steps=2, problems=24, samples=16)
    report([arm.trained.folder for arm in found.arms], out=folder / "report.html")
    return folder / "report.html"


def figures_of(tab: Any) -> list[str]:
    return tab.eval_on_selector_all("figure[data-figure]", "all => all.map(one => one.id)")


def until(tab: Any, expression: str) -> None:
    """Playwright's own wait evaluates text inside the page, which its policy forbids."""
    for _ in range(100):
        if tab.evaluate(expression):
            return
        tab.wait_for_timeout(100)
    pytest.fail(f"never true: {expression}")


def open_rollouts(tab: Any) -> None:
    tab.locator(".browser:visible").first.scroll_into_view_if_needed()
    tab.wait_for_selector(".browser:visible .view > .bar")


def test_every_figure_is_drawn_as_one_scrolls_and_nothing_is_asked_for(visit, example, demo) -> None:
    for page in (example, demo):
        found = visit(page)
        tab = found.tab
        for part in tab.query_selector_all(".tabs [data-tab]") or [None]:
            if part is not None:
                part.click()
            for name in figures_of(tab):
                figure = tab.locator(f"#{name}")
                if figure.is_visible():
                    figure.scroll_into_view_if_needed()
                    tab.wait_for_selector(f"#{name} .plot .main-svg")
            open_rollouts(tab)
        assert tab.locator("figure .plot:not(:has(.main-svg))").count() == 0
        assert tab.locator("figure .plot .main-svg").count() >= 10
        found.quiet()


def test_the_verdict_stands_in_the_file_before_any_script_has_run(visit, example) -> None:
    found = visit(example, java_script_enabled=False)
    assert found.tab.locator(".verdict h2").inner_text().startswith("Entropy collapse in training")
    assert found.tab.locator(".finding").count() >= 3
    assert found.tab.locator("figure .reading").first.inner_text()


def test_plotly_starts_only_when_a_figure_is_near(visit, example) -> None:
    tab = visit(example, viewport={"width": 800, "height": 300}).tab
    assert tab.evaluate("window.Plotly === undefined")
    assert tab.locator(".verdict h2").is_visible()
    tab.locator("figure").last.scroll_into_view_if_needed()
    until(tab, "window.Plotly !== undefined")


def test_printing_draws_all_figures_of_all_runs(visit, demo) -> None:
    found = visit(demo)
    found.tab.pdf()
    count = len(figures_of(found.tab))
    assert count >= 10
    assert found.tab.locator("figure .plot:has(.main-svg)").count() == count
    assert found.tab.locator(".part:not([hidden])").count() == 1  # afterwards one run is shown again
    found.quiet()


def test_saved_numbers_are_those_of_the_twin_and_the_image_is_a_png(visit, example, tmp_path) -> None:
    found = visit(example)
    (run,) = json.loads(example.with_suffix(".json").read_text())["runs"]
    twin = next(figure for figure in run["figures"] if figure["name"] == "passk")
    held = {}
    for kind in ("csv", "json", "png"):
        with found.tab.expect_download() as saved:
            found.tab.click(f"#run-0-passk [data-save={kind}]")
        assert saved.value.suggested_filename == f"run-0-passk.{kind}"
        saved.value.save_as(tmp_path / kind)
        held[kind] = (tmp_path / kind).read_bytes()
    assert json.loads(held["json"]) == twin
    rows = list(csv.DictReader(held["csv"].decode().splitlines()))
    for row, number in zip(rows, twin["estimates"], strict=True):
        assert row["name"] == number["name"]
        for key in ("value", "low", "high"):
            assert (float(row[key]) if row[key] else None) == number[key]
        k = number["at"].get("k")
        assert row["at k"] == ("" if k is None else json.dumps(k, separators=(",", ":")))
    assert held["png"].startswith(b"\x89PNG")
    assert len(held["png"]) > 10_000
    found.quiet()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1360, 390])
def test_axe_finds_nothing_serious(visit, example, demo, scheme, width) -> None:
    for page in (example, demo):
        found = visit(page, color_scheme=scheme, viewport={"width": width, "height": 900})
        open_rollouts(found.tab)
        found.tab.locator(".numbers summary").first.click()
        found.tab.evaluate("equipoise.drawAll()")
        assert serious_faults(found.tab) == []
        assert found.tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
        found.quiet()


def test_the_button_changes_the_theme_and_figures_follow(visit, example) -> None:
    tab = visit(example).tab
    tab.locator("figure").first.scroll_into_view_if_needed()
    tab.wait_for_selector("figure .main-svg .xtick text")

    def colours() -> tuple[str, str]:
        page = tab.evaluate("getComputedStyle(document.body).backgroundColor")
        return page, tab.evaluate("getComputedStyle(document.querySelector('.xtick text')).fill")

    light = colours()
    tab.click("#theme")
    until(tab, f"getComputedStyle(document.querySelector('.xtick text')).fill !== {json.dumps(light[1])}")
    assert colours()[0] != light[0]
    tab.click("#theme")
    until(tab, f"getComputedStyle(document.querySelector('.xtick text')).fill === {json.dumps(light[1])}")
    assert colours() == light


def test_everything_is_reached_by_keyboard(visit, demo) -> None:
    tab = visit(demo).tab
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.className") == "skip"
    reached = set()
    open_rollouts(tab)
    tab.evaluate("window.scrollTo(0, 0)")
    for _ in range(600):
        tab.keyboard.press("Tab")
        reached.add(
            tab.evaluate(
                "(document.activeElement.dataset.save ?? document.activeElement.className) || document.activeElement.tagName"
            )
        )
        if "scroll" in reached:
            break
    assert {"csv", "json", "png", "SUMMARY", "SELECT", "INPUT", "rows", "scroll"} <= reached


def test_keys_jump_between_forks_and_tell_the_token(visit, tmp_path) -> None:
    # Ten tokens, entropies 0/8 to 9/8: the fifth with the highest are the ninth and the tenth.
    page = tmp_path / "report.html"
    report(long_run(tmp_path / "run", tokens=10), out=page)
    found = visit(page)
    tab = found.tab
    open_rollouts(tab)
    assert tab.locator(".heat .t").count() == 10
    assert tab.locator(".heat .t.f").all_text_contents() == ["word8 ", "word9 "]
    tab.keyboard.press("n")
    assert tab.locator(".heat .now").text_content() == "word8 "
    told = tab.locator(".told").inner_text()
    assert "token 9 of 10, id 8" in told
    assert "entropy 1 nats, a fork" in told
    assert "probability 25 %" in told
    assert "rank 1" in told
    assert "word8␣ 25 %" in told.replace("\n", " ")
    assert "word9␣ 12.5 %" in told.replace("\n", " ")
    tab.keyboard.press("n")
    tab.keyboard.press("n")  # there is no third
    assert tab.locator(".heat .now").text_content() == "word9 "
    tab.keyboard.press("p")
    assert tab.locator(".heat .now").text_content() == "word8 "
    tab.locator(".scroll").focus()
    tab.keyboard.press("ArrowLeft")
    assert tab.locator(".heat .now").text_content() == "word7 "
    tab.locator(".heat .t").nth(2).hover()
    assert "token 3 of 10" in tab.locator(".told").inner_text()
    found.quiet()


def test_two_rollouts_part_at_their_first_different_token(visit, tmp_path) -> None:
    page = tmp_path / "report.html"
    report(long_run(tmp_path / "run", tokens=1200, rollouts=2, differ_at=700), out=page)
    found = visit(page)
    tab = found.tab
    open_rollouts(tab)
    tab.locator(".bar select").select_option(index=1)
    assert tab.locator(".split").all_inner_texts() == ["from here on they differ (token 701)"] * 2
    tops = tab.eval_on_selector_all(".split", "all => all.map(one => one.getBoundingClientRect().top)")
    assert tops[0] == tops[1]
    after = tab.eval_on_selector_all(
        ".split", "all => all.map(one => one.nextElementSibling.firstElementChild.textContent)"
    )
    assert after[0] != after[1]
    tab.get_by_role("button", name="Close the second").click()
    assert tab.locator(".heat").count() == 1
    found.quiet()


def test_filters_keep_what_they_say(visit, example) -> None:
    found = visit(example)
    tab = found.tab
    rows = json.loads(example.with_suffix(".json").read_text())["runs"][0]["rollouts"]["rows"]
    open_rollouts(tab)
    listed = tab.locator(".rows tbody tr")
    assert listed.count() == len(rows)
    last = max(row["step"] for row in rows if row["step"] is not None)
    tab.get_by_label("step", exact=True).select_option(label=str(last))
    assert listed.count() == sum(row["step"] == last for row in rows)
    tab.get_by_label("outcome", exact=True).select_option(label="✓ right")
    assert listed.count() == sum(row["step"] == last and row["correct"] is True for row in rows)
    tab.get_by_label("outcome", exact=True).select_option(label="all")
    tab.get_by_label("step", exact=True).select_option(label="all")
    tab.get_by_label("highest reward").fill("0.5")
    assert listed.count() == sum(row["reward"] is not None and row["reward"] <= 0.5 for row in rows)
    tab.get_by_label("highest reward").fill("")
    problem = rows[0]["prompt_id"]
    tab.get_by_label("problem", exact=True).select_option(label=problem)
    assert listed.count() == sum(row["prompt_id"] == problem for row in rows)
    found.quiet()


def test_payloads_are_shown_and_not_obeyed(visit, tmp_path) -> None:
    folder = hostile_run(tmp_path / "run <img src=x onerror=alert(1)> \"'&{{7*7}}")
    page = tmp_path / "report.html"
    report(folder, out=page, shown=500)
    found = visit(page)
    tab = found.tab
    tab.evaluate("equipoise.drawAll()")
    open_rollouts(tab)
    for details in tab.locator(".numbers summary").all():
        details.click()
    assert "run <img src=x onerror=alert(1)> \"'&{{7*7}}" in tab.locator(".facts").first.inner_text()
    rows = json.loads(page.with_suffix(".json").read_text())["runs"][0]["rollouts"]["rows"]
    first_row = {row["prompt"]: place for place, row in reversed(list(enumerate(rows)))}
    plain = [text for text in PAYLOADS if text.isprintable() and "\u2028" not in text]
    assert len(plain) >= 34
    for payload in plain:
        tab.get_by_label("text in prompt").fill(payload)
        assert tab.locator(".rows tbody tr").count() >= 4  # its two groups, and those whose text contains it
        tab.get_by_label("text in prompt").fill("")
        tab.locator(".rows tbody tr button").nth(first_row[payload]).click()
        assert tab.locator(".view .text").first.text_content() == payload
        assert tab.locator(".heat .t").first.text_content() == payload
        tab.locator(".heat .t").first.hover()
        assert tab.locator(".told b").text_content() == payload.replace(" ", "␣")[:200]
        assert payload in tab.locator(".about").first.text_content()
    tab.get_by_label("text in prompt").fill("")
    shown = tab.locator(".heat").first.text_content()
    for mark in (
        "␛[31mred",
        "a␀b␁␈⟨U+007F⟩",
        "⟨U+202E⟩gnp.exe⟨U+2066⟩",
        "⟨U+2028⟩",
    ):
        assert mark in shown, mark
    tab.locator(".rows tbody tr button").nth(first_row[PAYLOADS[-1]]).click()
    assert tab.locator(".view .text").first.text_content() == "__proto__ constructor toString ⟨U+E0041⟩"
    tab.mouse.move(300, 300)
    tab.wait_for_timeout(300)
    run = tab.evaluate("[...document.scripts].filter((script) => !script.type).length")
    assert run == 3  # our two, and Plotly
    assert tab.locator("iframe, object, embed, form, base, video, marquee, img").count() == 0
    found.quiet()


def test_a_token_of_a_megabyte_is_shown_whole(visit, tmp_path) -> None:
    page = tmp_path / "report.html"
    report(long_run(tmp_path / "run", tokens=3, word="{}" + "<i>" * 350_000), out=page)
    found = visit(page)
    open_rollouts(found.tab)
    assert found.tab.locator(".heat .t").first.text_content() == "0" + "<i>" * 350_000
    found.tab.keyboard.press("ArrowRight")
    found.tab.locator(".heat .t").first.hover(position={"x": 2, "y": 2})
    assert len(found.tab.locator(".told b").text_content()) == 200
    assert found.tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    found.quiet()


def test_a_notebook_shows_it_in_a_frame_that_reaches_nothing(visit, tmp_path) -> None:
    made = report(hostile_run(tmp_path / "run"))
    outer = tmp_path / "notebook.html"
    outer.write_text(
        f"<!DOCTYPE html><meta charset=utf-8><title>n</title><script>window.secret = 1</script>{made._repr_html_()}",
        "utf-8",
    )
    found = visit(outer)
    frame = found.tab.frames[1]
    frame.wait_for_selector(".verdict h2")
    frame.evaluate("equipoise.drawAll()")
    assert frame.locator("figure .main-svg").count() > 5
    assert (
        frame.evaluate("(() => { try { return window.parent.secret; } catch (problem) { return problem.name; } })()")
        == "SecurityError"
    )
    assert [url for url in found.asked if not url.startswith(("file:", "about:", "blob:", "data:"))] == []
    assert (found.popped, frame.evaluate("window.pwned")) == ([], None)


def test_a_hundred_thousand_tokens_are_drawn(visit, tmp_path, record_property) -> None:
    page = tmp_path / "report.html"
    report(long_run(tmp_path / "run", tokens=100_000), out=page)
    found = visit(page)
    tab = found.tab
    open_rollouts(tab)
    assert tab.locator(".heat .t").count() == 100_000
    milliseconds = tab.evaluate(
        """() => new Promise((done) => {
            const start = performance.now();
            document.querySelector(".rows tbody tr button").click();
            requestAnimationFrame(() => setTimeout(() => done(performance.now() - start)));
        })"""
    )
    record_property("milliseconds", milliseconds)
    print(f"100,000 tokens drawn in {milliseconds:.0f} ms")
    tab.keyboard.press("n")
    assert tab.locator(".heat .now").is_visible()
    found.quiet()
