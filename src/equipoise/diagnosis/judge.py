"""Rules over estimates: each rule's finding, each loop's state, the verdict and how sure it is."""

from __future__ import annotations

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
    verdict = _verdict(states)
    return Judgement(verdict, _confidence(verdict, states, reads), states, reads)


def read_rule(rule: Rule, estimates: Iterable[Estimate], k: int) -> Read:
    """The finding of the first estimate that the rule asks for and that has a value."""
    found = list(estimates)
    missing: str | None = None
    for pattern in rule.estimates:
        name = pattern.format(k=k)
        for number in found:
            if number.name != name or (rule.problems is not None and number.at.get("problems") != rule.problems):
                continue
            if number.value is None:
                missing = missing or number.missing
                continue
            return Read(rule, _finding(rule, number, k), None)
    return Read(rule, None, missing or rule.supply)


def _finding(rule: Rule, number: Estimate, k: int) -> Finding:
    assert number.value is not None
    severity, strength = _severity(rule, number)
    reading = rule.reading.format(value=number.value, low=number.low, high=number.high, n=number.n, k=k)
    return Finding(number, rule.name, rule.loop, severity, reading, strength)


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
    leaning = any(
        r.rule.weight == "outcome" and r.finding is not None and _leans_past(r.rule, r.finding) for r in reads
    )
    return "ok" if found and not leaning else "unknown"


def _leans_past(rule: Rule, finding: Finding) -> bool:
    """Unclear, with its value past the limit: more data may well turn it into a failure."""
    value = finding.estimate.value
    past = value is not None and (value <= rule.limit if rule.harm_is_down else value >= rule.limit)
    return finding.severity == "unclear" and past


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


def _verdict(states: Mapping[Loop, State]) -> Verdict:
    failing = [loop for loop, state in states.items() if state == "failing"]
    if len(failing) == 2:
        return "both"
    if failing == ["training"]:
        return "training-time entropy collapse"
    if failing == ["inference"]:
        return "inference-time variance inflation"
    return "healthy" if "ok" in states.values() else "not enough data"


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
