"""What the mixin adds to one trainer: the parts of a run, called at the seams of TRL. Axes: N completions of all ranks, B rows here, T tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.adapters.trl_average import AverageWeights
from equipoise.adapters.trl_capture import Capture
from equipoise.adapters.trl_exact_kl import ExactKL
from equipoise.adapters.trl_groups import GroupShaper, Rows, Shaped
from equipoise.adapters.trl_lessons import Generate, Lessons
from equipoise.adapters.trl_loss import KEY, MARKS, LossCall, is_exact, loss_mask, reads
from equipoise.adapters.trl_plan import Exploration
from equipoise.adapters.trl_steer import Steering, checkpoint_of, read_states, write_states
from equipoise.adapters.trl_step import (
    choose_over_step,
    completion_tokens,
    gather_lists,
    gather_rows,
    own_rows,
    prompt_key,
    summed,
    weigh_by_budget,
    weighed,
)
from equipoise.adapters.trl_texts import Read, TokenTexts, answer_tokens, laid_out, planning_tokens
from equipoise.base import Answer, Tally
from equipoise.catalogue.build import build
from equipoise.errors import UsageError, unknown_name
from equipoise.objectives.compose import Objective

SEED_STEP = 7919  # draws of one update differ from those of the next


class Exploring:
    """The methods and the record of one trainer."""

    def __init__(
        self,
        trainer: Any,
        ours: Exploration,
        objective: Objective,
        *,
        capture: Capture | None,
        correct: str | None,
        read: Read,
        specs: Sequence[str],
        average: AverageWeights | None = None,
    ) -> None:
        self.trainer, self.objective, self.capture, self.average = trainer, objective, capture, average
        self.correct, self.read = correct, read
        self.shaper = GroupShaper(ours)
        self.steering = Steering(ours.controllers, trainer, objective)
        self.texts = TokenTexts(trainer._tokenizer)
        self.lessons = [Lessons(trainer, build(spec)) for spec in ours.demonstrations]
        self.exact_kl = ExactKL(trainer) if is_exact(objective) else None
        self.rewards_NF: Tensor | None = None  # of the batch that is being scored
        self._call: LossCall | None = None
        self._entropies: Tensor | None = None  # n, sum and sum of squares over the micro-batches of a step
        _check(trainer, ours, self.shaper, correct)
        if reads(objective, "entropy_BT"):
            # TRL 1.14 leaves entropies out of the graph where it has no bonus of its own.
            trainer._entropy_bonus_enabled = True
        if capture is not None:
            capture.begin(trainer, read=read, correct=correct, specs=specs)

    # --- the generation batch ------------------------------------------------------------------------------------------------

    def before_first(self, generate: Generate) -> None:
        """Before the first generation batch of training: what the base model draws."""
        for lessons in self.lessons if self.trainer.model.training else ():
            if lessons.lacks_anchor:
                self._log(f"{lessons.shelf.name}/drawn", lessons.collect(generate, self._needed_verdicts))

    def scored(self, rows: Sequence[Mapping[str, Any]], output: dict[str, Any]) -> None:
        """TRL's batch, before it is shuffled and split: what is put into it stays with its rows."""
        for lessons in self.lessons if self.trainer.model.training else ():
            for name, value in lessons.scored(output, self._needed_verdicts()).items():
                self._log(f"{lessons.shelf.name}/{name}", value)
        self._mark_and_shape(output)
        choose_over_step(self.trainer, self.objective, self._settings(self.trainer.state.global_step), output)
        if self.steering.budget is not None:
            self._log("entropy_budget.weight", weigh_by_budget(self.trainer, self.steering.budget, output))
        if self.capture is not None and self.rewards_NF is not None:
            self.capture.scored(self.trainer, rows, output, self.rewards_NF)

    def _mark_and_shape(self, output: dict[str, Any]) -> None:
        """Token marks, and what our groups make of the rewards."""
        marks = [name for name in MARKS if reads(self.objective, name)]
        if not (marks or self.shaper.acts):
            return
        width, device = output["completion_ids"].shape[1], output["completion_ids"].device
        texts: list[list[str]] = []
        if marks or self.shaper.reads_texts:
            there_BT = completion_tokens(self.trainer, output)
            texts = [self.texts.of(ids) for ids in _unpadded(output["completion_ids"], there_BT)]
        answers = [self.read("".join(row)) for row in texts]
        marked = {}
        if "answer_BT" in marks or self.shaper.needs_answer_tokens:
            pairs = zip(texts, answers, strict=True)
            marked["answer_BT"] = laid_out([answer_tokens(row, answer) for row, answer in pairs], width)
        if "planning_BT" in marks:
            marked["planning_BT"] = laid_out([planning_tokens(row) for row in texts], width)
        for name, marked_BT in marked.items():
            output[KEY + name] = torch.as_tensor(marked_BT, device=device)
        if self.shaper.acts:
            shaped = self.shaper.shape(self._rows(output, texts, answers), training=self.trainer.model.training)
            self._put(shaped, output)

    def _rows(self, output: Mapping[str, Any], texts: list[list[str]], answers: list[Answer | None]) -> Rows:
        trainer, rewards_NF = self.trainer, self.rewards_NF
        assert rewards_NF is not None
        ids, lengths = output["completion_ids"], completion_tokens(trainer, output).sum(dim=1)
        last = ids.gather(1, (lengths - 1).clamp(min=0)[:, None]).squeeze(1)
        ends = torch.tensor([*trainer.eos_token_ids, trainer._tokenizer.pad_token_id], device=ids.device)
        prompts = [prompt_key(row) for row in _unpadded(output["prompt_ids"], output["prompt_mask"])]
        training = trainer.model.training
        return Rows(
            group_size=trainer.num_generations if training else trainer.num_generations_eval,
            reward_N=weighed(rewards_NF, trainer.reward_weights).cpu().numpy(),
            n_tokens_N=gather_rows(trainer, lengths).cpu().numpy(),
            truncated_N=gather_rows(trainer, ~torch.isin(last, ends)).cpu().numpy(),
            correct_N=self._verdicts(rewards_NF),
            texts=gather_lists(trainer, ["".join(row) for row in texts]) if texts else None,
            answers=gather_lists(trainer, [None if a is None else a.text for a in answers]) if texts else None,
            prompt_ids=gather_lists(trainer, prompts),
        )

    def _verdicts(self, rewards_NF: Tensor) -> np.ndarray | None:
        """What the named reward function says of each completion; shaping refuses anything but 1, 0 and nan."""
        if self.correct is None:
            return None
        return np.asarray(rewards_NF[:, self.trainer.reward_func_names.index(self.correct)].cpu().numpy())

    def _needed_verdicts(self) -> np.ndarray:
        assert self.rewards_NF is not None
        verdicts_N = self._verdicts(self.rewards_NF)
        assert verdicts_N is not None  # see `_check`
        return verdicts_N

    def _put(self, shaped: Shaped, output: dict[str, Any]) -> None:
        """Our advantages in TRL's batch; a completion that a filter dropped is no token of the loss."""
        mask = loss_mask(output)

        def local(values_N: np.ndarray) -> Tensor:
            return torch.as_tensor(own_rows(self.trainer, values_N, len(mask)), dtype=torch.float32, device=mask.device)

        if shaped.adv_N is not None:
            output["advantages"] = local(shaped.adv_N)
        if shaped.bonus_N is not None:
            adv, on_BT = output["advantages"], mask.bool()
            if self.shaper.needs_answer_tokens:
                on_BT = on_BT & ~output[f"{KEY}answer_BT"]
            output["advantages"] = (adv[:, None] if adv.dim() == 1 else adv) + local(shaped.bonus_N)[:, None] * on_BT
            self._log("bonus", float(np.abs(shaped.bonus_N).mean()))
        if shaped.keep_N is not None:
            kept = local(shaped.keep_N).to(mask.dtype)[:, None]
            output["tool_mask"] = output.get("tool_mask", torch.ones_like(mask)) * kept
            output["num_items_in_batch"] = self.trainer.accelerator.gather(loss_mask(output).sum()).sum()
            for reason, count in shaped.dropped.items():
                self._log(f"dropped/{reason}", float(count))

    # --- the loss ------------------------------------------------------------------------------------------------------------

    def open_loss(self, inputs: Mapping[str, Any]) -> LossCall:
        micro = self.trainer._step * self.trainer.accelerator.num_processes + self.trainer.accelerator.process_index
        self._call = LossCall(self.trainer, self.objective, self._settings(micro), inputs)
        if self.exact_kl is not None:
            self.exact_kl.open()
        return self._call

    def close_loss(self) -> None:
        self._call = None
        if self.exact_kl is not None:
            self.exact_kl.close()

    def teach(self, model: Any, inputs: Mapping[str, Any], loss: Tensor) -> Tensor:
        """The loss of a pass, with that of the completions that are imitated in it."""
        for lessons in self.lessons if self.trainer.model.training else ():
            if (found := lessons.term(model, inputs)) is not None:
                term, nll = found
                self._log(f"{lessons.shelf.name}/nll", nll)
                loss = loss + term
        return loss

    def seen(self, logp_BT: Tensor, entropy_BT: Tensor | None) -> None:
        """A forward pass; only that of an open loss call is ours."""
        if self._call is None:
            return
        ref_kl_BT = None if self.exact_kl is None else self.exact_kl.of(self._call.given, logp_BT)
        self._call.seen(logp_BT, entropy_BT, ref_kl_BT)
        if self.capture is not None:
            self.capture.seen(self.trainer, self._call.given, logp_BT, entropy_BT)
        if self.steering.controllers and self.trainer.model.training and entropy_BT is not None:
            entropies = entropy_BT.detach()[loss_mask(self._call.given).bool()].double()
            found = torch.stack([entropies.new_tensor(len(entropies)), entropies.sum(), entropies.square().sum()])
            self._entropies = found if self._entropies is None else self._entropies + found

    def step_ended(self) -> None:
        """After an optimiser step, on every rank: the next one is steered by this one's entropies."""
        if self._entropies is not None:
            n, total, squares = summed(self.trainer, self._entropies.tolist())
            self.steering.observe(Tally(round(n), total, squares))
            self._entropies = None
            for key, value in self.steering.settings().items():
                self._log(key, value)

    # --- what outlasts a step ------------------------------------------------------------------------------------------------

    @property
    def holders(self) -> dict[str, Any]:
        """What has state, by its name in a checkpoint."""
        counter = {} if self.shaper.counter is None else {"counter": self.shaper.counter}
        lessons = {each.shelf.name: each for each in self.lessons}
        return ({"controllers": self.steering} if self.steering.controllers else {}) | counter | lessons

    def save(self) -> None:
        if self.trainer.accelerator.is_main_process:
            write_states(checkpoint_of(self.trainer.args, self.trainer.state), self.holders)

    def restore(self, checkpoint: Path) -> None:
        read_states(checkpoint, self.holders)
        if self.average is not None:
            self.average.checkpoint = checkpoint

    def _settings(self, draw: int) -> dict[str, Any]:
        """What controllers want of our parts, and another seed at each draw for those that draw."""
        seeds = {
            f"{part.name}.seed": part.settings["seed"] + SEED_STEP * draw
            for part in self.objective.parts
            if isinstance(part.settings.get("seed"), int)
        }
        return {**self.steering.part_settings(), **seeds}

    def _log(self, name: str, value: float) -> None:
        self.trainer._metrics["train" if self.trainer.model.training else "eval"][f"equipoise/{name}"].append(value)


def _unpadded(ids: Tensor, mask: Tensor) -> list[list[int]]:
    return [row[there].tolist() for row, there in zip(ids.cpu(), mask.bool().cpu(), strict=True)]


def _check(trainer: Any, ours: Exploration, shaper: GroupShaper, correct: str | None) -> None:
    if correct is not None and correct not in trainer.reward_func_names:
        raise unknown_name("reward function", correct, trainer.reward_func_names)
    if (shaper.needs_verdicts or ours.demonstrations) and correct is None:
        one = [ours.advantage] if ours.advantage else []
        asking = ", ".join((*ours.filters, *ours.bonuses, *one, *ours.demonstrations))
        raise UsageError(
            f"{asking} asks which completions are right: name the reward function whose 1 says so, correct='…'"
        )
    if ours.surrogate is not None:
        for name, off in {"off_policy_mask_threshold": None, "top_entropy_quantile": 1.0}.items():
            if getattr(trainer, name) != off:
                raise UsageError(f"{name} acts on TRL's own loss, which {ours.surrogate} replaces: leave it at {off}")
