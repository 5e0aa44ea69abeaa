"""The gateway as a plain proxy: every field through, streams as they come, counts as the upstream's."""

from __future__ import annotations

import asyncio
import json

import pytest

pytest.importorskip("starlette", reason="needs starlette: pip install 'equipoise[serve]'")
pytest.importorskip("uvicorn", reason="needs uvicorn: pip install 'equipoise[serve]'")
pytest.importorskip("aiohttp", reason="needs aiohttp: pip install 'equipoise[serve]'")

from gateway_world import run, saying, until, world
from unruly_server import UnrulyServer


def test_a_whole_reply_is_the_upstreams_and_every_field_reached_it():
    async def go():
        async with UnrulyServer(saying("4|2")) as server, world(server) as there:
            status, headers, told = await there.post(
                n=1, temperature=0.5, tools=[{"type": "function", "function": {"name": "f"}}], top_k=7, seed=3,
                stop=["x"], logprobs=True, top_logprobs=2, max_completion_tokens=9, user="me",
                headers={"x-request-id": "mine-1"},
            )  # fmt: skip
        return status, headers, told, server

    status, headers, told, server = run(go())
    assert (status, headers["x-request-id"]) == (200, "mine-1")
    assert told["choices"][0]["message"]["content"] == "42"
    assert told["usage"] == {"prompt_tokens": 7, "completion_tokens": 2}
    sent = server.asked[0].body
    assert sent == {
        "model": "tiny", "messages": [{"role": "user", "content": "2+2?"}], "n": 1, "temperature": 0.5,
        "tools": [{"type": "function", "function": {"name": "f"}}], "top_k": 7, "seed": 3, "stop": ["x"], "logprobs": True,
        "top_logprobs": 2, "max_completion_tokens": 9, "user": "me", "stream": False,
    }  # fmt: skip


@pytest.mark.parametrize("usage", [False, True])
def test_a_stream_is_handed_on_as_it_comes_with_usage_only_where_it_was_asked_for(usage):
    first = asyncio.Event()

    async def behave(reply, asked):
        assert asked.body["stream_options"] == {"include_usage": True}
        await reply.head()
        await reply.say("4")
        await first.wait()  # the caller has the first piece while the second is not made
        await reply.say("2")
        await reply.finish(usage={"prompt_tokens": 7, "completion_tokens": 2})

    async def go():
        async with UnrulyServer(behave) as server, world(server) as there:
            body = {"model": "tiny", "messages": [], "stream": True, "stream_options": {"include_usage": usage}}
            body["messages"] = [{"role": "user", "content": "?"}]
            async with there.session.post(f"{there.url}/v1/chat/completions", json=body) as reply:
                begun = await reply.content.readuntil(b"\n\n")
                first.set()
                rest = await reply.content.read()
            return json.loads(begun[6:]), [line for line in rest.decode().split("\n\n") if line]

    begun, rest = run(go())
    assert begun["choices"][0]["delta"]["content"] == "4"
    assert rest[-1] == "data: [DONE]"
    told = [json.loads(line[6:]) for line in rest[:-1]]
    assert told[0]["choices"][0]["delta"]["content"] == "2"
    assert told[1]["choices"][0]["finish_reason"] == "stop"
    assert [each["usage"]["completion_tokens"] for each in told if each.get("usage")] == ([2] if usage else [])


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_goes_out_under_both_names(name):
    async def behave(reply, asked):
        await reply.head()
        await reply.event({"choices": [{"index": 0, "delta": {name: "hm"}}]})
        await reply.say("4")
        await reply.finish()

    async def go():
        async with UnrulyServer(behave) as server, world(server) as there:
            return await there.stream()

    delta = run(go())[0]["choices"][0]["delta"]
    assert (delta["reasoning"], delta["reasoning_content"]) == ("hm", "hm")


