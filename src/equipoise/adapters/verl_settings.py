"""Settings of our methods inside verl 0.9, which refuses keys that it does not know.

A setting that verl has itself is verl's, and only verl's: `clip_low` and `clip_high` are `actor.clip_ratio_low` and
`actor.clip_ratio_high`, whatever loss reads them (`catalogue.hosts`). All others come from the environment variable
EQUIPOISE_VERL, over the row's own values:

    EQUIPOISE_VERL="ce_gppo:beta_low=0.5,beta_high=1;pkpo:k=8"     specs, a semicolon between methods
    EQUIPOISE_VERL=/shared/equipoise.toml                          or a file that every node can read, a table per method

It must reach every Ray worker. In a Hydra config of verl's that is

    ray_kwargs.ray_init.runtime_env.env_vars.EQUIPOISE_VERL

which `verl_fragments` writes. The resolved values are printed once by each process that uses them, on rank 0 only.
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from equipoise.catalogue.base import Method
from equipoise.catalogue.build import build, read_spec
from equipoise.catalogue.table import find_method
from equipoise.catalogue.verl_keys import VARIABLE, key_in_verl
from equipoise.errors import UsageError

_ACTOR = "actor_rollout_ref.actor."


def given_settings(text: str | None = None) -> dict[str, dict[str, Any]]:
    """What EQUIPOISE_VERL says, by method. A setting that is verl's own, or that the method does not have, is refused."""
    text = (os.environ.get(VARIABLE, "") if text is None else text).strip()
    found: dict[str, dict[str, Any]] = {}
    for name, values in _read(text):
        row = find_method(name)
        for setting in values:
            key = key_in_verl(row.name, setting)
            if key is not None:
                raise UsageError(f"{VARIABLE} sets {setting} of {row.name}, which is verl's own {key}: set it there")
        build(row.name, **values)  # refuses what the method does not take
        if row.name in found:
            raise UsageError(f"{VARIABLE} names {row.name} twice: give it once, with all its settings")
        found[row.name] = values
    return found


def loss_settings(method: Method, actor: Any) -> dict[str, Any]:
    """A loss's settings: verl's own keys from the actor's config, the others from EQUIPOISE_VERL over the row's."""
    settings = {**method.settings, **_given().get(method.name, {})}
    for name in method.settings:
        key = key_in_verl(method.name, name)
        if key is not None and key.startswith(_ACTOR):
            settings[name] = _value_at(actor, key.removeprefix(_ACTOR))
    announce(method.name, settings)
    return settings


def estimator_settings(method: Method) -> dict[str, Any]:
    """An advantage estimator's settings: EQUIPOISE_VERL over the row's."""
    settings = {**method.settings, **_given().get(method.name, {})}
    announce(method.name, settings)
    return settings


def announce(name: str, settings: Mapping[str, Any]) -> None:
    """The resolved values, once per process and only on the first rank."""
    from torch import distributed  # inside: whoever only reads settings needs no torch

    if not (distributed.is_available() and distributed.is_initialized() and distributed.get_rank()):
        _print_once(f"equipoise: verl uses equipoise_{name} with {_shown(settings)}")


@cache
def _print_once(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _given() -> dict[str, dict[str, Any]]:
    return _parsed(os.environ.get(VARIABLE, ""))


@cache
def _parsed(text: str) -> dict[str, dict[str, Any]]:
    return given_settings(text)


def _read(text: str) -> list[tuple[str, dict[str, Any]]]:
    if not text.endswith(".toml"):
        return [read_spec(spec.strip()) for spec in text.split(";") if spec.strip()]
    try:
        tables = tomllib.loads(Path(text).read_text(encoding="utf-8"))
    except OSError as problem:
        raise UsageError(
            f"{VARIABLE} names {text}, which cannot be read here: {problem.strerror}; every Ray node needs it"
        ) from problem
    except ValueError as problem:
        raise UsageError(f"{VARIABLE} names {text}, which is not TOML: {problem}") from problem
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise UsageError(f"{text}: '{name}' must be a table of a method's settings, as in [pkpo] k = 8")
    return list(tables.items())


def _value_at(config: Any, path: str) -> Any:
    for part in path.split("."):
        config = getattr(config, part)
    return config


def _shown(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items()) or "no settings"
