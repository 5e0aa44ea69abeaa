"""How often a stopping rule stops on the wrong answer when it is looked at after every vote.

    python -m benchmarks.stopping.run [--questions 20000] [--cap 40] [--seed 20260101]

A world is a distribution of answers. For each of `--questions` questions `--cap` votes are drawn from it, and every rule reads
the same votes from the first on until it stops. Writes `results.json` and `README.md` beside this file.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import log
from pathlib import Path

import numpy as np
from scipy.stats import binomtest

from equipoise.infer.stopping import beta_posterior, doubling_batches, log_e_value, log_needed

HERE = Path(__file__).parent
ALPHA = 0.05

WORLDS: dict[str, tuple[float, ...]] = {
    "50/50": (0.5, 0.5),
    "45/55": (0.55, 0.45),
    "three alike": (1 / 3,) * 3,
    "five near ties": (0.21, 0.2, 0.2, 0.2, 0.19),
    "twenty alike": (0.05,) * 20,
    "two alike and a tail": (0.3, 0.3, *(0.02,) * 20),
    "60/40": (0.6, 0.4),
    "70/30": (0.7, 0.3),
    "60 and two of 20": (0.6, 0.2, 0.2),
    "50 and a tail": (0.5, *(0.05,) * 10),
    "90/10": (0.9, 0.1),
    "one answer": (1.0,),
}


@dataclass(frozen=True, slots=True)
class Votes:
    """Counts after every vote. Axes: Q questions, N votes, A answers."""

    given_QN: np.ndarray
    most_QN: np.ndarray
    next_QN: np.ndarray
    leader_QN: np.ndarray
    place_QN: np.ndarray  # of the leader in the order of first sight, from 0


@dataclass(frozen=True, slots=True)
class Stops:
    """Where a rule first stops, counted from 1, and on which answer; 0 and −1 where it does not."""

    at_Q: np.ndarray
    answer_Q: np.ndarray


@dataclass(frozen=True, slots=True)
class Row:
    world: str
    rule: str
    questions: int
    cap: int
    early: float  # share that stopped before the cap
    wrong: float  # share that stopped before the cap on an answer that is not the only most likely one
    wrong_low: float
    wrong_high: float
    samples: float  # mean
    samples_se: float


def draw_votes(shares: tuple[float, ...], *, questions: int, cap: int, rng: np.random.Generator) -> Votes:
    given_QN = rng.choice(len(shares), size=(questions, cap), p=np.asarray(shares) / sum(shares))
    return count_votes(given_QN, len(shares))


def count_votes(given_QN: np.ndarray, answers: int) -> Votes:
    one_hot_QNA = given_QN[:, :, None] == np.arange(max(answers, 2))
    counts_QNA = np.cumsum(one_hot_QNA, axis=1, dtype=np.int16)
    top_QN2 = np.partition(counts_QNA, -2, axis=2)[:, :, -2:]
    leader_QN = counts_QNA.argmax(axis=2)
    first_QA = np.where(one_hot_QNA.any(axis=1), one_hot_QNA.argmax(axis=1), given_QN.shape[1])
    place_QA = first_QA.argsort(axis=1, kind="stable").argsort(axis=1)
    return Votes(
        given_QN, top_QN2[:, :, 1], top_QN2[:, :, 0], leader_QN, np.take_along_axis(place_QA, leader_QN, axis=1)
    )


def first_stop(stops_QN: np.ndarray, answer_QN: np.ndarray) -> Stops:
    stopped_Q, index_Q = stops_QN.any(axis=1), stops_QN.argmax(axis=1)
    answer_Q = np.take_along_axis(answer_QN, index_Q[:, None], axis=1)[:, 0]
    return Stops(np.where(stopped_Q, index_Q + 1, 0), np.where(stopped_Q, answer_Q, -1))


def looked_up(rule: Callable[[int, int], bool], votes: Votes) -> np.ndarray:
    """A rule of two counts, asked once for each pair."""
    cap = votes.given_QN.shape[1]
    table = np.array([[rule(a, b) if b <= a else False for b in range(cap + 1)] for a in range(cap + 1)])
    return np.asarray(table[votes.most_QN, votes.next_QN])


def stop_by_beta(votes: Votes, *, threshold: float = 0.95) -> Stops:
    return first_stop(looked_up(lambda a, b: beta_posterior(a, b) >= threshold, votes), votes.leader_QN)


def stop_by_doubling(votes: Votes, *, share: float = 0.75) -> Stops:
    n_N = np.arange(1, votes.given_QN.shape[1] + 1)
    looks_N = np.isin(n_N, np.cumsum(list(doubling_batches(len(n_N)))))
    return first_stop((votes.most_QN >= share * n_N) & looks_N, votes.leader_QN)


def stop_by_window(votes: Votes, *, window: int = 5) -> Stops:
    questions, cap = votes.given_QN.shape
    stops_QN = np.zeros((questions, cap), dtype=bool)
    for end in range(window, cap + 1, window):
        stops_QN[:, end - 1] = (votes.given_QN[:, end - window : end] == votes.given_QN[:, end - 1 : end]).all(axis=1)
    return first_stop(stops_QN, votes.given_QN)


def stop_by_plain_e_value(votes: Votes, *, alpha: float = ALPHA) -> Stops:
    return first_stop(looked_up(lambda a, b: log_e_value(a, b) >= -log(alpha), votes), votes.leader_QN)


def stop_by_certificate(votes: Votes, *, alpha: float = ALPHA) -> Stops:
    stops_QN = np.zeros(votes.given_QN.shape, dtype=bool)
    for place in range(int(votes.place_QN.max()) + 1):
        needed = log_needed(place, alpha=alpha)
        stops_QN |= looked_up(lambda a, b, c=needed: log_e_value(a, b) >= c, votes) & (votes.place_QN == place)  # type: ignore[misc]
    return first_stop(stops_QN, votes.leader_QN)


RULES: dict[str, Callable[[Votes], Stops]] = {
    "Beta ≥ 0.95 (Adaptive-Consistency)": stop_by_beta,
    "doubling, 75 % agree (its_hub)": stop_by_doubling,
    "window of 5 agrees (ESC)": stop_by_window,
    "e-value ≥ 20, any leader": stop_by_plain_e_value,
    "certificate (anytime)": stop_by_certificate,
}


def measure(world: str, rule: str, votes: Votes) -> Row:
    questions, cap = votes.given_QN.shape
    shares = WORLDS[world]
    modes = [answer for answer, share in enumerate(shares) if share == max(shares)]
    stops = RULES[rule](votes)
    early_Q = (stops.at_Q > 0) & (stops.at_Q < cap)
    wrong_Q = early_Q & ((stops.answer_Q != modes[0]) | (len(modes) > 1))
    samples_Q = np.where(stops.at_Q > 0, stops.at_Q, cap)
    low, high = binomtest(int(wrong_Q.sum()), questions).proportion_ci(method="wilson")
    error = float(samples_Q.std(ddof=1) / np.sqrt(questions))
    return Row(
        world,
        rule,
        questions,
        cap,
        float(early_Q.mean()),
        float(wrong_Q.mean()),
        low,
        high,
        float(samples_Q.mean()),
        error,
    )


def run(*, questions: int, cap: int, seed: int) -> list[Row]:
    rows = []
    for number, (world, shares) in enumerate(WORLDS.items()):
        votes = draw_votes(shares, questions=questions, cap=cap, rng=np.random.default_rng([seed, number]))
        rows += [measure(world, rule, votes) for rule in RULES]
    return rows


ABOUT = """# Stopping rules under peeking

