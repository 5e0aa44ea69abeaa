"""Plans on pools with known truth: what they learn, what they give each question, and whether they say so when it is no use."""

from __future__ import annotations

import json
from math import comb
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from making import run_of

from equipoise.errors import UsageError
from equipoise.infer.policy import Option, Policy
from equipoise.lab.plan import plan
from equipoise.lab.plan_backtest import backtest, samples_for, spread, uniform_value
from equipoise.lab.plan_orders import Orders, order_samples
from equipoise.lab.plan_policy import _edges, assign, learn_policy, realised
from equipoise.measures.majority import maj_at_k
from equipoise.samplers.recorded import RecordedPool

FULL = Path(__file__).parents[2] / "shared" / "data"


def rows_of(answers, *, right="a", tokens=10, questions=10, **cells):
    """The same samples for every question: one row each, an answer that is None has none."""
    return [
        {
            "prompt_id": f"q{q}",
            "answer": answer,
            "correct": None if right is None else answer == right,
            "n_tokens": tokens[i] if isinstance(tokens, list) else tokens,
            "sample_index": i,
            **cells,
        }
        for q in range(questions)
        for i, answer in enumerate(answers)
    ]


def ordered(rows, **settings):
    return order_samples(RecordedPool.of(run_of(rows)).rows, **({"goal": "vote", "repeats": 1, "seed": 0} | settings))


def mixed_pool(rng, *, n=32, easy=40, close=30, hopeless=30, tokens=10):
    """Easy questions never err, close ones are right six times in ten, of hopeless ones all answers differ."""
    shares = [("easy", [1.0])] * easy + [("close", [0.6, 0.4])] * close
    rows = []
    for q, (kind, share) in enumerate(shares):
        for i, answer in enumerate(rng.choice(["a", "b"][: len(share)], size=n, p=share)):
            rows.append({"prompt_id": f"{kind}{q}", "answer": answer, "correct": answer == "a", "n_tokens": tokens, "sample_index": i})  # fmt: skip
    for q in range(hopeless):
        rows += [
            {"prompt_id": f"hopeless{q}", "answer": f"w{i}", "correct": False, "n_tokens": tokens, "sample_index": i}
            for i in range(n)
        ]
    return rows


@pytest.fixture(scope="module")
def mixed():
    return RecordedPool.of(run_of(mixed_pool(np.random.default_rng(0))))


# --- orders ----------------------------------------------------------------------------------------------------------------


def test_the_first_order_is_that_of_the_record_worked_by_hand():
    held = ordered(rows_of(["b", "b", "a", None, "a"], tokens=[3, 5, 7, 9, 11]))
    assert held.pilot.right_QRK[0, 0].tolist() == [0, 0, 0, 0, 0.5]  # two against two: one way of two to break the tie
    assert held.pilot.state_QRK[0, 0].tolist() == [1, 2, 2, 2, 2]
    assert held.pilot.tokens_QRK[0, 0].tolist() == [3, 8, 15, 24, 35]
    nobody = ordered(rows_of([None, None, "a"]))
    assert nobody.pilot.right_QRK[0, 0].tolist() == [0, 0, 1]
    assert nobody.pilot.state_QRK[0, 0].tolist() == [0, 0, 1]


def test_with_a_checker_one_right_sample_is_enough():
    held = ordered(rows_of(["b", "a", "b", "a"]), goal="verified")
    assert held.pilot.right_QRK[0, 0].tolist() == [0, 1, 1, 1]
    assert held.pilot.state_QRK[0, 0].tolist() == [0, 1, 1, 2]


def test_over_many_orders_a_vote_is_the_exact_one():
    answers = ["a"] * 4 + ["b"] * 3 + ["c"] * 2 + [None]
    held = ordered(rows_of(answers, right="b"), repeats=400)
    found = held.pilot.right_QRK.mean(axis=(0, 1))
    for k in (1, 2, 3, 5, 8, 10):
        exact = maj_at_k(counts=[4, 3, 2], right=[0, 1, 0], abstained=1, k=k)
        assert found[k - 1] == pytest.approx(exact, abs=5 * 0.5 / 4000**0.5)


def test_without_verdicts_right_is_the_vote_over_all():
    held = ordered(rows_of(["b", "a", "a", "c"], right=None))
    assert not held.judged
    assert held.pilot.right_QRK[0, 0].tolist() == [0, 0.5, 1, 1]
    tied = ordered(rows_of(["b", "a"], right=None))
    assert tied.pilot.right_QRK[0, 0].tolist() == [0.5, 0.5]


