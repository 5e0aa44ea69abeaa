"""Specs of the catalogue as one objective, out of the tensors that a host hands to its loss. Axes: B completions, T tokens.

A host calls its loss with one micro-batch. What such a loss can be is in the catalogue: `policy_losses` are the methods that
need nothing but log-probs, old log-probs, advantages and a mask; a host that gives more (entropies, a reference model)
may add weights and regularisers. Choices over a whole optimiser step are refused: no host shows its loss the step.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from equipoise.catalogue.base import Method
from equipoise.catalogue.build import build, read_spec
from equipoise.catalogue.table import find_method, is_built, methods
from equipoise.errors import UsageError
from equipoise.objectives.batch import TokenBatch, unpadded
from equipoise.objectives.compose import Objective, Part, compose
from equipoise.objectives.ratio import log_ratio, token_ratio

POLICY = ("logp_BT", "old_logp_BT", "adv_BT", "mask_BT")
_SURROGATES = ("ratio_clip", "surrogate")
_COVARIANCE = "equipoise.objectives.covariance"

# Why some hosts cannot take some methods.
ONE_ROW = "it compares tokens of several completions, and {host} hands over one completion at a time"
SCALED = "it reads the size of the advantages, which {host} has divided by the tokens of the batch before the loss"
WHOLE_ROW = "it is one ratio per completion, divided by completions, and {host} adds up tokens"


def policy_losses() -> tuple[Method, ...]:
    """The catalogue's surrogates that need only log-probs, old log-probs, advantages and a mask of one micro-batch."""
    return tuple(
        row
        for row in methods()
        if row.kind in _SURROGATES and set(row.inputs) <= set(POLICY) and is_built(row) and not _step_wide(row)
    )


def covariance_losses() -> tuple[str, ...]:
    """Those of `policy_losses` that choose tokens by covariance: they compare completions and read the advantage's size."""
    return tuple(row.name for row in policy_losses() if row.target.startswith(_COVARIANCE))


def read_objective(
    specs: str | Sequence[str],
    *,
    host: str,
    gives: Collection[str] = POLICY,
    refused: Mapping[str, str] | None = None,
) -> Objective:
    """One surrogate (plain `clip` where none is named), any weights and regularisers, whose tensors the host gives.

    `refused` has methods that would not be themselves in this host, with the reason.
    """
    parts: dict[str, list[Any]] = {"surrogate": [], "weight": [], "regulariser": []}
    for spec in [specs] if isinstance(specs, str) else specs:
        name, _ = read_spec(spec)
        row = None if ":" in name else find_method(name)
        if row is not None:
            _check(row, host=host, gives=gives, refused=refused or {})
        kind = "surrogate" if row is None or row.kind in _SURROGATES else row.kind
        parts[kind].append(build(spec))
    if len(parts["surrogate"]) > 1:
        raise UsageError(f"an objective has one surrogate, found {len(parts['surrogate'])} in {specs!r}: keep one")
    surrogate = parts["surrogate"][0] if parts["surrogate"] else build("clip")
    return compose(surrogate, weights=parts["weight"], regularisers=parts["regulariser"])


def rows_of(tensors: Sequence[Tensor], *, fill: float = 0.0) -> Tensor:
    """Completions of different lengths as (B, T), `fill` behind their ends."""
    return torch.nn.utils.rnn.pad_sequence(list(tensors), batch_first=True, padding_value=fill)


def touched(loss_BT: Tensor, batch: TokenBatch) -> dict[str, float]:
    """Whether a control acts, as numbers to log: nothing where no gradient is asked for.

    touched      share of the tokens whose gradient is another than -r A, that of plain policy gradient
    policy_drift mean of ln pi_old - ln pi over the tokens, the usual estimate of KL(old, new)
    """
    tokens = batch.mask_BT.sum().clamp(min=1)
    drift = -log_ratio(batch.logp_BT.detach(), batch.old_logp_BT, batch.mask_BT).sum() / tokens
    found = {"policy_drift": float(drift)}
    if loss_BT.requires_grad and batch.logp_BT.requires_grad:
        (slope_BT,) = torch.autograd.grad(loss_BT.sum(), batch.logp_BT, retain_graph=True)
        ratio_BT = token_ratio(batch.logp_BT.detach(), batch.old_logp_BT, batch.mask_BT)
        plain_BT = -ratio_BT * unpadded(batch.adv_BT, batch.mask_BT)
        differs_BT = (slope_BT - plain_BT).abs() > 1e-5 * plain_BT.abs().clamp(min=1e-12)
        found["touched"] = float((differs_BT & batch.mask_BT).sum() / tokens)
    return found


def _check(row: Method, *, host: str, gives: Collection[str], refused: Mapping[str, str]) -> None:
    if row.kind not in (*_SURROGATES, "weight", "regulariser"):
        raise UsageError(
            f"{row.name} is no part of a loss (kind {row.kind}): {host}'s loss takes surrogates, weights and regularisers"
        )
    if row.name in refused:
        raise UsageError(f"{row.name} cannot run in {host}: {refused[row.name].format(host=host)}")
    if _step_wide(row):
        raise UsageError(
            f"{row.name} chooses over the whole step, and {host} shows its loss one micro-batch: use {row.name.removesuffix('_step')}"
        )
    lacking = [name for name in row.inputs if name not in gives]
    if lacking:
        raise UsageError(
            f"{row.name} needs {', '.join(lacking)}, which {host} does not give to its loss: it gives {', '.join(gives)}"
        )


def _step_wide(row: Method) -> bool:
    return Part.of(build(row.name)).step_wide
