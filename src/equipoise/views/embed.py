"""Data inside an HTML file: JSON that cannot end its script element, arrays as base64, and the hashes that a policy names."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import Any

import numpy as np

from equipoise.files import plain

# `<` could end the element or open a comment; `&` and `>` matter to XML; lone surrogates no file can hold.
_UNSAFE = re.compile("[<>&\u2028\u2029\ud800-\udfff]")
_ID = re.compile(r"[a-z0-9-]+")


def as_json(value: Any) -> str:
    """JSON for the inside of a script element; nan and infinity are null."""
    text = json.dumps(plain(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return _UNSAFE.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def data_block(name: str, value: Any) -> str:
    """An element that a script reads and no browser runs."""
    if not _ID.fullmatch(name):
        raise ValueError(f"an element's id is made here of small letters, digits and '-', found {name!r}")
    return f'<script type="application/json" id="{name}">{as_json(value)}</script>'


def narrow(values: np.ndarray) -> np.ndarray:
    """The same numbers in the smallest type that holds each of them exactly."""
    if values.dtype.kind not in "iuf":
        raise TypeError(f"only numbers are packed, found {values.dtype}")
    for kind in ("<f2", "<f4") if values.dtype.kind == "f" else ("<u1", "<u2", "<i4"):
        with np.errstate(over="ignore"):
            smaller = values.astype(kind)
        if np.array_equal(smaller.astype(values.dtype), values, equal_nan=values.dtype.kind == "f"):
            return smaller
    return values.astype(values.dtype.newbyteorder("<"), copy=False)


def packed(values: np.ndarray) -> dict[str, str]:
    """Numbers exactly as they are, in a fraction of JSON's bytes: little-endian, as base64."""
    values = narrow(values)
    kind = f"{values.dtype.kind}{values.dtype.itemsize}"
    return {"kind": kind, "data": base64.b64encode(values.tobytes()).decode("ascii")}


def policy_hash(text: str) -> str:
    """What a content security policy calls an inline script or style with this text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}'"
