"""A limit that the prompt leaves no room for: lowered once to what the server says, and the completion ends there with `length`."""

from __future__ import annotations

import asyncio

import pytest
from unruly_server import Asked, Reply, UnrulyServer

from equipoise.base import Answer, Question, Sampling
from equipoise.errors import NoRoom
from equipoise.infer.ledger import Ledger
from equipoise.infer.metered import Metered

pytest.importorskip("aiohttp", reason="needs aiohttp: pip install 'equipoise[infer]'")

from equipoise.samplers.http import connect
from equipoise.samplers.http_room import Room, read_room

CHAT = [{"role": "user", "content": "2+2?"}]
CONTEXT, PROMPT = 40, 30  # tokens: ten are left

# vLLM before 0.9 (https://github.com/vllm-project/vllm/issues/20409), 0.11 and of 2026; SGLang's tokenizer_manager.
WORDS = {
    "vLLM": "This model's maximum context length is {context} tokens. However, you requested {total} tokens ({prompt} in the messages, "
    "{asked} in the completion). Please reduce the length of the messages or completion.",
    "vLLM 0.11": "'max_tokens' or 'max_completion_tokens' is too large: {asked}. This model's maximum context length is {context} tokens and "
    "your request has {prompt} input tokens ({asked} > {context} - {prompt}).",
    "vLLM of January 2026": "You passed {prompt} input tokens and requested {asked} output tokens. However, the model's context length is only "
    "{context} tokens, resulting in a maximum input length of 3996 tokens. Please reduce the length of the input prompt.",
    "vLLM 2026": "This model's maximum context length is {context} tokens. However, you requested {asked} output tokens and your prompt "
    "contains {prompt} input tokens, for a total of {total} tokens. Please reduce the length of the input prompt.",
    "SGLang": "Requested token count exceeds the model's maximum context length of {context} tokens. You requested a total of {total} tokens: "
    "{prompt} tokens from the input messages and {asked} tokens for the completion. Please reduce the number of tokens.",
}  # fmt: skip
LEAST = (
    "This model's maximum context length is {context} tokens. However, you requested {asked} output tokens and your prompt contains at "
    "least {least} input tokens, for a total of at least {beyond} tokens. Please reduce the length of the input prompt."
)


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 30))


def serving(words, *, prompt=PROMPT, fits=lambda total: total <= CONTEXT):
    """As vLLM serves: a limit beyond the context is refused, and none means the rest of it. It never stops by itself."""

    async def behave(reply: Reply, asked: Asked) -> None:
        limit = asked.body.get("max_tokens", CONTEXT - prompt)
        if limit < 1 or not fits(prompt + limit):
            told = words.format(
                context=CONTEXT, prompt=prompt, asked=limit, total=prompt + limit, least=CONTEXT - limit + 1, beyond=CONTEXT + 1
            )  # fmt: skip
            await reply.error(400, {"object": "error", "message": told, "type": "BadRequestError", "code": 400})
            return
        await reply.head()
        await reply.say(*"abcdefghijklmnop"[:limit])
        await reply.finish("length", usage={"prompt_tokens": prompt, "completion_tokens": limit})

    return behave


async def drawn(behave, prompt=CHAT, *, limit=16, n=1, **settings):
    question = Question("q", prompt, lambda said: Answer(said.text) if said.text else None, Sampling(max_tokens=limit))
    async with (
        UnrulyServer(behave) as server,
        connect(server.url, backoff=0.001, dialect="vllm", model="tiny", **settings) as s,
    ):
        metered = Metered(s, Ledger(200))
        try:
            return await metered.draw(question, n=n).completions(), server.asked, metered
        except NoRoom as problem:
            return problem, server.asked, metered


@pytest.mark.parametrize("name", WORDS)
@pytest.mark.parametrize("prompt", [CHAT, "2+2?"], ids=["chat", "text"])
def test_a_limit_beyond_the_context_is_lowered_to_what_is_left(name, prompt):
    # SGLang: releases with >= need one token to spare, so that one is given up.
    left, fits = (9, lambda total: total < CONTEXT) if name == "SGLang" else (10, lambda total: total <= CONTEXT)
    done, asked, metered = run(drawn(serving(WORDS[name], fits=fits), prompt))
    (completion,) = done
    assert [request.body["max_tokens"] for request in asked] == [16, left]
    assert {key: value for key, value in asked[0].body.items() if key != "max_tokens"} == {
        key: value for key, value in asked[1].body.items() if key != "max_tokens"
    }
    assert (completion.finish, completion.n_tokens) == ("length", left)
    assert (metered.ledger.spent.generated, metered.ledger.left) == (left, 200 - left)


