"""The whole generation batch, before its first update: what is decided over all of its tokens. Axes: B rows here, T tokens, V vocabulary.

TRL shuffles the batch that `_generate_and_score_completions` returns and splits it into micro-batches. What is put into it here,
one row per completion, arrives with the rows that it belongs to. A choice over the step costs one pass without gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha1
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.adapters.trl_loss import GIVEN, KEY, loss_mask, token_batch
from equipoise.base import Tally
from equipoise.objectives.batch import TokenBatch
from equipoise.objectives.compose import Objective
from equipoise.shaping.controllers import tally_tokens
from equipoise.shaping.entropy_budget import Account, EntropyBudget, predict_change, weigh_spenders

LOGIT_TOKENS = 4096  # positions whose logits are held at once: 0.8 GB with a vocabulary of 50 thousand
# What a model with images takes besides token ids, as TRL keeps it in its batch.
_FORWARD = (
    *("pixel_values", "image_grid_thw", "num_images", "pixel_attention_mask", "spatial_shapes", "num_tiles"),
    *("image_sizes", "token_type_ids", "mm_token_type_ids", "image_position_ids"),
)


def gather_rows(trainer: Any, rows: Tensor) -> Tensor:
    """The rows of all ranks, in their order; what is padded on the right is 0."""
    accelerator = trainer.accelerator
    if accelerator.num_processes == 1:
        return rows
    sent = rows.to(torch.uint8) if rows.dtype == torch.bool else rows
    gathered: Tensor = accelerator.gather(accelerator.pad_across_processes(sent, dim=1) if sent.dim() > 1 else sent)
    return gathered.to(rows.dtype)


def gather_lists(trainer: Any, values: Sequence[Any]) -> list[Any]:
    """Plain values of all ranks, in their order."""
    if trainer.accelerator.num_processes == 1:
        return list(values)
    held: list[Any] = [None] * trainer.accelerator.num_processes
    torch.distributed.all_gather_object(held, list(values))
    return [value for part in held for value in part]


def own_rows(trainer: Any, rows: Any, n_own: int) -> Any:
    """This rank's part of what was gathered."""
    first = trainer.accelerator.process_index * n_own
    return rows[first : first + n_own]


def weighed(rewards_NF: Tensor, weights_F: Tensor) -> Tensor:
    """TRL's reward of each completion: the weighted sum of what its functions gave, nan where none gave anything."""
    reward_N = (rewards_NF * weights_F.to(rewards_NF.device)).nansum(dim=1)
    return torch.where(rewards_NF.isnan().all(dim=1), torch.nan, reward_N)


def prompt_key(ids: list[int]) -> str:
    """A problem's name, the same in every step and run with this tokenizer."""
    return sha1(np.asarray(ids, dtype=np.int32).tobytes()).hexdigest()[:16]


def completion_tokens(trainer: Any, inputs: Mapping[str, Any]) -> Tensor:
    """(B, T) bool: the tokens of each completion. TRL's mask is empty where mask_truncated_completions took a completion out."""
    ids, mask = inputs["completion_ids"], inputs["completion_mask"].bool()
    after = (
        (ids != trainer._tokenizer.pad_token_id).int().flip(1).cummax(dim=1).values.flip(1).bool()
    )  # up to the last token that is no padding
    return torch.where(mask.any(dim=1, keepdim=True), mask, after)


def forward_inputs(inputs: Mapping[str, Any]) -> tuple[Tensor, Tensor, int]:
    """Token ids with their attention mask, and how many positions are completions."""
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
    mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
    return ids, mask, inputs["completion_ids"].size(1)


