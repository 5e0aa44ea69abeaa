"""Settings as TOML text, and keys and values as a person reads them in a message."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

Key = tuple[str | int, ...]  # ("learning", "lr"), or ("arms", 2, "seed") inside a list

NONE = "none"  # TOML has no null
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def dump_config(settings: BaseModel) -> str:
    """TOML text that `load_config` reads back as equal settings. What is None by default and is None is left out."""
    return "\n".join(_write_table((), _plain(settings))).lstrip("\n") + "\n"


def shown(value: Any, *, most: int = 60) -> str:
    """A value as TOML has it, in one short piece."""
    text = _write(value)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def dotted(key: Key) -> str:
    """learning.lr, arms[2].seed"""
    parts = (f"[{part}]" if isinstance(part, int) else f".{_write_key(part)}" for part in key)
    return "".join(parts).removeprefix(".")


def _plain(value: Any) -> Any:
    """Tables, lists, text and numbers. None stays out where it is the default, and is "none" elsewhere."""
    if isinstance(value, BaseModel):
        inside = ((name, field, getattr(value, name)) for name, field in type(value).model_fields.items())
        return {name: _plain(each) for name, field, each in inside if each is not None or field.default is not None}
    if isinstance(value, Mapping):
        return {str(to_jsonable_python(name)): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(each) for each in value]
    return NONE if value is None else to_jsonable_python(value, inf_nan_mode="constants")


def _write_table(header: tuple[str, ...], table: Mapping[str, Any]) -> Iterator[str]:
    """Values first: after a header, everything belongs to it."""
    inner = {name: each for name, each in table.items() if isinstance(each, dict) or _is_tables(each)}
    for name, value in table.items():
        if name not in inner:
            yield f"{_write_key(name)} = {_write(value)}"
    for name, value in inner.items():
        path = (*header, name)
        named = ".".join(map(_write_key, path))
        for each in [value] if isinstance(value, dict) else value:
            yield f"\n[{named}]" if isinstance(value, dict) else f"\n[[{named}]]"
            yield from _write_table(path, each)


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, dict) for each in value)


def _write_key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _write(name)


def _write(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):  # JSON's escapes are TOML's, but for DEL
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_write_key(name)} = {_write(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_write, value))}]"
    return NONE if value is None else str(value)
