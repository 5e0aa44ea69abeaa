"""A real `equipoise serve` in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from unruly_server import Behave, UnrulyServer

COMMAND = "from equipoise.cli.main import run; run()"


class Served:
    def __init__(self, upstream: str, *words: str, **environment: str) -> None:
        free = ["--port", "0", "--ops-port", "0", "--json"]
        self.child = subprocess.Popen(
            [sys.executable, "-c", COMMAND, "serve", "--upstream", upstream, *free, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        assert self.child.stdout is not None
        told = json.loads(self.child.stdout.readline())
        self.url, self.ops = told["address"], told["ops"]
        self.root = self.url.removesuffix("/v1")
        self._told = False
        wait_until(lambda: answers(f"{self.root}/health/ready"))

    def tell(self, sent: int = signal.SIGTERM) -> None:
        """To end. Once: a second signal may find the process with nothing left to catch it, and would be its exit code."""
        if not self._told and self.child.poll() is None:
            self.child.send_signal(sent)
        self._told = True

    def end(self, sent: int = signal.SIGTERM) -> tuple[int, str]:
        """Its exit code, and what it printed as errors."""
        self.tell(sent)
        _, err = self.child.communicate(timeout=60)
        return self.child.returncode, err


@contextlib.contextmanager
def served(upstream: str, *words: str, **environment: str) -> Iterator[Served]:
    """It ends with 0 and without a traceback, whatever was asked of it."""
    there = Served(upstream, *words, **environment)
    try:
        yield there
    finally:
        code, err = there.end()
    assert "Traceback" not in err
    assert code == 0


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as reply:
        return reply.read().decode()


def answers(url: str) -> bool:
    try:
        read(url)
    except OSError:
        return False
    return True


def busy_slots(llama: str) -> int:
    """Completions that llama.cpp's server is working at."""
    return sum(bool(slot["is_processing"]) for slot in json.loads(read(f"{llama}/slots")))


def wait_until(true: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


@contextlib.contextmanager
def upstream(behave: Behave) -> Iterator[UnrulyServer]:
    """A scripted server in a thread of its own, so that a test may wait for the process meanwhile."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = UnrulyServer(behave)

    def call(work: Coroutine[Any, Any, Any]) -> None:
        asyncio.run_coroutine_threadsafe(work, loop).result(10)

    call(server.__aenter__())
    try:
        yield server
    finally:
        call(server.__aexit__())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def open_stream(url: str, key: str | None = None, **body: Any) -> Any:
    """The reply to a request for a stream, to be read line by line."""
    told = {"model": "tiny", "messages": [{"role": "user", "content": "?"}], "stream": True, **body}
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    return urllib.request.urlopen(
        urllib.request.Request(f"{url}/chat/completions", json.dumps(told).encode(), headers), timeout=60
    )
