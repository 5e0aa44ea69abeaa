"""What the catalogue says of a method is what the committed results say, by the one rule in `benchmarks/statuses.py`."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import statuses
from benchmarks.statuses import Comparison, compared, read_comparisons, status_of, write_table
from equipoise.catalogue.table import methods
from equipoise.lab.study_outcomes import COUNTS

ROOT = Path(__file__).parents[1]
ABOVE, BELOW, NEITHER, UNKNOWN = (0.1, 0.3), (-0.3, -0.1), (-0.1, 0.1), (None, None)


def on(family: str, interval: tuple[float | None, float | None]) -> Comparison:
    return Comparison("x", "majority", "benchmarks/x", family, "pool", "at", *interval)


@pytest.mark.parametrize(
    ("found", "status"),
    [
        ([], "untested"),
        ([("a", UNKNOWN)], "neutral"),
        ([("a", NEITHER), ("b", BELOW)], "neutral"),
        ([("a", (0.0, 0.2)), ("b", NEITHER)], "neutral"),  # it reaches to 0
        ([("a", ABOVE)], "mixed"),
        ([("a", ABOVE), ("a", ABOVE)], "mixed"),  # one family, however often
        ([("a", ABOVE), ("b", NEITHER)], "mixed"),
        ([("a", ABOVE), ("b", ABOVE), ("b", NEITHER), ("c", UNKNOWN)], "proven"),
        ([("a", ABOVE), ("b", ABOVE), ("b", BELOW)], "mixed"),
        ([("a", ABOVE), ("b", ABOVE), ("c", (-0.2, 0.0))], "proven"),  # it reaches to 0
    ],
)
def test_the_rule(found, status):
    assert status_of([on(*each) for each in found]) == status


@pytest.mark.parametrize("loop", ["inference", "training"])
def test_every_method_says_what_the_results_say_and_where_they_are(loop):
    comparisons = compared(loop)
    told = {m.name: (m.status, m.results) for m in methods() if m.loop == loop}
    found = {}
    for name in told:
        mine = comparisons.get(name, [])
        found[name] = (status_of(mine), tuple(dict.fromkeys(each.results for each in mine)))
    assert told == found
    for _, folders in told.values():
        assert all((ROOT / folder / "results.json").is_file() for folder in folders)


def test_every_comparison_is_of_a_method_of_the_catalogue():
    assert {each.method for each in read_comparisons()} <= {method.name for method in methods()}


@pytest.mark.parametrize(
    ("method", "pool", "at", "low", "high"),
    [  # as the pages print them, in points or shares
        ("particles", "packaged on countdown", "checker", 0.091, 0.189),
        ("particles", "packaged on countdown", "checker, 30% noise", 0.051, 0.199),
        ("beam", "packaged on countdown", "rollouts", -0.263, -0.147),
        ("beam", "packaged:thinker on countdown:numbers=3", "checker", None, None),
        ("revision", "preserved policy, hard trips", "revision, one chain, 900 tokens", 0.051, 0.189),
        ("revision", "collapsed policy, trips", "revision, one chain, 100 tokens", -0.140, -0.020),
        ("mind_evolution", "collapsed policy, hard trips", "Mind Evolution, 4 islands, 100 tokens", 0.010, 0.100),
        ("decoded", "base model", "repel=0.3, T=0.6", -0.004, 0.032),
        ("decoded", "medium model", "grpo: proxy, alpha=0.5", -0.094, -0.029),
        ("diverse_prompts", "base model", "8 orders of the numbers, T=0.3", 0.002, 0.068),
        ("diverse_prompts", "collapsed model", "8 orders of the numbers, T=0.6", None, None),
        # one − vote 0.365 [0.328, 0.402]; accuracy − own end -0.604 [-0.632, -0.575]
        ("parallel", "thinker on countdown:numbers=3", "4 × 0 in 192", -0.402, -0.328),
        ("budget_forcing", "thinker on countdown:numbers=3", "forced to 192", -0.632, -0.575),
        # the vote of fewer is the best peer: +46.7 % [+41.4, +52.1] of all tokens
        ("settled", "game24", "accuracy ≤ 0.005", -0.521, -0.414),
        # to the best peer -1.8 % [-2.3, -1.2], the vote of fewer +39.8 % [+37.2, +42.4]: 37.2 + 1.2 and 42.4 + 2.3
        ("settled", "countdown", "disagreement ≤ 0.01", 0.384, 0.447),
        # it is the best peer itself
        ("adaptive_consistency", "game24", "disagreement ≤ 0.01", 0.208, 0.331),
        ("adaptive_consistency", "cruxeval", "accuracy ≤ 0.005", None, None),
        # an arm against plain GRPO, against the arm with as many updates, and against the one with the same pool of problems
        ("entropy_budget", "entropy_budget", "pass@64", 0.084, 0.171),
        ("clip_higher", "clip_higher", "pass@1", 0.007, 0.043),
        ("curriculum", "curriculum", "pass@64", -0.109, 0.051),
    ],
)
def test_the_intervals_are_those_of_the_pages(method, pool, at, low, high):
    (found,) = [c for c in read_comparisons() if (c.method, c.pool, c.at) == (method, pool, at)]
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.0015)


def test_arms_that_are_baselines_or_were_used_to_choose_are_not_counted():
    counts = {}
    for each in read_comparisons():
        counts[each.method, each.results] = counts.get((each.method, each.results), 0) + 1
    assert counts["decoded", "benchmarks/decoding"] == 2 * 5  # both models, five families, of "test" alone
    assert counts["decoded", "benchmarks/proxy"] == 3  # not the expert nor the target
    assert counts["mind_evolution", "benchmarks/evolution"] == 4 * 3 * 2  # best of N has its name, and is the baseline
    assert counts["settled", "benchmarks/infer"] == 4 * 4
    assert sum(n for (_, folder), n in counts.items() if folder == "benchmarks/steps") == 17 + 6
    # pass@1 and pass@64: against GRPO, and with a KL against that KL alone
    assert counts["batch_exploration", "studies/results/collapse"] == 2 * 2
    # the exact one and k3 against GRPO, the exact one with batch exploration against that alone
    assert counts["kl", "studies/results/collapse"] == 3 * 2
    assert counts["adaptive_entropy", "studies/results/collapse"] == 2  # though its arm has the term that it moves
    assert ("entropy_bonus", "studies/results/smollm2") not in counts


def test_a_status_falls_with_its_file(tmp_path, monkeypatch):
    """Every gain of the step searches taken away: none of them is above the baseline any more."""
    for path in (ROOT / "benchmarks").glob("*/results.json"):
        (tmp_path / path.parent.name).mkdir()
        (tmp_path / path.parent.name / "results.json").symlink_to(path)
    changed = json.loads((ROOT / "benchmarks/steps/results.json").read_text())
    for world in changed["worlds"]:
        for arm in world["arms"]:
            arm["minus_best_of_n"] |= {"low": -0.01, "high": 0.01}
    (tmp_path / "steps/results.json").unlink()
    (tmp_path / "steps/results.json").write_text(json.dumps(changed))
    monkeypatch.setattr(statuses, "HERE", tmp_path)
    mine = {name: [c for c in read_comparisons() if c.method == name] for name in ("particles", "settled")}
    assert {name: status_of(found) for name, found in mine.items()} == {"particles": "neutral", "settled": "mixed"}


@pytest.mark.parametrize(("loop", "page"), [("inference", "docs/infer.md"), ("training", "docs/control.md")])
def test_the_table_in_the_page_is_that_of_the_results(loop, page):
    assert write_table(loop) in (ROOT / page).read_text()


def recipe(method: dict, **settings) -> dict:
    return {
        "settings": {
            "task": "countdown",
            "method": method,
            "learning": {"steps": 4},
            "sampling": {"prompts": 8},
            **settings,
        }
    }


@pytest.mark.parametrize(
    ("mine", "other", "more"),
    [
        (recipe({"bonuses": ["a", "b:x=1"]}), recipe({"bonuses": ["a"]}), True),
        (recipe({"bonuses": ["a"]}), recipe({"bonuses": ["a", "b"]}), False),
        (recipe({"bonuses": ["a:x=2", "b"]}), recipe({"bonuses": ["a:x=1"]}), False),  # not the same a
        (recipe({"bonuses": ["a"], "advantage": "c"}), recipe({"bonuses": [], "advantage": "d"}), False),
        (recipe({"bonuses": ["a"]}, learning={"steps": 3}), recipe({"bonuses": []}), True),
        (recipe({"bonuses": ["a"]}, seed=1), recipe({"bonuses": []}, seed=2), False),
        (recipe({"allocation": "a"}, sampling={"prompts": 6}), recipe({"allocation": None}), True),
        (recipe({"allocation": None}), recipe({"allocation": "a"}), False),
    ],
)
def test_an_arm_is_compared_with_one_that_has_all_but_a_method(mine, other, more):
    assert statuses._has_more(mine, other) is more


@pytest.mark.parametrize(
    ("mine", "other", "alike"),
    [
        (recipe({"surrogate": "b"}), recipe({"surrogate": "a"}), True),
        (recipe({"surrogate": "b"}, sampling={"prompts": 6, "refills": 3}), recipe({"surrogate": "a"}), True),
        (recipe({"surrogate": "b"}, sampling={"prompts": 8, "temperature": 0.5}), recipe({"surrogate": "a"}), False),
        (recipe({"surrogate": "b"}, learning={"steps": 4, "lr": 0.1}), recipe({"surrogate": "a"}), False),
    ],
)
def test_arms_that_train_otherwise_say_nothing_of_a_method(mine, other, alike):
    assert statuses._trains_alike(mine, other) is alike


@pytest.mark.parametrize(
    ("mine", "other", "found"),
    [
        ({"surrogate": "b:x=1", "regularisers": []}, {"surrogate": "a", "regularisers": []}, "b"),
        ({"surrogate": "a", "regularisers": ["c:x=1"]}, {"surrogate": "a", "regularisers": []}, "c"),
        ({"surrogate": "b", "regularisers": ["c"]}, {"surrogate": "a", "regularisers": ["c"]}, "b"),
        ({"surrogate": "b", "regularisers": []}, {"surrogate": "a", "regularisers": ["c"]}, None),  # it lacks c too
        ({"surrogate": "b", "regularisers": ["c"]}, {"surrogate": "a", "regularisers": []}, None),
    ],
)
def test_arms_that_differ_by_one_method_are_compared(mine, other, found):
    assert statuses._one_method({"controllers": []} | mine, {"controllers": []} | other) == found


def test_what_a_study_does_not_compare_is_compared_problem_by_problem(tmp_path):
    # Two problems and two samples: 1 of 2 and 2 of 2 right against 0 and 1, at temperature 1.
    rows = [
        ("a", 0, 0.5, "p", 2),
        ("a", 0, 0.5, "q", 0),
        ("a", 0, 1.0, "p", 1),
        ("a", 0, 1.0, "q", 2),
        ("b", 0, 0.5, "p", 2),
        ("b", 0, 0.5, "q", 2),
        ("b", 0, 1.0, "p", 0),
        ("b", 0, 1.0, "q", 1),
    ]
    names = ("arm", "seed", "temperature", "problem", "correct")
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    columns |= {name: [2.0] * len(rows) for name in COUNTS if name != "correct"}
    pq.write_table(pa.table(columns), tmp_path / "problems.parquet")
    assert statuses._passed(tmp_path, "a", 1.0, 1).tolist() == [[0.5, 1.0]]
    assert statuses._passed(tmp_path, "b", 1.0, 2).tolist() == [[0.0, 1.0]]
    kept = {"arm": "a", "against": "b", "temperature": 1.0, "name": "pass@1", "low": 0.25, "high": 0.75}
    assert statuses._paired({"differences": [kept], "headline": 1.0}, tmp_path, "a", "b", 1) == kept


@pytest.mark.parametrize(("seeds", "counts"), [([20, 21, 22], True), ([20, 21], False)])
def test_a_trial_of_fewer_than_three_seeds_does_not_count(tmp_path, monkeypatch, seeds, counts):
    real, folder = ROOT / "studies/results/frontier-small", tmp_path / "studies/results/one"
    folder.mkdir(parents=True)
    (folder / "problems.parquet").symlink_to(real / "problems.parquet")
    (folder / "results.json").write_text(json.dumps(json.loads((real / "results.json").read_text()) | {"seeds": seeds}))
    monkeypatch.setattr(statuses, "HERE", tmp_path / "benchmarks")
    assert bool(list(statuses._studies())) is counts
