"""Settings out of TOML: a file over base values, `section.key=value` words over both, checked against a pydantic model.

Values are read strictly, as TOML types them: `steps = true`, `"3"` and `3.0` are no whole numbers. TOML has no null: the
text "none" is None where a setting allows None. All that is wrong is told at once, a line for each problem.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from enum import Enum
from pathlib import Path, PurePath
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, to_jsonable_python

from equipoise.errors import UsageError, UsageErrors

M = TypeVar("M", bound=BaseModel)
Key = tuple[str | int, ...]  # ("learning", "lr"), or ("arms", 2, "seed") inside a list

NONE = "none"
MAX_BYTES = 1 << 20  # of a config file; real ones have a few KB
MAX_TOLD = 50  # problems

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_WORD = re.compile(r"""\s*((?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')(?:\.(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*'))*)\s*=""")
_POSITION = re.compile(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", re.S)
_TOKEN = re.compile(
    r'''(?P<text>"""(?:\\.|[^\\])*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:\\.|[^"\\\n])*"|'[^'\n]*')|\#[^\n]*'''
    r"|(?P<newline>\n)|(?P<mark>[\[\]{}=,.])|(?P<bare>[^\s\[\]{}=,.\#\"']+)",
    re.S,
)


def load_config(
    model: type[M],
    *,
    path: Path | None = None,
    base: Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
) -> M:
    """Settings of `path` over those of `base`, and `overrides` over both; tables merge, everything else is replaced.

    An override is `section.key=value` with a TOML value. Quotes may be left out, also inside a list: `trackers=[wandb]`.
    """
    below = to_jsonable_python(dict(base or {}), inf_nan_mode="constants")
    text = "" if path is None else _read(path)
    data = _merge(below, {} if path is None else _parse(text, path))
    given: dict[Key, int] = {}  # what the overrides set: key → which of them
    wrong: list[tuple[float, str]] = []
    for number, word in enumerate(overrides):
        try:
            key, value = _read_override(word, model)
        except UsageError as problem:
            wrong.append((_AFTER_FILE + number, str(problem)))
            continue
        for part in reversed(key):
            value = {part: value}
        given |= dict.fromkeys(_leaves(value), number)
        data = _merge(data, value)
    data = _with_none([model], to_jsonable_python(data, inf_nan_mode="constants"))
    try:
        settings = model.model_validate_json(_as_json(data), strict=True)
        if not wrong:
            return settings
    except ValidationError as problem:
        places = _Places(path, {} if path is None else _Scan(text).lines, given)
        for error in problem.errors(include_url=False)[: 10 * MAX_TOLD]:
            wrong.append(_told(error, model, data, places))
    told = list(dict.fromkeys(" ".join(line.split()) for _, line in sorted(wrong, key=lambda each: each[0])))
    if len(told) > MAX_TOLD:
        told[MAX_TOLD:] = [f"and more problems: these are the first {MAX_TOLD}"]
    raise UsageErrors(told)


def dump_config(settings: BaseModel) -> str:
    """TOML text that `load_config` reads back as equal settings. What is None by default and is None is left out."""
    return "\n".join(_write_table((), _plain(settings))).lstrip("\n") + "\n"


# --- reading


def _read(path: Path) -> str:
    try:
        with open(path, "rb") as handle:
            data = handle.read(MAX_BYTES + 1)
    except OSError as problem:
        raise UsageError(f"cannot read {path}: {problem.strerror or problem}; give a TOML file") from problem
    if len(data) > MAX_BYTES:
        raise UsageError(
            f"{path} is over {MAX_BYTES // 2**20} MB: no config is that long; give a TOML file of settings"
        )
    try:
        return data.removeprefix(b"\xef\xbb\xbf").decode().replace("\r\n", "\n")
    except UnicodeDecodeError as problem:
        line = problem.object[: problem.start].count(b"\n") + 1
        raise UsageError(f"{path}:{line}: the file is not UTF-8; save it as UTF-8") from problem


