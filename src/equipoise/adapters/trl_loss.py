"""Our terms beside TRL's loss, from the tensors of its own forward pass. Axes: B completions, T tokens.

TRL's loss is wrapped, not copied. Its `_compute_loss` asks for log-probs and entropies before it reads the advantages, so
that one call can be steered by what its own forward pass found:

    token weights        multiply the advantages; every loss type is homogeneous in them, so the loss is weighted
    another surrogate    TRL gets advantages of 0, which leaves of its loss the KL, the entropy bonus and the router's term
    regularisers         are added, divided as TRL divides its own loss
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from equipoise.adapters.trl_plan import Exploration
from equipoise.catalogue.build import build, read_spec
from equipoise.catalogue.paste import LOSS_GETS
from equipoise.errors import UsageError
from equipoise.objectives.batch import TokenBatch
from equipoise.objectives.compose import Chosen, Objective, compose

# Of what TRL gives (LOSS_GETS) these are read from the texts.
MARKS = ("planning_BT", "answer_BT")
GIVEN = "given_weights"  # the weight under which the entropy budget's own token weights enter
KEY = "equipoise/"  # what we put into TRL's batch, which it shuffles and splits with the rest


def host_loss(logp_BT: Tensor) -> Tensor:
    """Stands in for the surrogate where that is TRL's own."""
    return torch.zeros_like(logp_BT)


def build_objective(ours: Exploration) -> Objective:
    """The parts that are ours; refused where they need what TRL does not give."""
    weights = list(map(build, ours.weights))
    if any(read_spec(spec)[0] == "entropy_budget" for spec in ours.controllers):
        weights.append(build(f"equipoise.objectives.weights:{GIVEN}"))
    objective = compose(
        host_loss if ours.surrogate is None else build(ours.surrogate),
        weights=weights,
        regularisers=list(map(build, ours.regularisers)),
    )
    for part in objective.parts:
        lacking = [
            name for name, required in part.inputs.items() if required and name not in LOSS_GETS | {"step_tokens"}
        ]
        if lacking:
            raise UsageError(
                f"{part.name} needs {', '.join(lacking)}, and TRL gives log-probs and entropies of the tokens alone"
            )
    return objective


def reads(objective: Objective, name: str) -> bool:
    """Whether some part cannot do without this tensor, or would use it: a KL's reference log-probs, say."""
    return any(name in part.inputs for part in objective.parts)


def is_exact(objective: Objective) -> bool:
    """Whether some part is a KL from both softmaxes."""
    return any(part.settings.get("kind") == "exact" for part in objective.parts)


def loss_mask(inputs: Mapping[str, Any]) -> Tensor:
    """TRL's own: the tokens of the completion that no tool wrote."""
    mask: Tensor = inputs["completion_mask"]
    return mask if inputs.get("tool_mask") is None else mask * inputs["tool_mask"]


def token_batch(
    inputs: Mapping[str, Any], logp_BT: Tensor, entropy_BT: Tensor | None, ref_kl_BT: Tensor | None = None
) -> TokenBatch:
    """A micro-batch of TRL's. Where it keeps no old log-probs, the update is on-policy and the ratio exactly 1."""
    old_BT, adv = inputs.get("old_per_token_logps"), inputs["advantages"]
    marks = {name: inputs[KEY + name] for name in MARKS if KEY + name in inputs}
    return TokenBatch(
        logp_BT=logp_BT,
        old_logp_BT=logp_BT.detach() if old_BT is None else old_BT,
        adv_BT=(adv[:, None] if adv.dim() == 1 else adv).expand(logp_BT.shape),
        mask_BT=loss_mask(inputs).bool(),
        entropy_BT=entropy_BT,
        ref_logp_BT=inputs.get("ref_per_token_logps"),
        ref_kl_BT=ref_kl_BT,
        **marks,
    )


def reduce_as_trl(trainer: Any, term_BT: Tensor, inputs: Mapping[str, Any]) -> Tensor:
    """One number from a term per token, divided as TRL divides its loss: for the whole accumulated step, all ranks averaged.

    dapo, cispo, vespo   tokens of the step, over micro-batches and ranks
    bnpo                 tokens of the micro-batch
    grpo, sapo           tokens of each completion, then completions
    dr_grpo              completions times max_completion_length
    luspo                completions
    """
    mask = loss_mask(inputs)
    training: bool = trainer.model.training
    passes: int = trainer.current_gradient_accumulation_steps if training else 1
    term_BT = term_BT * mask
    if trainer.loss_type in ("dapo", "cispo", "vespo"):
        tokens: Tensor = inputs["num_items_in_batch"].clamp(min=1.0) / trainer.accelerator.num_processes
        return term_BT.sum() / (tokens * passes / trainer.args.steps_per_generation if training else tokens)
    if trainer.loss_type == "bnpo":
        return term_BT.sum() / mask.sum().clamp(min=1.0) / passes
    if trainer.loss_type in ("grpo", "sapo"):
        return (term_BT.sum(-1) / mask.sum(-1).clamp(min=1.0)).mean() / passes
    if trainer.loss_type == "dr_grpo":
        length: int = trainer.max_completion_length
        return term_BT.sum() / (len(term_BT) * length) / passes
    if trainer.loss_type == "luspo":
        return term_BT.sum(-1).mean() / passes
    raise UsageError(f"loss_type '{trainer.loss_type}' is not one that this adapter knows how to divide by")


class LossCall:
    """One call of TRL's `_compute_loss`: the inputs that it gets, and what our parts make of its forward pass."""

    def __init__(
        self, trainer: Any, objective: Objective, settings: Mapping[str, Any], inputs: Mapping[str, Any]
    ) -> None:
        self.trainer, self.objective, self.settings = trainer, objective, settings
        self.given = inputs
        self.inputs = dict(inputs)
        self.replaces = objective.surrogate.call is not host_loss
        if self.replaces:
            self.inputs["advantages"] = torch.zeros_like(inputs["advantages"])
        self.terms: dict[str, Tensor] = {}

    def seen(self, logp_BT: Tensor, entropy_BT: Tensor | None, ref_kl_BT: Tensor | None) -> None:
        """TRL's forward pass of this micro-batch, before its loss."""
        batch = token_batch(self.given, logp_BT, entropy_BT, ref_kl_BT)
        wide = {part.name: self.given[f"{KEY}{part.name}"] for part in self.objective.parts if part.step_wide}
        terms = self.objective.terms(batch, settings=self.settings, chosen=Chosen(wide))
        if self.replaces:
            surrogate_BT = terms.weighted
            ratio = self.given.get("importance_sampling_ratio")  # vLLM's, of the policy that sampled
            self.terms[self.objective.surrogate.name] = surrogate_BT if ratio is None else surrogate_BT * ratio
        elif terms.weight_BT is not None:
            self.inputs["advantages"] = batch.adv_BT * terms.weight_BT.detach()
        self.terms |= terms.regularisers

    def add_to(self, loss: Tensor) -> Tensor:
        """TRL's loss with our terms, each of them logged."""
        mode = "train" if self.trainer.model.training else "eval"
        for name, term_BT in self.terms.items():
            term = reduce_as_trl(self.trainer, term_BT, self.given)
            loss = loss + term
            logged = self.trainer.accelerator.gather(term.detach()).nanmean().item()
            self.trainer._metrics[mode][f"equipoise/{name}"].append(logged)
        return loss