def test_what_cannot_be_planned_is_refused():
    with pytest.raises(UsageError, match="10 questions or more"):
        ordered(rows_of(["a", "b"], questions=9))
    with pytest.raises(UsageError, match="needs verdicts"):
        ordered(rows_of(["a", "b"], right=None), goal="verified")
    with pytest.raises(UsageError, match="none of the pool's: none"):
        ordered(rows_of(["a", "b"]), cap=64)


def test_samples_without_a_verdict_and_short_questions_are_left_out_and_told():
    rows = rows_of(["a", "b", "a"], questions=20)
    rows[0]["correct"] = None
    held = ordered(rows)
    assert len(held.ids) == 19
    assert held.notes == ("left out: 1 sample without a verdict", "left out: 1 question with fewer samples than nine in ten have")  # fmt: skip


# --- bins and options ------------------------------------------------------------------------------------------------------


def test_states_are_put_together_until_no_bin_is_small():
    # Questions' worth: 2 of state 0, 9 of 1, 6 of 2, 3 of 4, 10 of 8. The 2 join the 9, the 3 join the 6.
    state = np.repeat([0, 1, 2, 4, 8], [2, 9, 6, 3, 10])[:, None]
    assert _edges(state) == [(0, 1), (2, 4), (8, 8)]
    assert _edges(np.repeat(np.arange(12), 10)[:, None])[0][0] == 0
    assert len(_edges(np.repeat(np.arange(12), 10)[:, None])) == 5


def test_a_policy_learns_where_more_samples_help(mixed):
    policy = learn_policy(order_samples(mixed.rows, goal="vote", repeats=20, seed=1), goal="vote", pilot=4)
    first, *_, last = policy.bins
    # Four different answers: hopeless, and more votes bring nothing.
    assert (first.low, first.high, first.share) == (1, 1, pytest.approx(0.3, abs=0.01))
    assert {option.value for option in first.options} == {0.0}
    # A leader with two or three of four is right in 6 of 10 or more, and 32 votes find it nearly always.
    for close in policy.bins[1:-1]:
        assert close.options[-1].value - close.options[0].value > 0.1
    assert (last.low, last.high) == (4, 4)
    assert last.options[-1].value - last.options[0].value < 0.03
    assert [option.tokens for option in last.options] == [10.0 * j for j in range(29)]


def test_a_solved_question_gets_nothing_more_and_an_unsolved_one_what_the_rates_promise():
    rng = np.random.default_rng(4)
    rates = rng.beta(0.8, 1.6, 300)
    rows = [
        {
            "prompt_id": f"q{q}",
            "answer": "a" if right else "b",
            "correct": bool(right),
            "n_tokens": 5,
            "sample_index": i,
        }
        for q, rate in enumerate(rates)
        for i, right in enumerate(rng.random(12) < rate)
    ]
    held = ordered(rows, goal="verified", repeats=4)
    unsolved, solved = learn_policy(held, goal="verified", pilot=3, most=30).bins
    assert [(each.low, each.high) for each in (unsolved, solved)] == [(0, 0), (1, 3)]
    assert [option.samples for option in solved.options] == [3]
    assert solved.options[0].value == 1
    # A question that failed three times, and its chance of one success in nine more, from the true rates.
    weight = (1 - rates) ** 3
    truth = (weight * (1 - (1 - rates) ** 9)).sum() / weight.sum()
    by_samples = {option.samples: option for option in unsolved.options}
    assert by_samples[12].value == pytest.approx(truth, abs=0.06)
    assert set(by_samples) == set(range(3, 31))
    assert by_samples[30].tokens == pytest.approx(27 * 5)


def test_what_is_chosen_is_read_off_the_order():
    held = ordered(rows_of(["b", "a", "a"], tokens=[3, 5, 7]))
    right, tokens = realised(held, 0, tuple(Option(k, None, 0, 0) for k in [1, 2, 3] * 3 + [1]), pilot=1)
    assert right.tolist() == [0, 0.5, 1] * 3 + [0]
    assert tokens.tolist() == [3, 8, 15] * 3 + [3]


def test_a_pilot_at_another_cap_is_paid_for_and_casts_no_vote():
    short, long = (rows_of(answers, tokens=tokens, budget=cap) for answers, tokens, cap in (
        (["b", "b", "a"], [3, 5, 7], 8), (["a", "b", "a"], [30, 50, 70], 80),
    ))  # fmt: skip
    held = ordered([*short, *long])
    assert [each.cap for each in held.caps] == [8, 80]
    right, tokens = realised(held, 0, (Option(1, 80, 0, 0),) * 5 + (Option(3, 8, 0, 0),) * 5, pilot=2)
    assert right.tolist() == [1] * 5 + [0] * 5
    assert tokens.tolist() == [3 + 5 + 30] * 5 + [3 + 5 + 7] * 5


