"""Methods that act on the training loop. Settings are those of the paper or its released code; traps say where hosts differ."""

from __future__ import annotations

from equipoise.catalogue.base import Method, Recipe

_ON_POLICY = "does nothing on strictly on-policy updates, TRL's default: the ratio is 1"
_PER_MICRO_BATCH = "verl takes covariance and top share per micro-batch, so they change with its size"

TRAINING: tuple[Method, ...] = (
    Method(
        "clip_higher",
        kind="ratio_clip",
        loop="training",
        about="a wider upper clip bound, so that unlikely tokens can grow",
        target="equipoise.objectives.clipped:clipped_surrogate",
        settings={"clip_low": 0.2, "clip_high": 0.28},
        paper="2503.14476",
        hosts={"trl": {}, "verl": {}},
        acts_only=("off_policy",),
        traps=(
            _ON_POLICY,
            "CISPO: the same key is the cap itself in TRL and a distance from 1 in verl",
            "can overshoot: entropy was driven to 2 nats over 1000 steps (rllm#116); keep watching it",
        ),
    ),
    Method(
        "entropy_bonus",
        kind="regulariser",
        loop="training",
        about="minus a constant times the mean token entropy in the loss",
        target="equipoise.objectives.regularisers:entropy_bonus",
        settings={"coef": 0.001},
        paper="1602.01783",
        hosts={"trl": {}, "verl": {}},
        traps=(
            "brittle: reported as inert at 0.001 and explosive at 0.003; a controller is safer",
            "verl aggregates the entropy with loss_agg_mode, so one coefficient has several strengths; TRL's is per token",
        ),
    ),
    Method(
        "adaptive_entropy",
        kind="controller",
        loop="training",
        about="an entropy bonus that grows while entropy is below a target and is off above it",
        target="equipoise.shaping.controllers:AdaptiveEntropy",
        settings={"target": 0.2, "step": 1e-4, "max": 5e-3, "min": 0.0, "start": 0.0},
        paper="2505.22312",
        hosts={"trl": {"use_adaptive_entropy": True}},
        traps=(
            "set target, step and max together: TRL's defaults for step and max are 50 and 200 times larger",
            "TRL's documentation speaks of 2 to 10 nats per token; reasoning models have 0.1 to 1, where such a target keeps the bonus on for good",
            "TRL gates on the entropy of the step before, so the first step has no bonus",
        ),
    ),
    Method(
        "forking",
        kind="weight",
        loop="training",
        about="policy gradient only on the tokens of highest entropy (80/20)",
        target="equipoise.objectives.weights:forking",
        settings={"share": 0.2},
        paper="2506.01939",
        hosts={"trl": {}},
        traps=(
            "gains grow with model size; at 1.5B it was the worst baseline of 2602.19208",
            "TRL takes the quantile over the current micro-batch, the paper over the batch",
        ),
    ),
    Method(
        "clip_cov",
        kind="weight",
        loop="training",
        about="no gradient for a few tokens drawn from those of high covariance between log-prob and advantage",
        target="equipoise.objectives.covariance:clip_cov",
        settings={"share": 2e-4, "low": 1.0, "high": 5.0, "clip_low": 1.0, "clip_high": 1.0},
        paper="2505.22617",
        hosts={"verl": {"actor_rollout_ref.actor.policy_loss.loss_mode": "clip_cov"}},
        traps=(
            _PER_MICRO_BATCH,
            "the released recipe opens the ratio bounds to [0, 2]; with 0.2 the PPO clip does most of the work",
            "verl's actor/pg_clipfrac then counts only the tokens chosen by covariance",
        ),
    ),
    Method(
        "kl_cov",
        kind="regulariser",
        loop="training",
        about="a penalty on the log-ratio of the tokens of highest covariance",
        target="equipoise.objectives.covariance:kl_cov",
        settings={"share": 2e-3, "coef": 1.0},
        paper="2505.22617",
        hosts={"verl": {"actor_rollout_ref.actor.policy_loss.loss_mode": "kl_cov"}},
        acts_only=("off_policy",),
        traps=(
            "inert on strictly on-policy updates: the penalty is |log ratio|, whose gradient is 0 at ratio 1",
            "the paper's share is 2e-3 for 7B and 2e-4 for 32B; verl's defaults are 2e-4 and coefficient 0.1 instead of 1",
            "no PPO clip at all: clip_low and clip_high are ignored",
            _PER_MICRO_BATCH,
        ),
    ),
    Method(
        "kl",
        kind="regulariser",
        loop="training",
        about="a penalty on the KL to the reference model",
        target="equipoise.objectives.regularisers:kl_to_reference",
        settings={"coef": 0.01},
        paper="2504.07912",
        hosts={
            "trl": {},
            "verl": {
                "actor_rollout_ref.actor.use_kl_loss": True,
                "actor_rollout_ref.actor.kl_loss_type": "low_var_kl",
            },
        },
        traps=(
            "0.01 kept a second answer format and pass@64 alive there, 0.001 was like none",
            "loads a second copy of the model",
            "TRL weights the KL of each token by the policy ratio (use_bias_correction_kl), verl does not",
        ),
    ),
    Method(
        "batch_exploration",
        kind="reward",
        loop="training",
        about="minus the share of the group that gave the same final answer",
        target="equipoise.shaping.rewards:batch_exploration",
        settings={"weight": 0.2},
        paper="2509.06941",
        traps=(
            "off where the whole group is right, and off the tokens of the final answer, or it pays for wrong answers",
            "needs answers in canonical form: 1/2 and 0.5 must be one",
        ),
    ),
    Method(
        "brier",
        kind="reward",
        loop="training",
        about="correctness minus the squared error of a stated confidence (RLCR)",
        target="equipoise.shaping.rewards:brier",
        settings={"weight": 1.0, "std_scaling": False},
        paper="2507.16806",
        traps=(
            "the prompt must ask for a confidence, and a confidence outside 0 to 1 is malformed",
            "a log score instead makes a sure wrong answer pay",
            "advantages without division by the group's standard deviation, as in the paper",
        ),
    ),
    Method(
        "dynamic_sampling",
        kind="filter",
        loop="training",
        about="only groups with both right and wrong answers, resampled until the batch is full",
        target="equipoise.shaping.filters:mixed_groups",
        settings={"metric": "acc"},
        paper="2503.14476",
        hosts={"verl": {"algorithm.filter_groups.enable": True}},
        traps=(
            "filter on raw correctness: length-shaped rewards let all-wrong groups through, and GRPO makes a full-size gradient of them",
            "verl: the metric must be 'reward' or a key of the dict that the reward function returns, else the run stops",
            "verl: only the v1 trainer filters (trainer.use_v1, the default); max_num_gen_batches is ignored there",
        ),
    ),
    Method(
        "drop_hard",
        kind="filter",
        loop="training",
        about="leave out problems that the initial model never solves",
        target="equipoise.shaping.filters:drop_hard",
        settings={"draws": 8, "least_right": 1},
        paper="2605.28388",
        traps=(
            "0 of 8 is a small sample, and many such items have a wrong key: audit them before dropping, and look again later",
            "counter-evidence: on a fixed labelling budget the hardest tenth kept mixed outcomes longest",
        ),
    ),
    Method(
        "soft_overlong",
        kind="reward",
        loop="training",
        about="a length penalty that sets in gradually before the limit",
        target="equipoise.shaping.rewards:soft_overlong",
        settings={"limit": 20480, "buffer": 4096, "penalty": 1.0},
        paper="2503.14476",
        hosts={
            "verl": {
                "reward.reward_manager.name": "dapo",
                "+reward.reward_kwargs.overlong_buffer_cfg.enable": True,
                "+reward.reward_kwargs.overlong_buffer_cfg.log": True,
            }
        },
        traps=(
            "limit and buffer are the paper's: scale both to your own length limit",
            "in TRL it is a reward function, trl.rewards.get_soft_overlong_punishment, not an option",
            "never filter groups on the shaped reward",
        ),
    ),
    Method(
        "mask_truncated",
        kind="filter",
        loop="training",
        about="no loss from completions cut at the length limit",
        target="equipoise.shaping.filters:mask_truncated",
        settings={"mask_truncated": True},
        paper="2503.14476",
        hosts={"trl": {}},
        traps=("with most completions cut little is left to learn from: raise the limit first",),
    ),
)

RECIPES: tuple[Recipe, ...] = (
    Recipe(
        "dapo",
        about="clip-higher, dynamic sampling and a soft length penalty, token mean, no KL",
        methods={"clip_higher": {}, "dynamic_sampling": {}, "soft_overlong": {}},
        prompts_per_step=512,
        completions_per_prompt=16,
        updates_per_step=16,
        paper="2503.14476",
    ),
    Recipe(
        "skywork_or1",
        about="an adaptive entropy bonus, on-policy, no KL",
        methods={"adaptive_entropy": {}},
        prompts_per_step=256,
        completions_per_prompt=16,
        updates_per_step=1,
        paper="2505.22312",
    ),
)
