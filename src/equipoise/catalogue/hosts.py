"""Hosts and their keys for our settings. `clip_low` and `clip_high` are distances from 1, shares are 0 to 1."""

from __future__ import annotations

from collections.abc import Mapping

from equipoise.catalogue.base import Host, Setting

_ACTOR = "actor_rollout_ref.actor"
_LOSS = f"{_ACTOR}.policy_loss"
_OVERLONG = "+reward.reward_kwargs.overlong_buffer_cfg"  # not in the shipped YAML, so Hydra wants the plus

TRL = Host(
    "trl",
    "TRL GRPOConfig",
    "1.14 to 1.16",
    {
        "clip_low": Setting("epsilon"),
        "clip_high": Setting("epsilon_high", "with loss_type='cispo' the cap itself (say 5.0), not a distance from 1"),
        "entropy_bonus.coef": Setting("entropy_coef", "times the mean entropy per token, whatever the loss_type"),
        "adaptive_entropy.target": Setting("entropy_target"),
        "adaptive_entropy.step": Setting("entropy_coef_delta"),
        "adaptive_entropy.max": Setting("entropy_coef_max"),
        "adaptive_entropy.min": Setting("entropy_coef_min"),
        "adaptive_entropy.start": Setting("entropy_coef"),
        "forking.share": Setting("top_entropy_quantile", "the share kept; quantile over the current micro-batch"),
        "constant_length.length": Setting("max_completion_length", "what loss_type='dr_grpo' divides by"),
        "kl.coef": Setting("beta", "k3 estimate, times the ratio unless use_bias_correction_kl=False"),
        "temperature": Setting("temperature"),
        "group_size": Setting("num_generations"),
        "std_scaling": Setting("scale_rewards", values={True: "group", False: "none"}),
        "mask_truncated": Setting("mask_truncated_completions"),
        "max_completion_length": Setting("max_completion_length"),
        "reward_weights": Setting("reward_weights", "one per reward function, in their order"),
        "updates_per_batch": Setting("num_iterations", "passes over each batch of completions"),
    },
    off_policy=(
        "on-policy by default: ratio clips and log-ratio penalties act only with num_iterations > 1, "
        "or steps_per_generation above gradient_accumulation_steps"
    ),
    notes=("no dynamic sampling: only the metric frac_reward_zero_std",),
)

VERL = Host(
    "verl",
    "verl Hydra overrides",
    "0.9.0 to 0.9.1",
    {
        "clip_low": Setting(f"{_ACTOR}.clip_ratio_low", "actor.clip_ratio alone does nothing: low and high are both set"),
        "clip_high": Setting(f"{_ACTOR}.clip_ratio_high", "a distance from 1 for loss_mode=cispo too"),
        "entropy_bonus.coef": Setting(f"{_ACTOR}.entropy_coeff", "aggregated with loss_agg_mode, which sets its strength"),
        "clip_cov.share": Setting(f"{_LOSS}.clip_cov_ratio"),
        "clip_cov.low": Setting(f"{_LOSS}.clip_cov_lb"),
        "clip_cov.high": Setting(f"{_LOSS}.clip_cov_ub"),
        "kl_cov.share": Setting(f"{_LOSS}.kl_cov_ratio"),
        "kl_cov.coef": Setting(f"{_LOSS}.ppo_kl_coef"),
        "kl.coef": Setting(f"{_ACTOR}.kl_loss_coef"),
        "dynamic_sampling.metric": Setting("algorithm.filter_groups.metric", "'reward', or a key that the reward function returns"),
        "soft_overlong.buffer": Setting(f"{_OVERLONG}.len"),
        "soft_overlong.penalty": Setting(f"{_OVERLONG}.penalty_factor"),
        "soft_overlong.limit": Setting("+reward.reward_kwargs.max_resp_len", "set it to data.max_response_length"),
        "temperature": Setting("actor_rollout_ref.rollout.temperature"),
        "group_size": Setting("actor_rollout_ref.rollout.n"),
        "std_scaling": Setting("algorithm.norm_adv_by_std_in_grpo"),
        "max_completion_length": Setting("data.max_response_length"),
        "updates_per_batch": Setting(f"{_ACTOR}.ppo_epochs", "passes; each is train_batch_size / ppo_mini_batch_size updates"),
    },
    off_policy="off-policy by default: train_batch_size / ppo_mini_batch_size = 1024 / 256 updates follow one batch",
    notes=("loss modes are named with underscores: clip_cov, kl_cov", "no masking of truncated responses"),
)  # fmt: skip

EQUIPOISE = Host(
    "equipoise",
    "equipoise recipe",
    "this release",
    {
        name: Setting(name)
        for name in (
            *("clip_low", "clip_high", "temperature", "group_size", "std_scaling", "mask_truncated"),
            *("max_completion_length", "reward_weights", "updates_per_batch"),
        )
    },
    ours="equipoise.training.loop",
    off_policy="learning.updates above 1",
)

GATEWAY = Host(
    "gateway",
    "request to the equipoise gateway",
    "this release",
    {
        "max_tokens": Setting(
            "max_completion_tokens", "of one completion; all of them together are bounded by the budget"
        ),
        "n": Setting("n", "answers returned; how many are drawn is the strategy's"),
        "temperature": Setting("temperature"),
        "strategy": Setting("controller.strategy"),
        "budget": Setting("controller.budget", "tokens of all completions together"),
        "cap.tokens": Setting("controller.thinking_budget"),
    },
    ours="equipoise.gateway",
)

OPENAI = Host(
    "openai",
    "request to an OpenAI-compatible server",
    "openai 3.49",
    {
        "max_tokens": Setting("max_completion_tokens", "older servers know only max_tokens"),
        "n": Setting("n"),
        "temperature": Setting("temperature"),
        "cap.tokens": Setting(
            "extra_body.thinking_token_budget",
            "vLLM only, with a reasoning parser; leave room for the answer in max_tokens",
        ),
    },
)

HOSTS: Mapping[str, Host] = {host.name: host for host in (TRL, VERL, EQUIPOISE, GATEWAY, OPENAI)}
