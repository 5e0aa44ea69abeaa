"""The gateway's application: which address does what, and how one request runs from its body to its reply."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from equipoise.gateway.asked import Asked, ChatAsked, TextAsked, read_body
from equipoise.gateway.asking import make_questions
from equipoise.gateway.auto import read_plan
from equipoise.gateway.board import Entry
from equipoise.gateway.client import Client, ClientGone, Receive, Scope, Send
from equipoise.gateway.guard import Guard
from equipoise.gateway.keys import Caller, Keyring, read_keys
from equipoise.gateway.metrics import Metrics
from equipoise.gateway.openapi import describe
from equipoise.gateway.orders import make_order
from equipoise.gateway.record import open_recorder
from equipoise.gateway.refusals import Refusal, refuse
from equipoise.gateway.relay import Relay
from equipoise.gateway.search import STOPPING, Search, make_head
from equipoise.gateway.settings import Settings
from equipoise.gateway.upstreams import Fleet
from equipoise.infer.ledger import Ledger
from equipoise.loopback import is_loopback

log = logging.getLogger("equipoise.gateway")
GONE = 499  # what metrics count a client under that left before its reply


class Gateway:
    """What lasts longer than a request. Nothing in a request changes it, but for counts."""

    def __init__(self, settings: Settings, environment: Mapping[str, str] = os.environ) -> None:
        self.settings = settings
        self.keys = read_keys(settings, environment)
        # The operator's port asks for a key only where others can reach it.
        self.keys_for_ops = Keyring({}) if is_loopback(settings.ops_host) else self.keys
        self.fleet = Fleet(settings, environment)
        self.policy = None if settings.plan is None else read_plan(settings.plan)
        self.recorder = None if settings.record is None else open_recorder(settings.record)
        self.metrics = Metrics()
        self.entries: dict[int, Entry] = {}
        self.running = 0
        self.draining = False

    async def answer(self, client: Client, caller: Caller, kind: type[Asked]) -> None:
        """One request for a completion, from its first check to its last byte."""
        began, strategy = time.monotonic(), "none"
        admitted = False
        try:
            self._check_room()
            caller.admit()
            admitted = True
            self.running += 1
            if (client.header("content-type") or "").partition(";")[0].strip().lower() != "application/json":
                raise Refusal(415, "the body is JSON: send it as content-type application/json", code="not_json")
            body = await client.body(self.settings.limits.body_bytes)
            asked, raw = read_body(body, kind, self.settings.limits)
            model, suffix = self.fleet.resolve(asked.model)
            order = make_order(asked, model, suffix, self.settings, caller.rule, self.policy)
            strategy = order.name
            entry = Entry(client.request_id, caller.name, order, Ledger(order.budget, within=caller.ledger))
            self.entries[id(entry)] = entry
            try:
                if order.strategy is None:
                    await self._relay(client, asked, raw, entry)
                else:
                    await self._search(client, asked, entry)
            finally:
                del self.entries[id(entry)]
                self.metrics.spend(entry.ledger.spent)
        except ClientGone:
            client.status = GONE
            self.metrics.gone += 1
        except Exception as problem:  # the boundary: whatever it was, the caller gets an error in OpenAI's shape
            refusal = refuse(problem)
            if refusal.status == 500:
                log.error(
                    "internal error in request %s", client.request_id, exc_info=bool(os.environ.get("EQUIPOISE_DEBUG"))
                )
            await client.refuse(refusal)
        finally:
            if admitted:
                caller.leave()
                self.running -= 1
            route = "chat" if kind is ChatAsked else "completions"
            labels = (("route", route), ("strategy", strategy))
            self.metrics.requests[(*labels, ("code", str(client.status)))] += 1
            self.metrics.seconds[labels].add(time.monotonic() - began)
            if client.started is not None:
                self.metrics.first[labels].add(client.started - began)

    def list_models(self) -> list[dict[str, Any]]:
        """The upstreams' models, and each with every preset."""
        now, found = int(time.time()), self.fleet.models()
        virtual = [f"{model}@{preset}" for model in found for preset in self.settings.presets]
        return [
            {"id": name, "object": "model", "created": now, "owned_by": owner}
            for owner, names in (("upstream", found), ("equipoise", virtual))
            for name in names
        ]

    # --- inside

    def _check_room(self) -> None:
        if self.draining:
            raise Refusal(503, "this gateway is about to stop", code="draining", after=1.0)
        if self.running >= self.settings.limits.at_once:
            raise Refusal(429, "too many requests are under way", code="overloaded", after=1.0)

    async def _relay(self, client: Client, asked: Asked, raw: dict[str, Any], entry: Entry) -> None:
        relay = Relay(self.fleet, asked, raw, entry.order, entry.ledger, self.settings.max_tokens)
        done = False
        try:
            if asked.stream:
                await client.while_there(_within(entry.order.seconds, client.pinging(relay.stream(client))))
                done = True
                await client.end()
            else:
                reply = await client.while_there(_within(entry.order.seconds, relay.whole()))
                done = True
                await client.reply(reply)
        finally:
            relay.close(done=done)

    async def _search(self, client: Client, asked: Asked, entry: Entry) -> None:
        questions = make_questions(asked, entry.order, id=client.request_id)
        head = make_head(entry.order, client.request_id, chat=isinstance(asked, ChatAsked))
        search = Search(self.fleet, asked, entry.order, entry, questions, head)
        # It ends itself at its time limit, with what it has; this is for one that does not.
        most = entry.order.seconds + STOPPING
        try:
            if asked.stream:
                await client.while_there(_within(most, client.pinging(search.stream(client))))
                await client.end()
            else:
                await client.reply(await client.while_there(_within(most, search.whole())))
        finally:
            for question, choice in zip(questions, search.choices, strict=False):
                if self.recorder is not None:
                    self.recorder.add(question, choice, entry.order)
                self.metrics.stops[(("strategy", entry.order.name), ("reason", choice.stopped_by))] += 1


