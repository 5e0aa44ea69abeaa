"""The rules of the linter, in one table. A rule names its methods, the condition, the verdict, why, and what to do instead.

    inert        the method, or the setting named after the dot, changes nothing
    overridden   another choice takes its place
    risky        it acts, but not as its name says, or with a known way to fail

`when` reads the method's settings `v`, the setup `s` and all choices `c`. A field of the setup that is not known ends the rule
with the verdict "unknown": conditions on settings therefore come first. `why` and `fix` are filled from `v` and from what `when`
has read of `s`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf, log
from typing import Any, Literal

from equipoise.catalogue.setup import Known
from equipoise.catalogue.table import methods

Verdict = Literal["inert", "overridden", "risky", "unknown"]
Values = Mapping[str, Any]
Choices = Mapping[str, Values]

FAR = 3.0  # a target this many times the entropy of the start is out of reach for a bonus
RAW = ("correct", "correctness", "acc", "accuracy")  # metrics that say right or wrong and nothing else
TOKEN_SUMS = ("sequence_sum", "seq-mean-token-sum", "token_sum", "token-sum")
CONSTANTS = ("constant_length", "seq-mean-token-sum-norm")
SEQUENCE_MEANS = ("sequence_mean", "seq-mean-token-mean")

_ROWS = methods()
KL_COV = ("kl_cov", "kl_cov_step", "kl_cov_two_sided", "kl_cov_two_sided_step")  # penalties on the log-ratio
KL_COV_REFERENCE = ("kl_cov_reference", "kl_cov_reference_step")
CLIP_COV = ("clip_cov", "clip_cov_step")
CLIPS = ("clip", "clip_higher", "dual_clip", "adaptive_clip")
SURROGATES = tuple(row.name for row in _ROWS if row.kind in ("ratio_clip", "surrogate"))
RATIOS = tuple(row.name for row in _ROWS if "off_policy" in row.acts_only and row.name not in KL_COV)
ADVANTAGES = tuple(row.name for row in _ROWS if row.kind == "advantage")
EXPLORATION = ("ucb_naive", "ucb_mean", "ucb_constant", "batch_exploration")
BONUSES = ("entropy_bonus", "adaptive_entropy", "band")  # each sets the coefficient of the entropy bonus
TARGETS = ("adaptive_entropy", "band", "entropy_budget")


@dataclass(frozen=True, slots=True)
class Rule:
    check: str  # what is checked, as it reads after "whether"
    methods: tuple[str, ...]
    when: Callable[[Values, Known, Choices], bool]
    verdict: Verdict
    why: str
    fix: str
    part: str = ""  # the settings concerned, where it is not the whole method


def _goal(v: Values) -> float:
    """The entropy that a controller wants; 0 for a schedule in code, which nobody can read ahead."""
    goal = v.get("target", v.get("low"))
    return float(goal) if isinstance(goal, int | float) else 0.0


def _none_chosen(v: Values, s: Known) -> bool:
    """⌊share · N⌋ = 0, unless the parity mode of the released code takes one token in any case."""
    return not v.get("at_least") and (v["share"] == 0 or int(v["share"] * s.choice_tokens) == 0)


RULES: tuple[Rule, ...] = (
    # --- policy ratios ------------------------------------------------------------------------------------------------
    Rule(
        "the ratio ever leaves 1", RATIOS, lambda v, s, c: s.on_policy, "inert",
        "strictly on-policy the ratio is 1: no bound is reached, and the update is plain policy gradient",
        "make several updates of each batch{s.to_be_off_policy}, or choose a method that acts on-policy: kl, entropy_budget, forking",
    ),
    Rule(
        "the log-ratio ever leaves 0", KL_COV, lambda v, s, c: s.on_policy, "inert",
        "strictly on-policy the penalty |ln ratio| has gradient 0, so the update is plain policy gradient",
        "use kl_cov_reference, whose KL to the reference model acts on-policy, or make several updates of each batch{s.to_be_off_policy}",
    ),
    Rule(
        "its ratio bounds act", CLIP_COV, lambda v, s, c: s.on_policy, "inert",
        "strictly on-policy the ratio is 1 and the bounds are never reached; the choice by covariance still acts",
        "nothing, where the choice by covariance is what you want; bounds need several updates of each batch{s.to_be_off_policy}",
        part="clip_low,clip_high",
    ),
    Rule(
        "a sequence ratio ever reaches its bounds", ("gspo",),
        lambda v, s, c: min(v["clip_low"], v["clip_high"]) >= 0.05, "inert",
        "a sequence ratio is a geometric mean over all tokens and stays within a few thousandths of 1: bounds of {v[clip_low]:g} and "
        "{v[clip_high]:g} are PPO's for single tokens and never clip it",
        "clip_low=0.0003, clip_high=0.0004, as in the paper",
    ),
    Rule(
        "its division fits a sequence ratio", ("gspo",), lambda v, s, c: s.reduction not in SEQUENCE_MEANS, "risky",
        "divided by {s.reduction}, long completions count more than once: only a mean per completion is the paper's loss",
        "sequence_mean (verl: loss_agg_mode=seq-mean-token-mean)",
    ),
    Rule(
        "its cap is a weight and not a distance", ("cispo", "cispo_two_sided"), lambda v, s, c: v["weight_cap"] < 1, "risky",
        "a cap of {v[weight_cap]:g} is below the ratio of an unchanged token: every token is scaled down to it, on-policy too",
        "weight_cap is the weight itself (5 in TRL, where epsilon_high is this cap; verl's clip_ratio_high is the cap minus 1)",
    ),
    Rule(
        "clipped tokens get any gradient back", ("gppo", "ce_gppo"),
        lambda v, s, c: v["beta_low"] == 0 and v["beta_high"] == 0, "inert",
        "with both betas 0 clipped tokens have no gradient: this is the plain clip",
        "beta_low=0.5 or 0.75 and beta_high=1 (CE-GPPO), or both 1 (GPPO)",
    ),
    Rule(
        "a dual clip leaves tokens without a gradient", ("gppo", "ce_gppo"), lambda v, s, c: s.dual_clip < inf, "overridden",
        "tokens with a negative advantage and a ratio above {s.dual_clip:g} have no gradient under the dual clip: \"never a zero gradient\" "
        "does not hold there",
        "no dual clip (verl: a large clip_ratio_c), or know that these tokens are lost",
        part="dual_clip",
    ),
    # --- one surrogate ------------------------------------------------------------------------------------------------
    Rule(
        "its bounds are read", CLIPS, lambda v, s, c: any(name in c for name in KL_COV + KL_COV_REFERENCE), "overridden",
        "KL-Cov has no clip at all: clip_low and clip_high are ignored, in the released code and in verl too",
        "leave one of the two out",
    ),
    Rule(
        "its bounds leave the choice by covariance anything to do", CLIP_COV,
        lambda v, s, c: any(name in c for name in CLIPS) or min(v["clip_low"], v["clip_high"]) < 0.5, "risky",
        "Clip-Cov was published with ratios free in [0, 2]; narrower bounds do most of the clipping, and hosts have one pair of keys for both",
        "clip_low=1, clip_high=1 in clip_cov, and no other clip",
    ),
    Rule(
        "it is the only surrogate", SURROGATES,
        lambda v, s, c: len(set(SURROGATES) & set(c) - set(CLIPS)) > 1
        or (not set(c) & set(KL_COV + KL_COV_REFERENCE + CLIP_COV) and len(set(SURROGATES) & set(c)) > 1), "overridden",
        "an objective has one surrogate and several were chosen: which of them is the loss depends on the host",
        "choose one",
    ),
    # --- a choice of tokens -------------------------------------------------------------------------------------------
    Rule(
        "any token is chosen", CLIP_COV + KL_COV + KL_COV_REFERENCE, lambda v, s, c: _none_chosen(v, s), "inert",
        "⌊share · N⌋ is 0: no token is chosen (the released code then takes one, at_least=1)",
        "a larger share, or the choice over the whole step (the method's _step form)",
    ),
    Rule(
        "its band holds any covariance", CLIP_COV, lambda v, s, c: v["low"] >= v["high"], "inert",
        "no covariance lies above {v[low]:g} and below {v[high]:g}", "low=1, high=5, as in the paper",
    ),
    Rule(
        "it leaves any token out", ("forking", "forking_step"), lambda v, s, c: v["share"] >= 1, "inert",
        "a share of {v[share]:g} keeps every token", "share=0.2, as in the paper",
    ),
    # --- coefficients of 0 --------------------------------------------------------------------------------------------
    Rule(
        "its coefficient is above 0", ("kl", "kl_corrected", *KL_COV, *KL_COV_REFERENCE), lambda v, s, c: v["coef"] == 0, "inert",
        "a coefficient of 0 is the loss without it, bit for bit", "a coefficient above 0",
    ),
    Rule(
        "its coefficient is above 0", ("entropy_bonus",),
        lambda v, s, c: v["coef"] == 0 and not {"adaptive_entropy", "band"} & set(c), "inert",
        "a coefficient of 0 is the loss without it, bit for bit", "a coefficient above 0, or a controller: adaptive_entropy, band",
    ),
    Rule(
        "its coefficient is above 0", ("planning_credit",), lambda v, s, c: v["alpha"] == 0, "inert",
        "alpha 0 weighs every token 1", "alpha=0.2, as in the paper",
    ),
    Rule(
        "its weight is above 0", (*EXPLORATION, "brier"), lambda v, s, c: v["weight"] == 0, "inert",
        "a weight of 0 leaves the reward as it was", "a weight above 0",
    ),
    Rule(
        "its estimate has a gradient", ("kl",), lambda v, s, c: v.get("kind") == "k1", "inert",
        "in the loss, k1 has the gradient of ln π, whose mean over the policy's own samples is 0: noise, no pull to the reference",
        "k2 or exact, whose gradient is the KL's",
    ),
    # --- entropy ------------------------------------------------------------------------------------------------------
    Rule(
        "its target can be reached", TARGETS, lambda v, s, c: _goal(v) > log(2) and _goal(v) >= s.most_entropy, "risky",
        "no policy over {s.vocabulary} tokens has more than {s.most_entropy:.2f} nats: entropy is below the target for good",
        "a target near the entropy of the first steps",
    ),
    Rule(
        "its target is in reach of the model", TARGETS, lambda v, s, c: _goal(v) > FAR * s.entropy, "risky",
        "the model starts at {s.entropy:g} nats, far below the target: the control is on at every step and at its limit, a constant under another name",
        "a target near the entropy of the first steps",
    ),
    Rule(
        "its target is one for reasoning models", ("adaptive_entropy",),
        lambda v, s, c: _goal(v) >= 2 and s.maybe("entropy") is None, "risky",
        "reasoning models have 0.1 to 1 nat per token; with {v[target]:g}, as in an example of TRL's documentation (5.0), the gate never "
        "closes and the coefficient climbs to its maximum",
        "target=0.2, step=0.0001, max=0.005, the numbers of Skywork-OR1",
    ),
    Rule(
        "its coefficient can move", ("adaptive_entropy",), lambda v, s, c: v["max"] == 0, "inert",
        "with a maximum of 0 there is never a bonus", "max=0.005",
    ),
    Rule(
        "its coefficient means what it does per token", BONUSES,
        lambda v, s, c: s.maybe("host") != "trl" and s.reduction in TOKEN_SUMS, "risky",
        "divided by {s.reduction}, the bonus is summed over tokens: its strength is the coefficient times the length of a completion, and "
        "grows with it",
        "a mean over tokens for the bonus, or a coefficient divided by the mean length",
    ),
    Rule(
        "its coefficient means what it does per token", BONUSES,
        lambda v, s, c: s.maybe("host") != "trl" and s.reduction in CONSTANTS, "risky",
        "divided by {s.reduction}, the bonus is summed over tokens and divided by a constant: its strength moves with the length of "
        "completions",
        "a mean over tokens for the bonus",
    ),
    # --- groups -------------------------------------------------------------------------------------------------------
    Rule(
        "a group has a baseline", ADVANTAGES, lambda v, s, c: s.group_size == 1, "inert",
        "a group of one has nothing to be compared with: every advantage is 0", "two or more completions per problem",
    ),
    Rule(
        "a group can be mixed", ("dynamic_sampling",), lambda v, s, c: s.group_size == 1, "risky",
        "a group of one is never both right and wrong: nothing is left to learn from", "two or more completions per problem",
    ),
    Rule(
        "a group has others to differ from", ("ucb_mean", "batch_exploration"), lambda v, s, c: s.group_size == 1, "inert",
        "in a group of one there is no other answer: the term is 0", "two or more completions per problem",
    ),
    Rule(
        "lone successes are amplified", ("group_std",),
        lambda v, s, c: s.group_size > 2 and s.lone_successes > 0.1, "risky",
        "a lone success among {s.group_size} gets an advantage of √(G−1) = {s.lone_advantage:.2f}, each failure little: on hard problems the "
        "accidents that pass the checker dominate",
        "group_mean, or put problems off that are hardly ever solved (too_hard)",
    ),
    Rule(
        "a group is large enough for k", ("pkpo", "passk_training"), lambda v, s, c: v["k"] > s.group_size, "inert",
        "pass@{v[k]} needs {v[k]} completions and a group has {s.group_size}", "k well below the group size",
    ),
    Rule(
        "enough completions are wrong", ("passk_training",),
        lambda v, s, c: v["k"] <= s.group_size and s.wrong < v["k"], "inert",
        "with a pass rate of {s.pass_rate:g} a group has {s.wrong:.1f} wrong on average; every advantage is 0 as soon as fewer than k = {v[k]} "
        "are",
        "a smaller k, annealed to 1, or harder problems",
    ),
    Rule(
        "enough completions are wrong", ("pkpo",),
        lambda v, s, c: v["k"] <= s.group_size and s.wrong < v["k"] - 1, "inert",
        "with a pass rate of {s.pass_rate:g} a group has {s.wrong:.1f} wrong on average; every advantage is 0 as soon as fewer than k − 1 "
        "are, k = {v[k]}",
        "a smaller k, annealed to 1, or harder problems",
    ),
    # --- rewards ------------------------------------------------------------------------------------------------------
    Rule(
        "the filter reads raw correctness", ("dynamic_sampling",),
        lambda v, s, c: s.maybe("host") != "equipoise" and s.filter_metric not in RAW and s.shaped_reward, "risky",
        "the filter reads '{s.filter_metric}' and the reward is shaped: all-wrong groups of different lengths pass, and std scaling makes a "
        "full-size gradient of their lengths",
        "filter on raw correctness (verl: algorithm.filter_groups.metric=acc)",
    ),
    Rule(
        "its penalty is ever reached", ("soft_overlong",), lambda v, s, c: v["limit"] - v["buffer"] >= s.max_tokens, "inert",
        "the penalty begins at {v[limit]} − {v[buffer]} tokens and no completion is longer than {s.max_tokens}",
        "limit = the limit on a completion, buffer = a fifth of it",
    ),
    Rule(
        "its bonus is ever above 0", ("ucb_constant",), lambda v, s, c: v["baseline"] >= 1, "risky",
        "b is at most 1, so b − {v[baseline]:g} is never positive: rare answers are not paid, all others are punished",
        "baseline=0.5, which pays an answer until it has been given four times",
    ),
    Rule(
        "the guard of the answer leaves any token", EXPLORATION,
        lambda v, s, c: s.all_answer and not s.maybe("bonus_on_answer"), "inert",
        "the bonus is kept off the tokens of the final answer, and here a completion is nothing else: it reaches no token",
        "let the model reason before it answers, or spread the bonus over all tokens knowingly (bonus_on_answer=True)",
    ),
    # --- inference ----------------------------------------------------------------------------------------------------
    Rule(
        "the window is ever full", ("deepconf",), lambda v, s, c: v["window"] > s.max_tokens, "inert",
        "a window of {v[window]} tokens never fills in completions of at most {s.max_tokens}: online no trace is stopped, offline every "
        "score is the mean of the trace",
        "a window of a tenth of a typical trace",
    ),
    Rule(
        "the window is full in most traces", ("deepconf",),
        lambda v, s, c: v["window"] <= s.max_tokens and v["window"] > s.mean_tokens, "risky",
        "a window of {v[window]} tokens fills only in traces longer than the mean of {s.mean_tokens:g}: the others are never stopped",
        "a window of a tenth of a typical trace",
    ),
    Rule(
        "its cap is ever reached", ("cap",), lambda v, s, c: v["tokens"] >= s.max_tokens, "inert",
        "no completion is longer than {s.max_tokens} tokens, and the cap is {v[tokens]}", "the budget at which accuracy was best",
    ),
    Rule(
        "a vote can be won", ("majority", "parallel"), lambda v, s, c: v["n"] <= 2, "inert",
        "of {v[n]} answers none has a majority over another: this is a single sample", "n of at least 3",
    ),
)  # fmt: skip
