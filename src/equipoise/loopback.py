"""Whether an address is this machine's own: what a server asks before it answers without a key."""

from __future__ import annotations

import ipaddress
import re

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::\d{1,5})?")


def is_loopback(host: str) -> bool:
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def host_named(header: str | None) -> str | None:
    """The name or address in a Host header, without its port: a tunnel has another one. None: it is malformed."""
    match = _HOST.fullmatch(header or "")
    return None if match is None else match[1].lower().rstrip(".")
