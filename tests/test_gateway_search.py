"""Strategies behind the OpenAI API: the vote's answer, its true cost, its progress, and hard limits."""

from __future__ import annotations

import asyncio
import json

import pytest

pytest.importorskip("starlette", reason="needs starlette: pip install 'equipoise[serve]'")
pytest.importorskip("uvicorn", reason="needs uvicorn: pip install 'equipoise[serve]'")
pytest.importorskip("aiohttp", reason="needs aiohttp: pip install 'equipoise[serve]'")

from gateway_world import run, saying, spend_budgets, world
from unruly_server import UnrulyServer

LONG = "roses are red and violets are blue, and this line is far too long to be an answer to anything at all"
FOUR = ("The answer is |4", "The answer is |7", "so the answer is |4", LONG)


def ask(behave, *, settings=None, **body):
    async def go():
        async with UnrulyServer(behave) as server, world(server, **(settings or {})) as there:
            told = await (there.stream(**body) if body.get("stream") else there.post(**body))
            return told, server, there.gateway

    return run(go())


def test_a_vote_is_answered_and_every_token_is_in_the_usage():
    (status, _, told), server, gateway = ask(saying(*FOUR), settings={"strategy": "majority:n=4", "budget": 4000})
    assert status == 200
    assert told["choices"][0]["message"]["content"].endswith("he answer is 4")
    assert told["choices"][0]["finish_reason"] == "stop"
    usage = told["usage"]
    # 2 + 2 + 2 + 1 pieces, and the prompt of 7 tokens four times.
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (28, 7, 35)
    details = usage["x_equipoise"]
    assert details["discarded_tokens"] == 7 - 2
    assert (details["strategy"], details["budget"], details["calls"]) == ("majority:n=4", 4000, 4)
    assert details["answers"] == [
        {"answer": "4", "candidates": 4, "ballots": {"4": 2.0, "7": 1.0}, "abstained": 1, "tied": [], "stopped_by": "finished", "notes": []}
    ]  # fmt: skip
    assert gateway.keys.callers[0].ledger.spent.generated == 7
    assert {each.body["max_tokens"] for each in server.asked} == {1000}  # a quarter of the budget each


@pytest.mark.parametrize(
    "body",
    [
        {"model": "tiny@majority:n=4"},
        {"model": "tiny@four"},
        {"equipoise": {"strategy": "four"}},
        {"model": "tiny@single", "equipoise": {"strategy": "majority:n=4", "budget": 4000}},
        {"reasoning_effort": "high"},
    ],
)
def test_a_caller_chooses_by_name_by_field_or_by_effort(body):
    preset = {"strategy": "majority:n=4", "budget": 4000}
    settings = {"presets": {"four": preset}, "effort": {"high": preset}}
    (status, _, told), server, _ = ask(saying(*FOUR), settings=settings, **body)
    assert status == 200
    assert len(server.asked) == 4
    assert told["usage"]["x_equipoise"]["strategy"] == "majority:n=4"
    assert all("equipoise" not in each.body and each.body["model"] == "tiny" for each in server.asked)


@pytest.mark.parametrize(("effort", "budget"), [("low", 1000), ("medium", 4000), ("high", 8000), ("max", 9000)])
def test_an_effort_scales_the_budget_up_to_the_limit(effort, budget):
    settings = {"strategy": "majority:n=2", "budget": 4000, "limits": {"budget": 9000}}
    (_, _, told), server, _ = ask(saying("4"), settings=settings, reasoning_effort=effort)
    assert told["usage"]["x_equipoise"]["budget"] == budget
    assert server.asked[0].body["reasoning_effort"] == effort


def test_n_answers_are_n_searches():
    (status, _, told), server, _ = ask(saying("4"), settings={"strategy": "majority:n=2"}, n=3, seed=5)
    assert status == 200
    assert [choice["index"] for choice in told["choices"]] == [0, 1, 2]
    assert len(server.asked) == 6
    assert len({each.body["seed"] for each in server.asked}) == 6
    assert told["usage"]["completion_tokens"] == 6


