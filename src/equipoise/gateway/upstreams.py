"""The servers behind the gateway: which are up, what they offer, and which has the least to do. Only the operator names them."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from equipoise.base import Completion, Draw, Prompt, Sampling
from equipoise.errors import UsageError
from equipoise.gateway.lines import Lines
from equipoise.gateway.refusals import Refusal
from equipoise.gateway.settings import Server, Settings
from equipoise.samplers.http import HttpSampler, sample_seed
from equipoise.samplers.http_draw import Fault, HttpDraw, Note, Refused, Requests, Response, TooLong, Tries
from equipoise.samplers.http_room import post_fitting
from equipoise.wire import Dialect, Event, check_dialect, one_line, write_request

log = logging.getLogger("equipoise.gateway")
REST = 0.5  # seconds that a server which failed is left alone; doubled with every further failure
MAX_REST = 30.0
BACKOFF = 0.25  # seconds before the first new try
LONGEST_WAIT = 10.0  # seconds that a caller is kept waiting for a busy upstream; beyond it, it is told to come back
CHECK_WAIT = 5.0  # seconds for a list of models


@dataclass(slots=True)
class Upstream:
    """One server, as far as it is known."""

    name: str  # u0, u1, …: what metrics and pages call it
    http: HttpSampler
    server: Server
    dialect: Dialect = "openai"
    models: tuple[str, ...] | None = None  # None: not known yet; empty: it lists none and may have any
    load: int = 0
    served: int = 0
    faults: int = 0
    seen: float | None = None  # when it last answered
    _failed: int = 0  # times in a row
    _rests_until: float = 0.0
    _silent: bool = False
    _told: bool = False  # the operator was told that it cannot be used

    def resting(self) -> float:
        """Seconds until it is asked again; 0 or less: it is up."""
        return self._rests_until - time.monotonic()

    def well(self) -> None:
        self.seen, self._failed, self._rests_until, self._silent = time.monotonic(), 0, 0.0, False

    def listed(self) -> None:
        """It tells its models. That ends a rest for not doing so, and no other."""
        self.seen, self._told = time.monotonic(), False
        if self._silent:
            self.well()

    def tell_operator(self, why: str) -> None:
        """Tell the operator, once until it answers again."""
        if not self._told:
            log.warning("the upstream %s cannot be used: %s; it is asked again and again", self.http.url, why)
        self._told = True

    def fail(self, *, silent: bool = False) -> None:
        """A request failed; `silent`: it did not even tell its models."""
        self.faults += 1
        self._silent = silent
        self._failed += 1
        self._rests_until = time.monotonic() + min(MAX_REST, REST * 2.0 ** min(self._failed - 1, 10))

    def has(self, model: str) -> bool:
        return not self.models or model in self.models


class Fleet:
    """All upstreams. A request goes to the one with the fewest under way that has its model and is up."""

    def __init__(self, settings: Settings, environment: Mapping[str, str] = os.environ) -> None:
        if not settings.upstreams:
            raise UsageError("a gateway needs an upstream: give --upstream http://localhost:8000/v1")
        self.settings = settings
        self.upstreams = [
            Upstream(f"u{number}", _http(server, settings, environment), server)
            for number, server in enumerate(settings.upstreams)
        ]
        self._turn = 0

    # --- what there is

    def models(self) -> list[str]:
        return list(dict.fromkeys(model for each in self.upstreams for model in each.models or ()))

    def ready(self) -> bool:
        """Whether an upstream has answered lately."""
        return any(each.seen is not None and each.resting() <= 0 for each in self.upstreams)

    def resolve(self, asked: str | None) -> tuple[str, str | None]:
        """The upstream's name of a model, and what stands after its @. Without a name it is the only one there is."""
        known = self.models()
        anything = any(each.models == () or each.models is None for each in self.upstreams)
        name, suffix = asked or "", None
        if name not in known and "@" in name:
            name, _, suffix = name.rpartition("@")
        if not name:
            if len(known) != 1:
                raise Refusal(400, f"say which model: {_listed(known)}", param="model", code="model_required")
            name = known[0]
        if name not in known and not anything:
            raise Refusal(
                404,
                f"the model '{one_line(name, 100)}' is not here: {_listed(known)}",
                param="model",
                code="model_not_found",
            )
        return name, suffix

    def pick(self, model: str, avoid: Iterable[Upstream] = ()) -> Upstream:
        """The least loaded that is up, in turn where several are; where none is up, the one that rests the shortest."""
        having = [each for each in self.upstreams if each.has(model)] or self.upstreams
        fresh = [each for each in having if each not in list(avoid)] or having
        up = [each for each in fresh if each.resting() <= 0] or [min(having, key=Upstream.resting)]
        self._turn += 1
        turn = self._turn % len(up)
        return min(up[turn:] + up[:turn], key=lambda each: each.load)

    # --- asking

    @asynccontextmanager
    async def using(self, model: str, avoid: Iterable[Upstream] = ()) -> AsyncIterator[Upstream]:
        """An upstream for one try, counted as under way; a fault inside is counted against it."""
        upstream = self.pick(model, avoid)
        upstream.load += 1
        upstream.served += 1
        try:
            yield upstream
            upstream.well()
        except Refused as refused:
            upstream.well()
            refused.args, refused.said = (upstream.http.hide_key(str(refused)),), upstream.http.hide_key(refused.said)
            raise
        except Fault as fault:
            upstream.fail()
            fault.args = (upstream.http.hide_key(str(fault)),)
            raise
        finally:
            upstream.load -= 1

    async def send(self, upstream: Upstream, path: str, body: Mapping[str, Any]) -> Response:
        """The response once the upstream has accepted. A fault does not name its address."""
        try:
            return await upstream.http.post(path, body)
        except TooLong as full:  # a search goes on, and what it was told may stand in the reply
            full.args = (f"the upstream has no room for the prompt: {full.said}",)
            raise
        except Refused:
            raise
        except Fault as fault:
            told = "no reply from the upstream" if fault.status is None else str(fault)
            raise Fault(told, after=fault.after, status=fault.status) from fault
        except UsageError as problem:  # it redirects
            raise Fault("the upstream redirects", status=502) from problem

    def sampler(self, model: str, *, entries: bool = False) -> FleetSampler:
        return FleetSampler(self, model, Entries() if entries else None)

    # --- health

    async def watch(self) -> None:
        """Look at every upstream again and again."""
        while True:
            await self.check()
            await asyncio.sleep(self.settings.check)

    async def check(self) -> None:
        await asyncio.gather(*(self._check(each) for each in self.upstreams))

    async def _check(self, upstream: Upstream) -> None:
        try:
            async with asyncio.timeout(CHECK_WAIT):
                models, dialect = await upstream.http.list_models()
        except (Fault, UsageError, TimeoutError) as problem:
            upstream.fail(silent=True)
            upstream.tell_operator(one_line(str(problem), 200) or f"no list of models within {CHECK_WAIT:g} seconds")
            return
        said = upstream.server.dialect
        upstream.models, upstream.dialect = tuple(models), dialect if said == "auto" else check_dialect(said)
        upstream.listed()

    async def close(self) -> None:
        await asyncio.gather(*(each.http.close() for each in self.upstreams))


