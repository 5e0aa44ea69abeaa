"""Several upstreams, health, draining, metrics and the page; plans; and requests of every shape."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections import Counter

import pytest

pytest.importorskip("starlette", reason="needs starlette: pip install 'equipoise[serve]'")
pytest.importorskip("uvicorn", reason="needs uvicorn: pip install 'equipoise[serve]'")
pytest.importorskip("aiohttp", reason="needs aiohttp: pip install 'equipoise[serve]'")

from gateway_world import run, saying, until, world
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from unruly_server import UnrulyServer

from equipoise.errors import UsageError
from equipoise.gateway import upstreams
from equipoise.gateway.auto import read_plan
from equipoise.gateway.metrics import SECONDS, Histogram, Metrics
from equipoise.infer.policy import Bin, Option, Policy


def test_completions_go_where_there_is_least_to_do():
    gate = asyncio.Event()

    async def slow(reply, asked):
        await gate.wait()
        await saying("4")(reply, asked)

    async def go():
        async with (
            UnrulyServer(slow) as one,
            UnrulyServer(slow) as two,
            UnrulyServer(slow) as three,
            world(one, two, three, strategy="majority:n=9") as there,
        ):
            going = asyncio.ensure_future(there.post())
            await until(lambda: one.open + two.open + three.open == 9)
            loads = (one.open, two.open, three.open)
            gate.set()
            return loads, (await going)[0]

    assert run(go()) == ((3, 3, 3), 200)


def test_a_model_is_asked_for_where_it_is():
    listed = [{"data": [{"id": name, "owned_by": "x"}]} for name in ("a", "b")]

    async def go():
        async with (
            UnrulyServer(saying("A"), models=listed[0]) as one,
            UnrulyServer(saying("B"), models=listed[1]) as two,
            world(one, two) as there,
        ):
            said = [(await there.post(model=name))[2]["choices"][0]["message"]["content"] for name in ("a", "b", "a")]
            missing, _, told = await there.post(model="c")
            nameless, _, why = await there.post(model=None)
            _, models = await there.get("/v1/models")
            return said, missing, told["error"]["code"], nameless, why["error"]["code"], json.loads(models)

    said, missing, code, nameless, why, models = run(go())
    assert said == ["A", "B", "A"]
    assert (missing, code) == (404, "model_not_found")
    assert (nameless, why) == (400, "model_required")
    assert [each["id"] for each in models["data"]] == ["a", "b"]
    assert all(each["object"] == "model" and each["created"] and each["owned_by"] for each in models["data"])


def test_an_upstream_that_goes_and_comes_back_is_seen_to():
    async def go():
        async with UnrulyServer(saying("4")) as server, world(server) as there:
            ready = [(await there.get("/health/ready"))[0]]
            server.models = "hang"
            there.gateway.fleet.upstreams[0].fail()  # as a fault of a request would
            ready.append((await there.get("/health/ready"))[0])
            live = (await there.get("/health/live"))[0]
            server.models = None
            await until(there.gateway.fleet.ready, 8.0)
            ready.append((await there.get("/health/ready"))[0])
            return ready, live

    assert run(go()) == ([200, 503, 200], 200)


def test_a_dead_upstream_is_passed_over():
    async def go():
        dead = {"url": "http://127.0.0.1:9/v1", "dialect": "openai"}
        async with UnrulyServer(saying("4")) as server, world(dead, server, strategy="majority:n=4") as there:
            first = await there.post()
            again = [await there.post(model="tiny@single") for _ in range(3)]
            return first, [each[0] for each in again], len(server.asked)

    (status, _, told), again, asked = run(go())
    assert (status, again, asked) == (200, [200] * 3, 7)
    assert told["usage"]["x_equipoise"]["answers"][0]["notes"] == []


def test_an_upstream_whose_requests_fail_rests_though_it_lists_its_models(monkeypatch):
    monkeypatch.setattr(upstreams, "REST", 60.0)

    async def broken(reply, asked):
        await reply.error(500, {"error": {"message": "no"}})

    async def go():
        async with UnrulyServer(broken) as bad, UnrulyServer(saying("4")) as good, world(bad, good) as there:
            found = [(await there.post())[0] for _ in range(6)]
            await asyncio.sleep(0.15)  # its models are looked at every 0.05 s
            found += [(await there.post())[0] for _ in range(4)]
            return found, len(bad.asked), len(good.asked)

    assert run(go()) == ([200] * 10, 1, 10)


def test_no_upstream_at_all_is_a_502_that_can_be_tried_again():
    async def go():
        async with world({"url": "http://127.0.0.1:9/v1", "dialect": "openai"}) as there:
            found = [await there.post(), await there.post(model="tiny@majority:n=2")]
            return [(status, headers["x-should-retry"], told["error"]["message"]) for status, headers, told in found]

    for status, again, message in run(go()):
        assert (status, again) == (502, "true")
        assert "127.0.0.1" not in message


def test_the_operator_is_told_once_of_an_upstream_that_does_not_answer(caplog):
    async def go():
        async with world({"url": "http://127.0.0.1:9/v1", "dialect": "openai"}) as there:
            for _ in range(3):
                await there.gateway.fleet.check()
                there.gateway.fleet.upstreams[0].fail()  # as a fault of a request would

    run(go())
    (line,) = [record.getMessage() for record in caplog.records if record.name == "equipoise.gateway"]
    assert line.startswith("the upstream http://127.0.0.1:9/v1 cannot be used: ")


def test_while_it_drains_nothing_new_begins_and_what_is_under_way_ends():
    gate = asyncio.Event()

    async def behave(reply, asked):
        await reply.head()
        await reply.say("4")
        await gate.wait()
        await reply.say("2")
        await reply.finish()

    async def go():
        async with UnrulyServer(behave) as server, world(server) as there:
            going = asyncio.ensure_future(there.stream())
            await until(lambda: server.open == 1)
            there.gateway.draining = True
            refused = await there.post()
            health = [(await there.get(f"/health/{each}"))[0] for each in ("live", "ready")]
            gate.set()
            return refused, health, await going

    (status, headers, told), health, events = run(go())
    assert (status, told["error"]["code"], headers["x-should-retry"]) == (503, "draining", "true")
    assert health == [503, 503]
    assert events[-1] == "[DONE]"


# --- the operator's port


def test_metrics_count_what_happened():
    async def go():
        async with UnrulyServer(saying("4|2")) as server, world(server) as there:
            await there.post()
            await there.post(model="tiny@majority:n=3")
            await there.post(n=0)
            async with there.session.get(there.ops + "/metrics") as reply:
                return await reply.text()

    text = run(go())
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert lines['equipoise_requests_total{route="chat",strategy="single",code="200"}'] == "1"
    assert lines['equipoise_requests_total{route="chat",strategy="majority",code="200"}'] == "1"
    assert lines['equipoise_requests_total{route="chat",strategy="none",code="400"}'] == "1"
    # One completion handed through and three that voted, of two tokens each.
    assert lines['equipoise_tokens_total{kind="answer"}'] == "8"
    assert lines['equipoise_tokens_total{kind="prompt"}'] == "28"
    assert lines['equipoise_stops_total{strategy="majority",reason="finished"}'] == "1"
    assert lines["equipoise_inflight"] == "0"
    assert lines['equipoise_request_seconds_count{route="chat",strategy="single"}'] == "1"
    name = r"[a-z_]+(\{([a-z]+=\"[^\"\\\n]*\",?)+\})? [0-9.e+-]+"
    assert all(re.fullmatch(name, line) for line in text.splitlines() if not line.startswith("#"))


def test_a_histogram_has_every_time_in_its_bucket():
    metrics = Metrics()
    metrics.seconds[(("route", "x"),)] = each = Histogram()
    for seconds in (0.05, 0.06, 1000.0):
        each.add(seconds)
    text = metrics.write({})
    rows = re.findall(r'equipoise_request_seconds_bucket\{route="x",le="([^"]+)"\} (\d+)', text)
    # Buckets add up: an upper edge belongs to its bucket, and all are below infinity.
    assert rows[0] == ("0.05", "1")
    assert rows[1] == ("0.1", "2")
    assert rows[-1] == ("+Inf", "3")
    assert len(rows) == len(SECONDS) + 1


def test_the_page_shows_what_is_under_way_and_escapes_it():
    gate = asyncio.Event()

    async def behave(reply, asked):
        if asked.number:
            await gate.wait()
        await saying("The answer is <script>alert(1)</script>")(reply, asked)

    async def go():
        async with UnrulyServer(behave) as server, world(server, strategy="majority:n=2") as there:
            going = asyncio.ensure_future(there.post())
            await until(lambda: any(each.finished for each in there.gateway.entries.values()))
            async with there.session.get(there.ops + "/") as reply:
                page, headers = await reply.text(), reply.headers
            gate.set()
            await going
            async with there.session.get(there.ops + "/", headers={"Host": "evil.example"}) as reply:
                assert reply.status == 421
            return page, headers

    page, headers = run(go())
    assert "<script" not in page
    assert "majority:n=2" in page
    assert "1 of 2" in page
    assert "&lt;script&gt;" in page
    assert "default-src 'none'" in headers["content-security-policy"]


# --- plans


def plan_file(tmp_path, goal="vote"):
    """A unanimous pilot of 2 stops; any other takes 5 samples."""
    stop, more = Option(2, None, 0.9, 0.0), Option(5, None, 0.8, 30.0)
    bins = (
        Bin(0, 1, 0.5, 10.0, (Option(2, None, 0.1, 0.0), more)),
        Bin(2, 2, 0.5, 10.0, (stop, Option(5, None, 0.9, 30.0))),
    )
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"policy": Policy(goal, 2, None, 0.001, bins).to_dict()}))
    return path


@pytest.mark.parametrize(("texts", "drawn"), [(("The answer is 4",), 2), (("The answer is 4", "The answer is 5"), 5)])
def test_auto_draws_what_the_plan_says_for_such_a_pilot(tmp_path, texts, drawn):
    async def go():
        async with (
            UnrulyServer(saying(*texts)) as server,
            world(server, strategy="auto", plan=plan_file(tmp_path)) as there,
        ):
            return await there.post(), len(server.asked)

    (status, _, told), asked = run(go())
    assert (status, asked) == (200, drawn)
    ballots = told["usage"]["x_equipoise"]["answers"][0]["ballots"]
    assert sum(ballots.values()) == drawn
    assert told["choices"][0]["message"]["content"] == "The answer is 4"


def test_a_plan_that_is_none_or_for_a_verifier_is_refused(tmp_path):
    with pytest.raises(UsageError, match="plans for a verifier"):
        read_plan(plan_file(tmp_path, "verified"))
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(UsageError, match="is no plan"):
        read_plan(tmp_path / "x.json")
    with pytest.raises(UsageError, match="cannot read"):
        read_plan(tmp_path / "y.json")


# --- requests of every shape

CASES = int(os.environ.get("EQUIPOISE_FUZZ_CASES", 150))  # 2,000 before a release

JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=8), inside, max_size=3),
    max_leaves=6,
)
FIELDS = [
    "model", "messages", "prompt", "n", "stream", "stream_options", "max_tokens", "max_completion_tokens", "temperature", "top_p",
    "stop", "seed", "logprobs", "top_logprobs", "equipoise", "reasoning_effort", "tools", "response_format", "user", "metadata",
]  # fmt: skip
SPECS = [
    "majority:n=2",
    "single",
    "deepconf:n=2",
    "cap",
    "cisc:n=2",
    "borda:n=2",
    "revision:turns=2",
    "parallel:n=2,budget=100",
    "auto",
    "x",
]
GOOD = st.fixed_dictionaries(
    {
        "model": st.sampled_from(["tiny", *(f"tiny@{spec}" for spec in SPECS)]),
        "messages": st.just([{"role": "user", "content": "?"}]),
        "prompt": st.text(max_size=5),
    },
    optional={
        "n": st.integers(1, 3),
        "max_tokens": st.integers(1, 50),
        "temperature": st.floats(0, 2),
        "stop": st.text(max_size=3) | st.lists(st.text(max_size=3), max_size=2),
        "logprobs": st.booleans() | st.integers(0, 3),
        "top_logprobs": st.integers(0, 20),
        "stream": st.booleans(),
        "equipoise": st.fixed_dictionaries(
            {}, optional={"strategy": st.sampled_from(SPECS), "budget": st.integers(1, 300)}
        ),
        "response_format": st.just({"type": "json_object"}),
    },
)
BODIES = st.one_of(
    GOOD,
    st.dictionaries(st.sampled_from(FIELDS), JUNK, max_size=8),
    st.tuples(GOOD, st.dictionaries(st.sampled_from(FIELDS), JUNK, max_size=2)).map(lambda two: {**two[0], **two[1]}),
)


def test_no_request_brings_the_gateway_down():
    """A reply, or a refusal in the caller's words: never a 5xx that is our own, and never a stream without an end."""
    loop = asyncio.new_event_loop()
    seen: Counter[int] = Counter()
    there_is: dict = {}
    stopping = asyncio.Event()

    async def serve_all():
        async with UnrulyServer(saying("The answer is |4", "7")) as server, world(server, retries=0) as there:
            there_is["there"] = there
            await stopping.wait()

    async def once(path, body):
        there = there_is["there"]
        async with there.session.post(f"{there.url}/v1/{path}", json=body) as reply:
            text = (await reply.read()).decode()
            seen[reply.status] += 1
            assert reply.status < 500, (body, text)
            if reply.content_type == "text/event-stream":
                last = text.removesuffix("\n\n").rsplit("\n\n", 1)[-1]
                assert last == "data: [DONE]" or "error" in json.loads(last[6:]), text
                assert '"internal_error"' not in text
            else:
                told = json.loads(text)
                assert "choices" in told or set(told["error"]) == {"message", "type", "param", "code"}

    @settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(st.sampled_from(["chat/completions", "completions"]), BODIES)
    def fuzz(path, body):
        loop.run_until_complete(asyncio.wait_for(once(path, body), 20))

    async def begin():
        task = asyncio.ensure_future(serve_all())
        await until(lambda: "there" in there_is)
        return task

    try:
        task = loop.run_until_complete(begin())
        fuzz()
        assert not there_is["there"].gateway.entries
        stopping.set()
        loop.run_until_complete(task)
    finally:
        loop.close()
    assert seen[200] > CASES / 10  # replies too, not refusals alone
    assert seen[400] > 20