def test_an_answer_of_several_is_streamed_as_soon_as_it_is_decided():
    gate = asyncio.Event()

    async def behave(reply, asked):
        await reply.head()
        if asked.number:
            await gate.wait()
        await reply.say("4")
        await reply.finish()

    async def go():
        async with UnrulyServer(behave) as server, world(server, strategy="majority:n=1") as there:
            body = {"model": "tiny", "messages": [{"role": "user", "content": "?"}], "stream": True, "n": 2}
            ended = []
            async with there.session.post(f"{there.url}/v1/chat/completions", json=body) as reply:
                while (event := await reply.content.readuntil(b"\n\n")) != b"data: [DONE]\n\n":
                    ended += [c["index"] for c in json.loads(event[6:])["choices"] if c["finish_reason"]]
                    if len(ended) == 1:  # one is whole while the other has not begun
                        gate.set()
            return ended

    assert sorted(run(go())) == [0, 1]


def test_a_seed_gives_the_same_seeds_upstream():
    seeds = []
    for _ in range(2):
        _, server, _ = ask(saying("4"), settings={"strategy": "majority:n=3"}, seed=11)
        seeds.append(sorted(each.body["seed"] for each in server.asked))
    assert seeds[0] == seeds[1]


def test_a_stream_tells_of_the_search_while_it_goes_and_then_the_answer():
    gates = [asyncio.Event() for _ in range(3)]

    async def behave(reply, asked):
        await reply.head()
        await reply.say("The answer is ")
        await gates[asked.number].wait()
        await reply.say("4")
        await reply.finish(usage={"prompt_tokens": 7, "completion_tokens": 2})

    async def go():
        async with UnrulyServer(behave) as server, world(server, strategy="majority:n=3") as there:
            body = {"model": "tiny", "messages": [{"role": "user", "content": "?"}], "stream": True}
            body["stream_options"] = {"include_usage": True}
            lines = []
            asking = asyncio.ensure_future(there.session.post(f"{there.url}/v1/chat/completions", json=body))
            async with await asking as reply:
                role = json.loads((await reply.content.readuntil(b"\n\n"))[6:])  # when no sample has ended yet
                gates[0].set()
                for gate in (*gates[1:], None):  # a line for each sample, before the next is even begun
                    lines.append(json.loads((await reply.content.readuntil(b"\n\n"))[6:]))
                    if gate is not None:
                        gate.set()
                rest = (await reply.content.read()).decode().split("\n\n")
            return role, lines, [json.loads(each[6:]) if each != "data: [DONE]" else each for each in rest if each]

    role, lines, rest = run(go())
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    told = [each["choices"][0]["delta"] for each in lines]
    assert [each["reasoning"] for each in told] == [f"{i} of 3 samples, leading 4 ({i})\n" for i in (1, 2, 3)]
    assert all(each["reasoning"] == each["reasoning_content"] for each in told)
    assert rest[-1] == "data: [DONE]"
    assert rest[-2]["choices"] == []
    assert rest[-2]["usage"]["completion_tokens"] == 6
    chunks = [each["choices"][0] for each in rest[:-2]]
    assert "".join(each["delta"].get("content") or "" for each in chunks) == "The answer is 4"
    assert [each["finish_reason"] for each in chunks] == [None] * (len(chunks) - 1) + ["stop"]


def test_progress_can_be_left_out():
    body = {"stream": True, "equipoise": {"strategy": "majority:n=2", "progress": False}}
    events, _, _ = ask(saying("The answer is |4"), **body)
    assert not any("reasoning" in each["choices"][0]["delta"] for each in events[:-1])
    assert events[-1] == "[DONE]"


