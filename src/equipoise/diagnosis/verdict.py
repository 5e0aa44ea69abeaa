"""From files to a `Diagnosis`: measure what the rules ask for, judge, prescribe."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from equipoise.base import Diagnosis, Finding, Verdict
from equipoise.diagnosis import headlines, rules
from equipoise.diagnosis.judge import Judgement, judge
from equipoise.diagnosis.missing import what_is_missing
from equipoise.diagnosis.prescribe import prescribe
from equipoise.diagnosis.rules import USES, Rule
from equipoise.errors import UsageError, unknown_name
from equipoise.measures.depth import common_depth
from equipoise.measures.evidence import Evidence, Options, collect
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

    `use`: "answer" judges one sample per problem, "vote" a majority of k, "search" any of k. `k`: default half
    of the samples that nearly all problems have.
    """
    _check(use, k)
    run = open_source(source, columns=columns)
    base = None if baseline is None else open_source(baseline, columns=columns, baseline=True)
    options = Options(solved_at=solved_at, seed=seed)
    evidence = collect(run, options=options, progress=progress)
    against = None if base is None else collect(base, options=options)
    return diagnose_evidence(evidence, against, use=use, k=k, options=options)


def diagnose_evidence(
    evidence: Evidence,
    baseline: Evidence | None = None,
    *,
    use: str = "search",
    k: int | None = None,
    options: Options = Options(),
) -> Diagnosis:
    """`diagnose` from evidence that is gathered already."""
    _check(use, k)
    depth = k or common_depth(each.answers for each in (evidence, baseline) if each is not None)
    options = replace(options, k=tuple(sorted({1, depth})))
    numbers = estimate(
        dict.fromkeys((*rules.MEASURES, *headlines.MEASURES)), evidence, baseline=baseline, options=options
    )
    found = judge(numbers, use=use, k=depth)
    warnings = [*evidence.run.warnings.lines(), *evidence.notes()]
    if baseline is not None:
        warnings += [f"baseline: {line}" for line in (*baseline.run.warnings.lines(), *baseline.notes())]
    return Diagnosis(
        verdict=found.verdict,
        confidence=found.confidence,
        use=use if use == "answer" else f"{use}, k = {depth}",
        findings=(*_ordered(found), *headlines.show_headlines(numbers, k=depth)),
        missing=what_is_missing(found, numbers, evidence, baseline),
        would_change=_would_change(found),
        prescription=prescribe(found, numbers, evidence.run.info.settings),
        n_prompts=evidence.n_prompts,
        n_rollouts=len(evidence.answers),
        warnings=tuple(warnings),
    )


def _check(use: str, k: int | None) -> None:
    if use not in USES:
        raise unknown_name("use", use, USES)
    if k is not None and k < 1:
        raise UsageError(f"-k takes a whole number from 1 on; found {k}")


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


def _would_change(found: Judgement) -> tuple[str, ...]:
    """For each rule that the verdict stands on: where its number is, and where the verdict would turn."""
    healthy = "failing" not in found.states.values()
    wanted = ("ok", "watch") if healthy else ("failing",)
    lines = [
        f"{read.finding.reading}; the verdict turns at {read.rule.limit:+.0%}"
        for read in found.reads
        if read.finding is not None and read.finding.severity in wanted and read.rule.weight != "sign"
    ]
    return tuple(dict.fromkeys(lines))