_chosen: ContextVar[Upstream] = ContextVar("upstream")


@dataclass(slots=True)
class Entries:
    """The log-probs of completions as the upstream told them, alternatives included, to be found again by their tokens."""

    _kept: list[list[Mapping[str, Any]]] = field(default_factory=list)

    def draw(self) -> Note:
        mine: dict[int, list[Mapping[str, Any]]] = {}

        def note(number: int, events: Sequence[Event] | None) -> None:
            if number not in mine:
                mine[number] = []
                self._kept.append(mine[number])
            if events is None:
                mine[number].clear()
                return
            for event in events:
                if event.tokens is not None and event.tokens.entries is not None:
                    mine[number] += event.tokens.entries

        return note

    def find(self, completion: Completion) -> list[Mapping[str, Any]] | None:
        texts = completion.token_texts
        return next((each for each in self._kept if texts and tuple(e.get("token") for e in each) == texts), None)


@dataclass(slots=True)
class FleetSampler:
    """A sampler over all upstreams: every completion goes where there is least to do, and a new try elsewhere."""

    fleet: Fleet
    model: str
    entries: Entries | None = None  # of log-probs, where they are to be kept
    calls: int = 0
    fault: Fault | None = None  # of a try that failed; that an upstream is busy comes first

    def draw(self, prompt: Prompt, how: Sampling, *, n: int, seed: int, first: int = 0) -> Draw:
        async def send(number: int) -> Response:
            upstream = _chosen.get()
            request = write_request(
                prompt,
                how,
                model=self.model,
                seed=sample_seed(seed, number),
                dialect=upstream.dialect,
                limit_field=upstream.server.limit_field,
                thinking_field=upstream.server.thinking_field,
            )
            post = partial(self.fleet.send, upstream)
            return await post_fitting(post, request.path, request.body, limit_field=upstream.server.limit_field)

        return HttpDraw(
            Requests(
                n=n,
                first=first,
                max_tokens=how.max_tokens,
                top_logprobs=how.top_logprobs,
                send=send,
                permits=self._permit,
                tries=Tries(self.fleet.settings.retries, BACKOFF, seed, patience=LONGEST_WAIT),
                server="the upstream",
                note=None if self.entries is None else self.entries.draw(),
            )
        )

    @asynccontextmanager
    async def _permit(self) -> AsyncIterator[None]:
        """Every completion is a task of its own, so that what is set here is seen by its `send` alone."""
        async with self.fleet.using(self.model) as upstream:
            self.calls += 1
            token = _chosen.set(upstream)
            try:
                yield
            except Fault as fault:
                if self.fault is None or self.fault.status != 429:
                    self.fault = fault
                raise
            finally:
                _chosen.reset(token)


class LineSampler(HttpSampler):
    """The same, over connections of our own: completions are the hot path here."""

    _own: Lines | None = None

    async def _send(self, path: str, data: bytes) -> Response:
        if self._own is None:
            self._own = Lines(self.url, self._authorization(), stall=self._stall)
        return await self._own.post(path, data)

    async def close(self) -> None:
        if self._own is not None:
            self._own.close()
        await super().close()


def _http(server: Server, settings: Settings, environment: Mapping[str, str]) -> HttpSampler:
    key = None
    if server.key_env is not None:
        key = environment.get(server.key_env)
        if not key:
            raise UsageError(f"the key for {one_line(server.url, 100)} is to be in {server.key_env}, which is not set")
    return LineSampler(server.url, key=key, dialect=server.dialect, stall=settings.stall)


def _listed(models: list[str]) -> str:
    return "there are " + one_line(", ".join(models[:20]), 500) if models else "no upstream has told its models yet"