def test_a_stream_that_is_silent_has_pings_between_whole_events():
    async def behave(reply, asked):
        await reply.head()
        await asyncio.sleep(0.15)
        await reply.raw(b'data: {"choices": [{"index": 0, "delta"')  # half an event
        await asyncio.sleep(0.15)
        await reply.raw(b': {"content": "4"}}]}\n\n')
        await reply.finish()

    async def go():
        async with UnrulyServer(behave) as server, world(server, ping=0.05) as there:
            return await there.stream()

    events = run(go())  # read_events has checked the frames
    assert events.count(": ping") >= 3
    assert events[0] == ": ping"
    assert events[-1] == "[DONE]"
    said = [each["choices"][0]["delta"].get("content") for each in events if isinstance(each, dict)]
    assert said == ["4", None]


# --- the client goes


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("when", ["before the first byte", "in the middle"])
@pytest.mark.parametrize("strategy", ["single", "majority:n=4"])
def test_a_client_that_goes_takes_the_upstream_with_it(stream, when, strategy):
    async def behave(reply, asked):
        if when == "before the first byte":
            await reply.hang()
        await reply.head()
        await reply.forever()

    async def go():
        async with UnrulyServer(behave) as server, world(server, strategy=strategy) as there:
            body = {
                "model": "tiny",
                "messages": [{"role": "user", "content": "?"}],
                "stream": stream,
                "max_tokens": 30000,
            }
            asking = asyncio.ensure_future(there.session.post(f"{there.url}/v1/chat/completions", json=body))
            wide = 1 if strategy == "single" else 4
            await until(lambda: server.open == wide)
            if stream and when == "in the middle":
                reply = await asking
                await reply.content.readany()
                reply.close()
            else:
                await asyncio.sleep(0.02)
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
            await until(lambda: server.open == 0, 1.0)
            await until(lambda: there.gateway.running == 0)
            assert there.gateway.entries == {}
            assert server.left == wide
            assert all(each.load == 0 for each in there.gateway.fleet.upstreams)
            spent = there.gateway.keys.callers[0].ledger
            assert spent._reserved == 0
            return spent.spent, server.sent, there.gateway.metrics

    spent, sent, metrics = run(go())
    assert metrics.gone == 1
    assert spent.answer == 0
    assert spent.generated == spent.cancelled
    if when == "in the middle" and not (strategy == "single" and not stream):
        # What was still in the sockets is not known to anybody but the server.
        assert 0 < spent.cancelled <= sent


# --- faults


def test_a_request_is_tried_elsewhere_before_the_first_byte():
    async def broken(reply, asked):
        await reply.error(500, {"error": {"message": "no"}})

    async def go():
        async with UnrulyServer(broken) as bad, UnrulyServer(saying("42")) as good, world(bad, good) as there:
            told = [await there.post() for _ in range(4)]
            streamed = await there.stream()
            return told, streamed, len(bad.asked), len(good.asked)

    told, streamed, bad, good = run(go())
    assert [status for status, _, _ in told] == [200] * 4
    assert streamed[0]["choices"][0]["delta"]["content"] == "42"
    assert good == 5
    assert 1 <= bad <= 5


def test_after_the_first_byte_nothing_is_tried_again_and_the_stream_ends_with_an_error():
    async def behave(reply, asked):
        await reply.head()
        await reply.say("4")
        reply.reset()

    async def go():
        async with UnrulyServer(behave) as server, world(server) as there:
            return await there.stream(), len(server.asked)

    events, asked = run(go())
    assert asked == 1
    assert events[-1]["error"]["type"] == "server_error"
    assert "[DONE]" not in events


@pytest.mark.parametrize(
    ("reply_status", "status", "retry"),
    [(400, 400, "false"), (404, 404, "false"), (401, 502, "true"), (429, 429, "true"), (500, 502, "true")],
)
@pytest.mark.parametrize("strategy", ["single", "majority:n=2"])
@pytest.mark.parametrize("stream", [False, True])
def test_an_upstreams_error_has_openais_shape_and_no_address(reply_status, status, retry, strategy, stream):
    async def behave(reply, asked):
        await reply.error(reply_status, {"error": {"message": "bad thing"}}, Retry_After="0.01")

    async def go():
        async with UnrulyServer(behave) as server, world(server, strategy=strategy) as there:
            return await there.post(stream=stream), server.url, len(server.asked)

    (found, headers, told), url, asked = run(go())
    assert found == status
    assert set(told["error"]) == {"message", "type", "param", "code"}
    assert headers["x-should-retry"] == retry
    assert ("retry-after" in headers) == (status in (429, 502) and reply_status != 401)
    assert headers["x-request-id"]
    assert url not in json.dumps(told)
    assert asked <= (2 if strategy == "single" else 4)


