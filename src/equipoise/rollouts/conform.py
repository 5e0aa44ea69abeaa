"""Arrow columns of a foreign file as columns of the record: whole arrays at a time, the same outcome as `rows.coerce`.

A column that already has a fitting type is passed on as it is; token lists keep the floats of the source.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from equipoise.rollouts.columns import BY_NAME, TOKEN_COLUMNS, exact_type
from equipoise.rollouts.kinds import is_list, is_number, is_text
from equipoise.rollouts.rows import FREE_TEXT, Warn, coerce, token_values


def conform(name: str, array: pa.Array, warn: Warn) -> pa.Array:
    """The array with a type that `Rollouts` can read for column `name`; cells that do not fit are null, with a warning."""
    kind, have = BY_NAME[name].type, array.type
    if pa.types.is_dictionary(have):
        values = conform(name, array.dictionary, warn)
        if is_text(values.type):
            return pa.DictionaryArray.from_arrays(array.indices, values)
        return values.take(array.indices)
    if pa.types.is_null(have):
        return pa.nulls(len(array), kind)
    if pa.types.is_string(kind) and is_text(have) and name not in ("finish_reason", "outcome"):
        return array if name in FREE_TEXT else pc.if_else(pc.equal(array, ""), pa.scalar(None, have), array)
    if pa.types.is_string(kind) and pa.types.is_integer(have):
        return array.cast(pa.string())
    if pa.types.is_floating(kind) and (pa.types.is_integer(have) or pa.types.is_floating(have)):
        return _finite(name, array.cast(pa.float64(), safe=False), warn)
    if pa.types.is_boolean(kind) and pa.types.is_boolean(have):
        return array
    if pa.types.is_integer(kind) and pa.types.is_integer(have):
        try:
            return array.cast(kind)
        except pa.ArrowInvalid:
            return _one_by_one(name, array, warn)  # some are too large: find them
    if name in TOKEN_COLUMNS and is_list(have) and is_number(have.value_type):
        return _token_lists(name, array, warn)
    if pa.types.is_primitive(have) or is_text(have):
        # Few distinct values stand for many rows: look at each value once.
        encoded = array.dictionary_encode()
        return _one_by_one(name, encoded.dictionary, warn).take(encoded.indices)
    return _one_by_one(name, array, warn)


def _one_by_one(name: str, array: pa.Array, warn: Warn) -> pa.Array:
    return pa.array([coerce(name, value, warn) for value in array.to_pylist()], type=exact_type(BY_NAME[name].type))


def _finite(name: str, array: pa.Array, warn: Warn) -> pa.Array:
    finite = pc.is_finite(array)
    if pc.all(finite).as_py() in (True, None):
        return array
    warn(f"bad-{name}", f"{name} holds nan or infinity, which was read as null")
    return pc.if_else(finite, array, pa.scalar(None, array.type))


def _token_lists(name: str, array: pa.Array, warn: Warn) -> pa.Array:
    """Lists of numbers with the values checked as one array; the lists themselves are not touched."""
    flat = array.flatten()
    if flat.null_count:
        return _one_by_one(name, array, warn)
    values = flat.to_numpy(zero_copy_only=False)
    checked = token_values(name, values, warn)
    if checked is None:
        return _one_by_one(name, array, warn)  # some row is at fault: find it
    if checked is values and is_list(array.type) and not pa.types.is_fixed_size_list(array.type):
        return array
    return with_values(array, checked)


def with_values(array: pa.Array, values: np.ndarray, kind: pa.DataType | None = None) -> pa.Array:
    """The same lists around other values; nan becomes null."""
    unknown = np.isnan(values) if values.dtype.kind == "f" else None
    inner = pa.array(values, type=kind, mask=unknown if unknown is not None and unknown.any() else None)
    lengths = np.asarray(pc.list_value_length(array).fill_null(0), dtype=np.int64)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), type=pa.int32())
    return pa.ListArray.from_arrays(offsets, inner, mask=array.is_null() if array.null_count else None)


def null_unequal_tokens(arrays: dict[str, pa.Array], warn: Warn) -> None:
    """Where the token lists of a row differ in length, none can be trusted: all become null. As `rows.drop_unequal_tokens`."""
    lists = [name for name in TOKEN_COLUMNS if name in arrays]
    if len(lists) < 2:
        return
    lengths = {name: pc.list_value_length(arrays[name]).cast(pa.int64()) for name in lists}
    low, high = pc.min_element_wise(*lengths.values()), pc.max_element_wise(*lengths.values())
    unequal = pc.fill_null(pc.not_equal(low, high), False)
    bad = np.flatnonzero(np.asarray(unequal))
    if not bad.size:
        return
    seen = ", ".join(f"{name} {lengths[name][int(bad[0])]}" for name in lists if lengths[name][int(bad[0])].is_valid)
    for _ in bad:
        warn("unequal-tokens", f"token lists of one rollout differ in length ({seen}); they were left out")
    for name in lists:
        arrays[name] = pc.if_else(unequal, pa.scalar(None, arrays[name].type), arrays[name])
