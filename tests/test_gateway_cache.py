"""Replies given again: which requests are the same, for whom, for how long, and that a hit costs nothing and says so."""

from __future__ import annotations

import hashlib
import json

import pytest

pytest.importorskip("starlette", reason="needs starlette: pip install 'equipoise[serve]'")
pytest.importorskip("uvicorn", reason="needs uvicorn: pip install 'equipoise[serve]'")
pytest.importorskip("aiohttp", reason="needs aiohttp: pip install 'equipoise[serve]'")

from gateway_world import run, saying, world
from unruly_server import UnrulyServer

from equipoise.gateway import cache as cache_module

FOUR = ("The answer is |4", "The answer is |7", "so the answer is |4")
ON = {"entries": 8}


def ask(*bodies, behave=None, **settings):
    """Replies to requests made one after the other, what the cache's header said of each, the server and the gateway."""

    async def go():
        async with UnrulyServer(behave or saying(*FOUR)) as server, world(server, **{"cache": ON, **settings}) as there:
            told, said = [], []
            for body in bodies:
                if body.get("stream"):
                    told.append(await there.stream(**body))
                else:
                    status, headers, reply = await there.post(**body)
                    assert status == 200, reply
                    told.append(reply)
                    said.append(headers.get(cache_module.HEADER))
            return told, said, len(server.asked), there.gateway

    return run(go())


@pytest.mark.parametrize("strategy", ["single", "majority:n=3"])
def test_the_same_request_is_answered_again_and_nothing_is_spent(strategy):
    (first, again), said, asked, gateway = ask({"seed": 1}, {"seed": 1}, strategy=strategy)
    assert said == ["miss", "hit"]
    assert asked == (1 if strategy == "single" else 3)
    assert again["choices"] == first["choices"]
    assert again["id"] != first["id"]
    usage = again["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (0, 0, 0)
    details = usage["x_equipoise"]
    assert (details["cached"], details["calls"], details["spent"]["generated"]) == (True, 0, 0)
    assert details["first"]["completion_tokens"] == first["usage"]["completion_tokens"] > 0
    assert gateway.keys.callers[0].ledger.spent.generated == first["usage"]["completion_tokens"]


def test_it_is_off_unless_the_operator_asks_for_it():
    _, said, asked, gateway = ask({"seed": 1}, {"seed": 1}, cache={})
    assert (said, asked, gateway.cache) == ([None, None], 2, None)


@pytest.mark.parametrize(
    ("body", "kept"),
    [({}, False), ({"temperature": 0.7}, False), ({"temperature": 0}, True), ({"seed": 0}, True), ({"seed": 5, "temperature": 1.0}, True)],
)  # fmt: skip
def test_only_what_asks_for_the_same_again_is_kept_unless_all_is(body, kept):
    assert ask(body, body)[2] == (1 if kept else 2)
    assert ask(body, body, cache={**ON, "any_request": True})[2] == 1


BASE = {"seed": 1, "messages": [{"role": "user", "content": "2+2?"}], "max_tokens": 50}


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 2}, {"messages": [{"role": "user", "content": "2+3?"}]}, {"max_tokens": 51}, {"temperature": 0.5}, {"top_p": 0.5},
        {"n": 2}, {"stop": ["x"]}, {"logprobs": True}, {"tools": []}, {"top_k": 3}, {"user": "me"}, {"model": "tiny@majority:n=2"},
        {"equipoise": {"budget": 40}}, {"equipoise": {"strategy": "majority:n=2"}}, {"equipoise": {"seconds": 5}}, {"reasoning_effort": "low"},
        {"response_format": {"type": "text"}},
    ],
)  # fmt: skip
def test_whatever_differs_is_another_request(change):
    _, said, _, _ = ask(BASE, {**BASE, **change})
    assert said == ["miss", "miss"]


@pytest.mark.parametrize(
    "same",
    [{"stop": None}, {"messages": [{"content": "2+2?", "role": "user"}]}, {"model": "tiny@single"}, {"max_tokens": None, "max_completion_tokens": 50}],
)  # fmt: skip
def test_the_same_in_other_words_is_the_same(same):
    assert ask(BASE, {**BASE, **same})[1] == ["miss", "hit"]


