"""One HTML file that needs no network: the card first in plain HTML, figures and rollouts as data, Plotly once at the end.

Model text is a stranger's. It stands in the file only as escaped HTML text or as JSON in an element that no browser runs, and
our scripts put it into text nodes. Should a text get out all the same, the policy lets nothing run but the three scripts it names
by hash, and lets nothing be fetched. Styles need `unsafe-inline`: Plotly adds style elements and attributes as it draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from equipoise.errors import MissingExtra
from equipoise.views.card import MARKS, NUMBERS_SHOWN, shown_text, state_of, verdict_card
from equipoise.views.embed import data_block, packed, policy_hash

if TYPE_CHECKING:
    from equipoise.views.browse import Browsed
    from equipoise.views.report import Drawn, Report, RunPage, StudyPage

SCRIPTS = ("report.js", "rollouts.js")


def page(report: Report) -> str:
    """The whole file."""
    scripts = [_asset(name) for name in SCRIPTS]
    plotly = plotly_script()
    policy = (
        f"default-src 'none'; script-src {' '.join(map(policy_hash, (*scripts, plotly)))}; "
        "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    title = shown_text(report.title, 200)
    sections = "".join(_run_section(part, f"run-{place}") for place, part in enumerate(report.runs))
    sections += "".join(_study_section(part, f"study-{place}") for place, part in enumerate(report.studies))
    blocks = [data_block("report", _without_rollouts(report))]
    for anchor, part in _parts(report):
        plots = {drawn.figure.name: drawn.plot for drawn in part.figures if drawn.plot is not None}
        blocks.append(data_block(f"plots-{anchor}", plots))
    blocks += [data_block(f"rollouts-run-{place}", _packed(part.rollouts)) for place, part in enumerate(report.runs)]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n'
        f'<title>{title}</title>\n<link rel="icon" href="data:,">\n<style>{_asset("report.css")}</style>\n</head>\n<body>\n'
        '<a class="skip" href="#main">Skip to the verdict</a>\n'
        f'<header class="top"><p class="brand">Equipoise</p><h1>{title}</h1>{_tabs(report)}'
        '<button type="button" id="theme" hidden>Dark</button></header>\n'
        f'<main id="main" tabindex="-1">{_overview(report)}{sections}'
        "<noscript><p>Figures and rollouts need scripts; every number is also in the JSON file beside this page.</p></noscript></main>\n"
        f"<footer><p>Made by equipoise {escape(report.version)}. All numbers are in the JSON twin of this file. It loads nothing from "
        "anywhere.</p></footer>\n"
        + "\n".join(blocks)
        # Not run where it stands, so that the verdict is on the screen first; the script above it starts it when it is needed.
        + f'\n<script type="text/plain" id="plotly">{plotly}</script>\n'
        + "".join(f"<script>{text}</script>\n" for text in scripts)
        + "</body>\n</html>\n"
    )


def plotly_script() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ModuleNotFoundError:
        raise MissingExtra("report", needed_for="a report") from None
    # What is written here is read back by a parser that makes one line end of two.
    text: str = get_plotlyjs().replace("\r\n", "\n").replace("\r", "\n")
    if "</script" in text.lower() or "<!--" in text:
        raise ValueError("this version of Plotly's script holds text that ends or hides a script element")
    return text


def _asset(name: str) -> str:
    return (files("equipoise.views") / "assets" / name).read_text(encoding="utf-8")


def _parts(report: Report) -> list[tuple[str, RunPage | StudyPage]]:
    """Runs and studies with the anchors that they have on the page."""
    runs: list[tuple[str, RunPage | StudyPage]] = [(f"run-{place}", part) for place, part in enumerate(report.runs)]
    return runs + [(f"study-{place}", part) for place, part in enumerate(report.studies)]


def _tabs(report: Report) -> str:
    parts = _parts(report)
    if len(parts) < 2:
        return ""
    links = "".join(
        f'<a href="#{anchor}" data-tab="{anchor}">{shown_text(part.name, 60)}</a>' for anchor, part in parts
    )
    return f'<nav class="tabs" aria-label="Runs">{links}</nav>'


def _overview(report: Report) -> str:
    """Several runs at a glance: the verdict and the measured numbers of each, a run a column."""
    if len(report.runs) < 2:
        return ""
    heads = "".join(
        f'<th scope="col"><a href="#run-{place}" data-tab="run-{place}">{shown_text(part.name, 60)}</a></th>'
        for place, part in enumerate(report.runs)
    )
    states = "".join(
        f'<td class="{state_of(part.diagnosis)}"><span class="mark" aria-hidden="true">{MARKS[state_of(part.diagnosis)]}</span> '
        f"{escape(part.diagnosis.verdict)}</td>"
        for part in report.runs
    )
    rows = "".join(_compared(report, name) for name in report.compared()[:NUMBERS_SHOWN])
    return (
        '<section class="overview" aria-labelledby="overview-title"><h2 id="overview-title">At a glance</h2>'
        '<p class="fine">The small numbers are 95% intervals.</p>'
        '<div class="wide" tabindex="0" role="region" aria-label="Runs compared"><table>'
        f'<thead><tr><td></td>{heads}</tr></thead><tbody><tr><th scope="row">verdict</th>{states}</tr>{rows}</tbody></table></div>'
        "</section>"
    )


def _compared(report: Report, name: str) -> str:
    cells = []
    for part in report.runs:
        finding = next((f for f in part.diagnosis.findings if f.name == name), None)
        if finding is None or finding.estimate.value is None:
            cells.append(f"<td>{_not_shown(part, name)}</td>")
            continue
        number = finding.estimate
        exact = "".join(f' data-{key}="{getattr(number, key)!r}"' for key in ("value", "low", "high", "n") if getattr(number, key) is not None)  # fmt: skip
        around = "no interval" if finding.interval is None else shown_text(finding.interval)
        count = "" if number.n is None else f", n = {number.n:,}"
        cells.append(f'<td{exact}>{shown_text(finding.reading)} <span class="fine">{around}{count}</span></td>')
    return f'<tr><th scope="row">{shown_text(name, 80)}</th>{"".join(cells)}</tr>'


def _not_shown(part: RunPage, name: str) -> str:
    """Why a number stands in another run's column only: it was not measured, or each run is judged at a k of its own."""
    stem, at, _ = name.partition("@")
    others = (f.name for f in part.diagnosis.findings if f.severity == "info" and f.name != "pass@1")
    if at and any(other.partition("@")[0] == stem for other in others):
        return f"judged for {shown_text(part.diagnosis.use)}; -k sets one k for all"
    return "not measured"


