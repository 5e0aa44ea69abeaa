"""What the operator decides: upstreams, defaults, presets, limits and keys. One TOML file; no request can change it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from equipoise.errors import UsageError
from equipoise.gateway.strategies import check_spec

AUTO = "auto"
# What an effort does to the budget of the server's own strategy. `none` asks for one plain completion.
EFFORTS = {"none": 0.0, "minimal": 0.125, "low": 0.25, "medium": 1.0, "high": 2.0, "xhigh": 4.0, "max": 8.0}


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _check_strategy(spec: str) -> str:
    if spec != AUTO:
        try:
            check_spec(spec)
        except UsageError as problem:
            raise ValueError(str(problem)) from problem
    return spec


def _check_effort(table: dict[str, Preset]) -> dict[str, Preset]:
    unknown = sorted(set(table) - set(EFFORTS))
    if unknown:
        raise ValueError(f"no effort is called {', '.join(unknown)}: use {', '.join(EFFORTS)}")
    return table


Spec = Annotated[str, AfterValidator(_check_strategy)]


class Server(Strict):
    """One upstream. Its key is in the environment, under the name that `key_env` gives."""

    url: str
    key_env: str | None = None  # None: EQUIPOISE_API_KEY, where that is set
    dialect: str = "auto"
    limit_field: str = "max_tokens"
    thinking_field: str | None = None


class Preset(Strict):
    """A strategy with its budget, under a name: callers ask for it as MODEL@NAME."""

    strategy: Spec
    budget: int | None = Field(None, ge=1)
    max_tokens: int | None = Field(None, ge=1)  # of one completion


class Limits(Strict):
    """What no request can go beyond."""

    body_bytes: int = Field(8 * 1024 * 1024, ge=1024)
    n: int = Field(16, ge=1)  # answers of one request
    width: int = Field(64, ge=1)  # completions of one answer
    budget: int | None = Field(None, ge=1)  # generated tokens of one request
    max_tokens: int = Field(32768, ge=1)  # of one completion
    seconds: float = Field(600.0, gt=0)
    at_once: int = Field(256, ge=1)  # requests under way; more are refused with 429


class KeyRule(Strict):
    """A caller's key, given as its SHA-256 in hex or as the name of a variable that holds it, with what it may do."""

    sha256: str | None = Field(None, pattern="^[0-9a-f]{64}$")
    env: str | None = None
    budget: int | None = Field(None, ge=1)  # generated tokens of one request
    tokens_per_day: int | None = Field(None, ge=1)
    requests_per_minute: int | None = Field(None, ge=1)
    at_once: int | None = Field(None, ge=1)
    width: int | None = Field(None, ge=1)
    models: tuple[str, ...] | None = None  # None: all
    strategies: tuple[str, ...] | None = None  # by name; None: all


class CacheRule(Strict):
    """Replies kept in memory to be given again, in each process its own. Off unless `entries` is above 0."""

    entries: int = Field(0, ge=0)
    max_bytes: int = Field(64 * 1024 * 1024, ge=1024)  # of all together
    seconds: float = Field(3600.0, gt=0)  # that a reply is kept
    any_request: bool = False  # also where neither a seed nor temperature 0 asks for the same again
    shared: bool = False  # between keys


class Settings(Strict):
    upstreams: tuple[Server, ...] = ()
    strategy: Spec = "single"
    budget: int | None = Field(None, ge=1)  # generated tokens of one request
    max_tokens: int = Field(4096, ge=1)  # of one completion of a search, where the caller does not say
    plan: Path | None = None  # of `equipoise plan`, for the strategy "auto"
    record: Path | None = None  # a run folder for what searches draw, prompts included; None: nothing is kept
    host: str = "127.0.0.1"
    port: int = Field(8080, ge=0, le=65535)
    ops_host: str = "127.0.0.1"  # metrics and the status page
    ops_port: int = Field(9090, ge=0, le=65535)
    workers: int = Field(1, ge=1, le=256)  # processes behind the port; each has a part of every cap
    ping: float = Field(15.0, gt=0)  # seconds of silence in a stream after which a comment is sent
    check: float = Field(5.0, gt=0)  # seconds between two looks at an upstream
    retries: int = Field(2, ge=0)
    stall: float = Field(300.0, gt=0)  # seconds without a byte after which an upstream has failed
    grace: float = Field(30.0, ge=0)  # seconds for requests under way when it is told to stop
    limits: Limits = Limits()
    cache: CacheRule = CacheRule()
    presets: dict[str, Preset] = {}
    effort: Annotated[dict[str, Preset], AfterValidator(_check_effort)] = {}
    keys: dict[str, KeyRule] = {}
    keys_file: Path | None = None
