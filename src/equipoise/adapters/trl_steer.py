"""Controllers inside TRL: they read a step's entropy and move settings of the next one.

    ours                 TRL's, read anew at every loss
    entropy_bonus.coef   trainer.entropy_coef
    clip_high            trainer.epsilon_high, in the loss types that clip a ratio

What a part of ours takes (`clip_high` of a surrogate that replaces TRL's, say) is handed to that part. The temperature cannot be
moved: TRL fixes it in its fused head when the trainer is built, and changing it for generation alone would falsify every log-prob.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from equipoise.adapters.trl_plan import CLIPPING
from equipoise.base import Controller, Stateful, Tally
from equipoise.catalogue.build import build, read_spec
from equipoise.errors import UsageError
from equipoise.files import atomic_write
from equipoise.objectives.compose import Objective
from equipoise.shaping.entropy_budget import EntropyBudget


class Steering:
    """The controllers of a run, and where what they move is to be written."""

    def __init__(self, specs: Sequence[str], trainer: Any, objective: Objective | None = None) -> None:
        self.controllers: dict[str, Any] = {read_spec(spec)[0]: build(spec) for spec in specs}
        self.trainer, self.objective = trainer, objective
        for name, controller in self._movers.items():
            for key in controller.settings():
                self._check(name, key)
        if any(key == "entropy_bonus.coef" for key in self.settings()):
            # TRL leaves the bonus out of its graph for good where its coefficient is 0 when the trainer is built.
            trainer._entropy_bonus_enabled = True
        self.apply()

    @property
    def budget(self) -> EntropyBudget | None:
        """The controller that weighs tokens; all others move settings."""
        return next((c for c in self.controllers.values() if isinstance(c, EntropyBudget)), None)

    def observe(self, entropies: Tally) -> None:
        """The entropies of a step's tokens, after its update: the next step is steered by them, as in TRL's own controller."""
        for controller in self._movers.values():
            controller.observe(entropies)
        self.apply()

    def settings(self) -> dict[str, float]:
        return {key: value for c in self._movers.values() for key, value in c.settings().items()}

    def part_settings(self) -> dict[str, float]:
        """What goes to parts of ours."""
        return {key: value for key, value in self.settings().items() if self._ours(key)}

    def apply(self) -> None:
        for key, value in self.settings().items():
            if not self._ours(key):
                setattr(self.trainer, "entropy_coef" if key == "entropy_bonus.coef" else "epsilon_high", value)

    def state(self) -> dict[str, Any]:
        return {name: controller.state() for name, controller in self.controllers.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        if set(state) != set(self.controllers):
            raise UsageError(
                f"this checkpoint was made with the controllers {', '.join(sorted(state)) or 'none'}, "
                f"this run has {', '.join(sorted(self.controllers)) or 'none'}: resume with those it was made with"
            )
        for name, controller in self.controllers.items():
            controller.restore(state[name])
        self.apply()

    @property
    def _movers(self) -> dict[str, Controller]:
        return {name: c for name, c in self.controllers.items() if not isinstance(c, EntropyBudget)}

    def _ours(self, key: str) -> bool:
        owner, _, name = key.rpartition(".")
        parts = () if self.objective is None else self.objective.parts
        return any(name in part.taken and owner in ("", part.name) for part in parts)

    def _check(self, controller: str, key: str) -> None:
        if self._ours(key):
            return
        if key == "entropy_bonus.coef":
            if self.trainer.use_adaptive_entropy:
                raise UsageError(f"{controller} and TRL's use_adaptive_entropy both move the entropy bonus: choose one")
            return
        if key == "clip_high":
            if self.trainer.loss_type in CLIPPING:
                return
            raise UsageError(
                f"{controller} moves clip_high, which loss_type='{self.trainer.loss_type}' does not clip by: use one of {', '.join(CLIPPING)}"
            )
        if key == "temperature":
            raise UsageError(
                f"{controller} moves the temperature, which TRL fixes in its fused head when the trainer is built: moved for "
                "generation alone, every log-prob would be that of another policy; steer entropy_bonus.coef or clip_high"
            )
        raise UsageError(
            f"{controller} moves {key}, which nothing in this run takes: TRL's are entropy_bonus.coef and clip_high"
        )


class KeepState(TrainerCallback):  # type: ignore[misc]  # Any where transformers is not installed
    """Saves what has state with every checkpoint, each in a file of its own, and reads it when training goes on from one.

    trainer.add_callback(KeepState(counter=reward.counter))
    """

    def __init__(self, **holders: Stateful) -> None:
        self.holders = holders

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step:
            named = args.resume_from_checkpoint
            read_states(Path(named) if isinstance(named, str) else checkpoint_of(args, state), self.holders)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            write_states(checkpoint_of(args, state), self.holders)


class SteeringCallback(KeepState):
    """Controllers for a trainer without the mixin: they read the entropy that TRL logs, at every `logging_steps`.

    trainer = GRPOTrainer(…)
    trainer.add_callback(SteeringCallback(trainer, ["band:low=0.2,high=0.6"]))
    """

    def __init__(self, trainer: Any, controllers: Sequence[str]) -> None:
        self.steering = Steering(controllers, trainer)
        if self.steering.budget is not None:
            raise UsageError("entropy_budget weighs tokens, which a callback never sees: give it to the mixin")
        super().__init__(controllers=self.steering)

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        entropy = (logs or {}).get("entropy")
        if entropy is not None:
            self.steering.observe(Tally(1, float(entropy), float(entropy) ** 2))


def checkpoint_of(args: Any, state: Any) -> Path:
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"


def write_states(checkpoint: Path, holders: Mapping[str, Stateful]) -> None:
    for name, holder in holders.items():
        with atomic_write(_file(checkpoint, name)) as handle:
            handle.write(json.dumps(holder.state()).encode())


def read_states(checkpoint: Path, holders: Mapping[str, Stateful]) -> None:
    """Restore from the checkpoint that training goes on from; refused where it holds no such state."""
    for name, holder in holders.items():
        path = _file(checkpoint, name)
        if not path.is_file():
            raise UsageError(
                f"{checkpoint} has no {path.name}: it was made without {name} of ours; resume it without, or start anew"
            )
        holder.restore(json.loads(path.read_text("utf-8")))


def _file(checkpoint: Path, name: str) -> Path:
    return checkpoint / f"equipoise_{name}.json"
