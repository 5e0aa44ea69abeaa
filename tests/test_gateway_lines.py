"""The gateway's own connections, against a server that says exactly the bytes of a test; on asyncio's loop and on uvloop."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import ssl
import subprocess

import aiohttp
import pytest
import uvloop

from equipoise.gateway import lines
from equipoise.gateway.lines import BUFFER, Lines

CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
FIXED = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


@contextlib.asynccontextmanager
async def server(*said, stall=5.0):
    """Each request gets the next of `said`: bytes, a pause in seconds, or None to close. Yields lines, and connections seen."""
    replies, asked = list(said), []

    async def serve(reader, writer):
        asked.append(b"")
        mine = len(asked) - 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                asked[mine] += head + await reader.readexactly(length)
                for part in replies.pop(0):
                    if part is None:
                        return
                    if isinstance(part, float):
                        await asyncio.sleep(part)
                    else:
                        writer.write(part)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    there = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{there.sockets[0].getsockname()[1]}/v1"
    open_lines = Lines(url, {"Authorization": "Bearer k"}, stall=stall)
    try:
        yield open_lines, asked
    finally:
        open_lines.close()
        there.close()


async def read(line):
    parts = []
    while data := await line.content.readany():
        parts.append(data)
    return b"".join(parts)


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request):
    def go(work):
        factory = uvloop.new_event_loop if request.param == "uvloop" else None
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(asyncio.wait_for(work, 10))

    return go


def test_a_request_is_sent_and_its_connection_used_again(run):
    async def go():
        async with server([CHUNKED, b"2\r\nab\r\n", 0.01, b"1\r\nc\r\n0\r\n\r\n"], [FIXED]) as (there, asked):
            first = await there.post("chat/completions", b'{"a": 1}')
            assert (first.status, first.content_type) == (200, "text/event-stream")
            assert await read(first) == b"abc"
            first.release()
            second = await there.post("completions", b"{}")
            assert await read(second) == b"{}"
            second.release()
            assert len(there) == 1
            return asked

    [asked] = run(go())
    assert asked.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
    assert b"Authorization: Bearer k\r\n" in asked
    assert b'\r\n\r\n{"a": 1}POST /v1/completions HTTP/1.1\r\n' in asked


def test_a_reply_whose_end_nobody_waited_for_gives_its_connection_back(run):
    async def go():
        async with server([CHUNKED + b"2\r\nab\r\n", 0.05, b"0\r\n\r\n"], [FIXED]) as (there, asked):
            line = await there.post("x", b"")
            assert await line.readany() == b"ab"
            line.release()
            await asyncio.sleep(0.15)
            assert await read(await there.post("x", b"")) == b"{}"
            return len(asked)

    assert run(go()) == 1


def test_a_reply_that_does_not_end_after_all_is_given_up(run, monkeypatch):
    monkeypatch.setattr(lines, "ENDING", 0.05)

    async def go():
        async with server([CHUNKED + b"2\r\nab\r\n", 5.0]) as (there, _):
            line = await there.post("x", b"")
            line.release()
            assert len(there) == 1
            await asyncio.sleep(0.2)
            return len(there)

    assert run(go()) == 0


@pytest.mark.parametrize(
    "extra", [FIXED, b"HTTP/1.1 200 OK\r\n", b"x"], ids=["a second reply", "half a reply", "a letter"]
)
def test_a_connection_with_more_than_was_asked_for_is_not_used_again(run, extra):
    async def go():
        async with server([FIXED + extra], [FIXED]) as (there, asked):
            line = await there.post("x", b"")
            assert await line.readany() == b"{}"
            line.release()
            await asyncio.sleep(0.05)
            assert await read(await there.post("x", b"")) == b"{}"
            return len(asked)

    assert run(go()) == 2


@pytest.mark.parametrize("said", [[FIXED, None], [FIXED.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")]])
def test_a_connection_that_was_closed_or_will_be_is_not_used_again(run, said):
    async def go():
        async with server(said, [FIXED]) as (there, asked):
            line = await there.post("x", b"")
            assert await read(line) == b"{}"
            line.release()
            await asyncio.sleep(0.05)
            assert await read(await there.post("x", b"")) == b"{}"
            return len(asked)

    assert run(go()) == 2


def test_without_a_length_a_reply_goes_on_to_the_end_of_its_connection(run):
    async def go():
        async with server([b"HTTP/1.1 200 OK\r\n\r\nab", 0.01, b"c", None]) as (there, _):
            return await read(await there.post("x", b""))

    assert run(go()) == b"abc"


def test_a_reply_that_ends_early_is_told_as_far_as_it_came(run):
    async def go():
        async with server([CHUNKED + b"2\r\nab\r\n", None]) as (there, _):
            line = await there.post("x", b"")
            await asyncio.sleep(0.05)
            assert await line.readany() == b"ab"
            with pytest.raises(aiohttp.ClientPayloadError, match="ended early"):
                await line.readany()
            return len(there)

    assert run(go()) == 0


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ([None], aiohttp.ServerDisconnectedError),
        ([b"HTTP/1.1 200", None], aiohttp.ServerDisconnectedError),
        ([b"hello\r\n\r\n"], aiohttp.ClientPayloadError),
        ([b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000, 5.0], aiohttp.ClientPayloadError),
        ([FIXED.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")], aiohttp.ClientPayloadError),
        ([5.0], aiohttp.SocketTimeoutError),
    ],
    ids=["closed", "closed in the head", "no HTTP", "a long head", "compressed", "silent"],
)
def test_what_goes_wrong_before_a_reply_has_its_name_and_leaves_no_connection(run, said, problem):
    async def go():
        async with server(said, stall=0.2) as (there, _):
            with pytest.raises(problem):
                await there.post("x", b"")
            return len(there)

    assert run(go()) == 0


def test_silence_in_a_reply_is_an_error_only_when_it_lasts(run):
    async def go():
        parts = [part for _ in range(5) for part in (b"1\r\na\r\n", 0.1)]
        async with server([CHUNKED, *parts, 5.0], stall=0.25) as (there, _):
            line = await there.post("x", b"")
            got = b""
            while len(got) < 5:
                got += await line.readany()
            with pytest.raises(aiohttp.SocketTimeoutError):
                await line.readany()
            return got

    assert run(go()) == b"aaaaa"


def test_a_reply_after_an_interim_one_is_the_reply(run):
    async def go():
        async with server([b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + FIXED]) as (there, _):
            line = await there.post("x", b"")
            return line.status, dict(line.headers), await read(line)

    status, headers, body = run(go())
    assert (status, body) == (200, b"{}")
    assert headers == {"content-type": "application/json", "content-length": "2"}


def test_a_slow_reader_holds_the_server_up(run):
    async def go():
        size = 8 * 1024 * 1024
        big = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size
        async with server([big + b"a" * size]) as (there, _):
            line = await there.post("x", b"")
            await asyncio.sleep(0.2)
            waiting = line._size
            return waiting, len(await read(line)), size

    waiting, got, size = run(go())
    assert got == size
    assert BUFFER < waiting < size / 4


def test_closing_ends_whoever_waits(run):
    async def go():
        async with server([CHUNKED, 5.0]) as (there, _):
            line = await there.post("x", b"")
            reading = asyncio.ensure_future(line.readany())
            await asyncio.sleep(0.02)
            there.close()
            with pytest.raises(aiohttp.ClientConnectionError):
                await reading
            return len(there)

    assert run(go()) == 0


def test_a_request_that_is_cancelled_closes_its_connection(run):
    async def go():
        async with server([5.0]) as (there, _):
            asking = asyncio.ensure_future(there.post("x", b""))
            await asyncio.sleep(0.05)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            return len(there)

    assert run(go()) == 0


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate with openssl")
def test_a_certificate_is_checked(run, tmp_path, monkeypatch):
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key", "-out", "certificate"]
    name = ["-days", "1", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run([*made, *name], cwd=tmp_path, check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "certificate", tmp_path / "key")

    async def serve(reader, writer):
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(FIXED)
            await reader.read()
        writer.close()

    async def go():
        there = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        url = f"https://localhost:{there.sockets[0].getsockname()[1]}/v1"
        with pytest.raises(ssl.SSLCertVerificationError):
            await Lines(url, {}, stall=5).post("x", b"")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate"))
        trusting = Lines(url, {}, stall=5)
        said = await read(await trusting.post("x", b""))
        trusting.close()
        there.close()
        await asyncio.sleep(0.05)
        return said

    assert run(go()) == b"{}"