How often does a rule stop on the wrong answer, when it is looked at after every vote?

The certificate of `anytime` keeps its error: at most 5 % of questions were to end with a false one, and at most {worst:.1%} did
({worst_world}). The threshold 0.95 of the Beta rule is no such bound: at 45/55 it stops on the wrong answer for {beta:.0%} of
questions, doubling batches for {doubling:.0%}, windows for {window:.0%}. What the certificate costs is in the last rows: where
the model always gives one answer it takes {certificate:.0f} votes, the Beta rule {beta_votes:.0f}; where two answers are near it
mostly goes on to the cap.

"Wrong" is an answer that is not the only most likely one, so that where several are equally likely every stop is wrong. An
e-value of 20 is enough for an answer that is named beforehand, not for the one that happens to lead: it stays below 5 % here, but
not with more votes. At 50/50, over all paths of votes, {plain_64:.1%} of questions are certified within 64 votes and
{plain_400:.1%} within 400; by the certificate {certificate_64:.1%} and {certificate_400:.1%}.

{questions:,} questions for each world, at most {cap} votes, seed {seed}; all rules read the same votes. Votes are independent
draws; every completion holds an answer. Stops at the cap itself are not counted as early. 95 % intervals by Wilson.

`python -m benchmarks.stopping.run --questions {questions} --cap {cap} --seed {seed}`

