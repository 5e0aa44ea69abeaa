"""A plain Parquet file, column by column: token lists are never taken apart into Python numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from equipoise.base import CORRECT
from equipoise.errors import UsageError
from equipoise.rollouts.batch import Rollouts
from equipoise.rollouts.columns import BY_NAME
from equipoise.rollouts.conform import conform, null_unequal_tokens
from equipoise.rollouts.kinds import is_list, is_text
from equipoise.rollouts.parquet import column_types, open_parquet, stream_parquet
from equipoise.rollouts.readers.aliases import check_given, match_names, unusable
from equipoise.rollouts.readers.foreign import leftovers, quiet
from equipoise.rollouts.readers.plain_rows import SAMPLED, Identity, finish_of, numbers_rows, record_rows, split_chat
from equipoise.rollouts.rows import FILLED, FILLED_FROM, KeyFiller, Warn, batches_of, coerce

_CHAT = ("prompt", "messages", "completion")


class ParquetTable:
    """One file, with the names of its columns settled."""

    def __init__(self, path: Path, given: Mapping[str, str], *, for_another: bool = False) -> None:
        self.path = path
        with open_parquet(path) as file:
            types, rows = column_types(file, path), file.metadata.num_rows
        if rows == 0:
            raise UsageError(f"{path} holds no rows")
        samples = {field.name: [_sample(field.type)] for field in types}
        given = check_given(path, given, samples, for_another=for_another)
        self.names = match_names(samples, given, numbers_rows=_row_numbers(path, samples, given))
        if not self.names.usable:
            raise unusable(path, samples)
        kinds = {ours: types.field(theirs).type for ours, theirs in self.names.source.items()}
        self._chats = [ours for ours in _CHAT if ours in kinds and _is_chat(kinds[ours])]
        self._listed = any(is_list(kinds[ours]) and not _is_chat(kinds[ours]) for ours in SAMPLED if ours in kinds)

    def stream(self, asked: Sequence[str] | None, step: int | None, keys: KeyFiller, warn: Warn) -> Iterator[Rollouts]:
        wanted = tuple(BY_NAME) if asked is None else tuple(asked)
        needed = {
            *wanted,
            *(FILLED_FROM if set(FILLED) & set(wanted) else ()),
            *(("outcome",) if "correct" in wanted else ()),
        }
        if needed & set(_CHAT):
            needed |= set(self._chats)
        source = {
            ours: theirs
            for ours, theirs in self.names.source.items()
            if ours in needed or (self._listed and ours in SAMPLED)
        }
        with_extra = "extra" in wanted and "extra" not in source
        if note := self.names.note():
            warn("columns", f"{self.path.name}: {note}")
        identity = Identity(self.names, warn)
        batches = stream_parquet(self.path, None if with_extra else sorted(set(source.values())), warn=warn)
        if self._listed:
            yield from batches_of(
                self._rows(batches, step, identity, warn, with_extra=with_extra), asked, warn, keys=keys
            )
            return
        for batch in batches:
            arrays = self._arrays(batch, source, warn)
            if step is not None and "step" in needed and "step" not in arrays:
                arrays["step"] = pa.array(np.full(len(batch), step, dtype=np.int64))
            if set(FILLED) & set(wanted):
                self._fill_keys(arrays, len(batch), keys, identity)
            if "correct" in wanted and "outcome" in arrays:
                arrays["correct"] = _judged(arrays, len(batch))
            rest = [name for name in batch.schema.names if name not in self.names.source.values()]
            if with_extra and rest:
                arrays["extra"] = pa.array([leftovers(row, ()) for row in batch.select(rest).to_pylist()], pa.string())
            null_unequal_tokens(arrays, warn)
            kept = {name: arrays[name] for name in wanted if name in arrays and arrays[name].null_count < len(batch)}
            yield Rollouts.of_arrays(kept, len(batch))

    def _rows(
        self, batches: Iterator[pa.RecordBatch], step: int | None, identity: Identity, warn: Warn, *, with_extra: bool
    ) -> Iterator[dict[str, Any]]:
        for batch in batches:
            for row in batch.to_pylist():
                for cells in record_rows(row, self.names, warn, with_extra=with_extra):
                    identity.fix(cells, self.names)
                    yield cells if step is None or cells.get("step") is not None else cells | {"step": step}

    def _arrays(self, batch: pa.RecordBatch, source: Mapping[str, str], warn: Warn) -> dict[str, pa.Array]:
        arrays = {ours: batch.column(theirs) for ours, theirs in source.items()}
        if any(ours in arrays for ours in self._chats):
            _split_chats(arrays, len(batch), warn)
        if "finish_reason" in arrays:
            values = [finish_of(value, self.names) for value in arrays["finish_reason"].to_pylist()]
            arrays["finish_reason"] = pa.array(values)
        return {ours: conform(ours, array, warn) for ours, array in arrays.items()}

    def _fill_keys(self, arrays: dict[str, pa.Array], n_rows: int, keys: KeyFiller, identity: Identity) -> None:
        known = Rollouts.of_arrays({name: arrays[name] for name in FILLED_FROM if name in arrays}, n_rows)
        if "prompt_id" not in self.names.by_alias and all(
            name in arrays and not arrays[name].null_count for name in FILLED
        ):
            for found, task in set(zip(known.texts("prompt_id") or (), known.texts("env") or (), strict=False)):
                identity.fix({"prompt_id": found, "env": task}, self.names)
            return
        rows = known.rows()
        for row in rows:
            identity.fix(row, self.names)
            keys.fill(row)
        for name in FILLED:
            arrays[name] = pa.array([row.get(name) for row in rows], type=BY_NAME[name].type)


def _split_chats(arrays: dict[str, pa.Array], n_rows: int, warn: Warn) -> None:
    """Conversations taken apart row by row, as `split_chat` does it."""
    cells = [arrays[ours].to_pylist() if ours in arrays else [None] * n_rows for ours in _CHAT]
    rows = [dict(zip(_CHAT, row, strict=True)) for row in zip(*cells, strict=True)]
    for row in rows:
        split_chat(row)
    for ours in _CHAT:
        arrays[ours] = pa.array([coerce(ours, row[ours], warn) for row in rows], type=BY_NAME[ours].type)


def _judged(arrays: Mapping[str, pa.Array], n_rows: int) -> pa.Array:
    """The verdicts, where there is none those that the outcomes say."""
    outcomes = arrays["outcome"].to_pylist()
    verdicts = arrays["correct"].to_pylist() if "correct" in arrays else [None] * n_rows
    return pa.array([CORRECT.get(o) if v is None else v for o, v in zip(outcomes, verdicts, strict=True)], pa.bool_())


def _row_numbers(path: Path, samples: Mapping[str, Sequence[Any]], given: Mapping[str, str]) -> list[str]:
    """Columns that are called id and are different in every row, while prompts repeat."""
    names = match_names(samples, given).source
    found, prompt = names.get("prompt_id"), names.get("prompt")
    if found is None or prompt is None:
        return []
    batch = next(stream_parquet(path, [found, prompt], warn=quiet), None)
    if batch is None or is_list(batch.column(prompt).type):
        return []
    return [found] if numbers_rows(batch.column(found).to_pylist(), batch.column(prompt).to_pylist()) else []


def _is_chat(kind: pa.DataType) -> bool:
    return is_list(kind) and pa.types.is_struct(kind.value_type)


def _sample(kind: pa.DataType) -> Any:
    """A value of the type, to see which columns of the record it could be."""
    if pa.types.is_dictionary(kind):
        return _sample(kind.value_type)
    if is_list(kind):
        return [_sample(kind.value_type)]
    if pa.types.is_struct(kind) or pa.types.is_map(kind):
        return {}
    if is_text(kind):
        return "text"
    if pa.types.is_boolean(kind):
        return True
    if pa.types.is_integer(kind):
        return 0
    return 0.5 if pa.types.is_floating(kind) or pa.types.is_decimal(kind) else None
