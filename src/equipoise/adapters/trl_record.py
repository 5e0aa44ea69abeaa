"""One generation batch of TRL as rows of the record, made by a thread beside the training. Axes: N completions, T tokens."""

from __future__ import annotations

import atexit
import queue
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.adapters.trl_step import prompt_key
from equipoise.adapters.trl_texts import Read, TokenTexts, decoder_of, verdict
from equipoise.errors import UsageError
from equipoise.rollouts.arrays import column_of, join_lists, join_maps, pick_texts, repeat_value
from equipoise.rollouts.batch import Rollouts
from equipoise.rollouts.writer_process import WriterProcess

WAITING = 4  # batches that may wait for the disk before training waits for it


@dataclass(frozen=True, slots=True)
class Drawn:
    """The completions of all ranks, as numpy arrays on the main process."""

    step: int
    split: str
    group_size: int
    first_group: int  # groups of this step that were handed over before
    prompt_ids_NL: np.ndarray
    prompt_mask_NL: np.ndarray
    ids_NT: np.ndarray
    there_NT: np.ndarray  # bool: a token of the completion
    learnt_NT: np.ndarray  # bool: a token that the loss reads
    adv: np.ndarray  # (N,) or (N, T)
    rewards_NF: np.ndarray  # nan where a function gave none
    reward_N: np.ndarray
    names: Sequence[str]  # of the reward functions
    tokens: Mapping[str, np.ndarray] = field(default_factory=dict)  # logprobs_train, entropies, …, each (N, T)
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # of the dataset


class Rendering:
    """From token ids to texts and answers, a column at a time. The tokenizer is its own: a fast one refuses two threads at once."""

    def __init__(
        self, tokenizer: Any, *, ends: Sequence[int], read: Read, correct: str | None, temperature: float
    ) -> None:
        self.ends, self.read, self.correct, self.temperature = frozenset(ends), read, correct, temperature
        self._decode = decoder_of(tokenizer)
        self._texts = TokenTexts(tokenizer)
        self._met_V = np.zeros(0, dtype=bool)  # the tokens whose texts were asked for

    def columns(self, drawn: Drawn, run_id: str | None) -> Rollouts:
        """The batch as rows of the record, in their order."""
        n = len(drawn.ids_NT)
        lengths_N = drawn.there_NT.sum(axis=1)
        within_NT = np.arange(drawn.ids_NT.shape[1]) < lengths_N[:, None]
        ids = [row[:length] for row, length in zip(drawn.ids_NT.tolist(), lengths_N.tolist(), strict=True)]
        completions = self._decode(ids, skip_special_tokens=True)
        answer_of = {text: self.read(text) for text in dict.fromkeys(completions)}
        answers = [None if (answer := answer_of[text]) is None else answer.text for text in completions]
        group_N, place_N = np.divmod(np.arange(n), drawn.group_size)
        first_P = range(0, n, drawn.group_size)
        prompts = [drawn.prompt_ids_NL[row][drawn.prompt_mask_NL[row].astype(bool)].tolist() for row in first_P]
        groups = [f"{drawn.split}-{drawn.step}-{drawn.first_group + group}" for group in range(len(prompts))]
        last_N = drawn.ids_NT[np.arange(n), np.maximum(lengths_N - 1, 0)]
        ended_N = (lengths_N > 0) & np.isin(last_N, list(self.ends))
        arrays = {
            "run_id": repeat_value("run_id", run_id, n),
            "split": repeat_value("split", drawn.split, n),
            "step": repeat_value("step", drawn.step, n),
            "group_id": pick_texts(groups, group_N),
            "sample_index": column_of("sample_index", place_N),
            "prompt_id": pick_texts(list(map(prompt_key, prompts)), group_N),
            "prompt": pick_texts(self._decode(prompts), group_N),
            "completion": column_of("completion", completions),
            "answer": column_of("answer", answers),
            "correct": self._verdicts(drawn),
            "reward": column_of("reward", drawn.reward_N),
            "rewards": join_maps(drawn.names, drawn.rewards_NF, ~np.isnan(drawn.rewards_NF)),
            "advantage": column_of("advantage", _advantages(drawn, lengths_N)),
            "finish_reason": pick_texts(["length", "stop"], ended_N),
            "temperature": repeat_value("temperature", self.temperature, n),
            "n_tokens": column_of("n_tokens", lengths_N),
            "token_ids": join_lists(drawn.ids_NT[within_NT], lengths_N),
            "loss_mask": join_lists(drawn.learnt_NT[within_NT], lengths_N),
        }
        if drawn.adv.ndim == 2:
            arrays["advantages"] = join_lists(drawn.adv[within_NT], lengths_N)
        for name, values_NT in drawn.tokens.items():
            # Of a completion that training ended before, nothing is known.
            known_N = (within_NT & ~np.isnan(values_NT)).any(axis=1)
            known_NT = within_NT & known_N[:, None]
            arrays[name] = join_lists(values_NT[known_NT], np.where(known_N, lengths_N, 0), known=known_N)
        arrays |= {name: column_of(name, values) for name, values in drawn.columns.items()}
        return Rollouts.of_arrays(arrays, n)

    def _verdicts(self, drawn: Drawn) -> Any:
        """What the named reward function says of each completion."""
        if self.correct is None or self.correct not in drawn.names:
            return repeat_value("correct", None, len(drawn.ids_NT))
        said_N = drawn.rewards_NF[:, list(drawn.names).index(self.correct)]
        known_N = ~np.isnan(said_N)
        for said in said_N[known_N & (said_N != 0) & (said_N != 1)][:1]:
            verdict(self.correct, {self.correct: float(said)})  # refuses it
        return column_of("correct", said_N == 1, known_N)

    def new_texts(self, drawn: Drawn) -> dict[int, str]:
        """The strings of the tokens that no batch before has had."""
        ids = drawn.ids_NT[drawn.there_NT]
        beyond = int(ids.max(initial=-1)) + 1 - len(self._met_V)
        if beyond > 0:
            self._met_V = np.append(self._met_V, np.zeros(beyond, dtype=bool))
        new = np.unique(ids[~self._met_V[ids]])
        self._met_V[new] = True
        return dict(zip(new.tolist(), self._texts.of(new.tolist()), strict=True))


