"""One generation batch of TRL as rows of the record, made and written by a thread beside the training. Axes: N completions, T tokens."""

from __future__ import annotations

import atexit
import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.adapters.trl_step import prompt_key
from equipoise.adapters.trl_texts import Read, TokenTexts, verdict
from equipoise.errors import UsageError
from equipoise.rollouts.batch import Rollouts
from equipoise.rollouts.writer import RunWriter

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
    """From token ids to texts and answers. The tokenizer is its own: a fast one refuses two threads at once."""

    def __init__(
        self, tokenizer: Any, *, ends: Sequence[int], read: Read, correct: str | None, temperature: float
    ) -> None:
        self.tokenizer, self.ends, self.read, self.correct = tokenizer, frozenset(ends), read, correct
        self.temperature = temperature
        self.texts = TokenTexts(tokenizer)

    def rows(self, drawn: Drawn, run_id: str | None) -> Iterator[dict[str, Any]]:
        lengths = drawn.there_NT.sum(axis=1)
        completions = self.tokenizer.batch_decode(
            [ids[:length] for ids, length in zip(drawn.ids_NT, lengths, strict=True)], skip_special_tokens=True
        )
        prompt, prompt_id = "", ""
        for n, text in enumerate(completions):
            group, place = divmod(n, drawn.group_size)
            if place == 0:
                ids = drawn.prompt_ids_NL[n][drawn.prompt_mask_NL[n].astype(bool)].tolist()
                prompt, prompt_id = self.tokenizer.decode(ids), prompt_key(ids)
            length = int(lengths[n])
            answer = self.read(text)
            rewards = [(f, float(v)) for f, v in zip(drawn.names, drawn.rewards_NF[n], strict=True) if not np.isnan(v)]
            per_token = drawn.adv.ndim == 2
            learnt = drawn.learnt_NT[n, :length]
            of_tokens = drawn.adv[n, :length] if per_token else None
            yield {
                "run_id": run_id,
                "split": drawn.split,
                "step": drawn.step,
                "group_id": f"{drawn.split}-{drawn.step}-{drawn.first_group + group}",
                "sample_index": place,
                "prompt_id": prompt_id,
                "prompt": prompt,
                "completion": text,
                "answer": None if answer is None else answer.text,
                "correct": verdict(self.correct, dict(rewards)),
                "reward": None if np.isnan(drawn.reward_N[n]) else float(drawn.reward_N[n]),
                "rewards": rewards or None,
                "advantage": _mean(of_tokens, learnt) if of_tokens is not None else float(drawn.adv[n]),
                "advantages": of_tokens,
                "finish_reason": "stop" if length and int(drawn.ids_NT[n, length - 1]) in self.ends else "length",
                "temperature": self.temperature,
                "n_tokens": length,
                "token_ids": drawn.ids_NT[n, :length],
                "loss_mask": learnt,
                **{name: _known(values_NT[n, :length]) for name, values_NT in drawn.tokens.items()},
                **{name: values[n] for name, values in drawn.columns.items()},
            }

    def new_texts(self, drawn: Drawn) -> dict[int, str]:
        """The strings of the tokens that no batch before has had."""
        found = set(np.unique(drawn.ids_NT[drawn.there_NT]).tolist()) - self.texts.seen.keys()
        return dict(zip(sorted(found), self.texts.of(sorted(found)), strict=True))


def has_rollouts(folder: Path) -> bool:
    return any(True for _ in folder.glob("rollouts/step=*"))


def refuse_another_run(folder: Path, *, found: bool, step: int) -> None:
    """A run that starts anew must not add its rows to those of another."""
    if found and not step:
        raise UsageError(
            f"{folder} holds the rollouts of another run: name a new folder, or resume from that run's checkpoint"
        )


class RecordThread:
    """Writes what it is handed, in order. A batch that cannot be written stops the training at the next hand-over, or at `flush`."""

    def __init__(self, writer: RunWriter, rendering: Rendering) -> None:
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
        # Straight to columns: these rows have the record's types, and checking each cell would cost more than all the rest.
        self.writer.write_batches([Rollouts.of_rows(self.rendering.rows(item, self.writer.info.run_id))])


def _known(values: np.ndarray) -> np.ndarray | None:
    """None where training ended before this completion's pass."""
    return None if np.isnan(values).all() else values


def _mean(values: np.ndarray, there: np.ndarray) -> float | None:
    return float(values[there].mean()) if there.any() else None
