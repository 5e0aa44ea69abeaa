"""A recorded pool replayed: what comes out is what pandas reads from the same file, and every token is counted."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections import Counter
from itertools import permutations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from making import run_of
from scipy.stats import chisquare

from equipoise.base import Answer, Grade, Sampling
from equipoise.errors import UsageError
from equipoise.infer.ledger import Ledger
from equipoise.infer.metered import Metered
from equipoise.infer.vote import Majority
from equipoise.measures.trace_confidence import trace_confidence
from equipoise.samplers.recorded import RecordedPool
from equipoise.text.answers import canonical

REAL = Path(__file__).parent / "data" / "real"
FULL = Path(__file__).parents[2] / "shared" / "data"


def row(prompt_id, answer, n_tokens=10, correct=None, **cells):
    return {"prompt_id": prompt_id, "answer": answer, "n_tokens": n_tokens, "correct": correct, **cells}


def pool_of(rows, **settings):
    return RecordedPool.of(run_of(rows), **settings)


def draw(pool, question, n, **rest):
    async def go():
        return await Metered(pool, Ledger()).draw(question, n=n, **rest).completions()

    return asyncio.run(go())


def pieces(pool, prompt, how=Sampling(max_tokens=10**6), *, n, seed=0, first=0):
    async def go():
        return [chunk async for chunk in pool.draw(prompt, how, n=n, seed=seed, first=first)]

    return asyncio.run(go())


def answers(pool, prompt, *, n, seed, first=0):
    chunks = pieces(pool, prompt, n=n, seed=seed, first=first)
    last = {chunk.index: chunk.grade.answer.text for chunk in chunks if chunk.finish}
    return [last[index] for index in range(n)]


THREE = [row("p", "a"), row("q", "z"), row("p", "b"), row("p", "c")]


# --- the order -------------------------------------------------------------------------------------------------------------


def test_as_recorded_is_the_order_of_the_samples():
    pool = pool_of(THREE)
    (p, _) = pool.questions(seed=None)
    assert [c.grade.answer.text for c in draw(pool, p, 3)] == ["a", "b", "c"]
    numbered = pool_of([row("p", "a", sample_index=2), row("p", "b", sample_index=0), row("p", "c", sample_index=1)])
    assert [c.grade.answer.text for c in draw(numbered, numbered.questions(seed=None)[0], 3)] == ["b", "c", "a"]


def test_every_order_of_a_question_is_as_likely_as_any_other():
    pool, n = pool_of(THREE), 3000
    seen = Counter(tuple(answers(pool, "p", n=3, seed=seed)) for seed in range(n))
    assert set(seen) == set(permutations("abc"))
    assert chisquare([seen[order] for order in permutations("abc")]).pvalue > 1e-3


def test_samples_of_a_seed_are_numbered():
    pool = pool_of([row("p", letter) for letter in "abcdefgh"])
    whole = answers(pool, "p", n=8, seed=3)
    assert answers(pool, "p", n=3, seed=3) + answers(pool, "p", n=5, seed=3, first=3) == whole
    assert sorted(whole) == list("abcdefgh")
    again = pool_of([row("p", letter) for letter in "abcdefgh"])
    assert answers(again, "p", n=8, seed=3) == whole


def test_two_questions_and_two_seeds_are_shuffled_each_in_its_own_way():
    rows = [row(name, letter) for name in ("p", "q") for letter in "abcdefghij"]
    pool = pool_of(rows)
    assert answers(pool, "p", n=10, seed=0) != answers(pool, "q", n=10, seed=0)
    assert answers(pool, "p", n=10, seed=0) != answers(pool, "p", n=10, seed=1)
    seeds = {question.seed for seed in range(20) for question in pool.questions(seed=seed)}
    assert len(seeds) == 40
    assert all(seed >= 0 for seed in seeds)


def test_more_than_were_recorded_is_an_error_that_says_so():
    with pytest.raises(UsageError, match="number 4 of 'p' was asked for, and 3 were recorded") as refused:
        pieces(pool_of(THREE), "p", n=2, first=2)
    assert "\n" not in str(refused.value)


def test_resampling_draws_each_as_often_and_is_numbered_too():
    pool, n = pool_of(THREE, resample=True), 6000
    drawn = answers(pool, "p", n=n, seed=5)
    assert chisquare(list(Counter(drawn).values())).pvalue > 1e-3
    assert answers(pool, "p", n=40, seed=5, first=60) == drawn[60:100]


# --- pieces and tokens -----------------------------------------------------------------------------------------------------


def test_pieces_come_in_turn_and_their_tokens_are_those_recorded():
    pool = pool_of([row("p", "a", 5), row("p", "b", 2)], chunk=2)
    found = [(c.index, c.n_tokens, c.finish) for c in pieces(pool, "p", n=2, seed=-1)]
    assert found == [(0, 2, None), (1, 2, "stop"), (0, 2, None), (0, 1, "stop")]


def test_a_completion_that_is_cut_has_no_answer_and_no_grade():
    pool = pool_of([row("p", "a", 50, True), row("p", "b", 20, False)], chunk=8)
    question = pool.questions(seed=None, how=Sampling(max_tokens=30))[0]
    cut, whole = draw(pool, question, 2)
    assert (cut.finish, cut.n_tokens, question.read(cut), question.judge(cut).correct) == ("length", 30, None, None)
    assert (whole.finish, whole.n_tokens, question.read(whole)) == ("stop", 20, Answer("b"))
    exact = draw(pool, pool.questions(seed=None, how=Sampling(max_tokens=50))[0], 1)[0]
    assert (exact.finish, question.read(exact)) == ("stop", Answer("a"))


def test_questions_leave_room_for_the_longest():
    pool = pool_of([row("p", "a", 7), row("q", "b", 123)])
    assert {question.how.max_tokens for question in pool.questions()} == {123}


def test_cancelled_tokens_are_those_that_had_come():
    async def go():
        pool = pool_of([row("p", "a", 100), row("p", "b", 10)], chunk=10)
        metered = Metered(pool, Ledger(1000))
        async with metered.draw(pool.questions(seed=None)[0], n=2) as drawn:
            async for _, completion in drawn.finished():
                assert completion.grade.answer.text == "b"
                break
        return metered.ledger.spent

    spent = asyncio.run(go())
    assert spent.answer == 10
    assert spent.cancelled in (10, 20)  # of a hundred: it had a turn before, and perhaps one after


def test_token_lists_and_thinking_are_told_with_their_tokens():
    lists = {"token_confidences": [1.0, 2.0, 3.0, 4.0], "logprobs_rollout": [-0.5, -0.25, -1.0, -2.0]}
    rows = [row("p", "a", 4, n_thinking=3, **lists), row("p", "b", 2)]
    first, second = draw(pool_of(rows, chunk=3), pool_of(rows).questions(seed=None)[0], 2)
    assert (list(first.token_confidences), list(first.logprobs)) == ([1, 2, 3, 4], [-0.5, -0.25, -1, -2])
    assert (first.entropies, second.token_confidences) == (None, None)
    chunks = [c for c in pieces(pool_of(rows, chunk=3), "p", n=2, seed=-1) if c.index == 0]
    assert [(c.n_tokens, c.n_thinking) for c in chunks] == [(3, 3), (1, 0)]


def test_lists_stay_with_their_rows_however_many_batches_a_file_has():
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 4, 1300)
    rows = [
        row(f"p{i % 7}", str(i), int(n), sample_index=i, token_confidences=None if n == 0 else [float(i)] * n)
        for i, n in enumerate(lengths.tolist())
    ]
    pool = pool_of(rows)
    for question in pool.questions(seed=4):
        for completion in draw(pool, question, pool.size(question.id)):
            i = int(completion.grade.answer.text)
            assert list(completion.token_confidences or ()) == [i] * lengths[i]


def test_a_list_of_another_length_than_n_tokens_is_left_out_and_noted():
    pool = pool_of([row("p", "a", 4, token_confidences=[1.0, 2.0]), row("p", "b", 1, token_confidences=[5.0])])
    first, second = draw(pool, pool.questions(seed=None)[0], 2)
    assert (first.token_confidences, list(second.token_confidences)) == (None, [5.0])
    assert pool.rows.notes == ("1 lists of token_confidences are not as long as n_tokens says and were left out",)


def test_trace_confidences_are_those_recorded_or_else_made_of_the_lists_that_are_not_kept():
    values = [3.0, 1.0, 2.0, 6.0]
    rows = [
        row("p", "a", 4, extra=json.dumps({"trace_confidences": {"mean": 7.5, "tail": 2.0}, "other": 1})),
        row("p", "b", 4, token_confidences=values),
        row("p", "c", 4),
    ]
    pool = pool_of(rows, token_lists=False)
    told, made, none = draw(pool, pool.questions(seed=None)[0], 3)
    assert told.trace_confidences == {"mean": 7.5, "tail": 2.0}
    assert made.trace_confidences["mean"] == pytest.approx(3.0)
    assert made.trace_confidences == pytest.approx(
        {rule: trace_confidence(values, rule) for rule in ("mean", "bottom", "lowest", "tail")}
    )
    assert (made.token_confidences, none.trace_confidences) == (None, None)
    kept = pool_of(rows)
    assert draw(kept, kept.questions(seed=None)[0], 3)[1].trace_confidences is None  # the lists themselves are there


def test_texts_come_where_they_are_asked_for():
    rows = [row("p", "a", 40, completion="so a", thinking="hmm")]
    pool = pool_of(rows, texts=True)
    found = draw(pool, pool.questions()[0], 1)[0]
    assert (found.text, found.thinking) == ("so a", "hmm")
    assert draw(pool_of(rows), pool.questions()[0], 1)[0].text == ""


# --- answers and grades ----------------------------------------------------------------------------------------------------


def test_answers_are_canonical_and_grades_are_those_recorded():
    rows = [
        row("p", "$\\frac{2}{4}$", 5, True, reward=0.25, confidence=0.8),
        row("p", "0.5", 5, True),
        row("p", None, 5, False),
        row("p", "7", 5, None, finish_reason="length"),
    ]
    pool = pool_of(rows)
    question = pool.questions(seed=None)[0]
    drawn = draw(pool, question, 4)
    assert [question.read(c) for c in drawn] == [Answer(canonical("1/2")), Answer(canonical("1/2")), None, Answer("7")]
    assert question.judge(drawn[0]) == Grade(Answer(canonical("1/2")), "right", 0.25, confidence=0.8)
    assert [question.judge(c).outcome for c in drawn] == ["right", "right", "unparsable", None]
    assert [c.finish for c in drawn] == ["stop", "stop", "stop", "length"]


def test_answers_are_read_from_completions_where_nobody_read_them():
    pool = pool_of([{"prompt_id": "p", "completion": "The answer is 12.", "n_tokens": 6, "reference_answer": "12"}])
    found = draw(pool, pool.questions()[0], 1)[0]
    assert (found.grade.answer, found.grade.outcome) == (Answer("12"), "right")


def test_a_pool_that_nobody_graded_has_no_judge():
    assert pool_of([row("p", "a")]).questions()[0].judge is None
    assert pool_of([row("p", "a", reward=0.3)]).questions()[0].judge is not None


def test_what_was_given_up_or_failed_stays_so_and_a_budget_of_then_is_none_of_today():
    rows = [row("p", "a", finish_reason=word) for word in ("cancelled", "error", "budget", "stop")]
    pool = pool_of(rows)
    choice = asyncio.run(Majority(4)(pool.questions(seed=None)[0], Metered(pool, Ledger())))
    assert [c.finish for c in choice.drawn] == ["cancelled", "error", "length", "stop"]
    assert (choice.stopped_by, choice.ballots, choice.spent.cancelled) == ("finished", {"a": 2.0}, 10)


# --- what is a pool --------------------------------------------------------------------------------------------------------


def test_without_token_counts_only_completions_can_be_counted():
    rows = [{"prompt_id": "p", "answer": "a", "correct": True}, row("p", "b", 3)]
    with pytest.raises(UsageError, match=r"1 of 2 completions .* have no n_tokens.*count='samples'"):
        pool_of(rows)
    pool = pool_of(rows, count="samples")
    choice = asyncio.run(Majority(2)(pool.questions()[0], Metered(pool, Ledger())))
    assert choice.spent.generated == 2
    lists = pool_of([{"prompt_id": "p", "answer": "a", "token_confidences": [1.0, 2.0]}])
    assert draw(lists, lists.questions()[0], 1)[0].n_tokens == 2  # as long as its lists


def test_a_thinking_budget_picks_what_was_recorded_with_it_or_near_it():
    rows = [row("p", f"{budget}", budget=budget) for budget in (1000, 2000, 8000)]
    pool = pool_of(rows)
    assert pool.budgets == (1000, 2000, 8000)

    def at(budget):
        return pieces(pool, "p", Sampling(thinking_budget=budget), n=1)[-1].grade.answer.text

    assert [at(b) for b in (1000, 900, 2000, 2100, 1400, 1500, 5000, 8000, 16000)] == [
        "1000", "1000", "2000", "2000", "1000", "2000", "8000", "8000", "8000",
    ]  # fmt: skip
    for far in (400, 17000):
        with pytest.raises(UsageError, match="recorded with 1000, 2000, 8000: ask for one of these"):
            at(far)
    with pytest.raises(UsageError, match="choose one with budget="):
        at(None)
    chosen = pool_of(rows, budget=8000)
    assert draw(chosen, chosen.questions()[0], 1)[0].grade.answer.text == "8000"
    assert chosen.size("p") == 1


@pytest.mark.parametrize("name", ["step", "run_id", "temperature", "strategy"])
def test_several_samplers_in_one_file_are_told_apart(name):
    values = [1, 2] if name in ("step", "temperature") else ["one", "two"]
    rows = [row("p", "a", **{name: values[0]}), row("p", "b", **{name: values[1]})]
    with pytest.raises(UsageError, match=f"mixes 2 values of {name}"):
        pool_of(rows)
    pool = pool_of(rows, where={name: values[1]})
    assert draw(pool, pool.questions()[0], 1)[0].grade.answer.text == "b"
    with pytest.raises(UsageError, match="no completion"):
        pool_of(rows, where={name: 3})


def test_rows_are_chosen_by_what_extra_holds():
    rows = [row("p", letter, extra=json.dumps({"prompting": how})) for letter, how in [("a", "cot"), ("b", "io")]]
    assert pool_of(rows).size("p") == 2
    assert answers(pool_of(rows, where={"prompting": "io"}), "p", n=1, seed=0) == ["b"]
    with pytest.raises(UsageError, match="unknown column to choose rows by 'promptin'"):
        pool_of(rows, where={"promptin": "io"})


def test_one_prompt_id_in_two_tasks_is_refused():
    with pytest.raises(UsageError, match="one prompt_id in several envs"):
        pool_of([row("1", "a", env="gsm8k"), row("1", "b", env="math")])


@pytest.mark.parametrize("prompt", ["who?", [{"role": "user", "content": "p"}]])
def test_a_prompt_that_was_not_recorded_is_refused(prompt):
    with pytest.raises(UsageError, match="needs a model"):
        pieces(pool_of(THREE), prompt, n=1)


def test_a_large_pool_is_small_in_memory():
    """1,000 problems of 64 completions: arrays of 60 bytes a row, where a dict of six cells takes five times that."""
    rng = np.random.default_rng(0)
    rows = [
        row(f"p{p}", str(rng.integers(5)), int(n), bool(n % 2), reward=1.0)
        for p in range(1000)
        for n in rng.integers(100, 1000, 64)
    ]
    run = run_of(rows)
    tracemalloc.start()
    pool = RecordedPool.of(run)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(pool.ids) == 1000
    assert held < 8e6


# --- real pools ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["game24.parquet", "cruxeval.jsonl", "math_rm8.parquet"])
def test_excerpts_of_real_pools_replay_as_pandas_reads_them(name):
    path = REAL / name
    rows = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_json(path, lines=True, dtype={"answer": str})
    pool = RecordedPool.of(path, count="samples")
    assert list(pool.ids) == rows["prompt_id"].drop_duplicates().tolist()
    for question in pool.questions(seed=None)[:5]:
        part = rows[rows["prompt_id"] == question.id].sort_values("sample_index")
        drawn = draw(pool, question, len(part))
        expected = [None if pd.isna(answer) else canonical(answer) for answer in part["answer"]]
        assert [None if (a := question.read(c)) is None else a.text for c in drawn] == expected
        assert [c.grade.correct for c in drawn] == part["correct"].tolist()
        if "reward" in part:
            assert [question.judge(c).reward for c in drawn] == part["reward"].tolist()


def full(name):
    path = FULL / f"rollouts-{name}" / "rollouts.parquet"
    if not path.exists():
        pytest.skip("the full set is not beside this checkout; tests/data/real has an excerpt")
    return path


def test_the_whole_of_game_24_by_way_of_prompting():
    path = full("game24-gpt4")
    assert RecordedPool.of(path, count="samples").size("900") == 200
    pool = RecordedPool.of(path, count="samples", where={"prompting": "cot"})
    rows = pd.read_parquet(path).query("prompting == 'cot'")
    assert {pool.size(name) for name in pool.ids} == {100}
    drawn = [c for question in pool.questions() for c in draw(pool, question, 100)]
    assert np.mean([c.grade.correct for c in drawn]) == pytest.approx(rows["correct"].mean())


def test_the_whole_of_math_with_its_reward_model():
    path = full("math-rm8")
    pool = RecordedPool.of(path, count="samples", columns={"reward": "rm_score"})
    rows = pd.read_parquet(path)
    best = rows.loc[rows.groupby("idx")["rm_score"].idxmax()]["correct"].mean()
    found = []
    for question in pool.questions(seed=None):
        drawn = draw(pool, question, 8)
        found.append(max(drawn, key=lambda c: question.judge(c).reward).grade.correct)
    assert np.mean(found) == pytest.approx(best)


def test_the_whole_of_cruxeval():
    path = full("cruxeval-output")
    pool = RecordedPool.of(path, count="samples")
    rows = pd.read_parquet(path)
    assert (len(pool.ids), {pool.size(name) for name in pool.ids}) == (800, {10})
    right = [c.grade.correct for question in pool.questions() for c in draw(pool, question, 10)]
    assert np.mean(right) == pytest.approx(rows["correct"].mean())
