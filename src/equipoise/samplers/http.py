"""Completions from any OpenAI-compatible server: vLLM, SGLang, llama.cpp and others."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from hashlib import blake2b
from time import time
from types import TracebackType
from typing import Any, NoReturn
from urllib.parse import urlsplit

from equipoise.base import Draw, Prompt, Sampling
from equipoise.errors import MissingExtra, UsageError
from equipoise.wire import (
    Dialect,
    Malformed,
    check_dialect,
    describe_error,
    one_line,
    read_models,
    tells_no_room,
    write_request,
)

try:
    import aiohttp
except ModuleNotFoundError as missing:
    raise MissingExtra("infer", needed_for="a server over HTTP") from missing

from equipoise.samplers.http_draw import (
    Fault,
    HttpDraw,
    Refused,
    Requests,
    Response,
    TooLong,
    Tries,
    is_final,
    read_capped,
)
from equipoise.samplers.http_room import post_fitting

KEY_VARIABLE = "EQUIPOISE_API_KEY"
SHOWN = 8  # characters: so much of a key may stand in a message, more may not
BUFFER = 16 * 1024  # bytes of a reply that may wait to be read: beyond it the server's writes have to wait
MAX_HEADER = 8190  # bytes of a header line or field
MAX_ERROR = 64 * 1024  # bytes of an error's text
ERROR_WAIT = 10.0  # seconds for that text to come
MAX_MODELS = 1024 * 1024  # bytes of a list of models
IDLE = 2.0  # seconds that an unused connection is kept; uvicorn closes its own after 5


def connect(
    url: str, *, model: str | None = None, key: str | None = None, dialect: str = "auto", **settings: Any
) -> HttpSampler:
    """A sampler of the server at `url`, as in http://localhost:8000/v1. Nothing is sent before the first draw."""
    return HttpSampler(url, model=model, key=key, dialect=dialect, **settings)


@dataclass(frozen=True, slots=True)
class Server:
    """What is known of a server: the model to ask for and the dialect to ask in."""

    model: str
    dialect: Dialect


@dataclass(slots=True)
class _Line:
    """What belongs to one event loop."""

    session: aiohttp.ClientSession
    permits: asyncio.Semaphore
    finding: asyncio.Task[Server] | None = None


