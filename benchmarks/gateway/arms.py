"""The gateways that are compared: how each is started, and how it is asked for one completion and for a majority of eight."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
START = 180.0  # seconds for a gateway to answer: optillm reads its models' libraries first
LONGEST = 90.0  # seconds for a scenario: several times what the slowest takes
SERVE = "from equipoise.cli.main import run; run()"


@dataclass
class Arm:
    name: str
    url: str
    child: subprocess.Popen[str] | None = None
    vote: dict[str, Any] | None = None  # fields that ask for a majority of eight; None: it has none
    lacks: list[str] = field(default_factory=list)
    version: str = ""
    start: Callable[[], Arm] | None = None  # starts it anew

    def cpu(self) -> float:
        """Seconds of CPU so far, of the process and all that it started, threads that have ended included."""
        return 0.0 if self.child is None else sum(map(_cpu, _family(self.child.pid)))

    def memory(self) -> float:
        """Megabytes resident."""
        pids = [] if self.child is None else _family(self.child.pid)
        pages = (int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
        return sum(pages) * os.sysconf("SC_PAGE_SIZE") / 1e6

    def end(self) -> None:
        if self.child is not None:
            self.child.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.child.wait(10)
            self.child.kill()


def start_ours(upstreams: list[str], *words: str, name: str = "equipoise") -> Arm:
    given = [word for url in upstreams for word in ("--upstream", url)]
    child = _start([sys.executable, "-c", SERVE, "serve", *given, "--port", "0", "--ops-port", "0", "--json", *words])
    arm = Arm(
        name, _address(child), child, {"model": "tiny@majority:n=8"}, version=_version(sys.executable, "equipoise")
    )
    _wait(f"{arm.url.removesuffix('/v1')}/health/ready")
    return arm


def start_plain(upstream: str, *, uvloop: bool) -> Arm:
    child = _start([sys.executable, str(HERE / "plain_proxy.py"), upstream, *(["uvloop"] if uvloop else [])])
    name = "plain proxy on uvloop" if uvloop else "plain proxy"
    return Arm(name, _address(child), child, None, ["no voting"], f"aiohttp {_version(sys.executable, 'aiohttp')}")


def start_optillm(upstream: str, python: str) -> Arm:
    port = _free_port()
    words = ["--port", str(port), "--base-url", upstream, "--approach", "none", "--log", "warning"]
    command = [python, "-c", "from optillm import main; main()", *words]
    child = _start(command, quiet=True, OPENAI_API_KEY="none")
    arm = Arm("optillm", f"http://127.0.0.1:{port}/v1", child, {"optillm_approach": "majority_voting"})
    arm.lacks = ["streams are the whole reply in one event, after its end"]
    arm.version = _version(python, "optillm")
    _wait(f"http://127.0.0.1:{port}/health")
    return arm


def start_its_hub(upstream: str, python: str) -> Arm:
    port = _free_port()
    command = [python, "-c", "from its_hub.integration.iaas.app_server import main; main()", "--port", str(port)]
    child = _start([*command, "--log-level", "WARNING"], quiet=True)
    arm = Arm("its_hub", f"http://127.0.0.1:{port}/v1", child, {"budget": 8})
    arm.lacks = ["streams are the whole reply in one event, after its end", "no usage in a stream"]
    arm.version = _version(python, "its_hub")
    _wait(f"{arm.url}/models")
    settings = {"endpoint": upstream, "model": "tiny", "api_key": "none", "alg": "self-consistency", "budget": 1}
    _send(f"http://127.0.0.1:{port}/configure", settings | {"regex_patterns": [r"boxed\{(.*?)\}"]}, "POST")
    return arm


@contextlib.contextmanager
def upstream() -> Iterator[tuple[str, Callable[..., dict[str, int]]]]:
    """Its address, and what sets its script and tells what was sent since the last one."""
    child = subprocess.Popen(
        [sys.executable, str(HERE / "upstream.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdin is not None
    root = f"http://127.0.0.1:{int(child.stdout.readline())}"

    def script(**settings: Any) -> dict[str, int]:
        return _send(f"{root}/script", settings, "PUT" if settings else "GET")

    try:
        yield f"{root}/v1", script
    finally:
        child.stdin.close()
        child.wait(10)


def load(arm: Arm, *, at_once: int, requests: int, **body: Any) -> dict[str, Any] | None:
    """What came back and when; None: it did not end in time."""
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "What is 2+2?"}], **body}
    order = {"url": arm.url, "body": asked, "at_once": at_once, "requests": requests}
    command = [sys.executable, str(HERE / "load.py"), json.dumps(order)]
    try:
        return json.loads(
            subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=LONGEST).stdout
        )
    except subprocess.TimeoutExpired:
        return None


def _start(command: list[str], *, quiet: bool = False, **environment: str) -> subprocess.Popen[str]:
    """`quiet`: nobody reads what it prints, and a full pipe would stop it."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **environment}
    out = subprocess.DEVNULL if quiet else subprocess.PIPE
    return subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL, text=True, env=env)


def _address(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return json.loads(child.stdout.readline())["address"]


def _wait(url: str) -> None:
    end = time.monotonic() + START
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(url, timeout=5).close()
            return
        time.sleep(0.2)
    raise TimeoutError(f"nothing answers at {url}")


def _send(url: str, told: dict[str, Any], method: str) -> Any:
    data = json.dumps(told).encode()
    request = urllib.request.Request(url, data=data, method=method, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as reply:
        return json.loads(reply.read())


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        return int(bound.getsockname()[1])


def _version(python: str, package: str) -> str:
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def _family(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        return []
    return [pid, *(each for child in children for each in _family(int(child)))]


def _cpu(pid: int) -> float:
    return time.clock_gettime((~pid << 3) | 2)  # clock_getcpuclockid(3): the CPU clock of another process
