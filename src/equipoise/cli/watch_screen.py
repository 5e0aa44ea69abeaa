"""A followed run as text: a screen for a terminal, or one line. Every number says whether it was logged or measured."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group
from rich.table import Column, Table
from rich.text import Text

from equipoise.base import Finding
from equipoise.rollouts.logkeys import NAMES
from equipoise.text.display import safe_text
from equipoise.views.live.summary import Summary

BARS = "▁▂▃▄▅▆▇█"
WIDTH = 32
_MARK = {"failing": ("✗", "red"), "watch": ("!", "yellow")}
_ABOUT = {
    "all_wrong": "share of groups with no right answer",
    "all_right": "share of groups with right answers only",
    "pass@": "share of problems solved by one of k, held out",
}


def sparkline(values: Sequence[float], width: int = WIDTH) -> str:
    """The values as bars from their lowest to their highest; of several in one place, the last."""
    if not values:
        return ""
    places = min(width, len(values))
    shown = [values[(i + 1) * len(values) // places - 1] for i in range(places)]
    low, high = min(shown), max(shown)
    if high == low:
        return BARS[3] * places
    return "".join(BARS[min(int((value - low) / (high - low) * len(BARS)), len(BARS) - 1)] for value in shown)


def screen(found: Summary) -> Group:
    """Everything: state, curves, group health, alerts, notes."""
    parts: list[Text | Table] = [Text(f"{found.name}  {_progress(found)}", style="bold"), _verdict(found)]
    if found.logged:
        heads = [Column(head, no_wrap=True) for head in ("logged", "last", "curve")]
        table = Table(*heads, "what it is", box=None, padding=(0, 2, 0, 0), header_style="dim")
        for one in found.logged:
            what = NAMES.get(one.name) or _ABOUT.get(one.name) or _ABOUT["pass@"]
            named = one.name if one.key == one.name else f"{one.name} ({one.key})"
            table.add_row(
                Text(named),
                Text(number(one.value)),
                Text(sparkline(one.recent), style="cyan"),
                Text(what, style="dim", no_wrap=True, overflow="ellipsis"),
            )
        parts.append(table)
    else:
        parts.append(Text("nothing is logged yet", style="dim"))
    if found.health:
        parts.append(Text("group health, measured", style="dim"))
        parts += [_finding(finding, "·", "dim") for finding in found.health]
    if found.verdict is not None:
        parts.append(Text("alerts", style="dim"))
        parts += [_finding(finding, *_MARK[finding.severity]) for finding in found.alerts] or [Text("  none")]
    parts += [Text(f"note: {line}", style="yellow") for line in found.notes[:5]]
    return Group(*parts)


def one_line(found: Summary) -> str:
    """State, entropy, reward, dead groups, alerts and time left, in one line."""
    words = [found.name, _progress(found)]
    words += [
        f"{one.name} {number(one.value)} (logged)" for one in found.logged if one.name in ("entropy", "reward_mean")
    ]
    for finding in found.health[:1]:
        words.append(
            f"{finding.name} {number(finding.estimate.value)} [{finding.interval or 'no interval'}] (measured)"
        )
    if found.verdict is not None:
        words.append(found.verdict)
        words.append("alerts: " + (", ".join(f"{one.severity} {one.name}" for one in found.alerts) or "none"))
    words += [f"note: {line}" for line in found.notes[:1]]
    return safe_text(" · ".join(words), 1000)


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def _progress(found: Summary) -> str:
    if found.gone:
        return "the folder is gone"
    step = "no step yet" if found.step is None else f"step {found.step}"
    if found.step is not None and found.planned:
        step += f"/{found.planned}"
        if found.step >= found.planned:
            return f"{step}, done"
    if found.silent and found.age is not None:
        return f"{step}, silent for {_time(found.age)}"
    return (
        step if found.left.value is None else f"{step}, about {_time(found.left.value)} left by its logged step times"
    )


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _verdict(found: Summary) -> Text:
    if found.verdict is None:
        return Text("not judged yet", style="dim")
    sure = "" if found.confidence is None else f", confidence {found.confidence:.2f}"
    upto = "" if found.judged_step is None else f", rollouts up to step {found.judged_step}"
    colour = {"healthy": "green", "not enough data": "yellow"}.get(found.verdict, "red")
    return Text.assemble((f"so far: {found.verdict}{sure}", colour), (f"  for {found.use}{upto}", "dim"))


def _finding(finding: Finding, mark: str, colour: str) -> Text:
    interval = "no interval" if finding.interval is None else f"95% interval {finding.interval}"
    line = Text("  ").append(mark, style=colour).append(f" {safe_text(finding.reading, 200)}")
    return line.append(f"  ({interval}, n = {finding.estimate.n})", style="dim")
