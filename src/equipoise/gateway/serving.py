"""Two sockets and their servers: callers on one, the operator on the other. A signal drains before it ends."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import uvicorn

from equipoise.errors import UsageError
from equipoise.gateway.app import Gateway, make_app
from equipoise.gateway.guard import check_bind
from equipoise.gateway.ops import make_ops


def listen(host: str, port: int) -> socket.socket:
    """A socket on that address, so that a port in use is said before anything else."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=1024)
    except (OSError, OverflowError) as problem:
        raise UsageError(f"cannot listen on {host}:{port}: {problem}; name another port or host") from problem


def serve(gateway: Gateway, say: Callable[[str, str], None] = lambda address, ops: None) -> None:
    """Answer until told to stop; then what is under way has `grace` seconds. `say` gets both addresses."""
    settings = gateway.settings
    check_bind(settings.host, gateway.keys)
    check_bind(settings.ops_host, gateway.keys)
    bound, ops_bound = listen(settings.host, settings.port), listen(settings.ops_host, settings.ops_port)
    say(_address(bound), _address(ops_bound))
    asyncio.run(_serve(gateway, bound, ops_bound))


async def _serve(gateway: Gateway, bound: socket.socket, ops_bound: socket.socket) -> None:
    grace = max(1, round(gateway.settings.grace))
    main = Draining(_config(make_app(gateway), grace), gateway)
    ops = Quiet(_config(make_ops(gateway), 1))
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
        ws="none",
        lifespan="auto",
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


def _address(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
