"""The tables of docs/findings that are made by asking the policies of a study: hand values, and each question asked once, small."""

from __future__ import annotations

import json
from math import log, sqrt

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from benchmarks.findings import buy_back, choices, confidence, difficulty, inflation, two_loops, where
from benchmarks.findings.outcomes import Cells, count_answers, resampled, told
from benchmarks.findings.policies import Policy, load_study, read_rows, write_rows
from benchmarks.findings.stated import Stated, brier_term, part, write_told
from benchmarks.findings.thinking import KEY, Thinking, best_vote, think
from equipoise.base import Answer, Completion, Grade
from equipoise.errors import UsageError
from equipoise.models.language_model import hidden_states
from equipoise.models.loaders import load_model


def grades(*answers: str | None, right: str = "a") -> list[Grade]:
    """One for each answer; None could not be read."""
    return [
        Grade(None, "unparsable", 0.0)
        if text is None
        else Grade(Answer(text), "right" if text == right else "wrong", 1.0)
        for text in answers
    ]


def test_answers_are_counted_by_hand():
    both = [*grades("b", "b", "b", "b"), *grades("a", "a", "b", None)]
    other, row = count_answers(["o", "p"], both, [1, 1, 1, 1, 3, 4, 5, 8], votes=[1, 3, 4])
    assert (other["correct"], other["entropy"], other["maj@4"]) == (0, 0, 0)
    # of the four subsets of three, two hold both a's; in the other two a and b tie
    wanted = {
        "drawn": 4,
        "correct": 2,
        "readable": 3,
        "distinct": 2,
        "tokens": 5,
        "maj@1": 0.5,
        "maj@3": 0.75,
        "maj@4": 1,
    }
    assert {name: row[name] for name in wanted} == pytest.approx(wanted)
    assert row["entropy"] == pytest.approx(log(3) - 2 / 3 * log(2))


def test_nothing_readable_has_no_entropy_and_no_vote():
    (row,) = count_answers(["p"], grades(None, None), [1, 1], votes=[2])
    assert (row["entropy"], row["maj@2"], row["distinct"]) == (0, 0, 0)


def test_cells_stand_by_seed_and_problem():
    rows = [
        {"arm": "grpo", "seed": seed, "problem": problem, "drawn": 4, "correct": correct}
        for seed, problem, correct in [(0, "p", 2), (0, "q", 0), (1, "p", 4), (1, "q", 1)]
    ]
    cells = Cells(rows, ("arm",))
    assert cells.values(("grpo",), "correct").tolist() == [[2, 0], [4, 1]]
    # at least one of two: 1 − 1/6 for two right of four, 1 − 3/6 for one
    assert cells.values(("grpo",), "pass@2") == pytest.approx(np.array([[5 / 6, 0], [1, 1 / 2]]))


def test_rows_may_lack_columns(tmp_path):
    write_rows(tmp_path / "rows.parquet", [{"a": 1}, {"a": 2, "b": [0.5]}])
    assert read_rows(tmp_path / "rows.parquet") == [{"a": 1, "b": None}, {"a": 2, "b": [0.5]}]


def test_a_resampled_number_has_the_spread_of_problems_and_seeds():
    values_SP = np.array([[0.75, 0.75, 0.75, 0.75], [0.0, 0.0, 1.0, 1.0], [0.0, 1.0, 1.0, 0.0]])
    found = resampled(lambda weights_DP: values_SP @ weights_DP.T / weights_DP.sum(axis=1), 4)
    assert found.per_seed == (0.75, 0.5, 0.5)
    assert found.value == pytest.approx(7 / 12)
    assert found.low < found.over_problems[0] < found.over_problems[1] < found.high
    same = resampled(lambda weights_DP: np.ones((3, len(weights_DP))), 4)
    assert (same.value, same.low) == (1, None)