def test_equal_spending_worked_by_hand():
    right, tokens = np.asarray([[[0, 1.0]], [[1, 1.0]]]), np.asarray([[[10, 20]], [[30, 60]]])
    drawn = Orders(None, right, right, tokens)
    # 20 tokens a question buy one sample each, 40 two. 30 buy one for half of the questions and two for the others.
    assert [samples_for(drawn, t) for t in (0, 10, 20, 30, 40, 99)] == [0, 0.5, 1, 1.5, 2, 2]
    assert spread(drawn, 0, 30).tolist() == [0.5, 1]
    assert spread(drawn, 0, 10).tolist() == [0, 0.5]
    assert spread(drawn, 0, 99).tolist() == [1, 1]
    assert uniform_value(drawn, 30) == 0.75


# --- plans -----------------------------------------------------------------------------------------------------------------


def test_where_questions_differ_planning_helps_and_says_so(mixed):
    found = plan(mixed, budget=100 * 80, repeats=10)
    assert found.helps
    assert found.says().startswith("Planning helps")
    assert found.backtest.difference.value > 0.02
    assert found.tokens <= 8000
    assert found.tokens > 8000 - 280  # within one action: at most 28 further samples of 10 tokens
    assert sum(share.tokens for share in found.shares) == pytest.approx(found.tokens)
    assert found.pilot_tokens == 100 * 4 * 10
    given = {
        kind: [s.samples for s in found.shares if s.question.startswith(kind)] for kind in ("easy", "close", "hopeless")
    }
    assert set(given["hopeless"]) == {4}
    assert np.mean(given["close"]) > 2 * np.mean(given["easy"])
    assert {share.strategy for share in found.shares} == {f"majority:n={share.samples}" for share in found.shares}


def test_where_all_are_alike_it_says_that_it_is_no_use():
    rng = np.random.default_rng(7)
    rows = mixed_pool(rng, n=16, easy=0, close=60, hopeless=0)
    found = plan(run_of(rows), budget=60 * 8 * 10, repeats=6)
    assert not found.helps
    assert "no gain" in found.says() or "worse" in found.says()
    assert found.to_dict()["helps"] is False


def test_a_whole_budget_buys_everything_that_helps_and_the_rest_is_told(mixed):
    found = plan(mixed, budget=10**6, repeats=2)
    assert found.policy.price == 0
    assert any("buy nothing more" in note for note in found.notes)
    assert max(share.samples for share in found.shares) > 20


def test_a_question_that_takes_all_that_was_recorded_is_told():
    # The right answer comes late: every further vote helps, up to the last.
    rows = [
        row | {"prompt_id": f"{row['prompt_id']}-{q}"}
        for q in range(4)
        for row in rows_of(["a"] * 6 + ["b"] * 5, right="a")
    ]
    found = plan(run_of(rows), budget=10**6, repeats=30)
    assert any("all 11 samples" in note for note in found.notes)


def test_no_verdict_of_a_question_moves_its_own_share():
    rows = mixed_pool(np.random.default_rng(2), n=12)
    flipped = [row | {"correct": not row["correct"]} if int(row["prompt_id"][-1]) % 2 else row for row in rows]
    one, other = (ordered(each, repeats=3) for each in (rows, flipped))
    mine = np.asarray([int(name[-1]) % 2 == 1 for name in one.ids])
    chosen = []
    for held in (one, other):
        policy, test = learn_policy(held.of(~mine), goal="vote", pilot=4), held.of(mine)
        tokens_Q = test.pilot.tokens_QRK[:, 0, 3] / 4
        chosen.append(assign(policy, test.pilot.state_QRK[:, 0, 3], tokens_Q, budget=2000).options)
    assert chosen[0] == chosen[1]
    assert len({option.samples for option in chosen[0]}) > 1


def test_the_order_of_the_questions_changes_nothing_that_is_learnt():
    rows = mixed_pool(np.random.default_rng(2), n=12)
    held = ordered(rows, repeats=5)
    shuffle = np.random.default_rng(0).permutation(len(held.ids))
    one, other = (learn_policy(each, goal="vote", pilot=4) for each in (held, held.of(shuffle)))
    assert [(b.low, b.high) for b in one.bins] == [(b.low, b.high) for b in other.bins]
    for mine, theirs in zip(one.bins, other.bins, strict=True):
        np.testing.assert_allclose([o.value for o in mine.options], [o.value for o in theirs.options], atol=1e-9)


