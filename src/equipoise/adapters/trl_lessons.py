"""Completions that a TRL run imitates beside the policy gradient: rare right ones of earlier steps, and the base model's own right ones.

A generation batch draws its rows of a shelf (`shaping.shelf`) when it is scored, before its own completions are kept, and deals
them out in turn over its passes and ranks. Every pass adds, whatever the loss_type,

    coef · Σ −ln π(y | q) / tokens of the update, theirs included

at TRL's temperature, by one more forward pass over its share. Where a batch serves several updates, each counts the same share of
the batch's tokens, as TRL does in its token-mean losses. All ranks keep the same completions. Axes: N completions of all ranks, B rows, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.adapters.host_objective import rows_of
from equipoise.adapters.trl_step import completion_tokens, gather_lists, own_rows, prompt_key, rows_at_once, summed
from equipoise.errors import UsageError
from equipoise.models.decoding import seed_of
from equipoise.models.generate import pad_left
from equipoise.shaping.bounds import check_state
from equipoise.shaping.shelf import BaseAnchor, Kept, RareReplay, rare_right

Generate = Callable[[list[Any]], dict[str, Any]]  # this rank's rows of the dataset → TRL's generation batch


class Lessons:
    """One shelf of a trainer, and the rows that its present generation batch learns again."""

    def __init__(self, trainer: Any, shelf: Any) -> None:
        if not isinstance(shelf, BaseAnchor | RareReplay):
            raise UsageError(
                f"{type(shelf).__name__} is no shelf of completions to imitate: name rare_replay or base_anchor"
            )
        self.trainer, self.shelf = trainer, shelf
        self.batches = 0  # generation batches so far: draws follow from the seed and this
        self._rows: list[Kept] = []
        if isinstance(shelf, BaseAnchor) and not hasattr(trainer.train_dataset, "__len__"):
            raise UsageError(
                "base_anchor draws on problems of the dataset before the first step, and a stream has no length: leave it out"
            )

    @property
    def lacks_anchor(self) -> bool:
        """Whether the base model is still to be asked; a checkpoint has its completions, and a coefficient of 0 needs none."""
        return isinstance(self.shelf, BaseAnchor) and self.shelf.coef > 0 and not self.batches

    def collect(self, generate: Generate, verdicts: Callable[[], np.ndarray]) -> float:
        """Draw from the base model on problems of the dataset, in whole generation batches of TRL's; how many completions were drawn."""
        trainer, shelf = self.trainer, self.shelf
        assert isinstance(shelf, BaseAnchor)
        rows, each = trainer.train_dataset, trainer.num_generations
        here = trainer.args.per_device_train_batch_size * trainer.args.steps_per_generation
        at_once = here * trainer.accelerator.num_processes // each
        order = np.random.default_rng(seed_of(int(trainer.args.seed), shelf.name)).permutation(len(rows)).tolist()
        batches = -(-min(shelf.problems, len(rows)) // at_once)
        shown = trainer._metrics, trainer._logs
        trainer._metrics, trainer._logs = deepcopy(shown)  # TRL's figures are those of its own batches
        try:
            for number in range(batches):
                some = [order[place % len(order)] for place in range(number * at_once, (number + 1) * at_once)]
                output = generate(own_rows(trainer, [rows[place] for place in some for _ in range(each)], here))
                shelf.keep(self._found(output, verdicts(), most_rate=1.0))
        finally:
            trainer._metrics, trainer._logs = shown
        return float(batches * at_once * each)

    def scored(self, output: Mapping[str, Any], verdicts_N: np.ndarray) -> dict[str, float]:
        """A generation batch of training, as TRL made it; what to log of it."""
        self.batches += 1
        self._rows = self.shelf.draw(seed_of(int(self.trainer.args.seed), self.shelf.name, self.batches))
        if isinstance(self.shelf, RareReplay):
            self.shelf.keep(self._found(output, verdicts_N, most_rate=self.shelf.most_rate))
        return {"kept": float(len(self.shelf.kept)), "rows": float(len(self._rows))}

    def _found(self, output: Mapping[str, Any], verdicts_N: np.ndarray, *, most_rate: float) -> list[Kept]:
        """Right completions of groups with at most this share of them, of all ranks."""
        for key, what in {"tool_mask": "tokens that a tool wrote", "pixel_values": "images"}.items():
            if output.get(key) is not None:
                raise UsageError(
                    f"{self.shelf.name} keeps completions as token ids to learn, and this run has {what} among them: leave it out"
                )
        trainer = self.trainer
        rare_PG = rare_right(verdicts_N.reshape(-1, trainer.num_generations), most_rate=most_rate)
        ids, there_BT = output["completion_ids"], completion_tokens(trainer, output)
        mine_B = own_rows(trainer, rare_PG.ravel(), len(ids))
        own: list[Kept] = []
        for row in np.flatnonzero(mine_B).tolist():
            prompt = output["prompt_ids"][row][output["prompt_mask"][row].bool()].tolist()
            own.append((prompt_key(prompt), prompt, ids[row][there_BT[row]].tolist()))
        return gather_lists(trainer, own)

    def term(self, model: Any, inputs: Mapping[str, Any]) -> tuple[Tensor, float] | None:
        """What this pass adds to the loss, and −ln π per token of its rows on all ranks; None where it has none."""
        trainer = self.trainer
        passes = trainer.args.steps_per_generation * trainer.num_iterations
        share = self._share(trainer._step % passes, passes)
        if share is None:
            return None
        kept, counts = share
        device, pad = inputs["completion_ids"].device, trainer._tokenizer.pad_token_id
        prompts = [prompt for _, prompt, _ in kept]
        prompt_BL, prompt_mask_BL = pad_left(prompts, max(map(len, prompts)), pad=pad, device=device)
        done = [torch.tensor(ids, device=device) for _, _, ids in kept]
        ids_BT, mask_BT = rows_of(done, fill=pad), rows_of([torch.ones_like(ids) for ids in done])
        found = trainer._get_per_token_logps_and_entropies(
            model,
            torch.cat([prompt_BL, ids_BT], dim=1),
            torch.cat([prompt_mask_BL.to(mask_BT.dtype), mask_BT], dim=1),
            ids_BT.shape[1],
            batch_size=rows_at_once(trainer),
        )
        nll = -(found[0] * mask_BT).sum() * counts
        taught = sum(len(ids) for _, _, ids in self._rows)
        tokens = inputs["num_items_in_batch"] / trainer.args.steps_per_generation + taught / passes
        # Gradients of ranks are averaged, those of passes added.
        whole = tokens * trainer.current_gradient_accumulation_steps / trainer.accelerator.num_processes
        total, n = summed(trainer, [float(nll.detach()), float(mask_BT.sum()) * counts])
        return self.shelf.coef * nll / whole, total / n

    def _share(self, at: int, passes: int) -> tuple[Sequence[Kept], float] | None:
        """This rank's rows of a pass, and whether they count: a rank without any goes along with one that does not.

        Ranks must take the same forward passes, since some wrappers meet in each of them.
        """
        ranks, rank = self.trainer.accelerator.num_processes, self.trainer.accelerator.process_index
        first = at * ranks
        if first >= len(self._rows):
            return None
        own = self._rows[first + rank :: passes * ranks]
        return (own, 1.0) if own else (self._rows[:1], 0.0)

    def state(self) -> dict[str, Any]:
        return {"batches": self.batches, **self.shelf.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        check_state(self.shelf.name, state, self.state())
        self.batches = int(state["batches"])
        self.shelf.restore({"kept": state["kept"]})
