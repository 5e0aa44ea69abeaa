"""A loss and reward shaping for slime (read: main of August 2026), by import path. Axes: B completions, T tokens, P groups, G each.

    --loss-type custom_loss --custom-loss-function-path equipoise.adapters.slime.policy_loss
    --custom-reward-post-process-path equipoise.adapters.slime.shape_rewards
    --custom-config-path equipoise.yaml        # equipoise_loss: ["gppo:beta_low=0.5", "entropy_bonus:coef=0.001"]
                                               # equipoise_advantage: "pkpo:k=8"

| slime | here |
| --- | --- |
| `logits`, through its own `get_log_probs_and_entropy` | logp_BT, entropy_BT (full softmax) |
| `batch["log_probs"]`, or `rollout_log_probs` with --use-rollout-logprobs | old_logp_BT; the current ones where slime kept none |
| `batch["advantages"]`, `loss_masks`, `ref_log_probs` | adv_BT, mask_BT, ref_logp_BT |
| `sum_of_sample_mean` | the reduction: slime's own |
| `sample.group_index`, `get_reward_value(args)` | the group, reward_PG |

`shape_rewards` replaces slime's own normalisation: what it returns is the advantage of a completion under --advantage-estimator
grpo. Entropies arrive here, so forking and entropy_bonus run too. gspo is refused: with context parallelism a completion is
split over ranks; slime has its own. Rollouts saved with --save-debug-rollout-data are torch pickles, which we do not read:
write JSON lines from a log hook, which `equipoise diagnose` reads as plain rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from equipoise.adapters.group_rows import advantage_of_rows, group_advantages
from equipoise.adapters.host_objective import POLICY, read_objective, rows_of, touched
from equipoise.catalogue.build import build, read_spec
from equipoise.errors import UsageError
from equipoise.objectives.batch import TokenBatch

GIVES = (*POLICY, "entropy_BT", "ref_logp_BT")
_GSPO = {"gspo": "it needs whole completions, which context parallelism splits over ranks; {host} has its own gspo"}


def policy_loss(
    args: Any, batch: Mapping[str, Any], logits: Tensor, sum_of_sample_mean: Callable[[Tensor], Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """slime's custom loss: `args.equipoise_loss` names the methods."""
    from slime.backends.megatron_utils.loss import get_log_probs_and_entropy  # type: ignore[import-not-found]

    objective = read_objective(
        _setting(args, "equipoise_loss", "clip_higher"), host="slime", gives=GIVES, refused=_GSPO
    )
    _, found = get_log_probs_and_entropy(
        logits,
        args=args,
        unconcat_tokens=batch["unconcat_tokens"],
        total_lengths=batch["total_lengths"],
        response_lengths=batch["response_lengths"],
        with_entropy=True,
    )
    logps, lengths = found["log_probs"], [len(each) for each in found["log_probs"]]
    kept = batch["rollout_log_probs"] if getattr(args, "use_rollout_logprobs", False) else batch.get("log_probs")
    olds = kept or [each.detach() for each in logps]
    # Every row keeps a place, so that an empty micro-batch still has a graph to the logits.
    step = TokenBatch(
        rows_of(logps),
        rows_of(olds),
        rows_of(batch["advantages"]).to(rows_of(logps).dtype),
        _inside(lengths, logits.device),
        entropy_BT=rows_of(found["entropy"]),
        ref_logp_BT=rows_of(batch["ref_log_probs"]) if batch.get("ref_log_probs") else None,
    )
    loss_BT = objective.terms(step).loss
    # slime's reducer takes the tokens of all completions in one row, and masks them itself.
    loss = sum_of_sample_mean(torch.cat([row[:n] for row, n in zip(loss_BT, lengths, strict=True)]))
    if not sum(lengths):
        loss = loss + 0 * logits.sum()
    metrics = {"loss": loss.detach().clone(), "entropy_loss": sum_of_sample_mean(torch.cat(found["entropy"])).detach()}
    acts = touched(loss_BT, step)
    return loss, metrics | {
        f"equipoise_{name}": torch.tensor(value, device=logits.device) for name, value in acts.items()
    }


def shape_rewards(args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
    """slime's reward post-processing: the raw rewards, and what `args.equipoise_advantage` makes of each group."""
    spec = _setting(args, "equipoise_advantage", "group_std")
    name, _ = read_spec(spec)
    known = [row.name for row in group_advantages()]
    if ":" not in name and name.replace("-", "_") not in known:
        raise UsageError(f"{name} is no advantage that slime's rewards and groups suffice for: {', '.join(known)} are")
    raw = [float(sample.get_reward_value(args)) for sample in samples]
    shaped = advantage_of_rows(
        build(spec), torch.tensor(raw).double().numpy(), [sample.group_index for sample in samples]
    )
    return raw, shaped.tolist()


def _setting(args: Any, name: str, otherwise: str) -> Any:
    return getattr(args, name, None) or otherwise


def _inside(lengths: Sequence[int], device: torch.device) -> Tensor:
    """(B, T): the places of a completion. slime's own masks act in its reducer, where they also set the denominator."""
    return torch.arange(max(lengths, default=0), device=device)[None, :] < torch.tensor(lengths, device=device)[:, None]
