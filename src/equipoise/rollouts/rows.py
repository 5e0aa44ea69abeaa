"""Foreign rows into batches of the record: every cell is coerced to its column's type or becomes null with a warning.

A reader maps its source's keys to column names and hands the dicts over; keys that name a problem, a group and a
sample are filled in here when the source has none, so that no reader invents its own.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, get_args

import numpy as np
import pyarrow as pa

from equipoise.base import CORRECT, Finish, Outcome
from equipoise.files import parse_json, plain
from equipoise.rollouts.batch import Rollouts
from equipoise.rollouts.columns import BY_NAME, TOKEN_COLUMNS, exact_type

Warn = Callable[[str, str], None]

BATCH_ROWS = 512
BATCH_CELLS = 4_000_000  # token values and characters of one batch
FILLED = ("prompt_id", "group_id", "sample_index")
FILLED_FROM = (*FILLED, "run_id", "split", "step", "budget", "strategy", "turn", "env", "prompt", "messages")
FREE_TEXT = ("prompt", "completion", "thinking")  # here an empty text is a text; elsewhere it says that there is none
_MISSING = ("", "null", "none", "nan", "n/a")


def batches_of(
    rows: Iterable[Mapping[str, Any]], columns: Sequence[str] | None, warn: Warn, *, keys: KeyFiller | None = None
) -> Iterator[Rollouts]:
    """Batches of the wanted columns from rows keyed by column names. Unknown keys are the caller's to put into `extra`.

    `keys` carries the counting of samples on from one file of a run to the next.
    """
    wanted = tuple(BY_NAME) if columns is None else tuple(columns)
    filled, judged = bool(set(FILLED) & set(wanted)), "correct" in wanted
    needed = {*wanted, *(FILLED_FROM if filled else ()), *(("outcome",) if judged else ())}
    keys = keys or KeyFiller(warn)
    held: list[dict[str, Any]] = []
    cells = 0
    for raw in rows:
        row = {name: coerce(name, value, warn) for name, value in raw.items() if name in needed}
        if filled:
            keys.fill(row)
        if judged and row.get("correct") is None:
            row["correct"] = CORRECT.get(row.get("outcome"))
        drop_unequal_tokens(row, warn)
        held.append(row)
        cells += sum(map(size_of, row.values()))
        if len(held) >= BATCH_ROWS or cells >= BATCH_CELLS:
            yield Rollouts.of_rows(held, wanted)
            held, cells = [], 0
    if held:
        yield Rollouts.of_rows(held, wanted)


def size_of(value: Any) -> int:
    """Characters and list entries, to bound what is held at once."""
    if isinstance(value, list):
        return sum(max(1, size_of(item)) for item in value)
    if isinstance(value, dict):
        return sum(map(size_of, value.values()))
    return len(value) if isinstance(value, str | np.ndarray) else 0


def stable_id(*parts: str | None) -> str:
    """A short identifier that is the same in every run for the same parts."""
    joined = "\x1f".join("" if part is None else part for part in parts)
    return hashlib.blake2b(joined.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


class KeyFiller:
    """Fills prompt_id, group_id and sample_index where the source has none."""

    def __init__(self, warn: Warn) -> None:
        self._warn = warn
        self._drawn: dict[tuple[Any, ...], tuple[int, int | None]] = {}  # last sample index and turn

    def fill(self, row: dict[str, Any]) -> None:
        if row.get("prompt_id") is None:
            text = row.get("prompt")
            if text is None and row.get("messages"):
                text = json.dumps(row["messages"], sort_keys=True, ensure_ascii=False)
            if text is not None:
                row["prompt_id"] = stable_id(row.get("env"), text)
            elif row.get("group_id") is not None:
                row["prompt_id"] = row["group_id"]
            else:
                self._warn(
                    "no-prompt",
                    "rows have neither prompt_id, prompt nor group_id: name the column that tells the problem as prompt_id",
                )
        if row.get("group_id") is None and row.get("prompt_id") is not None:
            # Two groups of one prompt in one step merge here; a source that has a group id gives it.
            row["group_id"] = row["prompt_id"]
        if row.get("sample_index") is None and row.get("group_id") is not None:
            key = tuple(row.get(name) for name in ("run_id", "split", "step", "budget", "strategy", "group_id"))
            index, turn = self._drawn.get(key, (-1, None))
            # A later turn goes on with the sample before it; anything else begins a new one.
            goes_on = turn is not None and row.get("turn") is not None and row["turn"] > turn
            row["sample_index"] = index if goes_on else index + 1
            self._drawn[key] = row["sample_index"], row.get("turn")


def drop_unequal_tokens(row: dict[str, Any], warn: Warn) -> None:
    """Token lists of a row must be equal in length; otherwise none of them can be trusted and all become null."""
    lengths = {name: len(row[name]) for name in TOKEN_COLUMNS if row.get(name) is not None}
    if len(set(lengths.values())) > 1:
        seen = ", ".join(f"{name} {length}" for name, length in lengths.items())
        warn("unequal-tokens", f"token lists of one rollout differ in length ({seen}); they were left out")
        for name in lengths:
            row[name] = None


def coerce(name: str, value: Any, warn: Warn) -> Any:
    """The value as its column's type, or None with a warning where it cannot be that."""
    if value is None:
        return None
    kind = BY_NAME[name].type
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str) and not pa.types.is_string(kind) and value.strip().lower() in _MISSING:
        return None
    result: Any
    if name in _WORDS_OF:
        result = _word(name, value)
    elif pa.types.is_string(kind):
        result = _text(value, whole=BY_NAME[name].kind == "key")
        if result == "" and name not in FREE_TEXT:
            result = None
    elif pa.types.is_boolean(kind):
        result = _truth(value)
    elif pa.types.is_integer(kind):
        result = _integer(value, 31 if kind == pa.int32() else 63)
    elif pa.types.is_floating(kind):
        result = _number(value)
    elif pa.types.is_map(kind):
        result = _parts(value)
    elif name == "messages":
        result = _messages(value)
    else:
        result = _tokens(name, value, kind, warn)
    if result is None and not _empty(value):
        warn(f"bad-{name}", f"{name} {repr(value)[:40]} is not {_called(name, kind)} and was read as null")
    return result