class HttpSampler:
    """One connection for each completion; the log-probs are the server's (vLLM's are those before the temperature).

    `model` None: the one that the server offers. `key`: else the environment variable EQUIPOISE_API_KEY. `dialect`: which server
    it is; "auto" asks it. `thinking_field`: its name for a thinking budget. `concurrency`: requests at once; more than a strategy
    ever holds open while it draws again. `retries`: of a request that failed, with waits that double from `backoff` seconds.
    `stall`: seconds without a byte after which it has failed.

    It may be used from several event loops, one after another. Call `close` in each, or use it in `async with`.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        key: str | None = None,
        dialect: str = "auto",
        thinking_field: str | None = None,
        limit_field: str = "max_tokens",
        concurrency: int = 64,
        retries: int = 2,
        backoff: float = 0.5,
        stall: float = 300.0,
    ) -> None:
        if concurrency < 1 or retries < 0 or backoff < 0 or stall <= 0:
            raise UsageError(
                f"a server with concurrency={concurrency}, retries={retries}, backoff={backoff}, stall={stall}: use at least "
                "one request at once, no negative retries or waits, and some seconds of patience"
            )
        self.url = _base_address(url)
        self.model = model
        self.dialect: Dialect | None = None if dialect == "auto" else check_dialect(dialect)
        self._thinking_field, self._limit_field = thinking_field, limit_field
        self._concurrency, self._retries, self._backoff, self._stall = concurrency, retries, backoff, stall
        self._key = key or os.environ.get(KEY_VARIABLE) or None
        if self._key is not None and not (self._key.isascii() and self._key.isprintable()):
            raise UsageError("the key for the server holds characters that no header may: give it without line breaks")
        self._lines: dict[asyncio.AbstractEventLoop, _Line] = {}
        self._server: Server | None = None

    def __repr__(self) -> str:
        return f"HttpSampler({self.url!r}, model={self.model!r})"

    async def __aenter__(self) -> HttpSampler:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def draw(self, prompt: Prompt, how: Sampling, *, n: int, seed: int, first: int = 0) -> Draw:
        if self._server is not None:
            self._write(prompt, how, self._server, seed=seed, number=first)  # what cannot be asked is refused at once

        async def send(number: int) -> Response:
            server = await self._find()
            path, body = self._write(prompt, how, server, seed=seed, number=number)
            return await post_fitting(self.post, path, body, limit_field=self._limit_field)

        return HttpDraw(
            Requests(
                n=n,
                first=first,
                max_tokens=how.max_tokens,
                top_logprobs=how.top_logprobs,
                send=send,
                permits=lambda: self._line().permits,
                tries=Tries(self._retries, self._backoff, seed),
                server=self.url,
                hide=self.hide_key,
            )
        )

    async def find(self) -> Server:
        """Ask the server what it is; refused where it cannot be reached or has not the one model."""
        try:
            return await self._find()
        except Fault as fault:
            raise UsageError(f"{self.url} does not answer: {fault}") from fault

    async def post(self, path: str, body: Mapping[str, object]) -> Response:
        """Returns when the server has accepted the request. The response is the caller's to close."""
        try:
            response = await self._send(path, json.dumps(body).encode())
        except (aiohttp.ClientError, TimeoutError, OSError) as problem:
            raise Fault(self._cannot_reach(problem)) from problem
        if response.status == 200 and response.content_type in ("text/event-stream", "application/json"):
            return response
        try:
            await self._refuse(response)
        except (aiohttp.ClientError, TimeoutError, OSError) as problem:
            raise Fault(f"the server answers {response.status}, and the connection broke") from problem
        finally:
            response.close()

    async def list_models(self) -> tuple[list[str], Dialect]:
        """The models that it offers, and which server it is by their owner. Not every server lists its models."""
        body = await self._get_models()
        try:
            return read_models(body) if body is not None else ([], "openai")
        except Malformed as problem:
            raise Fault(f"the server sent {problem}") from problem

    async def close(self) -> None:
        """Close the connections of this event loop."""
        line = self._lines.pop(asyncio.get_running_loop(), None)
        if line is not None:
            if line.finding is not None:
                line.finding.cancel()
                await asyncio.gather(line.finding, return_exceptions=True)
            await line.session.close()

    # --- inside

    async def _send(self, path: str, data: bytes) -> Response:
        headers = {"Content-Type": "application/json"}
        url = f"{self.url}/{path}"
        return await self._line().session.post(url, data=data, headers=headers, allow_redirects=False)

    def _line(self) -> _Line:
        loop = asyncio.get_running_loop()
        if loop not in self._lines:
            self._lines = {each: line for each, line in self._lines.items() if not each.is_closed()}
            self._lines[loop] = _Line(
                aiohttp.ClientSession(
                    connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE),
                    timeout=aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=self._stall),
                    headers={"Accept-Encoding": "identity"} | self._authorization(),
                    cookie_jar=aiohttp.DummyCookieJar(),
                    read_bufsize=BUFFER,
                    max_line_size=MAX_HEADER,
                    max_field_size=MAX_HEADER,
                ),
                asyncio.Semaphore(self._concurrency),
            )
        return self._lines[loop]

    def _authorization(self) -> dict[str, str]:
        return {} if self._key is None else {"Authorization": f"Bearer {self._key}"}

    def _write(
        self, prompt: Prompt, how: Sampling, server: Server, *, seed: int, number: int
    ) -> tuple[str, Mapping[str, object]]:
        request = write_request(
            prompt,
            how,
            model=server.model,
            seed=sample_seed(seed, number),
            dialect=server.dialect,
            limit_field=self._limit_field,
            thinking_field=self._thinking_field,
        )
        return request.path, request.body

    async def _find(self) -> Server:
        """Known, or asked for once, however many requests wait for it."""
        if self._server is None and self.model is not None and self.dialect is not None:
            self._server = Server(self.model, self.dialect)
        if self._server is None:
            line = self._line()
            if line.finding is None or line.finding.done():
                line.finding = asyncio.ensure_future(self._ask())
                # Looked at here too: all that wait for it may be cancelled.
                line.finding.add_done_callback(lambda task: task.cancelled() or task.exception())
            self._server = await asyncio.shield(line.finding)
        return self._server

    async def _ask(self) -> Server:
        models, dialect = await self.list_models()
        model = self.model
        if model is None:
            if len(models) != 1:
                offered = one_line(", ".join(models[:8]), 200) or "none by name"
                raise UsageError(f"{self.url} offers {offered}: say which one with model=")
            model = models[0]
        return Server(model, self.dialect or dialect)

    async def _get_models(self) -> bytes | None:
        try:
            async with self._line().session.get(f"{self.url}/models", allow_redirects=False) as response:
                if response.status in (404, 405, 501):
                    return None
                if response.status != 200:
                    await self._refuse(response)
                return await read_capped(response, MAX_MODELS)
        except (aiohttp.ClientError, TimeoutError, OSError) as problem:
            raise Fault(self._cannot_reach(problem)) from problem

    async def _refuse(self, response: Response) -> NoReturn:
        status = response.status
        if 300 <= status < 400:
            where = one_line(response.headers.get("location", "nowhere"), 100)
            raise UsageError(f"{self.url} redirects to {where}: redirects are not followed, connect to that address")
        async with asyncio.timeout(ERROR_WAIT):
            body = (await read_capped(response, MAX_ERROR))[:MAX_ERROR]
        said = self.hide_key(describe_error(body))
        if status in (401, 403):
            raise Refused(
                f"{self.url} refused the key ({status}: {said}): give one with key= or in {KEY_VARIABLE}"
                if self._key
                else f"{self.url} wants a key ({status}: {said}): give it with key= or in {KEY_VARIABLE}",
                status=status,
                said=said,
            )
        if status >= 400 and tells_no_room(body):
            raise TooLong(f"{self.url} has no room for the prompt ({status}): {said}", status=400, said=said)
        if is_final(status):
            raise Refused(f"{self.url} refused the request ({status}): {said}", status=status, said=said)
        if status == 200:
            raise Fault(f"the server sent {one_line(response.content_type, 40)}, not an event stream: {said}")
        after = _retry_after(response.headers.get("retry-after"))
        raise Fault(f"the server answers {status}: {said}", after=after, status=status)

    def _cannot_reach(self, problem: BaseException) -> str:
        said = one_line(self.hide_key(str(problem) or type(problem).__name__))
        return f"no reply from {self.url}: {said}"

    def hide_key(self, text: str) -> str:
        """Some servers repeat the key that they refuse, and a text may have been cut in the middle of it."""
        if not self._key:
            return text
        for length in range(len(self._key), min(len(self._key), SHOWN) - 1, -1):
            text = text.replace(self._key[:length], "***")
        return text


