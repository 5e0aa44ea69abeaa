"""Weighted votes: hand-made ballots, the limits in which they are plain votes, and weights that are missing."""

from __future__ import annotations

import asyncio
import math
from itertools import permutations

import pytest
from asking import ask, graded, solve, sure

from equipoise.base import Answer, Completion, Grade
from equipoise.errors import UsageError
from equipoise.infer.cisc import CISC, p_true, softmax_weights
from equipoise.infer.ledger import Ledger
from equipoise.infer.metered import Metered
from equipoise.infer.single import Single
from equipoise.infer.vote import Majority
from equipoise.infer.weighted import Borda, Weighted, borda_weights
from equipoise.samplers.scripted import Reply

# 7 has two sure votes, 4 has three doubtful ones, and two abstain, however sure they are.
POLL = [
    sure("4", 1.0),
    sure("7", 4.0),
    sure("?", 99.0),
    sure("4", 1.5),
    sure("7", 3.0),
    sure("4", 2.0),
    sure("?", 50.0),
]


def test_single_takes_the_first_or_nothing():
    choice, sampler = solve(Single(), ["5", "6"])
    assert (choice.answer, choice.stopped_by, len(choice.drawn), sampler.generated) == (Answer("5"), "finished", 1, 1)
    choice, _ = solve(Single(), ["no idea"])
    assert (choice.answer, choice.chosen, choice.abstained) == (None, None, 1)


def test_confidence_outweighs_number_and_abstentions_have_none():
    choice, _ = solve(Weighted(n=7), POLL)
    assert choice.answer == Answer("7")
    assert choice.ballots == {"4": 4.5, "7": 7.0}
    assert choice.abstained == 2
    assert solve(Majority(n=7), POLL)[0].answer == Answer("4")


def test_equal_weights_are_the_majority_and_a_common_factor_changes_nothing():
    even, _ = solve(Weighted(n=7), [sure(reply.text, 3.0) for reply in POLL])
    assert (even.answer, even.ballots) == (Answer("4"), {"4": 9.0, "7": 6.0})
    scaled, _ = solve(Weighted(n=7), [sure(r.text, 1000 * r.confidences[0]) for r in POLL])
    assert scaled.answer == Answer("7")


def test_a_judge_s_reward_or_verdict_weighs():
    choice, _ = solve(Weighted(n=3, by="judge"), ["4", "4", "7"], ask(judge=graded(_4=0.2, _7=0.5)))
    assert (choice.answer, choice.ballots) == (Answer("7"), {"4": pytest.approx(0.4), "7": 0.5})
    right = {"4": "wrong", "7": "right"}
    choice, _ = solve(
        Weighted(n=3, by="judge"), ["4", "4", "7"], ask(judge=lambda c: Grade(None, right[c.text], reward=None))
    )
    assert choice.ballots == {"4": 0.0, "7": 1.0}


def test_a_stated_confidence_is_the_recorded_one_or_the_judge_s():
    def said(text, confidence):
        return Reply(text, grade=Grade(Answer(text), None, None, confidence=confidence))

    choice, _ = solve(Weighted(n=3, by="stated"), [said("4", 0.3), said("4", 0.2), said("7", 0.9)])
    assert (choice.answer, choice.ballots["4"]) == (Answer("7"), pytest.approx(0.5))
    doubting = ask(judge=lambda c: Grade(None, None, None, confidence=0.9 if c.text == "7" else 0.1))
    assert solve(Weighted(n=3, by="stated"), ["4", "4", "7"], doubting)[0].answer == Answer("7")


def test_recorded_trace_confidences_stand_in_for_those_of_the_tokens():
    replies = [Reply("4", trace_confidences={"tail": 1.0}), Reply("7", trace_confidences={"tail": 3.0})]
    assert solve(Weighted(n=2, rule="tail"), replies)[0].ballots == {"4": 1.0, "7": 3.0}
    with pytest.raises(UsageError, match="2 of 2 ballots have no weight"):
        solve(Weighted(n=2, rule="mean"), replies)


def test_the_rule_and_its_window_decide_what_a_trace_weighs():
    # Tokens 1, 1, 9, 9: groups of two are 1, 5, 9, so the lowest is 1, the tail of two 9 and the mean 5.
    replies = [Reply("4444", confidences=[1.0, 1.0, 9.0, 9.0])]
    for rule, weight in (("lowest", 1.0), ("tail", 9.0), ("mean", 5.0)):
        assert solve(Weighted(n=1, rule=rule, window=2), replies)[0].ballots == {"4444": weight}


