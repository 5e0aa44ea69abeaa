"""How different a problem's answers are, and how different the ways to them. Axes: P problems.

Answers are canonical; a rollout without one abstains, which is reported and never a class. Draws are among the answered
rollouts, so that a run that learns to state its answers does not look more diverse for that alone.
Every measure of answers is given for all problems, for those solved at least once, and for those never solved: training
makes answers alike on unsolved problems too, where that cannot help (https://arxiv.org/abs/2509.06941).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from equipoise.base import Estimate
from equipoise.measures.arms import Arm, Spread, Window, arms_of, summarise, unmatched
from equipoise.measures.evidence import Evidence, Options
from equipoise.measures.majk import ANSWERS
from equipoise.measures.passk import VERDICTS
from equipoise.measures.prompts import PromptCounts
from equipoise.measures.subsets import check_ks, common_size, default_ks, missed_share
from equipoise.measures.ways import MOST_PROBLEMS, MOST_TEXTS, Ways, count_ways, texts_per_problem

if TYPE_CHECKING:
    from equipoise.measures.texts import TextTable

PROBLEMS = ("all", "solved", "unsolved")


def answered_of(counts: PromptCounts) -> np.ndarray:
    return np.asarray(counts.total_P - counts.abstained_P)


def distinct_of(counts: PromptCounts) -> np.ndarray:
    """The number of distinct answers seen, nan where none was read."""
    return np.where(answered_of(counts) > 0, np.diff(counts.offsets).astype(float), np.nan)


def distinct_at_k_of(counts: PromptCounts, k: int) -> np.ndarray:
    """Σ_o [1 − C(n−c_o, k) / C(n, k)], nan where fewer than k were answered.

    The mean number of distinct answers in k of the n, hence unbiased for that in k fresh ones, D_k = Σ_o [1 − (1−p_o)^k].
    """
    answered_P = answered_of(counts)
    problem = _problem_of_kind(counts)
    seen = 1 - missed_share(counts.kind_count, answered_P[problem], k)
    return np.where(answered_P >= k, np.bincount(problem, weights=np.nan_to_num(seen), minlength=len(counts)), np.nan)


def collision_of(counts: PromptCounts) -> np.ndarray:
    """Σ c(c−1) / (n(n−1)): two answers agree. Unbiased for Σ p², the Rényi-2 collision; nan below two answers."""
    answered_P = answered_of(counts)
    pairs_P = np.bincount(
        _problem_of_kind(counts), weights=counts.kind_count * (counts.kind_count - 1.0), minlength=len(counts)
    )
    return np.where(answered_P > 1, pairs_P / np.maximum(answered_P * (answered_P - 1.0), 1), np.nan)


def answer_entropy_of(counts: PromptCounts) -> np.ndarray:
    """−Σ (c/n) ln(c/n) + (kinds − 1) / (2n), in nats: plug-in with the Miller–Madow correction; nan where none was read."""
    answered_P = answered_of(counts)
    problem = _problem_of_kind(counts)
    share = counts.kind_count / answered_P[problem]
    plug_in_P = np.bincount(problem, weights=-share * np.log(share), minlength=len(counts))
    return np.where(answered_P > 0, plug_in_P + (np.diff(counts.offsets) - 1) / np.maximum(2 * answered_P, 1), np.nan)


def _problem_of_kind(counts: PromptCounts) -> np.ndarray:
    return np.repeat(np.arange(len(counts)), np.diff(counts.offsets))


def among(counts: PromptCounts, problems: str) -> np.ndarray:
    """Which problems belong to a class. Solved: right at least once in these rollouts; unsolved: judged, never right."""
    if problems == "all":
        return np.full(len(counts), True)
    return np.asarray((counts.drawn_P > 0) & ((counts.correct_P > 0) == (problems == "solved")))


def estimate_diversity(evidence: Evidence, *, baseline: Evidence | None, options: Options) -> list[Estimate]:
    """Distinct answers, collision, entropy and abstentions per class of problems; then the ways, where there are texts."""
    asked = check_ks(options.k)
    estimates: list[Estimate] = []
    for arm in arms_of(evidence.answers, None if baseline is None else baseline.answers):
        estimates += [
            *_of_answers(arm, asked),
            *_of_ways(arm, evidence, baseline, options.seed),
            *unmatched("distinct", arm),
        ]
    return estimates or [Estimate("distinct", None, missing=ANSWERS)]


def _of_answers(arm: Arm, asked: tuple[int, ...]) -> Iterator[Estimate]:
    at = dict(arm.late.at)
    if not arm.late.table.has("answer"):
        yield Estimate("distinct", None, at=at, missing=ANSWERS)
        return
    judged = arm.late.table.has("correct")
    for problems in PROBLEMS if judged else ("all",):
        yield from (e for spread in _plain_spreads(problems) for e in summarise(spread, arm))
        for k in asked or default_ks(_answered(arm.late)):
            if k > 1:  # one answer is one distinct answer
                yield from summarise(_distinct_spread(problems, k), arm if asked else arm.with_samples(k, _answered))
    if not judged:
        yield Estimate("distinct", None, at=at | {"problems": "unsolved"}, missing=VERDICTS)
    yield from summarise(
        Spread(
            "abstained",
            lambda window: window.counts.abstained_P / window.counts.total_P,
            "share of samples without a readable answer",
            "",
            "",
            (0, 1),
        ),
        arm,
    )


def _answered(window: Window) -> np.ndarray:
    return answered_of(window.counts)


def _plain_spreads(problems: str) -> Iterator[Spread]:
    yield replace(
        _spread("distinct", problems, distinct_of, "distinct answers seen", 1), bounds=(1, np.inf), compare=False
    )
    yield replace(_spread("collision", problems, collision_of, "Σ c(c−1)/(n(n−1))", 2), bounds=(0, 1))
    yield replace(
        _spread(
            "answer_entropy", problems, answer_entropy_of, "plug-in entropy in nats with the Miller–Madow correction", 1
        ),
        no_interval="with few samples it stays too low; collision is the unbiased measure of spread",
        compare=False,
    )


def _distinct_spread(problems: str, k: int) -> Spread:
    spread = _spread(f"distinct@{k}", problems, partial(distinct_at_k_of, k=k), "Σ_o [1 − C(n−c,k)/C(n,k)]", k)
    return replace(spread, bounds=(1, k), relative=True, at={"problems": problems, "k": k})


def _spread(name: str, problems: str, form: Callable[[PromptCounts], np.ndarray], how: str, least: int) -> Spread:
    """A measure of answers on one class of problems; a comparison keeps the problems of that class in both."""

    def values(window: Window) -> np.ndarray:
        return np.where(among(window.counts, problems), form(window.counts), np.nan)

    short, missing = f"fewer than {least} answers", f"draw ≥ {least} samples per problem"
    if problems != "all":
        how += f", problems {problems} by these samples (in comparisons: in both)"
        short, missing = f"not {problems}, or {short}", f"{problems} problems with ≥ {least} answers"
    return Spread(name, values, how, short, missing, at={"problems": problems})


def _of_ways(arm: Arm, evidence: Evidence, baseline: Evidence | None, seed: int) -> Iterator[Estimate]:
    """Vendi score and clusters of texts, at one number of texts per problem in every window that is compared."""

    def texts_in(window: Window) -> TextTable | None:
        return baseline.texts if baseline is not None and window is arm.base else evidence.texts

    def sizes(window: Window) -> np.ndarray:
        texts = texts_in(window)
        return np.zeros(len(window.counts), np.int64) if texts is None else texts_per_problem(window, texts)

    if common_size(sizes(arm.late)) < 2:
        missing = "draw ≥ 2 completions per problem" if sizes(arm.late).any() else "completions (column completion)"
        yield Estimate("vendi", None, at=dict(arm.late.at), missing=missing)
        return
    part = arm.with_samples(2, sizes)
    windows = [window for window in (part.late, part.early, part.base) if window is not None]
    size = min(MOST_TEXTS, *(common_size(sizes(window)) for window in windows))
    ways = {
        id(window): count_ways(window, texts, size=size, seed=seed)
        for window in windows
        if (texts := texts_in(window)) is not None
    }
    for spread in _way_spreads(ways, size):
        yield from summarise(spread, part)


_WAYS = {
    "vendi": "effective number of different texts",
    "clusters": "groups of alike texts (average linkage)",
    "clusters_right": "groups of alike texts that hold a right one",
    "clusters_wrong": "groups of alike texts that hold a wrong one",
}


def _way_spreads(ways: dict[int, Ways], size: int) -> Iterator[Spread]:
    for name, how in _WAYS.items():
        judged = "judged " if name.startswith("clusters_") else ""
        yield Spread(
            name,
            lambda window, name=name: getattr(ways[id(window)], f"{name}_P"),  # type: ignore[misc]
            f"{how} among {size}, by MinHash of 8-byte shingles",
            f"fewer than {size} {judged}texts, or not among {MOST_PROBLEMS:,} picked",
            f"≥ {size} {judged}completions per problem",
            at={"k": size},
        )
