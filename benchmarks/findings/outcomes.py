"""Answers of a policy as counts per problem, and cells of such counts against each other. Axes: P problems, G answers of each, S seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import log

import numpy as np

from benchmarks.findings.policies import Row
from benchmarks.findings.studied import Floats
from equipoise.base import Grade
from equipoise.lab.study_config import BASE
from equipoise.lab.study_numbers import DRAWS, Compared, over_resamples
from equipoise.measures.majority import majority_share
from equipoise.measures.passk import pass_at_k_of
from equipoise.training.collect import Batch


def count_answers(
    problems: Sequence[str], grades: Sequence[Grade], n_tokens: Sequence[int], *, votes: Sequence[int]
) -> list[Row]:
    """A row per problem: right, readable and different answers, their entropy in nats, mean tokens, and maj@n for n of `votes`.

    Answers stand by problem, as many for each. Entropy is −Σ p ln p over the shares of the readable answers, 0 where there are none.
    """
    samples = len(grades) // len(problems)
    rows, counts, rights, ends = [], [], [], [0]
    for place, problem in enumerate(problems):
        mine = grades[place * samples : (place + 1) * samples]
        kinds = Counter(grade.answer.text for grade in mine if grade.answer is not None)
        right_of = {grade.answer.text: float(bool(grade.correct)) for grade in mine if grade.answer is not None}
        total = sum(kinds.values())
        counts += list(kinds.values())
        rights += [right_of[text] for text in kinds]
        ends.append(len(counts))
        rows.append(
            {
                "problem": problem,
                "drawn": samples,
                "correct": sum(bool(grade.correct) for grade in mine),
                "readable": total,
                "distinct": len(kinds),
                "entropy": -sum(n / total * log(n / total) for n in kinds.values()) if total else 0.0,
                "tokens": float(np.mean(n_tokens[place * samples : (place + 1) * samples])),
            }
        )
    drawn_P = np.full(len(problems), samples)
    shares = {
        n: majority_share(np.asarray(counts, np.int64), np.asarray(rights, float), np.asarray(ends), drawn_P, n)
        for n in votes
    }
    return [
        row | {f"maj@{n}": float(share_P[place]) for n, share_P in shares.items()} for place, row in enumerate(rows)
    ]


def count_batch(batch: Batch, *, votes: Sequence[int]) -> list[Row]:
    """The same of completions that were drawn together."""
    n_tokens = [completion.n_tokens or 0 for completion in batch.completions]
    return count_answers([problem.id for problem in batch.problems], batch.grades, n_tokens, votes=votes)


class Cells:
    """Rows by what they were drawn under, as arrays over seeds and problems."""

    def __init__(self, rows: Sequence[Row], by: Sequence[str]) -> None:
        self.by = tuple(by)
        found: dict[tuple[object, ...], dict[int | None, list[Row]]] = {}
        for row in rows:
            found.setdefault(tuple(row[name] for name in self.by), {}).setdefault(row["seed"], []).append(row)
        self._found = found

    def __iter__(self) -> Iterator[tuple[object, ...]]:
        return iter(self._found)

    def values(self, key: tuple[object, ...], name: str) -> Floats:
        """(S, P). `pass@k` is computed from the counts, everything else is a column."""
        seeds = self._found[key]
        if name.startswith("pass@"):
            correct_SP, drawn_SP = self.values(key, "correct"), self.values(key, "drawn")
            return np.stack(
                [pass_at_k_of(right, drawn, int(name[5:])) for right, drawn in zip(correct_SP, drawn_SP, strict=True)]
            )
        return np.array([[float(row[name]) for row in rows] for rows in seeds.values()])

    def mean(self, key: tuple[object, ...], name: str) -> float:
        return float(self.values(key, name).mean())


def arms_of(rows: Sequence[Row]) -> list[str]:
    """The base model first, then the arms as they were trained."""
    return [BASE, *dict.fromkeys(row["arm"] for row in rows if row["arm"] != BASE)]


def told(found: Compared | Mapping[str, float | None], digits: int = 3, *, signed: bool = True) -> str:
    """A value with its 95 % interval, or with a word where there is none."""
    value, low, high = (
        (found["value"], found["low"], found["high"])
        if isinstance(found, Mapping)
        else (found.value, found.low, found.high)
    )
    if value is None:
        return "–"
    sign = "+" if signed else ""
    if low is None or high is None:
        return f"{value:{sign}.{digits}f} (no interval)"
    return f"{value:{sign}.{digits}f} [{low:{sign}.{digits}f}, {high:{sign}.{digits}f}]"


def resampled(statistic: Callable[[Floats], Floats], n: int, *, seed: int = 0) -> Compared:
    """A number that is no mean over problems: `statistic` takes weights of the problems (D, P) and gives (S, D), a row per seed.

    The value is the mean over seeds; the interval resamples problems and adds the spread of the seeds, from 3 of them on.
    """
    each_S = statistic(np.ones((1, n)))[:, 0]
    weights_DP = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=DRAWS).astype(np.float64)
    drawn_D = statistic(weights_DP).mean(axis=0)
    value, how = float(each_S.mean()), f"{DRAWS} resamples of problems"
    if not np.isfinite(drawn_D).all():
        per_seed = tuple(map(float, each_S))
        return Compared(value, None, None, n, per_seed, None, f"{how}; no interval: not always defined")
    return over_resamples(value, each_S, drawn_D, n, how)
