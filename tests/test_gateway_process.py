"""A real `equipoise serve`, from its start to its end: what a signal does to requests under way, and that nothing secret is left behind."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import threading
import urllib.error

import pytest

pytest.importorskip("starlette", reason="needs starlette: pip install 'equipoise[serve]'")
pytest.importorskip("uvicorn", reason="needs uvicorn: pip install 'equipoise[serve]'")
pytest.importorskip("aiohttp", reason="needs aiohttp: pip install 'equipoise[serve]'")

from gateway_process import Served, open_stream, read, served, upstream, wait_until
from gateway_world import read_events, saying

from equipoise.gateway.serving import listen

KEY = "planted-key-of-a-caller-0123456789"
UPSTREAM_KEY = "planted-key-of-the-upstream-987654"


class Gate:
    """Opened by the test, waited for by a server in another thread."""

    def __init__(self):
        self._open = threading.Event()
        self.open = self._open.set

    async def wait(self):
        while not self._open.is_set():
            await asyncio.sleep(0.01)


def stop_in_the_middle(behave, *, grace, then=lambda: None, **body):
    """The events of a stream during which the process is told to stop, its exit code and what it printed as errors."""
    with upstream(behave) as server:
        there = Served(server.url, "--set", f"grace={grace}")
        try:
            with open_stream(there.url, stream_options={"include_usage": True}, **body) as reply:
                first = reply.readline() + reply.readline()  # it is under way
                there.tell()
                wait_until(lambda: refuses(there))
                then()
                rest = reply.read()
        finally:
            code, err = there.end()
    return read_events(first + rest), code, err


def refuses(there):
    try:
        read(f"{there.root}/health/live")
    except OSError:
        return True
    return False


@pytest.mark.parametrize("strategy", ["single", "majority:n=3"])
def test_a_signal_lets_what_is_under_way_end(strategy):
    gate = Gate()

    async def behave(reply, asked):
        await reply.head()
        await reply.say("The answer is ")
        await gate.wait()
        await reply.say("4")
        await reply.finish(usage={"prompt_tokens": 7, "completion_tokens": 2})

    wanted = {"strategy": strategy}
    events, code, err = stop_in_the_middle(behave, grace=30, then=gate.open, equipoise=wanted)
    said = "".join(c["delta"].get("content") or "" for each in events[:-1] for c in each["choices"])
    assert (said, events[-1], code) == ("The answer is 4", "[DONE]", 0)
    assert "Traceback" not in err


def test_at_the_end_of_its_time_a_search_answers_with_what_it_has():
    async def behave(reply, asked):
        await reply.head()
        if asked.number:
            await reply.forever(0.01)
        await reply.say("The answer is ", "4")
        await reply.finish()

    wanted = {"strategy": "majority:n=3"}
    events, code, err = stop_in_the_middle(behave, grace=0.5, equipoise=wanted, max_tokens=30000)
    said = "".join(c["delta"].get("content") or "" for each in events[:-1] for c in each["choices"])
    assert (said, events[-1], code) == ("The answer is 4", "[DONE]", 0)
    assert events[-2]["usage"]["x_equipoise"]["answers"][0]["stopped_by"] == "interrupted"
    assert "Traceback" not in err


@pytest.mark.parametrize("strategy", ["single", "cap"])
def test_at_the_end_of_its_time_what_has_nothing_ends_with_an_error(strategy):
    async def behave(reply, asked):
        await reply.head()
        if strategy == "single":
            await reply.forever(0.01)
        await reply.raw(b": wait\n\n")
        await reply.hang()

    with upstream(behave) as server:
        there = Served(server.url, "--set", "grace=0.5", "--set", "ping=0.1")
        with open_stream(there.url, equipoise={"strategy": strategy}, max_tokens=30000) as reply:
            first = reply.readline() + reply.readline()
            code, err = there.end()
            events = read_events(first + reply.read())
        wait_until(lambda: server.open == 0, 5)
    assert events[-1]["error"]["code"] == "draining"
    assert "[DONE]" not in events
    assert code == 0
    assert "Traceback" not in err


def test_a_reply_in_one_piece_that_cannot_be_finished_is_a_503_to_try_elsewhere():
    async def behave(reply, asked):
        await reply.hang()

    with upstream(behave) as server:
        there = Served(server.url, "--set", "grace=0.3")
        found = []

        def asking():
            try:
                open_stream(there.url, stream=False)
            except urllib.error.HTTPError as refused:
                found.append((refused.code, refused.headers["x-should-retry"], json.load(refused)["error"]["code"]))

        thread = threading.Thread(target=asking)
        thread.start()
        wait_until(lambda: server.open == 1)
        code, _ = there.end(signal.SIGINT)
        thread.join()
    assert found == [(503, "true", "draining")]
    assert code == 0


def test_no_secret_is_in_anything_that_a_process_leaves_behind(tmp_path):
    """At the most talkative: with tracebacks, asyncio's debugging and a record of all that was drawn."""

    async def behave(reply, asked):
        told = f"you sent {asked.headers.get('authorization')}"
        if asked.number in (1, 4):
            await reply.error(500, {"error": {"message": told}})
        elif asked.number in (2, 5):
            await reply.error(401, {"error": {"message": told}})
        elif asked.number == 3:
            await reply.head()
            await reply.event({"error": {"message": told}})
        else:
            await saying("The answer is |4")(reply, asked)

    keys = tmp_path / "keys"
    keys.write_text(f"ann {KEY}\n")
    keys.chmod(0o600)
    config = tmp_path / "gateway.toml"
    config.write_text(f'keys_file = "{keys}"\nretries = 0\n[cache]\nentries = 4\n')
    debug = {"EQUIPOISE_DEBUG": "1", "PYTHONASYNCIODEBUG": "1", "PYTHONWARNINGS": "default", "PYTHONFAULTHANDLER": "1"}
    seen = []
    with upstream(behave) as server:
        words = [str(config), "--set", f'record="{tmp_path / "served"}"']
        there = Served(server.url, *words, EQUIPOISE_API_KEY=UPSTREAM_KEY, **debug)
        for number in range(8):
            strategy = "single" if number < 4 else "majority:n=2"
            try:
                with open_stream(
                    there.url, KEY, stream=number % 2 == 1, seed=number, equipoise={"strategy": strategy}
                ) as reply:
                    seen += [str(reply.headers), reply.read().decode()]
            except urllib.error.HTTPError as refused:
                seen += [str(refused.headers), refused.read().decode()]
        for wrong in (KEY[:-1], KEY + "x", UPSTREAM_KEY):
            with pytest.raises(urllib.error.HTTPError) as caught:
                open_stream(there.url, wrong)
            seen.append(caught.value.read().decode())
        seen += [read(there.ops + path) for path in ("/", "/metrics")]
        with open(f"/proc/{there.child.pid}/cmdline") as words:
            seen.append(words.read())
        code, err = there.end()
        sent = [each.headers["authorization"] for each in server.asked]
    assert code == 0
    assert set(sent) == {f"Bearer {UPSTREAM_KEY}"}
    for file in (tmp_path / "served").rglob("*"):
        if file.is_file():
            seen.append(file.read_bytes().decode("latin-1"))
    assert any("The answer is 4" in each for each in seen)
    text = "\n".join([*seen, err])
    for secret in (KEY, UPSTREAM_KEY):
        assert secret not in text
        assert secret[:-1] not in text


def test_a_reply_in_two_writes_does_not_wait_for_the_first_to_be_acknowledged():
    with listen("127.0.0.1", 0) as bound, socket.create_connection(bound.getsockname()):
        accepted, _ = bound.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_the_operators_port_has_metrics_and_a_page():
    with upstream(saying("4")) as server, served(server.url, EQUIPOISE_GATEWAY_KEYS=KEY) as there:
        with open_stream(there.url, KEY) as reply:
            reply.read()
        assert 'equipoise_requests_total{route="chat",strategy="single",code="200"} 1' in read(there.ops + "/metrics")
        assert "Upstreams" in read(there.ops + "/")
        with pytest.raises(urllib.error.HTTPError) as caught:
            read(there.root + "/metrics")
        assert caught.value.code == 401
