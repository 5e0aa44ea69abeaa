"""Clients of applications × what they ask for: each row through a real `equipoise serve`, in front of llama.cpp's server with SmolLM2.

`single` hands a completion through; `@vote` is a preset of three samples under 300 tokens.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

pytest.importorskip("openai", reason="needs the client: pip install openai")
pytest.importorskip("starlette", reason="needs starlette: pip install 'equipoise[serve]'")
pytest.importorskip("uvicorn", reason="needs uvicorn: pip install 'equipoise[serve]'")
pytest.importorskip("aiohttp", reason="needs aiohttp: pip install 'equipoise[serve]'")

import openai
from gateway_clients import CLIENTS, KEY, Sdk
from gateway_process import Served, busy_slots, served, wait_until

pytestmark = pytest.mark.integration

CHAT = [{"role": "user", "content": "What is 2+2? Say 'The answer is' and the number."}]
STORY = [{"role": "user", "content": "Write a long story about a whale."}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Rome", "Oslo"]}},
            "required": ["city"],
        },
    },
}
FORM = {
    "type": "json_schema",
    "json_schema": {
        "name": "sum",
        "schema": {
            "type": "object",
            "properties": {"even": {"type": "boolean"}},
            "required": ["even"],
            "additionalProperties": False,
        },
    },
}
USAGE = {"include_usage": True}


def _calling(city):
    function = {"name": "weather", "arguments": json.dumps({"city": city})}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "type": "function", "function": function}]}


def _asking(city):
    return {"role": "user", "content": f"Weather in {city}?"}


# Three examples: the model is too small to call by itself.
CALLING = [each for city in ("Oslo", "Rome", "Oslo") for each in (_asking(city), _calling(city))] + [_asking("Rome")]


@dataclass(frozen=True)
class There:
    process: Served
    llama: str
    model: str

    def direct(self, **fields):
        """What the server says itself."""
        body = {"model": self.model, "messages": CHAT, **fields}
        with urllib.request.urlopen(
            f"{self.llama}/v1/chat/completions", json.dumps(body).encode(), timeout=100
        ) as reply:
            return json.load(reply)


@pytest.fixture(scope="module")
def there(llama_server, tmp_path_factory) -> Iterator[There]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LLM_USER_PATH", str(tmp_path_factory.mktemp("llm")))
        patch.setenv(
            "LLM_LOAD_PLUGINS", ""
        )  # the model's package is a plugin for llm, which needs another binding of llama.cpp
        presets = {"presets.vote.strategy": "majority:n=3", "presets.vote.budget": "300"}
        efforts = {"effort.high.strategy": "majority:n=2", "effort.high.budget": "100"}
        words = [word for name, value in {**presets, **efforts}.items() for word in ("--set", f"{name}={value}")]
        with served(llama_server, *words, EQUIPOISE_GATEWAY_KEYS=KEY) as process:
            yield There(process, llama_server, Sdk(process.url).models()[0])


# --- features, each for any client that can ask for it


def plain(client, there):
    said = client.ask(there.model, CHAT, max_tokens=12, temperature=0)
    direct = there.direct(max_tokens=12, temperature=0)
    assert said.texts == [direct["choices"][0]["message"]["content"]]
    assert said.finish[0] in ("length", "stop", None)  # llm's async client tells none
    assert (said.prompt, said.made) == (direct["usage"]["prompt_tokens"], direct["usage"]["completion_tokens"])
    assert said.made > 0


def stream(client, there):
    said = client.ask(there.model, CHAT, stream=True, stream_options=USAGE, max_tokens=12, temperature=0)
    direct = there.direct(max_tokens=12, temperature=0)
    assert said.texts == [direct["choices"][0]["message"]["content"]]
    assert said.pieces > 3  # as it is made, and not in one piece at the end
    assert (said.prompt, said.made) == (direct["usage"]["prompt_tokens"], direct["usage"]["completion_tokens"])


def stream_without_usage(client, there):
    said = client.ask(there.model, CHAT, stream=True, max_tokens=4)
    assert (said.made, said.finish) == (None, ["length"])


def vote(client, there):
    said = client.ask(f"{there.model}@vote", CHAT, max_tokens=16, seed=3)
    assert said.texts[0]
    assert 3 <= said.made <= 48
    if said.details is not None:
        assert (said.details["calls"], said.details["spent"]["generated"]) == (3, said.made)
        assert [each["candidates"] for each in said.details["answers"]] == [3]


def vote_stream(client, there):
    said = client.ask(f"{there.model}@vote", CHAT, stream=True, stream_options=USAGE, max_tokens=16)
    assert said.texts[0]
    assert (
        "samples, leading" not in said.texts[0]
    )  # a client that does not know reasoning drops it, and keeps the answer
    assert 3 <= said.made <= 48
    if client.name.startswith("open"):
        assert [line[:9] for line in said.reasoning.splitlines()] == [f"{i} of 3 sa" for i in (1, 2, 3)]


def strategy_in_the_name(client, there):
    said = client.ask(f"{there.model}@majority:n=2", CHAT, max_tokens=8)
    assert said.texts[0]
    assert said.details["strategy"] == "majority:n=2"
    assert said.details["calls"] == 2


def budget_in_extra_body(client, there):
    wanted = {"equipoise": {"strategy": "majority:n=8", "budget": 40}}
    said = client.ask(there.model, CHAT, max_tokens=20, extra_body=wanted)
    assert said.made <= 40
    assert said.details["budget"] == 40
    assert said.details["answers"][0]["stopped_by"] == "budget"


def effort(client, there):
    said = client.ask(there.model, CHAT, max_tokens=12, reasoning_effort="high")
    alone = client.ask(there.model, CHAT, max_tokens=12)
    assert said.prompt == 2 * alone.prompt  # two samples
    assert said.made <= 24


def two_answers(client, there):
    said = client.ask(there.model, CHAT, n=2, max_tokens=12, temperature=1.5, seed=4)
    assert len(said.texts) == 2
    assert all(said.texts)
    assert 2 <= said.made <= 24


def two_answers_stream(client, there):
    said = client.ask(there.model, CHAT, n=2, stream=True, max_tokens=8)
    assert [bool(text) for text in said.texts] == [True, True]
    assert None not in said.finish


def two_votes(client, there):
    said = client.ask(f"{there.model}@vote", CHAT, n=2, max_tokens=12)
    assert len(said.texts) == 2
    assert said.details["calls"] == 6
    assert len(said.details["answers"]) == 2


def logprobs(client, there):
    said = client.ask(there.model, CHAT, max_tokens=8, temperature=0, logprobs=True, top_logprobs=2)
    check_logprobs(said)


def logprobs_stream(client, there):
    said = client.ask(there.model, CHAT, stream=True, max_tokens=8, temperature=0, logprobs=True, top_logprobs=2)
    check_logprobs(said)


def logprobs_of_a_vote(client, there):
    said = client.ask(f"{there.model}@vote", CHAT, max_tokens=8, temperature=0, logprobs=True, top_logprobs=2)
    check_logprobs(said)


def check_logprobs(said):
    assert "".join(token for token, _, _ in said.logprobs) == said.texts[0]
    assert all(value <= 0 for _, value, _ in said.logprobs)
    assert {top for _, _, top in said.logprobs} == {2}


def stop(client, there):
    free = client.ask(there.model, CHAT, max_tokens=12, temperature=0).texts[0]
    word = free.split()[2]
    said = client.ask(there.model, CHAT, max_tokens=12, temperature=0, stop=word)
    assert said.texts[0] == free[: free.index(word)]
    assert said.finish[0] in ("stop", None)


def seed(client, there):
    texts = [client.ask(there.model, CHAT, max_tokens=16, temperature=1.5, seed=s).texts[0] for s in (5, 5, 6)]
    assert texts[0] == texts[1] != texts[2]


def seed_of_a_vote(client, there):
    model = f"{there.model}@majority:n=1"
    texts = [client.ask(model, CHAT, max_tokens=16, temperature=1.5, seed=s).texts[0] for s in (5, 5, 6)]
    assert texts[0] == texts[1] != texts[2]


def limit(client, there):
    said = client.ask(there.model, STORY, max_tokens=7, stream_options=USAGE, stream=True)
    assert (said.made, said.finish[0]) == (7, "length")


def newer_limit(client, there):
    said = client.ask(there.model, STORY, max_completion_tokens=7)
    assert (said.made, said.finish) == (7, ["length"])


def tools(client, there):
    check_call(client.ask(there.model, CALLING, max_tokens=40, tools=[WEATHER], temperature=0))


def tools_stream(client, there):
    check_call(client.ask(there.model, CALLING, stream=True, max_tokens=40, tools=[WEATHER], temperature=0))


def tools_of_a_vote(client, there):
    check_call(client.ask(f"{there.model}@majority:n=2", CALLING, max_tokens=40, tools=[WEATHER], temperature=0))


def check_call(said):
    assert said.calls == [("weather", {"city": "Rome"})]
    assert said.finish == ["tool_calls"]


def tools_reach_the_server(client, there):
    """For a client that cannot ask for a call: their description is in the prompt."""
    bare = client.ask(there.model, CHAT, max_tokens=1)
    told = client.ask(there.model, CHAT, max_tokens=1, tools=[WEATHER])
    assert told.prompt > bare.prompt + 20


def form(client, there):
    said = client.ask(there.model, CHAT, max_tokens=40, response_format=FORM)
    assert set(json.loads(said.texts[0])) == {"even"}


def turns(client, there):
    asked = [{"role": "system", "content": "You are terse."}, *CHAT]
    if client.name != "llm":  # which keeps earlier turns in its own database
        asked[1:1] = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hello."}]
    said = client.ask(there.model, asked, max_tokens=8, temperature=0)
    direct = there.direct(messages=asked, max_tokens=8, temperature=0)
    assert (said.prompt, said.texts) == (direct["usage"]["prompt_tokens"], [direct["choices"][0]["message"]["content"]])


def fields_nobody_knows(client, there):
    """The likeliest token alone, by a setting of llama.cpp."""
    said = client.ask(there.model, CHAT, max_tokens=12, temperature=1.5, extra_body={"top_k": 1})
    assert said.texts == client.ask(there.model, CHAT, max_tokens=12, temperature=0).texts


def text(client, there):
    said = client.complete(there.model, "1, 2, 3, 4,", max_tokens=8, temperature=0, stop="6")
    assert said.texts[0].strip() == "5,"


def text_stream(client, there):
    said = client.complete(there.model, "1, 2, 3, 4,", stream=True, max_tokens=8, temperature=0, stop="6")
    assert said.texts[0].strip() == "5,"
    assert said.pieces > 1


def text_of_a_vote(client, there):
    said = client.complete(f"{there.model}@vote", "1, 2, 3, 4,", max_tokens=8, temperature=0, stop="6")
    assert said.texts[0].strip() == "5,"


def models(client, there):
    assert client.models() == [there.model, f"{there.model}@vote"]


def no_such_model(client, there):
    refused(openai.NotFoundError, "model_not_found", lambda: client.ask("nobody", CHAT, max_tokens=4))


def no_such_strategy(client, there):
    ask = client.ask
    refused(openai.BadRequestError, "unknown_strategy", lambda: ask(f"{there.model}@os:system", CHAT, max_tokens=4))


def no_such_strategy_stream(client, there):
    ask = client.ask
    refused(
        openai.BadRequestError,
        "unknown_strategy",
        lambda: ask(f"{there.model}@nothing", CHAT, stream=True, max_tokens=4),
    )


def too_many_answers(client, there):
    refused(openai.BadRequestError, None, lambda: client.ask(there.model, CHAT, n=99, max_tokens=4))


def wrong_key(client, there):
    stranger = type(client)(there.process.url, "another-key-of-nobody-0123456789")
    refused(openai.AuthenticationError, "invalid_api_key", lambda: stranger.ask(there.model, CHAT, max_tokens=4))


def refused(kind, code, asking):
    with pytest.raises(kind) as caught:
        asking()
    assert caught.value.request_id
    assert caught.value.body["code"] == code
    assert caught.value.body["type"]


def leaving(client, there):
    client.leave(there.model, STORY, max_tokens=400)
    wait_until(lambda: busy_slots(there.llama) == 0, 5)


def leaving_a_vote(client, there):
    client.leave(f"{there.model}@majority:n=4", STORY, max_tokens=400)
    wait_until(lambda: busy_slots(there.llama) == 0, 5)


def giving_up(client, there):
    """The client's own time limit ends the server's work too."""
    with pytest.raises(openai.APITimeoutError):
        client.ask(f"{there.model}@majority:n=4", STORY, max_tokens=400, timeout=0.5)
    wait_until(lambda: busy_slots(there.llama) == 0, 5)


def many_at_once(client, there):
    async def go(made):
        asked = [
            made.chat.completions.create(model=model, messages=CHAT, max_tokens=6, temperature=0)
            for model in [there.model, f"{there.model}@vote"] * 4
        ]
        return [reply.choices[0].message.content for reply in await asyncio.gather(*asked)]

    assert len(set(client.run(go))) == 1


SDK, BOTH, ALL = ("openai",), ("openai", "openai async"), ("openai", "openai async", "langchain", "llm")
CHAINED = ("openai", "openai async", "langchain")
FEATURES: dict[Callable, tuple[str, ...]] = {
    plain: tuple(CLIENTS),
    stream: tuple(CLIENTS),
    stream_without_usage: SDK,
    vote: tuple(CLIENTS),
    vote_stream: tuple(CLIENTS),
    strategy_in_the_name: CHAINED,
    budget_in_extra_body: CHAINED,
    effort: ALL,
    two_answers: CHAINED,
    two_answers_stream: BOTH,
    two_votes: ("openai", "langchain"),
    logprobs: CHAINED,
    logprobs_stream: CHAINED,
    logprobs_of_a_vote: ("openai", "langchain"),
    stop: ALL,
    seed: ALL,
    seed_of_a_vote: ("openai", "langchain"),
    limit: ("openai", "langchain"),
    newer_limit: BOTH,
    tools: CHAINED,
    tools_stream: ("openai", "langchain"),
    tools_of_a_vote: ("openai", "langchain"),
    tools_reach_the_server: ("llm",),
    form: ("openai", "langchain", "llm"),
    turns: ("openai", "langchain", "llm"),
    fields_nobody_knows: ("openai", "langchain"),
    text: ("openai", "openai async", "llm"),
    text_stream: ("openai", "openai async", "llm"),
    text_of_a_vote: SDK,
    models: (*BOTH, "open webui"),
    no_such_model: ALL,
    no_such_strategy: ("openai", "langchain"),
    no_such_strategy_stream: ("openai async",),
    too_many_answers: SDK,
    wrong_key: ALL,
    leaving: CHAINED,
    leaving_a_vote: CHAINED,
    giving_up: BOTH,
    many_at_once: ("openai async",),
}
ROWS = [(client, feature) for feature, clients in FEATURES.items() for client in clients]


@pytest.mark.parametrize(("name", "feature"), ROWS, ids=[f"{name}-{feature.__name__}" for name, feature in ROWS])
def test_a_client_gets_what_it_asks_for(there, name, feature):
    package = {"langchain": "langchain_openai", "llm": "llm"}.get(name.split()[0], "openai")
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs the client: pip install {package.replace('_', '-')}")
    feature(CLIENTS[name](there.process.url), there)
