"""What searches drew, as a run folder that `measure`, `compare` and `plan` read. Off unless the operator names a folder: it holds prompts.

A disk that fails costs rows and a warning, never a reply.
"""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass, field
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equipoise.base import Choice, Grade, Problem, Prompt, Question, Rollout
from equipoise.errors import UsageError
from equipoise.gateway.orders import Order
from equipoise.infer.ballots import read_answers

if TYPE_CHECKING:
    from equipoise.rollouts.writer import RunWriter

log = logging.getLogger("equipoise.gateway")
FLUSH_ROWS = 256
MAX_HELD = 16 * FLUSH_ROWS  # rows that wait for a slow disk; more are dropped


@dataclass(slots=True)
class Recorder:
    writer: RunWriter
    dropped: int = 0
    _rows: list[Rollout] = field(default_factory=list)
    _lines: list[dict[str, Any]] = field(default_factory=list)
    _writing: asyncio.Task[None] | None = None

    def add(self, question: Question, choice: Choice, order: Order) -> None:
        """Keep one search; written when there is enough of it."""
        if len(self._rows) >= MAX_HELD:
            self.dropped += len(choice.drawn)
            return
        prompt_id = name_prompt(question.prompt)
        self._rows += _rollouts(prompt_id, question, choice, order, self.writer.info.run_id or "")
        told = {"prompt_id": prompt_id, "model": order.model, "strategy": order.spec, "budget": order.budget}
        self._lines.append(told | {"correct": None} | choice.to_dict())
        if len(self._rows) >= FLUSH_ROWS and (self._writing is None or self._writing.done()):
            self._writing = asyncio.create_task(self.flush())

    async def flush(self) -> None:
        rows, self._rows = self._rows, []
        lines, self._lines = self._lines, []
        if rows or lines:
            await asyncio.to_thread(self._write, rows, lines)

    async def close(self) -> None:
        if self._writing is not None:
            await asyncio.gather(self._writing, return_exceptions=True)
        await self.flush()

    def _write(self, rows: list[Rollout], lines: list[dict[str, Any]]) -> None:
        try:
            if rows:
                self.writer.write(rows)
            for line in lines:
                self.writer.choose(line)
        except (OSError, UsageError) as problem:
            self.dropped += len(rows)
            log.warning("the record could not be written, %d rows are lost: %s", len(rows), type(problem).__name__)


def open_recorder(folder: Path) -> Recorder:
    from equipoise.rollouts.run import RunInfo  # here, since it needs pyarrow
    from equipoise.rollouts.writer import RunWriter

    info = RunInfo(source="equipoise", source_version=version("equipoise"), run_id=folder.name)
    return Recorder(RunWriter(folder, info))


def name_prompt(prompt: Prompt) -> str:
    """The same for the same prompt, so that its completions of many requests are one problem's."""
    return blake2b(json.dumps(prompt, sort_keys=True).encode(), digest_size=8).hexdigest()


def _rollouts(prompt_id: str, question: Question, choice: Choice, order: Order, run_id: str) -> list[Rollout]:
    problem = Problem(prompt_id, None, question.prompt)
    answers = read_answers(question, choice.drawn)
    return [
        Rollout(
            run_id=run_id,
            split="offline",
            step=None,
            group_id=question.id,
            sample_index=number,
            problem=problem,
            completion=completion,
            grade=Grade(answer, None, None),
            budget=order.budget,
            strategy=order.spec,
            extra={"temperature": question.how.temperature, "model": order.model},
        )
        for number, (completion, answer) in enumerate(zip(choice.drawn, answers, strict=True))
    ]
