"""A prompt that fills a server's context: told apart from every other refusal, and a search goes on with what it has."""

from __future__ import annotations

import asyncio

import pytest
from unruly_server import Asked, Reply, UnrulyServer

from equipoise.base import Answer, Question, Sampling
from equipoise.errors import NoRoom, UsageError
from equipoise.infer.ledger import Ledger
from equipoise.infer.metered import Metered
from equipoise.infer.revision import Revision
from equipoise.wire import tells_no_room

pytest.importorskip("aiohttp", reason="needs aiohttp: pip install 'equipoise[infer]'")

from equipoise.samplers.http import HttpSampler, connect, sample_seed

CHAT = [{"role": "user", "content": "2+2?"}]
LONGER = [*CHAT, {"role": "assistant", "content": "4"}, {"role": "user", "content": "Sure?"}]


def in_error(message, code, kind, **more):
    return {"error": {"message": message, "type": kind, "param": None, "code": code, **more}}


def flat(message, kind="BadRequestError", code=400):
    return {"object": "error", "message": message, "type": kind, "param": None, "code": code}


OPENAI = (
    "This model's maximum context length is 128000 tokens. However, your messages resulted in 202868 tokens (202767 in the messages, "
    "101 in the functions). Please reduce the length of the messages or functions."
)
VLLM = (
    "This model's maximum context length is 6048 tokens. However, you requested 6616 tokens (568 in the messages, 6048 in the completion). "
    "Please reduce the length of the messages or completion."
)
# What servers sent, by where it is recorded or, of vLLM and SGLang, where their source makes it.
REPLIES = {
    # https://github.com/bytedance/deer-flow/issues/310
    "OpenAI": (400, in_error(OPENAI, "context_length_exceeded", "invalid_request_error")),
    "OpenAI, whatever the words": (
        400,
        in_error(
            "Your input exceeds the context window of this model.", "context_length_exceeded", "invalid_request_error"
        ),
    ),
    # https://github.com/ggml-org/llama.cpp/pull/15780, with code 400 as in https://github.com/oobabooga/textgen/issues/7257
    "llama.cpp": (
        400,
        in_error(
            "request (1407 tokens) exceeds the available context size (256 tokens), try increasing it",
            400,
            "exceed_context_size_error",
            n_prompt_tokens=1407,
            n_ctx=256,
        ),
    ),
    "llama.cpp, first form": (500, in_error("the request is too long", 500, "exceed_context_size_error")),
    "llama.cpp, before it had the type": (
        400,
        in_error(
            "the request exceeds the available context size. try increasing the context size or enable context shift",
            400,
            "invalid_request_error",
        ),
    ),
    # https://github.com/ogx-ai/ogx/issues/4534
    "vLLM": (400, flat(VLLM)),
    # vllm/renderers/params.py of January 2026, in the newer envelope
    "vLLM, other words": (
        400,
        in_error(
            "You passed 5000 input tokens and requested 100 output tokens. However, the model's context length is only 4096 tokens, "
            "resulting in a maximum input length of 3996 tokens. Please reduce the length of the input prompt.",
            400,
            "BadRequestError",
        ),
    ),
    # vllm/v1/engine/input_processor.py
    "vLLM, a prompt of tokens": (
        400,
        in_error(
            "The decoder prompt (length 5000) is longer than the maximum model length of 4096.", 400, "BadRequestError"
        ),
    ),
    # https://github.com/QwenLM/Qwen3/issues/1321
    "SGLang": (
        400,
        flat("The input (61709 tokens) is longer than the model's context length (40960 tokens)."),
    ),
    # sglang/srt/managers/tokenizer_manager.py
    "SGLang, with max_tokens": (
        400,
        flat(
            "Requested token count exceeds the model's maximum context length of 64000 tokens. You requested a total of 71897 tokens: "
            "7897 tokens from the input messages and 64000 tokens for the completion."
        ),
    ),
    # https://github.com/evalstate/fast-agent/issues/621
    "DeepSeek": (400, in_error(VLLM, "invalid_request_error", "invalid_request_error")),
}
OTHERS = {
    "a limit on the completion": (
        400,
        in_error(
            "max_tokens is too large: 9000. This model supports at most 4096 completion tokens, whereas you provided 9000.",
            "invalid_value",
            "invalid_request_error",
        ),
    ),
    # https://github.com/vllm-project/vllm/issues/4667
    "no tokens asked for": (400, flat("max_tokens must be at least 1, got -186.")),
    "another model": (404, flat("The model `long` does not exist.", "NotFoundError", 404)),
    "too many messages": (400, in_error("'$.messages' is too long", None, "invalid_request_error")),
    "a wrong key": (401, in_error("maximum context length is 5 tokens", None, "invalid_request_error")),
    "no error object": (400, ["exceed_context_size_error"]),
}


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 30))


def sampler_of(server: UnrulyServer, **settings) -> HttpSampler:
    return connect(server.url, **{"backoff": 0.001, "dialect": "openai", "model": "tiny", **settings})


def refusing(status, body, *, if_longer=False):
    """Says 42, or refuses; with `if_longer` only what is more than the question."""

    async def behave(reply: Reply, asked: Asked) -> None:
        if if_longer and len(asked.body["messages"]) == 1:
            await reply.head()
            await reply.say("4", "2")
            await reply.finish(usage={"prompt_tokens": 7, "completion_tokens": 2})
        else:
            await reply.error(status, body)

    return behave


def question() -> Question:
    return Question("q", CHAT, lambda said: Answer(said.text) if said.text else None, Sampling(max_tokens=10))