@pytest.mark.parametrize(
    "bad",
    [
        b"data: {no json\n\n",
        b"data: [1]\n\n",
        b'data: {"choices": [3]}\n\n',
        b"data: \xff\xfe\n\n",
        b"data: " + b"x" * 10_000_000,  # a line without end
        b"",  # silence
    ],
    ids=["no JSON", "a list", "a number for a choice", "no UTF-8", "ten megabytes", "silence"],
)
def test_what_is_not_the_protocol_is_an_error_and_no_hang(bad):
    async def behave(reply, asked):
        await reply.head()
        await reply.say("4")
        await asyncio.sleep(0.05)
        await reply.raw(bad)
        await reply.hang()

    async def go():
        async with UnrulyServer(behave) as server, world(server, stall=0.5) as there:
            events = await there.stream()
            await until(lambda: server.open == 0, 1.0)
            return events

    events = run(go())
    assert events[0]["choices"][0]["delta"]["content"] == "4"
    assert events[-1]["error"]["code"] == "upstream_failed"


def test_a_server_that_ignores_limits_is_cut_at_the_budget():
    async def behave(reply, asked):
        assert asked.body["max_tokens"] == 10
        await reply.head()
        await reply.forever(0.002)

    async def go():
        async with UnrulyServer(behave) as server, world(server, budget=10) as there:
            streamed = await there.stream(stream_options={"include_usage": True})
            whole = await there.post()
            await until(lambda: server.open == 0, 1.0)
            return streamed, whole, there.gateway.keys.callers[0].ledger.spent

    streamed, (status, _, told), spent = run(go())
    said = [each["choices"][0]["delta"].get("content") for each in streamed[:-2] if each["choices"]]
    assert 10 <= len([x for x in said if x]) <= 12  # what came with one read is handed on
    assert streamed[-3]["choices"][0]["finish_reason"] == "length"
    assert streamed[-2]["usage"]["completion_tokens"] == len([x for x in said if x])
    assert streamed[-1] == "[DONE]"
    assert status == 200
    assert told["choices"][0]["finish_reason"] == "length"
    assert told["usage"]["completion_tokens"] == len(told["choices"][0]["message"]["content"])
    assert spent.generated == told["usage"]["completion_tokens"] + streamed[-2]["usage"]["completion_tokens"]


def test_the_budgets_reply_in_one_piece_joins_what_came_in_many():
    async def behave(reply, asked):
        await reply.head()
        logprobs = {"content": [{"token": "4", "logprob": -0.5, "bytes": [52], "top_logprobs": []}]}
        await reply.event(
            {
                "id": "a",
                "created": 5,
                "model": "m",
                "choices": [{"index": 1, "delta": {"content": "4"}, "logprobs": logprobs}],
            }
        )
        await reply.event({"id": "a", "choices": [{"index": 0, "delta": {"reasoning": "hm"}}]})
        await reply.event({"id": "a", "choices": [{"index": 1, "delta": {"content": "2"}, "logprobs": logprobs}]})
        call = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a"'}}
        await reply.event({"id": "a", "choices": [{"index": 0, "delta": {"tool_calls": [call]}}]})
        more = {"index": 0, "function": {"arguments": ":1}"}}
        await reply.event(
            {"id": "a", "choices": [{"index": 0, "delta": {"tool_calls": [more]}, "finish_reason": "tool_calls"}]}
        )
        await reply.event({"id": "a", "choices": [{"index": 1, "delta": {}, "finish_reason": "stop"}]})
        await reply.event({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 9}})
        await reply.event(b"[DONE]")

    async def go():
        async with UnrulyServer(behave) as server, world(server, budget=100) as there:
            return await there.post(n=2)

    status, _, told = run(go())
    assert status == 200
    one, two = told["choices"]
    assert (one["finish_reason"], two["finish_reason"]) == ("tool_calls", "stop")
    assert one["message"]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a":1}'}
    assert (one["message"]["reasoning"], one["message"]["reasoning_content"]) == ("hm", "hm")
    assert two["message"]["content"] == "42"
    assert len(two["logprobs"]["content"]) == 2
    assert (told["usage"]["prompt_tokens"], told["usage"]["completion_tokens"]) == (3, 9)
    assert (told["id"], told["created"], told["object"]) == ("a", 5, "chat.completion")


