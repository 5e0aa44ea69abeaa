"""A thing by its name with settings, as on the command line: `clip_cov:share=0.0002,low=1`, or `module:name` for code of others."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from equipoise.errors import UsageError

_WORDS: Mapping[str, Any] = {"true": True, "false": False, "none": None}


def read_spec(spec: str, *, known: Collection[str], what: str) -> tuple[str, dict[str, Any]]:
    """A spec's name, or `module:name`, and its settings. Values are numbers, true, false, none or plain words.

    `known` are the names after which a colon begins the settings; `what` they are names of, for the message.
    """
    name, _, rest = spec.partition(":")
    head, _, tail = rest.partition(":")
    if head.isidentifier() and name not in known:
        name, rest = f"{name}:{head}", tail
    if not all(name.split(":")) or spec.endswith(":"):
        raise UsageError(f"'{spec}' names no {what}: write 'name', 'name:setting=value,…' or 'module:name'")
    settings: dict[str, Any] = {}
    for item in rest.split(",") if rest else ():
        key, equals, value = (part.strip() for part in item.partition("="))
        if not (key.isidentifier() and equals and value):
            raise UsageError(f"'{item}' in '{spec}' is no setting: write setting=value, with commas in between")
        if key in settings:
            raise UsageError(f"'{spec}' sets '{key}' twice")
        settings[key] = read_value(value)
    return name, settings


def read_value(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def write_spec(name: str, settings: Mapping[str, Any]) -> str:
    """What `read_spec` reads: `clip_cov:share=0.0002,low=1`."""
    return ":".join(filter(None, (name, ",".join(f"{key}={value}" for key, value in settings.items()))))
