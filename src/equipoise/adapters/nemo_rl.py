"""A loss for NeMo-RL (read: main of August 2026), an object of its `LossFunction` protocol. Axes: B completions, T tokens.

    from equipoise.adapters.nemo_rl import PolicyLoss
    loss_fn = PolicyLoss(["gppo:beta_low=0.5", "kl:coef=0.01"])       # in place of ClippedPGLossFn(…) in your launch script

There is no config key for it: NeMo-RL's set-up builds its stock loss, so your launch script passes this one to `grpo_train`.

| NeMo-RL | here |
| --- | --- |
| `next_token_logprobs` (B, S - 1) | logp_BT |
| `data["prev_logprobs"]`, `["advantages"]`, `["reference_policy_logprobs"]`, from the second token on | old_logp_BT, adv_BT, ref_logp_BT |
| `data["token_mask"]` from the second token on, times `["sample_mask"]` | mask_BT |
| `global_valid_toks`, or `global_valid_seqs` with `level="sequence"` | what the terms are divided by |

The protocol could hand over logits, and with them entropies; this loss asks for log-probs, which every NeMo-RL backend has. Its
rollouts are read by `equipoise diagnose LOGS` (`train_data_stepN.jsonl`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from torch import Tensor

from equipoise.adapters.host_objective import POLICY, read_objective, touched
from equipoise.errors import UsageError
from equipoise.objectives.batch import TokenBatch
from equipoise.objectives.reduce import sequence_mean


class PolicyLoss:
    """Methods of the catalogue as a NeMo-RL loss."""

    def __init__(
        self, methods: str | Sequence[str] = "clip_higher", *, level: Literal["token", "sequence"] = "token"
    ) -> None:
        from nemo_rl.algorithms.loss.interfaces import LossInputType, LossType  # type: ignore[import-not-found]

        if level not in ("token", "sequence"):
            raise UsageError(f"level is 'token' or 'sequence', what the loss is divided by, found '{level}'")
        self.objective = read_objective(methods, host="NeMo-RL", gives=(*POLICY, "ref_logp_BT"))
        self.level = level
        self.loss_type = LossType.TOKEN_LEVEL if level == "token" else LossType.SEQUENCE_LEVEL
        self.input_type = LossInputType.LOGPROB

    def __call__(
        self,
        data: Mapping[str, Tensor],
        global_valid_seqs: Tensor,
        global_valid_toks: Tensor,
        *,
        next_token_logprobs: Tensor,
        **more: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        mask_BT = (data["token_mask"][:, 1:] * data["sample_mask"][:, None]).bool()
        reference = data.get("reference_policy_logprobs")
        batch = TokenBatch(
            next_token_logprobs,
            data["prev_logprobs"][:, 1:],
            data["advantages"][:, 1:],
            mask_BT,
            ref_logp_BT=None if reference is None else reference[:, 1:],
        )
        loss_BT = self.objective.terms(batch).loss
        # The counts are tensors over all ranks and micro-batches, 1 where NeMo-RL divides later.
        if self.level == "token":
            loss = loss_BT.sum() / (global_valid_toks + 1e-8)
        else:
            loss = sequence_mean(loss_BT, mask_BT, step_sequences=1) / (global_valid_seqs + 1e-8)
        metrics = {f"equipoise_{name}": value for name, value in touched(loss_BT, batch).items()}
        return loss, {"loss": float(loss.detach()), "num_valid_samples": int(data["sample_mask"].sum()), **metrics}