def test_told_says_where_there_is_no_interval():
    assert told({"value": 0.12345, "low": None, "high": None}) == "+0.123 (no interval)"
    assert told({"value": 0.5, "low": 0.25, "high": 1.0}, 2, signed=False) == "0.50 [0.25, 1.00]"


def test_settings_for_one_of_several_studies():
    config = load_study("two-loops", ["two-loops:seeds=[7]", "buy-back:seeds=[8]", "base.learning.steps=3"])
    assert (config.seeds, config.base.learning.steps) == ((7,), 3)


@pytest.mark.parametrize(
    "name",
    [
        *("two-loops", "buy-back", "where", "history", "difficulty", "confidence", "confidence-thinker"),
        "buy-back-recipe",
        *("two-loops-trips", "where-trips", "history-trips", "difficulty-trips", "confidence-trips"),
        *("choices-free", "choices-choice", "choices-letters"),
    ],
)
def test_the_studies_are_well_formed(name):
    config = load_study(name)
    assert len(config.seeds) >= 3
    assert config.evaluation.temperatures == (0.3, 0.6, 0.8, 1.0, 1.3, 1.6)


# Thinking -----------------------------------------------------------------------------------------------------------------


def cell(arm: str, split: str, mode: str, budget: int, *, seed: int = 0, problem: str = "p", **values: float) -> dict:
    at = {
        "arm": arm,
        "seed": seed,
        "temperature": 1.0,
        "split": split,
        "mode": mode,
        "budget": budget,
        "problem": problem,
    }
    return at | {"drawn": 4, "correct": 0, "entropy": 0.0, "tokens": 1.0} | values


def test_the_vote_is_chosen_among_those_that_the_tokens_pay_for():
    rows = [
        cell("base", "tune", "own", 192, tokens=60, **{"maj@3": 0.6}),
        cell("base", "tune", "capped", 16, tokens=50, **{"maj@4": 0.7}),
        cell("base", "tune", "capped", 8, tokens=20, **{"maj@4": 0.65}),  # ten would fit: four were drawn
        cell("base", "tune", "capped", 96, tokens=201, **{"maj@1": 0.9}),
        cell("base", "tune", "forced", 64, tokens=10, **{"maj@4": 1.0}),
    ]
    found = best_vote(Cells(rows, KEY), "base", 1.0, 200.0, samples=4)
    assert (found.n, found.cap, found.mode, found.tokens) == (4, 16, "capped", 200)


def make_loops() -> two_loops.Loops:
    """Two problems. Right of four at the own end and overlong; a vote of two is right more often by .2 than is written here."""
    rows = []
    right = {"base": (2, 1, 0.5), "grpo": (3, 1, 0.75), "preserved": (3, 2, 0.6)}
    for arm, (own, forced, vote) in right.items():
        for seed in (None,) if arm == "base" else (0, 1, 2):
            for split in ("tune", "test"):
                for problem in "pq":
                    at = {"seed": seed, "problem": problem}
                    rows += [
                        cell(arm, split, "own", 192, tokens=150, correct=own, entropy=1.0, **at, **{"maj@1": own / 4}),
                        cell(arm, split, "forced", 192, tokens=200, correct=forced, entropy=2.0, **at),
                        cell(
                            arm, split, "capped", 8, tokens=100, correct=2, **at, **{"maj@1": 0.0, "maj@2": vote + 0.2}
                        ),
                    ]
    return two_loops.Loops(rows, 1.0)


def test_an_interaction_is_a_difference_of_differences():
    loops = make_loops()
    assert loops.votes["grpo"].n == 2
    assert loops.effect("grpo", "overlong", "own", "accuracy").startswith("-0.500")
    assert loops.effect("grpo", "overlong", "own", "entropy").startswith("+1.000")
    # voting gains .95 − .25 with plain training and .8 − .5 with preserved
    assert loops.interaction("parallel", "overlong", "accuracy").startswith("-0.400")
    assert loops.trained("overlong", "accuracy", arm="preserved", against="grpo").startswith("+0.250")


