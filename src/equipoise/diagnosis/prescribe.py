"""One next action for a verdict, in every host's own keys. The catalogue is the only source of settings.

| verdict | now | at the next round |
| --- | --- | --- |
| training-time entropy collapse | KL to the base model, in the loss of a run restarted from before the loss; twice the one it had | |
| inference-time variance inflation | cap thinking at the best budget, spend the rest on parallel samples and a vote | a Brier term in the reward; no overly hard samples |
| both | the training fix; the cap until it is trained | as above |
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Any

from equipoise.base import Estimate, Prescription
from equipoise.catalogue.build import read_spec
from equipoise.catalogue.hosts import HOSTS
from equipoise.catalogue.lint import lint
from equipoise.catalogue.paste import paste_for
from equipoise.catalogue.settings import as_lines, settings_for
from equipoise.catalogue.setup import Setup
from equipoise.catalogue.table import find_method
from equipoise.diagnosis.judge import Judgement
from equipoise.errors import UsageError
from equipoise.text.display import many

# What the next training should change too, and why.
NEXT = {
    "brier": "reward stated confidence by its Brier score, so that long doubt does not pay",
    "too_hard": "leave out samples that are never solved; they teach degenerate answers",
}
# 0.01 keeps pass@64 at nearly equal pass@1 where 0.001 and 0 lose it: https://arxiv.org/abs/2504.07912.
KL_COEF = 0.01


def prescribe(
    found: Judgement, estimates: Mapping[str, list[Estimate]], recorded: Mapping[str, Any] = MappingProxyType({})
) -> Prescription:
    """The action for a verdict. A host that has no such setting, or whose code is not there yet, gets None.

    `recorded`: the settings of the run, as its record has them.
    """
    failing = {loop for loop, state in found.states.items() if state == "failing"}
    if not failing:
        return _nothing(found)
    settings: dict[str, dict[str, Any]] = {}
    now: dict[str, dict[str, Any]] = {}
    why: list[str] = []
    later: dict[str, dict[str, Any]] = {}
    if "training" in failing:
        coef, reason = _kl_to_set(recorded)
        now["kl"] = {"coef": coef}
        why.append(reason)
    if "inference" in failing:
        best, samples = _best_budget(estimates)
        now |= {"majority": {"n": samples}, "cap": {"tokens": best}}
        later = {name: {} for name in NEXT}
        why.append(
            f"More thinking costs accuracy: cap it at {best:,} tokens a sample and spend the rest of the budget on "
            f"{many(samples, 'sample')} in parallel and a majority vote."
        )
    for name, values in now.items():
        _merge(settings, name, **values)
    lines = {host: f"{host}: {' '.join(as_lines(host, chosen))}" for host, chosen in settings.items()}
    lines |= _pasted(now, besides=lines)
    next_lines = _pasted(dict(islice(later.items(), 1)), besides=lines)
    # What any OpenAI-compatible server takes, a gateway takes as well.
    settings.setdefault("gateway", settings.get("openai", {}))
    return Prescription(
        next(iter(now)),
        " ".join(why),
        {host: settings.get(host) or None for host in HOSTS},
        tuple(lines.values()),
        tuple(f"next training: {NEXT[name]} (equipoise methods {name})" for name in later),
        tuple(next_lines.values()),
    )


def _kl_to_set(recorded: Mapping[str, Any]) -> tuple[float, str]:
    """The coefficient for the next run, and why."""
    had, back = recorded_kl(recorded), "go back to the last checkpoint before the loss and train on with"
    if had is None or had < KL_COEF:
        return KL_COEF, (
            f"Entropy drains where it is needed: {back} KL to the base model (coefficient {KL_COEF:g}), which acts on every update, "
            "on-policy ones too."
        )
    if _keeps_average(recorded):
        beside = "blend what it became with the base model (equipoise blend)"
    else:
        beside = "take the recipe that keeps more beside a KL (equipoise methods preserve)"
    return 2 * had, (
        f"Entropy drains where it is needed, although the run has a KL to the base model (coefficient {had:g}): {back} {2 * had:g}, or {beside}."
    )


def recorded_kl(settings: Mapping[str, Any]) -> float | None:
    """The coefficient of the KL to the base that a run's settings name, ours or TRL's `beta`; None: they name none."""
    named = _named(settings)
    ours = {**find_method("kl").settings, **named["kl"]}.get("coef") if "kl" in named else None
    return max(
        (each for each in (ours, settings.get("beta")) if isinstance(each, int | float) and each > 0), default=None
    )


def _keeps_average(settings: Mapping[str, Any]) -> bool:
    """Whether a run, ours or a TRL capture, keeps a moving average of its weights, as the recipe does."""
    learning = settings.get("learning")
    ours = learning.get("ema") if isinstance(learning, Mapping) else None
    return ours is not None or settings.get("average") is not None


def _named(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The methods that a run's settings name, our trainer's or a capture's. The record is a file of others: what is no spec is passed over."""
    method = settings.get("method")
    parts = {} if not isinstance(method, Mapping) else method
    found = {}
    for specs in (parts.get("regularisers"), settings.get("exploration")):
        for spec in specs if isinstance(specs, list | tuple) else ():
            try:
                name, given = read_spec(spec) if isinstance(spec, str) else ("", {})
            except UsageError:
                continue
            found[name] = given
    return found


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


def _pasted(chosen: Mapping[str, Mapping[str, Any]], *, besides: Collection[str]) -> dict[str, str]:
    """One line for each host that has none yet: the first of the methods that it, or our adapter inside it, runs and where it acts."""
    found: dict[str, str] = {}
    for name, values in chosen.items():
        for host in HOSTS:
            if host in besides or host in found or _inert(name, values, host):
                continue
            if (paste := paste_for(name, host, **values)) is not None:
                found[host] = str(paste)
    return found


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
