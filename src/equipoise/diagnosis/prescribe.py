"""One next action for a verdict, in every host's own keys. The catalogue is the only source of settings.

| verdict | now | at the next round |
| --- | --- | --- |
| training-time entropy collapse | KL to the base model, in the loss of a run restarted from before the loss | |
| inference-time variance inflation | cap thinking at the best budget, spend the rest on parallel samples and a vote | a Brier term in the reward; no overly hard samples |
| both | the training fix; the cap until it is trained | as above |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from equipoise.base import Estimate, Prescription
from equipoise.catalogue.hosts import HOSTS
from equipoise.catalogue.lint import lint
from equipoise.catalogue.settings import as_lines, settings_for
from equipoise.catalogue.setup import Setup
from equipoise.catalogue.table import find_method
from equipoise.diagnosis.judge import Judgement

# 0.01 keeps pass@64 at nearly equal pass@1 where 0.001 and 0 lose it: https://arxiv.org/abs/2504.07912.
KL_COEF = 0.01


def prescribe(found: Judgement, estimates: Mapping[str, list[Estimate]]) -> Prescription:
    """The action for a verdict. A host that has no such setting, or whose code is not there yet, gets None."""
    failing = {loop for loop, state in found.states.items() if state == "failing"}
    if not failing:
        return _nothing(found)
    settings: dict[str, dict[str, Any]] = {}
    why, later, method = [], [], None
    if "training" in failing:
        method = "kl"
        why.append(
            f"Entropy drains where it is needed: go back to the last checkpoint before the loss and train on with KL to the base model "
            f"(coefficient {KL_COEF:g}), which acts on every update, on-policy ones too."
        )
        _merge(settings, "kl", coef=KL_COEF)
    if "inference" in failing:
        best, samples = _best_budget(estimates)
        method = method or "majority"
        why.append(
            f"More thinking costs accuracy: cap it at {best:,} tokens a sample and spend the rest of the budget on "
            f"{samples} samples in parallel and a majority vote."
        )
        _merge(settings, "majority", n=samples)
        _merge(settings, "cap", tokens=best)
        later.append(
            "next training: reward stated confidence by its Brier score, so that long doubt does not pay (brier)"
        )
        later.append(
            "next training: leave out samples that are never solved; they teach degenerate answers (too-hard filter)"
        )
    lines = [f"{host}: {' '.join(as_lines(host, chosen))}" for host, chosen in settings.items()]
    # What any OpenAI-compatible server takes, a gateway takes as well.
    settings.setdefault("gateway", settings.get("openai", {}))
    return Prescription(
        method, " ".join(why), {host: settings.get(host) or None for host in HOSTS}, tuple(lines), tuple(later)
    )


def _nothing(found: Judgement) -> Prescription:
    if found.verdict == "healthy":
        why = "Nothing to change."
    else:
        why = "Supply what is listed as not measured, then diagnose again; change nothing on this evidence."
    return Prescription(None, why, dict.fromkeys(HOSTS))


def _merge(settings: dict[str, dict[str, Any]], name: str, **values: Any) -> None:
    """Add a method's settings for every host that has it and where it acts."""
    method = find_method(name)
    for host in HOSTS:
        found = settings_for(method, host, **values)
        if found and not _inert(name, values, host):
            settings.setdefault(host, {}).update(found)


def _inert(name: str, values: Mapping[str, Any], host: str) -> bool:
    """Whether the linter finds that it changes nothing on one update per batch, TRL's default: no rollout tells us otherwise."""
    return any(
        found.verdict == "inert" and found.method == name
        for found in lint({name: values}, Setup(host=host, updates_per_batch=1))
    )


def _best_budget(estimates: Mapping[str, list[Estimate]]) -> tuple[int, int]:
    """The best budget and how many samples of it the largest budget pays for."""
    numbers = estimates.get("budget", [])
    best = next(int(e.value) for e in numbers if e.name == "best_budget" and e.value is not None)
    tokens = {float(e.at["budget"]): float(e.at["tokens"]) for e in numbers if e.name == "accuracy"}
    return best, max(2, int(tokens[max(tokens)] // tokens[float(best)]))
