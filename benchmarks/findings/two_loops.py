"""Does a cure of the training loop cure the inference loop, or the other way round? {plain, preserved} × {overlong, parallel}.

    python -m benchmarks.findings.two_loops make             trains studies/two-loops.toml, asks its policies, 8 minutes of an H200
    python -m benchmarks.findings.two_loops make --trips     the same of studies/two-loops-trips.toml, on two cores
    python -m benchmarks.findings.two_loops [--trips]        the tables, from studies/results/{two-loops,two-loops-trips}/thinking.parquet

Training loop: plain GRPO against an exact KL with batch exploration, on trips against the recipe `preserve`; its failure is fewer different
answers, and a lower pass@8. Inference loop: one thought forced past its own end to 192 tokens against votes of capped thoughts of no more tokens
in all, with the cap and number of votes that did best on the tuning split; its failure is accuracy lost, and answer entropy gained, against the
thought that ends by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.findings.arms import on_curve, read_arms
from benchmarks.findings.inflation_smollm2 import Twice
from benchmarks.findings.inflation_trips import Taught, teach
from benchmarks.findings.outcomes import Cells, arms_of, told
from benchmarks.findings.policies import (
    Row,
    ask_all,
    asked,
    load_study,
    policies_made,
    policies_of,
    read_rows,
    run_study,
)
from benchmarks.findings.studied import Floats, table
from benchmarks.findings.thinking import KEY, Thinking, Vote, think, vote_against
from equipoise.lab.study_config import BASE, StudyConfig
from equipoise.lab.study_numbers import difference, matched_values, mean_over

STUDY, TRIPS, FILE = "two-loops", "two-loops-trips", "thinking.parquet"
OVERLONG = 192
CAPPED = (0, 32)  # on trips, of those of inflation_trips: its votes of 192 tokens are of the lowest
PASS = "pass@8"
PLAIN, PRESERVED = "grpo", "preserved"


class Loops:
    """The cells of the table at one temperature."""

    def __init__(self, rows: Sequence[Row], temperature: float) -> None:
        self.cells, self.temperature, self.arms = Cells(rows, KEY), temperature, arms_of(rows)
        self.samples = int(rows[0]["drawn"])
        self.lowest = min(int(row["budget"]) for row in rows if row["mode"] == "capped")
        self.votes = {arm: self._vote(arm) for arm in self.arms}

    def _vote(self, arm: str) -> Vote:
        return vote_against(self.cells, arm, self.temperature, ("forced", OVERLONG), samples=self.samples)

    def key(self, arm: str, way: str) -> tuple[object, ...]:
        """`way`: own, overlong, parallel, or least: at the lowest cap."""
        vote = self.votes[arm]
        ways = {
            "own": ("own", OVERLONG),
            "overlong": ("forced", OVERLONG),
            "parallel": (vote.mode, vote.cap),
            "least": ("capped", self.lowest),
        }
        return arm, self.temperature, "test", *ways[way]

    def values(self, arm: str, way: str, name: str) -> Floats:
        """(S, P): `accuracy`, of the vote where answers vote, or a column."""
        if name == "accuracy":
            name = f"maj@{self.votes[arm].n}" if way == "parallel" else "pass@1"
        return self.cells.values(self.key(arm, way), name)

    def row(self, arm: str, way: str) -> tuple[str, ...]:
        vote = self.votes[arm]
        accuracy = mean_over(self.values(arm, way, "accuracy"), bounded=True)
        times = vote.n if way == "parallel" else 1
        shown = f"{vote.n} × {'own end' if vote.mode == 'own' else vote.cap}" if way == "parallel" else "1"
        return (
            arm,
            way,
            shown,
            f"{times * self.values(arm, way, 'tokens').mean():.0f}",
            told(accuracy, signed=False),
            f"{self.values(arm, way, 'entropy').mean():.2f}",
            f"{self.values(arm, way, PASS).mean():.3f}",
            f"{self.values(arm, way, 'distinct').mean():.1f}",
        )

    def effect(self, arm: str, to: str, of: str, name: str) -> str:
        """One way minus another of the same policies."""
        return told(difference(self.values(arm, to, name), self.values(arm, of, name)))

    def trained(self, way: str, name: str, *, arm: str, against: str) -> str:
        """One training minus another, asked in the same way."""
        return told(difference(self.values(arm, way, name), self.values(against, way, name)))

    def interaction(self, to: str, of: str, name: str) -> str:
        """(to − of) of the preserved policies minus the same of the plain ones: 0 where the two loops add up."""

        def gain(arm: str) -> Floats:
            return np.asarray(self.values(arm, to, name) - self.values(arm, of, name))

        return told(difference(gain(PRESERVED), gain(PLAIN)))


def tables(rows: Sequence[Row]) -> str:
    out = []
    for temperature in sorted({row["temperature"] for row in rows}, reverse=True):
        loops = Loops(rows, temperature)
        heads = ("training", "inference", "thoughts", "tokens", "accuracy", "answer entropy", PASS, "different answers")
        cells = [loops.row(arm, way) for arm in loops.arms for way in ("own", "overlong", "parallel")]
        out += [f"T = {temperature:g}\n", table(heads, cells), ""]
        out += [_failures(loops), "", _cures(loops), ""]
    return "\n".join(out)


def _failures(loops: Loops) -> str:
    """Both failures in every policy: what forcing does, and what training did, least to answers that hardly thought."""
    ways = {
        "accuracy": ("own", "overlong"),
        PASS: ("own", "overlong", "parallel"),
        "distinct": ("own", "least"),
    }
    told_of = {"accuracy": "accuracy", PASS: PASS, "distinct": "different answers"}
    named = {"least": f"capped at {loops.lowest}"}
    heads = ["training", "overlong − own: accuracy", "answer entropy", "parallel − overlong: accuracy"]
    heads += [f"{told_of[name]} − base: {named.get(way, way)}" for name in ways for way in ways[name]]
    return table(
        heads,
        [
            (
                arm,
                loops.effect(arm, "overlong", "own", "accuracy"),
                loops.effect(arm, "overlong", "own", "entropy"),
                loops.effect(arm, "parallel", "overlong", "accuracy"),
                *(
                    "" if arm == BASE else loops.trained(way, name, arm=arm, against=BASE)
                    for name in ways
                    for way in ways[name]
                ),
            )
            for arm in loops.arms
        ],
    )


def _cures(loops: Loops) -> str:
    heads = ("does it cure the other loop's failure?", "accuracy", "answer entropy", PASS, "different answers")
    names = ("accuracy", "entropy", PASS, "distinct")
    rows = [
        ("preserved − plain, own", *(loops.trained("own", n, arm=PRESERVED, against=PLAIN) for n in names)),
        ("preserved − plain, overlong", *(loops.trained("overlong", n, arm=PRESERVED, against=PLAIN) for n in names)),
        ("preserved − plain, parallel", *(loops.trained("parallel", n, arm=PRESERVED, against=PLAIN) for n in names)),
        ("interaction, overlong − own", *(loops.interaction("overlong", "own", n) for n in names)),
        ("interaction, parallel − overlong", *(loops.interaction("parallel", "overlong", n) for n in names)),
    ]
    return table(heads, rows)


def answers_tables(folder: Path) -> str:
    """pass@1 and different answers of every policy by temperature, with its own end; the latter at equal pass@1.

    A policy that is right more often gives fewer answers for that alone, and so does a cooled one.
    """
    arms = read_arms(folder)
    temperatures = arms[BASE].temperatures

    def cells(arm: str) -> list[str]:
        policies = arms[arm]
        passes_T, distinct_T = (each.mean(axis=(0, 2)) for each in (policies.passes(1), policies.values("distinct")))
        return [f"{right:.3f} / {different:.1f}" for right, different in zip(passes_T, distinct_T, strict=True)]

    def gaps(arm: str, against: str) -> list[str]:
        found = [
            matched_values(arms[arm], arms[against], "distinct", by="pass@1", at=at) for at in range(len(temperatures))
        ]
        return [on_curve(each) for each in found]

    pairs = [(arm, BASE) for arm in arms if arm != BASE] + [(PRESERVED, PLAIN)]
    heads = [f"T = {each:g}" for each in temperatures]
    curves = table(("pass@1 / different answers", *heads), [(arm, *cells(arm)) for arm in arms])
    matches = table(("different answers at equal pass@1", *heads), [(f"{a} − {b}", *gaps(a, b)) for a, b in pairs])
    return f"{curves}\n\n{matches}"


def make(config: StudyConfig, how: Thinking, *, jobs: int) -> None:
    run_study(config, jobs=jobs)
    policies = [each for each in policies_of(config) if each.arm in (BASE, PLAIN, PRESERVED)]
    ask_all(think, [*policies, *policies_made(config)], how, config.out / FILE, jobs=jobs)


def main() -> None:
    given = asked(__doc__ or "", flags=("trips",))
    config = load_study(TRIPS if given.trips else STUDY, given.settings)
    if given.verb == "make" and given.trips:
        taught = Taught(out=Path(config.base.model).parents[1])
        teach(taught, seed=0)
        how = replace(Twice.asked(given), capped=CAPPED, forced=(OVERLONG,), rows=taught.rows)
        make(config, how, jobs=given.jobs)
    elif given.verb == "make":
        make(config, Thinking.asked(given), jobs=given.jobs)
    print(tables(read_rows(config.out / FILE)))
    print(answers_tables(config.out))


if __name__ == "__main__":
    main()
