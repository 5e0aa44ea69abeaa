"""Log-prob, entropy and entropy drift of tokens from hidden states, never holding the (tokens × vocabulary) logits.

The logits are made a tile at a time, folded into six sums per token and dropped; the backward pass makes each tile again and turns
it into its gradient by the closed form. Axes: B completions, T positions, N tokens, D width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from equipoise.errors import UsageError, same_shape
from equipoise.models.softmax_sums import arithmetic, sum_softmax
from equipoise.models.tiles import CHUNK, Precision, add_product, check_inputs, cut, make_tiles, set_product


@dataclass(frozen=True, slots=True)
class TokenStats:
    """Of N tokens, in nats: log-prob of the chosen token, entropy, and drift Σ_v p_v² (ln p_v + H)."""

    logp_N: Tensor
    entropy_N: Tensor
    drift_N: Tensor  # detached


@dataclass(frozen=True, slots=True)
class MaskedTokenStats:
    """The same at the positions of a batch; exactly 0 where its mask is False."""

    logp_BT: Tensor
    entropy_BT: Tensor
    drift_BT: Tensor  # detached


def token_stats(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    ids_N: Tensor,
    *,
    temperature: float = 1.0,
    bias_V: Tensor | None = None,
    chunk: int = CHUNK,
) -> TokenStats:
    """Statistics of p, the softmax of (hidden · weight + bias) / temperature, at each token a.

        logp = ln p_a,   H = −Σ_v p_v ln p_v,   drift = Σ_v p_v² (ln p_v + H)

    Drift is what the entropy change of a policy-gradient step on a tabular softmax needs besides the chosen token:
    dH/dη = −A [p_a (ln p_a + H) − drift] for advantage A; the covariance view of it is https://arxiv.org/abs/2505.22617.

    Gradients of log-prob and entropy reach hidden, weight and bias; drift is detached. A token banned by a bias of −∞ has
    probability 0 and gradient 0. Ids are checked, which waits for the GPU once.

    Memory beyond inputs and gradients: 4 bytes for each of `chunk` logits, up to 6 on the way back (a few times that without
    Triton), a float32 gradient of hidden, and one of the weight where the tokens need several blocks or dtypes are mixed.

    Precision: results are float32, or float64 for float64 inputs. On a CPU all is computed in that dtype. On a GPU, factors in
    bfloat16 or float16 (or autocast to it) are multiplied as they are with sums, logits and reductions in float32; only the
    gradient of the logits is rounded to the factors' dtype, for the two products that it enters, which are summed in float32.
    Each gradient is rounded once, to its input's dtype.
    """
    check_inputs(hidden_ND, weight_VD, bias_V, temperature=temperature, chunk=chunk)
    _check_ids(ids_N, hidden_ND, n_vocabulary=len(weight_VD))
    bias_V = None if bias_V is None else bias_V.contiguous()
    ids_N = ids_N.long().contiguous()
    settings = (float(temperature), chunk)
    return TokenStats(*_TokenStats.apply(hidden_ND, weight_VD, bias_V, ids_N, *settings))  # type: ignore[no-untyped-call]


def masked_token_stats(
    hidden_BTD: Tensor,
    weight_VD: Tensor,
    ids_BT: Tensor,
    mask_BT: Tensor,
    *,
    temperature: float = 1.0,
    bias_V: Tensor | None = None,
    chunk: int = CHUNK,
) -> MaskedTokenStats:
    """`token_stats` where `mask_BT` is True; elsewhere nothing is computed, and no value is read.

    `hidden_BTD[:, t]` is what predicts `ids_BT[:, t]`: shift one of them before the call.
    """
    same_shape(hidden_BT=hidden_BTD[..., 0], ids_BT=ids_BT, mask_BT=mask_BT)
    if mask_BT.dtype != torch.bool:
        raise UsageError(f"mask_BT must be boolean, found {mask_BT.dtype}: pass mask_BT.bool()")
    stats = token_stats(
        hidden_BTD[mask_BT], weight_VD, ids_BT[mask_BT], temperature=temperature, bias_V=bias_V, chunk=chunk
    )
    return MaskedTokenStats(
        *(
            values_N.new_zeros(mask_BT.shape).masked_scatter(mask_BT, values_N)
            for values_N in (stats.logp_N, stats.entropy_N, stats.drift_N)
        )
    )


def _check_ids(ids_N: Tensor, hidden_ND: Tensor, *, n_vocabulary: int) -> None:
    n_tokens = len(hidden_ND)
    if ids_N.device != hidden_ND.device:
        raise UsageError(f"ids are on {ids_N.device}, hidden states on {hidden_ND.device}: move one to the other")
    if ids_N.shape != (n_tokens,) or ids_N.is_floating_point() or ids_N.dtype == torch.bool:
        raise UsageError(f"ids must be {n_tokens} integers, one per token, found {ids_N.dtype} {tuple(ids_N.shape)}")
    if n_tokens:
        low, high = torch.stack(torch.aminmax(ids_N)).tolist()
        if low < 0 or high >= n_vocabulary:
            raise UsageError(
                f"ids must be 0 to {n_vocabulary - 1} (the weight has {n_vocabulary} rows), found {low} to {high}:"
                " leave masked positions out (masked_token_stats does)"
            )


class _TokenStats(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        ids_N: Tensor,
        temperature: float,
        chunk: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        precision = Precision.of(hidden_ND, weight_VD)
        with torch.autocast(hidden_ND.device.type, enabled=False):
            sums_SN = sum_softmax(hidden_ND, weight_VD, bias_V, ids_N, precision, temperature=temperature, chunk=chunk)
        top_N, total_N, total_x_N, square_N, square_x_N, chosen_N = sums_SN
        log_total_N, mean_x_N = total_N.log(), total_x_N / total_N
        logp_N = chosen_N - top_N - log_total_N
        entropy_N = (log_total_N - mean_x_N).clamp(min=0)  # a GPU's fused multiply-add makes x = 1e-7 of 0
        drift_N = (square_x_N - square_N * mean_x_N) / total_N**2  # ln Σ eˣ cancels between ln p and H
        ctx.save_for_backward(hidden_ND, weight_VD, bias_V, ids_N, torch.stack([top_N, log_total_N, entropy_N]))
        ctx.precision, ctx.temperature, ctx.chunk = precision, temperature, chunk
        ctx.mark_non_differentiable(drift_N)
        return logp_N, entropy_N, drift_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logp_N: Tensor, grad_entropy_N: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        grads_2N = torch.stack([grad_logp_N, grad_entropy_N])
        with torch.autocast(grads_2N.device.type, enabled=False):
            return *_gradients(ctx, grads_2N), None, None, None


def _gradients(ctx: Any, grads_2N: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Of hidden, weight and bias, each None where nobody asks for it."""
    hidden_ND, weight_VD, bias_V, ids_N, known_3N = ctx.saved_tensors
    wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
    factors, sums = ctx.precision.factors, ctx.precision.sums
    n_rows, n_columns = cut(len(hidden_ND), len(weight_VD), ctx.chunk)
    # With every token in every tile, a tile ends its columns of the weight's gradient: written once, in the weight's dtype.
    at_once = len(hidden_ND) == n_rows and weight_VD.dtype == factors
    grad_hidden_ND = torch.zeros_like(hidden_ND, dtype=sums) if wants_hidden else None
    grad_weight_VD = None
    if wants_weight:
        grad_weight_VD = torch.empty_like(weight_VD) if at_once else torch.zeros_like(weight_VD, dtype=sums)
    grad_bias_V = torch.zeros_like(bias_V, dtype=sums) if wants_bias else None
    in_place = factors == sums
    buffer = torch.empty(0 if in_place else n_rows * n_columns, dtype=factors, device=hidden_ND.device)
    differentiate = arithmetic(hidden_ND.device, sums).differentiate
    for tile in make_tiles(hidden_ND, weight_VD, ctx.precision, chunk=ctx.chunk):
        grad_RC = tile.logits_RC
        if not in_place:
            grad_RC = buffer[: grad_RC.numel()].view(grad_RC.shape)
        differentiate(
            tile.logits_RC,
            None if bias_V is None else bias_V[tile.columns],
            ids_N[tile.rows],
            known_3N[:, tile.rows],
            grads_2N[:, tile.rows],
            first=tile.columns.start,
            temperature=ctx.temperature,
            out_RC=grad_RC,
        )
        if grad_hidden_ND is not None:
            add_product(grad_hidden_ND[tile.rows], grad_RC, tile.weight_CD)
        if grad_weight_VD is not None:
            use_product = set_product if at_once else add_product
            use_product(grad_weight_VD[tile.columns], grad_RC.t(), tile.hidden_RD)
        if grad_bias_V is not None:
            grad_bias_V[tile.columns] += grad_RC.sum(0, dtype=sums)
    return (
        grad_hidden_ND.to(hidden_ND.dtype) if grad_hidden_ND is not None else None,
        grad_weight_VD.to(weight_VD.dtype) if grad_weight_VD is not None else None,
        grad_bias_V.to(bias_V.dtype) if grad_bias_V is not None else None,
    )