def has_rollouts(folder: Path) -> bool:
    return any(True for _ in folder.glob("rollouts/step=*"))


def refuse_another_run(folder: Path, *, found: bool, step: int) -> None:
    """A run that starts anew must not add its rows to those of another."""
    if found and not step:
        raise UsageError(
            f"{folder} holds the rollouts of another run: name a new folder, or resume from that run's checkpoint"
        )


class RecordThread:
    """Makes rows of what it is handed and has them written, in order. A batch that cannot be written stops the training at the next hand-over, or at `flush`."""

    def __init__(self, writer: WriterProcess, rendering: Rendering) -> None:
        self.writer, self.rendering = writer, rendering
        self._waiting: queue.Queue[Drawn | tuple[int, Mapping[str, Any]]] = queue.Queue(maxsize=WAITING)
        self._failed: BaseException | None = None
        threading.Thread(target=self._work, name="equipoise-capture", daemon=True).start()
        atexit.register(self._waiting.join)  # a run that an exception ends has its last batches too

    def hand_over(self, drawn: Drawn) -> None:
        self._check()
        self._waiting.put(drawn)

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        self._check()
        self._waiting.put((step, metrics))

    @property
    def is_idle(self) -> bool:
        """Whether all that was handed over is on disk."""
        return not self._waiting.unfinished_tasks

    def flush(self) -> None:
        """Wait until all is on disk."""
        self._waiting.join()
        self._check()

    def _check(self) -> None:
        if self._failed is not None:
            failed, self._failed = self._failed, None
            raise failed

    def _work(self) -> None:
        while True:
            item = self._waiting.get()
            try:
                if self._failed is None:
                    self._write(item)
            except BaseException as problem:
                self._failed = problem  # raised where the training hands over next
            finally:
                self._waiting.task_done()

    def _write(self, item: Drawn | tuple[int, Mapping[str, Any]]) -> None:
        if not isinstance(item, Drawn):
            self.writer.log(*item)
            return
        texts = self.rendering.new_texts(item)
        if texts:
            self.writer.vocab(texts)
        self.writer.write_batches([self.rendering.columns(item, self.writer.info.run_id)])


def _advantages(drawn: Drawn, lengths_N: np.ndarray) -> np.ndarray:
    """Of the sequence; the mean over the tokens that the loss reads where each has its own, nan where it reads none."""
    if drawn.adv.ndim == 1:
        return drawn.adv
    found_N = np.full(len(drawn.adv), np.nan)
    for n, length in enumerate(lengths_N):
        learnt = drawn.learnt_NT[n, :length]
        if learnt.any():
            found_N[n] = drawn.adv[n, :length][learnt].mean()
    return found_N