def test_a_longer_cap_is_bought_where_the_shorter_one_fails():
    rng = np.random.default_rng(6)
    rows = []
    for q in range(60):
        short_right = 0.95 if q % 2 else 0.05  # half of the questions need the longer cap
        for budget, rate, tokens in ((20, short_right, 20), (400, 0.95, 400)):
            for i, right in enumerate(rng.random(12) < rate):
                answer = "a" if right else f"w{rng.integers(50)}"
                rows.append({"prompt_id": f"q{q}", "answer": answer, "correct": answer == "a", "budget": budget,
                             "n_tokens": tokens, "sample_index": i})  # fmt: skip
    found = plan(run_of(rows), budget=60 * 290, first=4, repeats=6)
    by_kind = {odd: [share for share in found.shares if int(share.question[1:]) % 2 == odd] for odd in (0, 1)}
    assert np.mean([share.cap == 400 for share in by_kind[0]]) > 0.8
    assert np.mean([share.cap == 20 for share in by_kind[1]]) > 0.8
    long = next(share for share in by_kind[0] if share.cap == 400)
    assert long.strategy == f"parallel:n={long.samples},budget={long.samples * 400}"
    # Its pilot of four short samples is paid for, and casts no vote with the long ones.
    assert long.tokens == pytest.approx(4 * 20 + long.samples * 400)
    assert found.helps


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"budget": 3999}, r"first 4 samples of 100 questions take 4,000 tokens, and the budget is 3,999"),
        ({"budget": 9000, "first": 32}, "leave some to plan"),
        ({"budget": 9000, "goal": "search"}, "goal 'search'"),
        ({"budget": 0}, "budget above 0"),
    ],
)
def test_what_is_asked_wrongly_is_told_in_one_line(mixed, settings, says):
    with pytest.raises(UsageError, match=says):
        plan(mixed, **settings)


# --- the command -----------------------------------------------------------------------------------------------------------


def test_the_command_prints_a_table_and_writes_a_policy_that_can_be_read(equipoise, tmp_path):
    pool, out = tmp_path / "pool.jsonl", tmp_path / "plan.json"
    pool.write_text("".join(json.dumps(row) + "\n" for row in mixed_pool(np.random.default_rng(1), n=12)))
    code, shown, _ = equipoise("plan", pool, "--budget", 4300, "--repeats", 4, "-o", out)
    assert code == 0
    assert "leader's votes of 4" in shown
    assert "equal spending" in shown
    told = json.loads(out.read_text())
    policy = Policy.of(told["policy"])
    assert policy.price == told["price"] > 0
    assert len(told["questions"]) == 100
    assert told["tokens"] <= told["budget"] == 4300
    code, shown, _ = equipoise("plan", pool, "--budget", 4300, "--repeats", 4, "-o", out, "--json")
    assert (code, json.loads(shown)) == (0, told)
    code, shown, problem = equipoise("plan", pool, "--budget", 10, "-o", out)
    assert (code, shown, problem.count("\n")) == (2, "", 1)


# --- real pools ------------------------------------------------------------------------------------------------------------


def real(name):
    path = FULL / f"rollouts-{name}" / "rollouts.parquet"
    if not path.exists():
        pytest.skip(f"{path} is not here: the full pools are not part of the repository")
    return path


def test_the_whole_of_cruxeval_with_a_checker():
    path = real("cruxeval-output")
    rows = RecordedPool.of(path, count="samples", columns={"prompt_id": "id"}).rows
    held = order_samples(rows, goal="verified", repeats=5, seed=0)
    found = backtest(held, goal="verified", pilot=2, budget=4 * 800, seed=0)
    right = pd.read_parquet(path).groupby("id")["correct"].sum()
    # Equal spending of four samples is pass@4, https://arxiv.org/abs/2107.03374.
    exact = np.mean([1 - comb(10 - c, 4) / comb(10, 4) for c in right])
    assert found.samples == pytest.approx(4, abs=0.01)
    assert found.uniform.value == pytest.approx(exact, abs=0.01)
    assert found.plan.value >= found.uniform.value - 0.005


def test_the_whole_of_game24_by_vote():
    path = real("game24-gpt4")
    found = plan(path, budget=2000, goal="vote", first=8, repeats=4, count="samples", where={"prompting": "cot"},
                 columns={"prompt_id": "puzzle_idx"})  # fmt: skip
    assert found.tokens <= 2000
    assert found.backtest.plan.n == 100
    assert found.backtest.difference.low is not None
