"""The names under which trainers log a step's scalars, as data: our name, the tool, its key, and how it made the number.

The same word is not the same quantity. `entropy` is the exact entropy of the full softmax in TRL and verl, minus the
mean log-prob of the sampled tokens in tinker and an importance-weighted version of that in NeMo-RL; a "KL" is to
the reference model, to the policy before the update, or between sampler and trainer. So each key carries what is
known of it, and the three KLs have three names. Read in TRL 1.16, verl 0.9.1, SkyRL 0.3.0, tinker-cookbook 0.5.8 and
OpenRLHF 0.11.2; prime-rl and NeMo-RL as of August 2026.

In a key, `<k>` is a number and any other `<…>` a stretch of text. Within one tool and name, earlier keys are preferred.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Split = Literal["train", "eval"]
How = dict[str, str]
Row = tuple[str, str, How]  # our name, the tool's key, what is known of the number

# Our names. Fractions are 0 to 1, lengths in tokens, entropies and KLs in nats.
NAMES: Mapping[str, str] = {
    "entropy": "policy entropy per token",
    "reward_mean": "mean reward",
    "reward_std": "standard deviation of the reward",
    "group_zero_std_frac": "share of groups whose completions all got the same reward: no gradient",
    "accuracy": "share of right answers",
    "pass_at_k": "{k: share of problems solved by at least one of k}, as reported",
    "maj_at_k": "{k: share of problems solved by the majority of k}, as reported",
    "clip_low": "share of tokens clipped at the lower bound (A < 0)",
    "clip_high": "share of tokens clipped at the upper bound (A > 0)",
    "clip_frac": "share of tokens clipped at either bound",
    "kl": "KL to the reference model",
    "kl_step": "KL between the policy before and after the update",
    "mismatch": "distance between the sampler's and the trainer's log-probs",
    "length_mean": "mean completion length",
    "truncated_frac": "share of completions cut at the length limit",
    "coef": "coefficient of the entropy bonus in force",
}
BY_K = ("pass_at_k", "maj_at_k")  # {k: value} instead of a number


@dataclass(frozen=True, slots=True)
class LogKey:
    """One key of one tool. What `how` does not say is not known."""

    name: str
    tool: str | None  # None: a name that people give to a column, whatever made the number
    key: str
    how: How = field(default_factory=dict)
    split: Split = "train"
    complement: bool = False  # the tool logs one minus our quantity


def _exact(temperature: str | None, aggregation: str, note: str | None = None) -> How:
    """The entropy of the full softmax, over the tokens of the response."""
    known = {"estimator": "exact, full softmax", "aggregation": aggregation, "mask": "response"}
    more = {"temperature": temperature, "note": note}
    return known | {key: value for key, value in more.items() if value is not None}


def _note(text: str) -> How:
    return {"note": text}


def _by(estimator: str) -> How:
    return {"estimator": estimator}


_NOTHING: How = {}
_REPORTED = "as reported"
_BOOTSTRAP = "as reported: resampled with replacement, so biased (one right of 4 reads 0.68 at k = 4, not 1)"
_OF_REWARD = "of the reward: a share of right answers only if rewards are 0 or 1"
_TOKENS: How = {"aggregation": "token mean"}

_TRL: tuple[Row, ...] = (
    ("entropy", "entropy", _exact("sampling", "token mean")),
    ("reward_mean", "reward", _note("weighted sum of the reward functions, before normalisation")),
    ("reward_std", "reward_std", {"aggregation": "over the whole batch (TRL 1.16), not within groups"}),
    ("group_zero_std_frac", "frac_reward_zero_std", _note("of batches, not groups, with scale_rewards='batch'")),
    ("clip_low", "clip_ratio/low_mean", _TOKENS),
    ("clip_high", "clip_ratio/high_mean", _TOKENS),
    ("clip_high", "cispo_clip_ratio", _note("CISPO: weights cut at epsilon_high; their gradient stays")),
    ("clip_frac", "clip_ratio/region_mean", _TOKENS),
    ("kl", "kl", _by("k3") | _TOKENS),
    ("mismatch", "sampling/sampling_logp_difference/mean", _by("mean |difference of log-probs|")),
    ("length_mean", "completions/mean_length", _NOTHING),
    ("truncated_frac", "completions/clipped_ratio", _NOTHING),
    ("coef", "entropy_coef", _NOTHING),
)

_VERL: tuple[Row, ...] = (
    ("entropy", "actor/entropy", _exact("sampling", "loss_agg_mode", "before the update")),
    ("entropy", "actor/entropy_loss", _exact("sampling", "loss_agg_mode", "the policy entropy, during the update")),
    ("reward_mean", "critic/score/mean", _note("before the KL penalty")),
    ("reward_mean", "critic/rewards/mean", _note("after the KL penalty, where that is in the reward")),
    ("clip_frac", "actor/pg_clipfrac", _TOKENS | _note("with clip_cov: only the tokens chosen by covariance")),
    ("kl", "actor/kl_loss", {"estimator": "kl_loss_type", "aggregation": "loss_agg_mode"}),
    ("kl", "actor/reward_kl_penalty", _by("kl_penalty")),
    ("kl", "critic/kl", _NOTHING),
    ("kl_step", "actor/ppo_kl", _by("k1, signed; with kl_cov its magnitude") | _TOKENS),
    ("mismatch", "rollout_corr/k3_kl", _by("k3")),
    ("mismatch", "rollout_corr/kl", _by("k1, signed")),
    ("mismatch", "training/rollout_probs_diff_mean", _by("mean |difference of probabilities|")),
    ("length_mean", "response_length/mean", _note("an aborted response counts as 0")),
    ("truncated_frac", "response_length/clip_ratio", _NOTHING),
)
_VERL_EVAL: tuple[Row, ...] = (
    ("accuracy", "val-core/<source>/acc/mean@<n>", _note(_REPORTED)),
    ("accuracy", "val-aux/<source>/acc/mean@<n>", _note(_REPORTED)),
    ("reward_mean", "val-core/<source>/reward/mean@<n>", _note(_REPORTED)),
    ("reward_mean", "val-aux/<source>/reward/mean@<n>", _note(_REPORTED)),
    ("reward_mean", "val/test_score/<source>", _note(_REPORTED)),
    ("pass_at_k", "val-core/<source>/acc/best@<k>/mean", _note(_BOOTSTRAP)),
    ("pass_at_k", "val-aux/<source>/acc/best@<k>/mean", _note(_BOOTSTRAP)),
    ("pass_at_k", "val-core/<source>/reward/best@<k>/mean", _note(f"{_BOOTSTRAP}; {_OF_REWARD}")),
    ("pass_at_k", "val-aux/<source>/reward/best@<k>/mean", _note(f"{_BOOTSTRAP}; {_OF_REWARD}")),
    ("maj_at_k", "val-core/<source>/acc/maj@<k>/mean", _note(_BOOTSTRAP)),
    ("maj_at_k", "val-aux/<source>/acc/maj@<k>/mean", _note(_BOOTSTRAP)),
    ("maj_at_k", "val-core/<source>/reward/maj@<k>/mean", _note(f"{_BOOTSTRAP}; {_OF_REWARD}")),
    ("maj_at_k", "val-aux/<source>/reward/maj@<k>/mean", _note(f"{_BOOTSTRAP}; {_OF_REWARD}")),
)

_SKYRL: tuple[Row, ...] = (
    ("entropy", "policy/policy_entropy", _exact("sampling", "mean of the micro-batches' token means")),
    ("reward_mean", "reward/avg_raw_reward", _note("before the KL penalty")),
    ("pass_at_k", "reward/avg_pass_at_<k>", _note(f"{_REPORTED}: share of groups with a positive reward")),
    ("clip_frac", "policy/loss_metrics/clip_ratio", _NOTHING),
    ("clip_frac", "policy/clip_ratio", _NOTHING),
    ("kl", "policy/policy_kl", _NOTHING),
    ("kl", "loss/avg_kl", _NOTHING),
    ("mismatch", "policy/rollout_train_logprobs_abs_diff_mean", _by("mean |difference of log-probs|")),
    ("length_mean", "generate/avg_num_tokens", _NOTHING),
)
_SKYRL_EVAL: tuple[Row, ...] = (
    ("reward_mean", "eval/all/avg_score", _note(_REPORTED)),
    ("reward_mean", "eval/<source>/avg_score", _note(_REPORTED)),
    ("pass_at_k", "eval/all/pass_at_<k>", _note(f"{_REPORTED}: share of groups with a positive reward")),
    ("pass_at_k", "eval/<source>/pass_at_<k>", _note(f"{_REPORTED}: share of groups with a positive reward")),
)

_SAMPLED: How = {"temperature": "sampling", "aggregation": "token mean", "mask": "response"}
_TINKER: tuple[Row, ...] = (
    ("entropy", "optim/entropy", _by("minus the mean log-prob of the sampled tokens") | _SAMPLED),
    ("reward_mean", "env/all/reward/total", _NOTHING),
    ("accuracy", "env/all/correct", _NOTHING),
    ("mismatch", "optim/kl_sample_train_v2", _by("k2")),
    ("mismatch", "optim/kl_sample_train_v1", _by("k1, signed")),
    ("length_mean", "env/all/ac_tokens_per_turn", _note("per turn")),
)
_TINKER_EVAL: tuple[Row, ...] = (
    ("reward_mean", "test/env/all/reward/total", _NOTHING),
    ("accuracy", "test/env/all/correct", _NOTHING),
)

_PRIME: tuple[Row, ...] = (
    ("entropy", "entropy/all/mean", _exact(None, "token mean")),
    ("entropy", "entropy/mean", _exact(None, "token mean")),
    ("reward_mean", "train/agg/all/reward/mean", _note("every rollout, before filters")),
    ("reward_mean", "reward/all/mean", _NOTHING),
    ("reward_mean", "reward/mean", _NOTHING),
    ("mismatch", "mismatch_kl/all/mean", _NOTHING),
    ("mismatch", "mismatch_kl/mean", _NOTHING),
    ("length_mean", "train/agg/all/num_output_tokens/mean", _NOTHING),
    ("truncated_frac", "train/agg/all/is_truncated/mean", _NOTHING),
    ("truncated_frac", "is_truncated/all/mean", _NOTHING),
    ("truncated_frac", "is_truncated/mean", _NOTHING),
)
_PRIME_EVAL: tuple[Row, ...] = (
    ("reward_mean", "eval/<source>/avg@<n>", _note(_REPORTED)),
    ("pass_at_k", "eval/<source>/pass@<k>", _note(f"{_REPORTED}: unbiased, given only for 0/1 rewards")),
)

_NEMO: tuple[Row, ...] = (
    ("entropy", "train/approx_entropy", _by("sampled tokens, importance-weighted") | _TOKENS | {"mask": "response"}),
    ("reward_mean", "train/reward", _NOTHING),
    ("kl", "train/kl_penalty", _by("reference_policy_kl_type")),
    ("mismatch", "train/gen_kl_error", _by("reference_policy_kl_type")),
    ("mismatch", "train/token_mult_prob_error", _by("mean exp |difference of log-probs|: 1 is none")),
    ("length_mean", "train/mean_gen_tokens_per_sample", _NOTHING),
)
_NEMO_EVAL: tuple[Row, ...] = (("accuracy", "validation/accuracy", _note(_REPORTED)),)

_OPENRLHF: tuple[Row, ...] = (
    ("entropy", "train/entropy_loss", _exact("sampling", "token mean", "unscaled logits before OpenRLHF#1319")),
    ("reward_mean", "train/reward", _note("after length penalties")),
    ("clip_frac", "train/ppo_clip_ratio", _NOTHING),
    ("kl", "train/kl", _note("0 where no reference model enters the reward")),
    ("length_mean", "train/response_length", _NOTHING),
    ("truncated_frac", "train/truncated", _NOTHING),
)
_OPENRLHF_EVAL: tuple[Row, ...] = (
    ("pass_at_k", "eval/eval_<source>_pass<k>", _note(f"{_REPORTED}: mean of the best reward; {_OF_REWARD}")),
    ("length_mean", "eval/eval_response_length_mean", _NOTHING),
    ("truncated_frac", "eval/eval_truncated_rate", _NOTHING),
)

_OURS: tuple[Row, ...] = tuple(
    (name, f"{name}/<k>" if name in BY_K else name, _exact("sampling", "token mean") if name == "entropy" else _NOTHING)
    for name in NAMES
)

# Names that people give to columns. What made the number is not known, so nothing is said of it.
_PLAIN: Mapping[str, tuple[str, ...]] = {
    "entropy": ("entropy", "policy_entropy", "entropy_mean", "mean_entropy"),
    "reward_mean": ("reward_mean", "mean_reward", "reward", "score"),
    "reward_std": ("reward_std",),
    "group_zero_std_frac": ("group_zero_std_frac", "frac_reward_zero_std"),
    "accuracy": ("accuracy", "acc"),
    "pass_at_k": ("pass@<k>", "pass_at_<k>", "pass_at_k/<k>"),
    "maj_at_k": ("maj@<k>", "maj_at_<k>", "maj_at_k/<k>"),
    "clip_low": ("clip_low",),
    "clip_high": ("clip_high",),
    "clip_frac": ("clip_frac", "clipfrac"),
    "kl": ("kl",),
    "kl_step": ("kl_step",),
    "mismatch": ("mismatch",),
    "length_mean": ("length_mean", "mean_length", "response_length", "avg_gen_tokens"),
    "truncated_frac": ("truncated_frac", "truncated_rate"),
    "coef": ("coef", "entropy_coef"),
}

# The Hugging Face Trainer writes `eval_x` to its state and `train/x`, `eval/x` to TensorBoard and W&B.
_PREFIXES: tuple[tuple[str, Split], ...] = (("", "train"), ("train/", "train"), ("eval_", "eval"), ("eval/", "eval"))


def _all() -> Iterable[LogKey]:
    ours: tuple[tuple[str, Split], ...] = (("explore/", "train"), ("explore/eval/", "eval"))
    yield from (LogKey(name, "equipoise", p + key, how, split) for p, split in ours for name, key, how in _OURS)
    yield from (LogKey(name, "trl", p + key, how, split) for p, split in _PREFIXES for name, key, how in _TRL)
    tables: dict[str, tuple[tuple[Row, ...], tuple[Row, ...]]] = {
        "verl": (_VERL, _VERL_EVAL),
        "skyrl": (_SKYRL, _SKYRL_EVAL),
        "tinker": (_TINKER, _TINKER_EVAL),
        "prime-rl": (_PRIME, _PRIME_EVAL),
        "nemo-rl": (_NEMO, _NEMO_EVAL),
        "openrlhf": (_OPENRLHF, _OPENRLHF_EVAL),
    }
    for tool, (train, evaluation) in tables.items():
        yield from (LogKey(name, tool, key, how) for name, key, how in train)
        yield from (LogKey(name, tool, key, how, "eval") for name, key, how in evaluation)
    mixed = "env/all/by_group/frac_mixed"
    yield LogKey("group_zero_std_frac", "tinker", mixed, _note("1 - frac_mixed"), complement=True)
    prefixes: tuple[tuple[str, Split], ...] = (*_PREFIXES, ("val_", "eval"), ("val/", "eval"))
    for prefix, split in prefixes:
        for name, keys in _PLAIN.items():
            how = _note(_REPORTED) if name in BY_K else _NOTHING
            yield from (LogKey(name, None, prefix + key, how, split) for key in keys)


KEYS: tuple[LogKey, ...] = tuple(_all())

_TRL_ONLY = ("completions/mean_length", "completions/clipped_ratio", "clip_ratio/low_mean", "clip_ratio/region_mean")

# Keys that only this tool writes: one of them in a file tells where the file is from.
MARKERS: Mapping[str, tuple[str, ...]] = {
    "trl": tuple(prefix + key for prefix, _ in _PREFIXES for key in _TRL_ONLY),
    "verl": (
        *("actor/entropy", "actor/entropy_loss", "actor/pg_loss", "actor/pg_clipfrac", "actor/ppo_kl", "actor/kl_loss"),
        *("critic/score/mean", "critic/rewards/mean", "response_length/clip_ratio", "val/test_score/<source>"),
        *("val-core/<source>/mean@<n>", "val-core/<source>/mean", "val-aux/<source>/mean@<n>"),
    ),
    "skyrl": (
        *("policy/policy_entropy", "reward/avg_raw_reward", "reward/avg_pass_at_<k>", "generate/avg_num_tokens"),
        *("eval/all/avg_score", "policy/rollout_train_logprobs_abs_diff_mean"),
    ),
    "tinker": ("optim/entropy", "optim/kl_sample_train_v1", "optim/kl_sample_train_v2", "env/all/reward/total"),
    "prime-rl": ("entropy/all/mean", "mismatch_kl/all/mean", "mismatch_kl/mean", "train/agg/all/reward/mean"),
    "nemo-rl": (
        *("train/approx_entropy", "train/gen_kl_error", "train/token_mult_prob_error"),
        "train/mean_gen_tokens_per_sample",
    ),
    "openrlhf": (
        *("train/entropy_loss", "train/ppo_clip_ratio", "train/actor_lr", "train/actor_grad_norm"),
        "train/group_reward_std",
    ),
}
