"""What is asked of a TRL run, parted into options that TRL has itself and methods that are ours to add."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from itertools import chain
from typing import Any

from equipoise.catalogue.base import Method, Recipe
from equipoise.catalogue.build import read_spec
from equipoise.catalogue.lint import lint
from equipoise.catalogue.settings import SLOTS, settings_for
from equipoise.catalogue.setup import Setup
from equipoise.catalogue.table import find_method, methods
from equipoise.errors import UsageError

# The loss types that read epsilon and epsilon_high as distances from 1.
CLIPPING = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")

# Our reductions as loss types; `constant_length` is 'dr_grpo' where its length is max_completion_length.
LOSS_TYPES: Mapping[str, str] = {
    row.name: row.hosts["trl"]["loss_type"] for row in methods() if row.kind == "reduction"
}

# Kinds that have no place in this host, and what takes their part.
_ELSEWHERE = {
    "reward": "in TRL it is a reward function: equipoise.adapters.trl has brier_reward, overlong_reward and reference_reward for reward_funcs",
    "curriculum": "TRL's own sampler orders the prompts: filter or order the dataset instead",
    "allocation": "TRL draws num_generations completions of every prompt, all at once",
}
# Of the kind "data", those that a TRL run can take, and why it cannot take the others.
_LESSONS = ("rare_replay", "base_anchor")
_NO_DATA = {"critique_loop": "it draws second tries within a step, and TRL scores a batch once"}
_BEFORE = "it makes data for supervised training, before a run"


@dataclass(frozen=True, slots=True)
class Exploration:
    """Methods of the catalogue for one run, as specs: `"clip_cov_step:share=0.0002"`, or `"module:name:setting=value"`."""

    surrogate: str | None = None  # None: TRL's loss_type
    weights: tuple[str, ...] = ()
    regularisers: tuple[str, ...] = ()
    advantage: str | None = None  # None: TRL's scale_rewards
    bonuses: tuple[str, ...] = ()
    filters: tuple[str, ...] = ()
    controllers: tuple[str, ...] = ()
    demonstrations: tuple[str, ...] = ()  # completions that are imitated beside the policy gradient
    reduction: str | None = None  # None: that of TRL's loss_type; a name sets loss_type
    bonus_on_answer: bool = False  # whether a bonus reaches the tokens of the final answer too

    @classmethod
    def of(cls, *specs: str, bonus_on_answer: bool = False) -> Exploration:
        """Rows of the catalogue, each where its kind belongs. Code outside the catalogue is given by field."""
        chosen: dict[str, Any] = {}
        for spec in specs:
            name, _ = read_spec(spec)
            if ":" in name:
                raise UsageError(
                    f"'{spec}' is not in the catalogue: say what it is, Exploration(regularisers=('{spec}',))"
                )
            if why := refused(spec):
                raise UsageError(f"{name} cannot be added to a TRL run: {why}")
            slot = SLOTS[find_method(name).kind]
            if slot in _ONE:
                if slot in chosen:
                    raise UsageError(f"{chosen[slot]} and {spec} are both the run's {slot}: choose one")
                chosen[slot] = spec
            else:
                chosen[slot] = (*chosen.get(slot, ()), spec)
        return cls(**chosen, bonus_on_answer=bonus_on_answer)

    @classmethod
    def of_recipe(cls, recipe: Any) -> Exploration:
        """What `equipoise.recipe(…)` gives, which has the same parts by the same names."""
        for slot, kind in {"rewards": "reward", "curriculum": "curriculum", "allocation": "allocation"}.items():
            if getattr(recipe, slot):
                raise UsageError(
                    f"{getattr(recipe, slot)} of this recipe cannot be added to a TRL run: {_ELSEWHERE[kind]}"
                )
        return cls(**{its.name: getattr(recipe, its.name) for its in fields(cls)})

    @property
    def specs(self) -> tuple[str, ...]:
        one = tuple(spec for slot in _ONE if (spec := getattr(self, slot)) is not None)
        return tuple(chain(one, *(getattr(self, slot) for slot in _MANY)))


@dataclass(frozen=True, slots=True)
class HostPlan:
    """TRL's options, what is left for the mixin to add, and what to tell the user of both."""

    options: Mapping[str, Any]
    ours: Exploration
    told: tuple[str, ...]


def refused(spec: str) -> str:
    """Why a row of the catalogue cannot be added to a TRL run; empty where it can."""
    name, _ = read_spec(spec)
    if ":" in name:
        return ""
    method = find_method(name)
    if method.kind == "data" and method.name not in _LESSONS:
        return _NO_DATA.get(method.name, _BEFORE)
    return _ELSEWHERE.get(method.kind, "" if method.kind in SLOTS else "it acts at inference")


