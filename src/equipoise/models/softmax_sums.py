"""What is kept of the softmax at a token: six sums that a tile of logits is folded into, and the gradient of the logits.

With z the logits over the temperature and x = z − max z so far, the sums S of a token are

    max z,   Σ eˣ,   Σ x eˣ,   Σ e²ˣ,   Σ x e²ˣ,   z of the chosen token

Sums of x, not of z: logits of ±10⁴ cost no digits. A banned token (z = −∞) adds exactly 0. Axes: N tokens, V vocabulary; a tile is
R tokens × C columns. `softmax_sums_triton` does `fold` and `differentiate` on a GPU.
"""

from __future__ import annotations

import importlib
import math
from importlib.util import find_spec
from types import ModuleType

import torch
from torch import Tensor

from equipoise.models.tiles import Precision, make_tiles

SUMS = 6


def arithmetic(device: torch.device, dtype: torch.dtype) -> ModuleType:
    """The module whose `fold` and `differentiate` to use: the fused one computes in float32 on a GPU."""
    fused = device.type == "cuda" and dtype == torch.float32 and find_spec("triton") is not None
    return importlib.import_module("equipoise.models.softmax_sums" + ("_triton" if fused else ""))


def new_sums(hidden_ND: Tensor, precision: Precision) -> Tensor:
    """The sums over no columns yet."""
    sums_SN = torch.zeros(SUMS, len(hidden_ND), dtype=precision.sums, device=hidden_ND.device)
    sums_SN[0] = -math.inf
    return sums_SN


def sum_softmax(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    ids_N: Tensor,
    precision: Precision,
    *,
    temperature: float,
    chunk: int,
) -> Tensor:
    """The six sums of every token, (S, N), in one pass over the tiles of its logits."""
    sums_SN = new_sums(hidden_ND, precision)
    fold_tile = arithmetic(hidden_ND.device, precision.sums).fold
    for tile in make_tiles(hidden_ND, weight_VD, precision, chunk=chunk):
        bias_C = None if bias_V is None else bias_V[tile.columns]
        first, sums_SR = tile.columns.start, sums_SN[:, tile.rows]
        fold_tile(tile.logits_RC, bias_C, ids_N[tile.rows], sums_SR, first=first, temperature=temperature)
    return sums_SN


def fold(
    logits_RC: Tensor, bias_C: Tensor | None, ids_R: Tensor, sums_SR: Tensor, *, first: int, temperature: float
) -> None:
    """Add the columns `first`, `first` + 1, … of the vocabulary to the running sums, in place."""
    z_RC = _scale(logits_RC, bias_C, temperature)
    top_R, total_R, total_x_R, square_R, square_x_R, chosen_R = sums_SR.unbind()
    new_top_R = torch.maximum(top_R, z_RC.amax(1))
    base_R = torch.where(new_top_R == -math.inf, 0.0, new_top_R)  # nothing but banned tokens so far
    shift_R = torch.where(top_R == -math.inf, 0.0, top_R - base_R)
    keep_R = shift_R.exp()

    x_RC = z_RC - base_R[:, None]
    e_RC = x_RC.exp()
    x_RC = torch.where(e_RC == 0, 0.0, x_RC)  # 0 · −∞ is nan
    total_x_R.copy_(keep_R * (total_x_R + shift_R * total_R) + (x_RC * e_RC).sum(1))
    total_R.copy_(keep_R * total_R + e_RC.sum(1))
    e_RC, keep_R = e_RC**2, keep_R**2
    square_x_R.copy_(keep_R * (square_x_R + shift_R * square_R) + (x_RC * e_RC).sum(1))
    square_R.copy_(keep_R * square_R + e_RC.sum(1))
    top_R.copy_(new_top_R)

    inside_R, column_R = _locate(ids_R, first, z_RC.shape[1])
    chosen_R.copy_(torch.where(inside_R, z_RC.gather(1, column_R[:, None])[:, 0], chosen_R))


def differentiate(
    logits_RC: Tensor,
    bias_C: Tensor | None,
    ids_R: Tensor,
    known_3R: Tensor,
    grads_2R: Tensor,
    *,
    first: int,
    temperature: float,
    out_RC: Tensor,
) -> None:
    """The gradient of the logits, [g_logp (1{v = a} − p_v) − g_H p_v (ln p_v + H)] / temperature, into `out_RC`.

    `known_3R`: max z, ln Σ eˣ and H of each token. `grads_2R`: the gradients g of its log-prob and entropy.
    """
    top_R, log_total_R, entropy_R = known_3R.unsqueeze(-1)
    grad_logp_R, grad_entropy_R = grads_2R.unsqueeze(-1)
    log_p_RC = _scale(logits_RC, bias_C, temperature) - top_R - log_total_R
    p_RC = log_p_RC.exp()
    log_p_RC = torch.where(p_RC == 0, 0.0, log_p_RC)  # 0 · −∞ is nan
    grad_RC = -p_RC * (grad_logp_R + grad_entropy_R * (log_p_RC + entropy_R))
    inside_R, column_R = _locate(ids_R, first, grad_RC.shape[1])
    grad_RC.scatter_add_(1, column_R[:, None], torch.where(inside_R[:, None], grad_logp_R, 0.0))
    out_RC.copy_(grad_RC / temperature)


def _scale(logits_RC: Tensor, bias_C: Tensor | None, temperature: float) -> Tensor:
    return (logits_RC if bias_C is None else logits_RC + bias_C.to(logits_RC.dtype)) / temperature


def _locate(ids_R: Tensor, first: int, n_columns: int) -> tuple[Tensor, Tensor]:
    """Whether a token's column is in this tile, and which it is (some column where it is not)."""
    column_R = ids_R - first
    return (column_R >= 0) & (column_R < n_columns), column_R.clamp(0, n_columns - 1)
