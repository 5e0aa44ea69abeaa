"""The verdict card as plain HTML, readable before any script has run. Every text is made safe and escaped: files brought it."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from equipoise.base import Diagnosis, Finding
from equipoise.diagnosis.headlines import steps_of
from equipoise.text.display import many, noun, safe_text

EVIDENCE_SHOWN = 3
NUMBERS_SHOWN = 6
MARKS = {"failing": "✗", "watch": "!", "ok": "✓", "unclear": "?", "info": "·"}
WORDS = {"failing": "failing", "watch": "watch", "ok": "fine", "unclear": "unclear", "info": "measured"}
HEADLINES = {"both": "Entropy collapse in training and variance inflation at inference"}
_CONDITIONS = ("run_id", "split", "strategy", "temperature")


def shown_text(text: object, limit: int = 400) -> str:
    """A stranger's text in one line of HTML."""
    return escape(safe_text(str(text), limit))


def state_of(found: Diagnosis) -> str:
    """ok, watch or failing: the colour and mark of a verdict."""
    return {"healthy": "ok", "not enough data": "watch"}.get(found.verdict, "failing")


def headline(found: Diagnosis) -> str:
    return HEADLINES.get(found.verdict, found.verdict[0].upper() + found.verdict[1:])


def verdict_card(found: Diagnosis, *, anchor: str) -> str:
    """Verdict, confidence, the strongest evidence, the numbers behind it, what would change it, and one next action."""
    state = state_of(found)
    sure = (
        ""
        if found.confidence is None
        else f'confidence <data value="{found.confidence!r}">{found.confidence:.2f}</data>, '
    )
    head = (
        f'<header class="verdict {state}"><span class="mark" aria-hidden="true">{MARKS[state]}</span><div>'
        f'<h2 id="{anchor}-verdict">{escape(headline(found))}</h2>'
        f'<p>{sure}judged for {shown_text(found.use)}, from <data value="{found.n_prompts}">{found.n_prompts:,}</data> {noun(found.n_prompts, "problem")} '
        f'and <data value="{found.n_rollouts}">{found.n_rollouts:,}</data> {noun(found.n_rollouts, "rollout")}</p></div></header>'
    )
    read = [finding for finding in found.findings if finding.severity != "info"]
    evidence = ([finding for finding in read if finding.severity != "unclear"] or read)[:EVIDENCE_SHOWN]
    numbers = list(_one_of_each(found.findings))[:NUMBERS_SHOWN]
    action = found.prescription
    left = (
        _findings("Strongest evidence", evidence)
        + _findings("Measured", numbers)
        + _lines("What would change this verdict", found.would_change[:3])
        + _lines("Not measured", found.missing)
    )
    right = (
        f'<section class="action"><h3>Next action</h3><p>{shown_text(action.why, 800)}</p>'
        + "".join(map(_setting, action.lines))
        + _lines("Then", action.next_round, level="h4")
        + "".join(map(_setting, action.next_lines))
        + "</section>"
    )
    notes = f'<details class="notes"><summary>{many(len(found.warnings), "note")} on the data</summary>{_list(found.warnings)}</details>' if found.warnings else ""  # fmt: skip
    return (
        f'<article class="card" aria-labelledby="{anchor}-verdict">{head}<div class="body"><div>{left}</div>{right}</div>'
        f"{notes}</article>"
    )


def _setting(line: str) -> str:
    """`trl: GRPOConfig(…)`: for whom, and what to paste."""
    host, _, setting = line.partition(": ")
    if not setting:
        return f"<pre><code>{shown_text(line, 600)}</code></pre>"
    return f'<div class="setting"><p class="fine">{shown_text(host, 60)}</p><pre><code>{shown_text(setting, 600)}</code></pre></div>'


def _one_of_each(findings: Iterable[Finding]) -> Iterable[Finding]:
    """The first condition of every number that no rule reads."""
    seen: dict[tuple[str, object], Finding] = {}
    for finding in findings:
        if finding.severity == "info":
            seen.setdefault((finding.name, finding.estimate.at.get("problems")), finding)
    return seen.values()


def _findings(title: str, findings: Iterable[Finding]) -> str:
    items = "".join(map(finding_line, findings))
    return f'<section><h3>{title}</h3><ul class="findings">{items}</ul></section>' if items else ""


def finding_line(finding: Finding) -> str:
    """A finding with its exact numbers as attributes: what is read is rounded."""
    number = finding.estimate
    exact = {"value": number.value, "low": number.low, "high": number.high, "n": number.n}
    attributes = "".join(f' data-{name}="{value!r}"' for name, value in exact.items() if value is not None)
    told = [
        *([] if finding.interval is None else [f"95% interval {finding.interval}"]),
        *([] if number.n is None else [f"n = {number.n:,}"]),
        *(f"{key} {value}" for key, value in number.at.items() if key in _CONDITIONS and value is not None),
        *filter(None, [steps_of(finding)]),
    ]
    state = finding.severity
    return (
        f'<li class="finding {state}" data-name="{escape(finding.name, quote=True)}"{attributes}>'
        f'<span class="mark" aria-hidden="true">{MARKS[state]}</span><span class="visually-hidden">{WORDS[state]}: </span>'
        f'{shown_text(finding.reading)} <span class="fine">{shown_text(", ".join(told))}</span></li>'
    )


def _lines(title: str, lines: Iterable[str], *, level: str = "h3") -> str:
    lines = list(lines)
    return f"<section><{level}>{title}</{level}>{_list(lines)}</section>" if lines else ""


def _list(lines: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{shown_text(line, 600)}</li>' for line in lines)}</ul>"
