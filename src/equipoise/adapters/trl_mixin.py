"""`ExplorationMixin`: methods of the catalogue, and the record, over TRL's `GRPOTrainer`.

Private methods of TRL are wrapped and none is copied; they are called with whatever arguments they came with:

    _calculate_rewards                   the rewards of each function, gathered
    _generate_and_score_completions      advantages, bonuses, filters; choices over the whole batch; the capture's rows
    _get_per_token_logps_and_entropies   the tensors of the loss's own forward pass, its results read by index
    _compute_loss                        our terms beside TRL's loss, and completions that are imitated
    _load_optimizer_and_scheduler        the state of controllers and counters, where TRL reads that of its own controller
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from torch import Tensor
from transformers import TrainerCallback

from equipoise.adapters.trl_average import FOLDER, AverageWeights
from equipoise.adapters.trl_capture import Capture
from equipoise.adapters.trl_explore import Exploring
from equipoise.adapters.trl_loss import build_objective, reads
from equipoise.adapters.trl_plan import as_exploration, plan_run, set_options, with_recipe
from equipoise.adapters.trl_texts import Read
from equipoise.adapters.unsloth import refuse_unsloth
from equipoise.adapters.versions import check_version
from equipoise.catalogue.base import Recipe
from equipoise.catalogue.table import find_recipe
from equipoise.errors import UsageError
from equipoise.text.answers import read_answer

logger = logging.getLogger("equipoise")


class ExplorationMixin:
    """`class Trainer(ExplorationMixin, GRPOTrainer)`, or `explore(GRPOTrainer)`.

    `exploration`: specs such as "clip_cov_step:share=0.0002", an `Exploration`, or an `equipoise.recipe`. `capture`: a run folder, or a `Capture`.
    `correct`: the reward function whose 1 means that a completion is right. `read`: text → the answer that it states. `average`: decay of a
    moving average of the weights, kept in `self.average` and saved with every checkpoint. `recipe`: one of the catalogue by its name, its
    methods, its temperature where TRL's own is not changed, and its average; what is given beside it replaces its part, and
    average="none" leaves that out.
    """

    beta: float  # TRL's

    def __init__(
        self,
        *args: Any,
        exploration: Any = None,
        capture: Capture | Path | str | None = None,
        correct: str | None = None,
        read: Read = read_answer,
        average: float | Literal["none"] | None = None,
        recipe: str | None = None,
        **kwargs: Any,
    ) -> None:
        check_version("trl")
        refuse_unsloth(type(self))
        config = kwargs.get("args", args[2] if len(args) > 2 else None)
        if config is None:
            raise UsageError("exploration sets options of the trainer: give args=GRPOConfig(…)")
        asked = as_exploration(exploration)
        row = None if recipe is None else find_recipe(recipe)
        if row is not None:
            asked, average = with_recipe(asked, row), row.ema if average is None else average
        plan = plan_run(asked, config)
        set_options(config, plan.options)
        told = plan.told if row is None else (*plan.told, *_at_temperature(row, config))
        objective = build_objective(plan.ours)
        self._exploring: Exploring | None = None
        self._beta_of_loss = config.beta
        if config.beta == 0.0 and reads(objective, "ref_logp_BT"):
            config.beta = 1.0  # TRL has a reference model only for a KL of its own: its loss gets the 0 back
        self.average = None if average is None or average == "none" else AverageWeights(average)
        super().__init__(*args, **kwargs)
        config.beta = self._beta_of_loss
        self._exploring = Exploring(
            self,
            plan.ours,
            objective,
            capture=Capture(capture) if isinstance(capture, str | Path) else capture,
            correct=correct,
            read=read,
            specs=asked.specs,
            average=self.average,
        )
        self.add_callback(_Boundaries(self._exploring))  # type: ignore[attr-defined]
        if self.average is not None:
            self.add_callback(self.average)  # type: ignore[attr-defined]
        if self.is_world_process_zero():  # type: ignore[attr-defined]
            if row is not None and self.average is not None:
                told = (*told, f"{row.name} hands over the average: {Path(config.output_dir, 'checkpoint-N', FOLDER)}")
            for line in told:
                logger.warning("equipoise: %s", line)

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Tensor:
        rewards_NF: Tensor = super()._calculate_rewards(*args, **kwargs)  # type: ignore[misc]
        if self._exploring is not None:
            self._exploring.rewards_NF = rewards_NF
        return rewards_NF

    def _generate_and_score_completions(self, inputs: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        if self._exploring is not None:
            self._exploring.before_first(super()._generate_and_score_completions)  # type: ignore[misc]
        output: dict[str, Any] = super()._generate_and_score_completions(inputs, *args, **kwargs)  # type: ignore[misc]
        if self._exploring is not None:
            self._exploring.scored(inputs, output)
        return output

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        found = super()._get_per_token_logps_and_entropies(*args, **kwargs)  # type: ignore[misc]
        if self._exploring is not None:
            self._exploring.seen(found[0], found[1])
        return found

    def _compute_loss(self, model: Any, inputs: Mapping[str, Any]) -> Tensor:
        assert self._exploring is not None
        call = self._exploring.open_loss(inputs)
        beta: float = self.beta
        self.beta = self._beta_of_loss
        try:
            loss: Tensor = super()._compute_loss(model, call.inputs)  # type: ignore[misc]
        finally:
            self._exploring.close_loss()
            self.beta = beta
        return self._exploring.teach(model, inputs, call.add_to(loss))

    def _load_optimizer_and_scheduler(self, checkpoint: Any) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)  # type: ignore[misc]
        if self._exploring is not None and checkpoint is not None:
            self._exploring.restore(Path(checkpoint))


def _at_temperature(recipe: Recipe, config: Any) -> tuple[str, ...]:
    """Set the recipe's temperature where the config has TRL's own, which nobody can tell from one that is not given; say so."""
    asked, found = recipe.temperature, config.temperature
    if asked is None or asked == found:
        return ()
    if found != type(config).temperature:
        return (f"{recipe.name} was measured at temperature {asked:g}, and this run has {found:g}, which stays",)
    config.temperature = asked
    return (f"{recipe.name} samples and learns at temperature {asked:g} in place of TRL's {found:g}",)


class _Boundaries(TrainerCallback):  # type: ignore[misc]  # Any where transformers is not installed
    """Where steps, logs, checkpoints and evaluations end."""

    def __init__(self, exploring: Exploring) -> None:
        self.exploring = exploring

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.exploring.capture is not None:
            self.exploring.capture.train_begins(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.exploring.step_ended()

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        if self.exploring.capture is not None and logs is not None:
            self.exploring.capture.log(state.global_step, logs)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.exploring.save()
        self._flush()

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._flush()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.exploring.capture is not None:
            self.exploring.capture.close(self.exploring.trainer)
            self.exploring.capture.rest()

    def _flush(self) -> None:
        if self.exploring.capture is not None:
            self.exploring.capture.flush()


def explore(trainer: type) -> type:
    """`GRPOTrainer`, or a subclass of it, with the mixin before it."""
    return type(f"Exploring{trainer.__name__}", (ExplorationMixin, trainer), {})
