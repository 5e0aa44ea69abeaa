"""The moving average of a trainer's weights, saved beside its checkpoints: any transformers `Trainer`, TRL's among them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from equipoise.adapters.trl_exact_kl import refuse_sharded
from equipoise.adapters.trl_steer import checkpoint_of
from equipoise.errors import UsageError
from equipoise.models.average import Average

FOLDER = "average"


class AverageWeights(TrainerCallback):  # type: ignore[misc]  # Any where transformers is not installed
    """θ̄ ← decay · θ̄ + (1 − decay) · θ after every optimiser step; training does not read it.

        trainer.add_callback(AverageWeights(0.99))

    Every checkpoint gets a folder `average` that transformers loads, with the tokenizer; `save` writes one anywhere. Held and
    saved in float32 by the first process alone. Resuming reads it back from the checkpoint.
    """

    def __init__(self, decay: float = 0.99) -> None:
        if not 0 < decay < 1:
            raise UsageError(f"an average of the weights needs 0 < decay < 1, found {decay:g}")
        self.decay = decay
        self.checkpoint: Path | None = None  # that training goes on from, where somebody knows
        self._average: Average | None = None
        self._model: Any = None
        self._tokenizer: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._model, self._tokenizer = kwargs["model"], kwargs.get("processing_class")
        if hasattr(self._model, "peft_config"):
            raise UsageError("an average of the weights is kept of whole models, and this one has an adapter of PEFT")
        refuse_sharded(self._model, needed_by="an average of the weights")
        if not state.is_world_process_zero:
            return
        self._average = Average(self._model, self.decay)
        if state.global_step:
            named = args.resume_from_checkpoint
            whole = self.checkpoint or (Path(named) if isinstance(named, str) else checkpoint_of(args, state))
            self._read(whole / FOLDER)

    def _read(self, folder: Path) -> None:
        if not folder.is_dir():
            raise UsageError(
                f"{folder.parent} has no folder {folder.name}: it was made without an average of the weights; resume it without, or start anew"
            )
        assert self._average is not None
        # By transformers: names in a file may be others than those in the model.
        held = type(self._model).from_pretrained(folder, dtype=torch.float32)
        self._average.restore(held.state_dict())

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._average is not None:
            self._average.add(self._model)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._average is not None:
            self.save(checkpoint_of(args, state) / FOLDER)

    def save(self, folder: Path | str) -> None:
        """The average as a folder that transformers and `equipoise blend` load: call it on the first process, once training has begun."""
        folder = Path(folder)
        if self._average is None:
            raise UsageError(f"there is no average to write to {folder}: it begins with training, on the first process")
        part = folder.with_name(f"{folder.name}.tmp")
        shutil.rmtree(part, ignore_errors=True)
        first: dict[int, str] = {}  # tied weights are one tensor under several names: the file has it once
        for name, tensor in self._model.state_dict(keep_vars=True).items():
            first.setdefault(id(tensor), name)
        self._model.save_pretrained(part, state_dict={name: self._average.weights[name] for name in first.values()})
        if self._tokenizer is not None:
            self._tokenizer.save_pretrained(part)
        shutil.rmtree(folder, ignore_errors=True)
        part.rename(folder)
