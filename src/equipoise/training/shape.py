"""From grades to token advantages, with what remembers earlier steps. Axes: P problems, G completions, B = P·G rows, T tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any

import numpy as np

from equipoise.base import Controller, Tally
from equipoise.catalogue.build import build, read_spec
from equipoise.errors import UsageError
from equipoise.shaping.counter import OutcomeCounter
from equipoise.shaping.entropy_budget import EntropyBudget
from equipoise.shaping.filters import scored
from equipoise.shaping.tokens import spread_advantage, spread_bonus
from equipoise.training.collect import Batch
from equipoise.training.recipe import Method

VISITS = "visits_PG"  # the input of historical exploration: counts from before this step
MEASURED = ("keep_PG", "reward_PG", "correct_PG", "answer_PG", "confidence_PG", "n_tokens_PG", "truncated_PG", VISITS)


@dataclass(frozen=True, slots=True)
class Shaped:
    """What the update takes, and what was left out of it."""

    adv_PG: np.ndarray
    bonus_PG: np.ndarray
    adv_BT: np.ndarray  # both, on the tokens
    keep_PG: np.ndarray
    dropped: Mapping[str, int]  # reason → completions


class Shaper:
    """The reward's parts, filters, advantage and bonuses of a recipe; keeps the outcome counter and the controllers."""

    def __init__(self, method: Method) -> None:
        self.method = method
        self.controllers = {read_spec(spec)[0]: build(spec) for spec in method.controllers}
        self._rewards = [_built(spec) for spec in method.rewards]
        self._filters = [_built(spec) for spec in method.filters]
        self._advantage = _built(method.advantage)
        self._bonuses = [_built(spec) for spec in method.bonuses]
        self.counter = OutcomeCounter() if any(VISITS in _inputs(call) for call in self._bonuses) else None

    @property
    def needs_answer(self) -> bool:
        """Whether the tokens of the final answer must be known."""
        return bool(self._bonuses) and not self.method.bonus_on_answer

    def shape(self, batch: Batch, mask_BT: np.ndarray, answer_BT: np.ndarray | None = None) -> Shaped:
        """Advantages of a step. It counts the step's answers: call it once a step."""
        groups = batch.groups
        given = {name: getattr(groups, name) for name in groups.__slots__ if name.endswith("_PG")}
        if self.counter is not None:
            given[VISITS] = self.counter.visit(groups.prompt_ids_P, batch.answers_PG)
        given["reward_PG"] = sum((_run(call, given) for call in self._rewards), start=given["reward_PG"])
        kept = scored(reward_PG=given["reward_PG"], keep_PG=given["keep_PG"])
        dropped = dict(kept.counts)
        for call in self._filters:
            # A group's mean is over all that was scored; filters decide what is learnt from, not what it is compared with.
            found = _run(call, given | {"keep_PG": kept.keep_PG})
            dropped |= found.counts
            kept = found
        adv_PG = np.where(kept.keep_PG, _run(self._advantage, given), 0.0)
        bonus_PG = np.where(
            kept.keep_PG, sum((_run(call, given) for call in self._bonuses), start=np.zeros(adv_PG.shape)), 0.0
        )
        adv_BT = spread_advantage(adv_PG, kept.keep_PG, mask_BT, row_PG=groups.row_PG)
        if self.needs_answer:
            adv_BT = adv_BT + spread_bonus(bonus_PG, kept.keep_PG, mask_BT, answer_BT, row_PG=groups.row_PG)
        elif self._bonuses:
            adv_BT = adv_BT + spread_advantage(bonus_PG, kept.keep_PG, mask_BT, row_PG=groups.row_PG)
        return Shaped(adv_PG, bonus_PG, adv_BT, kept.keep_PG, dropped)

    @property
    def budget(self) -> EntropyBudget | None:
        """The controller that weighs tokens; all others move settings."""
        return next((c for c in self.controllers.values() if isinstance(c, EntropyBudget)), None)

    def observe(self, entropies: Tally) -> None:
        """The entropies of a step's tokens, before its update: the step is steered by its own entropy."""
        for controller in self._movers:
            controller.observe(entropies)

    def settings(self) -> dict[str, float]:
        """What the controllers want of the next update."""
        return {key: value for controller in self._movers for key, value in controller.settings().items()}

    @property
    def _movers(self) -> list[Controller]:
        return [c for c in self.controllers.values() if not isinstance(c, EntropyBudget)]

    def state(self) -> dict[str, Any]:
        return {
            "controllers": {name: controller.state() for name, controller in self.controllers.items()},
            "counter": None if self.counter is None else self.counter.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        if set(state["controllers"]) != set(self.controllers) or (state["counter"] is None) != (self.counter is None):
            raise UsageError(
                "this checkpoint was made with other controllers or bonuses: resume with the config it was made with"
            )
        for name, controller in self.controllers.items():
            controller.restore(state["controllers"][name])
        if self.counter is not None:
            self.counter.restore(state["counter"])


def _built(spec: str) -> Callable[..., Any]:
    """The method of a spec; refused where it cannot do without something that is not measured here."""
    call: Callable[..., Any] = build(spec)
    lacking = [p.name for p in signature(call).parameters.values() if p.default is p.empty and p.name not in MEASURED]
    if lacking:
        raise UsageError(f"{spec} needs {', '.join(lacking)}: this trainer has {', '.join(MEASURED)}")
    return call


def _inputs(call: Callable[..., Any]) -> set[str]:
    return set(signature(call).parameters)


def _run(call: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    """Filled by parameter name, as objectives are."""
    return call(**{name: given[name] for name in _inputs(call) if name in given})
