"""The live page: one Starlette application over a `Live`. It reads; no request names a path, and none changes anything.

| address | answer |
| --- | --- |
| `/` | the page; with `?token=…` a cookie, and back to `/`, so that the token leaves the address |
| `/state?after=CURSOR&also=7,9` | what is new since the cursor; without one, everything |
| `/state?only=7` | one metric's points |
| `/events` | server-sent events: the newest cursor, whenever there is something new |
| `/assets/…` | five fixed files |
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from importlib.resources import files
from importlib.util import find_spec
from types import FrameType
from typing import TYPE_CHECKING

from equipoise.errors import MissingExtra, UsageError
from equipoise.files import plain
from equipoise.loopback import is_loopback
from equipoise.views.live.guard import COOKIE, HEADERS, allowed_hosts, given_tokens, host_ok, token_ok
from equipoise.views.live.state import ALSO, Live

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

ALIVE = 15.0  # seconds of silence after which a comment keeps proxies from closing the stream
MOST_STREAMS = 64
ASSETS = {
    "live.js": ("equipoise.views", "assets/live.js", "text/javascript; charset=utf-8"),
    "live_plots.js": ("equipoise.views", "assets/live_plots.js", "text/javascript; charset=utf-8"),
    "live.css": ("equipoise.views", "assets/live.css", "text/css; charset=utf-8"),
    "icon.svg": ("equipoise.views", "assets/live_icon.svg", "image/svg+xml"),
    "plotly.js": ("plotly", "package_data/plotly.min.js", "text/javascript; charset=utf-8"),
}
_NUMBERS = re.compile(r"\d{1,6}(,\d{1,6})*")


def check_extras() -> None:
    """The packages of the live page, asked for before anything is read."""
    if find_spec("starlette") is None or find_spec("uvicorn") is None or find_spec("plotly") is None:
        raise MissingExtra("serve,report", needed_for="equipoise dash")


def make_app(
    live: Live, *, bound: str = "127.0.0.1", token: str | None = None, every: float = 1.0, names: Iterable[str] = ()
) -> Starlette:
    """The application. `bound`: the address it will listen on; `names`: further host names it may be called by."""
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.gzip import GZipMiddleware
    from starlette.responses import PlainTextResponse, RedirectResponse, StreamingResponse
    from starlette.responses import Response as Answer
    from starlette.routing import Route

    ticker = Ticker(live, every)

    def page(request: Request) -> Response:
        if token is not None and "token" in request.query_params:
            answer: Response = RedirectResponse("/", status_code=303)
            answer.set_cookie(COOKIE, token, httponly=True, samesite="strict")
            return answer
        return Answer(_asset("equipoise.views", "assets/live.html"), media_type="text/html; charset=utf-8")

    def state(request: Request) -> Response:
        asked = request.query_params
        try:
            also, only = _numbers(asked.get("also")), _numbers(asked.get("only"))
            if len(also) > ALSO or len(only) > 1:
                raise UsageError(f"also= takes up to {ALSO} metrics and only= takes one")
            told = live.since(asked.get("after"), also=also, only=only[0] if only else None)
        except UsageError as problem:
            return PlainTextResponse(f"{problem}\n", status_code=400)
        text = json.dumps(plain(told), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return Answer(
            text.encode("utf-8", "replace"), media_type="application/json", headers={"cache-control": "no-store"}
        )

    async def events(request: Request) -> Response:
        if ticker.streams >= MOST_STREAMS:
            return PlainTextResponse("too many pages are open\n", status_code=503)
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(ticker.stream(), media_type="text/event-stream", headers=headers)

    def asset(request: Request) -> Response:
        found = ASSETS.get(request.path_params["name"])
        if found is None:
            return PlainTextResponse("no such file\n", status_code=404)
        package, path, kind = found
        return Answer(_asset(package, path), media_type=kind, headers={"cache-control": "max-age=3600"})

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with ticker.running():
            yield

    guard = Middleware(Guard, names=allowed_hosts(bound, names), loopback=is_loopback(bound), token=token)
    routes = [Route("/", page), Route("/state", state), Route("/events", events), Route("/assets/{name}", asset)]
    app = Starlette(
        routes=routes,
        middleware=[guard, Middleware(GZipMiddleware, minimum_size=2000, compresslevel=4)],
        lifespan=lifespan,
    )
    app.state.ticker = ticker
    return app


def listen(host: str, port: int) -> socket.socket:
    """A socket on that address, so that a port in use is said before anything else."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return socket.create_server(address[:2], family=family)