def test_one_thought_answers_at_every_budget():
    how = Thinking(problems=2, tune=1, samples=2, temperatures=(1.0,), capped=(4, 64), forced=(4, 64))
    rows = think(Policy("base", None, "packaged:thinker", "countdown:numbers=3", "cpu", 20), how)
    by = {(row["split"], row["problem"], row["mode"], row["budget"]): row for row in rows}
    assert len(by) == len(rows) == (2 + 1) * 5
    ended = 0
    for split, problem in {key[:2] for key in by}:
        own, long, short, forced = (
            by[split, problem, *way] for way in (("own", 64), ("capped", 64), ("capped", 4), ("forced", 64))
        )
        counts = [{name: value for name, value in row.items() if name not in ("mode", "budget")} for row in (own, long)]
        assert counts[0] == counts[1]  # the largest cap is no cap
        assert short["tokens"] <= 4 + 2 + 20  # both marks, and an answer
        assert forced["tokens"] >= 64 + 2 + 1
        ended += long["tokens"] < 64
    assert ended  # some thought came to its own end


def test_the_strongest_vote_of_the_packaged_model():
    capped = [
        {"budget": 0, "tokens": 10.0, "vote": {"1": 0.3, "4": 0.45, "8": 0.5}},
        {"budget": 64, "tokens": 50.0, "vote": {"1": 0.6}},
    ]
    assert inflation.strongest_vote(capped, 49.0) == (4, capped[0])
    assert inflation.strongest_vote(capped, 50.0) == (1, capped[1])
    assert inflation.strongest_vote(capped, 9.0) is None


def test_the_interval_of_a_vote_without_its_problems_takes_the_largest_variance():
    found = inflation.less({"right_P": [0, 4, 4, 0]}, 0.8, 4)
    assert found["value"] == pytest.approx(-0.3)
    assert found["high"] == pytest.approx(-0.3 + 1.959964 * sqrt((1 / 3 + 0.16) / 4))


# Samples ------------------------------------------------------------------------------------------------------------------


def test_between_two_numbers_of_samples_lies_a_straight_line_in_log_k():
    cells = Cells([{"arm": "a", "seed": 0, "maj@2": 0.2, "maj@4": 0.4, "drawn": 4, "correct": 1}], ("arm",))
    assert buy_back.at_samples(cells, ("a",), "maj", sqrt(8)) == pytest.approx(np.array([[0.3]]))
    assert buy_back.at_samples(cells, ("a",), "maj", 4) == pytest.approx(np.array([[0.4]]))
    assert buy_back.at_samples(cells, ("a",), "pass", 2) == pytest.approx(np.array([[0.5]]))


def test_samples_that_cost_more_tokens_are_fewer():
    rows = []
    for arm, tokens in (("base", 10.0), ("grpo", 20.0)):
        for split in ("tune", "test"):
            for problem in "pq":
                row = {"arm": arm, "seed": None if arm == "base" else 0, "temperature": 1.0, "split": split}
                row |= {"problem": problem, "drawn": 4, "correct": 2, "tokens": tokens, "entropy": 1.0}
                rows.append(row | {f"maj@{k}": k / 8 for k in (1, 2, 3, 4)})
    found = buy_back.curve(rows, "direct", 1.0)
    assert [(row[1], row[2], row[3], row[6]) for row in found] == [
        ("10", "base at 1", "1", "0.125"),
        ("20", "grpo at 1", "1", "0.125"),  # less than one cannot be drawn
        ("40", "base at 1", "4", "0.500"),
        ("40", "grpo at 1", "2", "0.250"),
    ]


def test_samples_are_drawn_at_every_temperature():
    how = buy_back.Drawing(problems=2, tune=1, samples=3, temperatures=(0.5, 1.0))
    rows = buy_back.draw(Policy("base", None, "packaged", "countdown", "cpu", 20), how)
    assert [(row["split"], row["temperature"]) for row in rows] == [
        *[("tune", 0.5), ("tune", 1.0)],
        *[("test", 0.5)] * 2,
        *[("test", 1.0)] * 2,
    ]
    assert all({"maj@1", "maj@2"} <= set(row) for row in rows if row["split"] == "test")