async def _within(seconds: float, work: Any) -> Any:
    async with asyncio.timeout(seconds):
        return await work


class Completions:
    """The ASGI endpoint of one kind of request."""

    def __init__(self, gateway: Gateway, kind: type[Asked]) -> None:
        self._gateway, self._kind = gateway, kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._gateway.answer(scope["client_of_ours"], scope["caller"], self._kind)


def make_app(gateway: Gateway) -> Guard:
    """The application that callers see."""

    async def models(request: Request) -> Response:
        return _json(request, {"object": "list", "data": gateway.list_models()})

    async def model(request: Request) -> Response:
        asked = request.path_params["name"]
        for each in gateway.list_models():
            if each["id"] == asked:
                return _json(request, each)
        return _refused(request, Refusal(404, "there is no such model", code="model_not_found", param="model"))

    async def openapi(request: Request) -> Response:
        return _json(request, describe(version("equipoise")))

    async def live(request: Request) -> Response:
        return _json(request, {"status": "draining" if gateway.draining else "ok"}, 503 if gateway.draining else 200)

    async def ready(request: Request) -> Response:
        good = gateway.fleet.ready() and not gateway.draining
        return _json(request, {"status": "ok" if good else "not ready"}, 200 if good else 503)

    async def failed(request: Request, problem: Exception) -> Response:
        assert isinstance(problem, HTTPException)
        return _refused(request, Refusal(problem.status_code, problem.detail, code="not_here"), problem.headers)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await gateway.fleet.check()
        watching = asyncio.create_task(gateway.fleet.watch())
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await gateway.fleet.close()
            if gateway.recorder is not None:
                await gateway.recorder.close()

    routes = [
        Route("/v1/chat/completions", Completions(gateway, ChatAsked), methods=["POST"]),
        Route("/v1/completions", Completions(gateway, TextAsked), methods=["POST"]),
        Route("/v1/models", models, methods=["GET"]),
        Route("/v1/models/{name:path}", model, methods=["GET"]),
        Route("/openapi.json", openapi, methods=["GET"]),
        Route("/health/live", live, methods=["GET"]),
        Route("/health/ready", ready, methods=["GET"]),
    ]
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: failed})
    app.router.redirect_slashes = False
    return Guard(app, gateway.keys, ping=gateway.settings.ping)


def _json(request: Request, told: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    client: Client = request.scope["client_of_ours"]
    return JSONResponse(told, status, headers={"x-request-id": client.request_id, **(headers or {})})


def _refused(request: Request, refusal: Refusal, headers: Mapping[str, str] | None = None) -> Response:
    return _json(request, refusal.body(), refusal.status, {**refusal.headers(), **(headers or {})})