@pytest.mark.parametrize("strategy", ["single", "majority:n=3"])
@pytest.mark.parametrize("first", [True, False])
def test_a_stream_and_a_whole_reply_are_one_request(strategy, first):
    """Whichever was first: the other is made of it."""
    body = {"seed": 3}
    streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
    told, said, asked, _ = ask(*((streamed, body) if first else (body, streamed)), strategy=strategy)
    events, reply = told if first else reversed(told)
    assert asked == (1 if strategy == "single" else 3)
    assert said == ["hit" if first else "miss"]
    assert events[-1] == "[DONE]"
    text = "".join(c["delta"].get("content") or "" for each in events[:-1] for c in each["choices"])
    assert text == reply["choices"][0]["message"]["content"]
    assert [c["finish_reason"] for each in events[:-1] for c in each["choices"] if c.get("finish_reason")] == ["stop"]
    hit = reply["usage"] if first else events[-2]["usage"]
    assert hit["completion_tokens"] == 0
    assert hit["x_equipoise"]["first"]["completion_tokens"] == (2 if strategy == "single" else 6)


def test_calls_of_tools_are_numbered_in_a_stream_from_the_cache():
    async def behave(reply, asked):
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
        await reply.error(200, {"id": "x", "object": "chat.completion", "choices": [choice]})

    (_, events), _, asked, _ = ask({"seed": 1}, {"seed": 1, "stream": True}, behave=behave)
    assert asked == 1
    assert [call["index"] for call in events[0]["choices"][0]["delta"]["tool_calls"]] == [0]
    assert events[0]["object"] == "chat.completion.chunk"


def test_a_text_completion_is_not_a_chat():
    async def behave(reply, asked):
        kind = "chat.completion" if "chat" in asked.path else "text_completion"
        await reply.error(
            200, {"id": "x", "object": kind, "choices": [{"index": 0, "text": "4", "message": {"content": "4"}}]}
        )

    same = {"seed": 1, "prompt": "?", "messages": [{"role": "user", "content": "?"}]}
    told, said, _, _ = ask({"path": "completions", **same}, same, {"path": "completions", **same}, behave=behave)
    assert said == ["miss", "miss", "hit"]
    assert [each["object"] for each in told] == ["text_completion", "chat.completion", "text_completion"]


@pytest.mark.parametrize("shared", [False, True])
def test_a_key_does_not_see_what_another_was_told(shared):
    keys = {name: f"key-of-{name}-0123456789" for name in ("ann", "bob")}
    rules = {name: {"sha256": hashlib.sha256(key.encode()).hexdigest()} for name, key in keys.items()}

    async def go():
        settings = {"cache": {**ON, "shared": shared}, "keys": rules}
        async with UnrulyServer(saying("4")) as server, world(server, **settings) as there:
            said = []
            for name in ("ann", "bob", "ann"):
                _, headers, _ = await there.post(headers={"Authorization": f"Bearer {keys[name]}"}, seed=1)
                said.append(headers[cache_module.HEADER])
            return said

    assert run(go()) == ["miss", "hit" if shared else "miss", "hit"]


def test_a_key_that_may_not_ask_gets_nothing_out_of_it_either():
    keys = {name: f"key-of-{name}-0123456789" for name in ("ann", "bob")}
    rules = {name: {"sha256": hashlib.sha256(key.encode()).hexdigest()} for name, key in keys.items()}
    rules["bob"]["models"] = ["other"]

    async def go():
        settings = {"cache": {**ON, "shared": True}, "keys": rules}
        async with UnrulyServer(saying("4")) as server, world(server, **settings) as there:
            asking = [there.post(headers={"Authorization": f"Bearer {keys[name]}"}, seed=1) for name in ("ann", "bob")]
            return [(await each)[0] for each in asking]

    assert run(go()) == [200, 403]


def test_a_request_may_do_without_it():
    apart = {"seed": 1, "equipoise": {"cache": False}}
    _, said, asked, gateway = ask(apart, {"seed": 1}, apart, {"seed": 1})
    assert (said, asked, len(gateway.cache)) == ([None, "miss", None, "hit"], 3, 1)


def test_what_is_too_long_is_not_kept(monkeypatch):
    monkeypatch.setattr(cache_module, "LONGEST", 3000)
    monkeypatch.setattr(cache_module, "LONGEST_STREAM", 4000)
    short, long = {"seed": 1}, {"seed": 2, "stream": True}
    behave = saying("|".join("x" * 100))  # events of 60 bytes
    _, _, asked, gateway = ask(long, long, short, short, behave=behave)
    assert (asked, len(gateway.cache)) == (3, 1)
    _, said, _, gateway = ask(short, short, behave=saying("x" * 3000))
    assert (said, len(gateway.cache)) == (["miss", "miss"], 0)