@pytest.mark.parametrize("strategy", [Weighted(n=3), Borda(n=3), CISC(n=3, by="confidence")])
def test_missing_log_probs_are_an_error_or_a_plain_vote_that_says_so(strategy):
    replies = [sure("7", 9.0), "4", "4"]
    with pytest.raises(UsageError, match=r"2 of 3 ballots have no weight.*log-probs.*missing=majority") as caught:
        solve(strategy, replies)
    assert "\n" not in str(caught.value)
    lenient = type(strategy)(**{name: getattr(strategy, name) for name in strategy.__slots__} | {"missing": "majority"})
    choice, _ = solve(lenient, replies)
    assert (choice.answer, choice.ballots) == (Answer("4"), {"7": 1.0, "4": 2.0})
    assert "counted as a plain vote" in choice.notes[0]


def test_one_that_abstains_may_lack_a_weight():
    choice, _ = solve(Weighted(n=2), [sure("7", 2.0), "?"])
    assert (choice.ballots, choice.notes) == ({"7": 2.0}, ())


def test_weights_that_cannot_be_voted_with():
    with pytest.raises(UsageError, match=r"cannot weigh -0\.5"):
        solve(Weighted(n=2, by="judge"), ["4", "7"], ask(judge=graded(_4=-0.5, _7=0.5)))
    choice, _ = solve(Weighted(n=3, by="judge"), ["4", "7", "4"], ask(judge=graded(_4=0.0, _7=0.0)))
    assert (choice.answer, choice.notes) == (Answer("4"), ("every ballot has weight 0: counted as a plain vote",))
    with pytest.raises(UsageError, match="need a verifier or reward, and question 'q' has none"):
        solve(Weighted(n=2, by="judge"), ["4", "7"])


def test_log_probs_are_asked_for():
    asked = []

    class Watching:
        def draw(self, prompt, how, *, n, seed, first=0):
            asked.append(how.top_logprobs)
            raise UsageError("enough")

    for strategy in (Weighted(k=7), Weighted(by="stated"), Borda(), CISC(by="confidence"), CISC()):
        with pytest.raises(UsageError, match="enough"):
            asyncio.run(strategy(ask(), Metered(Watching(), Ledger())))
    assert asked == [7, None, 20, 20, None]


def test_borda_by_hand():
    # Four ballots by falling confidence 9, 5, 5, 1: ranks 1, 2.5, 2.5, 4, weights 4, 2.5, 2.5, 1 at p = 1.
    assert borda_weights([5.0, 9.0, 1.0, 5.0], p=1) == [2.5, 4.0, 1.0, 2.5]
    assert borda_weights([5.0, 9.0, 1.0, 5.0], p=0.5)[1] == 2.0
    assert borda_weights([], p=0.5) == []
    # 7 ranks first of four ballots, the three 4s behind it: 4 against 3 + 2 + 1, and 16 against 9 + 4 + 1.
    replies = [sure("4", 1.0), sure("?", 50.0), sure("7", 9.0), sure("4", 2.0), sure("4", 3.0)]
    for p, winner, ballots in ((1, "4", {"4": 6.0, "7": 4.0}), (2, "7", {"4": 14.0, "7": 16.0})):
        choice, _ = solve(Borda(n=5, p=p), replies)
        assert (choice.answer, choice.ballots) == (Answer(winner), ballots)


def test_borda_with_p_0_is_the_majority_of_the_same_ballots():
    for order in permutations(POLL[:5]):
        borda, plain = solve(Borda(n=5, p=0), order)[0], solve(Majority(n=5), order)[0]
        assert (borda.answer, borda.ballots, borda.abstained) == (plain.answer, plain.ballots, plain.abstained)


def test_borda_ranks_confidences_of_any_sign():
    choice, _ = solve(Borda(n=3, p=1), [sure("4", -3.0), sure("7", -1.0), sure("4", -2.0)])
    assert choice.ballots == {"4": 3.0, "7": 3.0}
    assert set(choice.tied) == {"4", "7"}


def test_softmax_weights_and_their_limits():
    # e^(ln 3) : e^0 is 3 : 1
    assert softmax_weights([math.log(3), 0.0], temperature=1) == pytest.approx([0.75, 0.25])
    assert softmax_weights([2 * math.log(3), 0.0], temperature=2) == pytest.approx([0.75, 0.25])
    assert math.fsum(softmax_weights([700.0, -900.0, 3.0], temperature=0.1)) == pytest.approx(1)
    assert softmax_weights([1.0, 5.0, 2.0], temperature=math.inf) == pytest.approx([1 / 3] * 3)
    assert softmax_weights([1.0, 5.0, 2.0], temperature=1e-9) == [0, 1, 0]


