"""`TokenBatch`: the tensors that objectives read. Axes: B completions, T tokens, K candidates for one token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from equipoise.errors import UsageError, same_shape

Index = int | slice | Sequence[int] | Tensor

# Who gives a tensor that a batch may lack, for the message of whoever needs it.
SUPPLIERS = {
    "entropy_BT": "the full softmax at the sampling temperature (models.token_stats, TRL's entropies, verl's entropy)",
    "drift_BT": "models.token_stats, the sum of p^2 (ln p + H) over the vocabulary",
    "ref_logp_BT": "a forward pass of the reference model over the same tokens",
    "ref_kl_BT": "both full softmaxes at each position, current and reference; with log-probs alone use k1, k2 or k3",
    "top_logp_BTK": "the log-probs of the likeliest candidates at each position",
    "planning_BT": "the planning spans of the texts (equipoise.text.planning), laid over the tokens",
    "answer_BT": "the answer spans of the texts (equipoise.text.answers), laid over the tokens",
}


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """What one forward pass knows of B completions, and the size of the optimiser step that they are part of.

    A tensor that was not measured is None. Values under the padding, where `mask_BT` is False, are never read, nan
    included. `step_tokens` and `step_sequences` count the real tokens, and the completions with at least one, of the whole
    step: all micro-batches on all ranks. Left out, they are this batch's own. Take log-probs in float32: rounded to
    bfloat16, their ratios are biased upwards (https://arxiv.org/abs/2603.11682).
    """

    logp_BT: Tensor  # of the tokens taken, under the policy that is trained
    old_logp_BT: Tensor  # of the same tokens under the policy that sampled them
    adv_BT: Tensor
    mask_BT: Tensor  # bool: a token to learn from
    entropy_BT: Tensor | None = None  # nats
    drift_BT: Tensor | None = None  # sum over the vocabulary of p^2 (ln p + H)
    ref_logp_BT: Tensor | None = None
    ref_kl_BT: Tensor | None = None  # exact KL to the reference model at each position
    top_logp_BTK: Tensor | None = None
    planning_BT: Tensor | None = None  # bool
    answer_BT: Tensor | None = None  # bool
    step_tokens: int = None  # type: ignore[assignment]  # filled at construction
    step_sequences: int = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        for name in ("logp_BT", "old_logp_BT", "adv_BT", "mask_BT"):
            if getattr(self, name) is None:
                raise UsageError(f"a batch needs {name}: only what an objective may do without can be None")
        for name, tensor in _tensors(self).items():
            _check_one(name, tensor)
        if self.logp_BT.dim() != 2:
            raise UsageError(f"logp_BT must be (completions, tokens), found shape {tuple(self.logp_BT.shape)}")
        flat = {name: tensor for name, tensor in _tensors(self).items() if name != "top_logp_BTK"}
        if self.top_logp_BTK is not None:
            if self.top_logp_BTK.dim() != 3:
                found = tuple(self.top_logp_BTK.shape)
                raise UsageError(f"top_logp_BTK must be (completions, tokens, candidates), found shape {found}")
            flat["top_logp_BTK[..., 0]"] = self.top_logp_BTK[..., 0]
        same_shape(**flat)
        if self.step_tokens is None:
            object.__setattr__(self, "step_tokens", int(self.mask_BT.sum()))
        if self.step_sequences is None:
            object.__setattr__(self, "step_sequences", int(self.mask_BT.any(dim=1).sum()))
        for name in ("step_tokens", "step_sequences"):
            count = getattr(self, name)
            if not isinstance(count, int) or isinstance(count, bool) or count < 0:
                raise UsageError(f"{name} must be a whole number of the step's {name[5:]}, found {count!r}")

    def rows(self, index: Index) -> TokenBatch:
        """Some completions of the same step: its counts stay."""
        taken: dict[str, Any] = {name: take_rows(tensor, index) for name, tensor in _tensors(self).items()}
        return replace(self, **taken)

    def detached(self) -> TokenBatch:
        """The same numbers without their graph."""
        return replace(self, **{name: tensor.detach() for name, tensor in _tensors(self).items()})


FIELDS = frozenset(field.name for field in fields(TokenBatch))


def take_rows(tensor: Tensor, index: Index) -> Tensor:
    """Rows by slice, positions or mask. One position gives one row, not a lost axis."""
    if isinstance(index, int):
        index = [index]
    if isinstance(index, slice | Tensor):
        return tensor[index]
    return tensor[torch.as_tensor(list(index), dtype=torch.long, device=tensor.device)]


def need(**tensors: Tensor | None) -> None:
    """Refuse a missing tensor, saying who gives it, and silent broadcasting."""
    for name, tensor in tensors.items():
        if tensor is None:
            raise missing(name)
    same_shape(**tensors)


def missing(name: str, *, needed_by: str = "this objective") -> UsageError:
    supplier = SUPPLIERS.get(name)
    where = f": it comes from {supplier}" if supplier else ""
    return UsageError(f"{needed_by} needs {name}, which this batch does not have{where}")


def unpadded(tensor_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """0 under the padding, before any function that could make nan of what stands there."""
    return torch.where(mask_BT, tensor_BT, 0.0)


def _tensors(batch: TokenBatch) -> dict[str, Any]:
    values = {name: getattr(batch, name) for name in batch.__slots__ if not name.startswith("step_")}
    return {name: value for name, value in values.items() if value is not None}


def _check_one(name: str, tensor: Any) -> None:
    if not isinstance(tensor, Tensor):
        raise UsageError(f"{name} must be a torch tensor, found {type(tensor).__name__}")
    if name in ("mask_BT", "planning_BT", "answer_BT"):
        if tensor.dtype != torch.bool:
            raise UsageError(f"{name} must be bool, found {tensor.dtype}: compare with 0 first")
    elif not tensor.is_floating_point():
        raise UsageError(f"{name} must be floating-point, found {tensor.dtype}")
