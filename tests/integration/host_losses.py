"""The losses of TRL and verl, run by their own code on tensors that we choose, and random steps to run them on.

Values and gradients are those by ln pi of each token. Nothing of a host is re-implemented here: verl's registered functions are
called as its workers call them; TRL's `_compute_loss` runs on a real trainer whose forward pass is replaced by the tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from equipoise.objectives.batch import TokenBatch
from equipoise.objectives.compose import Objective

# Hosts add 1e-8 to some denominators, verl to every mean over a completion.
CLOSE = {"rtol": 2e-8, "atol": 1e-12}


@dataclass(frozen=True)
class Graded:
    """A loss and its derivatives by the tensors that a model gives."""

    value: Tensor
    logp_BT: Tensor
    entropy_BT: Tensor


def random_step(
    seed: int,
    *,
    rows: int = 6,
    tokens: int = 11,
    drift: float = 0.5,
    token_advantages: bool = False,
    empty_row: bool = False,
    dtype: torch.dtype = torch.float64,
) -> TokenBatch:
    """Off-policy completions of different lengths with holes (tool output) in them, and rubbish under the padding.

    A tenth of the tokens has drifted six times as far, so that caps far from 1 are reached on both sides.
    """
    gen = torch.Generator().manual_seed(seed)
    shape = (rows, tokens)

    def normal() -> Tensor:
        return torch.randn(shape, generator=gen, dtype=torch.float64)

    old = -4 - 1.5 * normal().abs()
    far = 1 + 5 * (torch.rand(shape, generator=gen) < 0.1)
    logp = (old + drift * far * normal()).clamp(max=-0.001)
    adv = normal() if token_advantages else normal()[:, :1].expand(shape)
    entropy, ref = normal().abs(), logp + 0.3 * normal()
    lengths = torch.randint(2, tokens + 1, (rows, 1), generator=gen)
    mask = (torch.arange(tokens) < lengths) & (torch.rand(shape, generator=gen) < 0.9)
    mask[:, 0] = True
    if empty_row:
        mask[rows // 2] = False
    junk = torch.where(mask, 0.0, 3 * normal())
    given = {"logp_BT": logp, "old_logp_BT": old, "adv_BT": adv, "entropy_BT": entropy, "ref_logp_BT": ref}
    return TokenBatch(mask_BT=mask, **{name: (tensor + junk).to(dtype) for name, tensor in given.items()})


def with_leaves(step: TokenBatch) -> TokenBatch:
    leaves = {name: getattr(step, name).detach().clone().requires_grad_() for name in ("logp_BT", "entropy_BT")}
    return replace(step, **leaves)


def graded(value: Tensor, step: TokenBatch) -> Graded:
    found = torch.autograd.grad(
        value, [step.logp_BT, step.entropy_BT], allow_unused=True, materialize_grads=True, retain_graph=True
    )
    return Graded(value.detach(), *found)


def ours(objective: Objective, step: TokenBatch, **how: Any) -> Graded:
    step = with_leaves(step)
    return graded(objective(step, **how), step)


def assert_same(ours: Graded, host: Graded, **tolerance: float) -> None:
    """Equal values and equal gradients for every token, which are not all 0."""
    tolerance = tolerance or CLOSE
    assert host.logp_BT.abs().max() > 0
    torch.testing.assert_close(ours.value, host.value, **tolerance)
    torch.testing.assert_close(ours.logp_BT, host.logp_BT, **tolerance)
    torch.testing.assert_close(ours.entropy_BT, host.entropy_BT, **tolerance)


# ---------------------------------------------------------------- verl


def verl_config(
    *, info: Mapping[str, Any] | None = None, loss: Mapping[str, Any] | None = None, **settings: Any
) -> Any:
    """verl's typed actor config. `info` is the size of the step, as its workers fill it in."""
    from verl.workers.config import ActorConfig, PolicyLossConfig

    config = ActorConfig(
        strategy="fsdp",
        rollout_n=8,
        ppo_micro_batch_size_per_gpu=1,
        policy_loss=PolicyLossConfig(**(loss or {})),
        **settings,
    )
    config.global_batch_info.update(info or {})
    return config