def _parse(text: str, path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise UsageError(f"{path}: lists or tables are nested too deeply to be read") from None
    except ValueError as problem:
        found = _POSITION.fullmatch(str(problem))
        if found is None:  # Python refuses a number of thousands of digits, and does not say where
            raise UsageError(f"{path} is not TOML: {problem}".partition(";")[0]) from problem
        lines = text.split("\n")
        line, column = int(found[2] or len(lines)), int(found[3] or len(lines[-1]) + 1)
        if found[1].startswith(("Cannot ", "Duplicate ")):
            before = "\n".join([*lines[: line - 1], lines[line - 1][: column - 1]])
            raise UsageError(f"{path}:{line}: {_Scan(before).clash()}") from problem
        hint = "; text goes in quotes, and true and false are written small" if found[1] == "Invalid value" else ""
        raise UsageError(f"{path}:{line}:{column}: not TOML: {found[1]}{hint}") from problem


def _read_override(word: str, model: type[BaseModel]) -> tuple[Key, Any]:
    """Key and value of `section.key=value`. What TOML would read as a number is text where only text fits."""
    try:
        word.encode()
    except UnicodeEncodeError:
        raise UsageError(f"override {word!a}: not UTF-8") from None
    found = _WORD.match(word)
    if found is None:
        raise UsageError(f"override {_shown(word)}: needs the form section.key=value, as in learning.lr=1e-4")
    text = word[found.end() :].strip()
    if not text:
        raise UsageError(f"override {_shown(word)}: has no value; the empty text is written {found[1]}='\"\"'")
    try:
        key, value = _key(found[1]), _value(text)
    except ValueError as problem:
        raise UsageError(f"override {_shown(word)}: {problem}") from None
    kinds = [kind for each in _types_at(model, key) for kind in _branches(each) if kind is not NoneType]
    if not isinstance(value, str | list | dict) and kinds and all(kind is str or _is(kind, PurePath) for kind in kinds):
        value = text
    return key, value


def _key(dotted: str) -> Key:
    found: Any = tomllib.loads(f"{dotted} = 0")
    key: list[str] = []
    while found:
        ((part, found),) = found.items()
        key.append(part)
    return tuple(key)


def _value(text: str) -> Any:
    """A TOML value; else a list whose entries may lack their quotes; else the text itself."""
    if not text:
        raise ValueError("an entry of the list is empty")
    try:
        found = tomllib.loads(f"v = {text}")
    except RecursionError:
        raise ValueError("the value is nested too deeply") from None
    except ValueError as problem:
        found, why = {}, _POSITION.sub(r"\1", str(problem))
    if found.keys() == {"v"} and (text[0] in "\"'[{" or "#" not in text):  # a comment is no part of a word
        return found["v"]
    if text[0] == "[" and text[-1] == "]":
        return [_value(entry) for entry in _entries(text[1:-1])]
    if text[0] in "\"'[{":
        raise ValueError(f"the value is not TOML: {why if not found else 'more follows it'}")
    return text


def _entries(text: str) -> Iterator[str]:
    """What stands between commas, but for commas inside quotes and brackets."""
    start, depth = 0, 0
    for token in _TOKEN.finditer(text):
        depth += (token[0] in ("[", "{")) - (token[0] in ("]", "}"))
        if token[0] == "," and depth == 0:
            yield text[start : token.start()].strip()
            start = token.end()
    if text[start:].strip():
        yield text[start:].strip()


def _merge(below: Any, above: Any) -> Any:
    if isinstance(below, dict) and isinstance(above, dict):
        return {**below, **{name: _merge(below.get(name), value) for name, value in above.items()}}
    return above


def _leaves(value: Any, key: Key = ()) -> Iterator[Key]:
    if isinstance(value, dict) and value:
        for name, inside in value.items():
            yield from _leaves(inside, (*key, name))
    else:
        yield key


def _with_none(types: list[Any], value: Any) -> Any:
    """None for "none", wherever the types allow None and do not name "none" themselves."""
    if value == NONE:
        kinds = [kind for each in types for kind in _branches(each)]
        named = any(NONE in get_args(kind) for kind in kinds if get_origin(kind) is Literal)
        return None if NoneType in kinds and not named else value
    if isinstance(value, dict):
        return {name: _with_none(_inside(types, name), inside) for name, inside in value.items()}
    if isinstance(value, list):
        return [_with_none(_inside(types, at), inside) for at, inside in enumerate(value)]
    return value


def _as_json(data: Any) -> str:
    try:
        return json.dumps(data)
    except ValueError as problem:  # hexadecimal digits without end
        raise UsageError(f"a number in the settings is too long: {problem}") from problem


# --- where a key stands


class _Scan:
    """Line of every key, table and list entry of a TOML text that `tomllib` has read, or has read up to its last key."""

    def __init__(self, text: str) -> None:
        self.lines: dict[Key, int] = {}
        self._last: Key = ()
        self._clash: Key = ()
        self._entries: dict[Key, int] = {}  # of [[tables]]
        self._tokens: list[tuple[str, int]] = []
        self._at = 0
        line = 1
        for token in _TOKEN.finditer(text):
            if token.lastgroup:
                self._tokens.append((token[0], line))
            line += token[0].count("\n")
        table: Key = ()
        while self._at < len(self._tokens):
            word, line = self._tokens[self._at]
            if word == "[":
                table = self._header(line)
            elif word in ("\n", "]"):
                self._at += 1
            else:
                self._pair(table)

    def clash(self) -> str:
        """What the last key clashes with."""
        name, other = _dotted(self._last), _dotted(self._clash)
        line = self.lines.get(self._clash)
        if self._clash == self._last:
            return f"{name} is set a second time, first in line {line}: keep one"
        return f"{name} cannot be set beside {other}, which has its whole value in line {line}: keep one"

    def _peek(self) -> str:
        return self._tokens[self._at][0] if self._at < len(self._tokens) else ""

    def _header(self, line: int) -> Key:
        many = self._tokens[self._at : self._at + 2][-1][0] == "["
        self._at += 2 if many else 1
        table: Key = ()
        *outer, name = self._dotted_key() or ("",)
        for part in outer:
            table = (*table, part)
            self.lines.setdefault(table, line)
            table = (*table, self._entries[table]) if table in self._entries else table
        table = (*table, name)
        if many:
            self.lines.setdefault(table, line)
            self._entries[table] = self._entries.get(table, -1) + 1
            table = (*table, self._entries[table])
        self._record(table, line)
        while self._peek() == "]":
            self._at += 1
        return table

    def _pair(self, table: Key) -> None:
        line = self._tokens[self._at][1]
        key = (*table, *self._dotted_key())
        self._record(key, line)
        for size in range(len(table) + 1, len(key)):
            self.lines.setdefault(key[:size], line)
        self._at += 1  # the "=", or whatever else stands here: this always goes on
        self._value(key)

    def _dotted_key(self) -> Key:
        parts = []
        while self._peek() not in ("", "=", "]", "\n", ",", "{", "}", "["):
            if self._peek() != ".":
                parts.append(self._peek())
            self._at += 1
        return _key(".".join(parts)) if parts else ()

    def _value(self, key: Key) -> None:
        opened = self._peek()
        if opened not in ("[", "{"):
            while self._peek() not in ("", "\n", ",", "]", "}"):
                self._at += 1
            return
        self._at += 1
        entry = 0
        while self._peek() not in ("", "]", "}"):
            if self._peek() in ("\n", ","):
                self._at += 1
            elif opened == "{":
                self._pair(key)
            else:
                self._record((*key, entry), self._tokens[self._at][1])
                self._value((*key, entry))
                entry += 1
        self._at += 1

    def _record(self, key: Key, line: int) -> None:
        self._last = key
        sizes = range(len(key), 0, -1)
        self._clash = next((key[:size] for size in sizes if key[:size] in self.lines), key)
        self.lines.setdefault(key, line)


class _Places:
    """Where a key got its value: an override, a line of the file, or neither."""

    def __init__(self, path: Path | None, lines: Mapping[Key, int], given: Mapping[Key, int]) -> None:
        self.path, self.lines, self.given = path, lines, given

    def find(self, key: Key) -> tuple[float, str]:
        prefixes = [key[:size] for size in range(len(key), 0, -1)]
        for prefix in prefixes:
            if prefix in self.given:
                return _AFTER_FILE + self.given[prefix], "override: "
        for prefix in prefixes:
            if prefix in self.lines:
                return self.lines[prefix], f"{self.path}:{self.lines[prefix]}: "
        under = [number for other, number in self.given.items() if other[: len(key)] == key and key]
        if under:
            return _AFTER_FILE + min(under), "override: "
        return _LAST, f"{self.path}: " if self.path else ""


_AFTER_FILE, _LAST = 1e9, 2e9  # the order in which problems are told: by line, by override, the rest


# --- what is wrong


def _told(error: ErrorDetails, model: type[BaseModel], data: Any, places: _Places) -> tuple[float, str]:
    """One problem in one line: where, what was found, what would work."""
    key, kind = _real_key(error, data), error["type"]
    order, place = places.find(key)
    types, name = _types_at(model, key), _dotted(key)
    if kind == "missing":
        return order, f"{place}{name} is missing: needs {_wanted_of(types)}"
    if kind == "extra_forbidden":
        return order, f"{place}{name} is no setting: {_suggestion(model, key)}"
    found = f"{name} = {_shown(error['input'])}: " if key else ""
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
    beside = _names(_types_at(model, table))
    elsewhere = [other for other in _all_keys([model]) if other[-1] == name]
    close: list[Key] = [(*table, near) for near in get_close_matches(name, beside, n=1)] or elsewhere[:1]
    hint = f"did you mean {_dotted(close[0])}? " if close else ""
    return f"{hint}{f'{_dotted(table)} has' if table else 'known are'} {', '.join(sorted(beside)) or 'none'}"


def _all_keys(types: list[Any], key: Key = ()) -> Iterator[Key]:
    for name in _names(types):
        yield (*key, name)
        if len(key) < 4:  # a model may contain itself
            yield from _all_keys(_inside(types, name), (*key, name))


def _nearest(types: list[Any], found: Any) -> str:
    options = [option for each in types for kind in _branches(each) for option in _options(kind)]
    texts = [option for option in options if isinstance(option, str)]
    close = get_close_matches(found, texts, n=1) if isinstance(found, str) else []
    return f"did you mean {_shown(close[0])}? " if close else ""


def _shown(value: Any, *, most: int = 60) -> str:
    """A value as TOML has it, in one short piece."""
    text = _write(value)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _dotted(key: Key) -> str:
    """learning.lr, arms[2].seed"""
    parts = (f"[{part}]" if isinstance(part, int) else f".{_write_key(part)}" for part in key)
    return "".join(parts).removeprefix(".")


# --- what a type allows


def _branches(annotation: Any) -> list[Any]:
    origin = get_origin(annotation)
    if origin is Annotated:
        return _branches(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return [kind for each in get_args(annotation) for kind in _branches(each)]
    return [annotation]


def _is(kind: Any, parent: type) -> bool:
    return isinstance(kind, type) and get_origin(kind) is None and issubclass(kind, parent)


def _inside(types: list[Any], part: str | int) -> list[Any]:
    """The types of what `part` names inside a value of these types; none where nothing is known of it."""
    found = []
    for kind in (kind for each in types for kind in _branches(each)):
        arguments = get_args(kind)
        if _is(kind, BaseModel):
            if part in kind.model_fields:
                field: FieldInfo = kind.model_fields[part]
                found.append(Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation)
        elif _is_table(kind) and len(arguments) == 2:
            found.append(arguments[1])
        elif _is_list(kind) and isinstance(part, int) and arguments:
            fixed = get_origin(kind) is tuple and arguments[-1] is not Ellipsis
            found.extend(arguments[part : part + 1] if fixed else arguments[:1])
    return found


def _types_at(model: type[BaseModel], key: Key) -> list[Any]:
    types: list[Any] = [model]
    for part in key:
        types = _inside(types, part)
    return types


def _names(types: list[Any]) -> list[str]:
    kinds = [kind for each in types for kind in _branches(each) if _is(kind, BaseModel)]
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
    return [member.value for member in kind] if _is(kind, Enum) else []


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
        return ("one of " if len(options) > 1 else "") + ", ".join(map(_shown, options))
    if _is_list(annotation):
        entries = dict.fromkeys(_wanted(each) for each in arguments if each is not Ellipsis)
        return "a list" + (f", each entry {' or '.join(entries)}" if entries else "")
    if _is_table(annotation):
        return "a table" + (f", each value {_wanted(arguments[1])}" if len(arguments) == 2 else "")
    if _is(annotation, BaseModel):
        return f"a table of {', '.join(annotation.model_fields)}"
    if _is(annotation, PurePath):
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


# --- writing


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
        dotted = ".".join(map(_write_key, path))
        for each in [value] if isinstance(value, dict) else value:
            yield f"\n[{dotted}]" if isinstance(value, dict) else f"\n[[{dotted}]]"
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