def test_an_upstream_that_does_not_stream_is_streamed_from():
    async def behave(reply, asked):
        choice = {"index": 0, "message": {"role": "assistant", "content": "42"}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 7, "completion_tokens": 2}
        await reply.error(200, {"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage})

    async def go():
        async with UnrulyServer(behave) as server, world(server) as there:
            events = await there.stream(stream_options={"include_usage": True})
            return events, there.gateway.keys.callers[0].ledger.spent

    (said, usage, done), spent = run(go())
    assert said["object"] == "chat.completion.chunk"
    assert said["choices"][0]["delta"]["content"] == "42"
    assert (usage["choices"], usage["usage"]["completion_tokens"], done) == ([], 2, "[DONE]")
    assert (spent.generated, spent.prompt) == (2, 7)


@pytest.mark.parametrize("stream", [True, False])
def test_an_error_in_a_reply_that_says_200_is_an_error(stream):
    async def behave(reply, asked):
        await reply.error(200, {"error": {"message": "too long", "code": 400}})

    async def go():
        async with UnrulyServer(behave) as server, world(server) as there:
            return await there.post(stream=stream)

    status, _, told = run(go())
    assert (status, told["error"]["code"]) == (400, "upstream_refused")


def test_prompts_in_a_list_share_the_budget():
    async def behave(reply, asked):
        await reply.head()
        for _ in range(50):
            for index in range(4):
                await reply.event({"choices": [{"index": index, "text": "x"}]})
        await reply.hang()

    async def go():
        async with UnrulyServer(behave) as server, world(server, budget=40) as there:
            told = await there.post("completions", prompt=["a", "b"], n=2)
            over = await there.post("completions", prompt=["a"] * 17)
            voted = await there.post("completions", prompt=["a", "b"], equipoise={"strategy": "majority:n=2"})
            return told, over, voted, server.asked

    (status, _, told), over, voted, asked = run(go())
    assert (status, asked[0].body["max_tokens"]) == (200, 10)
    assert [choice["finish_reason"] for choice in told["choices"]] == ["length"] * 4
    assert (over[0], voted[0], len(asked)) == (400, 400, 1)


def test_where_the_upstream_tells_no_usage_our_own_count_is_told():
    async def behave(reply, asked):
        await reply.head()
        await reply.say("4", "2")
        await reply.finish()

    async def go():
        async with UnrulyServer(behave) as server, world(server) as there:
            return await there.stream(stream_options={"include_usage": True})

    events = run(go())
    assert [event["usage"]["completion_tokens"] for event in events[:-1] if event.get("usage")] == [2]
    assert events[-1] == "[DONE]"


def test_a_stream_of_two_is_whole_only_when_both_have_ended():
    async def behave(reply, asked):
        await reply.head()
        await reply.event({"choices": [{"index": 0, "delta": {"content": "4"}, "finish_reason": "stop"}]})
        await asyncio.sleep(0.05)
        reply.reset()

    async def go():
        async with UnrulyServer(behave) as server, world(server) as there:
            return await there.stream(n=2), await there.stream(n=1)

    two, one = run(go())
    assert "error" in two[-1]
    assert one[-1] == "[DONE]"


def test_tokens_of_a_try_that_failed_are_counted_as_a_retrys():
    async def behave(reply, asked):
        await reply.head()
        await reply.say("4")
        await asyncio.sleep(0.05)
        if asked.number == 0:
            reply.reset()
            return
        await reply.say("2")
        await reply.finish()

    async def go():
        async with UnrulyServer(behave) as server, world(server, budget=100) as there:
            _, _, told = await there.post()  # nothing of it was sent: it may be tried again
            return told, there.gateway.keys.callers[0].ledger.spent

    told, spent = run(go())
    assert told["choices"][0]["message"]["content"] == "42"
    assert (spent.retry, spent.answer) == (1, 2)
    assert told["usage"]["completion_tokens"] == 3


def test_a_running_count_of_the_upstream_is_believed_and_kept_from_the_caller():
    async def behave(reply, asked):
        assert asked.body["stream_options"]["continuous_usage_stats"] is True
        await reply.head()
        for made in range(3, 3000, 3):  # three tokens with every event
            await reply.event(
                {"choices": [{"index": 0, "delta": {"content": "abc"}}], "usage": {"completion_tokens": made}}
            )
            await asyncio.sleep(0.01)

    async def go():
        async with UnrulyServer(behave) as server:
            upstream = {"url": server.url, "dialect": "vllm"}
            async with world(upstream, budget=10) as there:
                return await there.stream(), there.gateway.keys.callers[0].ledger.spent

    events, spent = run(go())
    assert spent.generated == 12  # the fourth event is the first above ten
    assert [event["choices"][0]["finish_reason"] for event in events[-2:-1]] == ["length"]
    assert not any("usage" in event for event in events[:-1])


@pytest.mark.parametrize("strategy", ["single", "majority:n=2"])
def test_a_wait_that_is_too_long_is_the_callers_to_wait(strategy):
    async def behave(reply, asked):
        await reply.error(429, {"error": {"message": "busy"}}, Retry_After="60")

    async def go():
        async with UnrulyServer(behave) as server, world(server, strategy=strategy) as there:
            return await there.post(), len(server.asked)

    (status, headers, _), asked = run(go())
    assert (status, headers["retry-after"], asked) == (429, "60", 1 if strategy == "single" else 2)


def test_tokens_of_tries_that_failed_are_within_the_budget_too():
    async def behave(reply, asked):
        await reply.head()
        for _ in range(6):
            await reply.say("x")
            await asyncio.sleep(0.01)
        if asked.number < 2:
            reply.reset()
            return
        await reply.forever(0.01)

    async def go():
        async with UnrulyServer(behave) as server, world(server, retries=3) as there:
            found = []
            for strategy in ("single", "majority:n=1"):
                server.asked.clear()
                wanted = {"strategy": strategy, "budget": 15}
                status, _, told = await there.post(equipoise=wanted, max_tokens=15)
                limits = [each.body["max_tokens"] for each in server.asked]
                found.append((status, limits, told["usage"]["completion_tokens"]))
            return found

    (one, limits, spent), (two, _, of_search) = run(go())
    assert (one, two) == (200, 200)
    assert limits[0] == 15
    assert (
        limits[2] <= 15 - 2 * 5
    )  # what is left, where each failed try has made six, the last of them perhaps not seen
    assert spent <= 16
    assert of_search <= 16


@pytest.mark.parametrize("strategy", ["single", "majority:n=1"])
@pytest.mark.parametrize("stream", [True, False])
def test_a_letter_that_comes_in_two_halves_is_one(strategy, stream):
    async def behave(reply, asked):
        await reply.head()
        event = 'data: {"choices": [{"index": 0, "delta": {"content": "é€🐳"}}]}\n\n'.encode()
        for byte in range(len(event)):  # every cut there can be
            await reply.raw(event[byte : byte + 1])
            await asyncio.sleep(0.001)
        await reply.finish()

    async def go():
        async with UnrulyServer(behave) as server, world(server, strategy=strategy, budget=100) as there:
            if not stream:
                return (await there.post())[2]["choices"][0]["message"]["content"]
            events = await there.stream()
            return "".join(c["delta"].get("content") or "" for each in events[:-1] for c in each["choices"])

    assert run(go()) == "é€🐳"