def test_policies_of_two_studies_stand_side_by_side_where_they_were_asked_the_same(tmp_path):
    def rows(arm, *problems):
        asked = {"seed": None, "temperature": 1.0, "split": "test", "drawn": 4}
        return [{"arm": arm, "problem": problem} | asked for problem in problems]

    folders = [tmp_path / name for name in ("one", "two", "not drawn yet")]
    for folder, made in zip(folders, (rows("base", "p", "q"), rows("grpo", "p", "q")), strict=False):
        folder.mkdir()
        write_rows(folder / buy_back.FILE, made)
    assert [row["arm"] for row in buy_back.read_drawn("direct", folders)] == ["base", "base", "grpo", "grpo"]
    write_rows(folders[1] / buy_back.FILE, rows("grpo", "q", "p"))
    with pytest.raises(UsageError, match="direct: its policies were not asked the same"):
        buy_back.read_drawn("direct", folders)


# Confidence ---------------------------------------------------------------------------------------------------------------


def test_a_confidence_stands_after_the_answer():
    assert part("2*(3*7-9),9") == ("2*(3*7-9)", 1.0)
    assert part("1+2") == ("1+2", None)
    assert part("1+2,10") == ("1+2,10", None)


def test_what_is_graded_is_the_answer_alone():
    task = Stated(numbers=3)
    problem = task.task.pose([3, 7, 2], 23)
    right = task.grade(problem, Completion("3*7+2,3", finish="stop"))
    assert (right.correct, right.confidence, right.format_ok) == (True, pytest.approx(1 / 3), True)
    silent = task.grade(problem, Completion("3*7+2", finish="stop"))
    assert (silent.correct, silent.confidence, silent.format_ok) == (True, None, False)
    assert not task.grade(problem, Completion("3*7+2", finish="length")).correct
    assert task.grade(problem, Completion("3*7+2,3", finish="length")).correct  # only what follows was cut off


def test_the_brier_term_and_correctness_make_the_reward_of_rlcr():
    correct, stated = np.array([[1.0, 0.0, 1.0, 0.0]]), np.array([[0.5, 1.0, np.nan, np.nan]])
    reward = correct + brier_term(correct, stated, np.ones((1, 4), dtype=bool))
    assert reward == pytest.approx(np.array([[0.75, -1.0, -1.0, -1.0]]))


def test_votes_by_confidence():
    stated = [
        Grade(Answer("a"), "right", 1.0, confidence=1.0),
        Grade(Answer("b"), "wrong", 0.0, confidence=1 / 9),
        Grade(Answer("b"), "wrong", 0.0, confidence=None),
    ]
    assert confidence.two_votes(stated, seed=0) == {"vote": 0.0, "weighted": 1.0}
    found = confidence.by_confidence(stated)
    assert (found["stated"][9], found["right"][9], found["stated"][1], found["unstated"]) == (1, 1, 1, 1)


def make_stated(arm: str, pairs: list[list[tuple[int, bool]]]) -> list[dict]:
    """A row per problem; pairs of a digit and whether the answer is right."""
    rows = []
    for place, of_problem in enumerate(pairs):
        told_of = [
            Grade(Answer(str(right)), "right" if right else "wrong", 0.0, confidence=digit / 9)
            for digit, right in of_problem
        ]
        row = {"arm": arm, "seed": 0, "temperature": 1.0, "problem": str(place), "drawn": len(of_problem)}
        rows.append(row | confidence.by_confidence(told_of))
    return rows


def test_what_is_stated_most_is_told_with_its_share():
    pairs = [[(3, True), (3, False), (2, False), (9, True)], [(2, True), (3, False), (0, True), (3, False)]]
    assert confidence.Stated(make_stated("rlcr", pairs), "rlcr", 1.0).stated_most() == "2/9 and 3/9: 0.75 to 0.75"