def test_every_completion_of_a_draw_gets_its_room_and_a_limit_that_fits_is_left_alone():
    done, asked, _ = run(drawn(serving(WORDS["vLLM"]), n=3))
    assert [(each.finish, each.n_tokens) for each in done] == [("length", 10)] * 3
    assert sorted(request.body["max_tokens"] for request in asked) == [10, 10, 10, 16, 16, 16]
    done, asked, _ = run(drawn(serving(WORDS["vLLM"]), limit=10))
    assert [request.body["max_tokens"] for request in asked] == [10]


def test_a_chat_whose_length_is_not_told_gets_the_rest_of_the_context():
    ((completion,), asked, _) = run(drawn(serving(LEAST)))
    assert [request.body.get("max_tokens") for request in asked] == [16, None]
    assert (completion.finish, completion.n_tokens) == ("length", 10)
    refused, asked, _ = run(drawn(serving(LEAST), "2+2?"))  # without a limit, a text would get sixteen tokens at most
    assert isinstance(refused, NoRoom)
    assert len(asked) == 1


def test_it_is_sent_again_once_only():
    refused, asked, metered = run(drawn(serving(WORDS["vLLM"], fits=lambda total: False)))
    assert isinstance(refused, NoRoom)
    assert [request.body["max_tokens"] for request in asked] == [16, 10]
    assert metered.ledger.left == 200


def test_a_server_that_refuses_a_limit_that_it_says_would_fit_is_not_asked_again():
    refused, asked, _ = run(drawn(serving(WORDS["vLLM"].replace("{prompt}", "24"))))  # 40 - 24 is what was asked for
    assert isinstance(refused, NoRoom)
    assert [request.body["max_tokens"] for request in asked] == [16]


@pytest.mark.parametrize("name", [*WORDS, "least"])
def test_a_prompt_that_fills_the_context_is_refused_as_before(name):
    words = WORDS.get(name, LEAST.replace("{least}", "{prompt}"))
    refused, asked, _ = run(drawn(serving(words, prompt=CONTEXT)))
    assert isinstance(refused, NoRoom)
    assert len(asked) == 1


def test_the_server_s_own_name_of_the_limit_is_lowered():
    async def behave(reply: Reply, asked: Asked) -> None:
        body = {**asked.body, "max_tokens": asked.body["max_completion_tokens"]}
        await serving(WORDS["vLLM"])(reply, Asked(asked.path, asked.headers, body, asked.number, asked.tries))

    ((completion,), asked, _) = run(drawn(behave, limit_field="max_completion_tokens"))
    assert [request.body["max_completion_tokens"] for request in asked] == [16, 10]
    assert all("max_tokens" not in request.body for request in asked)
    assert completion.finish == "length"


@pytest.mark.parametrize(
    ("said", "room"),
    [
        ("This model's maximum context length is 2049 tokens, however you requested 2054 tokens (2040 in your prompt; 14 for the completion).", 9),
        ("This model's maximum context length is 128000 tokens. However, your messages resulted in 202868 tokens (202767 in the messages, 101 in the functions).", None),
        ("max_tokens is too large: 9000. This model supports at most 4096 completion tokens, whereas you provided 9000.", None),
        ("The input (61709 tokens) is longer than the model's context length (40960 tokens).", None),
        ("you requested 40960 output tokens and your prompt contains 12769 characters", None),
    ],
)  # fmt: skip
def test_only_what_tells_context_and_prompt_tells_of_room(said, room):
    assert read_room(said) == (None if room is None else Room(room))


def test_a_gateway_s_searches_get_their_room_too():
    pytest.importorskip("starlette", reason="needs starlette: pip install 'equipoise[serve]'")
    from gateway_world import world

    async def go():
        async with UnrulyServer(serving(WORDS["vLLM"])) as server, world(server) as there:
            told = await there.post(max_tokens=16, equipoise={"strategy": "majority:n=2"})
            return told, [request.body.get("max_tokens") for request in server.asked]

    (status, _, told), limits = run(go())
    assert status == 200
    assert sorted(limits) == [10, 10, 16, 16]
    assert told["usage"]["completion_tokens"] == 20
