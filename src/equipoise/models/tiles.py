"""The (tokens × vocabulary) logits one tile at a time, and the matrix products around a tile.

Axes: N tokens, V vocabulary, D width; a tile is R tokens × C columns of the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.errors import UsageError

CHUNK = 2**26  # logits held at a time: 256 MB in float32
ROWS = 16_384  # more tokens than this go in blocks: a tile of all of them would be too narrow for the matrix units
ALIGNED = 128  # a tile's columns are a multiple of it where there are that many


@dataclass(frozen=True, slots=True)
class Precision:
    """`factors` are multiplied; `sums` is what products, reductions and results are kept in."""

    factors: torch.dtype
    sums: torch.dtype

    @classmethod
    def of(cls, hidden_ND: Tensor, weight_VD: Tensor) -> Precision:
        """Half-precision factors on a GPU, whose matrix units sum them in float32; elsewhere all in float32 or float64."""
        device = hidden_ND.device.type
        dtype = torch.promote_types(hidden_ND.dtype, weight_VD.dtype)
        if device != "cuda":
            dtype = torch.promote_types(dtype, torch.float32)
        elif torch.is_autocast_enabled(device) and dtype != torch.float64:
            dtype = torch.get_autocast_dtype(device)
        return cls(factors=dtype, sums=torch.promote_types(dtype, torch.float32))


@dataclass(frozen=True, slots=True)
class Tile:
    """Where a tile lies, its two factors, and their product: without bias, not yet divided by the temperature."""

    rows: slice
    columns: slice
    hidden_RD: Tensor
    weight_CD: Tensor
    logits_RC: Tensor  # the next tile overwrites it


def check_inputs(
    hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, *, temperature: float, chunk: int
) -> None:
    """Refuse what no tile can be made of."""
    shapes = f"hidden {tuple(hidden_ND.shape)}, weight {tuple(weight_VD.shape)}"
    if bias_V is not None:
        shapes += f", bias {tuple(bias_V.shape)}"
    fits = hidden_ND.ndim == weight_VD.ndim == 2 and hidden_ND.shape[1] == weight_VD.shape[1] and len(weight_VD) > 0
    if not fits or (bias_V is not None and bias_V.shape != weight_VD.shape[:1]):
        raise UsageError(f"token statistics need hidden (N, D), weight (V, D) and no bias or (V,), found {shapes}")
    if not (hidden_ND.is_floating_point() and weight_VD.is_floating_point()):
        raise UsageError(f"hidden and weight must be floating point, found {hidden_ND.dtype} and {weight_VD.dtype}")
    if not (temperature > 0 and math.isfinite(temperature)):
        raise UsageError(f"temperature {temperature}: use a finite number above 0 (greedy decoding has no entropy)")
    if chunk < 1:
        raise UsageError(f"chunk {chunk}: use the number of logits to hold at a time, 1 or more")


def cut(n_tokens: int, n_vocabulary: int, chunk: int) -> tuple[int, int]:
    """Tokens and columns of a tile of at most `chunk` logits: all tokens where they fit, columns in nearly equal parts."""
    rows = max(1, min(n_tokens, ROWS, chunk))
    columns = min(n_vocabulary, chunk // rows)
    aligned = ALIGNED if columns >= ALIGNED else 1
    columns -= columns % aligned
    even = math.ceil(n_vocabulary / math.ceil(n_vocabulary / columns))
    return rows, min(columns, math.ceil(even / aligned) * aligned)


def make_tiles(hidden_ND: Tensor, weight_VD: Tensor, precision: Precision, *, chunk: int) -> Iterator[Tile]:
    """Every tile of `hidden_ND @ weight_VD.T`, in one buffer, for one block of tokens after the other."""
    n_tokens, n_vocabulary = len(hidden_ND), len(weight_VD)
    n_rows, n_columns = cut(n_tokens, n_vocabulary, chunk)
    buffer = torch.empty(n_rows * n_columns, dtype=precision.sums, device=hidden_ND.device)
    for row in range(0, n_tokens, n_rows):
        rows = slice(row, min(row + n_rows, n_tokens))
        hidden_RD = hidden_ND[rows].to(precision.factors)
        for column in range(0, n_vocabulary, n_columns):
            columns = slice(column, min(column + n_columns, n_vocabulary))
            weight_CD = weight_VD[columns].to(precision.factors)
            n_logits = len(hidden_RD) * len(weight_CD)
            logits_RC = buffer[:n_logits].view(len(hidden_RD), len(weight_CD))
            set_product(logits_RC, hidden_RD, weight_CD.t())
            yield Tile(rows, columns, hidden_RD, weight_CD, logits_RC)


def set_product(out: Tensor, a: Tensor, b: Tensor) -> None:
    """out = a @ b, rounded once, to the dtype of `out` (one that differs from theirs: on a GPU, since torch 2.8)."""
    if out.dtype == a.dtype:
        torch.mm(a, b, out=out)
    else:
        torch.mm(a, b, out_dtype=out.dtype, out=out)


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a @ b, the product not rounded to the dtype of its factors first."""
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    else:
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
