"""The gateway's application: which address does what."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from equipoise.gateway.answering import Gateway
from equipoise.gateway.asked import Asked, ChatAsked, TextAsked
from equipoise.gateway.client import Client, Receive, Scope, Send
from equipoise.gateway.guard import Guard
from equipoise.gateway.openapi import describe
from equipoise.gateway.refusals import Refusal


class Completions:
    """The ASGI endpoint of one kind of request."""

    def __init__(self, gateway: Gateway, kind: type[Asked]) -> None:
        self._gateway, self._kind = gateway, kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._gateway.answer(scope["client_of_ours"], scope["caller"], self._kind)


class Straight:
    """Completions go past the middleware and the router, which take as much time as all our own checks."""

    def __init__(self, app: Starlette) -> None:
        self._app, self.router = app, app.router
        found = [route for route in app.routes if isinstance(route, Route) and isinstance(route.app, Completions)]
        self._straight = {route.path: route.app for route in found}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        post = scope["type"] == "http" and scope["method"] == "POST"
        await (self._straight.get(scope["path"], self._app) if post else self._app)(scope, receive, send)


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
        return _json(request, describe(version("equipoise"), gateway.settings.limits))

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
    return Guard(Straight(app), gateway.keys, ping=gateway.settings.ping)


def _json(request: Request, told: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    client: Client = request.scope["client_of_ours"]
    return JSONResponse(told, status, headers={"x-request-id": client.request_id, **(headers or {})})


def _refused(request: Request, refusal: Refusal, headers: Mapping[str, str] | None = None) -> Response:
    return _json(request, refusal.body(), refusal.status, {**refusal.headers(), **(headers or {})})
