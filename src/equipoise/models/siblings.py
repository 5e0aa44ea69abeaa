"""Completions of one prompt that keep apart: each sees what its siblings before it took, and takes it less often.

The test-time form of a batch-exploration bonus, made for this package; no paper has it for autoregressive models. It acts on the
first tokens only, so that what follows a choice is the model's own.
Axes: P prompts, G siblings, B = P · G rows that were asked for, R of them in the batch, M first tokens, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from equipoise.models.decoding import invert

if TYPE_CHECKING:
    from equipoise.models.rows import Rows, Rules

MOST = 600.0  # nats taken off: a float64 still tells such a weight from 0


def choose_apart(rows: Rows, rules: Rules, weights_RV: Tensor, uniform_R: Tensor) -> Tensor:
    """A token per row. Sibling g draws after those before it, with the weight of every token v times

        exp(−repel · #{h < g : h's tokens so far are g's, and h takes v now})

    while the column is one of the first `repel_first`. A token that ends a completion keeps its probability: the others share what
    they had before among themselves. As sibling g depends on those before it alone, more siblings only add to fewer. All shapes
    are fixed, so a step can be captured as a CUDA graph.
    """
    decoding = rules.decoding
    if rows.column_1.device.type == "cpu" and int(rows.column_1) >= decoding.repel_first:
        return invert(weights_RV, uniform_R)  # what the loop comes to, without it
    n_rows, V = len(rows.mask_BT), weights_RV.shape[1]
    G = rules.siblings
    # All rows that were asked for, siblings side by side, whoever has left the batch.
    weights_PGV = weights_RV.new_zeros(n_rows, V, dtype=torch.float64)
    weights_PGV = weights_PGV.index_copy(0, rows.index_R, weights_RV.double()).view(-1, G, V)
    uniform_PG = uniform_R.new_zeros(n_rows).index_copy(0, rows.index_R, uniform_R).view(-1, G)
    live_B = torch.zeros(n_rows, dtype=torch.bool, device=weights_RV.device)
    live_B = live_B.index_copy(0, rows.index_R, ~rows.done_R)
    same_PGG = _same_so_far(rows, decoding.repel_first, G) & live_B.view(-1, G, 1)
    same_PGG = (same_PGG & (rows.column_1 < decoding.repel_first)).double()
    ends_PG = {token: weights_PGV[:, :, token].clone() for token in rules.stop}
    for token in rules.stop:
        weights_PGV[:, :, token] = 0.0
    taken_PGV = torch.zeros_like(weights_PGV)
    picked = []
    for g in range(G):
        left_PV = weights_PGV[:, g] * (-(decoding.repel * taken_PGV[:, g]).clamp(max=MOST)).exp()
        left_P1 = left_PV.sum(1, keepdim=True)
        # Exactly 1 where nobody took anything, so that then the draw is the plain one.
        scale_P1 = torch.where(left_P1 > 0, weights_PGV[:, g].sum(1, keepdim=True) / left_P1, 1.0)
        left_PV = left_PV * scale_P1
        for token, weight_PG in ends_PG.items():
            left_PV[:, token] = weight_PG[:, g]
        ids_P = invert(left_PV, uniform_PG[:, g])
        picked.append(ids_P)
        taken_PGV.scatter_add_(2, ids_P[:, None, None].expand(-1, G, 1), same_PGG[:, g, :, None])
    return torch.stack(picked, dim=1).flatten()[rows.index_R]


def _same_so_far(rows: Rows, first: int, siblings: int) -> Tensor:
    """(P, G, G): whether two siblings have the same tokens so far. From the next column on all hold padding."""
    ids_PGM = rows.ids_BT[:, :first].reshape(-1, siblings, min(first, rows.ids_BT.shape[1]))
    same_PGGM: Tensor = ids_PGM[:, :, None] == ids_PGM[:, None]
    return same_PGGM.all(-1)
