"""verl's keys for a method that only our plug-in brings it: an `equipoise_` loss or advantage, or a term of our reward manager.

The fragments in examples/verl and the lines that a prescription prints are both made of these. What the plug-in can take follows
from what verl hands over: a loss sees log-probs, advantages and a mask of one micro-batch (no entropies, no reference, no step), an
advantage the rewards of a group, the reward manager what it can read from a completion and its group.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from equipoise.catalogue.base import Method
from equipoise.catalogue.hosts import VERL
from equipoise.catalogue.table import is_built
from equipoise.specs import write_spec

VARIABLE = "EQUIPOISE_VERL"  # settings that verl has no key for travel in it
PREFIX = "equipoise_"
LOSS_GETS = ("logp_BT", "old_logp_BT", "adv_BT", "mask_BT")
ADVANTAGE_GETS = ("reward_PG", "correct_PG", "keep_PG")
TERM_GETS = (
    *("visits_PG", "keep_PG", "correct_PG", "answer_PG", "confidence_PG", "n_tokens_PG"),
    "format_ok_PG",  # not handed over, and not needed: without it a stated confidence is the format
)
ENV = f"ray_kwargs.ray_init.runtime_env.env_vars.{VARIABLE}"
TERMS = "reward.reward_kwargs.equipoise.terms"
# Not in verl's own YAML, so Hydra wants a plus before them on the command line.
NEW = (ENV, TERMS)
# Hold 16 completions for each prompt of verl's default batch of 1024 while each waits for the rest of its group.
WORKERS = 21

_LOSS = "actor_rollout_ref.actor.policy_loss.loss_mode"
_ADVANTAGE = "algorithm.adv_estimator"
_REWARD = {
    "algorithm.norm_adv_by_std_in_grpo": False,  # a term is part of the reward here, and would be divided with it
    "reward.reward_manager.source": "importlib",
    "reward.reward_manager.module.path": "pkg://equipoise.adapters.verl_rewards",
    "reward.reward_manager.name": "ExplorationRewards",
}
# Part of verl's own loss, so no option that a prescription would name.
_MORE = {"dual_clip.cap": "actor_rollout_ref.actor.clip_ratio_c"}


def key_in_verl(method: str, setting: str) -> str | None:
    """verl's own key for a setting of a method's loss, None where it has none."""
    own = VERL.settings.get(f"{method}.{setting}") or VERL.settings.get(setting)
    return own.key if own is not None else _MORE.get(f"{method}.{setting}")


def added_keys(method: Method, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that have our plug-in run a method with these settings; none where it cannot."""
    gets = set(method.inputs)
    if not is_built(method):
        return {}
    if method.kind in ("ratio_clip", "surrogate") and gets <= set(LOSS_GETS) and not method.name.endswith("_step"):
        return _by_name(method, _LOSS, chosen)
    if method.kind == "advantage" and gets <= set(ADVANTAGE_GETS):
        return _by_name(method, _ADVANTAGE, chosen)
    if method.kind in ("bonus", "reward") and gets <= set(TERM_GETS):
        return {**_REWARD, TERMS: [write_spec(method.name, chosen)], "reward.num_workers": WORKERS}
    return {}


def _by_name(method: Method, key: str, chosen: Mapping[str, Any]) -> dict[str, Any]:
    keys: dict[str, Any] = {key: f"{PREFIX}{method.name}"}
    rest = {}
    for name, value in chosen.items():
        own = key_in_verl(method.name, name)
        if own is None:
            rest[name] = value
        else:
            keys[own] = value
    return keys | ({ENV: write_spec(method.name, rest)} if rest else {})