def sample_seed(seed: int, number: int) -> int:
    """The seed of one completion, of 31 bits, since llama.cpp takes no more and reads all ones as 'any'."""
    return int.from_bytes(blake2b(f"{seed}/{number}".encode(), digest_size=4).digest()) >> 1


def _base_address(url: str) -> str:
    try:
        parts = urlsplit(url.strip())
        host, _ = parts.hostname, parts.port
    except ValueError as problem:
        raise UsageError(f"not an address of a server: {one_line(url, 100)} ({problem})") from problem
    if parts.username is not None or parts.password is not None:
        raise UsageError(f"an address with a password in it is not used: give a key with key= or in {KEY_VARIABLE}")
    if parts.query or parts.fragment:  # not shown: keys travel there
        raise UsageError(
            f"an address with ? or # in it is not used: stop before it, and give a key with key= or in {KEY_VARIABLE}"
        )
    if parts.scheme not in ("http", "https") or not host:
        raise UsageError(f"not an address of a server: '{one_line(url, 100)}'; use one like http://localhost:8000/v1")
    path = parts.path.rstrip("/").removesuffix("/completions").removesuffix("/chat")
    return f"{parts.scheme}://{parts.netloc}{path or '/v1'}"


def _retry_after(value: str | None) -> float | None:
    """Seconds, told as a number or as a date."""
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time())
    except ValueError:
        return None