def _run_section(part: RunPage, anchor: str) -> str:
    facts = [("read from", part.path), ("written by", part.source), ("model", part.model), ("baseline", part.baseline)]
    told = "".join(f"<div><dt>{label}</dt><dd>{shown_text(value, 300)}</dd></div>" for label, value in facts if value)
    return (
        f'<section class="part" id="{anchor}" aria-label="Run {shown_text(part.name, 60)}"><dl class="facts">{told}</dl>'
        + verdict_card(part.diagnosis, anchor=anchor)
        + _jumps(part, anchor)
        + _figures(part.figures, anchor)
        + f'<section class="browser" id="{anchor}-rollouts" aria-labelledby="{anchor}-rollouts-title" data-rollouts="{anchor}">'
        f'<h2 id="{anchor}-rollouts-title">Rollouts</h2><p class="choice">{shown_text(part.rollouts.choice, 500)}</p></section></section>'
    )


def _jumps(part: RunPage, anchor: str) -> str:
    """Where to go from here: the figures that are drawn, and the rollouts."""
    places = [(f"{anchor}-{one.figure.name}", one.figure.title) for one in part.figures if one.plot is not None]
    links = "".join(
        f'<a href="#{place}">{escape(title)}</a>' for place, title in (*places, (f"{anchor}-rollouts", "Rollouts"))
    )
    return f'<nav class="jumps" aria-label="Figures of {shown_text(part.name, 60)}">{links}</nav>'


