"""What a user pastes into a host for a method: the host's own option, or, where it has none, what our adapter takes there.

| host | its own | with equipoise installed beside it |
| --- | --- | --- |
| trl | `GRPOConfig(beta=0.01)` | `explore(GRPOTrainer)(…, exploration=['band:low=0.2,…'])`, or one of our reward functions |
| verl | `…kl_loss_coef=0.01` | `…loss_mode=equipoise_gppo`, and the other keys of its config in examples/verl |

Adapters cannot be asked from here: they need the hosts. So the names of what they are given stand here, and tests build the real
adapter from every line, and from none for what it refuses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from equipoise.catalogue.base import Method, Recipe
from equipoise.catalogue.hosts import HOSTS
from equipoise.catalogue.settings import as_lines, settings_for
from equipoise.catalogue.table import find_method, is_built
from equipoise.catalogue.verl_keys import NEW, added_keys
from equipoise.specs import write_spec

# What the TRL adapter hands to a part of the loss, as fields of a TokenBatch, and to what acts on groups.
LOSS_GETS = frozenset(
    (
        "logp_BT",
        "old_logp_BT",
        "adv_BT",
        "mask_BT",
        "entropy_BT",
        "ref_logp_BT",
        "ref_kl_BT",
        "planning_BT",
        "answer_BT",
    )
)
GROUPS_GET = frozenset(
    ("keep_PG", "reward_PG", "correct_PG", "answer_PG", "n_tokens_PG", "truncated_PG", "degenerate_PG", "visits_PG")
)
_OF_GROUPS = ("advantage", "filter", "bonus")
_IMITATED = ("rare_replay", "base_anchor")
_RIGHT = "accuracy_reward"  # stands for the user's function that is 1 for a right completion, by the name of TRL's own
# A setting that moves is one of a part of ours: TRL's own KL stands still.
_BESIDE = {"anneal_kl": "kl:coef={start},kind=exact"}
# Rewards are reward functions there. A score that has correctness in it takes the place of the function that says what is right.
_REWARDS = {
    "soft_overlong": ("overlong_reward", "[…, overlong_reward({0})]"),
    "brier": ("brier_reward", f"[brier_reward(correct={_RIGHT}, {{0}})], args=GRPOConfig(…, scale_rewards='none')"),
    "reference_likelihood": ("reference_reward", "[reference_reward('answer', {0})]"),
}


@dataclass(frozen=True, slots=True)
class Paste:
    """Lines for one host."""

    host: str
    lines: tuple[str, ...]
    needs: str = ""  # what is installed and imported beside the host; nothing: the option is its own

    @property
    def mark(self) -> str:
        """For whom the lines are, and whether equipoise must be there too."""
        return f"{self.host}, with equipoise" if self.needs else self.host

    def __str__(self) -> str:
        return f"{self.mark}: {' '.join(self.lines)}"


def paste_for(method: Method | str, host: str, **values: Any) -> Paste | None:
    """The lines that set a method in a host, None where neither the host nor our adapter can."""
    method = find_method(method) if isinstance(method, str) else method
    own = as_lines(host, settings_for(method, host, **values))
    if own:
        return Paste(host, tuple(own))
    if host not in _ADDED or method.loop != "training" or not is_built(method):
        return None
    return _ADDED[host](method, {**method.settings, **values})


def pastes(method: Method | str, **values: Any) -> tuple[Paste, ...]:
    """The lines for every host that can run the method, in the order of the hosts."""
    return tuple(found for host in HOSTS if (found := paste_for(method, host, **values)) is not None)


def recipe_pastes(recipe: Recipe) -> tuple[Paste, ...]:
    """The lines that run a whole recipe, for the hosts that take it by its name, in the order of the hosts."""
    chosen = [find_method(name) for name in recipe.methods]
    batch = f"sampling.prompts={recipe.prompts_per_step} sampling.samples={recipe.completions_per_prompt}"
    updates = f" learning.updates={recipe.updates_per_step}" if recipe.updates_per_step > 1 else ""
    found = [Paste("equipoise", (f"equipoise train recipe={recipe.name} {batch}{updates} out=FOLDER",))]
    if all("trl" in method.hosts or _fed_by_trl(method) for method in chosen):
        line = f"explore(GRPOTrainer)(…, recipe={recipe.name!r}{_verdicts(chosen)})"
        found.insert(0, Paste("trl", (line,), _needs_trl("explore")))
    return tuple(found)


def _into_trl(method: Method, chosen: Mapping[str, Any]) -> Paste | None:
    if method.name in _REWARDS:
        function, listed = _REWARDS[method.name]
        settings = ", ".join(f"{name}={value!r}" for name, value in chosen.items())
        return Paste("trl", (f"GRPOTrainer(…, reward_funcs={listed.format(settings)})",), _needs_trl(function))
    if not _fed_by_trl(method):
        return None
    beside = [_BESIDE[method.name].format(**chosen)] if method.name in _BESIDE else []
    specs = [*beside, write_spec(method.name, chosen)]
    return Paste(
        "trl", (f"explore(GRPOTrainer)(…, exploration={specs!r}{_verdicts([method])})",), _needs_trl("explore")
    )


def _verdicts(chosen: Sequence[Method]) -> str:
    """The argument that says what is right, where one of these asks."""
    asked = any("correct_PG" in method.inputs or method.name in _IMITATED for method in chosen)
    return f", correct='{_RIGHT}'" if asked else ""


def _fed_by_trl(method: Method) -> bool:
    """Whether `exploration=` takes it."""
    if method.kind in ("ratio_clip", "surrogate", "weight", "regulariser"):
        return set(method.inputs) <= LOSS_GETS
    if method.kind in _OF_GROUPS:
        return set(method.inputs) <= GROUPS_GET
    if method.kind == "controller":
        return "setting" not in method.settings or method.name in _BESIDE
    return method.name in _IMITATED


def _needs_trl(name: str) -> str:
    return f"pip install 'equipoise[trl]'; from equipoise.adapters.trl import {name}"


def _into_verl(method: Method, chosen: Mapping[str, Any]) -> Paste | None:
    keys = added_keys(method, chosen)
    lines = as_lines("verl", {f"+{key}" if key in NEW else key: value for key, value in keys.items()})
    needs = f"pip install 'equipoise[verl]' on every node; a whole config is examples/verl/{method.name}.yaml"
    return Paste("verl", tuple(lines), needs) if lines else None


_ADDED = {"trl": _into_trl, "verl": _into_verl}