def serve(app: Starlette, bound: socket.socket) -> None:
    """Answer until interrupted."""
    import uvicorn

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            app.state.ticker.end()  # an open page's stream would keep the server from leaving
            super().handle_exit(sig, frame)

    config = uvicorn.Config(
        app, log_level="warning", server_header=False, proxy_headers=False, ws="none", timeout_graceful_shutdown=5
    )
    with suppress(KeyboardInterrupt):  # how the server says that it was asked to leave, when all is closed
        Server(config).run(sockets=[bound])


def _asset(package: str, path: str) -> bytes:
    return (files(package) / path).read_bytes()


def _numbers(text: str | None) -> list[int]:
    if not text:
        return []
    if not _NUMBERS.fullmatch(text):
        raise UsageError("also= and only= take the numbers of metrics, as 7,9")
    return [int(word) for word in text.split(",")]


class Ticker:
    """Looks at the folders, judges runs, and tells the open pages that there is something new."""

    def __init__(self, live: Live, every: float) -> None:
        self._live, self._every = live, every
        self.streams = 0
        self._news: asyncio.Event | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self._news = asyncio.Event()
        tasks = [asyncio.create_task(self._look()), asyncio.create_task(self._judge())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _look(self) -> None:
        while True:
            (outcome,) = await asyncio.gather(asyncio.to_thread(self._live.refresh), return_exceptions=True)
            self._live.say(outcome if isinstance(outcome, BaseException) else None)
            if outcome:
                self._tell()
            await asyncio.sleep(self._every)

    async def _judge(self) -> None:
        while True:
            run = self._live.due()
            if run is None:
                await asyncio.sleep(min(1.0, self._every))
                continue
            (outcome,) = await asyncio.gather(asyncio.to_thread(self._live.judge, run), return_exceptions=True)
            if isinstance(outcome, BaseException):  # one run that breaks a measure must not end the page of the others
                self._live.fail(run, outcome)
            self._tell()

    def _tell(self) -> None:
        """Wake every stream: each waits for the event that is replaced here."""
        if self._news is not None:
            news, self._news = self._news, asyncio.Event()
            news.set()

    def end(self) -> None:
        """Let every stream end: its page sees that, and asks again later."""
        news, self._news = self._news, None
        if news is not None:
            news.set()

    async def stream(self) -> AsyncIterator[str]:
        self.streams += 1
        try:
            yield f"data: {self._live.cursor}\n\n"
            while self._news is not None:
                news = self._news
                try:
                    await asyncio.wait_for(news.wait(), ALIVE)
                    yield f"data: {self._live.cursor}\n\n"
                except TimeoutError:
                    yield ": still here\n\n"
        finally:
            self.streams -= 1


class Guard:
    """Refuses foreign Host headers, other methods and requests without the token; adds the headers that keep the page to itself."""

    def __init__(self, app: ASGIApp, *, names: frozenset[str], loopback: bool, token: str | None) -> None:
        self._app, self._names, self._loopback, self._token = app, names, loopback, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message.get("headers", []),
                    *((name.encode(), value.encode()) for name, value in HEADERS.items()),
                ]
            await send(message)

        refused = self._refuse(scope)
        if refused is None:
            await self._app(scope, receive, guarded)
            return
        from starlette.responses import PlainTextResponse

        status, why = refused
        await PlainTextResponse(f"{why}\n", status_code=status)(scope, receive, guarded)

    def _refuse(self, scope: Scope) -> tuple[int, str] | None:
        from starlette.requests import Request

        request = Request(scope)
        hosts = request.headers.getlist("host")
        if len(hosts) != 1 or not host_ok(hosts[0], self._names, loopback=self._loopback):
            return (
                421,
                "this server is not called that: open the address that equipoise dash printed (--name allows another)",
            )
        if request.method != "GET":  # nor HEAD, which would hold a stream open that nobody reads
            return 405, "only GET"
        given = given_tokens(request.headers.get("authorization"), request.headers.get("cookie"))
        if scope["path"] == "/":
            given.append(request.query_params.get("token"))
        if not token_ok(self._token, given):
            return 401, "this page needs its token: open the whole address that equipoise dash printed"
        return None