def choose_over_step(trainer: Any, objective: Objective, settings: Mapping[str, Any], inputs: dict[str, Any]) -> None:
    """Put the choices of parts that act on the whole step into the batch: all rows of all ranks, under the policy as it is now."""
    wide = [part.name for part in objective.parts if part.step_wide and part.name != GIVEN]
    if not wide:
        return
    ids, mask, width = forward_inputs(inputs)
    more = {name: inputs[name] for name in _FORWARD if inputs.get(name) is not None}
    with torch.no_grad():
        found = trainer._get_per_token_logps_and_entropies(
            trainer.model, ids, mask, width, batch_size=rows_at_once(trainer), compute_entropy=True, **more
        )
    here = token_batch(inputs, found[0], found[1])
    tensors = {name: getattr(here, name) for name in TokenBatch.__slots__ if not name.startswith("step_")}
    whole: dict[str, Any] = {n: gather_rows(trainer, t.contiguous()) for n, t in tensors.items() if t is not None}
    step = TokenBatch(**whole)
    given = {GIVEN: torch.ones_like(step.logp_BT)} if any(part.name == GIVEN for part in objective.parts) else {}
    chosen = objective.prepare(step, settings=settings, given=given)
    for name in wide:
        inputs[KEY + name] = own_rows(trainer, chosen.by_part[name], len(ids))[:, :width]


def weigh_by_budget(trainer: Any, budget: EntropyBudget, inputs: dict[str, Any]) -> float:
    """Put the entropy budget's weights into the batch; the weight of the tokens that spend entropy.

    TRL's log-probs and entropies do not hold Σp²(ln p + H), so this pass looks at the logits, some rows at a time.
    """
    mask_BT = loss_mask(inputs).bool()
    logp_BT, entropy_BT, drift_BT = (t.cpu().double().numpy() for t in token_moments(trainer, inputs))
    adv = inputs["advantages"]
    adv_BT = (adv[:, None] if adv.dim() == 1 else adv).expand(mask_BT.shape).cpu().double().numpy()
    mask = mask_BT.cpu().numpy()
    change_BT = predict_change(logp_BT, entropy_BT, drift_BT, adv_BT, mask)
    own = Account.of(change_BT, mask)
    n, earned, spent = summed(trainer, [own.n, own.earned, own.spent])
    account = Account(round(n), earned, spent)
    weight = budget.weigh(account)
    weights_BT = weigh_spenders(change_BT, weight=weight)
    inputs[KEY + GIVEN] = torch.as_tensor(weights_BT, dtype=torch.float32, device=mask_BT.device)
    if trainer.model.training:
        seen = tally_tokens(entropy_BT, mask)
        n, total, squares = summed(trainer, [seen.n, seen.sum, seen.squares])
        budget.observe(Tally(round(n), total, squares), account.change(weight=weight))
    return weight


@torch.no_grad()
def token_moments(trainer: Any, inputs: Mapping[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    """ln p of the tokens taken, H and Σp²(ln p + H) at each position, at TRL's temperature: each (B, T)."""
    ids, mask, width = forward_inputs(inputs)
    found: list[tuple[Tensor, ...]] = []
    rows = max(LOGIT_TOKENS // ids.shape[1], 1)
    for start in range(0, len(ids), rows):
        part = slice(start, start + rows)
        logits_BTV = trainer.model(input_ids=ids[part], attention_mask=mask[part], use_cache=False).logits
        logp_BTV = (logits_BTV[:, -width - 1 : -1].float() / trainer.temperature).log_softmax(dim=-1)
        p_BTV = logp_BTV.exp()
        entropy_BT = -(p_BTV * logp_BTV).sum(dim=-1)
        drift_BT = (p_BTV.square() * (logp_BTV + entropy_BT[..., None])).sum(dim=-1)
        taken_BT = logp_BTV.gather(-1, ids[part, -width:, None]).squeeze(-1)
        found.append((taken_BT, entropy_BT, drift_BT))
    logp, entropy, drift = (torch.cat(parts) for parts in zip(*found, strict=True))
    return logp, entropy, drift


def rows_at_once(trainer: Any) -> int:
    args = trainer.args
    return int(args.per_device_train_batch_size if trainer.model.training else args.per_device_eval_batch_size)


def summed(trainer: Any, values: Sequence[float]) -> list[float]:
    """Numbers added over all ranks."""
    if trainer.accelerator.num_processes == 1:
        return list(values)
    device = trainer.accelerator.device
    kind = torch.float32 if device.type == "mps" else torch.float64
    tensor = torch.tensor(list(values), dtype=kind, device=device)
    return list(trainer.accelerator.reduce(tensor, reduction="sum").tolist())
