"""A method's settings in a host's own keys, and as the lines that a user would paste."""

from __future__ import annotations

import re
from collections.abc import Mapping
from shlex import quote
from typing import Any

from equipoise.catalogue.base import Host, Method
from equipoise.catalogue.table import find_host, find_method, hosts_of
from equipoise.errors import UsageError, unknown_name
from equipoise.specs import write_spec

# Where a method of a kind goes in our own recipe.
SLOTS = {
    "ratio_clip": "surrogate",
    "surrogate": "surrogate",
    "regulariser": "regularisers",
    "weight": "weights",
    "reduction": "reduction",
    "advantage": "advantage",
    "controller": "controllers",
    "reward": "rewards",
    "bonus": "bonuses",
    "filter": "filters",
    "curriculum": "curriculum",
    "allocation": "allocation",
    "data": "demonstrations",  # learnt by imitation, beside the policy gradient
}
_ONE = ("surrogate", "reduction", "advantage", "curriculum", "allocation")  # slots that hold one method
_UNQUOTED = re.compile(r"[\w/:.+-]+")


def settings_for(method: Method | str, host: str, **values: Any) -> dict[str, Any]:
    """The host's exact keys and values for a method, its own settings where no other value is given.

    Empty where the host does not have the method, or, for a host of ours, where it is not built yet.
    """
    method = find_method(method) if isinstance(method, str) else method
    place = find_host(host)
    for name in values:
        if name not in method.settings:
            raise unknown_name(f"setting of {method.name}", name, method.settings)
    if place.name not in hosts_of(method):
        return {}
    chosen = {**method.settings, **values}
    if place.ours and method.kind != "cap":
        return _by_name(method, place, chosen)
    keys = dict(method.hosts.get(place.name, {}))
    for name, value in chosen.items():
        setting = place.settings.get(f"{method.name}.{name}") or place.settings.get(name)
        if setting is None:
            raise UsageError(f"{place.title} has no key for '{name}' of {method.name}")
        keys[setting.key] = setting.write(value)
    return keys


def as_lines(host: str, settings: Mapping[str, Any]) -> list[str]:
    """The settings as a user would paste them; none for no settings."""
    if not settings:
        return []
    place = find_host(host)
    if place.name == "trl":
        return [f"GRPOConfig({_arguments(settings)})"]
    if place.name == "verl":
        return [_override(key, value) for key, value in settings.items()]
    if place.name == "equipoise":
        return [f'eq.recipe("grpo", {_arguments(settings)})']
    return [f"client.chat.completions.create(…, {_arguments(_nested(settings))})"]


def _by_name(method: Method, host: Host, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Our own hosts take a method as on the command line: `forking:share=0.2`."""
    spec = write_spec(method.name, chosen)
    if host.name == "gateway":
        return {host.settings["strategy"].key: spec}
    slot = SLOTS[method.kind]
    return {slot: spec if slot in _ONE else [spec]}


def _nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Request arguments. Fields that the OpenAI schema lacks travel in `extra_body`."""
    arguments: dict[str, Any] = {}
    for key, value in settings.items():
        *path, last = key.split(".")
        into = arguments
        for part in ["extra_body", *path] if path and path[0] != "extra_body" else path:
            into = into.setdefault(part, {})
        into[last] = value
    return arguments


def _arguments(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in settings.items())


def _override(key: str, value: Any) -> str:
    """An override as it is typed in a shell, which would take away the quotes that Hydra is to see, and may look for files by brackets."""
    line = f"{key}={_hydra(value)}"
    return quote(line) if set('"[') & set(line) else line


def _hydra(value: Any) -> str:
    """A value in Hydra's override grammar: a text with a comma or an equals sign in it stands in quotes."""
    if value is None:
        return "null"
    if isinstance(value, list | tuple):
        return f"[{','.join(_hydra(item) for item in value)}]"
    if isinstance(value, str) and not _UNQUOTED.fullmatch(value):
        return f'"{value}"'
    return str(value)
