"""Does a cure of the training loop cure the inference loop, or the other way round? {plain, preserved} × {overlong, parallel}.

    python -m benchmarks.findings.two_loops make         trains studies/two-loops.toml, asks its policies, 8 minutes of an H200
    python -m benchmarks.findings.two_loops              the tables, from studies/results/two-loops/thinking.parquet

Training loop: plain GRPO against an exact KL with batch exploration; its failure is fewer different answers, and a lower pass@8. Inference loop: one
thought forced past its own end to 192 tokens against votes of capped thoughts of no more tokens in all, with the cap and number of
votes that did best on the tuning split; its failure is accuracy lost, and answer entropy gained, against the thought that ends by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.findings.outcomes import Cells, arms_of, told
from benchmarks.findings.policies import Row, ask_all, asked, load_study, policies_of, read_rows, run_study
from benchmarks.findings.studied import Floats, table
from benchmarks.findings.thinking import KEY, Thinking, Vote, think, vote_against
from equipoise.lab.study_config import BASE
from equipoise.lab.study_numbers import difference, mean_over

STUDY, FILE = "two-loops", "thinking.parquet"
OVERLONG = 192
PASS = "pass@8"
PLAIN, PRESERVED = "grpo", "preserved"


class Loops:
    """The cells of the table at one temperature."""

    def __init__(self, rows: Sequence[Row], temperature: float) -> None:
        self.cells, self.temperature, self.arms = Cells(rows, KEY), temperature, arms_of(rows)
        self.samples = int(rows[0]["drawn"])
        self.votes = {arm: self._vote(arm) for arm in self.arms}

    def _vote(self, arm: str) -> Vote:
        return vote_against(self.cells, arm, self.temperature, ("forced", OVERLONG), samples=self.samples)

    def key(self, arm: str, way: str) -> tuple[object, ...]:
        """`way`: own, overlong or parallel."""
        if way == "parallel":
            mode, budget = self.votes[arm].mode, self.votes[arm].cap
        else:
            mode, budget = ("own", OVERLONG) if way == "own" else ("forced", OVERLONG)
        return arm, self.temperature, "test", mode, budget

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
    """Both failures in every policy: what forcing does, and what training took of the answers."""
    heads = (
        "training",
        "overlong − own: accuracy",
        "answer entropy",
        "parallel − overlong: accuracy",
        f"{PASS} − base: own",
        "overlong",
        "parallel",
        "different answers − base: own",
    )
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
                    for name, way in ((PASS, "own"), (PASS, "overlong"), (PASS, "parallel"), ("distinct", "own"))
                ),
            )
            for arm in loops.arms
        ],
    )


def _cures(loops: Loops) -> str:
    heads = ("does it cure the other loop's failure?", "accuracy", "answer entropy", PASS, "different answers")
    names = ("accuracy", "entropy", PASS, "distinct")
    rows = [
        ("preserved − plain, overlong", *(loops.trained("overlong", n, arm=PRESERVED, against=PLAIN) for n in names)),
        ("preserved − plain, parallel", *(loops.trained("parallel", n, arm=PRESERVED, against=PLAIN) for n in names)),
        ("interaction, overlong − own", *(loops.interaction("overlong", "own", n) for n in names)),
        ("interaction, parallel − overlong", *(loops.interaction("parallel", "overlong", n) for n in names)),
    ]
    return table(heads, rows)


def main() -> None:
    given = asked(__doc__ or "")
    config = load_study(STUDY, given.settings)
    if given.verb == "make":
        run_study(config, jobs=given.jobs)
        how = Thinking.asked(given)
        ask_all(think, policies_of(config), how, config.out / FILE, jobs=given.jobs)
    print(tables(read_rows(config.out / FILE)))


if __name__ == "__main__":
    main()
