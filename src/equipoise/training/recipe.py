"""What a training run is, as data: read from TOML, written into the run folder. No torch here, so a config is checked at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from equipoise.catalogue.base import Recipe
from equipoise.catalogue.build import read_spec
from equipoise.catalogue.lint import Lint, lint
from equipoise.catalogue.settings import SLOTS
from equipoise.catalogue.setup import Setup
from equipoise.catalogue.table import find_method, find_recipe
from equipoise.errors import UsageError
from equipoise.tasks.table import find_task
from equipoise.training.trackers import check_trackers


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _methods_of(slot: str) -> AfterValidator:
    """Refuse a spec that names no method, or one of another kind; code outside the catalogue is taken at its word."""

    def check(specs: Any) -> Any:
        names = set()
        for spec in [specs] if isinstance(specs, str) else specs:
            try:
                name, _ = read_spec(spec)
                found = None if ":" in name else find_method(name)
            except UsageError as problem:
                raise ValueError(str(problem)) from problem
            if found is not None and SLOTS.get(found.kind) != slot:
                where = SLOTS.get(found.kind, "no part of a training run")
                raise ValueError(f"{name} is a {found.kind} and belongs under {where}, not {slot}")
            name = name if found is None else found.name
            if name in names:
                raise ValueError(f"{name} stands twice under {slot}: settings and state go by its name")
            names.add(name)
        return specs

    return AfterValidator(check)


def _task(spec: str) -> str:
    try:
        find_task(spec)
    except UsageError as problem:
        raise ValueError(str(problem)) from problem
    return spec


def _trackers(names: tuple[str, ...]) -> tuple[str, ...]:
    try:
        check_trackers(names)
    except UsageError as problem:
        raise ValueError(str(problem)) from problem
    return names


class Method(Strict):
    """The update. Each entry is a method of the catalogue, `clip_higher` or `kl:coef=0.01`: see `equipoise methods`."""

    surrogate: Annotated[str, _methods_of("surrogate")] = "clip"
    weights: Annotated[tuple[str, ...], _methods_of("weights")] = ()
    regularisers: Annotated[tuple[str, ...], _methods_of("regularisers")] = ()
    reduction: Annotated[str, _methods_of("reduction")] = "token_mean"
    advantage: Annotated[str, _methods_of("advantage")] = "group_std"
    rewards: Annotated[tuple[str, ...], _methods_of("rewards")] = ()  # added to the task's own
    bonuses: Annotated[tuple[str, ...], _methods_of("bonuses")] = ()
    bonus_on_answer: bool = False  # True where a completion is nothing but its answer, as in Countdown
    filters: Annotated[tuple[str, ...], _methods_of("filters")] = ()
    controllers: Annotated[tuple[str, ...], _methods_of("controllers")] = ()

    def specs(self) -> tuple[str, ...]:
        lists = (self.weights, self.regularisers, self.rewards, self.bonuses, self.filters, self.controllers)
        return (self.surrogate, self.reduction, self.advantage, *(spec for specs in lists for spec in specs))


class Sampling(Strict):
    prompts: int = Field(64, ge=1)  # problems of a step
    samples: int = Field(16, ge=1)  # completions of each
    temperature: float = Field(1.0, gt=0, le=10)
    max_tokens: int = Field(20, ge=1)


class Learning(Strict):
    steps: int = Field(400, ge=0)
    lr: float = Field(1e-4, gt=0)
    warmup: int = Field(10, ge=0)  # steps over which the learning rate rises from 0
    weight_decay: float = Field(0.0, ge=0)
    clip_norm: float = Field(1.0, gt=0)
    updates: int = Field(1, ge=1)  # optimiser updates on the completions of a step
    # Completions of one forward pass. It changes memory, not the result, but for methods that choose tokens within a pass
    # (forking, clip_cov, kl_cov): their _step forms choose over the whole update.
    rows: int = Field(512, ge=1)


class Evaluation(Strict):
    every: int = Field(100, ge=1)
    problems: int = Field(128, ge=2)
    samples: int = Field(64, ge=1)
    temperatures: tuple[Annotated[float, Field(gt=0, le=10)], ...] = (1.0,)
    split: Literal["test", "tune"] = "test"  # training draws from the third, and splits share no problem


class TrainConfig(Strict):
    """One run. Everything random follows from `seed` and the step, so that a resumed run draws what it would have drawn."""

    out: Path
    task: Annotated[str, AfterValidator(_task)] = "countdown"
    model: str = "packaged"  # packaged, packaged:medium, a .safetensors file, smollm2, a folder or hub name
    seed: int = 0
    device: str = "cpu"
    method: Method = Method()
    sampling: Sampling = Sampling()
    learning: Learning = Learning()
    evaluation: Evaluation = Evaluation()
    save_every: int = Field(50, ge=1)
    record_every: int = Field(1, ge=1)  # steps between those whose rollouts are recorded; the last is always
    trackers: Annotated[tuple[str, ...], AfterValidator(_trackers)] = ()

    @model_validator(mode="after")
    def _fits(self) -> TrainConfig:
        if self.learning.updates > self.sampling.prompts:
            raise ValueError(
                f"learning.updates {self.learning.updates} must not exceed sampling.prompts {self.sampling.prompts}"
            )
        return self

    def warnings(self) -> list[Lint]:
        """What the linter says of this run before it starts, as far as the config tells."""
        setup = Setup(
            host="equipoise",
            updates_per_batch=self.learning.updates,
            reduction=read_spec(self.method.reduction)[0],
            group_size=self.sampling.samples,
            bonus_on_answer=self.method.bonus_on_answer,
            max_tokens=self.sampling.max_tokens,
            shaped_reward=bool(self.method.rewards),
        )
        return [found for found in lint(self.method.specs(), setup) if found.verdict != "unknown"]


def recipe(name: str, **parts: Any) -> Method:
    """A named recipe of the catalogue with parts of your own: `recipe("grpo", regularisers=["kl:coef=0.01"])`.

    A part replaces the recipe's: one spec, or a list where several may stand.
    """
    return Method(**{**_parts(find_recipe(name)), **parts})


def _parts(found: Recipe) -> dict[str, Any]:
    parts: dict[str, Any] = {}
    for name, settings in found.methods.items():
        spec = ":".join(filter(None, (name, ",".join(f"{key}={value}" for key, value in settings.items()))))
        slot = SLOTS[find_method(name).kind]
        if isinstance(Method.model_fields[slot].default, tuple):
            parts.setdefault(slot, []).append(spec)
        else:
            parts[slot] = spec
    return parts


def as_settings(config: TrainConfig) -> Mapping[str, Any]:
    return config.model_dump(mode="json")
