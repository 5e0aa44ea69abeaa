"""Evidence of a run that is still being written: every rollout is counted once, whenever it arrives."""

from __future__ import annotations

from collections.abc import Iterable

from equipoise.measures.answers import AnswerCounter, brings_answers
from equipoise.measures.evidence import Evidence
from equipoise.measures.texts import TextCounter
from equipoise.measures.tokens import TokenCounter
from equipoise.rollouts.batch import Rollouts
from equipoise.rollouts.run import Run


class Growing:
    """`add` counts rollouts, `evidence` is what `collect` would find in all that were added, in that order.

    The strings of the tokens are left out: they come late and only name tokens, which no rule reads.
    """

    def __init__(self) -> None:
        self._answers: AnswerCounter | None = None
        self._tokens, self._texts = TokenCounter(), TextCounter()
        self.columns = tuple(sorted({*AnswerCounter.columns, *self._tokens.columns, *TextCounter.columns}))

    def add(self, batches: Iterable[Rollouts]) -> None:
        for rollouts in batches:
            if self._answers is None:  # the first rollouts tell whether answers have to be looked for in the texts
                self._answers = AnswerCounter(read_texts=not brings_answers(rollouts))
            for counter in (self._answers, self._tokens, self._texts):
                counter.add(rollouts)

    def evidence(self, run: Run) -> Evidence:
        """What was counted so far, with the metrics that `run` holds now."""
        answers = self._answers or AnswerCounter()
        return Evidence(run, answers.table(), self._tokens.table(), self._texts.table(), tuple(run.metrics()))
