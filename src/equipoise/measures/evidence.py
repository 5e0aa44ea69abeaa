"""One pass over a run fills every table that the chosen measures read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from equipoise.errors import UsageError
from equipoise.measures.answers import AnswerCounter, AnswerTable, answers_needed, brings_answers
from equipoise.rollouts.batch import Rollouts
from equipoise.rollouts.run import Run

if TYPE_CHECKING:
    from equipoise.measures.texts import TextTable
    from equipoise.measures.tokens import TokenTable


@dataclass(frozen=True, slots=True)
class Options:
    """Choices that a caller makes for any measure. `k` empty: powers of two up to the samples per problem."""

    k: tuple[int, ...] = ()
    solved_at: float | None = None
    seed: int = 0
    bins: int = 10
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.bins < 1:
            raise UsageError(f"a calibration error needs 1 or more bins: {self.bins} was asked")
        if self.seed < 0:
            raise UsageError(f"a seed is a whole number from 0 on: {self.seed} was asked")
        if self.solved_at is not None and not np.isfinite(self.solved_at):
            raise UsageError(f"a reward from which a rollout is right must be a number: {self.solved_at} was asked")


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one pass over a run found. Rows of `tokens` and `texts` are those of `answers`, in the same order."""

    run: Run
    answers: AnswerTable
    tokens: TokenTable | None = None  # None: no measure asked for it, or the run has no token columns
    texts: TextTable | None = None
    metrics: tuple[dict[str, Any], ...] = ()

    @property
    def n_prompts(self) -> int:
        prompts = self.answers.prompt_R
        return len(np.unique(prompts[prompts >= 0]))

    def notes(self) -> list[str]:
        """Where verdicts and answers were taken from, when the record did not state them itself, and how many lack one;
        tokens that could not be used."""
        table = self.answers
        notes = []
        if table.correct_from not in (None, "the correct column", "the outcome column"):
            notes.append(f"correct: taken from {table.correct_from}; a correct column would settle it")
        unknown = int(np.isnan(table.correct).sum())
        if 0 < unknown < len(table):
            notes.append(f"correct: {unknown:,} of {len(table):,} rollouts have no verdict and count as neither")
        if table.answer_from == "read from the completion":
            notes.append("answer: no answer column, so answers were read from the completions")
        return notes + ([] if self.tokens is None else self.tokens.notes())


def collect(
    run: Run,
    needs: Collection[str] = ("answers", "tokens", "texts", "metrics"),
    *,
    options: Options = Options(),
    progress: Callable[[int], None] | None = None,
) -> Evidence:
    """Stream the run once. `progress` is told the number of rollouts read so far.

    The scalars of every rollout are always gathered; `needs` names what else: "tokens", "texts", "metrics", and "answers"
    where the answers themselves matter, so that they are read out of the completions if the record has none.
    """
    counters: dict[str, Any] = {"answers": AnswerCounter(solved_at=options.solved_at, read_texts=False)}
    if "tokens" in needs:
        from equipoise.measures.tokens import TokenCounter

        counters["tokens"] = TokenCounter(vocab=run.vocab())
    if "texts" in needs:
        from equipoise.measures.texts import TextCounter

        counters["texts"] = TextCounter()
    columns = {name for counter in counters.values() for name in counter.columns}
    batches = run.rollouts(sorted(columns))
    first = next(batches, None)
    if first is not None and _must_read_answers(first, needs, options):
        counters["answers"] = AnswerCounter(solved_at=options.solved_at)
        if "completion" not in columns:  # most of a file's bytes: fetched only now that they are needed
            batches, first = run.rollouts(sorted({"completion", *columns})), None
    seen = 0
    for rollouts in batches if first is None else chain([first], batches):
        for counter in counters.values():
            counter.add(rollouts)
        seen += len(rollouts)
        if progress is not None:
            progress(seen)
    tables = {name: counter.table() for name, counter in counters.items()}
    metrics = tuple(run.metrics()) if "metrics" in needs else ()
    return Evidence(run, tables["answers"], tables.get("tokens"), tables.get("texts"), metrics)


def _must_read_answers(first: Rollouts, needs: Collection[str], options: Options) -> bool:
    """Whether answers have to be looked for in the completions, judging by the first rollouts."""
    if brings_answers(first):
        return False
    return "answers" in needs or answers_needed(first, solved_at=options.solved_at)
