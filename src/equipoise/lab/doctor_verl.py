"""What a Hydra config of verl 0.9 asks for, and what in it does nothing or would stop the run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from math import inf
from typing import Any

from equipoise.adapters.outcome_board import workers_needed
from equipoise.catalogue.build import read_spec
from equipoise.catalogue.lint import Lint
from equipoise.catalogue.setup import Setup
from equipoise.catalogue.table import methods
from equipoise.catalogue.verl_keys import ENV, TERMS
from equipoise.errors import UsageError
from equipoise.lab.doctor_asked import Asked

_ACTOR = "actor_rollout_ref.actor."
_LOSS = f"{_ACTOR}policy_loss."
_OVERLONG = "reward.reward_kwargs.overlong_buffer_cfg."
# verl's own values where a file says nothing; an integration test holds them to the installed verl.
DEFAULTS: Mapping[str, Any] = {
    "data.train_batch_size": 1024, "data.max_response_length": 512, f"{_ACTOR}ppo_mini_batch_size": 256,
    f"{_ACTOR}ppo_epochs": 1, f"{_ACTOR}clip_ratio_low": 0.2, f"{_ACTOR}clip_ratio_high": 0.2, f"{_ACTOR}clip_ratio_c": 3.0,
    f"{_ACTOR}loss_agg_mode": "token-mean", f"{_ACTOR}entropy_coeff": 0, f"{_ACTOR}use_kl_loss": False,
    f"{_ACTOR}kl_loss_coef": 0.001, f"{_LOSS}loss_mode": "vanilla", f"{_LOSS}clip_cov_ratio": 0.0002,
    f"{_LOSS}clip_cov_lb": 1.0, f"{_LOSS}clip_cov_ub": 5.0, f"{_LOSS}kl_cov_ratio": 0.0002, f"{_LOSS}ppo_kl_coef": 0.1,
    "actor_rollout_ref.rollout.n": 1, "algorithm.adv_estimator": "gae", "algorithm.norm_adv_by_std_in_grpo": True,
    "algorithm.filter_groups.enable": False, "algorithm.filter_groups.metric": "reward", "reward.num_workers": 8,
    "algorithm.filter_groups.max_inflight_gen_batches": 1,
    "reward.reward_manager.name": "naive", "trainer.use_v1": True, "trainer.v1.trainer_mode": "sync",
}  # fmt: skip
_KEYS_OF_MODE = {
    "clip_cov": ("clip_cov_ratio", "clip_cov_lb", "clip_cov_ub"),
    "kl_cov": ("kl_cov_ratio", "ppo_kl_coef"),
}


def asked_of_verl(settings: Mapping[str, Any]) -> Asked:
    """The controls that the file asks for, verl's own and ours."""
    value = {**DEFAULTS, **settings}
    refused = list(_refused(settings, value))
    try:
        ours = _given(value)
        terms = [read_spec(spec) for spec in value.get(TERMS) or ()]
    except UsageError as problem:
        refused.append(("EQUIPOISE_VERL", str(problem)))
        ours, terms = {}, []
    chosen: dict[str, Mapping[str, Any]] = dict(_controls(settings, value, ours))
    chosen |= dict(terms)
    updates = (
        int(value[f"{_ACTOR}ppo_epochs"])
        * int(value["data.train_batch_size"])
        // int(value[f"{_ACTOR}ppo_mini_batch_size"])
    )
    setup = Setup(
        host="verl",
        updates_per_batch=max(1, updates),
        on_policy=False if "async" in str(value["trainer.v1.trainer_mode"]) else None,
        reduction=value[f"{_ACTOR}loss_agg_mode"],
        dual_clip=float(value[f"{_ACTOR}clip_ratio_c"]) if value[f"{_LOSS}loss_mode"] == "vanilla" else inf,
        group_size=int(value["actor_rollout_ref.rollout.n"]),
        std_scaling=value["algorithm.adv_estimator"] == "grpo" and bool(value["algorithm.norm_adv_by_std_in_grpo"]),
        filter_metric=value["algorithm.filter_groups.metric"],
        shaped_reward=True if terms else None,
        bonus_on_answer=True,  # a term of verl's reward reaches every token
        max_tokens=value["data.max_response_length"],
    )
    return Asked("verl", chosen, setup, tuple(_idle(settings, value, set(ours), bool(terms))), tuple(refused))


