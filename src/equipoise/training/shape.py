"""From grades to token advantages, with what remembers earlier steps. Axes: P problems, G completions, B = P·G rows, T tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import signature
from types import MappingProxyType
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
READ = ("degenerate_PG", "format_ok_PG")  # read out of a batch where something asks for it
REFERENCE = ("logp_PGJ", "token_PJ")  # scored where something asks for it: `training.references`
GROUPS = ("keep_PG", "reward_PG", "correct_PG", "answer_PG", "confidence_PG", "n_tokens_PG", "truncated_PG")
MEASURED = (*GROUPS, VISITS, *READ, *REFERENCE)


@dataclass(frozen=True, slots=True)
class Shaped:
    """What the update takes, and what was left out of it."""

    adv_PG: np.ndarray
    bonus_PG: np.ndarray
    adv_BT: np.ndarray  # both, on the tokens
    keep_PG: np.ndarray
    dealt_P: np.ndarray  # places of the problems that are dealt out over the updates
    dropped: Mapping[str, int]  # reason → completions
    moved: Mapping[str, float]  # settings of advantage and bonuses that controllers have moved


class Shaper:
    """The reward's parts, filters, advantage and bonuses of a recipe; keeps the outcome counter and the controllers."""

    def __init__(self, method: Method, *, refilled: bool = False) -> None:
        self.method, self.refilled = method, refilled
        self.controllers = {read_spec(spec)[0]: build(spec) for spec in method.controllers}
        self._rewards = [_built(spec) for spec in method.rewards]
        self._filters = [_built(spec) for spec in method.filters]
        self._advantage = _built(method.advantage)
        self._bonuses = [_built(spec) for spec in method.bonuses]
        self._asked = set().union(*map(_inputs, [*self._rewards, *self._filters, self._advantage, *self._bonuses]))
        self.counter = OutcomeCounter() if any(VISITS in _inputs(call) for call in self._bonuses) else None
        self._movable = {_name(call): call for call in [self._advantage, *self._bonuses]}
        for key in self._own():
            owner, _, name = key.rpartition(".")
            if name not in _inputs(self._movable[owner]):
                raise UsageError(f"a controller moves {key}, and {owner} has no such setting")

    @property
    def needs_answer(self) -> bool:
        """Whether the tokens of the final answer must be known."""
        return bool(self._bonuses) and not self.method.bonus_on_answer

    @property
    def needs_references(self) -> bool:
        """Whether the reference answers must be scored after each chain of thought."""
        return bool(self._asked & set(REFERENCE))

    def live_P(self, batch: Batch, references: Mapping[str, np.ndarray]) -> np.ndarray:
        """(P,) bool: the problems of which the filters leave something. Changes nothing."""
        keep_PG, _ = self._filter(self._given(batch, references))
        return np.asarray(keep_PG.any(axis=1))

    def shape(
        self,
        batch: Batch,
        mask_BT: np.ndarray,
        answer_BT: np.ndarray | None = None,
        references: Mapping[str, np.ndarray] = MappingProxyType({}),
    ) -> Shaped:
        """Advantages of a step. It counts the step's answers: call it once a step."""
        groups, given = batch.groups, self._given(batch, references)
        if self.counter is not None:
            self.counter.observe(groups.prompt_ids_P, batch.answers_PG)
        keep_PG, dropped = self._filter(given)
        moved = self._own()

        def run(call: Callable[..., Any]) -> np.ndarray:
            own = {key.rpartition(".")[2]: v for key, v in moved.items() if key.rpartition(".")[0] == _name(call)}
            return np.asarray(_run(partial(call, **own), given))

        adv_PG = np.where(keep_PG, run(self._advantage), 0.0)
        bonus_PG = np.where(keep_PG, sum(map(run, self._bonuses), start=np.zeros(adv_PG.shape)), 0.0)
        adv_BT = spread_advantage(adv_PG, keep_PG, mask_BT, row_PG=groups.row_PG)
        if self.needs_answer:
            adv_BT = adv_BT + spread_bonus(bonus_PG, keep_PG, mask_BT, answer_BT, row_PG=groups.row_PG)
        elif self._bonuses:
            adv_BT = adv_BT + spread_advantage(bonus_PG, keep_PG, mask_BT, row_PG=groups.row_PG)
        # A step that is refilled has as many problems to learn from as was asked for, and so has each of its updates.
        dealt_P = np.flatnonzero(keep_PG.any(axis=1)) if self.refilled else np.arange(len(keep_PG))
        return Shaped(adv_PG, bonus_PG, adv_BT, keep_PG, dealt_P, dropped, moved)

    def _given(self, batch: Batch, references: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """All that methods may ask for, the reward with its parts."""
        groups = batch.groups
        given = {name: getattr(groups, name) for name in groups.__slots__ if name.endswith("_PG")}
        given |= {name: getattr(batch, name) for name in READ if name in self._asked} | dict(references)
        if self.counter is not None:
            given[VISITS] = self.counter.count(groups.prompt_ids_P, batch.answers_PG)
        given["reward_PG"] = sum((_run(call, given) for call in self._rewards), start=given["reward_PG"])
        return given

    def _filter(self, given: Mapping[str, Any]) -> tuple[np.ndarray, dict[str, int]]:
        """What is learnt from, and by reason how many completions are not."""
        kept = scored(reward_PG=given["reward_PG"], keep_PG=given["keep_PG"])
        dropped = dict(kept.counts)
        for call in self._filters:
            # A group's mean is over all that was scored; filters decide what is learnt from, not what it is compared with.
            kept = _run(call, {**given, "keep_PG": kept.keep_PG})
            dropped |= kept.counts
        return kept.keep_PG, dropped

    @property
    def budget(self) -> EntropyBudget | None:
        """The controller that weighs tokens; all others move settings."""
        return next((c for c in self.controllers.values() if isinstance(c, EntropyBudget)), None)

    def observe(self, entropies: Tally) -> None:
        """The entropies of a step's tokens, before its advantages and update: the step is steered by its own entropy."""
        for controller in self._movers:
            controller.observe(entropies)

    def settings(self) -> dict[str, float]:
        """What the controllers want of the next update; what they want of advantage and bonuses is not among it."""
        return {key: value for key, value in self._wanted().items() if key.rpartition(".")[0] not in self._movable}

    def _own(self) -> dict[str, float]:
        return {key: value for key, value in self._wanted().items() if key.rpartition(".")[0] in self._movable}

    def _wanted(self) -> dict[str, float]:
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


def _name(call: Callable[..., Any]) -> str:
    return str(getattr(call, "__name__", type(call).__name__))


def _inputs(call: Callable[..., Any]) -> set[str]:
    return set(signature(call).parameters)


def _run(call: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    """Filled by parameter name, as objectives are."""
    return call(**{name: given[name] for name in _inputs(call) if name in given})
