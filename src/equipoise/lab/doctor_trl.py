"""What a GRPOConfig of TRL 1.14 to 1.16 asks for, and what in it does nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf
from typing import Any

from equipoise.adapters.trl_plan import refused
from equipoise.catalogue.build import read_spec
from equipoise.catalogue.lint import Lint
from equipoise.catalogue.setup import Setup
from equipoise.catalogue.table import find_method
from equipoise.errors import UsageError
from equipoise.lab.doctor_asked import Asked

# GRPOConfig's own values where a file says nothing; an integration test holds them to the installed TRL.
DEFAULTS: Mapping[str, Any] = {
    "epsilon": 0.2, "epsilon_high": None, "num_iterations": 1, "steps_per_generation": None, "gradient_accumulation_steps": 1,
    "num_generations": 8, "scale_rewards": "group", "loss_type": "dapo", "beta": 0.0, "max_completion_length": 512,
    "mask_truncated_completions": False, "delta": None, "top_entropy_quantile": 1.0, "use_adaptive_entropy": False,
    "entropy_coef": 0.0, "entropy_target": 0.2, "entropy_coef_delta": 0.005, "entropy_coef_max": 1.0, "entropy_coef_min": 0.0,
    "importance_sampling_level": "token", "use_bias_correction_kl": True,
}  # fmt: skip
REDUCTIONS = {
    "grpo": "sequence_mean",
    "bnpo": "token_mean",
    "dapo": "token_mean",
    "cispo": "token_mean",
    "dr_grpo": "constant_length",
}
_ADAPTIVE = ("entropy_target", "entropy_coef_delta", "entropy_coef_max", "entropy_coef_min")


def asked_of_trl(settings: Mapping[str, Any]) -> Asked:
    """The controls that the file asks for, ours under `exploration` among them."""
    value = {**DEFAULTS, **settings}
    explicit = settings.get("exploration")
    own, explored = dict(_controls(settings, value)), dict(_exploration(explicit))
    turned_away = {name: why for name in explored if (why := refused(name))}
    explored = {name: given for name, given in explored.items() if name not in turned_away}
    replaced = _replaced(own, explored)
    chosen = {name: given for name, given in own.items() if name not in replaced} | explored
    per_generation = value["steps_per_generation"] or value["gradient_accumulation_steps"]
    setup = Setup(
        host="trl",
        updates_per_batch=max(
            1, int(value["num_iterations"]) * int(per_generation) // int(value["gradient_accumulation_steps"])
        ),
        group_size=int(value["num_generations"]),
        std_scaling=value["scale_rewards"] not in (False, "none"),
        reduction=REDUCTIONS.get(value["loss_type"]),
        dual_clip=inf if value["delta"] is None else float(value["delta"]),
        max_tokens=value["max_completion_length"],
        bonus_on_answer=explicit.get("bonus_on_answer") if isinstance(explicit, dict) else None,
    )
    return Asked("trl", chosen, setup, (*_idle(settings, value), *replaced.values()), tuple(turned_away.items()))


def _controls(settings: Mapping[str, Any], value: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    high = value["epsilon"] if value["epsilon_high"] is None else value["epsilon_high"]
    if settings.keys() & {"epsilon", "epsilon_high", "importance_sampling_level"} or value["loss_type"] == "cispo":
        bounds = {"clip_low": value["epsilon"], "clip_high": high}
        if value["loss_type"] == "cispo":
            yield "cispo", {"weight_cap": high}
        elif value["importance_sampling_level"] != "token":
            yield "gspo", bounds
        else:
            yield ("clip_higher" if high > value["epsilon"] else "clip"), bounds
    if value["use_adaptive_entropy"]:
        keys = dict(zip(("target", "step", "max", "min"), _ADAPTIVE, strict=True)) | {"start": "entropy_coef"}
        yield "adaptive_entropy", {ours: value[theirs] for ours, theirs in keys.items()}
    elif "entropy_coef" in settings:
        yield "entropy_bonus", {"coef": value["entropy_coef"]}
    if "top_entropy_quantile" in settings:
        yield "forking", {"share": value["top_entropy_quantile"]}
    if "beta" in settings:
        yield ("kl_corrected" if value["use_bias_correction_kl"] else "kl"), {"coef": value["beta"]}
    if value["mask_truncated_completions"]:
        yield "mask_truncated", {}
    if "scale_rewards" in settings and settings["scale_rewards"] in (False, "none"):
        yield "group_mean", {}


def _exploration(given: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """The specs of our TRL adapter: one text, a list of them, or slots with either."""
    if given is None or isinstance(given, bool):
        return
    if isinstance(given, str):
        yield read_spec(given)
    elif isinstance(given, dict):
        for inner in given.values():
            yield from _exploration(inner)
    elif isinstance(given, list):
        for inner in given:
            yield from _exploration(inner)
    else:
        raise UsageError(f"exploration holds {given!r}: write methods as texts, 'forking:share=0.2'")


def _replaced(own: Mapping[str, Any], explored: Mapping[str, Any]) -> dict[str, Lint]:
    """TRL's own losses that a surrogate of ours takes the place of."""
    ours = [
        name for name in explored if ":" not in name and _is_surrogate(name) and "trl" not in find_method(name).hosts
    ]
    why = f"{ours[0]} takes the place of TRL's loss, which alone reads its bounds" if ours else ""
    fix = f"give the bounds to {ours[0]}, or leave them out" if ours else ""
    return {name: Lint(name, "overridden", why, fix) for name in own if ours and _is_surrogate(name)}


def _is_surrogate(name: str) -> bool:
    return find_method(name).kind in ("ratio_clip", "surrogate")


def _idle(settings: Mapping[str, Any], value: Mapping[str, Any]) -> Iterator[Lint]:
    for key in _ADAPTIVE:
        if key in settings and not value["use_adaptive_entropy"]:
            yield Lint(
                key,
                "inert",
                "TRL reads it only with use_adaptive_entropy=True",
                "use_adaptive_entropy=True, or leave it out",
            )
    if value["loss_type"] == "cispo" and "epsilon" in settings:
        yield Lint("epsilon", "inert", "CISPO has a cap and no floor in TRL: only epsilon_high is read", "leave it out")