| world | rule | stops early | on a wrong answer | votes, mean ± standard error |
| --- | --- | --- | --- | --- |
"""


def both_alike(rule: Callable[[int, int, int], bool], *, cap: int) -> float:
    """The share of questions on which one of two equally likely answers is certified, over all paths of votes.

    `rule(most, second, place of the leader)`. The paths to equal counts of the answer seen first and the other are one.
    """
    paths, found = {(1, 0): 1.0}, 0.0
    for _ in range(cap):
        after: dict[tuple[int, int], float] = {}
        for (a, b), weight in paths.items():
            if rule(max(a, b), min(a, b), int(b > a)):
                found += weight
                continue
            for step in ((a + 1, b), (a, b + 1)):
                after[step] = after.get(step, 0.0) + weight / 2
        paths = after
    return found


def write(rows: list[Row], *, seed: int) -> str:
    of = {(row.world, row.rule): row for row in rows}
    beta, doubling, window, _, certificate = RULES
    worst = max((row for row in rows if row.rule == certificate), key=lambda row: row.wrong)

    def plain(most: int, second: int, place: int) -> bool:
        return log_e_value(most, second) >= -log(ALPHA)

    def certified(most: int, second: int, place: int) -> bool:
        return log_e_value(most, second) >= log_needed(place, alpha=ALPHA)

    text = ABOUT.format(
        worst=worst.wrong,
        worst_world=worst.world,
        beta=of["45/55", beta].wrong,
        doubling=of["45/55", doubling].wrong,
        window=of["45/55", window].wrong,
        certificate=of["one answer", certificate].samples,
        beta_votes=of["one answer", beta].samples,
        plain_64=both_alike(plain, cap=64),
        plain_400=both_alike(plain, cap=400),
        certificate_64=both_alike(certified, cap=64),
        certificate_400=both_alike(certified, cap=400),
        questions=rows[0].questions,
        cap=rows[0].cap,
        seed=seed,
    )
    for row in rows:
        wrong = f"{row.wrong:.2%} ({row.wrong_low:.2%} to {row.wrong_high:.2%})"
        text += f"| {row.world} | {row.rule} | {row.early:.1%} | {wrong} | {row.samples:.2f} ± {row.samples_se:.2f} |\n"
    return text.replace("%", " %").replace("  %", " %")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=20_000)
    parser.add_argument("--cap", type=int, default=40)
    parser.add_argument("--seed", type=int, default=20260101)
    asked = parser.parse_args()
    rows = run(questions=asked.questions, cap=asked.cap, seed=asked.seed)
    (HERE / "results.json").write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    (HERE / "README.md").write_text(write(rows, seed=asked.seed))


if __name__ == "__main__":
    main()
