# mypy: ignore-errors
# Triton compiles these functions from their source; its language has no types that a checker could follow.
"""`fold` and `differentiate` of `softmax_sums` on a GPU, each in one pass over a tile, all arithmetic in float32.

Columns, ids, bias and the N of sums and gradients must lie side by side in memory; rows may have any stride.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

FOLD_BLOCK, FOLD_WARPS = 2048, 4
GRAD_BLOCK, GRAD_WARPS = 4096, 8


def fold(
    logits_RC: Tensor, bias_C: Tensor | None, ids_R: Tensor, sums_SR: Tensor, *, first: int, temperature: float
) -> None:
    n_rows, n_columns = logits_RC.shape
    with torch.cuda.device_of(logits_RC):  # Triton launches on the current device, wherever its arguments are
        _fold[(n_rows,)](
            logits_RC,
            logits_RC if bias_C is None else bias_C,
            ids_R,
            sums_SR,
            logits_RC.stride(0),
            sums_SR.stride(0),
            first,
            n_columns,
            1 / temperature,
            HAS_BIAS=bias_C is not None,
            BLOCK=min(FOLD_BLOCK, triton.next_power_of_2(n_columns)),
            num_warps=FOLD_WARPS,
        )


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
    n_rows, n_columns = logits_RC.shape
    block = min(GRAD_BLOCK, triton.next_power_of_2(n_columns))
    with torch.cuda.device_of(logits_RC):
        _differentiate[(n_rows, triton.cdiv(n_columns, block))](
            logits_RC,
            logits_RC if bias_C is None else bias_C,
            ids_R,
            known_3R,
            grads_2R,
            out_RC,
            logits_RC.stride(0),
            known_3R.stride(0),
            grads_2R.stride(0),
            out_RC.stride(0),
            first,
            n_columns,
            1 / temperature,
            HAS_BIAS=bias_C is not None,
            BLOCK=block,
            num_warps=GRAD_WARPS,
        )


@triton.jit
def _fold(
    logits_ptr,
    bias_ptr,
    ids_ptr,
    sums_ptr,
    logits_stride,
    sums_stride,
    first,
    n_columns,
    per_temperature,
    HAS_BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * logits_stride
    sums_ptr += row
    top = tl.load(sums_ptr)
    total = tl.load(sums_ptr + sums_stride)
    total_x = tl.load(sums_ptr + 2 * sums_stride)
    square = tl.load(sums_ptr + 3 * sums_stride)
    square_x = tl.load(sums_ptr + 4 * sums_stride)
    for start in range(0, n_columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        z = tl.load(logits_ptr + column, mask=column < n_columns, other=-float("inf")).to(tl.float32)
        if HAS_BIAS:
            z += tl.load(bias_ptr + column, mask=column < n_columns, other=0.0).to(tl.float32)
        z *= per_temperature
        new_top = tl.maximum(top, tl.max(z, axis=0))
        base = tl.where(new_top == -float("inf"), 0.0, new_top)  # nothing but banned tokens so far
        shift = tl.where(top == -float("inf"), 0.0, top - base)
        keep = tl.exp(shift)
        x = z - base
        e = tl.exp(x)
        x = tl.where(e == 0.0, 0.0, x)  # 0 * -inf is nan
        xe = x * e
        total_x = keep * (total_x + shift * total) + tl.sum(xe, axis=0)
        total = keep * total + tl.sum(e, axis=0)
        square_x = keep * keep * (square_x + shift * square) + tl.sum(xe * e, axis=0)
        square = keep * keep * square + tl.sum(e * e, axis=0)
        top = new_top
    tl.store(sums_ptr, top)
    tl.store(sums_ptr + sums_stride, total)
    tl.store(sums_ptr + 2 * sums_stride, total_x)
    tl.store(sums_ptr + 3 * sums_stride, square)
    tl.store(sums_ptr + 4 * sums_stride, square_x)
    chosen = tl.load(ids_ptr + row) - first
    if (chosen >= 0) & (chosen < n_columns):
        z_chosen = tl.load(logits_ptr + chosen).to(tl.float32)
        if HAS_BIAS:
            z_chosen += tl.load(bias_ptr + chosen).to(tl.float32)
        tl.store(sums_ptr + 5 * sums_stride, z_chosen * per_temperature)


@triton.jit
def _differentiate(
    logits_ptr,
    bias_ptr,
    ids_ptr,
    known_ptr,
    grads_ptr,
    out_ptr,
    logits_stride,
    known_stride,
    grads_stride,
    out_stride,
    first,
    n_columns,
    per_temperature,
    HAS_BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < n_columns
    top = tl.load(known_ptr + row)
    log_total = tl.load(known_ptr + known_stride + row)
    entropy = tl.load(known_ptr + 2 * known_stride + row)
    grad_logp = tl.load(grads_ptr + row)
    grad_entropy = tl.load(grads_ptr + grads_stride + row)
    chosen = tl.load(ids_ptr + row) - first
    z = tl.load(logits_ptr + row * logits_stride + column, mask=inside, other=-float("inf")).to(tl.float32)
    if HAS_BIAS:
        z += tl.load(bias_ptr + column, mask=inside, other=0.0).to(tl.float32)
    log_p = z * per_temperature - top - log_total
    p = tl.exp(log_p)
    log_p = tl.where(p == 0.0, 0.0, log_p)  # 0 * -inf is nan
    grad = tl.where(column == chosen, grad_logp, 0.0) - p * (grad_logp + grad_entropy * (log_p + entropy))
    grad *= per_temperature
    tl.store(out_ptr + row * out_stride + column, grad.to(out_ptr.dtype.element_ty), mask=inside)