def plan_run(asked: Exploration, config: Any) -> HostPlan:
    """Part a choice of methods for this `GRPOConfig`, which is not changed."""
    if asked.reduction is not None and ":" in read_spec(asked.reduction)[0]:
        raise UsageError(f"TRL divides by its loss_type: {asked.reduction} is none of {', '.join(LOSS_TYPES)}")
    for spec in asked.demonstrations:
        if why := refused(spec):
            raise UsageError(f"{spec} cannot be added to a TRL run: {why}")
    for name, times in Counter(read_spec(spec)[0] for spec in asked.demonstrations).items():
        if times > 1:
            raise UsageError(f"{name} is asked for {times} times: choose one")
    left: dict[str, Any] = {
        slot: tuple(spec for spec in getattr(asked, slot) if not _native(spec, asked, config)) for slot in _MANY
    }
    for slot in _ONE:
        spec = getattr(asked, slot)
        left[slot] = None if spec is None or _native(spec, asked, config) else spec
    ours = replace(asked, **left)
    options: dict[str, Any] = {}
    told = []
    for spec in asked.specs:
        found = _native(spec, asked, config)
        for key, value in found.items():
            if options.setdefault(key, value) != value:
                raise UsageError(f"two methods set TRL's {key}, to {options[key]!r} and to {value!r}: choose one")
        if found:
            told.append(f"{spec} is TRL's own: {', '.join(f'{key}={value!r}' for key, value in found.items())}")
    told += [f"{one.method} is {one.verdict}: {one.why}" for one in _lints(asked, config) if one.verdict == "inert"]
    return HostPlan(options, ours, tuple(told))


def set_options(config: Any, options: Mapping[str, Any]) -> None:
    """Write TRL's options into its config; refused where the user had set them to something else."""
    defaults = {its.name: its.default for its in fields(config) if its.default is not MISSING}
    for key, value in options.items():
        found = getattr(config, key)
        if found not in (value, defaults.get(key)):
            raise UsageError(
                f"exploration asks for {key}={value!r} and GRPOConfig has {key}={found!r}: set it in one place"
            )
        setattr(config, key, value)


_ONE = ("surrogate", "advantage", "reduction")
_MANY = ("weights", "regularisers", "bonuses", "filters", "controllers", "demonstrations")


def _native(spec: str, asked: Exploration, config: Any) -> dict[str, Any]:
    """TRL's options for a method, none where TRL does not have it as it is asked for."""
    name, given = read_spec(spec)
    if ":" in name:
        return {}
    method = find_method(name)
    if method.kind == "reduction":
        return {"loss_type": _loss_type(spec, config)}
    if "trl" not in method.hosts or set(given) - set(method.settings):
        return {}
    if method.kind == "weight" and not _trl_loss(asked):
        return {}  # TRL's mask acts on its own loss alone
    if method.name in ("clip", "clip_higher") and config.loss_type not in CLIPPING:
        raise UsageError(f"{spec} bounds the loss types {', '.join(CLIPPING)}, found loss_type='{config.loss_type}'")
    return settings_for(method, "trl", **given)


def _loss_type(spec: str, config: Any) -> str:
    name, given = read_spec(spec)
    found = find_method(name).name
    length = given.get("length", find_method(name).settings.get("length"))
    if found == "constant_length" and length != config.max_completion_length:
        raise UsageError(
            f"TRL's dr_grpo divides by max_completion_length={config.max_completion_length}, asked was {spec}: give it that length"
        )
    return LOSS_TYPES[found]


def _trl_loss(asked: Exploration) -> bool:
    """Whether the surrogate is one that TRL has."""
    if asked.surrogate is None:
        return True
    name, given = read_spec(asked.surrogate)
    method: Method | None = None if ":" in name else find_method(name)
    return method is not None and "trl" in method.hosts and not set(given) - set(method.settings)


def _lints(asked: Exploration, config: Any) -> Iterator[Any]:
    """What the catalogue knows of these methods in this set-up."""
    accumulation = config.gradient_accumulation_steps
    updates = config.num_iterations * max(config.steps_per_generation // accumulation, 1)
    setup = Setup(
        host="trl",
        updates_per_batch=updates,
        group_size=config.num_generations,
        std_scaling=config.scale_rewards != "none",
        max_tokens=config.max_completion_length,
        bonus_on_answer=asked.bonus_on_answer,
    )
    yield from lint(asked.specs, setup)


def as_exploration(asked: Any) -> Exploration:
    """What a trainer may be given: an `Exploration`, a recipe, one spec or several, or nothing."""
    if isinstance(asked, Exploration):
        return asked
    if hasattr(asked, "surrogate"):
        return Exploration.of_recipe(asked)
    return Exploration.of(*((asked,) if isinstance(asked, str) else asked or ()))


def with_recipe(given: Exploration, recipe: Recipe) -> Exploration:
    """The recipe's methods, but for the parts that are given: one of them replaces the recipe's, as in our own trainer."""
    said = {its.name: getattr(given, its.name) for its in fields(given) if getattr(given, its.name) != its.default}
    return replace(Exploration.of(*recipe.specs), **said)