def test_cisc_goes_from_the_surest_reply_to_the_majority():
    def cisc(temperature):
        return solve(CISC(n=7, by="confidence", weight_temperature=temperature), POLL)[0]

    assert (cisc(1e-6).answer, cisc(1e6).answer) == (Answer("7"), Answer("4"))
    assert math.fsum(cisc(1.0).ballots.values()) == pytest.approx(1)
    # e^4 + e^3 against e^1 + e^1.5 + e^2
    assert cisc(1.0).ballots["7"] == pytest.approx(74.684 / (74.684 + 14.589), abs=1e-4)


def p_true_world(prompt, index):
    """Replies 4, 4, 7, ?; asked about a reply, the model doubts a 4 (P(1) = 0.1) and trusts a 7 (0.9)."""
    if prompt == "2+2=":
        return ["4", "4", "7", "?"][index]
    return Reply("1", logprobs=[math.log(0.9)]) if prompt.startswith("2+2=7") else Reply("0", logprobs=[math.log(0.9)])


def test_p_true_is_asked_once_for_each_ballot_and_stands_in_the_probe_line():
    choice, sampler = solve(CISC(n=4, weight_temperature=0.1), p_true_world)
    assert choice.answer == Answer("7")
    # weights e^(1), e^(1), e^(9) over their sum
    total = 2 * math.e + math.exp(9)
    assert choice.ballots == pytest.approx({"4": 2 * math.e / total, "7": math.exp(9) / total})
    assert (choice.spent.answer, choice.spent.probe, sampler.generated) == (4, 3, 7)
    assert choice.stopped_by == "finished"
    assert all("correct" in prompt for prompt in sampler.prompts[4:])


def test_p_true_keeps_room_for_its_questions():
    # Five tokens, one for each reply and question: two can be drawn and asked about, a third could not be.
    choice, _ = solve(CISC(n=4, weight_temperature=0.1), p_true_world, ask(1), budget=5)
    assert (len(choice.drawn), choice.spent.probe, choice.stopped_by) == (2, 2, "budget")


def test_p_true_needs_log_probs():
    with pytest.raises(UsageError, match="needs the log-prob of a reply '1' or '0'"):
        solve(CISC(n=2), lambda prompt, i: "4" if prompt == "2+2=" else "1")
    lenient, _ = solve(CISC(n=2, missing="majority"), lambda prompt, i: "4" if prompt == "2+2=" else "1")
    assert (lenient.answer, lenient.ballots) == (Answer("4"), {"4": 2.0})


def test_a_model_that_says_neither_1_nor_0_leaves_a_plain_vote():
    def say(prompt, index):
        if prompt == "2+2=":
            return ["4", "7", "4"][index]
        return Reply("Y" if index == 0 else "1", logprobs=[-0.1])

    choice, _ = solve(CISC(n=3), say)
    assert (choice.answer, choice.ballots) == (Answer("4"), {"4": 2.0, "7": 1.0})
    assert choice.notes[0].startswith("1 of 3 ballots have no weight: the confidence question")


def test_a_confidence_question_that_failed_leaves_a_plain_vote():
    choice, _ = solve(CISC(n=2), lambda prompt, i: "4" if prompt == "2+2=" else Reply("", error="gone"))
    assert (choice.answer, choice.ballots) == (Answer("4"), {"4": 2.0})
    assert choice.notes[0] == "a completion failed: gone (2 times)"


def test_p_true_reads_the_first_token():
    reply = Completion("1 yes", token_texts=(" 1", " yes"), logprobs=[math.log(0.25), -1.0])
    assert p_true(reply) == pytest.approx(0.25)
    assert p_true(Completion("0", logprobs=[math.log(0.25)])) == pytest.approx(0.75)
    assert p_true(Completion(None, thinking="1", logprobs=[math.log(0.25)])) == pytest.approx(0.25)
    assert p_true(Completion("1")) is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Weighted(n=0), "n is 1 or more, found 0"),
        (lambda: Weighted(by="vibes"), "unknown weight 'vibes'"),
        (lambda: Weighted(rule="media"), "unknown rule 'media'"),
        (lambda: Weighted(missing="zero"), "unknown fallback 'zero'"),
        (lambda: Borda(p=-1), "p of borda is 0"),
        (lambda: Borda(p=math.nan), "p of borda is 0"),
        (lambda: CISC(weight_temperature=0), "weight_temperature is above 0"),
        (lambda: CISC(by="verbal"), "unknown confidence 'verbal'"),
    ],
)
def test_settings_that_mean_nothing_are_refused(make, message):
    with pytest.raises(UsageError, match=message):
        make()