def _controls(
    settings: Mapping[str, Any], value: Mapping[str, Any], ours: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    mode, low, high = value[f"{_LOSS}loss_mode"], value[f"{_ACTOR}clip_ratio_low"], value[f"{_ACTOR}clip_ratio_high"]
    bounds = {"clip_low": low, "clip_high": high}
    name = _of_ours(mode)
    if name is not None:
        own = {key: bounds[key] for key in bounds if key in _settings_of(name)}
        yield name, {**own, **ours.get(name, {})}
    elif mode == "cispo":
        yield "cispo_two_sided", {"weight_floor": 1 - low, "weight_cap": 1 + high}
    elif mode == "clip_cov":
        keys = dict(zip(("share", "low", "high"), _KEYS_OF_MODE[mode], strict=True))
        yield "clip_cov", {**{our: value[_LOSS + key] for our, key in keys.items()}, **bounds, "at_least": 1}
    elif mode == "kl_cov":
        yield "kl_cov", {"share": value[f"{_LOSS}kl_cov_ratio"], "coef": value[f"{_LOSS}ppo_kl_coef"], "at_least": 1}
    elif mode == "gspo":
        yield "gspo", bounds
    elif mode == "vanilla" and settings.keys() & {f"{_ACTOR}clip_ratio_low", f"{_ACTOR}clip_ratio_high"}:
        yield ("clip_higher" if high > low else "clip"), bounds
    if f"{_ACTOR}entropy_coeff" in settings:
        yield "entropy_bonus", {"coef": value[f"{_ACTOR}entropy_coeff"]}
    if value[f"{_ACTOR}use_kl_loss"]:
        yield "kl", {"coef": value[f"{_ACTOR}kl_loss_coef"]}
    estimator = _of_ours(value["algorithm.adv_estimator"])
    if estimator is not None:
        yield estimator, ours.get(estimator, {})
    elif value["algorithm.adv_estimator"] == "rloo":
        yield "leave_one_out", {}
    elif value["algorithm.adv_estimator"] == "grpo" and not value["algorithm.norm_adv_by_std_in_grpo"]:
        yield "group_mean", {}
    if value["algorithm.filter_groups.enable"]:
        yield "dynamic_sampling", {}
    if value.get(f"{_OVERLONG}enable") and value["reward.reward_manager.name"] == "dapo":
        keys = {
            "buffer": f"{_OVERLONG}len",
            "penalty": f"{_OVERLONG}penalty_factor",
            "limit": "reward.reward_kwargs.max_resp_len",
        }
        yield "soft_overlong", {our: value[key] for our, key in keys.items() if value.get(key) is not None}


def _idle(settings: Mapping[str, Any], value: Mapping[str, Any], ours: set[str], terms: bool) -> Iterator[Lint]:
    """Keys of the file that nothing reads, and terms that are not what they were."""
    mode, estimator = value[f"{_LOSS}loss_mode"], value["algorithm.adv_estimator"]

    def inert(key: str, why: str, fix: str) -> Lint:
        return Lint(key, "inert", why, fix)

    bounds = {f"{_ACTOR}clip_ratio_low", f"{_ACTOR}clip_ratio_high"}
    if f"{_ACTOR}clip_ratio" in settings and not settings.keys() & bounds:
        why = "verl reads clip_ratio_low and clip_ratio_high, which both have values of their own"
        yield inert("actor.clip_ratio", why, "set clip_ratio_low and clip_ratio_high")
    for owner, keys in _KEYS_OF_MODE.items():
        for key in keys:
            if _LOSS + key in settings and (_of_ours(mode) or mode) != owner:
                why = f"only loss_mode={owner} reads it, and this is {mode}"
                yield inert(f"policy_loss.{key}", why, f"loss_mode={owner}, or leave it out")
    if f"{_ACTOR}kl_loss_coef" in settings and not value[f"{_ACTOR}use_kl_loss"]:
        why = "verl adds no KL to the loss unless actor.use_kl_loss is true"
        yield inert("actor.kl_loss_coef", why, "actor.use_kl_loss=True")
    if "algorithm.norm_adv_by_std_in_grpo" in settings and estimator not in ("grpo", "grpo_vectorized"):
        why = f"only adv_estimator=grpo reads it, and this is {estimator}"
        yield inert("algorithm.norm_adv_by_std_in_grpo", why, "adv_estimator=grpo, or leave it out")
    if value["algorithm.filter_groups.enable"] and not value["trainer.use_v1"]:
        yield inert("algorithm.filter_groups", "only the v1 trainer filters groups", "trainer.use_v1=True")
    for name in sorted(ours - {_of_ours(mode), _of_ours(estimator)}):
        why = f"neither loss_mode ({mode}) nor adv_estimator ({estimator}) is equipoise_{name}"
        yield inert(f"EQUIPOISE_VERL {name}", why, f"loss_mode or adv_estimator=equipoise_{name}, or leave it out")
    by_std = estimator in ("equipoise_group_std", "equipoise_quantile_baseline")
    if terms and (by_std or (estimator == "grpo" and value["algorithm.norm_adv_by_std_in_grpo"])):
        why = (
            "a term is part of the reward here, and is divided by the group's standard deviation: in a group that differs in "
            "nothing else it is as loud as success"
        )
        yield Lint("reward terms", "risky", why, "algorithm.norm_adv_by_std_in_grpo=False")


def _refused(settings: Mapping[str, Any], value: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What verl would stop at, or not find."""
    known = {row.name for row in methods()}
    ours = [
        name
        for name in (value[f"{_LOSS}loss_mode"], value["algorithm.adv_estimator"])
        if str(name).startswith("equipoise_")
    ]
    for name in ours:
        if name.removeprefix("equipoise_") not in known:
            yield name, "no method of the catalogue has this name: see equipoise methods"
    if "-" in str(value[f"{_LOSS}loss_mode"]):
        yield str(value[f"{_LOSS}loss_mode"]), "verl's loss modes are written with underscores: clip_cov, kl_cov"
    policy = os.environ.get("VERL_USE_EXTERNAL_PLUGINS", "auto").strip().lower()
    if ours and policy != "auto" and "equipoise" not in policy.split(","):
        yield ours[0], f"VERL_USE_EXTERNAL_PLUGINS={policy} keeps the plug-in out: unset it, or name equipoise in it"
    flying = int(value["data.train_batch_size"]) * int(value["actor_rollout_ref.rollout.n"])
    if value["algorithm.filter_groups.enable"]:
        flying *= max(1, int(value["algorithm.filter_groups.max_inflight_gen_batches"]))
    workers = int(value["reward.num_workers"])
    if value.get(TERMS) and workers < (needed := workers_needed(flying)):
        yield (
            "reward terms",
            f"{flying} completions wait for their groups: reward.num_workers={needed} is needed, {workers} is set",
        )


def _given(value: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    text = str(value.get(ENV) or os.environ.get("EQUIPOISE_VERL", ""))
    if not text.strip():
        return {}
    from equipoise.adapters.verl_settings import given_settings

    return given_settings(text)


def _of_ours(name: Any) -> str | None:
    text = str(name)
    plain = text.removeprefix("equipoise_")
    return plain if plain != text and plain in {row.name for row in methods()} else None


def _settings_of(name: str) -> Mapping[str, Any]:
    return next(row.settings for row in methods() if row.name == name)
