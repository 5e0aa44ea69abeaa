"""What a training run is, as data: read from TOML, written into the run folder. No torch here, so a config is checked at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from equipoise.catalogue.base import Recipe
from equipoise.catalogue.build import build, read_spec
from equipoise.catalogue.lint import Lint, lint
from equipoise.catalogue.settings import SLOTS
from equipoise.catalogue.setup import Setup
from equipoise.catalogue.table import find_method, find_recipe
from equipoise.errors import UsageError
from equipoise.shaping.scouting import Scouting
from equipoise.tasks.table import find_task
from equipoise.training.trackers import check_trackers

REFERENCE = "{reference}"  # the place of a solution in a template


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
                raise ValueError(f"{name} belongs under {where}, not {slot}: its kind is {found.kind}")
            if found is not None and found.lacking:
                raise ValueError(f"{name} cannot run in this trainer: it needs {found.lacking}")
            name = name if found is None else found.name
            if name in names:
                raise ValueError(f"{name} stands twice under {slot}: settings and state go by its name")
            names.add(name)
        return specs

    return AfterValidator(check)


def _known_to(check: Callable[[Any], object]) -> AfterValidator:
    """Refuse what `check` refuses, in its words."""

    def checked(value: Any) -> Any:
        try:
            check(value)
        except UsageError as problem:
            raise ValueError(str(problem)) from problem
        return value

    return AfterValidator(checked)


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
    curriculum: Annotated[str, _methods_of("curriculum")] | None = None  # which problems of sampling.pool come next
    # Which problems of a step get all of sampling.samples, by a few first ones of each; None: every problem that it poses.
    allocation: Annotated[str, _methods_of("allocation")] | None = None
    demonstrations: Annotated[tuple[str, ...], _methods_of("demonstrations")] = ()

    def specs(self) -> tuple[str, ...]:
        lists = (self.weights, self.regularisers, self.rewards, self.bonuses, self.filters, self.controllers)
        chosen = [self.surrogate, self.reduction, self.advantage, *(spec for specs in lists for spec in specs)]
        return (*chosen, *self.demonstrations, *filter(None, (self.curriculum, self.allocation)))


class Sampling(Strict):
    prompts: int = Field(64, ge=1)  # problems of a step; where it scouts, those that it chooses and learns from
    samples: int = Field(16, ge=1)  # completions of each
    temperature: float = Field(1.0, gt=0, le=10)
    max_tokens: int = Field(20, ge=1)
    pool: int | None = Field(None, ge=1)  # problems that all steps draw from; None: every step has fresh ones
    # Dynamic sampling: while filters leave nothing of some problems, as many others are drawn beside them, so many times a step…
    refills: int = Field(0, ge=0)
    most_prompts: int | None = Field(None, ge=1)  # … and up to so many problems in all; None: as the rounds need

    @property
    def most(self) -> int:
        """The most problems that a step can learn from."""
        return min(self.prompts * (1 + self.refills), self.most_prompts or self.prompts * (1 + self.refills))


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
    # A moving average of the weights, θ̄ ← ema θ̄ + (1 − ema) θ after every step, kept in the checkpoints; training does not read it.
    ema: float | None = Field(None, gt=0, lt=1)
    # What the run hands over, and what its evaluations are of: θ_base + blend (θ − θ_base), θ the averaged weights where there is an
    # average. None: the weights themselves. Training goes on from its own weights.
    blend: float | None = Field(None, gt=0, le=1)


class Supervised(Strict):
    """Supervised training before the first step, by AdamW. What it makes of the model is the run's base, to which a KL is taken.

    It follows from its own seed: runs that differ only in theirs begin with the same model.
    """

    problems: int | None = Field(None, ge=1)  # of the split "train", each with the solution that it was made from
    template: str = REFERENCE  # how a solution is written
    file: Path | None = None  # instead: a JSON line per pair, `prompt` and `completion` as texts or chat messages
    seed: int = 0
    steps: int = Field(500, ge=1)
    batch: int = Field(64, ge=1)  # pairs of a step
    lr: float = Field(3e-4, gt=0)
    schedule: Literal["cosine", "constant"] = "cosine"
    warmup: int = Field(50, ge=0)
    weight_decay: float = Field(0.1, ge=0)
    rows: int = Field(512, ge=1)  # pairs of one forward pass; changes memory, not the result

    @model_validator(mode="after")
    def _one_source(self) -> Supervised:
        if (self.problems is None) == (self.file is None):
            found = "neither" if self.file is None else "both"
            raise ValueError(f"supervised training needs problems or a file to learn from, found {found}: set one")
        if REFERENCE not in self.template or (self.file is not None and self.template != REFERENCE):
            raise ValueError(
                f"template says how the solution of a problem is written, with {REFERENCE} in its place, found "
                f"'{self.template}'; pairs of a file are learnt as they are"
            )
        return self


class Evaluation(Strict):
    every: int = Field(100, ge=1)
    problems: int = Field(128, ge=2)
    samples: int = Field(64, ge=1)
    temperatures: tuple[Annotated[float, Field(gt=0, le=10)], ...] = (1.0,)
    split: Literal["test", "tune"] = "test"  # training draws from the third, and splits share no problem
    rows: int = Field(8192, ge=1)  # completions sampled at once; changes memory, not the result


class TrainConfig(Strict):
    """One run. Everything random follows from `seed` and the step, so that a resumed run draws what it would have drawn."""

    out: Path
    task: Annotated[str, _known_to(find_task)] = "countdown"
    # packaged, packaged:medium, a .safetensors file, smollm2, a folder or hub name, or a run folder: its newest checkpoint
    model: str = "packaged"
    seed: int = 0
    device: str = "cpu"
    # Of the catalogue: its methods, temperature and average, where nothing is set below. How much a step draws is set below alone.
    recipe: Annotated[str, _known_to(find_recipe)] | None = None
    sft: Supervised | None = None
    method: Method = Method()
    sampling: Sampling = Sampling()
    learning: Learning = Learning()
    evaluation: Evaluation = Evaluation()
    save_every: int = Field(50, ge=1)
    record_every: int = Field(1, ge=1)  # steps between those whose rollouts are recorded; the last is always
    trackers: Annotated[tuple[str, ...], _known_to(check_trackers)] = ()

    @model_validator(mode="after")
    def _fill_in(self) -> TrainConfig:
        if self.recipe is None:
            return self
        row = find_recipe(self.recipe)
        weights = {} if row.ema is None else {"ema": row.ema, "blend": 1.0}
        sampling = {} if row.temperature is None else {"temperature": row.temperature}
        for table, parts in (("method", _parts(row)), ("sampling", sampling), ("learning", weights)):
            given = getattr(self, table)
            said = {name: getattr(given, name) for name in given.model_fields_set}
            # Of a frozen model, and not before it is validated: strict JSON would then take no list for a tuple.
            object.__setattr__(self, table, type(given)(**{**parts, **said}))
        return self

    @model_validator(mode="after")
    def _fits(self) -> TrainConfig:
        how = self.sampling
        if self.learning.updates > how.prompts:
            raise ValueError(f"learning.updates {self.learning.updates} must not exceed sampling.prompts {how.prompts}")
        if self.method.curriculum is not None and how.pool is None:
            raise ValueError("method.curriculum chooses from a pool of problems: set sampling.pool, say to 4096")
        self._check_allocation()
        if how.pool is not None and how.pool < self.most_problems:
            raise ValueError(
                f"sampling.pool {how.pool} is too small for a step, which may pose {self.most_problems} problems"
            )
        if how.refills and not self.method.filters:
            raise ValueError(
                "sampling.refills replaces problems of which filters leave nothing: name one in method.filters, "
                "say dynamic_sampling"
            )
        if how.most_prompts is not None and (not how.refills or how.most_prompts < how.prompts):
            raise ValueError(
                f"sampling.most_prompts {how.most_prompts} limits refills: set sampling.refills, and at least "
                f"sampling.prompts {how.prompts}"
            )
        return self

    def _check_allocation(self) -> None:
        scouting, how = self.allocation, self.sampling
        if scouting is None:
            return
        if how.refills:
            raise ValueError(
                f"{self.method.allocation} and sampling.refills {how.refills} each choose the problems that a step learns from: "
                "leave out one of them"
            )
        if scouting.scouts < how.prompts:
            raise ValueError(
                f"{self.method.allocation} poses {scouting.scouts} problems, and sampling.prompts {how.prompts} are to be "
                "chosen of them: set scouts to that or more"
            )
        if scouting.first >= how.samples:
            raise ValueError(
                f"{self.method.allocation} draws {scouting.first} completions of every problem at first, which leaves nothing "
                f"of sampling.samples {how.samples} for those that it chooses: set first below that"
            )

    @property
    def allocation(self) -> Scouting | None:
        return None if self.method.allocation is None else build(self.method.allocation)

    @property
    def most_problems(self) -> int:
        """The most problems that a step can pose."""
        scouting = self.allocation
        return self.sampling.most if scouting is None else scouting.scouts

    @property
    def most_rollouts(self) -> int:
        """Completions that training draws: just as many, or at most where steps are refilled or failed problems tried again.

        Those that the base model draws before the first step, to be anchored to them, are among them.
        """
        tries = once = 0
        for spec in self.method.demonstrations:
            name, given = read_spec(spec)
            own = {} if ":" in name else find_method(name).settings
            tries += int({**own, **given}.get("tries", 0))
            once += int({**own, **given}.get("problems", 0))
        steps, how, scouting = self.learning.steps, self.sampling, self.allocation
        passed_over = 0 if scouting is None else (scouting.scouts - how.prompts) * scouting.first
        return steps * (how.most * (how.samples + tries) + passed_over) + (once * how.samples if steps else 0)

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

    A part replaces the recipe's: one spec, or a list where several may stand. A recipe's temperature and the average of its weights are
    no part of a method: `TrainConfig(recipe="preserve")`.
    """
    return Method(**{**_parts(find_recipe(name)), **parts})


def _parts(found: Recipe) -> dict[str, Any]:
    parts: dict[str, Any] = {}
    for name, spec in zip(found.methods, found.specs, strict=True):
        slot = SLOTS[find_method(name).kind]
        if isinstance(Method.model_fields[slot].default, tuple):
            parts.setdefault(slot, []).append(spec)
        else:
            parts[slot] = spec
    return parts


def as_settings(config: TrainConfig) -> Mapping[str, Any]:
    return config.model_dump(mode="json")
