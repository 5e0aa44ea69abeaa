"""Estimates on excerpts of real rollouts (tests/data/real) against a recomputation by pandas, scipy and enumeration.

Both sides use the canonical form of an answer, which is part of the definition; no arithmetic is shared.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import combinations
from math import comb
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from making import find, run_of
from scipy.stats import entropy, hypergeom

from equipoise.measures.evidence import Options
from equipoise.measures.table import measure_run
from equipoise.rollouts.readers.table import read_run
from equipoise.text.answers import canonical

REAL = Path(__file__).parent / "data" / "real"
SETS = {"game24.parquet": None, "cruxeval.jsonl": None, "math_rm8.parquet": None, "reasoning_gym.parquet": 1.0}
KS = {
    "game24.parquet": (1, 2, 4, 8, 100),
    "cruxeval.jsonl": (1, 2, 5, 10),
    "math_rm8.parquet": (1, 3, 8),
    "reasoning_gym.parquet": (1, 2, 3),
}


def load(name):
    """The rows with the canonical answer, the verdict and the condition (run_id, where there are several)."""
    path = REAL / name
    rows = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_json(path, lines=True, dtype={"answer": str})
    rows["answer"] = [None if pd.isna(answer) else canonical(answer) for answer in rows["answer"]]
    if SETS[name] is not None:
        rows["correct"] = rows["reward"] >= SETS[name]
    return rows


def conditions(rows):
    if "run_id" not in rows:
        return [({}, rows)]
    return [({"run_id": run}, part) for run, part in rows.groupby("run_id")]


@pytest.fixture(scope="module", params=SETS)
def measured(request):
    name = request.param
    options = Options(k=KS[name], solved_at=SETS[name])
    found = measure_run(["passk", "majk", "diversity"], read_run(REAL / name), options=options)
    return name, found, load(name)


def test_excerpts_hold_what_their_source_says():
    assert load("game24.parquet").groupby("prompt_id").size().tolist() == [100] * 20
    assert load("cruxeval.jsonl").groupby("prompt_id").size().tolist() == [10] * 60
    assert load("math_rm8.parquet").groupby("prompt_id").size().tolist() == [8] * 40
    assert load("reasoning_gym.parquet").groupby(["run_id", "env"]).size().tolist() == [150] * 8


def test_pass_at_k(measured):
    name, found, rows = measured
    for at, part in conditions(rows):
        n, c = (part.groupby("prompt_id")["correct"].agg(how) for how in ("size", "sum"))
        for k in KS[name]:
            kept = n >= k
            none = hypergeom.pmf(0, n[kept], c[kept], k)
            every = hypergeom.pmf(k, n[kept], c[kept], k)
            assert find(found["passk"], f"pass@{k}", **at).value == pytest.approx((1 - none).mean(), abs=1e-9)
            assert find(found["passk"], f"pass^{k}", **at).value == pytest.approx(every.mean(), abs=1e-9)
            assert find(found["passk"], f"pass@{k}", **at).n == kept.sum()


def exact_votes(part, ks):
    """maj@k of one problem for each k, by exact integers; by whole subsets where there are few of them."""
    kinds = part.groupby("answer")["correct"].agg(["size", "sum"])
    answers = [None if pd.isna(answer) else answer for answer in part["answer"]]
    sizes, rights = kinds["size"].tolist(), kinds["sum"].tolist()
    share = {answer: Fraction(right, size) for answer, size, right in zip(kinds.index, sizes, rights, strict=True)}
    shares = []
    for k in ks:
        if comb(len(part), k) <= 300:
            shares.append(np.mean([float(_subset_vote(subset, share)) for subset in combinations(answers, k)]))
        else:
            shares.append(_counted_vote(list(share.values()), sizes, answers.count(None), k))
    return shares


def _counted_vote(share, sizes, silent, k):
    """Ways to reach (votes used, lead, leaders, sum over leaders of their share of right rollouts), kind by kind."""
    ways = {(0, 0, 0, Fraction(0)): 1}
    for right, size in zip(share, sizes, strict=True):
        grown = {}
        for (used, lead, leaders, good), n in ways.items():
            for votes in range(min(size, k - used) + 1):
                if votes == 0 or votes < lead:
                    top = (lead, leaders, good)
                else:
                    top = (lead, leaders + 1, good + right) if votes == lead else (votes, 1, right)
                state = (used + votes, *top)
                grown[state] = grown.get(state, 0) + n * comb(size, votes)
        ways = grown
    total = sum(n * comb(silent, k - used) * good / leaders for (used, _, leaders, good), n in ways.items() if leaders)
    return float(total / comb(sum(sizes) + silent, k))


def _subset_vote(subset, right):
    votes = Counter(answer for answer in subset if answer is not None)
    leaders = [answer for answer, n in votes.items() if n == max(votes.values())]
    return sum(right[answer] for answer in leaders) / len(leaders) if leaders else 0.0


def test_maj_at_k(measured):
    name, found, rows = measured
    for at, part in conditions(rows):
        expected, lost = {k: [] for k in KS[name]}, []
        for _, problem in part.groupby("prompt_id"):
            ks = [k for k in KS[name] if k <= len(problem)]
            *votes, full = exact_votes(problem, [*ks, len(problem)])
            for k, vote in zip(ks, votes, strict=True):
                expected[k].append(vote)
            lost.append((1 - full) * problem["correct"].any())
        for k, votes in expected.items():
            assert find(found["majk"], f"maj@{k}", **at).value == pytest.approx(np.mean(votes), abs=1e-9)
        assert find(found["majk"], "majority_wrong", **at).value == pytest.approx(np.mean(lost), abs=1e-9)


def test_diversity(measured):
    name, found, rows = measured
    for at, part in conditions(rows):
        solved = part.groupby("prompt_id")["correct"].transform("any")
        for problems, some in {"all": part, "solved": part[solved], "unsolved": part[~solved]}.items():
            where = {**at, "problems": problems}
            per = [
                problem["answer"].dropna()
                for _, problem in some.groupby("prompt_id")
                if problem["answer"].notna().any()
            ]
            if not per:
                assert find(found["diversity"], "distinct", **where).value is None
                continue
            counts = [answers.value_counts().to_numpy() for answers in per]
            expected = {
                "distinct": [answers.nunique() for answers in per],
                "collision": [_pairs_that_agree(answers) for answers in per if len(answers) > 1],
                "answer_entropy": [entropy(count) + (len(count) - 1) / (2 * count.sum()) for count in counts],
            }
            for k in KS[name][1:]:
                expected[f"distinct@{k}"] = [
                    (1 - hypergeom.pmf(0, count.sum(), count, k)).sum() for count in counts if count.sum() >= k
                ]
            for measure, values in expected.items():
                number = find(found["diversity"], measure, **where)
                if values:
                    assert number.value == pytest.approx(np.mean(values), abs=1e-9)
                assert number.n == len(values)
        silent = part["answer"].isna().groupby(part["prompt_id"]).mean().mean()
        assert find(found["diversity"], "abstained", **at).value == pytest.approx(silent, abs=1e-9)


def _pairs_that_agree(answers):
    same = answers.to_numpy()[:, None] == answers.to_numpy()[None, :]
    return same[~np.eye(len(answers), dtype=bool)].mean()


def test_every_interval_holds_its_value(measured):
    _, found, _ = measured
    for number in (number for estimates in found.estimates.values() for number in estimates):
        if number.low is not None and number.high is not None:
            assert number.low <= number.value <= number.high


def test_two_models_as_run_and_baseline():
    rows = load("reasoning_gym.parquet")
    options = Options(k=(1, 3), solved_at=1.0)
    strong, weak = (_alone(rows, run) for run in ("openai_o3-mini", "meta-llama_llama-3.3-70b-instruct"))
    found = measure_run(["passk"], strong, baseline=weak, options=options)
    mean = rows.pivot_table(index="prompt_id", columns="run_id", values="correct", aggfunc="mean")
    expected = (mean["openai_o3-mini"] - mean["meta-llama_llama-3.3-70b-instruct"]).mean()
    assert find(found["passk"], "pass@1_vs_baseline").value == pytest.approx(expected, abs=1e-9)


def _alone(rows, run):
    return run_of(rows[rows["run_id"] == run].drop(columns="correct").to_dict("records"))