def verl_loss(name: str, step: TokenBatch, *, mode: str = "token-mean", seed: int = 0, **config: Any) -> Graded:
    """A registered policy loss of verl. `seed` sets the global generator from which Clip-Cov draws."""
    from verl.trainer.ppo.core_algos import get_policy_loss_fn

    step = with_leaves(step)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        value, _ = get_policy_loss_fn(name)(
            old_log_prob=step.old_logp_BT,
            log_prob=step.logp_BT,
            advantages=step.adv_BT.clone(),
            response_mask=step.mask_BT,
            loss_agg_mode=mode,
            config=verl_config(**config),
        )
    return graded(value, step)


def verl_ppo_loss(step: TokenBatch, *, info: Mapping[str, Any], **config: Any) -> Graded:
    """The whole actor loss of verl's workers: policy loss, entropy bonus and KL to the reference, from unpadded outputs."""
    from tensordict import TensorDict
    from verl.workers.utils.losses import ppo_loss

    step = with_leaves(step)
    rows, tokens = step.mask_BT.shape
    # One prompt token each; outputs are shifted by one, so the last of a completion predicts nothing.
    last = torch.zeros(rows, 1, dtype=step.logp_BT.dtype)
    flat = {"log_probs": step.logp_BT, "entropy": step.entropy_BT}
    output = {name: torch.cat([tensor, last], dim=1).flatten() for name, tensor in flat.items()}
    data = TensorDict(
        {
            "prompts": torch.zeros(rows, 1, dtype=torch.long),
            "responses": torch.zeros(rows, tokens, dtype=torch.long),
            "attention_mask": torch.ones(rows, tokens + 1, dtype=torch.long),
            "response_mask": step.mask_BT.long(),
            "old_log_probs": step.old_logp_BT,
            "advantages": step.adv_BT,
            "ref_log_prob": step.ref_logp_BT,
        },
        batch_size=rows,
    )
    for key in ("dp_size", "batch_num_tokens", "global_batch_size"):
        data.set_non_tensor(key, info[key])
    value, _ = ppo_loss(verl_config(**config), output, data)
    return graded(value, step)


# ---------------------------------------------------------------- TRL


@contextmanager
def trl_settings(trainer: Any, **settings: Any) -> Iterator[None]:
    """Some of the trainer's settings, which `_compute_loss` reads anew at each call; `args.…` under their plain names."""
    held = {name: trainer if name in vars(trainer) else trainer.args for name in settings}
    missing = [name for name, owner in held.items() if not hasattr(owner, name)]
    assert not missing, f"TRL has no {missing}"
    before = {name: getattr(owner, name) for name, owner in held.items()}
    for name, value in settings.items():
        setattr(held[name], name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(held[name], name, value)


def trl_loss(
    trainer: Any, step: TokenBatch, *, adv_B: Tensor | None = None, on_policy: bool = False, **settings: Any
) -> Graded:
    """TRL's loss of some rows of a step, by its `_compute_loss`. It takes advantages of tokens and, `adv_B`, of completions."""
    step = with_leaves(step)
    rows, tokens = step.mask_BT.shape
    inputs = {
        "prompt_ids": torch.zeros(rows, 1, dtype=torch.long),
        "prompt_mask": torch.ones(rows, 1, dtype=torch.long),
        "completion_ids": torch.zeros(rows, tokens, dtype=torch.long),
        "completion_mask": step.mask_BT.long(),
        "advantages": step.adv_BT if adv_B is None else adv_B,
        "old_per_token_logps": None if on_policy else step.old_logp_BT,
        "ref_per_token_logps": step.ref_logp_BT,
        "num_items_in_batch": torch.tensor(float(step.step_tokens)),
    }
    forward: Callable[..., Any] = lambda *args, **kwargs: (step.logp_BT, step.entropy_BT, None)  # noqa: E731
    if "entropy_coef" in settings or "use_adaptive_entropy" in settings:
        settings["_entropy_bonus_enabled"] = True  # what its constructor derives from the two
    with trl_settings(trainer, **settings):
        trainer._get_per_token_logps_and_entropies = forward
        try:
            value = trainer._compute_loss(trainer.model, inputs)
        finally:
            del trainer._get_per_token_logps_and_entropies
    return graded(value, step)
