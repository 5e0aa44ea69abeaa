"""What a setting may be, by the types of a pydantic model, and one line for each that is something else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from enum import Enum
from pathlib import PurePath
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from equipoise.config_lines import Places
from equipoise.config_text import NONE, Key, dotted, shown


def tell(error: ErrorDetails, model: type[BaseModel], data: Any, places: Places) -> tuple[float, str]:
    """One problem in one line: where, what was found, what would work."""
    key, kind = _real_key(error, data), error["type"]
    order, place = places.find(key)
    types, name = types_at(model, key), dotted(key)
    if kind == "missing":
        return order, f"{place}{name} is missing: needs {_wanted_of(types)}"
    if kind == "extra_forbidden":
        return order, f"{place}{name} is no setting: {_suggestion(model, key)}"
    found = f"{name} = {shown(error['input'])}: " if key else ""
    if kind in ("value_error", "assertion_error"):
        return order, f"{place}{found}{error.get('ctx', {}).get('error') or error['msg']}"
    if types and (kind.endswith(("_type", "_parsing")) or kind in _BY_TYPE):
        return order, f"{place}{found}{_nearest(types, error['input'])}needs {_wanted_of(types)}"
    return order, f"{place}{found}needs {error['msg'].removeprefix('Input should be ')}"


# Errors that the type and the bounds of the setting explain.
_BY_TYPE = {"literal_error", "enum", "int_from_float", "greater_than", "greater_than_equal", "less_than", "less_than_equal", "multiple_of", "too_short", "too_long", "string_too_short", "string_too_long"}  # fmt: skip


def _real_key(error: ErrorDetails, data: Any) -> Key:
    """The error's path without pydantic's own words for the branches of a union."""
    key: list[str | int] = []
    for part in error["loc"]:
        if part in data if isinstance(data, dict) else isinstance(data, list) and isinstance(part, int):
            data = data[part]
            key.append(part)
    return (*key, error["loc"][-1]) if error["type"] == "missing" else tuple(key)


def _suggestion(model: type[BaseModel], key: Key) -> str:
    """The nearest setting beside it, else one of that name anywhere, and all that are known beside it."""
    name, table = str(key[-1]), key[:-1]
    beside = _names(types_at(model, table))
    elsewhere = [other for other in _all_keys([model]) if other[-1] == name]
    close: list[Key] = [(*table, near) for near in get_close_matches(name, beside, n=1)] or elsewhere[:1]
    hint = f"did you mean {dotted(close[0])}? " if close else ""
    return f"{hint}{f'{dotted(table)} has' if table else 'known are'} {', '.join(sorted(beside)) or 'none'}"


def _all_keys(types: list[Any], key: Key = ()) -> Iterator[Key]:
    for name in _names(types):
        yield (*key, name)
        if len(key) < 4:  # a model may contain itself
            yield from _all_keys(types_in(types, name), (*key, name))


def _nearest(types: list[Any], found: Any) -> str:
    options = [option for each in types for kind in branches(each) for option in _options(kind)]
    texts = [option for option in options if isinstance(option, str)]
    close = get_close_matches(found, texts, n=1) if isinstance(found, str) else []
    return f"did you mean {shown(close[0])}? " if close else ""


# --- what a type allows


def branches(annotation: Any) -> list[Any]:
    origin = get_origin(annotation)
    if origin is Annotated:
        return branches(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return [kind for each in get_args(annotation) for kind in branches(each)]
    return [annotation]


def is_kind(kind: Any, parent: type) -> bool:
    return isinstance(kind, type) and get_origin(kind) is None and issubclass(kind, parent)


def types_in(types: list[Any], part: str | int) -> list[Any]:
    """The types of what `part` names inside a value of these types; none where nothing is known of it."""
    found = []
    for kind in (kind for each in types for kind in branches(each)):
        arguments = get_args(kind)
        if is_kind(kind, BaseModel):
            if part in kind.model_fields:
                field: FieldInfo = kind.model_fields[part]
                found.append(Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation)
        elif _is_table(kind) and len(arguments) == 2:
            found.append(arguments[1])
        elif _is_list(kind) and isinstance(part, int) and arguments:
            fixed = get_origin(kind) is tuple and arguments[-1] is not Ellipsis
            found.extend(arguments[part : part + 1] if fixed else arguments[:1])
    return found


def types_at(model: type[BaseModel], key: Key) -> list[Any]:
    types: list[Any] = [model]
    for part in key:
        types = types_in(types, part)
    return types


def _names(types: list[Any]) -> list[str]:
    kinds = [kind for each in types for kind in branches(each) if is_kind(kind, BaseModel)]
    return list(dict.fromkeys(name for kind in kinds for name in kind.model_fields))


def _is_table(kind: Any) -> bool:
    plain = get_origin(kind) or kind
    return isinstance(plain, type) and issubclass(plain, Mapping)


def _is_list(kind: Any) -> bool:
    plain = get_origin(kind) or kind
    return (
        isinstance(plain, type) and issubclass(plain, Sequence | set | frozenset) and not issubclass(plain, str | bytes)
    )


def _options(kind: Any) -> list[Any]:
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    return [member.value for member in kind] if is_kind(kind, Enum) else []


def _wanted_of(types: list[Any]) -> str:
    return " or ".join(dict.fromkeys(_wanted(each) for each in types)) or "another value"


def _wanted(annotation: Any) -> str:
    """A type in words: "a whole number >= 1"."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return " ".join(filter(None, (_wanted(arguments[0]), " and ".join(_bounds(arguments[1:])))))
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(map(_wanted, arguments)))
    if options := _options(annotation):
        return ("one of " if len(options) > 1 else "") + ", ".join(map(shown, options))
    if _is_list(annotation):
        entries = dict.fromkeys(_wanted(each) for each in arguments if each is not Ellipsis)
        return "a list" + (f", each entry {' or '.join(entries)}" if entries else "")
    if _is_table(annotation):
        return "a table" + (f", each value {_wanted(arguments[1])}" if len(arguments) == 2 else "")
    if is_kind(annotation, BaseModel):
        return f"a table of {', '.join(annotation.model_fields)}"
    if is_kind(annotation, PurePath):
        return "a path"
    return _IN_WORDS.get(annotation) or str(getattr(annotation, "__name__", annotation))


_IN_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", NoneType: f'"{NONE}"', Any: "a value"}  # fmt: skip
_BOUNDS = {"gt": "> {}", "ge": ">= {}", "lt": "< {}", "le": "<= {}", "multiple_of": "a multiple of {}", "min_length": "of length {} or more", "max_length": "of length {} or less"}  # fmt: skip


def _bounds(metadata: Sequence[Any]) -> Iterator[str]:
    for each in metadata:
        if isinstance(each, FieldInfo):
            yield from _bounds(each.metadata)
            continue
        for name, words in _BOUNDS.items():
            if (bound := getattr(each, name, None)) is not None:
                yield words.format(bound)