def test_calibration_agrees_with_another_library_and_a_slow_loop():
    pairs = [[(9, True), (9, False), (3, True), (0, False)], [(5, False), (5, True), (2, False), (8, True)]]
    found = confidence.Stated(make_stated("rlcr", pairs), "rlcr", 1.0)
    flat = [each for of_problem in pairs for each in of_problem]
    weights = np.ones((1, 2))
    assert found.area(weights)[0, 0] == pytest.approx(roc_auc_score([r for _, r in flat], [q for q, _ in flat]))
    within = np.mean([roc_auc_score([r for _, r in each], [q for q, _ in each]) for each in pairs])
    assert found.area_within(weights)[0, 0] == pytest.approx(within)
    levels = {q: [r for digit, r in flat if digit == q] for q, _ in flat}
    error = sum(len(right) / 8 * abs(q / 9 - np.mean(right)) for q, right in levels.items())
    assert found.error(weights)[0, 0] == pytest.approx(error)
    # a problem that is drawn twice counts twice
    assert found.area(np.array([[2.0, 0.0]]))[0, 0] == pytest.approx(
        roc_auc_score([r for _, r in pairs[0]], [q for q, _ in pairs[0]])
    )


# Difficulty ---------------------------------------------------------------------------------------------------------------


def test_problems_are_drawn_by_their_success_rate(tmp_path):
    path = tmp_path / "rates.json"
    path.write_text(json.dumps({"easy": 0.9, "middling": 0.5, "fair": 0.3, "hard": 0.0}))
    chosen = difficulty.Chosen(file=str(path), low=0.2, high=0.6, seed=3)
    chosen.add(["easy", "middling", "fair", "hard"])
    first = chosen.draw(2)
    assert set(first) == {"middling", "fair"}
    assert chosen.draw(1, beside=["fair"]) == ("middling",)
    chosen.observe(prompt_ids_P=(), correct_PG=None, keep_PG=None)
    again = difficulty.Chosen(file=str(path), low=0.2, high=0.6, seed=3)
    again.add(["easy", "middling", "fair", "hard"])
    again.restore(chosen.state())
    assert again.draw(2) == chosen.draw(2)
    with pytest.raises(UsageError, match="there are 2"):
        chosen.draw(3)
    with pytest.raises(UsageError, match="no success rate of new"):
        chosen.add(["new"])


def test_the_runs_that_choose_a_learning_rate_have_a_pool_too():
    given = ["seeds=[4,5]", "tune.seed=9"]
    assert difficulty.pools_of(load_study("difficulty", [*given, "tune.lr=[1e-4]"])) == [4, 5, 9]
    assert difficulty.pools_of(load_study("difficulty", [*given, "tune.lr=[]"])) == [4, 5]


# Tokens -------------------------------------------------------------------------------------------------------------------


def test_a_thought_is_planned_worked_out_and_answered():
    kinds = where.kinds_of("[4+1=5:2,3*2=6:0]3*2\0")
    wanted = [
        *["mark"],
        *["plan"] * 3,
        *["work out"] * 4,
        *["mark"],
        *["plan"] * 3,
        *["work out"] * 4,
        *["mark"],
        *["answer"] * 4,
    ]
    assert kinds == wanted
    assert where.kinds_of("(12+3)") == ["parenthesis", "number", "number", "sign", "number", "parenthesis"]


def test_a_completion_falls_into_thirds_forks_and_routine_tokens():
    found = where.classes("1+2*3-", np.array([0.9, 0.1, 0.8, 0.0, 0.0, 0.2]), 0.8)
    assert found["first third"].tolist() == [True, True, False, False, False, False]
    assert found["last third"].tolist() == [False, False, False, False, True, True]
    assert np.flatnonzero(found["fork"]).tolist() == [0, 2]
    assert np.flatnonzero(found["sign"]).tolist() == [1, 3, 5]
    assert (found["fork"] ^ found["routine"]).all()


