"""Numbers that a diagnosis shows whatever the verdict is. They decide nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from equipoise.base import Estimate, Finding, Loop
from equipoise.diagnosis.judge import preference, spell


@dataclass(frozen=True, slots=True)
class Headline:
    measure: str
    estimate: str  # `{k}` is the k of the use
    loop: Loop
    reading: str  # {value} and {k} are filled in
    problems: str | None = None


HEADLINES: tuple[Headline, ...] = (
    Headline("passk", "pass@1", "training", "one sample is right on {value:.1%}"),
    Headline("passk", "pass@{k}", "training", "one of {k} samples is right on {value:.1%} of the problems"),
    Headline("majk", "maj@{k}", "training", "the majority of {k} is right on {value:.1%} of the problems"),
    Headline("diversity", "distinct@{k}", "training", "{value:.3g} distinct answers in {k}", problems="all"),
    Headline("diversity", "distinct@{k}", "training", "{value:.3g} distinct answers in {k} where none is right", problems="unsolved"),
    Headline("entropy", "entropy", "training", "mean token entropy is {value:.3g} nats"),
    Headline("forks", "fork_share", "training", "the fifth of the tokens with most entropy holds {value:.0%} of it"),
    Headline("health", "dead_groups", "training", "{value:.1%} of the groups give no gradient"),
    Headline("health", "truncated", "inference", "{value:.1%} of the rollouts are cut off"),
    Headline("health", "degenerate", "training", "{value:.1%} of the texts look degenerate"),
    Headline("budget", "best_budget", "inference", "accuracy is highest at a budget of {value:,.0f} tokens"),
    Headline("budget", "parallel_gain", "inference", "a vote over shorter samples changes accuracy by {value:+.1%} at equal tokens"),
    Headline("calibration", "brier", "inference", "the Brier score of stated confidence is {value:.3g}"),
    Headline("calibration", "auroc", "inference", "stated confidence ranks right above wrong with AUROC {value:.3g}"),
)  # fmt: skip

MEASURES = tuple(dict.fromkeys(headline.measure for headline in HEADLINES))


def show_headlines(estimates: Mapping[str, Sequence[Estimate]], *, k: int) -> list[Finding]:
    """Each headline that was measured, in every condition, the most telling first; of several windows, the last steps."""
    findings = []
    for headline in HEADLINES:
        name = headline.estimate.format(k=k)
        if name == "pass@1" and headline.estimate != name:
            continue  # k = 1 has its own line
        for number in sorted(estimates.get(headline.measure, ()), key=preference):
            wanted = headline.problems is None or number.at.get("problems") == headline.problems
            late = number.at.get("window") in (None, "late")
            if number.name == name and number.value is not None and wanted and late:
                reading, interval = spell(headline.reading, number, k)
                findings.append(Finding(number, name, headline.loop, "info", _singular(reading), 0.0, interval))
    return findings


def _singular(reading: str) -> str:
    """`1 distinct answer in 8`: what a whole collapse leaves."""
    return reading.replace("1 distinct answers", "1 distinct answer", 1) if reading.startswith("1 ") else reading


def steps_of(finding: Finding) -> str | None:
    """The steps that a number of the last ones is of, in words. None: it is of no part of the run, or of a change over it."""
    at = finding.estimate.at
    if at.get("window") != "late" or at.get("step") is None:
        return None
    first, last = at["step"]
    return f"step {last}" if first == last else f"steps {first} to {last}"
