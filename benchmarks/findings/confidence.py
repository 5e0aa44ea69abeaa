"""RLCR against the binary reward: accuracy, calibration of the stated confidence, and voting with it.

    python -m benchmarks.findings.confidence make              trains studies/confidence.toml and asks, a quarter of an hour on two cores
    python -m benchmarks.findings.confidence make --trips      the same for studies/confidence-trips.toml
    python -m benchmarks.findings.confidence make --thinker    the same for studies/confidence-thinker.toml, on a GPU; trained, not yet asked
    python -m benchmarks.findings.confidence                   the tables, from studies/results/confidence*/stated.parquet

ECE is over the ten confidences that can be stated. AUROC: the chance that a right answer states more than a wrong one, over all problems, and
within a problem, which is all that a vote can use. The weighted vote counts every answer by its confidence; both votes are of all samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.findings.drawing import Drawer
from benchmarks.findings.outcomes import Cells, arms_of, count_batch, resampled, told
from benchmarks.findings.policies import (
    Asking,
    Policy,
    Row,
    ask_all,
    asked,
    load_study,
    policies_of,
    read_rows,
    run_study,
)
from benchmarks.findings.stated import LEVELS, write_told
from benchmarks.findings.studied import Floats, table
from equipoise.base import Grade
from equipoise.lab.study_config import StudyConfig
from equipoise.lab.study_numbers import Compared, difference, mean_over
from equipoise.measures.votes import tally_votes

FILE = "stated.parquet"
KEY = ("arm", "temperature")
TOLD = 4096  # problems whose own completions teach the form


@dataclass(frozen=True, slots=True)
class Stating(Asking):
    samples: int = 32


def ask(policy: Policy, how: Stating) -> list[Row]:
    """Counts of every problem at every temperature: by confidence, and the two votes."""
    drawer = Drawer(policy)
    posed = drawer.task.problems("findings", how.problems, split="test")
    found: list[Row] = []
    for temperature in how.temperatures:
        for batch in drawer.batches(posed, samples=how.samples, temperature=temperature, seed=("findings",)):
            for place, row in enumerate(count_batch(batch, votes=())):
                mine = batch.grades[place * how.samples : (place + 1) * how.samples]
                found.append({"temperature": temperature, **row, **by_confidence(mine), **two_votes(mine, seed=place)})
    return found


def by_confidence(grades: Sequence[Grade]) -> Row:
    """Answers, and right ones, at each of the confidences that can be stated; `unstated` those without one."""
    stated, right = [0] * LEVELS, [0] * LEVELS
    for grade in grades:
        if grade.confidence is not None:
            level = round(grade.confidence * (LEVELS - 1))
            stated[level] += 1
            right[level] += bool(grade.correct)
    return {"stated": stated, "right": right, "unstated": len(grades) - sum(stated)}


def two_votes(grades: Sequence[Grade], *, seed: int) -> Row:
    """1 where the vote is right: every answer alike, and by its confidence, where an answer without one weighs nothing."""
    right = {grade.answer.text for grade in grades if grade.answer is not None and grade.correct}
    answers = [grade.answer for grade in grades]
    plain = tally_votes(answers, seed=seed).winner
    weighted = tally_votes(answers, [grade.confidence or 0.0 for grade in grades], seed=seed).winner
    return {
        "vote": float(plain is not None and plain.text in right),
        "weighted": float(weighted is not None and weighted.text in right),
    }


class Stated:
    """The counts of an arm at a temperature, (S, P, L): L confidences."""

    def __init__(self, rows: Sequence[Row], arm: str, temperature: float) -> None:
        self.cells, self.key = Cells(rows, KEY), (arm, temperature)
        mine = [row for row in rows if (row["arm"], row["temperature"]) == self.key]
        shape = (*self.cells.values(self.key, "drawn").shape, LEVELS)
        self.stated_SPL, self.right_SPL = (
            np.array([row[name] for row in mine], dtype=float).reshape(shape) for name in ("stated", "right")
        )

    def values(self, name: str) -> Floats:
        return self.cells.values(self.key, name)

    @property
    def n(self) -> int:
        return int(self.stated_SPL.shape[1])

    def stated_most(self) -> str:
        """The two confidences that are stated most, and which share of the statements they are: from the lowest to the highest seed."""
        by_seed = self.stated_SPL.sum(axis=1)
        most = np.sort(np.argsort(by_seed.sum(axis=0), kind="stable")[-2:])
        shares = by_seed[:, most].sum(axis=1) / by_seed.sum(axis=1)
        levels = " and ".join(f"{level}/{LEVELS - 1}" for level in most)
        return f"{levels}: {shares.min():.2f} to {shares.max():.2f}"

    def _summed(self, weights_DP: Floats) -> tuple[Floats, Floats]:
        """Stated and right (S, D, L)."""
        stated, right = (np.einsum("dp,spl->sdl", weights_DP, counts) for counts in (self.stated_SPL, self.right_SPL))
        return np.asarray(stated), np.asarray(right)

    def error(self, weights_DP: Floats) -> Floats:
        """ECE = Σ_l n_l / n |q_l − right_l / n_l|, (S, D)."""
        stated, right = self._summed(weights_DP)
        off = np.abs(stated * np.arange(LEVELS) / (LEVELS - 1) - right)
        return np.asarray(off.sum(axis=2) / stated.sum(axis=2))

    def area(self, weights_DP: Floats) -> Floats:
        """AUROC over all problems, ties counting half, (S, D)."""
        stated, right = self._summed(weights_DP)
        wrong = stated - right
        below = np.cumsum(wrong, axis=2) - wrong / 2
        with np.errstate(invalid="ignore"):
            return np.asarray((right * below).sum(axis=2) / (right.sum(axis=2) * wrong.sum(axis=2)))

    def area_within(self, weights_DP: Floats) -> Floats:
        """Mean over the problems with both kinds of the AUROC within each, (S, D)."""
        wrong = self.stated_SPL - self.right_SPL
        below = np.cumsum(wrong, axis=2) - wrong / 2
        pairs = self.right_SPL.sum(axis=2) * wrong.sum(axis=2)
        both = pairs > 0
        each = np.where(both, (self.right_SPL * below).sum(axis=2) / np.where(both, pairs, 1.0), 0.0)
        with np.errstate(invalid="ignore"):
            return np.asarray((each @ weights_DP.T) / (both.astype(float) @ weights_DP.T))


def row(rows: Sequence[Row], arm: str, temperature: float) -> tuple[str, ...]:
    found = Stated(rows, arm, temperature)
    drawn = found.values("drawn").sum()
    gain = difference(found.values("weighted"), found.values("vote"))
    return (
        arm,
        told(mean_over(found.values("pass@1"), bounded=True), signed=False),
        f"{1 - found.values('unstated').sum() / drawn:.3f}",
        found.stated_most(),
        told(resampled(found.error, found.n), signed=False),
        told(resampled(found.area, found.n), signed=False),
        told(resampled(found.area_within, found.n), signed=False),
        f"{found.values('vote').mean():.3f}",
        f"{found.values('weighted').mean():.3f}",
        told(gain),
        f"{found.values('entropy').mean():.2f}",
    )


def change(rows: Sequence[Row], temperature: float) -> tuple[str, ...]:
    """RLCR minus binary, seed by seed on the same problems."""
    new, old = Stated(rows, "rlcr", temperature), Stated(rows, "binary", temperature)

    def of(name: str) -> Compared:
        mine, other = getattr(new, name), getattr(old, name)
        return resampled(lambda weights_DP: mine(weights_DP) - other(weights_DP), new.n)

    return (
        "rlcr − binary",
        told(difference(new.values("pass@1"), old.values("pass@1"))),
        "",
        "",
        *(told(of(name)) for name in ("error", "area", "area_within")),
        told(difference(new.values("vote"), old.values("vote"))),
        told(difference(new.values("weighted"), old.values("weighted"))),
        "",
        told(difference(new.values("entropy"), old.values("entropy")), 2),
    )


def tables(rows: Sequence[Row]) -> str:
    heads = (
        "reward",
        "accuracy",
        "states a confidence",
        "states most",
        "ECE",
        "AUROC",
        "within a problem",
        "vote",
        "weighted vote",
        "weighted − vote",
        "answer entropy",
    )
    out = []
    for temperature in sorted({each["temperature"] for each in rows}, reverse=True):
        body = [row(rows, arm, temperature) for arm in arms_of(rows)]
        out += [f"T = {temperature:g}\n", table(heads, [*body, change(rows, temperature)]), ""]
    return "\n".join(out)


def make(config: StudyConfig, *, jobs: int, told: int = TOLD) -> None:
    """Teach the form, then train both arms."""
    assert config.sft is not None
    assert config.sft.file is not None
    run = config.base
    if not config.sft.file.exists():
        first = replace(policies_of(config)[0], model=run.model, max_tokens=run.sampling.max_tokens - 2)
        write_told(config.sft.file, first, n=told)
    run_study(config, jobs=jobs)


def main() -> None:
    given = asked(__doc__ or "", flags=("thinker", "trips"), numbers={"told": TOLD})
    name = "confidence-thinker" if given.thinker else "confidence-trips" if given.trips else "confidence"
    config = load_study(name, given.settings)
    if given.verb == "make":
        make(config, told=given.told, jobs=given.jobs)
        how = Stating.asked(given)
        ask_all(ask, policies_of(config), how, config.out / FILE, jobs=given.jobs)
    print(tables(read_rows(config.out / FILE)))


if __name__ == "__main__":
    main()
