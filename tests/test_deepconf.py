"""DeepConf: what is kept, where a trace is stopped, what is counted. Windows are short, so that they can be worked by hand."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from equipoise.base import Answer, Choice, Chunk, Completion, Question, Sampling
from equipoise.errors import UsageError
from equipoise.infer.deepconf import DeepConf, DeepConfOnline, TraceWatch, percentile
from equipoise.infer.ledger import Ledger
from equipoise.infer.metered import Metered
from equipoise.samplers.scripted import Reply, Scripted


def read(completion: Completion) -> Answer | None:
    text = completion.text or ""
    return None if text in ("", "?") else Answer(text)


def ask(max_tokens: int = 1000) -> Question:
    return Question("q", "which?", read, Sampling(max_tokens=max_tokens))


def trace(answer: str, *confidences: float) -> Reply:
    return Reply(answer, n_tokens=len(confidences), confidences=confidences)


def solve(
    strategy, replies, *, budget: int | None = None, chunk: int = 1, max_tokens: int = 1000
) -> tuple[Choice, Scripted]:
    sampler = Scripted(replies, chunk=chunk)

    async def go() -> Choice:
        try:
            return await strategy(ask(max_tokens), Metered(sampler, Ledger(budget)))
        finally:
            assert asyncio.all_tasks() == {asyncio.current_task()}

    return asyncio.run(go()), sampler


# --- offline -------------------------------------------------------------------------------------------------------------


def test_the_surest_traces_vote_with_their_confidence():
    # Means 1, 2, 3, 4, 5: the median is 3, and half of five keeps those from 3 on. b has 3, c has 4 + 5.
    replies = [trace("a", 1), trace("a", 2), trace("b", 3), trace("c", 4), trace("c", 5)]
    choice, _ = solve(DeepConf(n=5, keep=0.5, rule="mean"), replies)
    assert (choice.answer, choice.ballots) == (Answer("c"), {"b": 3, "c": 9})
    assert (choice.abstained, choice.stopped_by, choice.notes) == (0, "finished", ())
    assert choice.chosen is choice.drawn[3]


def test_one_sure_trace_outvotes_two_by_weight_and_keep_one_is_a_weighted_vote():
    replies = [trace("a", 2), trace("a", 2), trace("b", 9)]
    choice, _ = solve(DeepConf(n=3, keep=1.0, rule="mean"), replies)
    assert (choice.answer, choice.ballots) == (Answer("b"), {"a": 4, "b": 9})


@pytest.mark.parametrize(("rule", "weight"), [("mean", 4.0), ("lowest", 2.5), ("bottom", 2.5), ("tail", 5.5)])
def test_the_rule_says_what_a_trace_weighs(rule, weight):
    choice, _ = solve(DeepConf(n=1, rule=rule, window=2, ballots=1), [trace("a", 3, 2, 5, 6)])  # groups 2.5, 3.5, 5.5
    assert choice.ballots == {"a": weight}


def test_what_holds_no_answer_takes_no_place_among_the_kept():
    replies = [trace("?", 99), trace("?", 98), trace("a", 1), trace("a", 2), trace("a", 3), trace("b", 4)]
    choice, _ = solve(DeepConf(n=6, keep=0.7, rule="mean"), replies)
    # Percentile 30 of 1, 2, 3, 4 is 1.9: three are kept.
    assert (choice.ballots, choice.abstained) == ({"a": 5, "b": 4}, 2)


def test_too_few_ballots_are_a_plain_vote_that_says_so():
    replies = [*[trace("a", 1)] * 7, trace("b", 9)]
    choice, _ = solve(DeepConf(n=8, rule="mean"), replies)
    assert (choice.answer, choice.ballots) == (Answer("a"), {"a": 7, "b": 1})
    assert "1 of 8 ballots are left" in choice.notes[0]
    alone, _ = solve(DeepConf(n=8, rule="mean", ballots=1), replies)
    assert (alone.answer, alone.notes) == (Answer("b"), ())


def test_few_ballots_that_are_all_there_is_are_weighed():
    choice, _ = solve(DeepConf(n=2, keep=1.0, rule="mean"), [trace("a", 1), trace("b", 2)])
    assert (choice.answer, choice.notes) == (Answer("b"), ())


def test_recorded_confidences_of_whole_traces_are_used():
    replies = [Reply("a", trace_confidences={"tail": 1.0}), Reply("b", trace_confidences={"tail": 5.0})]
    choice, _ = solve(DeepConf(n=2, keep=1.0), replies)
    assert choice.ballots == {"a": 1, "b": 5}


def test_missing_log_probs_are_an_error_or_a_plain_vote_that_says_so():
    replies = [trace("a", 1), trace("a", 1), Reply("b")]
    with pytest.raises(UsageError, match=r"1 of 3 ballots have no weight.*top_logprobs"):
        solve(DeepConf(n=3, rule="mean"), replies)
    choice, _ = solve(DeepConf(n=3, rule="mean", missing="majority"), replies)
    assert (choice.answer, choice.ballots) == (Answer("a"), {"a": 2, "b": 1})
    assert "plain vote" in choice.notes[0]


@pytest.mark.parametrize("strategy", [DeepConf(n=2, k=7), DeepConfOnline(warmup=1, cap=2, k=7)])
def test_log_probs_are_asked_for(strategy):
    asked = []

    class Listening(Scripted):
        def draw(self, prompt, how, *, n, seed, first=0):
            asked.append(how)
            return super().draw(prompt, how, n=n, seed=seed, first=first)

    asyncio.run(strategy(ask(), Metered(Listening([trace("a", 1), trace("b", 2)]), Ledger())))
    assert len(asked) == 1 if isinstance(strategy, DeepConf) else 2
    assert all(how == replace(ask().how, top_logprobs=7) for how in asked)


def test_keeping_fewer_asks_for_more():
    numbers = [Random(3).random() for _ in range(50)]
    assert percentile(numbers, keep=0.1) >= percentile(numbers, keep=0.9)
    assert percentile([4.0, 1.0, 3.0, 2.0], keep=0.5) == 2.5
    assert percentile([None, None], keep=0.5) is None


# --- watching a trace ----------------------------------------------------------------------------------------------------


def first_below(confidences, window, threshold):
    """The number of tokens at which a trace is first below, by summing every window anew; None: never."""
    for end in range(window, len(confidences) + 1):
        if np.mean(confidences[end - window : end]) < threshold:
            return end
    return None


def test_a_trace_falls_at_exactly_the_first_window_below_in_pieces_of_any_size():
    random = Random(4)
    for _ in range(100):
        confidences = [random.choice([1.0, 2.0, 4.0, 8.0]) for _ in range(40)]
        window, threshold, size = random.randint(1, 9), random.choice([1.6, 2.3, 3.1]), random.randint(1, 7)
        watch, seen, fell = TraceWatch(window), 0, None
        while seen < len(confidences) and fell is None:
            piece = confidences[seen : seen + size]
            if watch.falls(Chunk(0, n_tokens=len(piece), token_confidences=piece), threshold):
                fell = seen // size
            seen += size
        expected = first_below(confidences, window, threshold)
        assert fell == (None if expected is None else (expected - 1) // size)


def test_a_request_that_was_sent_again_starts_its_window_anew():
    watch = TraceWatch(2)
    assert not watch.falls(Chunk(0, n_tokens=1, token_confidences=[1.0]), 2.0)
    assert not watch.falls(Chunk(0, n_tokens=1, token_confidences=[1.0], restart=True), 2.0)
    assert watch.falls(Chunk(0, n_tokens=1, token_confidences=[1.0]), 2.0)
    assert not watch.falls(Chunk(0, n_tokens=1), 2.0)
    assert not TraceWatch(1).falls(Chunk(0, n_tokens=1, token_confidences=[1.0]), None)


# --- online --------------------------------------------------------------------------------------------------------------

# Lowest groups of two tokens: 2, 4, 6, 8; the median is 5.
WARMUP = [trace("a", 2, 2), trace("b", 4, 4), trace("a", 6, 6), trace("b", 8, 8)]
HALF = DeepConfOnline(keep=0.5, warmup=4, cap=5, window=2, at_once=1)


def test_a_trace_is_stopped_at_the_first_group_below_and_has_no_vote():
    falling = trace("a", 9, 9, 2, 2, 2, 2, 2, 9, 9, 9)  # groups 9, 5.5, 2
    choice, sampler = solve(replace(HALF, ballots=1), [*WARMUP, falling])
    stopped = choice.drawn[-1]
    assert (stopped.finish, stopped.n_tokens) == ("confidence", 4)
    assert (choice.ballots, choice.answer) == ({"a": 6, "b": 8}, Answer("b"))  # of the warm-up, those from 5 on
    assert (choice.spent.cancelled, choice.spent.answer) == (4, 8)
    assert choice.spent.generated == sampler.generated == 12
    assert (choice.abstained, choice.stopped_by) == (0, "finished")


def test_a_group_at_the_threshold_goes_on():
    choice, _ = solve(replace(HALF, ballots=1), [*WARMUP, trace("a", 5, 5, 5, 5)])
    assert choice.drawn[-1].finish == "stop"
    assert choice.ballots == {"a": 11, "b": 8}


def test_a_trace_is_never_stopped_before_it_has_a_window_of_tokens():
    choice, _ = solve(replace(HALF, ballots=1), [*WARMUP, trace("a", 1, 9, 9, 9)])  # groups 5, 9, 9
    assert (choice.drawn[-1].finish, choice.ballots["a"]) == ("stop", 11)
    short, _ = solve(replace(HALF, ballots=1), [*WARMUP, trace("a", 1)])
    # One token is no group: it ends by itself, and its mean is below the threshold.
    assert (short.drawn[-1].finish, short.ballots) == ("stop", {"a": 6, "b": 8})


def test_all_tokens_of_the_piece_in_which_a_trace_falls_are_spent():
    choice, sampler = solve(replace(HALF, ballots=1), [*WARMUP, trace("a", 9, 9, 1, 1, 9, 9, 9, 9, 9, 9)], chunk=6)
    assert (choice.drawn[-1].finish, choice.drawn[-1].n_tokens) == ("confidence", 6)
    assert choice.spent.generated == sampler.generated == 14


def test_a_trace_that_falls_in_its_last_piece_has_no_vote():
    choice, _ = solve(replace(HALF, ballots=1), [*WARMUP, trace("a", 9, 9, 1, 1)], chunk=8)
    assert choice.drawn[-1].finish == "stop"
    assert choice.ballots == {"a": 6, "b": 8}


def test_stopped_at_exactly_the_first_token_for_random_traces():
    random = Random(5)
    for _ in range(30):
        confidences = [random.choice([1.0, 6.0, 9.0]) for _ in range(30)]
        choice, _ = solve(replace(HALF, ballots=1), [*WARMUP, trace("a", *confidences)])
        expected = first_below(confidences, 2, 5.0)
        assert choice.drawn[-1].n_tokens == (30 if expected is None else expected)


def test_consensus_starts_nothing_more_and_cancels_what_is_under_way():
    sure = [trace("a", 8, 8)] * 4
    long = trace("b", *[9] * 500)
    strategy = DeepConfOnline(keep=0.9, warmup=3, cap=40, window=2, at_once=2, ballots=4)
    choice, sampler = solve(strategy, [*sure, long, *[long] * 40])
    # Three of the warm-up are too few; the fourth ends beside a long one, which is cancelled.
    assert (choice.answer, choice.stopped_by, len(choice.drawn)) == (Answer("a"), "consensus", 5)
    assert choice.drawn[-1].finish == "consensus"
    assert choice.ballots == {"a": 32}
    assert choice.spent.generated == sampler.generated
    assert choice.spent.cancelled == choice.drawn[-1].n_tokens < 10


def test_consensus_is_a_share_of_the_weights():
    # 19 of 20 equal weights are 0.95; with 18 of 19 it goes on.
    replies = [trace("b", 2, 2), *[trace("a", 2, 2)] * 30]
    choice, _ = solve(DeepConfOnline(keep=1.0, warmup=4, cap=30, window=2, at_once=1), replies)
    assert (len(choice.drawn), choice.stopped_by) == (20, "consensus")
    heavier = [trace("b", 2, 2), *[trace("a", 6, 6)] * 30]
    # 2 against 6 v: 6 v / (6 v + 2) >= 0.95 from v = 7 on.
    choice, _ = solve(DeepConfOnline(keep=1.0, warmup=4, cap=30, window=2, at_once=1), heavier)
    assert len(choice.drawn) == 8


@pytest.mark.parametrize("weight", [1.4, 2.3, 3.9, 5.1])
def test_four_equal_weights_of_five_are_a_share_of_four_fifths(weight):
    replies = [Reply(answer, trace_confidences={"lowest": weight}) for answer in "b" + "a" * 10]
    strategy = DeepConfOnline(keep=1.0, warmup=3, cap=10, window=1, consensus=0.8, at_once=1)
    assert len(solve(strategy, replies)[0].drawn) == 5


def test_consensus_of_the_warm_up_draws_no_more():
    choice, sampler = solve(DeepConfOnline(keep=0.9, warmup=8, cap=40, window=2), [trace("a", 4, 4)] * 40)
    assert (len(choice.drawn), choice.stopped_by, sampler.generated) == (8, "consensus", 16)


def test_too_few_sure_traces_are_a_plain_vote_of_all_that_ended():
    choice, _ = solve(HALF, [*WARMUP, trace("a", 1, 1, 1)])
    assert choice.ballots == {"a": 2, "b": 2}  # the stopped one has no vote here either
    assert "2 of 4 ballots are left above the confidence 5, fewer than 3" in choice.notes[0]


def test_a_warm_up_without_answers_still_sets_the_threshold():
    unread = [trace("?", 2, 2), trace("?", 4, 4), trace("?", 6, 6), trace("?", 8, 8)]
    choice, _ = solve(replace(HALF, cap=6, ballots=1), [*unread, trace("a", 1, 1, 1), trace("b", 9, 9)])
    assert (choice.answer, choice.abstained) == (Answer("b"), 4)
    assert [completion.finish for completion in choice.drawn[4:]] == ["confidence", "stop"]


def test_a_warm_up_that_is_cut_at_its_limit_goes_on_without_answers():
    long = trace("a", *[5] * 50)
    choice, _ = solve(replace(HALF, cap=6), [*[long] * 4, trace("b", 5, 5), long], max_tokens=10)
    assert [completion.finish for completion in choice.drawn] == ["length"] * 4 + ["stop", "length"]
    assert (choice.answer, choice.abstained) == (Answer("b"), 5)


def test_a_warm_up_that_takes_the_budget_answers_with_what_there_is():
    choice, sampler = solve(HALF, WARMUP, budget=6, max_tokens=2)
    assert (len(choice.drawn), choice.stopped_by) == (3, "budget")
    assert sampler.generated == choice.spent.generated == 6
    nothing, _ = solve(HALF, WARMUP, budget=0)
    assert (nothing.answer, nothing.drawn, nothing.stopped_by) == (None, (), "budget")


def test_a_failed_warm_up_sets_no_threshold():
    failed = Reply("x", n_tokens=2, confidences=[9, 9], error="reset")
    choice, _ = solve(replace(HALF, warmup=2, cap=3, ballots=1), [failed, failed, trace("a", 1, 1, 1, 1)])
    assert (choice.answer, choice.ballots, choice.drawn[-1].finish) == (Answer("a"), {"a": 1}, "stop")


def test_a_window_that_no_trace_fills_is_noted():
    choice, _ = solve(replace(HALF, window=100, ballots=1), [*WARMUP, trace("a", 1, 1)])
    assert choice.notes == ("no trace has window=100 tokens, the longest 2: none could be stopped early",)


def test_recorded_traces_without_tokens_vote_and_are_counted_whole():
    replies = [
        Reply(letter, trace_confidences={"lowest": float(n)}) for letter, n in zip("abab", (2, 4, 6, 8), strict=True)
    ]
    low = Reply("a", n_tokens=30, trace_confidences={"lowest": 1.0})
    choice, _ = solve(replace(HALF, ballots=1), [*replies, low])
    assert (choice.ballots, choice.spent.cancelled) == ({"a": 6, "b": 8}, 0)
    assert choice.notes[0].startswith("confidences of tokens were not recorded")


def test_online_missing_log_probs_are_an_error_or_a_plain_vote_that_says_so():
    bare = [Reply("a"), Reply("a"), Reply("b"), Reply("a"), Reply("a")]
    with pytest.raises(UsageError, match="have no weight"):
        solve(HALF, bare)
    choice, _ = solve(replace(HALF, missing="majority"), bare)
    assert (choice.answer, choice.ballots, choice.stopped_by) == (Answer("a"), {"a": 4, "b": 1}, "finished")
    assert "plain vote" in choice.notes[0]


def test_missing_log_probs_late_leave_nothing_under_way():
    with pytest.raises(UsageError, match="1 of 5 ballots"):
        solve(replace(HALF, cap=8, at_once=2), [*WARMUP, Reply("a"), *[trace("b", *[9] * 90)] * 3])


def test_an_interruption_answers_with_what_there_is():
    async def go() -> Choice:
        metered = Metered(Scripted([*WARMUP, *[trace("a", *[9] * 90)] * 20]), Ledger())
        metered.watch = lambda kind, chunk: metered.stop() if metered.ledger.spent.generated > 30 else None
        choice = await replace(HALF, cap=20, at_once=4, ballots=1)(ask(), metered)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return choice

    choice = asyncio.run(go())
    assert (choice.answer, choice.stopped_by) == (Answer("b"), "interrupted")


@pytest.mark.parametrize(
    "make",
    [
        lambda: DeepConf(keep=0),
        lambda: DeepConf(rule="lowst"),
        lambda: DeepConf(window=0),
        lambda: DeepConfOnline(consensus=1.2),
        lambda: DeepConfOnline(warmup=0),
        lambda: DeepConfOnline(missing="weights"),
    ],
)
def test_settings_that_mean_nothing_are_refused(make):
    with pytest.raises(UsageError) as refused:
        make()
    assert "\n" not in str(refused.value)
