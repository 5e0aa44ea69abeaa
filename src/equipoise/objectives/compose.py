"""One objective from its parts: surrogate x weights + regularisers -> reduction.

    objective = compose(build("clip_higher"), weights=[build("forking_step")], regularisers=[build("kl:coef=0.01")])
    chosen = objective.prepare(step)                      # once per optimiser step
    for rows in micro_batches:
        objective(step.rows(rows), chosen=chosen.rows(rows)).backward()

A part is any function of tensors and settings. Parameters named like a field of `TokenBatch` are filled from the batch, all
others are settings. Settings stay data until the call, so a controller can move them: `settings={"clip_high": 0.3}`, or
`{"kl.coef": 0.02}` where several parts have one of that name. Weights multiply the surrogate and nothing else, as in TRL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from inspect import Parameter, signature
from typing import Any

from torch import Tensor

from equipoise.errors import UsageError, unknown_name
from equipoise.objectives.batch import FIELDS, Index, TokenBatch, missing, need, take_rows
from equipoise.objectives.reduce import token_mean
from equipoise.objectives.stepwide import StepWide

Call = Callable[..., Tensor]
Settings = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Part:
    """A function with what it reads from the batch, and the settings bound to it."""

    name: str
    call: Call
    inputs: Mapping[str, bool]  # name → whether it cannot do without
    settings: Mapping[str, Any]  # bound, and the function's own defaults
    unset: tuple[str, ...]  # settings that have neither
    step_wide: bool  # takes a `chosen_BT` of the whole step: its own choice, or tensors made elsewhere

    @classmethod
    def of(cls, call: Call, *, given: tuple[str, ...] = ("chosen_BT",)) -> Part:
        """`given` are parameters that come from neither the batch nor the settings."""
        function, bound = (call.func, call.keywords) if isinstance(call, partial) else (call, {})
        name = str(getattr(call, "__name__", getattr(function, "__name__", type(function).__name__)))
        inputs, settings, unset = {}, dict(bound), []
        parameters = signature(function).parameters
        waits = "chosen_BT" in parameters and parameters["chosen_BT"].default is Parameter.empty
        for parameter in parameters.values():
            known = parameter.name in FIELDS or parameter.name in given
            if parameter.name in FIELDS:
                inputs[parameter.name] = parameter.default is Parameter.empty
            elif not known and parameter.kind is not Parameter.KEYWORD_ONLY:
                raise UsageError(
                    f"{name} takes '{parameter.name}', which no TokenBatch has: it has {', '.join(sorted(FIELDS))}"
                )
            elif not known and parameter.name not in bound:
                if parameter.default is Parameter.empty:
                    unset.append(parameter.name)
                else:
                    settings[parameter.name] = parameter.default
        return cls(name, function, inputs, settings, tuple(unset), waits or isinstance(function, StepWide))

    def run(self, batch: TokenBatch, settings: Settings, **given: Tensor) -> Tensor:
        return self.call(**self._filled(batch), **self._bound(settings), **given)

    def choose(self, batch: TokenBatch, settings: Settings) -> Tensor:
        """The step-wide choice, by those of the part's settings that it takes."""
        if not isinstance(self.call, StepWide):
            raise UsageError(f"{self.name} takes tensors made elsewhere: prepare(step, given={{'{self.name}': …}})")
        choice = Part.of(self.call.choose)
        bound = {name: value for name, value in self._bound(settings).items() if name in choice.taken}
        return choice.call(**choice._filled(batch), **bound)

    @property
    def taken(self) -> tuple[str, ...]:
        return (*self.settings, *self.unset)

    def _filled(self, batch: TokenBatch) -> dict[str, Any]:
        values = {name: getattr(batch, name) for name in self.inputs}
        for name, required in self.inputs.items():
            if required and values[name] is None:
                raise missing(name, needed_by=self.name)
        return values

    def _bound(self, settings: Settings) -> dict[str, Any]:
        bound = {**self.settings, **settings}
        for name in self.unset:
            if name not in bound:
                raise UsageError(
                    f"{self.name} needs the setting '{name}': bind it, or pass settings={{'{self.name}.{name}': …}}"
                )
        return bound


@dataclass(frozen=True, slots=True)
class Chosen:
    """The step-wide choices of an objective's parts, by their names."""

    by_part: Mapping[str, Tensor] = field(default_factory=dict)

    def rows(self, index: Index) -> Chosen:
        return Chosen({name: take_rows(chosen_BT, index) for name, chosen_BT in self.by_part.items()})


@dataclass(frozen=True, slots=True)
class Terms:
    """What the loss is made of, per token."""

    surrogate_BT: Tensor
    weight_BT: Tensor | None  # None: no weights
    regularisers: Mapping[str, Tensor]

    @property
    def weighted(self) -> Tensor:
        return self.surrogate_BT if self.weight_BT is None else self.surrogate_BT * self.weight_BT

    @property
    def loss(self) -> Tensor:
        return sum(self.regularisers.values(), start=self.weighted)


