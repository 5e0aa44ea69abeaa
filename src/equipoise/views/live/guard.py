"""Who may read the live page: requests that name this machine, and that know the token where one is asked for.

On loopback anybody who is logged in here can read it, as with any local port; a token (the variable below) closes that too. A page
of another site cannot: it may send requests to a loopback port, under its own name (DNS rebinding) or without reading the answer.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import re
import secrets
import socket
from collections.abc import Iterable, Mapping
from http.cookies import CookieError, SimpleCookie

from equipoise.errors import UsageError
from equipoise.loopback import host_named, is_loopback

VARIABLE = "EQUIPOISE_DASH_TOKEN"
COOKIE = "equipoise_dash"
SHORTEST = 16  # characters of a token that somebody chose
_TOKEN = re.compile(r"[A-Za-z0-9._~-]+")

HEADERS: Mapping[str, str] = {
    # Plotly writes style attributes and a style element: styles may be inline, scripts may not.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "x-frame-options": "DENY",
}


def choose_token(host: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """The token to ask for: the variable's; elsewhere than on loopback a new one; None: none is needed."""
    token = environment.get(VARIABLE)
    if token is None:
        return None if is_loopback(host) else secrets.token_urlsafe(24)
    if len(token) < SHORTEST or not _TOKEN.fullmatch(token):
        raise UsageError(
            f"{VARIABLE} must be {SHORTEST} or more letters, digits and . _ ~ -; leave it unset to get one made"
        )
    return token


def allowed_hosts(bound: str, more: Iterable[str] = ()) -> frozenset[str]:
    """The names under which this server may be addressed. An address that is no name cannot be rebound, see `host_ok`."""
    names = {"localhost", *more}
    if not is_loopback(bound):
        names |= {bound, socket.gethostname(), socket.getfqdn()}
    return frozenset(name.lower().rstrip(".") for name in names)


def host_ok(header: str | None, names: frozenset[str], *, loopback: bool) -> bool:
    """Whether a Host header names this server. Its port is not looked at: a tunnel has another one."""
    host = host_named(header)
    if host is None:
        return False
    if host in names:
        return True
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return address.is_loopback if loopback else True


def token_ok(token: str | None, given: Iterable[str | None]) -> bool:
    """Whether one of the given words is the token, in a time that tells nothing of it."""
    if token is None:
        return True
    return any(hmac.compare_digest(word.encode(), token.encode()) for word in given if word is not None)


def given_tokens(authorization: str | None, cookie: str | None) -> list[str | None]:
    """What a request brings: `Authorization: Bearer …`, or the cookie that the first visit set."""
    scheme, _, bearer = (authorization or "").partition(" ")
    return [bearer.strip() if scheme.lower() == "bearer" else None, _cookie(cookie)]


def _cookie(header: str | None) -> str | None:
    try:
        found = SimpleCookie(header or "").get(COOKIE)
    except CookieError:
        return None
    return None if found is None else found.value
