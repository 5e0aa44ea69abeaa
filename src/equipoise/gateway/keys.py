"""Callers' keys: kept as SHA-256 only, compared in a time that tells nothing, each with its own limits.

Keys come from the environment or from files, never from an argument or a request. `EQUIPOISE_GATEWAY_KEYS` holds one or more,
separated by spaces; a keys file has a line for each, `NAME KEY`, and may be read by its owner alone.
"""

from __future__ import annotations

import hmac
import os
import stat
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from equipoise.errors import UsageError
from equipoise.gateway.refusals import Refusal
from equipoise.gateway.settings import KeyRule, Settings
from equipoise.infer.ledger import Ledger
from equipoise.text.display import many

VARIABLE = "EQUIPOISE_GATEWAY_KEYS"
SHORTEST = 16  # characters
DAY = 86400.0
NOBODY = "-"  # the name of the one caller of a gateway without keys


@dataclass(slots=True)
class Caller:
    """Who asks: a name, what the key allows, and what it has used in this process."""

    name: str
    rule: KeyRule = field(default_factory=KeyRule)
    running: int = 0
    _recent: deque[float] = field(default_factory=deque)
    _day: int = -1
    _ledger: Ledger | None = None

    @property
    def ledger(self) -> Ledger:
        """Today's."""
        day = int(time.time() // DAY)
        if self._ledger is None or day != self._day:
            self._day, self._ledger = day, Ledger(self.rule.tokens_per_day)
        return self._ledger

    def admit(self) -> None:
        """Refuse a request beyond the key's limits, else count it; `leave` when it is over."""
        now = time.monotonic()
        while self._recent and now - self._recent[0] >= 60.0:
            self._recent.popleft()
        limit = self.rule.requests_per_minute
        if limit is not None and len(self._recent) >= limit:
            raise Refusal(
                429,
                f"this key may send {many(limit, 'request')} a minute",
                code="rate_limit_exceeded",
                after=60.0 - (now - self._recent[0]),
            )
        if self.rule.at_once is not None and self.running >= self.rule.at_once:
            raise Refusal(
                429,
                f"this key may have {many(self.rule.at_once, 'request')} under way",
                code="rate_limit_exceeded",
                after=1.0,
            )
        most = self.rule.tokens_per_day
        if most is not None and self.ledger.spent.generated >= most:  # those set aside may still come back
            raise no_tokens()
        if limit is not None:
            self._recent.append(now)
        self.running += 1

    def leave(self) -> None:
        self.running -= 1


def no_tokens() -> Refusal:
    return Refusal(429, "this key has spent its tokens of today", code="insufficient_quota")


class Keyring:
    """Finds the caller of a key. Holds digests only."""

    def __init__(self, callers: Mapping[bytes, Caller]) -> None:
        self._callers = dict(callers)
        self._nobody = Caller(NOBODY)

    def __len__(self) -> int:
        return len(self._callers)

    @property
    def callers(self) -> list[Caller]:
        return list(self._callers.values()) or [self._nobody]

    def find(self, authorization: str | None) -> Caller | None:
        """The caller of `Bearer KEY`; None: no key of ours. Every digest is compared, whichever fits."""
        if not self._callers:
            return self._nobody
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        given, found = digest(key.strip()), None
        for known, caller in self._callers.items():
            if hmac.compare_digest(given, known):
                found = caller
        return found


def digest(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogateescape")).digest()


def read_keys(settings: Settings, environment: Mapping[str, str] = os.environ) -> Keyring:
    callers: dict[bytes, Caller] = {}
    for name, known, rule in _found(settings, environment):
        if known in callers:
            raise UsageError(f"the keys '{callers[known].name}' and '{name}' are the same: give each caller its own")
        callers[known] = Caller(name, rule)
    return Keyring(callers)


def _found(settings: Settings, environment: Mapping[str, str]) -> Iterator[tuple[str, bytes, KeyRule]]:
    for name, rule in settings.keys.items():
        if (rule.sha256 is None) == (rule.env is None):
            raise UsageError(f"the key '{name}' needs sha256 or env, one of the two")
        if rule.sha256 is not None:
            yield name, bytes.fromhex(rule.sha256), rule
        else:
            assert rule.env is not None
            if not environment.get(rule.env):
                raise UsageError(f"the key '{name}' is to be in {rule.env}, which is not set")
            yield name, _digest(name, environment[rule.env]), rule
    for number, key in enumerate(environment.get(VARIABLE, "").split()):
        yield f"key{number + 1}", _digest(f"number {number + 1} of {VARIABLE}", key), KeyRule()
    if settings.keys_file is not None:
        for name, key in _read_file(settings.keys_file):
            yield name, _digest(name, key), KeyRule()


def _digest(name: str, key: str) -> bytes:
    if len(key) < SHORTEST or not (key.isascii() and key.isprintable()) or " " in key:
        raise UsageError(f"the key {name} must be {SHORTEST} or more letters, digits and signs without spaces")
    return digest(key)


def _read_file(path: Path) -> Iterator[tuple[str, str]]:
    try:
        with open(path, encoding="utf-8") as handle:
            if stat.S_IMODE(os.fstat(handle.fileno()).st_mode) & 0o077:
                raise UsageError(f"{path} can be read by others: chmod 600 {path}")
            lines = handle.read(1 << 20).splitlines()
    except (OSError, UnicodeDecodeError) as problem:
        raise UsageError(
            f"cannot read the keys in {path}: {getattr(problem, 'strerror', None) or 'not text'}"
        ) from None
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or line.startswith("#"):
            continue
        if len(words) != 2:
            raise UsageError(f"{path}:{number}: a line of a keys file is NAME KEY")
        yield words[0], words[1]
