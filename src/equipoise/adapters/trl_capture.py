"""A run folder of a TRL run: token ids, log-probs, exact entropies, rewards, advantages and groups of every step.

The rows of a generation batch are known when it is scored; their log-probs and entropies arrive with the micro-batches of the
first pass over it. When all are there they are gathered on the main process; a thread makes rows of them, another process writes these.

    TRL                                            the record
    per_token_logps of the loss                    logprobs_train: the policy before the update, at the sampling temperature
    entropies of the loss                          entropies: full softmax, at the sampling temperature
    sampling_per_token_logps (vLLM)                logprobs_rollout; without vLLM and on-policy the trainer's own
    ref_per_token_logps (beta > 0)                 logprobs_ref
    row // num_generations                         group_id, unique within run and step
    state.global_step + 1                          step: the optimiser step that learns from it, under which TRL logs it
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equipoise.adapters.trl_loss import KEY, loss_mask
from equipoise.adapters.trl_record import Drawn, RecordThread, Rendering, has_rollouts, refuse_another_run
from equipoise.adapters.trl_step import completion_tokens, gather_lists, gather_rows, weighed
from equipoise.adapters.trl_texts import Read
from equipoise.adapters.versions import check_version
from equipoise.errors import UsageError
from equipoise.rollouts.columns import BY_NAME
from equipoise.rollouts.run import RunInfo
from equipoise.rollouts.writer_process import WriterProcess

ROW = f"{KEY}row"  # the place of a completion in this rank's generation batch
_KEPT = {
    "old_per_token_logps": "logprobs_rollout",
    "sampling_per_token_logps": "logprobs_rollout",
    "ref_per_token_logps": "logprobs_ref",
}


@dataclass(slots=True)
class _Open:
    """A generation batch of this rank whose first pass is not over."""

    inputs: dict[str, Any]
    step: int
    split: str
    group_size: int
    rewards_NF: Tensor
    columns: Mapping[str, Sequence[Any]]
    missing: int
    tokens: dict[str, Tensor] = field(default_factory=dict)


class Capture:
    """Writes a run folder while TRL trains. `columns` has our column names → the dataset's: {"reference_answer": "answer"}."""

    def __init__(self, folder: Path | str, *, columns: Mapping[str, str] | None = None, every: int = 1) -> None:
        self.folder, self.columns, self.every = Path(folder), dict(columns or {}), every
        texts = [name for name, column in BY_NAME.items() if str(column.type) == "string"]
        wrong = [name for name in self.columns if name not in texts]
        if wrong:
            raise UsageError(f"'{wrong[0]}' is no column of texts in the record: it has {', '.join(texts)}")
        if every < 1:
            raise UsageError(f"a capture of every {every} steps is none: use 1 for all, 10 for every tenth")
        self._thread: RecordThread | None = None
        self._found = has_rollouts(self.folder)
        self._open: dict[str, _Open] = {}  # by split: an evaluation may come between two updates on one batch
        self._groups: tuple[tuple[str, int], int] = (("", 0), 0)  # split and step → groups handed over

    def begin(self, trainer: Any, *, read: Read, correct: str | None, specs: Sequence[str]) -> None:
        """Open the folder, on the main process only."""
        if not trainer.accelerator.is_main_process:
            return
        rendering = Rendering(
            deepcopy(trainer._tokenizer),
            ends=[*trainer.eos_token_ids, trainer._tokenizer.pad_token_id],
            read=read,
            correct=correct,
            temperature=trainer.temperature,
        )
        writer = WriterProcess(self.folder, _info(trainer, self.folder.name, specs))
        self._thread = RecordThread(writer, rendering)

    def scored(
        self, trainer: Any, rows: Sequence[Mapping[str, Any]], inputs: dict[str, Any], rewards_NF: Tensor
    ) -> None:
        """A generation batch as TRL hands it on, before it is shuffled."""
        training = trainer.model.training
        split = "train" if training else "eval"
        self._close(trainer, split)
        step = trainer.state.global_step + (1 if training else 0)
        if training and (step - 1) % self.every:
            return
        inputs[ROW] = torch.arange(len(rows), device=inputs["completion_ids"].device)
        self._open[split] = _Open(
            {name: value for name, value in inputs.items() if name != "num_items_in_batch"},
            step,
            split,
            trainer.num_generations if training else trainer.num_generations_eval,
            rewards_NF,
            {name: [_text(row.get(theirs)) for row in rows] for name, theirs in self.columns.items()},
            len(rows),
        )

    def seen(self, trainer: Any, inputs: Mapping[str, Any], logp_BT: Tensor, entropy_BT: Tensor | None) -> None:
        """The forward pass of a micro-batch: of the first pass over its generation batch, the rest is passed over."""
        held, rows = self._open.get("train" if trainer.model.training else "eval"), inputs.get(ROW)
        if held is None or rows is None:
            return
        found = {"logprobs_train": logp_BT, "entropies": entropy_BT}
        for name, values_BT in found.items():
            if values_BT is not None:
                values_BT = values_BT.detach().float()
                if name not in held.tokens:
                    shape = held.inputs["completion_ids"].shape
                    held.tokens[name] = torch.full(shape, torch.nan, device=values_BT.device)
                held.tokens[name][rows] = values_BT
        held.missing -= len(rows)
        if held.missing <= 0:
            self._close(trainer, held.split)

    def close(self, trainer: Any) -> None:
        """Hand over what is open, all ranks together: a batch whose first pass training did not finish has gaps."""
        for split in tuple(self._open):
            self._close(trainer, split)

    def _close(self, trainer: Any, split: str) -> None:
        held = self._open.pop(split, None)
        if held is None:
            return
        inputs = held.inputs
        width = inputs["completion_ids"].shape
        tokens = {ours: inputs[theirs] for theirs, ours in _KEPT.items() if inputs.get(theirs) is not None}
        if "logprobs_rollout" not in tokens and "logprobs_train" in held.tokens:
            tokens["logprobs_rollout"] = held.tokens["logprobs_train"]  # on-policy: one and the same
        tokens |= held.tokens
        sent = {
            "prompt_ids_NL": inputs["prompt_ids"],
            "prompt_mask_NL": inputs["prompt_mask"],
            "ids_NT": inputs["completion_ids"],
            "there_NT": completion_tokens(trainer, inputs),
            "learnt_NT": loss_mask(inputs).bool().expand(width),
            "adv": inputs["advantages"],
        }
        gathered = {name: gather_rows(trainer, rows.contiguous()).cpu().numpy() for name, rows in sent.items()}
        of_tokens = {name: gather_rows(trainer, rows.contiguous()).cpu().numpy() for name, rows in tokens.items()}
        columns = {name: gather_lists(trainer, values) for name, values in held.columns.items()}
        if self._thread is None:
            return
        rewards_NF = held.rewards_NF.float()
        where = (held.split, held.step)
        first = self._groups[1] if self._groups[0] == where else 0
        self._groups = (where, first + len(rewards_NF) // held.group_size)
        drawn = Drawn(
            step=held.step,
            split=held.split,
            group_size=held.group_size,
            first_group=first,
            rewards_NF=rewards_NF.cpu().numpy(),
            reward_N=weighed(rewards_NF, trainer.reward_weights).cpu().numpy(),
            names=trainer.reward_func_names,
            tokens=of_tokens,
            columns=columns,
            **gathered,
        )
        self._thread.hand_over(drawn)

    def log(self, step: int, logs: Mapping[str, Any]) -> None:
        """The figures that TRL logs, under its own names."""
        if self._thread is not None:
            self._thread.log(step, {key: value for key, value in logs.items() if isinstance(value, int | float | None)})

    def train_begins(self, step: int) -> None:
        """Training goes on from a checkpoint: what was recorded after it no longer counts. From nothing: the folder must be new."""
        refuse_another_run(self.folder, found=self._found and self._thread is not None, step=step)
        self._found = False
        if self._thread is not None and step:
            self._thread.flush()
            self._thread.writer.rewind(step)

    def flush(self) -> None:
        """Wait until all that was handed over is on disk."""
        if self._thread is not None:
            self._thread.flush()

    def rest(self) -> None:
        """As `flush`, and end the process that writes; a later batch starts another."""
        if self._thread is not None:
            self._thread.flush()
            self._thread.writer.close()


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _info(trainer: Any, run_id: str, specs: Sequence[str]) -> RunInfo:
    args = trainer.args
    sampling = {
        name: getattr(args, name, None) for name in ("temperature", "top_p", "top_k", "min_p", "max_completion_length")
    }
    names = (
        *("learning_rate", "num_generations", "per_device_train_batch_size", "gradient_accumulation_steps"),
        *("steps_per_generation", "num_iterations", "loss_type", "scale_rewards", "beta", "epsilon", "epsilon_high"),
        *("entropy_coef", "use_adaptive_entropy", "top_entropy_quantile", "mask_truncated_completions", "use_vllm"),
    )
    told: dict[str, Any] = {name: getattr(args, name, None) for name in names}
    if trainer.average is not None:
        told["average"] = trainer.average.decay
    exact = {
        "estimator": "exact, full softmax",
        "temperature": args.temperature,
        "aggregation": "token",
        "mask": "response",
    }
    processed = {"kind": "processed", "temperature": args.temperature}
    return RunInfo(
        source="trl",
        source_version=check_version("trl"),
        run_id=run_id,
        model=str(getattr(trainer.model.config, "_name_or_path", "") or type(trainer.model).__name__),
        sampling={name: value for name, value in sampling.items() if value is not None},
        settings=told | {"exploration": list(specs), "world_size": trainer.accelerator.num_processes},
        seed=args.seed,
        provenance={"entropies": exact, "logprobs_train": processed, "logprobs_rollout": processed},
    )
