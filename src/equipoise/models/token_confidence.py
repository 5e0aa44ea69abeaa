"""DeepConf's token confidence from hidden states, forward only. Axes: N tokens, D width, V vocabulary, K most likely tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.errors import UsageError
from equipoise.models.softmax_sums import arithmetic, new_sums
from equipoise.models.tiles import CHUNK, Precision, check_inputs, make_tiles

GROUP = 16  # columns searched together


@torch.no_grad()
def token_confidence(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    *,
    k: int = 20,
    temperature: float = 1.0,
    bias_V: Tensor | None = None,
    chunk: int = CHUNK,
) -> Tensor:
    """Negative mean log-prob of the `k` most likely tokens, −(1/k) Σ_{j ≤ k} ln p_(j): high where the model is sure.

    https://arxiv.org/abs/2508.15260, with k = 20. The softmax is that of `token_stats`, to the same precision, as are its tiles.
    """
    check_inputs(hidden_ND, weight_VD, bias_V, temperature=temperature, chunk=chunk)
    if not 1 <= k <= len(weight_VD):
        raise UsageError(
            f"confidence over the {k} most likely tokens of {len(weight_VD)}: use 1 <= k <= {len(weight_VD)}"
        )
    precision = Precision.of(hidden_ND, weight_VD)
    sums_SN = new_sums(hidden_ND, precision)
    top_NK = sums_SN.new_full((len(hidden_ND), k), -torch.inf)
    any_N = torch.zeros(
        len(hidden_ND), dtype=torch.long, device=hidden_ND.device
    )  # which token is chosen has no say here
    fold = arithmetic(hidden_ND.device, precision.sums).fold
    with torch.autocast(hidden_ND.device.type, enabled=False):
        for tile in make_tiles(hidden_ND, weight_VD, precision, chunk=chunk):
            rows, columns = tile.rows, tile.columns
            if bias_V is not None:
                tile.logits_RC.add_(bias_V[columns])
            fold(tile.logits_RC, None, any_N[rows], sums_SN[:, rows], first=columns.start, temperature=temperature)
            found_RK = torch.cat([top_NK[rows], _largest(tile.logits_RC, k)], dim=1)
            top_NK[rows] = found_RK.topk(k, sorted=False).values
    max_N, log_total_N = sums_SN[0], sums_SN[1].log()
    return log_total_N + (max_N[:, None] - top_NK / temperature).mean(1)


def _largest(values_RC: Tensor, k: int) -> Tensor:
    """The `k` largest of each row, fewer where it has fewer.

    They lie in the `k` groups of columns with the largest maxima, so only these groups are searched. A group is every
    (C / GROUP)-th column: its maximum is then found by reads of neighbours.
    """
    n_rows, n_columns = values_RC.shape
    if n_columns % GROUP or n_columns < 2 * k * GROUP:
        return values_RC.topk(min(k, n_columns), sorted=False).values
    values_RMG = values_RC.view(n_rows, GROUP, -1)  # M members of G groups
    best_RK = values_RMG.amax(1).topk(k, sorted=False).indices
    candidates_RMK = values_RMG.gather(2, best_RK[:, None, :].expand(-1, GROUP, -1))
    return candidates_RMK.flatten(1).topk(k, sorted=False).values
