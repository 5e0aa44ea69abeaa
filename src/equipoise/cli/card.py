"""The verdict card."""

from __future__ import annotations

from rich.text import Text

from equipoise.base import Diagnosis, Finding
from equipoise.cli.show import console
from equipoise.diagnosis.headlines import steps_of
from equipoise.text.display import many, safe_text

EVIDENCE_SHOWN = 3
NUMBERS_SHOWN = 6
MISSING_SHOWN = 5
_CONDITIONS = ("run_id", "split", "strategy", "temperature")
_MARK = {
    "failing": ("✗", "red"),
    "watch": ("!", "yellow"),
    "ok": ("✓", "green"),
    "unclear": ("?", "dim"),
    "info": ("·", "dim"),
}
_COLOUR = {"healthy": "green", "not enough data": "yellow"}


def print_card(found: Diagnosis, *, title: str | None = None) -> None:
    """Verdict, the three strongest pieces of evidence, what would change it, and one next action."""
    out = console()
    colour = _COLOUR.get(found.verdict, "red")
    if title is not None:
        out.print(Text(safe_text(title, 200), style="bold"))
    head = Text(found.verdict.upper(), style=f"bold {colour}")
    sure = "" if found.confidence is None else f"  confidence {found.confidence:.2f}"
    head.append(
        f"{sure}  for {found.use}  ({many(found.n_prompts, 'problem')}, {many(found.n_rollouts, 'rollout')})",
        style="default not bold",
    )
    out.print(head)
    read = [finding for finding in found.findings if finding.severity != "info"]
    shown = [finding for finding in read if finding.severity != "unclear"] or read
    if shown:
        out.print(Text("  evidence", style="bold"))
        for finding in shown[:EVIDENCE_SHOWN]:
            out.print(_evidence(finding))
    numbers: dict[tuple[str, object], Finding] = {}
    for finding in found.findings:
        if finding.severity == "info":
            numbers.setdefault((finding.name, finding.estimate.at.get("problems")), finding)  # one condition of each
    if numbers:
        listed = list(numbers.values())[:NUMBERS_SHOWN]
        steps = {steps_of(finding) for finding in listed}
        common = next(iter(steps)) if len(steps) == 1 else None  # said once, in the title
        out.print(Text("  measured" + (f" in {common}, the last" if common else ""), style="bold"))
        for finding in listed:
            out.print(_evidence(finding, steps=common is None))
    _section(out, "what would change this", found.would_change[:3])
    if found.missing:
        _section(out, "not measured", found.missing[:MISSING_SHOWN])
    out.print(Text("  next action", style="bold"))
    out.print(Text(f"    {safe_text(found.prescription.why, 600)}"))
    for line in found.prescription.lines:
        out.print(Text(f"    {safe_text(line, 600)}", style="cyan"))
    for number, line in enumerate(found.prescription.next_round):
        out.print(Text(f"    then: {safe_text(line, 300)}"))
        for pasted in found.prescription.next_lines if number == 0 else ():
            out.print(Text(f"      {safe_text(pasted, 600)}", style="cyan"))


def _evidence(finding: Finding, *, steps: bool = True) -> Text:
    mark, colour = _MARK[finding.severity]
    number = finding.estimate
    interval = "no interval" if finding.interval is None else f"95% interval {finding.interval}"
    known = [f"{key} {value}" for key, value in number.at.items() if key in _CONDITIONS and value is not None]
    drawn = ", ".join([*known, *filter(None, [steps_of(finding) if steps else None])])
    line = Text("    ")
    line.append(mark, style=colour)
    line.append(f" {safe_text(finding.reading, 200)}")
    line.append(f"  ({interval}, n = {number.n})" + (f"  [{safe_text(drawn, 80)}]" if drawn else ""), style="dim")
    return line


def _section(out: object, title: str, lines: tuple[str, ...]) -> None:
    if lines:
        out.print(Text(f"  {title}", style="bold"))  # type: ignore[attr-defined]
        for line in lines:
            out.print(Text(f"    {safe_text(line, 300)}"))  # type: ignore[attr-defined]
