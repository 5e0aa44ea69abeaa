"""Draws in batches: the completions of draws one at a time, whoever they were drawn beside."""

from __future__ import annotations

import asyncio

import pytest
import torch

from equipoise.base import Question, Sampling
from equipoise.errors import UsageError
from equipoise.infer.ledger import Ledger
from equipoise.infer.metered import Metered
from equipoise.infer.together import together
from equipoise.models.loaders import load_model
from equipoise.models.packaged import packaged_model
from equipoise.samplers.batched import Batched
from equipoise.samplers.in_process import InProcess

HOW = Sampling(max_tokens=20)
PROMPTS = ["3,7,2,9=24>", "1,2,3,4=10>", "12,15,8,20=55>"]


@pytest.fixture(scope="module")
def loaded():
    return load_model(packaged_model(), dtype=torch.float64)  # so that no rounding moves a draw


async def drawn(sampler, asked):
    async def one(prompt, n, seed, first, how):
        chunks = [chunk async for chunk in sampler.draw(prompt, how, n=n, seed=seed, first=first)]
        texts: dict[int, str] = {}
        tokens, finish = {}, {}
        for chunk in chunks:
            texts[chunk.index] = texts.get(chunk.index, "") + chunk.text
            tokens[chunk.index] = tokens.get(chunk.index, 0) + chunk.n_tokens
            finish[chunk.index] = chunk.finish or finish.get(chunk.index)
        return [(texts[i], tokens[i], finish[i]) for i in range(n)]

    return await together(one(*each) for each in asked)


def test_they_are_those_of_draws_one_at_a_time(loaded):
    short, stop = Sampling(max_tokens=4), Sampling(max_tokens=20, stop=("+",), temperature=0.7)
    asked = [
        (PROMPTS[0], 3, 5, 0, HOW),
        (PROMPTS[0], 1, 5, 3, HOW),
        (PROMPTS[1], 3, 6, 2, HOW),
        (PROMPTS[2], 1, 7, 0, HOW),
        (PROMPTS[2], 1, 7, 1, short),
        (PROMPTS[1], 2, 8, 0, stop),
    ]
    together_ = asyncio.run(drawn(Batched(loaded), asked))
    alone = [asyncio.run(drawn(InProcess(loaded), [each]))[0] for each in asked]
    assert together_ == alone
    assert asyncio.run(drawn(Batched(loaded, rows=1), asked)) == alone
    assert {finish for each in alone for _, _, finish in each} == {"stop", "length"}


def test_the_ledger_has_all_that_was_written(loaded):
    async def go():
        sampler = Batched(loaded)
        ledgers = [Ledger(60) for _ in PROMPTS]
        questions = [Question(p, p, lambda c: None, HOW, seed=i) for i, p in enumerate(PROMPTS)]
        found = await together(
            Metered(sampler, ledger).draw(question, n=9).completions()
            for ledger, question in zip(ledgers, questions, strict=True)
        )
        assert len(asyncio.all_tasks()) == 1
        return found, ledgers

    found, ledgers = asyncio.run(go())
    for completions, ledger in zip(found, ledgers, strict=True):
        assert sum(c.n_tokens for c in completions) == ledger.spent.generated <= 60
        assert all(c.n_tokens == len(c.token_ids) == len(c.logprobs) for c in completions)


def test_what_is_cancelled_before_its_batch_begins_makes_no_tokens(loaded):
    async def go():
        draw = Batched(loaded).draw(PROMPTS[0], HOW, n=2, seed=0)
        draw.cancel(0, "cancelled")
        draw.cancel(1, "consensus")
        return [chunk async for chunk in draw]

    assert [(c.index, c.n_tokens, c.finish) for c in asyncio.run(go())] == [(0, 0, "cancelled"), (1, 0, "consensus")]


def test_an_error_of_the_model_reaches_who_asked(loaded, monkeypatch):
    async def go():
        sampler = Batched(loaded)
        monkeypatch.setattr(sampler, "_write", lambda draws: 1 / 0)
        return [chunk async for chunk in sampler.draw(PROMPTS[0], HOW, n=1, seed=0)]

    with pytest.raises(ZeroDivisionError):
        asyncio.run(go())


def test_what_it_cannot_do_is_refused(loaded):
    for how in (Sampling(top_logprobs=5), Sampling(thinking_budget=5)):
        with pytest.raises(UsageError, match="use InProcess"):
            Batched(loaded).draw(PROMPTS[0], how, n=1, seed=0)
