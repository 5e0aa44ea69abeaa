"""Settings out of TOML: a file over base values, `section.key=value` words over both, checked against a pydantic model.

Values are read strictly, as TOML types them: `steps = true`, `"3"` and `3.0` are no whole numbers. TOML has no null: the
text "none" is None where a setting allows None. All that is wrong is told at once, a line for each problem.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import to_jsonable_python

from equipoise.config_check import branches, is_kind, tell, types_at, types_in
from equipoise.config_lines import AFTER_FILE, TOKEN, Places, Scan, read_key
from equipoise.config_text import NONE, Key, shown
from equipoise.config_text import dump_config as dump_config
from equipoise.errors import UsageError, UsageErrors

M = TypeVar("M", bound=BaseModel)

MAX_BYTES = 1 << 20  # of a config file; real ones have a few KB
MAX_TOLD = 50  # problems

_WORD = re.compile(r"""\s*((?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')(?:\.(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*'))*)\s*=""")
_POSITION = re.compile(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", re.S)


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
            wrong.append((AFTER_FILE + number, str(problem)))
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
        places = Places(path, {} if path is None else Scan(text).lines, given)
        for error in problem.errors(include_url=False)[: 10 * MAX_TOLD]:
            wrong.append(tell(error, model, data, places))
    told = list(dict.fromkeys(" ".join(line.split()) for _, line in sorted(wrong, key=lambda each: each[0])))
    if len(told) > MAX_TOLD:
        told[MAX_TOLD:] = [f"and more problems: these are the first {MAX_TOLD}"]
    raise UsageErrors(told)


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
            raise UsageError(f"{path}:{line}: {Scan(before).clash()}") from problem
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
        raise UsageError(f"override {shown(word)}: needs the form section.key=value, as in learning.lr=1e-4")
    text = word[found.end() :].strip()
    if not text:
        raise UsageError(f"override {shown(word)}: has no value; the empty text is written {found[1]}='\"\"'")
    try:
        key, value = read_key(found[1]), _value(text)
    except ValueError as problem:
        raise UsageError(f"override {shown(word)}: {problem}") from None
    kinds = [kind for each in types_at(model, key) for kind in branches(each) if kind is not NoneType]
    if (
        not isinstance(value, str | list | dict)
        and kinds
        and all(kind is str or is_kind(kind, PurePath) for kind in kinds)
    ):
        value = text
    return key, value


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
    for token in TOKEN.finditer(text):
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
        kinds = [kind for each in types for kind in branches(each)]
        named = any(NONE in get_args(kind) for kind in kinds if get_origin(kind) is Literal)
        return None if NoneType in kinds and not named else value
    if isinstance(value, dict):
        return {name: _with_none(types_in(types, name), inside) for name, inside in value.items()}
    if isinstance(value, list):
        return [_with_none(types_in(types, at), inside) for at, inside in enumerate(value)]
    return value


def _as_json(data: Any) -> str:
    try:
        return json.dumps(data)
    except ValueError as problem:  # hexadecimal digits without end
        raise UsageError(f"a number in the settings is too long: {problem}") from problem