def test_it_is_bounded_and_the_longest_unused_goes_first():
    bodies = [{"seed": seed} for seed in (1, 2, 1, 3, 1, 2)]
    _, said, _, gateway = ask(*bodies, cache={"entries": 2})
    assert said == ["miss", "miss", "hit", "miss", "hit", "miss"]  # 3 took the place of 2
    assert len(gateway.cache) == 2
    long = "x" * 700
    _, said, _, gateway = ask(*bodies[:2], *bodies[:2], behave=saying(long), cache={"entries": 9, "max_bytes": 1500})
    assert said == ["miss"] * 4
    assert (len(gateway.cache), gateway.cache.size <= 1500) == (1, True)
    _, said, _, gateway = ask(
        {"seed": 1}, {"seed": 1}, behave=saying("x" * 5000), cache={"entries": 9, "max_bytes": 1500}
    )
    assert (said, len(gateway.cache), gateway.cache.size) == (["miss"] * 2, 0, 0)


def test_it_forgets_with_time(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(cache_module.time, "monotonic", lambda: now[0])
    rule = cache_module.CacheRule(entries=4, seconds=60)
    cache = cache_module.Cache(rule)
    cache.keep(b"a", b"{}")
    now[0] += 59.9
    assert cache.find(b"a") is not None
    now[0] += 0.1
    assert cache.find(b"a") is None
    assert (len(cache), cache.size) == (0, 0)


def test_a_search_of_which_a_completion_failed_is_not_kept():
    async def behave(reply, asked):
        if asked.number == 0:
            await reply.error(500, {"error": {"message": "no"}})
        else:
            await saying("The answer is |4")(reply, asked)

    body = {"seed": 1, "equipoise": {"strategy": "majority:n=2"}}
    (first, *_), said, _, _ = ask(body, body, body, behave=behave, retries=0)
    assert first["usage"]["x_equipoise"]["answers"][0]["notes"]
    assert said == ["miss", "miss", "hit"]


def test_a_search_that_its_time_limit_ended_is_not_kept():
    async def behave(reply, asked):
        await reply.head()
        await reply.say("The answer is 4")
        if asked.number % 2:
            await reply.forever(0.01)
        await reply.finish()

    body = {"seed": 1, "max_tokens": 30000, "equipoise": {"strategy": "majority:n=2", "seconds": 0.3}}
    told, said, _, _ = ask(body, body, behave=behave)
    assert [each["usage"]["x_equipoise"]["answers"][0]["stopped_by"] for each in told] == ["interrupted"] * 2
    assert said == ["miss", "miss"]


@pytest.mark.parametrize(
    "odd", [{"index": 0, "delta": "4"}, {"index": [1], "delta": {}}, {"index": 0, "delta": {"tool_calls": [3]}}]
)
def test_a_stream_of_odd_shape_is_handed_on_and_not_kept(odd):
    async def behave(reply, asked):
        await reply.head()
        await reply.event({"choices": [odd]})
        await reply.finish()

    body = {"seed": 1, "stream": True}
    (events, _), _, asked, gateway = ask(body, body, behave=behave)
    assert (events[-1], asked, len(gateway.cache)) == ("[DONE]", 2, 0)


@pytest.mark.parametrize("usage", [None, [], "much", {"x_equipoise": 3}])
def test_a_usage_of_odd_shape_is_no_trouble(usage):
    async def behave(reply, asked):
        choice = {"index": 0, "message": {"role": "assistant", "content": "4"}, "finish_reason": "stop"}
        await reply.error(200, {"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage})

    (_, again), said, _, _ = ask({"seed": 1}, {"seed": 1}, behave=behave)
    assert (said, again["usage"]["completion_tokens"]) == (["miss", "hit"], 0)


def test_errors_are_not_kept():
    async def behave(reply, asked):
        await reply.error(400, {"error": {"message": "no"}})

    async def go():
        async with UnrulyServer(behave) as server, world(server, cache=ON) as there:
            statuses = [(await there.post(seed=1, stream=stream))[0] for stream in (False, True, False)]
            return statuses, len(server.asked), len(there.gateway.cache)

    assert run(go()) == ([400] * 3, 3, 0)


def test_its_counts_are_metrics():
    async def go():
        async with UnrulyServer(saying("4")) as server, world(server, cache=ON) as there:
            for _ in range(3):
                await there.post(seed=1)
            async with there.session.get(there.ops + "/metrics") as reply:
                return dict(line.rsplit(" ", 1) for line in (await reply.text()).splitlines() if line[0] != "#")

    told = run(go())
    assert [told[f'equipoise_cache_total{{result="{each}"}}'] for each in ("hit", "miss")] == ["2", "1"]
    assert told["equipoise_cache_entries"] == "1"
    assert json.loads(told["equipoise_cache_bytes"]) > 0
