"""Beam search and diverse trees over steps, on a tree of letters whose best path is planted."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from math import exp

import pytest
from asking import ask, solve

from equipoise.base import Answer, Completion, Grade, Question, Sampling
from equipoise.errors import UsageError
from equipoise.infer.ledger import Ledger
from equipoise.infer.metered import Metered
from equipoise.infer.step_scores import Checked, Confident, Rollouts
from equipoise.infer.step_search import DVTS, Beam
from equipoise.infer.steps import Branch, Stepping
from equipoise.infer.thoughts import Markers
from equipoise.infer.vote import Majority
from equipoise.samplers.scripted import Reply, Scripted

PLANTED = "cbd"
THREE = len(PLANTED)


def letters(prompt, index):
    """The letters in turn, one a step; the third is the last."""
    left = THREE - (len(prompt) - len("Q"))
    return "abcd"[index % 4] + "." * (left - 1)


def asked(progress=None, judge=None, *, max_tokens=THREE, seed=0):
    def read(completion):
        text = completion.text or ""
        return Answer(text) if len(text) == THREE and "." not in text else None

    return Question("q", "Q", read, Sampling(max_tokens=max_tokens), judge=judge, seed=seed, progress=progress)


def on_path(completion):
    return float(PLANTED.startswith(completion.text))


def steps(**more):
    return {"tokens": 1, "steps": "tokens", **more}


def test_a_perfect_scorer_leads_the_beam_along_the_planted_path_with_n_steps_a_round():
    for search in (Beam(n=4, width=4, **steps()), DVTS(n=4, width=4, **steps())):
        choice, sampler = solve(search, letters, asked(on_path))
        assert choice.answer == Answer(PLANTED)
        assert len(sampler.prompts) == sampler.generated == choice.spent.generated == 4 * THREE
        assert sampler.prompts == ["Q"] * 4 + ["Qc"] * 4 + ["Qcb"] * 4


def test_the_tokens_of_what_was_pruned_are_counted():
    # 8 steps a round, three rounds: 24 tokens; the 8 replies at the end have 3 each, and share the beginnings of 2 branches.
    choice, sampler = solve(Beam(n=8, width=4, **steps()), letters, asked(on_path))
    assert choice.spent.generated == sampler.generated == 24
    assert [c.n_tokens for c in choice.drawn] == [3] * 8
    assert {c.text[:2] for c in choice.drawn} == {"cb"}  # it was drawn twice: both copies are the best
    assert choice.ballots[PLANTED] == 2.0  # the vote weighs scores: only what is on the path has any


def test_with_a_constant_scorer_a_beam_goes_on_from_what_was_drawn_first():
    choice, sampler = solve(Beam(n=4, width=4, **steps()), letters, asked(lambda completion: 0.5))
    assert sampler.prompts == ["Q"] * 4 + ["Qa"] * 4 + ["Qaa"] * 4
    assert {c.text for c in choice.drawn} == {"aaa", "aab", "aac", "aad"}


def test_trees_exchange_nothing_and_a_beam_does():
    """All proposals of the second half are scored low: the beam leaves them, each tree keeps its own."""

    def say(prompt, index):
        first = "ab"[index // 2] if prompt == "Q" else "cd"[index % 2]
        return first + "." * (THREE - len(prompt))

    def likes_a(completion):
        return 0.9 if completion.text.startswith("a") else 0.1

    def own_draws(prompt, index):  # the trees draw one after the other: two of the first, then two of the second
        return say(prompt, index)

    trees, _ = solve(DVTS(n=4, width=2, **steps()), own_draws, asked(likes_a))
    beam, _ = solve(Beam(n=4, width=2, **steps()), own_draws, asked(likes_a))
    assert {c.text[0] for c in trees.drawn} == {"a", "b"}
    assert {c.text[0] for c in beam.drawn} == {"a"}


def test_of_width_one_both_are_n_independent_replies():
    def say(prompt, index):
        return "abcd"[index % 4] * (THREE - (len(prompt) - 1))

    question = asked(lambda completion: 0.5)
    beam, _ = solve(Beam(n=4, width=1, **steps()), say, question)
    trees, _ = solve(DVTS(n=4, width=1, **steps()), say, question)
    assert [c.text for c in beam.drawn] == [c.text for c in trees.drawn] == ["aaa", "bbb", "ccc", "ddd"]
    assert (beam.answer, beam.spent.generated) == (trees.answer, trees.spent.generated)
    # In one step it is a vote.
    words = lambda prompt, index: ["abc", "abd", "abc", "abc"][index]  # noqa: E731
    vote, _ = solve(Majority(4), words, question)
    for search in (Beam(n=4, width=1, pick="vote"), DVTS(n=4, width=1)):
        choice, _ = solve(search, words, question)
        assert (choice.answer, choice.spent.generated) == (vote.answer, vote.spent.generated)
        assert choice.ballots == {"abc": 1.5, "abd": 0.5}


def test_where_the_budget_ends_the_best_beginning_comes_back():
    for budget in range(13):
        for search in (Beam(n=4, width=4, **steps()), DVTS(n=4, width=4, **steps())):
            choice, sampler = solve(search, letters, asked(on_path), budget=budget)
            assert choice.spent.generated == sampler.generated <= budget
            if budget < 12:
                assert choice.stopped_by == "budget"
    choice, _ = solve(Beam(n=4, width=4, **steps()), letters, asked(on_path), budget=6)
    assert choice.answer is None
    assert choice.drawn[0].text == "cb"  # the two steps after c were a and b


def test_the_last_round_runs_to_the_end():
    choice, sampler = solve(Beam(n=4, width=4, rounds=2, **steps()), letters, asked(on_path))
    assert sampler.prompts == ["Q"] * 4 + ["Qc"] * 4
    assert all(len(c.text) == THREE for c in choice.drawn)


def test_the_best_reply_or_a_vote_weighted_by_scores():
    rewards = {"aaa": 0.4, "bbb": 0.3, "ccc": 0.5}
    says = ["aaa", "bbb", "bbb", "ccc"]
    question = asked(judge=lambda completion: Grade(Answer(completion.text), None, rewards[completion.text]))
    best, _ = solve(Beam(n=4, width=4, pick="best"), says, question)
    voted, _ = solve(Beam(n=4, width=4, pick="vote"), says, question)
    assert (best.answer, best.chosen.text) == (Answer("ccc"), "ccc")
    assert (voted.answer, dict(voted.ballots)) == (Answer("bbb"), {"aaa": 0.4, "bbb": 0.6, "ccc": 0.5})


# --- steps


def go(stepping_of, *more):
    async def run():
        return await stepping_of(*more)

    return asyncio.run(run())


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_a_step_ends_with_its_separator_and_what_came_beyond_it_was_spent(chunk):
    sampler = Scripted(["one\n\ntwo\n\nthree", "\n\nfour\n\nfive", "six\n\n", "seven"], chunk=chunk)
    metered = Metered(sampler, Ledger())
    stepping = Stepping(ask(), metered, 2048, "\n\n")
    found = go(stepping.go_on, [Branch()], [4])[0]
    assert [branch.text for branch in found] == ["one\n\n", "\n\nfour\n\n", "six\n\n", "seven"]
    assert [branch.finish for branch in found] == [None, None, "stop", "stop"]  # the third is all it had to say
    assert metered.ledger.spent.generated == sampler.generated
    assert metered.ledger.spent.cancelled == 0
    if chunk == 1:
        assert sampler.generated == len("one\n\n\n\nfour\n\nsix\n\nseven")
    assert found[0].prompt("Q", stepping.markers) == "Qone\n\n"
    messages = [{"role": "user", "content": "Q"}]
    assert found[0].prompt(messages, stepping.markers)[-1] == {"role": "assistant", "content": "one\n\n"}


def test_a_separator_that_nothing_stands_before_ends_no_step():
    stepping = Stepping(ask(), Metered(Scripted([",,a,b", ",", "a"]), Ledger()), 99, ",")
    found = go(stepping.go_on, [Branch()], [3])[0]
    assert [(branch.text, branch.finish) for branch in found] == [(",,a,", None), (",", "stop"), ("a", "stop")]


def test_thinking_that_comes_apart_is_put_back_between_its_marks():
    def say(prompt, index):
        return Reply("13-4", thinking="1+2=3,4+5=9") if prompt == "2+2=" else Reply("13-4", thinking="4+5=9")

    sampler = Scripted(say)
    stepping = Stepping(ask(), Metered(sampler, Ledger()), 99, ",", Markers("[", "]"))
    first = go(stepping.go_on, [Branch()], [1])[0][0]
    assert (first.thinking, first.text, first.finish) == ("1+2=3,", "", None)
    last = go(stepping.go_on, [first], [1])[0][0]
    assert sampler.prompts[-1] == "2+2=[1+2=3,"
    assert (last.thinking, last.text, last.finish) == ("1+2=3,4+5=9", "13-4", "stop")
    assert last.prompt("2+2=", stepping.markers) == "2+2=[1+2=3,4+5=9]13-4"
    whole = last.completion()
    assert (whole.thinking, whole.text, whole.n_tokens) == ("1+2=3,4+5=9", "13-4", 6 + 9)


def test_a_reply_ends_at_its_own_limit():
    sampler = Scripted(lambda prompt, index: "abcdefgh")
    stepping = Stepping(ask(max_tokens=5), Metered(sampler, Ledger()), 3)
    first = go(stepping.go_on, [Branch()], [1])[0][0]
    assert (first.text, first.finish) == ("abc", None)
    second = go(stepping.go_on, [first], [1])[0][0]
    assert (second.text, second.finish, sampler.generated) == ("abcab", "length", 5)


# --- scorers


def scored(scorer, branches, question, replies=()):
    sampler = Scripted(list(replies))
    metered = Metered(sampler, Ledger())
    return asyncio.run(scorer.score(question, metered, branches)), metered


def branch(text, finish=None, **more):
    return Branch(text=text, finish=finish, steps=(Completion(text, n_tokens=len(text), **more),))


def test_progress_is_for_what_is_under_way_and_the_judge_for_what_is_finished():
    question = asked(on_path, lambda completion: Grade(None, "wrong", None))
    assert scored(Checked(), [branch("c"), branch("cb", "length"), branch("cb", "stop")], question)[0] == [
        1.0,
        1.0,
        0.0,
    ]
    only_judge = asked(judge=lambda completion: Grade(None, None, 0.25))
    assert scored(Checked(), [branch("c"), branch("c", "stop")], only_judge)[0] == [0.25, 0.25]
    with pytest.raises(UsageError, match="need a verifier"):
        scored(Checked(), [branch("c")], asked())
    with pytest.raises(UsageError, match="gives the beginning of a reply no score"):
        scored(Checked(), [branch("c")], asked(lambda completion: None))


def test_confidence_is_the_geometric_mean_of_the_last_step():
    two = Branch(
        steps=(Completion("ab", n_tokens=2, logprobs=[-9.0, -9.0]), Completion("c", n_tokens=2, logprobs=[-1, -3]))
    )
    assert scored(Confident(), [two], asked())[0] == pytest.approx([exp(-2)])
    with pytest.raises(UsageError, match="need log-probs"):
        scored(Confident(), [branch("c")], asked())


def test_rollouts_are_probes_and_score_their_mean():
    question = asked(judge=lambda completion: Grade(None, "right" if completion.text == PLANTED else "wrong", None))
    found, metered = scored(
        Rollouts(4, Markers("<", ">")), [branch("c"), branch("cbd", "stop"), branch("cba", "stop")],
        question, ["bd", "bd", "aa", "bd"],
    )  # fmt: skip
    assert found == [0.75, 1.0, 0.0]
    assert (metered.ledger.spent.probe, metered.ledger.spent.generated) == (8, 8)
    # Without a judge: how far they agree. ccc twice, cab once, one without an answer.
    agreed, _ = scored(Rollouts(4, Markers("<", ">")), [branch("c")], asked(), ["cc", "ab", "cc", "."])
    assert agreed == [0.5]


@pytest.mark.parametrize("settings", [{"n": 6, "width": 4}, {"n": 0}, {"width": 0}, {"by": "me"}, {"pick": "last"}])
def test_bad_settings_are_refused(settings):
    for search in (Beam, DVTS):
        with pytest.raises(UsageError):
            search(**settings)


def test_a_model_in_this_process_is_continued_exactly():
    """Greedy, in steps of 3 tokens or of one, it says what it says in one go."""
    pytest.importorskip("torch")

    from equipoise.lab.open_model import open_sampler
    from equipoise.tasks.asking import ask as pose
    from equipoise.tasks.table import find_task

    task, opened = find_task("countdown"), open_sampler("packaged")
    for problem in task.problems(5, 3, split="test"):
        question = pose(task, problem, Sampling(max_tokens=20, temperature=0.0))

        def choose(search, question=question):
            return asyncio.run(search(question, Metered(opened.sampler, Ledger())))

        whole = choose(Beam(n=1, width=1))
        for tokens in (1, 3):
            stepwise = choose(Beam(n=1, width=1, tokens=tokens, steps="tokens"))
            assert stepwise.drawn[0].text == whole.drawn[0].text
            assert stepwise.drawn[0].token_ids == whole.drawn[0].token_ids
        # With the task's own checker of beginnings, sampled steps find what is right far more often than not.
        sampled = replace(question, how=replace(question.how, temperature=1.0))
        found = choose(Beam(n=16, width=4, tokens=2, steps="tokens"), sampled)
        assert question.judge(found.chosen).correct


def test_a_step_cut_before_its_tokens_is_the_last():
    """The backend has no room for more, whatever the question allows."""

    class Small(Scripted):
        def draw(self, prompt, how, *, n, seed, first=0):
            return Scripted.draw(
                self, prompt, replace(how, max_tokens=min(how.max_tokens, 7 - len(prompt))), n=n, seed=seed
            )

    stepping = Stepping(ask(max_tokens=50), Metered(Small(lambda prompt, index: "abcdefgh"), Ledger()), 2)
    first = go(stepping.go_on, [Branch()], [1])[0][0]
    assert (first.text, first.finish) == ("ab", None)
    last = go(stepping.go_on, [first], [1])[0][0]
    assert (last.text, last.finish) == ("aba", "length")
