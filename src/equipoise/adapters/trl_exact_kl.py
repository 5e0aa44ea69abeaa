"""The exact KL to TRL's reference model, from both models' hidden states. Axes: B completions, T tokens, S prompt and completion, D width.

TRL's fused head keeps no softmax. The policy's states are those of the loss's own forward pass, caught on their way to the head; the
reference model runs once more at each pass, without gradients. Logits of both are made some positions at a time and made again
for the gradient (`models.exact_kl`), so that no (B, T, vocabulary) is held.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from equipoise.adapters.trl_loss import loss_mask
from equipoise.adapters.trl_step import forward_inputs
from equipoise.errors import UsageError
from equipoise.models.exact_kl import exact_kl
from equipoise.models.language_model import Head

CHECKED = 8  # tokens whose log-probs must be TRL's, once


class ExactKL:
    """KL(π‖π_ref) at every token of a micro-batch, at TRL's temperature, with gradients."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        if trainer.ref_model is None:
            raise UsageError(
                "an exact kl needs a reference model of its own, and TRL loads none beside an adapter of PEFT: use kind=k2 or k3"
            )
        self._states: Tensor | None = None
        self._open, self._checked = False, False
        trainer.accelerator.unwrap_model(trainer.model).base_model.register_forward_hook(self._catch)

    def open(self) -> None:
        """The next forward pass of the policy is that of a loss."""
        self._open, self._states = True, None

    def close(self) -> None:
        self._open, self._states = False, None

    def _catch(self, module: Any, given: Any, output: Any) -> None:
        if self._open:
            self._states = getattr(output, "last_hidden_state", None)

    def of(self, inputs: Mapping[str, Any], logp_BT: Tensor) -> Tensor:
        """(B, T), 0 where TRL's mask is. `logp_BT`: what TRL found in the pass that was caught."""
        trainer, states_BSD = self.trainer, self._states
        model, reference = (trainer.accelerator.unwrap_model(each) for each in (trainer.model, trainer.ref_model))
        for each in (model, reference):
            refuse_sharded(each, needed_by="an exact kl")
        ids, mask, width = forward_inputs(inputs)
        if states_BSD is None or states_BSD.shape[:2] != ids.shape:
            raise UsageError(
                f"an exact kl reads the last hidden states of a pass, which {type(model).__name__} does not show: use kind=k2 or k3"
            )
        with torch.no_grad(), trainer.accelerator.autocast():
            ref_BSD = reference.base_model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
        there_BT = loss_mask(inputs).bool()
        states_ND, ref_ND = (each_BSD[:, -width - 1 : -1][there_BT] for each_BSD in (states_BSD, ref_BSD))
        head, ref_head = _head(model), _head(reference)
        with torch.autocast(ids.device.type, enabled=False):
            if not self._checked:
                self._check(states_ND.detach(), head, inputs["completion_ids"][there_BT], logp_BT.detach()[there_BT])
            kl_N = exact_kl(states_ND, head, ref_ND, ref_head, temperature=trainer.temperature)
        return torch.zeros(there_BT.shape, dtype=kl_N.dtype, device=kl_N.device).masked_scatter(there_BT, kl_N)

    @torch.no_grad()
    def _check(self, states_ND: Tensor, head: Head, ids_N: Tensor, logp_N: Tensor) -> None:
        """Refuse a model whose logits are more than states · weight + bias: soft-capped or scaled ones, say."""
        some = slice(0, CHECKED)
        ours = (head.logits(states_ND[some]) / self.trainer.temperature).log_softmax(-1)
        apart = (ours.gather(1, ids_N[some, None]).squeeze(1) - logp_N[some]).abs()
        close = 1e-3 if states_ND.dtype in (torch.float32, torch.float64) else 0.1
        if bool((apart > close * (1 + logp_N[some].abs())).any()):
            raise UsageError(
                f"an exact kl needs logits that are states · weight + bias, and the log-probs of this model differ from that by "
                f"{float(apart.max()):.2g}: use kind=k2 or k3"
            )
        self._checked = len(ids_N) > 0


def refuse_sharded(model: Any, *, needed_by: str) -> None:
    """Whole weights on every rank: under DDP and ZeRO 1 and 2 they are."""
    wrapped = any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules())
    if wrapped or any(hasattr(p, "ds_id") or hasattr(p, "full_tensor") for p in model.parameters()):
        raise UsageError(
            f"{needed_by} needs whole weights on every rank, and these are sharded: use DDP or ZeRO 1 or 2, or leave it out"
        )


def _head(model: Any) -> Head:
    output = model.get_output_embeddings()
    return Head(output.weight, getattr(output, "bias", None))
