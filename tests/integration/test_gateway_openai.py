"""The gateway with the official client, in front of a real llama.cpp server with SmolLM2."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

import pytest

openai = pytest.importorskip("openai", reason="needs the client: pip install openai")
pytest.importorskip("starlette", reason="needs starlette: pip install 'equipoise[serve]'")
pytest.importorskip("uvicorn", reason="needs uvicorn: pip install 'equipoise[serve]'")
pytest.importorskip("aiohttp", reason="needs aiohttp: pip install 'equipoise[serve]'")

pytestmark = pytest.mark.integration

KEY = "planted-key-of-a-caller-0123456789"
CHAT = [{"role": "user", "content": "What is 2+2? Say 'The answer is' and the number."}]
COMMAND = "from equipoise.cli.main import run; run()"


class Served:
    def __init__(self, upstream: str, *words: str, **environment: str) -> None:
        listed = [
            sys.executable,
            "-c",
            COMMAND,
            "serve",
            "--upstream",
            upstream,
            "--port",
            "0",
            "--ops-port",
            "0",
            "--json",
            *words,
        ]
        self.child = subprocess.Popen(
            listed, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
        )
        assert self.child.stdout is not None
        told = json.loads(self.child.stdout.readline())
        self.url, self.ops = told["address"], told["ops"]
        for _ in range(200):
            try:
                with urllib.request.urlopen(self.url.removesuffix("/v1") + "/health/ready", timeout=5):
                    return
            except OSError:
                time.sleep(0.05)
        raise AssertionError("the gateway did not get ready")

    def stop(self) -> tuple[int, str]:
        self.child.send_signal(signal.SIGTERM)
        _, err = self.child.communicate(timeout=30)
        return self.child.returncode, err


@pytest.fixture(scope="module")
def served(llama_server) -> Iterator[Served]:
    there = Served(
        llama_server, "--strategy", "single", "--set", "presets.vote.strategy=majority:n=3", "--set", "presets.vote.budget=300",
        EQUIPOISE_GATEWAY_KEYS=KEY,
    )  # fmt: skip
    yield there
    code, err = there.stop()
    assert KEY not in err
    assert "Traceback" not in err
    assert code == 0


@pytest.fixture(scope="module")
def client(served):
    return openai.OpenAI(base_url=served.url, api_key=KEY, timeout=100, max_retries=0)


@pytest.fixture(scope="module")
def model(client):
    return next(each.id for each in client.models.list() if "@" not in each.id)


def test_models_are_the_upstreams_and_each_with_every_preset(client, model):
    listed = [each.id for each in client.models.list()]
    assert listed == [model, f"{model}@vote"]
    assert client.models.retrieve(f"{model}@vote").owned_by == "equipoise"


@pytest.mark.parametrize("suffix", ["", "@vote"])
@pytest.mark.parametrize("n", [1, 2])
def test_a_whole_reply(client, model, suffix, n):
    reply = client.chat.completions.create(model=model + suffix, messages=CHAT, n=n, max_tokens=20, seed=3)
    assert [choice.index for choice in reply.choices] == list(range(n))
    for choice in reply.choices:
        assert choice.message.role == "assistant"
        assert choice.message.content
        assert choice.finish_reason in ("stop", "length")
    usage = reply.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    if suffix:
        told = usage.model_extra["x_equipoise"]
        assert told["calls"] == 3 * n
        assert told["spent"]["generated"] == usage.completion_tokens <= 300
        assert [each["candidates"] for each in told["answers"]] == [3] * n


@pytest.mark.parametrize("suffix", ["", "@vote"])
@pytest.mark.parametrize("usage", [False, True])
def test_a_stream(client, model, suffix, usage):
    options = {"include_usage": True} if usage else openai.NOT_GIVEN
    chunks = list(
        client.chat.completions.create(
            model=model + suffix, messages=CHAT, max_tokens=16, stream=True, stream_options=options, temperature=0
        )
    )
    ended = [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason]
    assert len(ended) == 1
    said = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert said
    assert [c.usage.completion_tokens > 0 for c in chunks if c.usage] == ([True] if usage else [])
    if suffix:
        lines = [
            c.choices[0].delta.model_extra["reasoning"]
            for c in chunks
            if c.choices and (c.choices[0].delta.model_extra or {}).get("reasoning")
        ]
        assert [line[:4] for line in lines] == ["1 of", "2 of", "3 of"]


def test_greedy_pass_through_says_what_the_upstream_says(client, model, llama_server):
    fields = {"model": model, "messages": CHAT, "max_tokens": 12, "temperature": 0.0, "seed": 1}
    data = json.dumps(fields).encode()
    with urllib.request.urlopen(f"{llama_server}/v1/chat/completions", data, timeout=100) as reply:
        direct = json.load(reply)
    ours = client.chat.completions.create(**fields)
    assert ours.choices[0].message.content == direct["choices"][0]["message"]["content"]
    assert ours.usage.completion_tokens == direct["usage"]["completion_tokens"]


@pytest.mark.parametrize("suffix", ["", "@vote"])
@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_belong_to_the_text(client, model, suffix, stream):
    reply = client.chat.completions.create(
        model=model + suffix, messages=CHAT, max_tokens=8, temperature=0, logprobs=True, top_logprobs=2, stream=stream
    )
    if stream:
        chunks = [c.choices[0] for c in reply if c.choices]
        entries = [entry for c in chunks if c.logprobs for entry in c.logprobs.content or ()]
        text = "".join(c.delta.content or "" for c in chunks)
    else:
        entries, text = reply.choices[0].logprobs.content, reply.choices[0].message.content
    assert "".join(entry.token for entry in entries) == text
    assert all(entry.logprob <= 0 for entry in entries)


@pytest.mark.parametrize("suffix", ["", "@vote"])
def test_a_text_is_completed(client, model, suffix):
    reply = client.completions.create(
        model=model + suffix, prompt="1, 2, 3, 4,", max_tokens=8, temperature=0, stop=["6"]
    )
    assert reply.choices[0].text.strip() == "5,"
    assert reply.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"model": "nobody"}, openai.NotFoundError),
        ({"n": 99}, openai.BadRequestError),
        ({"messages": []}, openai.BadRequestError),
        ({"extra_body": {"equipoise": {"strategy": "os:system"}}}, openai.BadRequestError),
    ],
)
def test_errors_are_the_clients_own(client, model, fields, kind):
    with pytest.raises(kind) as caught:
        client.chat.completions.create(**{"model": model, "messages": CHAT, "max_tokens": 4, **fields})
    assert caught.value.request_id
    assert caught.value.body["type"]


def test_a_wrong_key_is_refused(served):
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=served.url, api_key="another", max_retries=0).models.list()


def test_the_budget_of_a_request_holds(client, model):
    wanted = {"equipoise": {"strategy": "majority:n=8", "budget": 40}}
    reply = client.chat.completions.create(model=model, messages=CHAT, max_tokens=20, extra_body=wanted)
    assert reply.usage.completion_tokens <= 40
    assert reply.usage.model_extra["x_equipoise"]["answers"][0]["stopped_by"] == "budget"


def test_a_client_that_leaves_frees_the_slots_of_the_server(client, model, llama_server):
    wanted = {"equipoise": {"strategy": "majority:n=4"}}
    stream = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "Write a long story."}], max_tokens=400, stream=True, extra_body=wanted
    )  # fmt: skip
    assert next(iter(stream)).choices[0].delta.role == "assistant"  # while the samples are being made
    assert _busy(llama_server) == 4
    stream.close()
    _until(lambda: _busy(llama_server) == 0, 5)


def test_a_signal_lets_what_is_under_way_end(llama_server, model):
    there = Served(llama_server)
    local = openai.OpenAI(base_url=there.url, api_key="none", timeout=60, max_retries=0)
    stream = iter(
        local.chat.completions.create(model=model, messages=CHAT, max_tokens=24, stream=True, temperature=0, stop=["@"])
    )
    next(stream)
    there.child.send_signal(signal.SIGTERM)
    rest = list(stream)
    assert rest[-1].choices[0].finish_reason in ("stop", "length")
    _, err = there.child.communicate(timeout=30)
    assert "Traceback" not in err


def test_metrics_and_the_page_are_on_their_own_port(served):
    with urllib.request.urlopen(served.ops + "/metrics", timeout=10) as reply:
        text = reply.read().decode()
    assert 'equipoise_requests_total{route="chat",strategy="single",code="200"}' in text
    assert KEY not in text
    with urllib.request.urlopen(served.ops + "/", timeout=10) as reply:
        page = reply.read().decode()
    assert "Upstreams" in page
    assert KEY not in page
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(served.url.removesuffix("/v1") + "/metrics", timeout=10)
    assert caught.value.code == 401


def _busy(address: str) -> int:
    with urllib.request.urlopen(f"{address}/slots", timeout=10) as reply:
        return sum(bool(slot["is_processing"]) for slot in json.load(reply))


def _until(true, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)
