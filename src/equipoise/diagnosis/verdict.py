"""From files to a `Diagnosis`: measure what the rules ask for, judge, prescribe."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from equipoise.base import Diagnosis, Finding, Verdict
from equipoise.diagnosis.judge import Judgement, judge
from equipoise.diagnosis.prescribe import prescribe
from equipoise.diagnosis.rules import MEASURES, USES, Rule
from equipoise.errors import UsageError, unknown_name
from equipoise.measures.evidence import Evidence, Options, collect
from equipoise.measures.prompts import PromptCounts, late_rows
from equipoise.measures.table import estimate
from equipoise.rollouts.readers.table import Source, open_source

_NAMES: dict[str, tuple[Verdict, ...]] = {
    "collapse": ("training-time entropy collapse", "both"),
    "inflation": ("inference-time variance inflation", "both"),
    "both": ("both",),
    "no-data": ("not enough data",),
    "any": ("training-time entropy collapse", "inference-time variance inflation", "both"),
    "training-time entropy collapse": ("training-time entropy collapse",),
    "inference-time variance inflation": ("inference-time variance inflation",),
    "not enough data": ("not enough data",),
    "healthy": ("healthy",),
}


def verdicts_named(name: str) -> tuple[Verdict, ...]:
    """The verdicts that a short or full name stands for."""
    if name not in _NAMES:
        raise unknown_name("verdict", name, _NAMES)
    return _NAMES[name]


def diagnose(
    source: Source | Sequence[Source],
    *,
    baseline: Source | Sequence[Source] | None = None,
    use: str = "search",
    k: int | None = None,
    solved_at: float | None = None,
    columns: Mapping[str, str] | None = None,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Diagnosis:
    """Which loop fails, how sure that is, and what to change.

    `use`: "answer" judges one sample per problem, "vote" a majority of k, "search" any of k. `k`: default the most
    samples that nearly all problems have.
    """
    if use not in USES:
        raise unknown_name("use", use, USES)
    if k is not None and k < 1:
        raise UsageError(f"-k takes a whole number from 1 on; found {k}")
    run = open_source(source, columns=columns)
    base = None if baseline is None else open_source(baseline, columns=columns)
    options = Options(solved_at=solved_at, seed=seed)
    evidence = collect(run, options=options, progress=progress)
    against = None if base is None else collect(base, options=options)
    depth = k or _common_depth(evidence, against)
    options = Options(k=tuple(sorted({1, depth})), solved_at=solved_at, seed=seed)
    found = judge(estimate(MEASURES, evidence, baseline=against, options=options), use=use, k=depth)
    warnings = [*run.warnings.lines(), *evidence.notes()]
    if base is not None and against is not None:
        warnings += [f"baseline: {line}" for line in (*base.warnings.lines(), *against.notes())]
    return Diagnosis(
        verdict=found.verdict,
        confidence=found.confidence,
        use=use if use == "answer" else f"{use}, k = {depth}",
        findings=_ordered(found),
        missing=_missing(found),
        would_change=_would_change(found),
        prescription=prescribe(found, evidence, use=use),
        n_prompts=evidence.n_prompts,
        n_rollouts=len(evidence.answers),
        warnings=tuple(warnings),
    )


def _common_depth(*evidences: Evidence | None) -> int:
    """The largest power of two that nine problems in ten have as many judged rollouts for, in every run."""
    depths = []
    for evidence in evidences:
        if evidence is None or not len(evidence.answers):
            continue
        drawn = PromptCounts.of(evidence.answers.take(late_rows(evidence.answers))).total_P
        if len(drawn):
            depths.append(int(sorted(drawn)[len(drawn) // 10]))
    deepest = max(1, min(depths, default=1))
    return 2 ** (deepest.bit_length() - 1)


_ORDER = {"failing": 0, "watch": 1, "ok": 2, "unclear": 3}
_WEIGHT = {"outcome": 0, "process": 1, "sign": 2}


def _ordered(found: Judgement) -> tuple[Finding, ...]:
    """The strongest evidence first: what supports the verdict, by weight and then by strength."""
    pairs = [(read.rule, read.finding) for read in found.reads if read.finding is not None]
    healthy = found.verdict in ("healthy", "not enough data")

    def key(pair: tuple[Rule, Finding]) -> tuple[int, int, float]:
        rule, finding = pair
        rank = _ORDER[finding.severity]
        if healthy and finding.severity == "ok":
            rank = -1
        return rank, _WEIGHT[rule.weight], -finding.strength

    return tuple(finding for _, finding in sorted(pairs, key=key))


def _missing(found: Judgement) -> tuple[str, ...]:
    """What would let the rules that found nothing speak; each thing once."""
    lines = [f"{read.rule.loop} loop: {read.missing}" for read in found.reads if read.finding is None and read.missing]
    for loop, state in found.states.items():
        unclear = [
            r for r in found.reads if r.rule.loop == loop and r.finding is not None and r.finding.severity == "unclear"
        ]
        if state == "unknown" and unclear:
            names = ", ".join(f"{r.rule.name} (n = {r.finding.estimate.n})" for r in unclear if r.finding is not None)
            lines.append(f"{loop} loop: more problems, the intervals are too wide to tell: {names}")
    return tuple(dict.fromkeys(lines))


def _would_change(found: Judgement) -> tuple[str, ...]:
    """For each rule that decided: the number at which the verdict would turn."""
    lines = []
    for read in found.reads:
        finding = read.finding
        if finding is None or read.rule.weight == "sign" or finding.severity == "unclear":
            continue
        limit = f"{read.rule.limit:+.0%}"
        past = "past" if finding.severity != "failing" else "short of"
        lines.append(f"{finding.estimate.name} {past} {limit} (now {finding.estimate.value:+.1%})")
    return tuple(dict.fromkeys(lines))