def _empty(value: Any) -> bool:
    return (isinstance(value, str) and value.strip().lower() in _MISSING) or (
        isinstance(value, dict | list) and not value
    )


def _called(name: str, kind: pa.DataType) -> str:
    if name in _WORDS_OF:
        return "one of " + ", ".join(_KNOWN[name])
    if pa.types.is_integer(kind):
        return "a whole number"
    return "a finite number" if pa.types.is_floating(kind) else f"a {kind}"


# Other tools' words for why a completion ended.
_FINISH = {
    "stop": "eos eos_token end_turn end_of_turn stop_sequence stop_token complete completed finished agent_completed",
    "length": "max_tokens max_length max_output_tokens max_new_tokens model_length truncated context_length max_turns_reached",
    "tool": "tool_calls tool_call tool_use function_call",
    "error": "content_filter failed failure exception",
    "cancelled": "abort aborted canceled",
}
_OUTCOMES = {
    "right": "correct pass passed",
    "wrong": "incorrect fail failed",
    "unparsable": "unparseable unparsed no_answer",
}
_KNOWN = {"finish_reason": get_args(Finish), "outcome": get_args(Outcome)}
_WORDS_OF = {
    name: {word: word for word in _KNOWN[name]}
    | {word: ours for ours, words in table.items() for word in words.split()}
    for name, table in (("finish_reason", _FINISH), ("outcome", _OUTCOMES))
}


def _word(name: str, value: Any) -> str | None:
    return _WORDS_OF[name].get(value.strip().lower()) if isinstance(value, str) else None


