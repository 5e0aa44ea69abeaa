"""What every strategy of the catalogue keeps to. A new one is found by its row."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from dataclasses import MISSING, asdict, fields, is_dataclass, replace
from importlib import import_module
from itertools import permutations

import pytest
from asking import read, sure

from equipoise.base import Answer, Choice, Grade, Question, Sampling
from equipoise.catalogue.build import build
from equipoise.catalogue.table import find_method, is_built, methods
from equipoise.infer.ledger import Ledger
from equipoise.infer.metered import Metered
from equipoise.infer.prompts import P_TRUE
from equipoise.samplers.scripted import Reply, Scripted

NAMES = [m.name for m in methods() if m.loop == "inference" and is_built(m)]
SHARED = {target for target, rows in Counter(find_method(name).target for name in NAMES).items() if rows > 1}

# Settings in which a strategy has one completion to choose from.
ONE = {"n": 1, "turns": 1, "cap": 1, "warmup": 1, "wait": 0, "generations": 1, "islands": 1, "conversations": 1}
# What depends on the order of the completions: those that take one, a chain of them, or stop early.
ORDERED = {
    "single", "revision", "cap", "budget_forcing", "adaptive_consistency", "esc", "anytime", "settled", "deepconf_online",
    "reasc", "parallel_probe", "mars", "beam", "dvts", "particles", "agent",
    "mind_evolution", "revision_threads",
}  # fmt: skip

SAYS = ("4", "7", "?", "4", "9", "4", "7", "?")
TRUST = {"4": 2.0, "7": 3.0, "9": 0.5, "?": 9.0}


def world(says=SAYS, *, longer=1, **more):
    """Says these in turn, surer of some than of others; asked about its own reply it is as sure again."""

    def say(prompt, index):
        if P_TRUE in prompt:
            return Reply("1", logprobs=[-1 / TRUST.get(prompt[1], 1.0)])
        text = says[index % len(says)]
        return replace(sure(text * longer, TRUST.get(text, 1.0)), **more)

    return say


def question(max_tokens=40_000, seed=0):
    def judge(completion):
        answer = read(completion)
        return Grade(answer, "wrong", 0.1 * TRUST.get((completion.text or "?")[0], 0.0))

    return Question("q", "Q", read, Sampling(max_tokens=max_tokens), judge=judge, seed=seed)


def run(strategy, say, *, budget=None, asked=None, **more):
    async def go():
        sampler = Scripted(say, **more)
        metered = Metered(sampler, Ledger(budget))
        choice = await strategy(asked or question(), metered)
        assert len(asyncio.all_tasks()) == 1  # nothing was left behind
        assert metered.ledger._reserved == 0
        return choice, sampler

    return asyncio.run(go())


def small(name, **settings):
    """A strategy with its own settings but for those given that it has."""
    strategy = build(name)
    return replace(strategy, **{key: value for key, value in settings.items() if hasattr(strategy, key)})


def target_of(name):
    module, _, attribute = find_method(name).target.partition(":")
    return getattr(import_module(module), attribute)


def defaults_of(name):
    return {field.name: None if field.default is MISSING else field.default for field in fields(target_of(name))}


def test_the_catalogue_has_strategies():
    assert len(NAMES) >= 10
    assert {m.name for m in methods()} >= ORDERED


@pytest.mark.parametrize("name", NAMES)
def test_it_is_a_frozen_record_of_its_settings(name):
    target = target_of(name)
    assert is_dataclass(target)
    assert target.__dataclass_params__.frozen
    assert "__slots__" in vars(target)
    assert inspect.iscoroutinefunction(target.__call__)
    assert all(field.default is not MISSING for field in fields(target))


@pytest.mark.parametrize("name", NAMES)
def test_its_defaults_are_those_of_its_row_and_the_row_shows_them_all(name):
    row, defaults = find_method(name), defaults_of(name)
    assert asdict(build(name)) == {**defaults, **row.settings}
    rows = [m for m in methods() if m.target == row.target]
    hidden = set(defaults) - {key for each in rows for key in each.settings}
    assert all(isinstance(defaults[key], str) and " " in defaults[key] for key in hidden), hidden  # wordings
    if row.target not in SHARED:
        assert {key: defaults[key] for key in row.settings} == dict(row.settings)


@pytest.mark.parametrize("name", NAMES)
def test_its_row_can_be_written_as_a_spec_and_says_what_to_look_out_for(name):
    row = find_method(name)
    spec = f"{name}:" + ",".join(f"{key}={value}" for key, value in row.settings.items())
    assert build(spec.rstrip(":")) == build(name)
    assert row.traps
    assert row.equation


@pytest.mark.parametrize("name", NAMES)
def test_with_one_completion_it_is_plain_sampling(name):
    choice, _ = run(small(name, **ONE), world(["7"]))
    assert (choice.answer, choice.abstained, len(choice.drawn)) == (Answer("7"), 0, 1)
    assert choice.chosen is choice.drawn[0]
    assert choice.spent.answer == 1


@pytest.mark.parametrize("name", NAMES)
def test_what_holds_no_answer_never_wins(name):
    nothing, _ = run(build(name), world(["?"]))
    assert (nothing.answer, nothing.chosen, dict(nothing.ballots), nothing.tied) == (None, None, {}, ())
    assert nothing.drawn
    some, _ = run(build(name), world(["?", "?", "?", "4"]))
    assert some.answer in (None, Answer("4"))
    assert set(some.ballots) <= {"4"}


@pytest.mark.parametrize("name", NAMES)
def test_without_a_budget_there_is_no_answer_and_no_spend(name):
    choice, sampler = run(build(name), world(), budget=0)
    assert isinstance(choice, Choice)
    assert (choice.answer, choice.stopped_by, choice.spent.generated, sampler.generated) == (None, "budget", 0, 0)
    assert choice.drawn == ()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("keeps_limits", [True, False])
def test_every_token_is_in_the_ledger_and_none_beyond_the_budget(name, keeps_limits):
    for budget in (1, 2, 3, 8, 21, 55, None):
        for chunk in (1, 3):
            choice, sampler = run(
                build(name),
                world(longer=6, restarts=2),
                budget=budget,
                asked=question(33_000),
                chunk=chunk,
                keeps_limits=keeps_limits,
            )
            assert choice.spent.generated == sampler.generated
            # A backend that does not keep to its limit is over by a piece for each completion, or by the one it failed with.
            over = 0 if keeps_limits else max(chunk, 2) * len(sampler.prompts)
            assert budget is None or sampler.generated <= budget + max(over, 2), (budget, chunk)


@pytest.mark.parametrize("name", NAMES)
def test_requests_that_fail_are_noted_and_have_no_vote(name):
    def say(prompt, index):
        return Reply("7", error="reset") if index % 2 == 0 else world(["4"])(prompt, index)

    choice, sampler = run(build(name), say)
    assert choice.answer in (None, Answer("4"))
    assert any("reset" in note for note in choice.notes)
    assert choice.spent.generated == sampler.generated


@pytest.mark.parametrize("name", NAMES)
def test_stopped_from_outside_it_returns_with_what_it_has(name):
    async def go():
        sampler = Scripted(world(longer=40))
        metered = Metered(sampler, Ledger())
        metered.watch = lambda kind, chunk: metered.stop() if metered.ledger.spent.generated >= 25 else None
        choice = await build(name)(question(), metered)
        assert len(asyncio.all_tasks()) == 1
        assert metered.ledger._reserved == 0
        return choice, sampler

    choice, sampler = asyncio.run(go())
    assert choice.stopped_by == "interrupted"
    assert choice.spent.generated == sampler.generated


@pytest.mark.parametrize("name", NAMES)
def test_cancelled_it_leaves_nothing_behind(name):
    async def go():
        sampler = Scripted(world(longer=40))
        metered = Metered(sampler, Ledger(100_000))
        task = asyncio.ensure_future(build(name)(question(33_000), metered))
        metered.watch = lambda kind, chunk: task.cancel() if metered.ledger.spent.generated >= 25 else None
        with pytest.raises(asyncio.CancelledError):
            await task
        for _ in range(3):  # callbacks of what has just ended
            await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1
        assert metered.ledger._reserved == 0
        assert metered.ledger.spent.generated == sampler.generated

    asyncio.run(go())


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_decides_all(name):
    def told(choice):
        return replace(choice, spent=replace(choice.spent, seconds=0.0))

    for seed in range(3):
        first, again = (run(build(name), world(), asked=question(seed=seed))[0] for _ in range(2))
        assert told(first) == told(again)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ORDERED])
def test_the_order_of_completions_decides_nothing(name):
    strategy = small(name, n=5, keep=0.5, window=1)
    says = ("4", "7", "?", "4", "9")
    expected, _ = run(strategy, world(says))
    for order in permutations(says):
        choice, _ = run(strategy, world(order))
        assert (choice.answer, choice.abstained) == (expected.answer, expected.abstained)
        assert dict(choice.ballots) == pytest.approx(dict(expected.ballots))
    # Ties: whatever the order, the same of the leaders for the same seed.
    orders = permutations(("1", "2", "3", "?", "?"))
    assert len({run(strategy, world(order), asked=question(seed=5))[0].answer for order in orders}) == 1


def test_ties_are_broken_evenly_over_seeds():
    vote = build("majority:n=2")
    won = Counter(run(vote, world(["4", "7"]), asked=question(seed=seed))[0].answer for seed in range(200))
    assert set(won) == {Answer("4"), Answer("7")}
    assert min(won.values()) > 70  # 100 expected, standard deviation 7
