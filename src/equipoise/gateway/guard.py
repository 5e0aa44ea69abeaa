"""Who is let in: a request with a key of ours; without keys, one that comes from this machine and knows it."""

from __future__ import annotations

import re
import secrets
from urllib.parse import urlsplit

from equipoise.errors import UsageError
from equipoise.gateway.client import App, Client, Receive, Scope, Send
from equipoise.gateway.keys import VARIABLE, Caller, Keyring
from equipoise.gateway.refusals import Refusal
from equipoise.loopback import host_named, is_loopback

OPEN = frozenset({"/health/live", "/health/ready"})  # answered without a key
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


def check_bind(host: str, keys: Keyring) -> None:
    """Refuse to be reachable from elsewhere without keys."""
    if not is_loopback(host) and not len(keys):
        raise UsageError(
            f"listening on {host} needs keys, and there are none: put one or more into {VARIABLE}, or stay on 127.0.0.1"
        )


class Guard:
    """The outermost part of the application: gives every request an id, and lets in who may come in."""

    def __init__(self, app: App, keys: Keyring, *, ping: float, open_paths: frozenset[str] = OPEN) -> None:
        self._app, self._keys, self._ping, self._open = app, keys, ping, open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            client = Client(scope, receive, send, request_id="", ping=self._ping)
            given = client.header("x-request-id") or ""
            client.request_id = given if _ID.fullmatch(given) else secrets.token_hex(12)
            scope["client_of_ours"] = client
            if scope["path"] not in self._open:
                try:
                    scope["caller"] = self._admit(client)
                except Refusal as refusal:
                    await client.refuse(refusal)
                    return
        if scope["type"] in ("http", "lifespan"):
            await self._app(scope, receive, send)

    def _admit(self, client: Client) -> Caller:
        if not len(self._keys):
            self._check_local(client)
        caller = self._keys.find(client.header("authorization"))
        if caller is None:
            raise Refusal(401, "a key is needed: Authorization: Bearer KEY", code="invalid_api_key")
        return caller

    def _check_local(self, client: Client) -> None:
        """A page of another site may send requests to a loopback port, by its own name or in the background: refuse both."""
        host = host_named(client.header("host"))
        if host is None or not is_loopback(host):
            raise Refusal(
                421, "this gateway has no keys and answers to localhost and 127.0.0.1 only", code="wrong_host"
            )
        origin = client.header("origin")
        if origin is not None and not _is_local(origin):
            raise Refusal(403, "this gateway has no keys and answers no page of another site", code="wrong_origin")


def _is_local(origin: str) -> bool:
    try:
        return is_loopback(urlsplit(origin).hostname or "")
    except ValueError:
        return False