@dataclass(frozen=True, slots=True)
class Objective:
    """Made by `compose`. Stateless: everything that moves comes in with the call."""

    surrogate: Part
    weights: tuple[Part, ...]
    regularisers: tuple[Part, ...]
    reduction: Part
    reductions: Mapping[str, Part]  # of a regulariser, where it is not divided as the surrogate is

    @property
    def parts(self) -> tuple[Part, ...]:
        return (self.surrogate, *self.weights, *self.regularisers, self.reduction, *self.reductions.values())

    @property
    def settings(self) -> dict[str, Any]:
        """Every setting as it is bound now, for the record of a run."""
        return {f"{part.name}.{name}": value for part in self.parts for name, value in part.settings.items()}

    def prepare(
        self, step: TokenBatch, *, settings: Settings | None = None, given: Mapping[str, Tensor] | None = None
    ) -> Chosen:
        """What is decided over the whole step, from its tensors as they are before the update.

        `step.logp_BT` is the current policy's; where no such pass was made, the sampling policy's stands in. `given` has
        what was made elsewhere, by the name of the part that takes it. On several ranks gather the step first.
        """
        moved, step, made = self._moved(settings), step.detached(), dict(given or {})
        wide = {part.name: part for part in self.parts if part.step_wide}
        for name, tensor_BT in made.items():
            if name not in wide:
                raise unknown_name("part that takes a choice over the step", name, wide)
            need(logp_BT=step.logp_BT, **{name: tensor_BT})
        for name, part in wide.items():
            if name not in made:
                made[name] = part.choose(step, moved[name])
        return Chosen(made)

    def terms(self, batch: TokenBatch, *, settings: Settings | None = None, chosen: Chosen | None = None) -> Terms:
        """The terms of some rows of the step, each 0 under the padding."""
        moved, chosen = self._moved(settings), chosen or Chosen()

        def run(part: Part) -> Tensor:
            term_BT = part.run(batch, moved[part.name], **_choice_of(part, chosen))
            need(logp_BT=batch.logp_BT, **{part.name: term_BT})
            return term_BT

        weight_BT = None
        for part in self.weights:
            weight_BT = run(part) if weight_BT is None else weight_BT * run(part)
        return Terms(run(self.surrogate), weight_BT, {part.name: run(part) for part in self.regularisers})

    def __call__(self, batch: TokenBatch, *, settings: Settings | None = None, chosen: Chosen | None = None) -> Tensor:
        """The loss of some rows of the step: the losses of all rows add up to the step's."""
        terms, moved = self.terms(batch, settings=settings, chosen=chosen), self._moved(settings)

        def reduced(part: Part, loss_BT: Tensor) -> Tensor:
            return part.run(batch, moved[part.name], loss_BT=loss_BT)

        loss = reduced(self.reduction, terms.weighted)
        for name, term_BT in terms.regularisers.items():
            loss = loss + reduced(self.reductions.get(name, self.reduction), term_BT)
        return loss

    def _moved(self, settings: Settings | None) -> dict[str, dict[str, Any]]:
        """Settings by part. A plain name goes to the one part that takes it."""
        moved: dict[str, dict[str, Any]] = {part.name: {} for part in self.parts}
        for key, value in (settings or {}).items():
            owner, _, name = key.rpartition(".")
            takers = sorted({part.name for part in self.parts if name in part.taken and owner in ("", part.name)})
            if not takers:
                raise unknown_name(
                    "setting", key, {f"{part.name}.{name}" for part in self.parts for name in part.taken}
                )
            if len(takers) > 1:
                raise UsageError(
                    f"{' and '.join(takers)} both take '{name}': say {' or '.join(f'{t}.{name}' for t in takers)}"
                )
            moved[takers[0]][name] = value
        return moved


def compose(
    surrogate: Call,
    *,
    weights: Sequence[Call] = (),
    regularisers: Sequence[Call] = (),
    reduction: Call = token_mean,
    reductions: Mapping[str, Call] | None = None,
) -> Objective:
    """An objective from callables whose settings are bound or come with each call.

    `reductions` names regularisers that are divided otherwise, say `{"entropy_bonus": token_mean}` as in TRL.
    """
    objective = Objective(
        Part.of(surrogate),
        tuple(map(Part.of, weights)),
        tuple(map(Part.of, regularisers)),
        Part.of(reduction, given=("loss_BT",)),
        {name: Part.of(call, given=("loss_BT",)) for name, call in (reductions or {}).items()},
    )
    names = [part.name for part in (objective.surrogate, *objective.weights, *objective.regularisers)]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two parts are named '{name}': settings could not tell them apart")
    for name in objective.reductions:
        if name not in {part.name for part in objective.regularisers}:
            raise unknown_name("regulariser", name, [part.name for part in objective.regularisers])
    return objective


def _choice_of(part: Part, chosen: Chosen) -> dict[str, Tensor]:
    if not part.step_wide:
        return {}
    if part.name not in chosen.by_part:
        raise UsageError(f"{part.name} acts on the whole step: pass chosen=objective.prepare(step), or its rows")
    return {"chosen_BT": chosen.by_part[part.name]}
