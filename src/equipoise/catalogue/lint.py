"""Finds controls that cannot act, before a run pays for them.

    lint(["kl_cov", "clip_higher"], Setup(host="trl", updates_per_batch=1))

says that KL-Cov is inert on strictly on-policy updates and that it ignores the clip's bounds. What a rule would need and the
setup does not know comes back as the verdict "unknown" with what to supply. The rules are `lint_rules.RULES`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from math import inf
from typing import Any

from equipoise.catalogue.build import read_spec
from equipoise.catalogue.lint_rules import RULES, Rule, Verdict
from equipoise.catalogue.setup import ASKS, Known, Setup, Unknown
from equipoise.catalogue.table import find_method
from equipoise.errors import UsageError, unknown_name

# Settings that a method takes and whose row leaves them at the function's own default.
_MORE = ("at_least", "seed", "kind", "dual_clip", "weight_floor", "inclusive", "initial", "end", "over", "scale")
_SHAPING = ("soft_overlong", "brier", "brier_with_format", "reference_likelihood", "vector_rewards")


@dataclass(frozen=True, slots=True)
class Lint:
    """One thing that a chosen method will not do as its name says."""

    method: str  # or method.setting, where only that is concerned
    verdict: Verdict
    why: str
    fix: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def lint(chosen: Mapping[str, Mapping[str, Any]] | Iterable[str], setup: Setup) -> list[Lint]:
    """What is wrong with these methods in this setup: by method in their order, and in each by the order of the rules.

    `chosen` has a method's name with the settings that differ from its row (as a `Recipe` has them), or specs such as
    `"clip_cov:share=0.0002"`. A method from outside the catalogue, `"module:name"`, has no rules and is passed over.
    """
    choices = _choices(chosen)
    if setup.deepconf_window is not None:
        choices["deepconf"] = {"window": setup.deepconf_window}
    if setup.std_scaling and not {"group_std", "group_mean"} & set(choices):
        choices["group_std"] = dict(find_method("group_std").settings)
    known = Known(_completed(setup, choices))
    found: list[Lint] = []
    for name, values in choices.items():
        of_method: list[Lint] = []
        asked: dict[str, list[str]] = {}  # what is not known → the checks that need it
        for rule in RULES:
            if name not in rule.methods:
                continue
            try:
                applies = rule.when(values, known, choices)
            except Unknown as missing:
                asked.setdefault(missing.name, []).append(rule.check)
                continue
            if applies:
                of_method.append(_lint(rule, name, values, known))
        found += of_method
        if not any(one.verdict == "inert" and one.method == name for one in of_method):
            found += [_unknown(name, needed, checks) for needed, checks in asked.items()]
    return found


def _lint(rule: Rule, name: str, values: Mapping[str, Any], known: Known) -> Lint:
    where = f"{name}.{rule.part}" if rule.part else name
    return Lint(where, rule.verdict, rule.why.format(v=values, s=known), rule.fix.format(v=values, s=known))


def _unknown(name: str, needed: str, checks: list[str]) -> Lint:
    """One for each thing to supply, with all that hangs on it."""
    why = f"cannot tell whether {' and whether '.join(dict.fromkeys(checks))}: {needed} is not known"
    return Lint(name, "unknown", why, f"supply {needed}: {ASKS[needed]}")


def _choices(chosen: Mapping[str, Mapping[str, Any]] | Iterable[str]) -> dict[str, dict[str, Any]]:
    pairs = list(chosen.items()) if isinstance(chosen, Mapping) else [read_spec(spec) for spec in chosen]
    choices: dict[str, dict[str, Any]] = {}
    for name, given in pairs:
        if ":" in name:
            continue
        method = find_method(name)
        for key in given:
            if key not in method.settings and key not in _MORE:
                raise unknown_name(f"setting of {method.name}", key, method.settings)
        if method.name in choices:
            raise UsageError(f"{method.name} was chosen twice: give it once, with all its settings")
        choices[method.name] = {**method.settings, **given}
    return choices


def _completed(setup: Setup, choices: Mapping[str, Mapping[str, Any]]) -> Setup:
    """The setup with what the choices themselves say. What was given stays."""
    said: dict[str, Any] = {}
    if any(name in choices for name in _SHAPING):
        said["shaped_reward"] = True
    for name in choices:
        if name != "deepconf" and find_method(name).kind == "reduction":
            said["reduction"] = name
    caps = [choices[name].get("dual_clip") for name in ("gppo", "ce_gppo") if name in choices]
    if "dual_clip" in choices:
        caps.append(choices["dual_clip"]["cap"])
    if set(caps) - {None}:
        said["dual_clip"] = min(cap for cap in caps if cap is not None)
    elif setup.host == "equipoise":
        said["dual_clip"] = inf  # ours has none that was not asked for
    return replace(setup, **{name: value for name, value in said.items() if getattr(setup, name) is None})
