"""The HTTP sampler against a server that misbehaves: nothing is lost, nothing is silent, nothing stays open."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import math
import socket
from collections import Counter

import pytest
from unruly_server import Asked, Behave, Reply, UnrulyServer

from equipoise.base import Answer, Chunk, Completion, Question, Sampling
from equipoise.errors import UsageError
from equipoise.infer.ledger import Ledger
from equipoise.infer.metered import Metered, join_chunks
from equipoise.infer.vote import Majority

pytest.importorskip("aiohttp", reason="needs aiohttp: pip install 'equipoise[infer]'")

from equipoise.samplers import http_draw
from equipoise.samplers.http import HttpSampler, connect, sample_seed

CHAT = [{"role": "user", "content": "2+2?"}]


def run(coroutine):
    """It leaves no task behind, and takes no longer than a test may."""

    async def whole():
        result = await asyncio.wait_for(coroutine, 30)
        for _ in range(50):
            if len(asyncio.all_tasks()) == 1:
                break
            await asyncio.sleep(0.01)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return result

    return asyncio.run(whole())


def sampler_of(server: UnrulyServer, **settings) -> HttpSampler:
    return connect(server.url, **{"backoff": 0.001, "dialect": "openai", "model": "tiny", **settings})


async def drain(draw) -> dict[int, list[Chunk]]:
    chunks: dict[int, list[Chunk]] = {}
    async for chunk in draw:
        chunks.setdefault(chunk.index, []).append(chunk)
    return chunks


def ask_server(behave: Behave, *, n=1, prompt=CHAT, how=None, first=0, seed=0, owner="someone", **settings):
    """The completions of one draw, and the server."""
    how = how or Sampling(max_tokens=100)

    async def go():
        async with UnrulyServer(behave, owner) as server, sampler_of(server, **settings) as sampler:
            chunks = await drain(sampler.draw(prompt, how, n=n, seed=seed, first=first))
        return chunks, server

    return run(go())


async def polite(reply: Reply, asked: Asked) -> None:
    await reply.head()
    await reply.say("4", "2")
    await reply.finish(usage={"prompt_tokens": 7, "completion_tokens": 3})


# --- a completion


def test_a_stream_becomes_a_completion_with_the_servers_count():
    chunks, _ = ask_server(polite)
    completion = join_chunks(chunks[0], chunks[0][-1].finish)
    # Two pieces of text, and the end that has none: the server counts three.
    assert (completion.text, completion.n_tokens, completion.finish) == ("42", 3, "stop")
    assert chunks[0][-1].prompt_tokens == 7


def test_a_text_is_completed_and_messages_are_answered():
    async def text(reply: Reply, asked: Asked) -> None:
        await reply.head()
        await reply.event({"choices": [{"index": 0, "text": "4", "finish_reason": "length"}]})

    chunks, server = ask_server(text, prompt="2+2=")
    assert (server.asked[0].path, server.asked[0].body["prompt"]) == ("/v1/completions", "2+2=")
    assert join_chunks(chunks[0], chunks[0][-1].finish).text == "4"
    assert chunks[0][-1].finish == "length"
    _, server = ask_server(polite)
    assert (server.asked[0].path, server.asked[0].body["messages"]) == ("/v1/chat/completions", CHAT)


def test_a_server_that_does_not_stream_is_read_all_the_same():
    async def whole(reply: Reply, asked: Asked) -> None:
        message = {"role": "assistant", "content": "42", "reasoning": "hm"}
        usage = {"prompt_tokens": 3, "completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 6}}
        await reply.error(200, {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage})

    chunks, _ = ask_server(whole)
    done = join_chunks(chunks[0], "stop")
    assert (done.text, done.thinking, done.n_tokens) == ("42", "hm", 9)
    assert sum(chunk.n_thinking for chunk in chunks[0]) == 6


@pytest.mark.parametrize(("counted", "answer"), [(3, 3), (5, 5), (2, 2), (None, 3), (0, 3)])
def test_the_ledger_has_the_servers_own_count(counted, answer):
    """Higher than ours, lower than ours (it cuts a token into pieces), or not told: 0 beside a text says nothing."""

    async def behave(reply: Reply, asked: Asked) -> None:
        await reply.head()
        await reply.say("4", "2", ".")
        usage = None if counted is None else {"prompt_tokens": 7, "completion_tokens": counted}
        await reply.finish(usage=usage)

    async def go():
        async with UnrulyServer(behave) as server, sampler_of(server) as sampler:
            ledger = Ledger(100)
            await Metered(sampler, ledger).draw(question(20)).completions()
            return ledger

    ledger = run(go())
    assert (ledger.spent.answer, ledger.spent.generated, ledger.left) == (answer, answer, 100 - answer)
    assert ledger.spent.prompt == (None if counted is None else 7)


@pytest.mark.parametrize("told", [True, False])
def test_thinking_is_told_apart_and_its_count_comes_from_the_server_where_it_says(told):
    async def behave(reply: Reply, asked: Asked) -> None:
        await reply.head()
        for field in ("reasoning_content", "reasoning"):
            await reply.event({"choices": [{"delta": {field: "hm "}}]})
        await reply.say("4", "2")
        details = {"completion_tokens_details": {"reasoning_tokens": 3}, "prompt_tokens_details": {"cached_tokens": 5}}
        await reply.finish(usage={"prompt_tokens": 8, "completion_tokens": 6, **(details if told else {})})

    async def go():
        async with UnrulyServer(behave) as server, sampler_of(server) as sampler:
            metered = Metered(sampler, Ledger())
            (done,) = await metered.draw(question()).completions()
            return done, metered.ledger.spent

    done, spent = run(go())
    assert (done.thinking, done.text) == ("hm hm ", "42")
    # Two pieces of thinking are seen; of six tokens, the server says that three were thinking.
    assert (spent.thinking, spent.answer, spent.prompt, spent.cached) == ((3, 3, 8, 5) if told else (2, 4, 8, None))


def test_a_token_without_text_belongs_to_what_came_before_it():
    async def behave(reply: Reply, asked: Asked) -> None:
        await reply.head()
        for delta in ({"reasoning": "hm"}, {"content": ""}, {"content": "4"}):  # the second is the end of the thinking
            await reply.event({"choices": [{"delta": delta, "logprobs": {"content": [entry("t", -1.0)]}}]})
        await reply.finish()

    chunks, _ = ask_server(behave, how=Sampling(top_logprobs=1))
    done = join_chunks(chunks[0], "stop")
    assert (done.n_tokens, sum(chunk.n_thinking for chunk in chunks[0]), len(done.logprobs)) == (3, 2, 3)


def entry(token: str, *tops: float, id: int | None = None) -> dict:
    told = [{"token": f"t{i}", "logprob": value} for i, value in enumerate(tops)]
    return {"token": token, "logprob": tops[-1], "top_logprobs": told} | ({} if id is None else {"id": id})


def test_confidences_are_over_exactly_k_tokens():
    async def behave(reply: Reply, asked: Asked) -> None:
        await reply.head()
        half, rare = math.log(0.5), math.log(0.01)
        # Both halves, k = 2. The second tells three: the sampled one was outside the two likeliest, and is told last.
        await reply.say("a", logprobs={"content": [entry("a", half, half, id=5)]})
        await reply.say("b", logprobs={"content": [entry("b", half, half, rare, id=6)]})
        await reply.finish(usage={"prompt_tokens": 1, "completion_tokens": 3})

    chunks, server = ask_server(behave, how=Sampling(max_tokens=9, top_logprobs=2))
    done = join_chunks(chunks[0], "stop")
    assert list(done.token_confidences) == pytest.approx([math.log(2), math.log(2)])
    assert list(done.logprobs) == pytest.approx([math.log(0.5), math.log(0.01)])
    assert (done.token_texts, list(done.token_ids), done.n_tokens) == (("a", "b"), [5, 6], 3)
    assert (server.asked[0].body["logprobs"], server.asked[0].body["top_logprobs"]) == (True, 2)


def test_log_probs_of_the_older_completions_api():
    async def behave(reply: Reply, asked: Asked) -> None:
        await reply.head()
        told = {"tokens": ["4", "2"], "token_logprobs": [-0.5, -3.0]}
        told["top_logprobs"] = [{"4": -0.5, "5": -1.5}, {"1": -0.25, "0": -1.75, "2": -3.0}]
        await reply.event({"choices": [{"text": "42", "logprobs": told, "finish_reason": "stop"}]})

    chunks, server = ask_server(behave, prompt="x", how=Sampling(max_tokens=9, top_logprobs=2))
    done = join_chunks(chunks[0], "stop")
    assert list(done.token_confidences) == pytest.approx([1.0, 1.0])
    assert (list(done.logprobs), done.n_tokens, server.asked[0].body["logprobs"]) == ([-0.5, -3.0], 2, 2)


def test_a_server_that_sends_no_log_probs_is_refused_by_name():
    with pytest.raises(
        UsageError, match=r"127\.0\.0\.1:\d+/v1 was asked for top_logprobs=2 and sends no log-probs: use"
    ):
        ask_server(polite, how=Sampling(top_logprobs=2))

    async def endless(reply: Reply, asked: Asked) -> None:
        await reply.head()
        await reply.forever()

    with pytest.raises(UsageError, match="sends no log-probs"):  # long before its end
        ask_server(endless, how=Sampling(max_tokens=10**6, top_logprobs=2))


def test_tool_calls_are_joined():
    async def behave(reply: Reply, asked: Asked) -> None:
        await reply.head()
        for piece in ({"id": "c1", "function": {"name": "add", "arguments": ""}}, {"function": {"arguments": '{"a":'}}):
            await reply.event({"choices": [{"delta": {"tool_calls": [{"index": 0, **piece}]}}]})
        await reply.event({"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": "2}"}}]}}]})
        await reply.finish("tool_calls")

    chunks, _ = ask_server(behave)
    (call,) = chunks[0][-1].tool_calls
    assert (chunks[0][-1].finish, call["id"]) == ("tool", "c1")
    assert call["function"] == {"name": "add", "arguments": '{"a":2}'}


def test_completions_are_numbered_and_each_number_has_one_seed():
    _, one = ask_server(polite, n=4, seed=11)
    _, two = ask_server(polite, n=2, seed=11, first=2)
    _, other = ask_server(polite, n=4, seed=12)
    seeds = [{asked.body["seed"] for asked in server.asked} for server in (one, two, other)]
    assert seeds[0] == {sample_seed(11, number) for number in range(4)}
    assert seeds[1] == {sample_seed(11, 2), sample_seed(11, 3)}
    assert len(seeds[0]) == len(seeds[2]) == 4
    assert not seeds[0] & seeds[2]
    assert all(0 <= seed < 2**31 for seed in seeds[0])


# --- finding out what the server is


@pytest.mark.parametrize(("owner", "dialect"), [("vllm", "vllm"), ("llamacpp", "llama.cpp"), ("acme", "openai")])
def test_a_server_is_asked_once_what_it_is(owner, dialect):
    async def go():
        async with UnrulyServer(polite, owner) as server, sampler_of(server, model=None, dialect="auto") as sampler:
            await drain(sampler.draw(CHAT, Sampling(), n=5, seed=0))
            await drain(sampler.draw(CHAT, Sampling(), n=1, seed=0))
            return server, await sampler.find()

    server, found = run(go())
    assert (server.asked_models, found.model, found.dialect) == (1, "tiny", dialect)
    assert {asked.body["model"] for asked in server.asked} == {"tiny"}


def test_which_model_is_asked_for_where_there_are_two_or_none():
    async def find(models, **settings):
        asked = {"model": None, "dialect": "auto", **settings}
        async with UnrulyServer(polite, models=models) as server, sampler_of(server, **asked) as sampler:
            return await sampler.find()

    with pytest.raises(UsageError, match="offers a, b: say which one with model="):
        run(find({"data": [{"id": "a"}, {"id": "b"}]}))
    with pytest.raises(UsageError, match="offers none by name"):
        run(find("none"))
    assert run(find("none", model="m")).dialect == "openai"


def test_a_message_of_the_assistants_is_continued_where_the_server_can():
    begun = [*CHAT, {"role": "assistant", "content": "The answer is"}]
    _, server = ask_server(polite, prompt=begun, dialect="vllm")
    body = server.asked[0].body
    assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)
    with pytest.raises(UsageError, match="would start a new one: use a text prompt"):
        ask_server(polite, prompt=begun, dialect="openai")


# --- faults


async def reset_first(reply: Reply, asked: Asked) -> None:
    reply.reset()


async def reset_later(reply: Reply, asked: Asked) -> None:
    await reply.head(Transfer_Encoding="chunked")
    reply.chunked = True
    await reply.say("x", "y", "z")
    await asyncio.sleep(0.05)
    reply.reset()


async def cut_short(reply: Reply, asked: Asked) -> None:
    await reply.head()
    await reply.say("x", "y", "z")


async def cut_in_a_piece(reply: Reply, asked: Asked) -> None:
    await reply.head(Transfer_Encoding="chunked")
    await reply.raw(b"ff\r\ndata: ")


async def stall(reply: Reply, asked: Asked) -> None:
    await reply.head()
    await reply.say("x", "y", "z")
    await reply.hang()


async def no_head(reply: Reply, asked: Asked) -> None:
    await reply.hang()


async def no_json(reply: Reply, asked: Asked) -> None:
    await reply.head()
    await reply.event(b'{"choices": [')


async def no_json_in_one_packet(reply: Reply, asked: Asked) -> None:
    await reply.head()
    token = b'data: {"choices": [{"delta": {"content": "x"}}]}\n\n'
    await reply.raw(token * 3 + b'data: {"choi\n\n' + token)


async def wrong_shape(reply: Reply, asked: Asked) -> None:
    await reply.head()
    await reply.event({"choices": [{"delta": {"content": 7}}]})


async def deep(reply: Reply, asked: Asked) -> None:
    await reply.head()
    await reply.event(b"[" * 100_000)


async def long_line(reply: Reply, asked: Asked) -> None:
    await reply.head()
    while True:
        await reply.raw(b"data: " + b"x" * 65536)


async def long_header(reply: Reply, asked: Asked) -> None:
    await reply.head(X_Long="x" * 20_000)


async def web_page(reply: Reply, asked: Asked) -> None:
    await reply.head(kind="text/html")
    await reply.raw(b"<html>\nback soon\n</html>")


async def busy(reply: Reply, asked: Asked) -> None:
    await reply.error(429, {"error": {"message": "slow\ndown"}}, Retry_After="0.01")


async def broken(reply: Reply, asked: Asked) -> None:
    await reply.error(503, {"error": "no worker"})


async def breaks_off(reply: Reply, asked: Asked) -> None:
    await reply.head()
    await reply.say("x", "y", "z")
    await reply.event({"error": {"message": "engine died", "code": 500}})


async def odd_tool(reply: Reply, asked: Asked) -> None:
    await reply.head()
    await reply.event({"choices": [{"delta": {"tool_calls": [{"function": 7}]}}]})
    await reply.finish("tool_calls")


async def aborted(reply: Reply, asked: Asked) -> None:
    await reply.head()
    await reply.raw(b"HTTP/1.1 what")


FAULTS: dict[str, tuple[Behave, int, str]] = {  # tokens seen before it failed, and what is said
    "reset before the first byte": (reset_first, 0, "no reply from"),
    "reset after some tokens": (reset_later, 3, "the connection broke"),
    "an end without a finish": (cut_short, 3, "ended without a finish_reason"),
    "an end inside a piece": (cut_in_a_piece, 0, "the connection broke"),
    "a stall": (stall, 3, "silent for too long"),
    "no reply": (no_head, 0, "no reply from"),
    "no JSON": (no_json, 0, "not JSON"),
    "tokens and then no JSON": (no_json_in_one_packet, 3, "not JSON"),
    "JSON of another shape": (wrong_shape, 0, "a text that is none: 7"),
    "JSON without a bottom": (deep, 0, "not JSON"),
    "a line without end": (long_line, 0, "an event of more than"),
    "a header without end": (long_header, 0, "no reply from"),
    "a web page": (web_page, 0, "sent text/html, not an event stream: <html> back soon </html>"),
    "too many requests": (busy, 0, "answers 429: slow down"),
    "no worker": (broken, 0, "answers 503: no worker"),
    "an error in the stream": (breaks_off, 3, "broke off: engine died"),
    "a tool call of another shape": (odd_tool, 0, "a function that is no object: 7"),
    "no protocol": (aborted, 0, "ended without a finish_reason"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_tried_again_and_its_tokens_stand_as_retries(name):
    fault, tokens, _ = FAULTS[name]

    async def behave(reply: Reply, asked: Asked) -> None:
        await (fault if asked.tries == 0 else polite)(reply, asked)

    async def go():
        async with UnrulyServer(behave) as server, sampler_of(server, stall=0.3) as sampler:
            choice = await Majority(2)(question(), Metered(sampler, Ledger()))
            return choice, server

    choice, server = run(go())
    assert (choice.answer, [c.text for c in choice.drawn]) == (Answer("42"), ["42", "42"])
    assert (choice.spent.retry, choice.spent.answer) == (2 * tokens, 6)
    assert Counter(asked.body["seed"] for asked in server.asked) == {sample_seed(0, 0): 2, sample_seed(0, 1): 2}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_that_stays_ends_one_completion_and_the_others_go_on(name):
    fault, tokens, said = FAULTS[name]

    async def behave(reply: Reply, asked: Asked) -> None:
        await (fault if asked.body["seed"] == sample_seed(0, 1) else polite)(reply, asked)

    chunks, server = ask_server(behave, n=3, retries=1, stall=0.3)
    last = chunks[1][-1]
    assert last.finish == "error"
    assert said in last.error
    assert "(2 tries)" in last.error
    assert "\n" not in last.error
    assert [chunks[i][-1].finish for i in (0, 2)] == ["stop", "stop"]
    assert sum(chunk.restart for chunk in chunks[1]) == (1 if tokens else 0)
    assert len(server.asked) == 4


def test_nobody_at_the_address():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"

    async def go():
        async with connect(url, model="tiny", dialect="openai", retries=1, backoff=0.001) as sampler:
            chunks = await drain(sampler.draw(CHAT, Sampling(), n=2, seed=0))
        async with connect(url, backoff=0.001) as sampler:
            with pytest.raises(UsageError, match=f"{url}/v1 does not answer: no reply"):
                await sampler.find()
        return chunks

    chunks = run(go())
    assert [chunk.finish for chunk in (chunks[0][0], chunks[1][0])] == ["error", "error"]
    assert url in chunks[0][0].error


@pytest.mark.parametrize("told", ["0.2", "Thu, 01 Jan 2099 00:00:00 GMT", "soon"])
def test_the_server_says_when_to_come_back_but_not_for_ever(told, monkeypatch):
    slept = []
    real = asyncio.sleep

    async def sleep(seconds, *rest):
        slept.append(seconds)
        await real(0)

    async def behave(reply: Reply, asked: Asked) -> None:
        if asked.tries:
            await polite(reply, asked)
        else:
            await reply.error(429, {}, Retry_After=told)

    monkeypatch.setattr(http_draw.asyncio, "sleep", sleep)
    ask_server(behave, backoff=4.0)
    waited = next(seconds for seconds in slept if seconds > 0.05)
    if told == "soon":
        assert 2.0 <= waited <= 6.0  # 4 s, half more or less by chance
    else:
        assert waited == (0.2 if told == "0.2" else http_draw.MAX_WAIT)


def test_waits_double_and_differ_so_that_many_do_not_come_back_at_once():
    tries = http_draw.Tries(retries=3, backoff=1.0, seed=7)
    waits = [[tries.wait(number, attempt, None) for number in range(50)] for attempt in range(3)]
    for attempt, some in enumerate(waits):
        assert all(0.5 * 2**attempt <= wait <= 1.5 * 2**attempt for wait in some)
        assert len(set(some)) == 50
    assert tries.wait(3, 1, None) == waits[1][3]


REFUSALS = {
    400: (
        {"error": {"message": "max_tokens is\ntoo large", "code": 400}},
        r"refused the request \(400\): max_tokens is too",
    ),
    404: ({"object": "error", "message": "The model `x` does not exist."}, "The model `x` does not exist"),
    422: ({"detail": [{"loc": ["body"], "msg": "field required"}]}, "field required"),
    401: (
        {"error": {"message": "Incorrect API key provided: sk-secret"}},
        r"refused the key \(401: .*give one with key=",
    ),
    307: ({}, "redirects are not followed"),
}


@pytest.mark.parametrize("status", REFUSALS)
def test_a_refusal_is_one_line_and_is_not_tried_again(status):
    body, said = REFUSALS[status]
    asked = []

    async def behave(reply: Reply, request: Asked) -> None:
        asked.append(request)
        await reply.error(status, body, Location="http://localhost:1/v1")

    with pytest.raises(UsageError, match=said) as refused:
        ask_server(behave, key="sk-secret")
    assert len(asked) == 1
    assert asked[0].headers["authorization"] == "Bearer sk-secret"
    assert "\n" not in str(refused.value)
    assert "sk-secret" not in str(refused.value)


def test_a_refusal_inside_the_stream_is_final_too():
    async def behave(reply: Reply, asked: Asked) -> None:
        await reply.head()
        await reply.event({"error": {"message": "prompt too long", "code": 400}})

    with pytest.raises(UsageError, match="refused the request: prompt too long"):
        ask_server(behave)


def test_the_key_comes_from_the_environment_and_is_in_no_repr(monkeypatch):
    monkeypatch.setenv("EQUIPOISE_API_KEY", "sk-env")
    _, server = ask_server(polite)
    assert server.asked[0].headers["authorization"] == "Bearer sk-env"
    assert "sk-env" not in repr(connect("http://localhost:1"))


@pytest.mark.parametrize(
    ("cut", "told"), [(None, "you sent ***, no"), (20, "you sent ***"), (14, "you sent planted-key-o"[:14])]
)
def test_a_key_that_a_server_repeats_is_hidden_also_where_it_was_cut(cut, told):
    key = "planted-key-of-the-upstream"
    assert connect("http://127.0.0.1:9", key=key).hide_key(f"you sent {key}, no"[:cut]) == told
    assert connect("http://127.0.0.1:9", key="").hide_key("you sent") == "you sent"


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://localhost:8000", "http://localhost:8000/v1"),
        ("http://localhost:8000/", "http://localhost:8000/v1"),
        ("https://host/api/v1/", "https://host/api/v1"),
        ("http://[::1]:80/v1/chat/completions", "http://[::1]:80/v1"),
    ],
)
def test_addresses(url, base):
    assert connect(url).url == base


@pytest.mark.parametrize(
    "url", ["localhost:8000", "ftp://host", "http://", "http://a:b@host", "http://host:99999", "http://h/?k=1"]
)
def test_what_is_no_address(url):
    with pytest.raises(UsageError) as refused:
        connect(url)
    assert "a:b" not in str(refused.value)


@pytest.mark.parametrize(
    "wrong", [{"concurrency": 0}, {"retries": -1}, {"stall": 0}, {"dialect": "latin"}, {"key": "a\nb"}]
)
def test_settings_that_cannot_be(wrong):
    with pytest.raises(UsageError):
        connect("http://localhost:1", **wrong)


def test_more_bytes_than_the_tokens_could_need_are_not_read(monkeypatch):
    monkeypatch.setattr(http_draw, "BYTES", 10_000)
    monkeypatch.setattr(http_draw, "BYTES_PER_TOKEN", 100)

    async def behave(reply: Reply, asked: Asked) -> None:
        await reply.head()
        while True:
            await reply.raw(b": not a token\n\n" * 100)

    chunks, _ = ask_server(behave, retries=0, how=Sampling(max_tokens=5))
    assert "more than 10,500 bytes for 5 tokens" in chunks[0][-1].error


def test_a_completion_that_is_there_does_not_wait_for_the_servers_count(monkeypatch):
    monkeypatch.setattr(http_draw, "TAIL", 0.05)

    async def behave(reply: Reply, asked: Asked) -> None:
        await reply.head()
        await reply.say("4", "2")
        await reply.finish(done=False)
        await reply.hang()

    async def go():
        async with UnrulyServer(behave) as server, sampler_of(server) as sampler:
            chunks = await drain(sampler.draw(CHAT, Sampling(), n=1, seed=0))
            await closed_by_all(server, 1)
            return chunks[0]

    chunks = run(go())
    assert (join_chunks(chunks, "stop").n_tokens, chunks[-1].finish) == (2, "stop")


# --- ends


async def endless(reply: Reply, asked: Asked) -> None:
    await reply.head()
    await reply.forever(0.01)


async def closed_by_all(server: UnrulyServer, n: int) -> float:
    """Seconds until every stream was closed by the other side, as the server sees it."""
    clock = asyncio.get_running_loop().time
    start = clock()
    while server.open or server.left < n:
        assert clock() - start < 10, (server.open, server.left)
        await asyncio.sleep(0.005)
    return clock() - start


def test_two_hundred_cancelled_streams_are_closed_within_a_second():
    async def go():
        async with UnrulyServer(endless) as server, sampler_of(server, concurrency=200) as sampler:
            draw = sampler.draw(CHAT, Sampling(max_tokens=10**6), n=200, seed=0)
            seen = set()
            async for chunk in draw:
                seen.add(chunk.index)
                if len(seen) == 200:
                    break
            for index in range(200):
                draw.cancel(index, "consensus")
            took = await closed_by_all(server, 200)
            rest = await drain(draw)
            return took, rest, server.left

    took, rest, left = run(go())
    assert left == 200
    assert took < 1.0
    assert {chunks[-1].finish for chunks in rest.values()} == {"consensus"}
    assert len(rest) == 200


def test_what_had_arrived_when_it_was_cancelled_is_counted():
    async def behave(reply: Reply, asked: Asked) -> None:
        await reply.head()
        await reply.say("a")
        await asyncio.sleep(0.1)
        await reply.say("b")  # read, and waits to be taken
        await asyncio.sleep(0.1)
        await reply.say("c", "d")  # waits to be read
        await reply.hang()

    async def go():
        async with UnrulyServer(behave) as server, sampler_of(server) as sampler:
            draw = sampler.draw(CHAT, Sampling(), n=1, seed=0)
            first = await anext(draw)
            await asyncio.sleep(0.5)  # meanwhile the rest comes in, and nobody takes it
            draw.cancel(0, "cancelled")
            return [first, *(await drain(draw))[0]]

    chunks = run(go())
    assert "".join(chunk.text for chunk in chunks) == "abcd"
    assert (sum(chunk.n_tokens for chunk in chunks), chunks[-1].finish) == (4, "cancelled")


def test_a_running_count_tells_the_tokens_and_the_prompt_of_a_cancelled_completion():
    async def behave(reply: Reply, asked: Asked) -> None:
        await reply.head()
        for n in (2, 5):  # several tokens in a piece
            usage = {"prompt_tokens": 9, "completion_tokens": n, "prompt_tokens_details": {"cached_tokens": 4}}
            await reply.event({"choices": [{"delta": {"content": "ab"}}], "usage": usage})
        await reply.hang()

    async def go():
        async with UnrulyServer(behave) as server, sampler_of(server, dialect="vllm") as sampler:
            metered = Metered(sampler, Ledger(100))
            async with metered.draw(question(50)) as draw:
                async for _ in draw:
                    if draw.partial(0).n_tokens == 5:
                        break
            return metered.ledger.spent, server.asked[0].body

    spent, body = run(go())
    assert (spent.cancelled, spent.generated, spent.prompt, spent.cached) == (5, 5, 9, 4)
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}


@pytest.mark.parametrize(
    "when", ["before it began", "as it begins", "before the reply", "while it waits to be tried again"]
)
def test_cancelled_early(when):
    async def behave(reply: Reply, asked: Asked) -> None:
        if when == "before the reply":
            await reply.hang()
        await reply.error(503, {})

    async def go():
        async with UnrulyServer(behave) as server, sampler_of(server, backoff=60.0) as sampler:
            draw = sampler.draw(CHAT, Sampling(), n=1, seed=0)
            draining = asyncio.ensure_future(drain(draw))
            if when == "as it begins":  # its task is made and has not run
                await asyncio.sleep(0)
            elif when != "before it began":
                await asyncio.sleep(0.2)
            draw.cancel(0, "cancelled")
            chunks = await draining
            await closed_by_all(server, when == "before the reply")
            return chunks, server

    chunks, server = run(go())
    assert [(chunk.finish, chunk.n_tokens) for chunk in chunks[0]] == [("cancelled", 0)]
    sent = when not in ("before it began", "as it begins")
    assert len(server.asked) == sent
    assert chunks[0][0].prompt_tokens == (None if sent else 0)


def test_permits_come_back_from_the_cancelled_and_from_those_that_never_had_one():
    async def go():
        async with UnrulyServer(endless) as server, sampler_of(server, concurrency=2) as sampler:
            for _ in range(3):
                draw = sampler.draw(CHAT, Sampling(max_tokens=10**6), n=6, seed=0)
                await anext(draw)
                for index in (5, 4, 0, 1, 2, 3):  # some wait in the queue, some stream
                    draw.cancel(index, "cancelled")
                    await asyncio.sleep(0.01)
                ended = await drain(draw)
                assert {chunks[-1].finish for chunks in ended.values()} == {"cancelled"}
                assert ended[5][-1].prompt_tokens == 0  # it was never sent
            server.behave = polite
            chunks = await drain(sampler.draw(CHAT, Sampling(), n=6, seed=0))
            return chunks, server.most_open

    chunks, most = run(go())
    assert [chunks[i][-1].finish for i in range(6)] == ["stop"] * 6
    assert most == 2


@pytest.mark.parametrize("how", ["dropped", "task cancelled", "a refusal of one"])
def test_a_draw_that_is_left_closes_every_connection(how):
    async def behave(reply: Reply, asked: Asked) -> None:
        if how == "a refusal of one" and asked.number == 4:
            await asyncio.sleep(0.1)
            await reply.error(400, {"error": "no"})
        else:
            await endless(reply, asked)

    async def go():
        async with UnrulyServer(behave) as server, sampler_of(server) as sampler:
            draw = sampler.draw(CHAT, Sampling(max_tokens=10**6), n=5, seed=0)
            await anext(draw)
            if how == "dropped":
                while len(server.asked) < 5:
                    await anext(draw)
                del draw
                gc.collect()
            elif how == "task cancelled":
                task = asyncio.ensure_future(drain(draw))
                await asyncio.sleep(0.01)
                while len(server.asked) < 5:
                    await asyncio.sleep(0.01)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            else:
                with pytest.raises(UsageError, match="refused"):
                    await drain(draw)
            await closed_by_all(server, 4)
            return server.left

    assert run(go()) >= 4


def test_a_metered_draw_that_is_left_closes_its_streams_and_counts_them():
    async def go():
        async with UnrulyServer(endless) as server, sampler_of(server) as sampler:
            metered = Metered(sampler, Ledger(10_000))
            seen = 0
            async with metered.draw(question(1000), n=5) as draw:
                async for chunk in draw:
                    seen += chunk.n_tokens
                    if len(server.asked) == 5 and seen > 50:
                        break
            await closed_by_all(server, 5)
            return metered.ledger, seen, server.sent

    ledger, seen, sent = run(go())
    assert ledger.spent.generated == ledger.spent.cancelled
    assert seen <= ledger.spent.cancelled <= sent
    assert ledger.left == 10_000 - ledger.spent.cancelled


def test_a_budget_holds_against_a_server_that_ignores_max_tokens():
    async def go():
        async with UnrulyServer(endless) as server, sampler_of(server) as sampler:
            metered = Metered(sampler, Ledger(60))
            choice = await Majority(4)(question(20), metered)
            await closed_by_all(server, 3)
            return choice, server

    choice, server = run(go())
    assert {asked.body["max_tokens"] for asked in server.asked} == {20}
    # 20 each and a token or two more, until the fourth finds no room.
    assert 60 <= choice.spent.generated <= 60 + 3 * 5
    assert (len(choice.drawn), choice.stopped_by) == (3, "budget")
    assert choice.spent.generated <= server.sent


def test_one_sampler_in_two_event_loops():
    sampler = None

    async def go(n):
        nonlocal sampler
        async with UnrulyServer(polite) as server:
            sampler = sampler or sampler_of(server)
            sampler.url = server.url
            chunks = await drain(sampler.draw(CHAT, Sampling(), n=n, seed=0))
            await sampler.close()
            return chunks

    assert len(run(go(2))) == 2
    assert len(run(go(3))) == 3


def test_closing_the_sampler_under_a_draw_is_an_error_and_no_wait_for_ever():
    async def go():
        async with UnrulyServer(polite, models="hang") as server, sampler_of(server, dialect="auto") as sampler:
            drawing = asyncio.ensure_future(drain(sampler.draw(CHAT, Sampling(), n=3, seed=0)))
            while not server.asked_models:
                await asyncio.sleep(0.01)
            await sampler.close()
            with pytest.raises(RuntimeError, match="was it closed"):
                await drawing

    run(go())


def test_a_slow_reader_holds_the_server_back():
    """At most one chunk of a completion waits to be taken; the rest stays in the socket."""

    async def behave(reply: Reply, asked: Asked) -> None:
        await reply.head()
        while True:
            await reply.say("x" * 1000)

    async def go():
        async with UnrulyServer(behave) as server, sampler_of(server) as sampler:
            draw = sampler.draw(CHAT, Sampling(max_tokens=10**6), n=3, seed=0)
            biggest = 0
            for _ in range(10):
                biggest = max(biggest, len((await anext(draw)).text))
                await asyncio.sleep(0.02)
                assert draw._requests._arrived.qsize() <= 3
            await draw.aclose()
            await closed_by_all(server, 3)
            return biggest

    # The buffer has 16 KiB, and may be filled by one read of up to 256 KiB before it is held back.
    assert run(go()) < 600_000


def read(completion: Completion) -> Answer | None:
    return Answer(completion.text) if completion.text and completion.text.isdigit() else None


def question(max_tokens: int = 100) -> Question:
    return Question("q", CHAT, read, Sampling(max_tokens=max_tokens))


def test_extra_fields_go_to_the_server_last():
    how = Sampling(max_tokens=5, stop=("\n",), extra={"top_k": 20, "seed": None}, thinking_budget=30)
    _, server = ask_server(polite, how=how, dialect="vllm", thinking_field="thinking_token_budget")
    body = server.asked[0].body
    assert (body["top_k"], body["stop"], body["thinking_token_budget"], body["max_tokens"]) == (20, ["\n"], 30, 5)
    assert "seed" not in body
    assert json.dumps(body)


class Flood:
    """A reply that brings one piece with every read, and has fifty more behind it as long as it is open."""

    status, content_type, headers = 200, "text/event-stream", {}

    def __init__(self, breaks_after=None):
        self.content, self.open, self.left = self, True, breaks_after

    @staticmethod
    def tokens(n):
        return b'data: {"choices": [{"index": 0, "delta": {"content": "x"}}]}\n\n' * n

    async def readany(self):
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise ConnectionResetError
        return self.tokens(1)

    def read_nowait(self):
        return self.tokens(50 if self.open else 0)

    def close(self):
        self.open = False

    release = close


@pytest.mark.parametrize(
    ("breaks", "calls", "spent"),
    [
        ([None], 1, 11),  # the eleventh token shows that it does not end by itself
        ([6, None], 2, 11),  # six of a try that failed, and the fifth of the next
        ([6, 4, None], 2, 10),  # nothing is left for a third try
    ],
)
def test_what_goes_beyond_its_limit_is_closed_before_anything_more_of_it_is_read(breaks, calls, spent):
    sent = []

    class Sampler:
        def draw(self, prompt, how, *, n, seed, first=0):
            async def send(number):
                sent.append(number)
                return Flood(breaks[sent.count(number) - 1])

            tries, permits = http_draw.Tries(5, 0.001, seed), contextlib.nullcontext
            return http_draw.HttpDraw(http_draw.Requests(n, first, how.max_tokens, None, send, permits, tries, "it"))

    async def go():
        question = Question("q", CHAT, lambda completion: None, Sampling(max_tokens=10))
        metered = Metered(Sampler(), Ledger(40))
        drawn = await metered.draw(question, n=3).completions()
        return [each.finish for each in drawn], metered.ledger.spent.generated

    ends = "error" if spent == 10 else "length"
    assert run(go()) == ([ends] * 3, 3 * spent)
    assert Counter(sent) == {0: calls, 1: calls, 2: calls}
