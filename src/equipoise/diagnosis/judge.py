"""Rules over estimates: each rule's finding, each loop's state, the verdict and how sure it is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from scipy.stats import norm

from equipoise.base import Estimate, Finding, Loop, Severity, Verdict
from equipoise.diagnosis.rules import MIN_PROMPTS, RULES, Rule, Weight

State = Literal["failing", "ok", "unknown"]

_INTERVAL_Z = float(norm.ppf(0.975))
_SUREST = 0.99


@dataclass(frozen=True, slots=True)
class Read:
    """A rule with what it found; `finding` None: nothing was measured for it."""

    rule: Rule
    finding: Finding | None
    missing: str | None


@dataclass(frozen=True, slots=True)
class Judgement:
    verdict: Verdict
    confidence: float | None
    states: Mapping[Loop, State]
    reads: tuple[Read, ...]


def judge(estimates: Mapping[str, Sequence[Estimate]], *, use: str, k: int) -> Judgement:
    """Read every rule of the use and decide. `estimates` are those of each measure by name."""
    reads = tuple(read_rule(rule, estimates.get(rule.measure, ()), k) for rule in RULES if use in rule.uses)
    states: dict[Loop, State] = {
        loop: loop_state(r for r in reads if r.rule.loop == loop) for loop in ("training", "inference")
    }
    verdict = _verdict(states, reads)
    return Judgement(verdict, _confidence(verdict, states, reads), states, reads)


def read_rule(rule: Rule, estimates: Iterable[Estimate], k: int) -> Read:
    """The finding of the first estimate that the rule asks for and that has a value."""
    found = [e for e in estimates if rule.problems is None or e.at.get("problems") == rule.problems]
    missing: str | None = None
    for pattern in rule.estimates:
        named = [number for number in found if number.name == pattern.format(k=k)]
        measured = [number for number in named if number.value is not None]
        if measured:
            return Read(rule, _finding(rule, min(measured, key=preference), k), None)
        missing = missing or next((number.missing for number in named if number.missing), None)
    return Read(rule, None, missing or rule.supply)


def preference(number: Estimate) -> tuple[bool, bool, int]:
    """Of several conditions: one that is no point of a budget sweep, an evaluation before training, the one with most problems."""
    return number.at.get("budget") is not None, number.at.get("split") == "train", -(number.n or 0)


def _finding(rule: Rule, number: Estimate, k: int) -> Finding:
    severity, strength = _severity(rule, number)
    reading, interval = spell(rule.reading, number, k)
    if alike(number):
        reading += ": no problem differs"
    return Finding(number, rule.name, rule.loop, severity, reading, strength, interval)


_ALIKE = re.compile(r"no interval: 0 of \d+ prompts differ")  # as `measures.intervals.paired_difference` words it


def alike(number: Estimate) -> bool:
    """Whether the two sides of a difference are equal on every problem: it has no interval, and more problems give none."""
    return number.value == 0 and _ALIKE.search(number.how) is not None


_UNIT = re.compile(r"\{value(:[^}]*)\}")


def spell(reading: str, number: Estimate, k: int) -> tuple[str, str | None]:
    """The sentence with its number in place, and the interval written as that number is."""
    unit = _UNIT.search(reading)
    assert unit is not None
    written = f"{{low{unit[1]}}} to {{high{unit[1]}}}"
    interval = None if number.low is None or number.high is None else written.format(low=number.low, high=number.high)
    return reading.format(value=number.value, k=k), interval


def _severity(rule: Rule, number: Estimate) -> tuple[Severity, float]:
    """Failing, ok, watch (a real effect short of the limit, or past it but not certain) or unclear; and its strength."""
    if number.value is None or number.low is None or number.high is None or (number.n or 0) < MIN_PROMPTS:
        return "unclear", 0.0
    sign = -1.0 if rule.harm_is_down else 1.0
    value, neutral, limit = sign * number.value, sign * rule.neutral, sign * rule.limit
    low, high = sorted((sign * number.low, sign * number.high))
    error = max((high - low) / (2 * _INTERVAL_Z), 1e-12)
    if value >= limit and low > neutral:
        return "failing", (value - neutral) / error
    if high < limit:
        return ("watch" if low > neutral else "ok"), (limit - value) / error
    return "unclear", 0.0


_DECIDING: tuple[Weight, ...] = ("outcome", "process")


def loop_state(reads: Iterable[Read]) -> State:
    """One loop's state: that of the weightiest kind of rule with a clear finding."""
    reads = list(reads)
    found = _deciding(reads)
    if any(finding.severity == "failing" for finding in found):
        return "failing"
    return "ok" if found and not any(_leans(read, past=read.rule.limit) for read in reads) else "unknown"


def _leans(read: Read, *, past: float) -> bool:
    """An outcome that is unclear, with its value on the harmful side of `past`: more data may well turn it into a failure."""
    rule, finding = read.rule, read.finding
    if rule.weight != "outcome" or finding is None or finding.severity != "unclear" or finding.estimate.value is None:
        return False
    value = finding.estimate.value
    return value != rule.neutral and (value <= past if rule.harm_is_down else value >= past)


def _deciding(reads: Sequence[Read]) -> list[Finding]:
    """The clear findings of the weightiest kind that has any."""
    for weight in _DECIDING:
        clear = [
            r.finding
            for r in reads
            if r.rule.weight == weight and r.finding is not None and r.finding.severity != "unclear"
        ]
        if clear:
            return clear
    return []


def _verdict(states: Mapping[Loop, State], reads: Sequence[Read]) -> Verdict:
    """One ok loop is enough for healthy, unless the other was measured too, leans towards harm, and is not known."""
    failing = [loop for loop, state in states.items() if state == "failing"]
    if len(failing) == 2:
        return "both"
    if failing == ["training"]:
        return "training-time entropy collapse"
    if failing == ["inference"]:
        return "inference-time variance inflation"
    open_end = any(states[read.rule.loop] == "unknown" and _leans(read, past=read.rule.neutral) for read in reads)
    return "healthy" if "ok" in states.values() and not open_end else "not enough data"


def _confidence(verdict: Verdict, states: Mapping[Loop, State], reads: Sequence[Read]) -> float | None:
    """One-sided confidence of the evidence that decided, the weakest over the loops that the verdict speaks of.

    For a failing loop: that the effect is real (past neutral). For an ok loop: that the effect is short of the limit.
    """
    if verdict == "not enough data":
        return None
    spoken: State = "ok" if verdict == "healthy" else "failing"
    per_loop = []
    for loop in (loop for loop, state in states.items() if state == spoken):
        deciding = _deciding([read for read in reads if read.rule.loop == loop])
        strengths = [f.strength for f in deciding if (f.severity == "failing") == (spoken == "failing")]
        # One failing rule is enough to fail, so the strongest counts; every rule must be ok to be ok, so the weakest does.
        per_loop.append(float(norm.cdf(max(strengths) if spoken == "failing" else min(strengths))))
    return min(_SUREST, *per_loop)