@pytest.mark.parametrize("name", REPLIES)
def test_no_room_is_raised_at_the_first_no(name):
    status, body = REPLIES[name]

    async def go():
        async with UnrulyServer(refusing(status, body)) as server, sampler_of(server) as sampler:
            with pytest.raises(NoRoom) as told:
                await anext(sampler.draw(CHAT, Sampling(max_tokens=10), n=1, seed=0))
            return str(told.value), len(server.asked)

    said, asked = run(go())
    assert asked == 1
    assert f"/v1 has no room for the prompt ({status}): " in said
    assert "\n" not in said


@pytest.mark.parametrize("name", OTHERS)
def test_another_refusal_stays_what_it_was(name):
    status, body = OTHERS[name]

    async def go():
        async with UnrulyServer(refusing(status, body)) as server, sampler_of(server) as sampler:
            await anext(sampler.draw(CHAT, Sampling(max_tokens=10), n=1, seed=0))

    with pytest.raises(UsageError) as told:
        run(go())
    assert not isinstance(told.value, NoRoom)


@pytest.mark.parametrize("body", [b"", b"\xff", b"[" * 9999, b"null", b"7", b'{"error": {"code": [], "type": {}}}'])
def test_what_is_no_error_reply_tells_nothing(body):
    assert not tells_no_room(body)


@pytest.mark.parametrize("code", [400, 500, None])
def test_no_room_told_inside_a_stream(code):
    async def behave(reply: Reply, asked: Asked) -> None:
        await reply.head()
        await reply.event(in_error("too long", code, "exceed_context_size_error"))

    async def go():
        async with UnrulyServer(behave) as server, sampler_of(server) as sampler:
            await anext(sampler.draw(CHAT, Sampling(max_tokens=10), n=1, seed=0))

    with pytest.raises(NoRoom, match="has no room for the prompt: too long"):
        run(go())


@pytest.mark.parametrize("name", REPLIES)
def test_what_a_search_made_of_the_question_fails_and_costs_nothing(name):
    async def go():
        async with UnrulyServer(refusing(*REPLIES[name], if_longer=True)) as server, sampler_of(server) as sampler:
            metered = Metered(sampler, Ledger(100))
            longer = await metered.draw(question(), n=3, prompt=LONGER).completions()
            left = metered.ledger.left
            again = await metered.draw(question()).completions()
            return longer, left, again, metered

    longer, left, again, metered = run(go())
    assert [(done.finish, done.n_tokens) for done in longer] == [("error", 0)] * 3
    assert left == 100
    assert [done.text for done in again] == ["42"]
    assert (metered.ledger.spent.prompt, metered.ledger.spent.generated) == (7, 2)
    ((note, times),) = metered.notes.items()
    assert "a completion failed" in note
    assert "has no room for the prompt" in note
    assert times == 3


def test_a_question_that_fills_the_context_is_refused():
    async def go():
        async with UnrulyServer(refusing(*REPLIES["vLLM"])) as server, sampler_of(server) as sampler:
            ledger = Ledger(100)
            with pytest.raises(NoRoom, match="maximum context length is 6048 tokens"):
                await Metered(sampler, ledger).draw(question(), n=2).completions()
            return ledger.left

    assert run(go()) == 100


def test_what_was_done_before_the_no_is_kept():
    """One request at a time: the first of two completions is there when the second is refused."""
    status, body = REPLIES["SGLang"]

    async def behave(reply: Reply, asked: Asked) -> None:
        longer = asked.body["seed"] != sample_seed(0, 0)
        await refusing(status, body, if_longer=not longer)(reply, Asked("", {}, {"messages": CHAT}, 0, 0))

    async def go():
        async with UnrulyServer(behave) as server, sampler_of(server, concurrency=1) as sampler:
            metered = Metered(sampler, Ledger(100))
            return await metered.draw(question(), n=2, prompt=LONGER).completions(), metered.ledger

    drawn, ledger = run(go())
    assert [(done.text, done.finish) for done in drawn] == [("42", "stop"), ("", "error")]
    assert (ledger.spent.generated, ledger.left) == (2, 98)


def test_a_chain_of_revisions_ends_with_the_answer_that_it_has():
    async def go():
        async with UnrulyServer(refusing(*REPLIES["llama.cpp"], if_longer=True)) as server, sampler_of(server) as s:
            return await Revision(2)(question(), Metered(s, Ledger(100)))

    choice = run(go())
    assert choice.answer == Answer("42")
    assert [done.finish for done in choice.drawn] == ["stop", "error"]
    assert any("exceeds the available context size (256 tokens)" in note for note in choice.notes)


def test_a_gateway_goes_on_too_and_does_not_name_its_upstream():
    pytest.importorskip("starlette", reason="needs starlette: pip install 'equipoise[serve]'")
    from gateway_world import world

    async def go():
        async with UnrulyServer(refusing(*REPLIES["vLLM"], if_longer=True)) as server, world(server) as there:
            searched = await there.post(equipoise={"strategy": "revision:turns=2"})
            refused = await there.post(messages=LONGER)
            return searched, refused, server.url

    (status, _, told), (refusal, _, why), url = run(go())
    assert (status, told["choices"][0]["message"]["content"]) == (200, "42")
    (answer,) = told["usage"]["x_equipoise"]["answers"]
    assert any("the upstream has no room for the prompt: This model's maximum" in note for note in answer["notes"])
    assert url.removesuffix("/v1").removeprefix("http://") not in str(told) + str(why)
    # As OpenAI calls it, for clients that cut their history by it.
    assert (refusal, why["error"]["code"]) == (400, "context_length_exceeded")
