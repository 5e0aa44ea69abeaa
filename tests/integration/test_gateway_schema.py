"""Requests of every shape, made by schemathesis from the gateway's own description: no 5xx, and every reply is as described."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys

import pytest
from gateway_process import served, upstream
from unruly_server import Asked, Reply

pytest.importorskip("starlette", reason="needs starlette: pip install 'equipoise[serve]'")
pytest.importorskip("uvicorn", reason="needs uvicorn: pip install 'equipoise[serve]'")
pytest.importorskip("aiohttp", reason="needs aiohttp: pip install 'equipoise[serve]'")

KEY = "planted-key-of-a-caller-0123456789"
SETTINGS = ["cache.entries=64", "presets.vote.strategy=majority:n=3", "limits.budget=500"]


async def answer(reply: Reply, asked: Asked) -> None:
    """A server that says one of three things, as a chat or as a text."""
    text = ("The answer is 4", "7", "some words")[asked.number % 3]
    chat, usage = "chat" in asked.path, {"prompt_tokens": 7, "completion_tokens": 1}
    said = {"delta": {"content": text}} if chat else {"text": text}
    ends = {"delta": {}} if chat else {"text": ""}
    if asked.body.get("stream"):
        await reply.head()
        await reply.event({"choices": [{"index": 0, **said}]})
        await reply.event({"choices": [{"index": 0, **ends, "finish_reason": "stop"}]})
        await reply.event({"choices": [], "usage": usage})
        await reply.event(b"[DONE]")
        return
    whole = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    kind = "chat.completion" if chat else "text_completion"
    choice = {"index": 0, "finish_reason": "stop", **whole}
    await reply.error(200, {"id": "x", "object": kind, "choices": [choice], "usage": usage})


def fuzz(examples: int, tmp_path) -> int:
    """How many cases were made, none of which failed."""
    if importlib.util.find_spec("schemathesis") is None:
        pytest.skip("needs schemathesis: pip install schemathesis")
    words = [word for each in SETTINGS for word in ("--set", each)]
    with upstream(answer) as server, served(server.url, *words, EQUIPOISE_GATEWAY_KEYS=KEY) as there:
        command = [sys.executable, "-m", "schemathesis.cli", "run", f"{there.root}/openapi.json"]
        command += ["--header", f"Authorization: Bearer {KEY}", "--seed", "1", "--max-examples", str(examples)]
        # What a schema cannot say, such as which settings a strategy takes, is refused though it fits the schema.
        command += ["--checks", "all", "--exclude-checks", "positive_data_acceptance"]
        command += ["--phases", "examples,coverage,fuzzing", "--no-color", "--generation-database", "none"]
        found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=1200)
    assert found.returncode == 0, found.stdout[-5000:] + found.stderr[-2000:]
    made = re.search(r"([\d,]+) generated", found.stdout)
    assert made is not None, found.stdout[-2000:]
    return int(made[1].replace(",", ""))


@pytest.mark.integration
def test_three_hundred_requests_of_every_shape(tmp_path):
    assert fuzz(20, tmp_path) >= 300


@pytest.mark.soak
def test_two_thousand_requests_of_every_shape(tmp_path, figure):
    figure("schemathesis: cases without a 5xx or a reply that does not fit its schema", fuzz(900, tmp_path), least=2000)
