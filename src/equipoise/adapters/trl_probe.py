"""A reward function that rewards nothing and records everything: measuring a TRL run without a subclass.

    probe = probe_reward("runs/a")
    GRPOTrainer(…, reward_funcs=[probe.watch(accuracy), probe], args=GRPOConfig(…, reward_weights=[1.0, 0.0]))

It returns None for every row and has weight 0, so that losses are bit for bit those of a run without it. It sees token ids, texts,
groups and the rewards of the functions that it watches; log-probs and entropies it cannot see: those are the mixin's (`Capture`).
Every rank writes its own rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from equipoise.adapters.trl_record import has_rollouts, refuse_another_run
from equipoise.adapters.trl_reward_base import Call, RewardFunction, prompt_name, text_of
from equipoise.adapters.trl_texts import Read, verdict
from equipoise.adapters.versions import check_version
from equipoise.errors import UsageError
from equipoise.rollouts.readers.foreign import chat_of
from equipoise.rollouts.run import RunInfo
from equipoise.rollouts.writer import RunWriter
from equipoise.text.answers import read_answer
from equipoise.text.degenerate import find_degenerate


class ProbeReward:
    """Made by `probe_reward`."""

    __name__ = "probe"

    def __init__(self, folder: Path | str, *, correct: str | None, read: Read, columns: Mapping[str, str]) -> None:
        self.folder, self.correct, self.read, self.columns = Path(folder), correct, read, dict(columns)
        self._writer: RunWriter | None = None
        self._found = has_rollouts(self.folder)
        self._seen: dict[str, list[float | None]] = {}  # by watched function: its rewards of the batch at hand
        self._groups: tuple[tuple[str, int], int] = (("", 0), 0)

    def watch(self, function: RewardFunction) -> RewardFunction:
        """The same reward function, under its name; what it gives is recorded by the probe, which must come after it."""

        def watched(*args: Any, **kwargs: Any) -> list[float | None]:
            found = list(function(*args, **kwargs))
            self._seen[name] = found
            return found

        name = watched.__name__ = getattr(function, "__name__", type(function).__name__)
        return watched

    def __call__(self, prompts: Any, completions: Any, completion_ids: Any, **columns: Any) -> list[None]:
        call = Call(prompts, completions, columns)
        trainer = call.trainer
        if trainer is None:
            raise UsageError(
                "the probe is a reward function of TRL's: give it to GRPOTrainer, with weight 0 in reward_weights"
            )
        if self._writer is None:
            self._begin(trainer)
        seen, self._seen = self._seen, {}
        split = "train" if call.training else "eval"
        step = trainer.state.global_step + (1 if call.training else 0)
        first = self._groups[1] if self._groups[0] == (split, step) else 0
        everyone = len(prompts) * trainer.accelerator.num_processes
        self._groups = ((split, step), first + everyone // call.size)
        rows = []
        ends = {*trainer.eos_token_ids, trainer._tokenizer.pad_token_id}
        for place, (prompt, completion, ids) in enumerate(zip(prompts, completions, completion_ids, strict=True)):
            group, sample = divmod(trainer.accelerator.process_index * len(prompts) + place, call.size)
            text = text_of(completion)
            answer = self.read(text)
            rewards = {name: value for name, values in seen.items() if (value := values[place]) is not None}
            rows.append(
                {
                    "run_id": self.folder.name,
                    "split": split,
                    "step": step,
                    "group_id": f"{split}-{step}-{first + group}",
                    "sample_index": sample,
                    "prompt_id": prompt_name(prompt),
                    "prompt": text_of(prompt),
                    "messages": None if isinstance(prompt, str) else chat_of(prompt),
                    "completion": text,
                    "answer": None if answer is None else answer.text,
                    "correct": verdict(self.correct, rewards),
                    "rewards": list(rewards.items()) or None,
                    "finish_reason": "stop" if len(ids) and ids[-1] in ends else "length",
                    "temperature": trainer.temperature,
                    "n_tokens": len(ids),
                    "token_ids": list(ids),
                    **{name: columns[theirs][place] for name, theirs in self.columns.items() if theirs in columns},
                }
            )
        assert self._writer is not None
        self._writer.write(rows)
        self._log(call, rows)
        return [None] * len(prompts)

    def _begin(self, trainer: Any) -> None:
        weights = dict(zip(trainer.reward_func_names, trainer.reward_weights.tolist(), strict=True))
        if weights.get(self.__name__, 0.0) != 0.0:
            raise UsageError(f"the probe must have weight 0 in reward_weights, found {weights}")
        refuse_another_run(self.folder, found=self._found, step=trainer.state.global_step)
        sampling = {"temperature": trainer.temperature, "max_completion_length": trainer.max_completion_length}
        info = RunInfo("trl", check_version("trl"), self.folder.name, sampling=sampling, seed=trainer.args.seed)
        self._writer = RunWriter(self.folder, info)
        if trainer.state.global_step and trainer.accelerator.is_main_process:
            self._writer.rewind(trainer.state.global_step)

    def _log(self, call: Call, rows: list[dict[str, Any]]) -> None:
        """What a group's completions have in common, beside TRL's own figures."""
        answers = [row["answer"] for row in rows]
        whole = [answers[n : n + call.size] for n in range(0, len(answers) - call.size + 1, call.size)]
        distinct = [len({a for a in group if a is not None}) for group in whole]
        if distinct:
            call.columns["log_metric"]("equipoise/distinct_answers", sum(distinct) / len(distinct))
        flagged = [bool(find_degenerate(row["completion"], answer=row["answer"]).flags) for row in rows]
        call.columns["log_metric"]("equipoise/degenerate", sum(flagged) / len(flagged))


def probe_reward(
    folder: Path | str,
    *,
    correct: str | None = None,
    read: Read = read_answer,
    columns: Mapping[str, str] | None = None,
) -> ProbeReward:
    """A probe that writes a run folder. `correct`: the watched function whose 1 means right; `columns`: our column → the dataset's."""
    return ProbeReward(folder, correct=correct, read=read, columns=columns or {})