def _study_section(part: StudyPage, anchor: str) -> str:
    told = "".join(
        f"<div><dt>{shown_text(label)}</dt><dd>{shown_text(value, 300)}</dd></div>" for label, value in part.facts
    )
    return (
        f'<section class="part" id="{anchor}" aria-label="Study {shown_text(part.name, 60)}">'
        f'<article class="card study"><h2>{shown_text(part.about, 300)}</h2><dl class="facts">{told}</dl></article>'
        + _figures(part.figures, anchor)
        + "</section>"
    )


def _figures(figures: Sequence[Drawn], anchor: str) -> str:
    drawn = "".join(_figure(one, anchor) for one in figures if one.plot is not None)
    missing = "".join(_missing(one, anchor) for one in figures if one.plot is None)
    shown = f'<section class="figures" aria-label="Figures">{drawn}</section>' if drawn else ""
    if not missing:
        return shown
    return shown + f'<section class="lacking"><h2>What this run cannot show yet</h2><ul>{missing}</ul></section>'


def _figure(one: Drawn, anchor: str) -> str:
    name, known = f"{anchor}-{one.figure.name}", one.counts
    height = int((one.plot or {}).get("layout", {}).get("height") or 380)  # room for it before it is drawn
    counted = (
        "" if known is None else f"n = {known[0]:,}" if known[0] == known[1] else f"n = {known[0]:,} to {known[1]:,}"
    )
    how = f'<details class="how"><summary>How the numbers and intervals are made</summary><ul>{"".join(f"<li>{shown_text(line, 600)}</li>" for line in one.methods)}</ul></details>' if one.methods else ""  # fmt: skip
    buttons = "".join(
        f'<button type="button" data-save="{kind}" hidden>{kind.upper()}<span class="visually-hidden"> of {escape(one.figure.title)}</span></button>'
        for kind in ("csv", "json", "png")
    )
    return (
        f'<figure id="{name}" data-figure="{one.figure.name}" data-part="{anchor}" data-height="{height}"><figcaption><h3>{escape(one.figure.title)}</h3>'
        f'<p class="question">{escape(one.figure.question)}</p><p class="reading">{shown_text(one.reading or "", 1500)}</p></figcaption>'
        f'<div class="frame"><div class="plot" role="img" aria-label="{escape(one.figure.title)}: {shown_text(one.reading or "", 1500)}"></div></div>'
        f'<div class="under"><span class="fine">{counted}</span><span class="saves">{buttons}</span></div>'
        f'{how}<details class="numbers"><summary>Numbers ({len(one.estimates):,})</summary></details></figure>'
    )


def _missing(one: Drawn, anchor: str) -> str:
    return (
        f'<li id="{anchor}-{one.figure.name}"><h3>{escape(one.figure.title)}</h3><p class="question">{escape(one.figure.question)}</p>'
        f'<p class="supply">Needs: {shown_text(one.missing or "", 400)}</p></li>'
    )


def _without_rollouts(report: Report) -> dict[str, Any]:
    told = report.to_dict(rollouts=False)
    return {"schema": told["schema"], "runs": told["runs"], "studies": told["studies"]}


def _packed(browsed: Browsed) -> dict[str, Any]:
    """The rollouts with token lists as bytes and every prompt once."""
    prompts = list(dict.fromkeys(row["prompt"] for row in browsed.rows if row["prompt"] is not None))
    place_of = {prompt: place for place, prompt in enumerate(prompts)}
    rows = []
    for row in browsed.rows:
        tokens = {name: None if row[name] is None else packed(row[name]) for name in ("ids", "entropies", "logprobs")}
        known = {name: value for name, value in (row | tokens).items() if value is not None and name != "prompt"}
        rows.append(known | ({} if row["prompt"] is None else {"prompt": place_of[row["prompt"]]}))
    vocab = {str(token): text for token, text in browsed.vocab.items()}
    return {"rows": rows, "prompts": prompts, "vocab": vocab, "path": browsed.path}
