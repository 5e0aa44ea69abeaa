"""The HTTP sampler on a real server: what llama.cpp sends is read whole, counted as it counts, and stopped when we say so."""

from __future__ import annotations

import asyncio
import json
import math
import urllib.request
from dataclasses import replace
from typing import Any

import pytest
from llama_server import SLOTS

from equipoise.base import Answer, Completion, Question, Sampling
from equipoise.errors import NoRoom
from equipoise.infer.ledger import Ledger
from equipoise.infer.metered import Metered, join_chunks
from equipoise.infer.revision import Revision
from equipoise.infer.vote import Majority

pytest.importorskip("aiohttp", reason="needs aiohttp: pip install 'equipoise[infer]'")

from equipoise.samplers.http import HttpSampler, connect

pytestmark = pytest.mark.integration

CHAT = [{"role": "user", "content": "Count from one to twenty."}]


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 110))


def get(address: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """Not through our sampler."""
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(f"{address}/{path}", data, timeout=100) as reply:
        return json.load(reply)


async def draw_all(sampler: HttpSampler, prompt, how: Sampling, n: int = 1, seed: int = 0, first: int = 0):
    parts: dict[int, list] = {}
    async for chunk in sampler.draw(prompt, how, n=n, seed=seed, first=first):
        parts.setdefault(chunk.index, []).append(chunk)
    return [join_chunks(parts[i], parts[i][-1].finish) for i in range(n)], parts


def test_it_says_what_it_is(llama_server):
    async def go():
        async with connect(llama_server) as sampler:
            return await sampler.find()

    found = run(go())
    assert found.dialect == "llama.cpp"
    assert found.model.endswith(".gguf")


@pytest.mark.parametrize("extra", [{"min_p": 1.0}, {"top_n_sigma": 0.001}])
def test_truncation_reaches_the_server(llama_server, extra):
    """Each leaves the most likely token alone, so that a hot draw is the greedy one; without them it is not."""
    hot = Sampling(max_tokens=6, temperature=2.0)

    async def go():
        async with connect(llama_server) as sampler:
            drawn = [
                await draw_all(sampler, CHAT, how, n=3)
                for how in (replace(hot, temperature=0.0), replace(hot, extra=extra), hot)
            ]
        return [{completion.text for completion in found} for found, _ in drawn]

    greedy, truncated, free = run(go())
    assert truncated == greedy
    assert len(free) > 1


def test_a_streamed_completion_is_the_one_that_the_server_gives_whole(llama_server):
    how = Sampling(max_tokens=12, temperature=0.0, top_logprobs=5)

    async def go():
        async with connect(llama_server) as sampler:
            return await draw_all(sampler, CHAT, how)

    (done,), parts = run(go())
    fields = {"max_tokens": 12, "temperature": 0.0, "logprobs": True, "top_logprobs": 5, "top_k": 0, "min_p": 0.0}
    whole = get(llama_server, "v1/chat/completions", {"messages": CHAT, **fields})
    choice = whole["choices"][0]
    assert done.text == choice["message"]["content"]
    assert done.finish == choice["finish_reason"] == "length"
    assert done.n_tokens == whole["usage"]["completion_tokens"] == 12
    assert parts[0][-1].prompt_tokens == whole["usage"]["prompt_tokens"]
    entries = choice["logprobs"]["content"]
    assert list(done.token_texts) == [entry["token"] for entry in entries]
    assert list(done.token_ids) == [entry["id"] for entry in entries]
    # The server batches differently from call to call, which moves the last digits.
    assert list(done.logprobs) == pytest.approx([entry["logprob"] for entry in entries], abs=0.05)
    for confidence, entry in zip(done.token_confidences, entries, strict=True):
        five = [top["logprob"] for top in entry["top_logprobs"]]
        assert len(five) == 5
        assert confidence == pytest.approx(-sum(five) / 5, abs=0.1)
        assert confidence > math.log(5) - 1e-6  # five equal shares of everything would give ln 5, and nothing less


def test_a_text_is_gone_on_with(llama_server):
    how = Sampling(max_tokens=20, temperature=0.0, stop=("6",), top_logprobs=1)

    async def go():
        async with connect(llama_server) as sampler:
            return await draw_all(sampler, "1, 2, 3, 4,", how)

    (done,), _ = run(go())
    whole = get(
        llama_server,
        "v1/completions",
        {"prompt": "1, 2, 3, 4,", "max_tokens": 20, "temperature": 0.0, "stop": ["6"], "logprobs": 1, "top_k": 0},
    )
    assert (done.text.strip(), done.finish) == ("5,", "stop")
    assert done.text == whole["choices"][0]["text"]
    assert done.n_tokens == whole["usage"]["completion_tokens"] >= len(done.logprobs) > 0


def test_messages_that_end_with_the_assistants_are_continued_and_the_stop_is_counted(llama_server):
    begun = [{"role": "user", "content": "Count to nine"}, {"role": "assistant", "content": "1 2 3"}]
    how = Sampling(max_tokens=20, temperature=0.0, stop=("6",), top_logprobs=1)

    async def go():
        async with connect(llama_server) as sampler:
            return await draw_all(sampler, begun, how)

    (done,), _ = run(go())
    assert (done.text, done.finish) == (" 4 5 ", "stop")
    # A chat tells no log-prob of the token that ended it.
    assert (done.n_tokens, "".join(done.token_texts), len(done.token_confidences)) == (6, " 4 5 ", 5)


def test_a_number_is_the_same_sample_whichever_draw_it_comes_from(llama_server):
    how = Sampling(max_tokens=4)

    async def go():
        async with connect(llama_server) as sampler:
            three, _ = await draw_all(sampler, CHAT, how, n=3, seed=3)
            last, _ = await draw_all(sampler, CHAT, how, n=1, seed=3, first=2)
            return [c.text for c in three], [c.text for c in last]

    three, last = run(go())
    assert three[2:] == last
    assert len(set(three)) > 1


def test_a_vote_under_a_budget_is_counted_as_the_server_counts(llama_server):
    def read(completion: Completion) -> Answer | None:
        words = (completion.text or "").split()
        return Answer(words[0]) if words else None

    counted = []
    question = Question("q", "2 + 2 = 4\n3 + 4 = 7\n1 + 4 =", read, Sampling(max_tokens=4, stop=("\n",)))

    async def go():
        async with connect(llama_server) as sampler:
            metered = Metered(sampler, Ledger(12), watch=lambda kind, chunk: counted.append(chunk.n_tokens))
            return await Majority(6)(question, metered), metered.ledger

    choice, ledger = run(go())
    assert choice.answer is not None
    assert 3 <= len(choice.drawn) <= 6
    assert choice.spent.generated == sum(counted) == sum(c.n_tokens for c in choice.drawn) <= 12
    assert choice.spent.prompt is not None
    assert ledger.left == 12 - choice.spent.generated


def test_a_cancelled_completion_stops_the_server(llama_server):
    async def busy() -> int:
        slots = await asyncio.to_thread(get, llama_server, "slots")
        return sum(slot["is_processing"] for slot in slots)

    async def go():
        async with connect(llama_server) as sampler:
            metered = Metered(sampler, Ledger(SLOTS * 900))
            question = Question(
                "q", CHAT, lambda completion: None, Sampling(max_tokens=900, extra={"ignore_eos": True})
            )
            async with metered.draw(question, n=SLOTS) as draw:
                seen = set()
                async for chunk in draw:
                    seen.add(chunk.index)
                    if len(seen) == SLOTS:
                        break
                before = await busy()
            clock = asyncio.get_running_loop().time
            closed = clock()
            while await busy():
                assert clock() - closed < 20
                await asyncio.sleep(0.05)
            return before, metered.ledger.spent

    before, spent = run(go())
    assert before == SLOTS
    assert 0 < spent.cancelled == spent.generated < SLOTS * 450  # nine hundred each were asked for
    assert spent.prompt is not None  # told with every token


def test_a_prompt_that_fills_the_context_ends_a_question_and_not_a_search(llama_server):
    """The server reads 1,024 tokens a slot; a request to revise of 6,000 words is more than all slots have together."""

    def first_word(said: Completion) -> Answer | None:
        return Answer(said.text.split()[0]) if (said.text or "").strip() else None

    how = Sampling(max_tokens=8)
    question = Question("q", CHAT, first_word, how)
    flood = "again " * 6000

    async def go():
        async with connect(llama_server) as sampler:
            whole = Question("long", [{"role": "user", "content": flood}], first_word, how)
            with pytest.raises(NoRoom, match=r"exceeds the available context size \(\d+ tokens\)"):
                await Metered(sampler, Ledger(100)).draw(whole, n=2).completions()
            metered = Metered(sampler, Ledger(100))
            choice = await Revision(turns=2, feedback="none", request=flood)(question, metered)
            return choice, metered.ledger

    choice, ledger = run(go())
    assert [done.finish == "error" for done in choice.drawn] == [False, True]
    assert choice.answer == first_word(choice.drawn[0])
    assert choice.answer is not None
    assert choice.spent.generated == choice.drawn[0].n_tokens == 100 - ledger.left
    assert choice.spent.prompt is not None
    assert any("has no room for the prompt (400): request (" in note for note in choice.notes)