def test_a_text_is_completed_by_a_vote_too():
    async def behave(reply, asked):
        assert asked.path == "/v1/completions"
        await reply.head()
        await reply.event({"choices": [{"index": 0, "text": "4"}]})
        await reply.event({"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]})
        await reply.event(b"[DONE]")

    (status, _, told), _, _ = ask(behave, settings={"strategy": "majority:n=2"}, path="completions", prompt=["2+2="])
    assert status == 200
    assert (told["object"], told["choices"][0]["text"]) == ("text_completion", "4")


def test_tool_calls_vote_whatever_the_order_of_their_arguments():
    said = ['{"a":1,"b":2}', '{"b": 2, "a": 1}', '{"a":9}']

    async def behave(reply, asked):
        await reply.head()
        function = {"name": "f", "arguments": said[asked.number]}
        call = {"index": 0, "id": f"c{asked.number}", "type": "function", "function": function}
        await reply.event({"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]})
        await reply.finish("tool_calls")

    (status, _, told), server, _ = ask(behave, settings={"strategy": "majority:n=3"}, tools=[{"type": "function"}])
    assert status == 200
    assert told["choices"][0]["finish_reason"] == "tool_calls"
    arguments = told["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(arguments) == {"a": 1, "b": 2}
    assert sorted(told["usage"]["x_equipoise"]["answers"][0]["ballots"].values()) == [1.0, 2.0]
    assert server.asked[0].body["tools"] == [{"type": "function"}]


@pytest.mark.parametrize("spec", ["majority:n=2", "deepconf:n=2,ballots=1"])
@pytest.mark.parametrize("top", [0, 3])
def test_logprobs_are_those_of_the_chosen_completion(spec, top):
    async def behave(reply, asked):
        await reply.head()
        for text, value in (("The answer is ", -0.25), ("4", -0.5)):
            tops = [{"token": f"t{i}", "logprob": -float(i)} for i in range(asked.body["top_logprobs"])]
            entry = {"token": text, "logprob": value, "bytes": list(text.encode()), "top_logprobs": tops}
            await reply.event({"choices": [{"index": 0, "delta": {"content": text}, "logprobs": {"content": [entry]}}]})
        await reply.finish()

    body = {"logprobs": True, "top_logprobs": top}
    (status, _, told), _, _ = ask(behave, settings={"strategy": spec}, **body)
    assert status == 200
    entries = told["choices"][0]["logprobs"]["content"]
    assert [(each["token"], each["logprob"]) for each in entries] == [("The answer is ", -0.25), ("4", -0.5)]
    assert entries[1]["bytes"] == [52]
    # As many alternatives as were asked for, though DeepConf asks for twenty itself.
    assert [[x["token"] for x in each["top_logprobs"]] for each in entries] == [[f"t{i}" for i in range(top)]] * 2
    events, _, _ = ask(behave, settings={"strategy": spec}, **body, stream=True)
    streamed = [e for each in events[:-1] for c in each["choices"] if c["logprobs"] for e in c["logprobs"]["content"]]
    assert streamed == entries


def test_logprobs_are_those_of_the_try_that_went_well():
    async def behave(reply, asked):
        await reply.head()
        for text in ("4", "2"):
            entry = {"token": text, "logprob": -0.5, "top_logprobs": [{"token": "x", "logprob": -1.0}]}
            await reply.event({"choices": [{"index": 0, "delta": {"content": text}, "logprobs": {"content": [entry]}}]})
            await asyncio.sleep(0.05)
            if asked.number == 0:
                reply.reset()
                return
        await reply.finish()

    (status, _, told), _, _ = ask(behave, settings={"strategy": "majority:n=1"}, logprobs=True, top_logprobs=1)
    assert status == 200
    entries = told["choices"][0]["logprobs"]["content"]
    assert [(each["token"], len(each["top_logprobs"])) for each in entries] == [("4", 1), ("2", 1)]
    assert told["usage"]["x_equipoise"]["spent"]["retry"] == 1


def test_where_no_answer_can_be_read_the_first_whole_completion_is_the_reply():
    (status, _, told), _, _ = ask(saying(LONG), settings={"strategy": "majority:n=2"})
    assert (status, told["choices"][0]["message"]["content"]) == (200, LONG)
    assert told["usage"]["x_equipoise"]["answers"][0]["answer"] is None


def test_failed_completions_are_left_out_and_told_of():
    async def behave(reply, asked):
        if asked.body["seed"] % 2:
            await reply.error(500, {"error": {"message": "no"}})
        else:
            await saying("4")(reply, asked)

    for seed in range(20):  # one where some fail and some do not
        (status, _, told), server, _ = ask(behave, settings={"strategy": "majority:n=4", "retries": 0}, seed=seed)
        odd = sum(each.body["seed"] % 2 for each in server.asked)
        if 0 < odd < 4:
            break
    assert status == 200
    answer = told["usage"]["x_equipoise"]["answers"][0]
    assert answer["ballots"] == {"4": 4 - odd}
    assert any("the server answers 500" in note for note in answer["notes"])


def test_the_time_limit_answers_with_what_is_there():
    async def behave(reply, asked):
        await reply.head()
        if asked.number:
            await reply.forever(0.01)
        await reply.say("The answer is ", "4")
        await reply.finish()

    body = {"equipoise": {"strategy": "majority:n=3", "seconds": 0.3}, "max_tokens": 30000}
    (status, _, told), server, _ = ask(behave, **body)
    assert (status, told["choices"][0]["message"]["content"]) == (200, "The answer is 4")
    assert told["usage"]["x_equipoise"]["answers"][0]["stopped_by"] == "interrupted"
    assert told["usage"]["x_equipoise"]["spent"]["cancelled"] > 0
    assert server.left == 2


@pytest.mark.parametrize("strategy", ["single", "majority:n=2"])
@pytest.mark.parametrize(("limits", "status"), [({}, 408), ({"seconds": 0.1}, 504)])
def test_a_time_limit_without_anything_is_a_timeout_of_who_gave_it(strategy, limits, status):
    async def behave(reply, asked):
        await reply.hang()

    wanted = {"strategy": strategy} | ({} if limits else {"seconds": 0.1})
    (found, _, told), _, _ = ask(behave, settings={"limits": limits}, equipoise=wanted)
    assert (found, told["error"]["code"], told["error"]["type"]) == (status, "timeout", "timeout_error")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"model": "tiny@os:system"}, "no strategy of this gateway"),
        ({"model": "tiny@grpo"}, "no strategy of this gateway"),
        ({"model": "tiny@majority:n=999"}, "64 at most"),
        ({"model": "tiny@majority:n=2.5"}, "whole number"),
        ({"model": "tiny@majority:n=0"}, "whole number"),
        ({"model": "tiny@deepconf:keep=yes"}, "takes a value"),
        ({"model": "tiny@majority:x=1"}, "unknown setting"),
        ({"model": "tiny@auto"}, "needs a plan"),
        ({"equipoise": {"strategy": "majority", "url": "http://evil"}}, "equipoise.url"),
        ({"equipoise": {"budget": 0}}, "budget"),
        ({"n": 0}, "n:"),
        ({"n": 17}, "16 at most"),
        ({"temperature": "hot"}, "temperature"),
        ({"messages": "hi"}, "messages"),
        ({"max_tokens": 10**6}, "32768 at most"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(body, said):
    (status, headers, told), server, _ = ask(saying("4"), **body)
    assert status == 400
    assert said in told["error"]["message"]
    assert told["error"]["type"] == "invalid_request_error"
    assert headers["x-should-retry"] == "false"
    assert not server.asked


def test_against_a_server_that_ignores_limits_a_budget_is_exceeded_by_a_chunk_of_each_completion_at_most(monkeypatch):
    spent = run(spend_budgets(40, seed=0, monkeypatch=monkeypatch), 60)
    for each in spent:
        assert each.booked <= each.budget + each.calls * each.chunk
        # What the server wrote when nobody read any more is known to nobody else.
        assert each.booked == each.sent if not each.cut else each.booked <= each.sent
    assert any(not each.cut for each in spent)
    assert any(each.cut for each in spent)


# --- the record


def test_what_was_drawn_is_a_run_folder_that_others_read(tmp_path):
    pytest.importorskip("pyarrow")
    from equipoise.rollouts.readers.table import read_run

    async def go():
        async with UnrulyServer(saying(*FOUR)) as server, world(server, record=str(tmp_path / "served")) as there:
            for strategy in ("majority:n=4", "majority:n=2", "single"):
                assert (await there.post(equipoise={"strategy": strategy}))[0] == 200

    run(go())
    rows = [row for batch in read_run(tmp_path / "served").rollouts() for row in batch.rows()]
    assert len(rows) == 6  # what is handed through is not kept
    assert len({row["prompt_id"] for row in rows}) == 1
    assert {row["strategy"] for row in rows} == {"majority:n=4", "majority:n=2"}
    assert sorted(row["answer"] or "" for row in rows[:4]) == ["", "4", "4", "7"]
    lines = [json.loads(line) for line in (tmp_path / "served" / "choices.jsonl").read_text().splitlines()]
    assert [line["drawn"] for line in lines] == [4, 2]


def test_a_disk_that_fails_costs_no_reply(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    from equipoise.rollouts.writer import RunWriter

    def full(self, rows, step=None):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RunWriter, "write", full)

    async def go():
        async with UnrulyServer(saying("4")) as server, world(server, record=str(tmp_path / "served")) as there:
            status, _, _ = await there.post(equipoise={"strategy": "majority:n=3"})
            gateway = there.gateway
        return status, gateway.recorder.dropped

    assert run(go()) == (200, 3)