def test_what_is_no_fork_is_routine():
    entropy_BT = torch.tensor([[0.9, 0.1, 0.5, 0.3, 0.2]])
    mask_BT = torch.tensor([[True, True, True, True, False]])
    assert where.routine(entropy_BT, mask_BT, share=0.25).tolist() == [[0, 1, 1, 1, 0]]
    assert where.routine_step(entropy_BT, mask_BT, share=0.25).tolist() == [[0, 1, 1, 1, 0]]


def test_how_much_of_the_fall_is_done_by_when():
    # 40 steps, from 1 to .5 in the first ten and level from there on; ends are means of two steps
    course = [1.0, 1.0, *np.linspace(1, 0.5, 8), *[0.5] * 30]
    logged = [{"arm": "grpo", "seed": 0, "step": step, "entropy": value} for step, value in enumerate(course)]
    assert where.phases(logged, "grpo")[2:] == ("0.93 (0.93 to 0.93)", *["1.00 (1.00 to 1.00)"] * 2)


def test_entropy_lost_is_a_ratio_of_sums_over_problems():
    rows = [
        {
            "arm": "grpo",
            "seed": 0,
            "split": "test",
            "step": step,
            "problem": problem,
            "kind": kind,
            "tokens": n,
            "entropy": total,
        }
        for kind in ("all", "fork")
        for step, problem, n, total in [(0, "p", 10, 8.0), (0, "q", 30, 8.0), (9, "p", 20, 4.0), (9, "q", 20, 4.0)]
    ]
    found = where.Windows(rows, "grpo", "fork")
    # 16/40 before and 8/40 after; p alone .8 and .2
    assert found.lost(np.array([[1.0, 1.0], [1.0, 0.0]])) == pytest.approx(np.array([[0.5, 0.75]]))
    assert where.row_of(rows, "grpo", "fork")[2] == "0.400 → 0.200"
    # A class that only the first window has, a sign outside any thought say, has lost nothing that can be told.
    assert where.kinds_in_both([*rows, rows[0] | {"kind": "sign"}], "grpo") == ["all", "fork"]


def test_more_characters_change_nothing_that_the_model_knew(tmp_path):
    choices.write_model(tmp_path / "wide.safetensors")
    states = []
    for name in ("packaged", tmp_path / "wide.safetensors"):
        loaded = load_model(name, dtype=torch.float32)
        ids_BS = torch.tensor([loaded.tokens.encode("3,7,2,9=24>")])
        states.append(hidden_states(loaded.model, ids_BS, torch.ones_like(ids_BS, dtype=torch.bool)))
    # Cosines and sines of the packaged one are of half precision.
    torch.testing.assert_close(*states, atol=2e-3, rtol=0)
    assert load_model(tmp_path / "wide.safetensors").tokens.encode("|ABCD") == [21, 22, 23, 24, 25]


def test_options_are_shown_with_some_expressions(tmp_path):
    config = load_study("choices-choice", [f"sft.file={tmp_path / 'pairs.jsonl'}"])
    choices.write_pairs(config, 0.25, n=8)
    rows = [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text().splitlines()]
    assert [len(row["completion"]) == 1 for row in rows] == [False] * 2 + [True] * 6
    assert all(("|A" in row["prompt"]) == (row["completion"] in "ABCD") for row in rows)


def test_a_models_own_words_with_a_confidence_drawn_blindly(tmp_path):
    n = write_told(tmp_path / "told.jsonl", Policy("base", None, "packaged", "countdown", "cpu", 20), n=6)
    rows = [json.loads(line) for line in (tmp_path / "told.jsonl").read_text().splitlines()]
    assert 6 < len(rows) == n <= 24  # those that came to their end
    assert all(part(row["completion"])[1] is not None for row in rows)
    assert len({row["completion"][-1] for row in rows}) > 3
