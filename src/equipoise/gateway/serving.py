"""Two sockets and their servers: callers on one, the operator on the other. A signal drains before it ends."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import uvicorn

from equipoise.errors import UsageError
from equipoise.gateway.answering import Gateway
from equipoise.gateway.app import make_app
from equipoise.gateway.guard import check_bind
from equipoise.gateway.ops import make_ops
from equipoise.gateway.search import STOPPING
from equipoise.gateway.strategies import strategy_names
from equipoise.gateway.workers import run_workers

KEEP_ALIVE = 75  # seconds that a caller's unused connection stays open: longer than those before us, who would else use a closed one


def listen(host: str, port: int) -> socket.socket:
    """A socket on that address, so that a port in use is said before anything else."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        bound = socket.create_server(address[:2], family=family, backlog=1024)
    except (OSError, OverflowError) as problem:
        raise UsageError(f"cannot listen on {host}:{port}: {problem}; name another port or host") from problem
    # Connections inherit it. asyncio sets it only on sockets of its own making, and a reply in two writes then waits 40 ms for its end.
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return bound


def serve(gateway: Gateway, say: Callable[[str, list[str]], None] = lambda address, ops: None) -> None:
    """Answer until told to stop; then what is under way has `grace` seconds. `say` gets the address, and the operator's of each worker."""
    settings = gateway.settings
    check_bind(settings.host, gateway.keys)
    check_bind(settings.ops_host, gateway.keys)
    ports = [settings.ops_port and settings.ops_port + number for number in range(settings.workers)]
    bound, ops_bound = listen(settings.host, settings.port), [listen(settings.ops_host, port) for port in ports]
    strategy_names()  # read once, here: the first caller is not to wait for it
    say(_address(bound), [_address(each) for each in ops_bound])
    if settings.workers == 1:
        _run(gateway, bound, ops_bound[0])
    else:
        run_workers(settings.workers, lambda number, ends: _run(gateway, bound, ops_bound[number], ends))


def _run(gateway: Gateway, bound: socket.socket, ops_bound: socket.socket, ends: int | None = None) -> None:
    gc.collect()
    gc.freeze()  # what is there now stays: no later collection looks at it again
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(gateway, bound, ops_bound, ends))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed: a third less CPU for a chunk that is handed through."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return None
    return uvloop.new_event_loop


async def _serve(gateway: Gateway, bound: socket.socket, ops_bound: socket.socket, ends: int | None) -> None:
    """`ends`: a file at whose end the process that started this one is gone."""
    grace = max(1, round(gateway.settings.grace))
    # Longer than what is under way is given: uvicorn's own end would cut streams without a word.
    main = Draining(_config(make_app(gateway), grace + round(STOPPING) + 2), gateway)
    ops = Quiet(_config(make_ops(gateway), 1))
    if ends is not None:
        asyncio.get_running_loop().add_reader(ends, main.handle_exit, signal.SIGTERM, None)
    helping = asyncio.ensure_future(ops.serve(sockets=[ops_bound]))
    try:
        await main.serve(sockets=[bound])
    finally:
        ops.should_exit = True
        await asyncio.gather(helping, return_exceptions=True)


def _config(app: Any, grace: int) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        lifespan="auto",
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=grace,
        backlog=1024,
    )


class Quiet(uvicorn.Server):
    """Leaves signals to others."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Draining(Quiet):
    """At the first signal the gateway says that it is about to stop; uvicorn's own server would raise it again at the end."""

    def __init__(self, config: uvicorn.Config, gateway: Gateway) -> None:
        super().__init__(config)
        self._gateway = gateway

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._gateway.draining = True
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """What is under way has its time, and is then told to end."""
        gateway = self._gateway
        timer = asyncio.get_running_loop().call_later(gateway.settings.grace, gateway.end)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()


def _address(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