def _text(value: Any, *, whole: bool) -> str | None:
    if isinstance(value, str):
        # Lone surrogates come out of broken JSON escapes and cannot be stored as UTF-8.
        return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float):
        if math.isnan(value):
            return None
        # A column of whole numbers with a gap reads as 3.0 in some tools; as an identifier it is 3.
        return str(int(value)) if whole and value.is_integer() else str(value)
    if isinstance(value, bool | int):
        return str(value)
    return json.dumps(plain(value), ensure_ascii=False, default=str)


_TRUTHS = dict.fromkeys(("true", "1", "1.0", "yes", "y", "t", "c", "correct"), True)
_TRUTHS |= dict.fromkeys(("false", "0", "0.0", "no", "n", "f", "i", "incorrect"), False)


def _truth(value: Any) -> bool | None:
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float) and value in (0, 1):
        return bool(value)
    return _TRUTHS.get(value.strip().lower()) if isinstance(value, str) else None


def _number(value: Any) -> float | None:
    try:
        number = float(value) if isinstance(value, int | float | str) else float("nan")
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _integer(value: Any, bits: int) -> int | None:
    number = value if isinstance(value, int) else _number(value)
    if number is None or number != int(number) or abs(number) >= 2**bits:
        return None
    return int(number)


def _parts(value: Any) -> list[tuple[str, float]] | None:
    items = value.items() if isinstance(value, Mapping) else value
    try:
        numbers = [(str(key), _number(part)) for key, part in items]
    except (TypeError, ValueError):
        return None
    return [(key, part) for key, part in numbers if part is not None] or None


def _messages(value: Any) -> list[dict[str, str | None]] | None:
    if not isinstance(value, list) or not all(isinstance(message, Mapping) for message in value):
        return None
    return [
        {key: None if m.get(key) is None else _text(m[key], whole=False) for key in ("role", "content")} for m in value
    ]


def _tokens(name: str, value: Any, kind: pa.DataType, warn: Warn) -> Any:
    """A token list as a numpy array (lists of lists stay lists); nan where an entry is missing or not finite."""
    if isinstance(value, str):
        try:
            value = parse_json(value)
        except ValueError:
            return None
    if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__len__"):
        return None
    try:
        if pa.types.is_list(kind.value_type):
            return pa.array(list(value), type=exact_type(kind.value_type)).to_pylist()
        flat = np.asarray(value)
        if flat.dtype == object:
            known = np.array([item is not None for item in value])
            flat = np.array([math.nan if item is None else item for item in value], dtype=np.float64)
            if np.isfinite(flat[known]).all():  # a missing entry is not a bad one: tool text between two turns has none
                warn = _quiet
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError, ValueError):
        return None
    return token_values(name, flat, warn) if flat.ndim == 1 and flat.dtype.kind in "biuf" else None


def _quiet(kind: str, message: str) -> None:
    pass


def token_values(name: str, flat: np.ndarray, warn: Warn) -> np.ndarray | None:
    """Numbers as the values of a token column, or None where they cannot be: a mask is 0 or 1, an id a whole number.

    Floats keep the digits they have. Nan and infinity become nan, which the record stores as null.
    """
    kind = BY_NAME[name].type.value_type
    if pa.types.is_boolean(kind):
        return flat.astype(bool, copy=False) if flat.dtype == bool or np.isin(flat, (0, 1)).all() else None
    if flat.dtype.kind == "f":
        finite = np.isfinite(flat)
        if not finite.all():
            if pa.types.is_integer(kind):
                return None
            warn(f"bad-{name}", f"{name} hold nan or infinity; those tokens were read as null")
            flat = np.where(finite, flat, np.array(np.nan, flat.dtype))
    if pa.types.is_integer(kind):
        if flat.size and (
            flat.min() < -(2**31) or flat.max() >= 2**31 or (flat.dtype.kind == "f" and (flat != np.floor(flat)).any())
        ):
            return None
        return flat.astype(np.int32, copy=False)
    return flat if flat.dtype.kind == "f" else flat.astype(np.float64)
