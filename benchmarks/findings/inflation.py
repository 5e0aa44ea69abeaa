"""Variance inflation: accuracy and answer entropy of a model that is made to think on, against votes of the same tokens; and after RLCR.

    python -m benchmarks.findings.inflation          the tables: the packaged model from benchmarks/thinker/results.json, the others from
                                                     studies/results/{two-loops,confidence-thinker,inflation-smollm2}/thinking.parquet
                                                     where they are
    python -m benchmarks.findings.inflation make     trains studies/confidence-thinker.toml where it is not trained yet, and asks its policies:
                                                     some 20 minutes of a shared H200

The language model is taught and asked by `benchmarks.findings.inflation_smollm2`.

For the packaged model only the mean of a vote is on record, not its value on every problem: the interval of its difference takes the vote's
variance at its bound, p (1 − p) / n, and no credit for the pairing. It is wider than a paired one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.findings import confidence, inflation_smollm2
from benchmarks.findings.outcomes import Cells, arms_of, told
from benchmarks.findings.policies import Row, ask_all, asked, load_study, policies_of, read_rows
from benchmarks.findings.studied import Floats, table
from benchmarks.findings.thinking import KEY, Thinking, think, vote_against
from equipoise.lab.study_numbers import difference

PACKAGED = Path(__file__).resolve().parents[1] / "thinker" / "results.json"
FILE = "thinking.parquet"
Measured = Mapping[str, Any]
Z = 1.959964


def strongest_vote(capped: Sequence[Measured], tokens: float) -> tuple[int, Measured] | None:
    """The n and the budget with the best vote among those of no more tokens; None: not even one thought fits."""
    offers = [
        (int(n), row)
        for row in capped
        for n in row["vote"]
        if int(n) * row["tokens"] <= tokens  # the number of votes is a power of 2 on record
    ]
    return max(offers, key=lambda offer: offer[1]["vote"][str(offer[0])], default=None)


def less(forced: Measured, vote: float, samples: int) -> dict[str, float | None]:
    """Accuracy of forced thinking minus that of a vote, by the bound on the vote's variance."""
    right_P = np.array(forced["right_P"], dtype=float) / samples
    n = len(right_P)
    half = Z * sqrt(float(right_P.var(ddof=1)) / n + vote * (1 - vote) / n)
    value = float(right_P.mean()) - vote
    return {"value": value, "low": value - half, "high": value + half}


def packaged(measured: Measured) -> str:
    """The committed measurement: every forced budget with the strongest vote of its tokens."""
    own = measured["capped"][-1]
    rows = [_row("own end", own, own, None, measured["samples"])]
    for forced in measured["forced"]:
        vote = strongest_vote(measured["capped"], forced["tokens"])
        rows.append(_row(f"forced to {forced['budget']}", forced, own, vote, measured["samples"]))
    heads = (
        "thinking",
        "tokens",
        "accuracy",
        "answer entropy",
        "accuracy − own end",
        "strongest vote of its tokens",
        "its accuracy",
        "forced − vote",
    )
    return table(heads, rows)


def _row(words: str, row: Measured, own: Measured, vote: tuple[int, Measured] | None, samples: int) -> tuple[str, ...]:
    shown = ("", "", "")
    if vote is not None:
        n, of = vote
        voted = float(of["vote"][str(n)])
        shown = (f"{n} × {of['budget']}", f"{voted:.3f}", told(less(row, voted, samples)))
    change = ""
    if row is not own:
        own_P, mine_P = (np.array([each["right_P"]], dtype=float) / samples for each in (own, row))
        change = told(difference(mine_P, own_P))
    accuracy, entropy = (
        told(row[name], digits, signed=False) for name, digits in (("accuracy", 3), ("answer_entropy", 2))
    )
    return words, f"{row['tokens']:.0f}", accuracy, entropy, change, *shown


class Inflated:
    """What forcing does to every arm at one temperature."""

    def __init__(self, rows: Sequence[Row], temperature: float) -> None:
        self.cells, self.temperature, self.arms = Cells(rows, KEY), temperature, arms_of(rows)
        self.longest = int(max(row["budget"] for row in rows))
        self.samples = int(rows[0]["drawn"])

    def values(self, arm: str, mode: str, name: str) -> Floats:
        return self.cells.values((arm, self.temperature, "test", mode, self.longest), name)

    def grown(self, arm: str, name: str) -> Floats:
        return np.asarray(self.values(arm, "forced", name) - self.values(arm, "own", name))

    def row(self, arm: str) -> tuple[str, ...]:
        vote = vote_against(self.cells, arm, self.temperature, ("forced", self.longest), samples=self.samples)
        voted = self.cells.values((arm, self.temperature, "test", vote.mode, vote.cap), f"maj@{vote.n}")
        cap = "own end" if vote.mode == "own" else str(vote.cap)
        return (
            arm,
            f"{self.values(arm, 'own', 'pass@1').mean():.3f}",
            f"{self.values(arm, 'own', 'entropy').mean():.2f}",
            told(difference(self.grown(arm, "pass@1"), np.zeros(1))),
            told(difference(self.grown(arm, "entropy"), np.zeros(1)), 2),
            f"{vote.n} × {cap}",
            f"{voted.mean():.3f}",
            told(difference(self.values(arm, "forced", "pass@1"), voted)),
        )

    def between(self, arm: str, against: str) -> tuple[str, ...]:
        """How much more forcing changes one arm than another."""
        changes = [difference(self.grown(arm, name), self.grown(against, name)) for name in ("pass@1", "entropy")]
        return f"{arm} − {against}", "", "", told(changes[0]), told(changes[1], 2), "", "", ""


def trained(rows: Sequence[Row], pair: tuple[str, str]) -> str:
    heads = (
        "policy",
        "accuracy, own end",
        "answer entropy",
        "forced − own: accuracy",
        "answer entropy",
        "best vote of its tokens",
        "its accuracy",
        "forced − vote",
    )
    out = []
    for temperature in sorted({row["temperature"] for row in rows}, reverse=True):
        found = Inflated(rows, temperature)
        body = [*map(found.row, found.arms), found.between(*pair)]
        out += [f"T = {temperature:g}, forced to {found.longest}\n", table(heads, body), ""]
    return "\n".join(out)


def main() -> None:
    given = asked(__doc__ or "", numbers={"told": confidence.TOLD})
    config = load_study("confidence-thinker", given.settings)
    if given.verb == "make":
        confidence.make(config, told=given.told, jobs=given.jobs)
        how = Thinking.asked(given)
        ask_all(think, policies_of(config), how, config.out / FILE, jobs=given.jobs)
    print("packaged:thinker, T = 1\n\n" + packaged(json.loads(PACKAGED.read_text())["measured"]))
    loops = load_study("two-loops").out / FILE
    for words, path, pair in (
        ("two-loops", loops, ("preserved", "grpo")),
        ("RLCR", config.out / FILE, ("rlcr", "binary")),
    ):
        if path.exists():
            print(f"\n{words}\n\n{trained(read_rows(path), pair)}")
    language = inflation_smollm2.Taught().out / FILE
    if language.exists():
        print(f"\nSmolLM2\n\n{inflation_smollm2.tables(read_rows(language))}")


if __name__ == "__main__":
    main()
