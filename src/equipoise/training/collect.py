"""One step's completions: problems drawn, sampled, graded, and laid out by group. Axes: P problems, G completions each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from equipoise.base import Completion, Grade, Problem
from equipoise.models.decoding import Decoding, seed_of
from equipoise.models.generate import generate
from equipoise.models.graphs import StepGraphs
from equipoise.models.language_model import LanguageModel, Tokens
from equipoise.models.samples import Samples, read_completions
from equipoise.rollouts.groups import Groups
from equipoise.tasks.task import Task
from equipoise.text.phrases import Span
from equipoise.text.planning import spans_to_tokens, token_offsets


@dataclass(frozen=True, slots=True)
class Batch:
    """Row b is completion b % G of problem b // G, in the samples and in the lists."""

    problems: list[Problem]
    completions: list[Completion]
    grades: list[Grade]
    groups: Groups
    answers_PG: np.ndarray  # canonical strings, None where none was read
    samples: Samples

    @property
    def drawn_P(self) -> np.ndarray:
        """Completions with a verdict: one that the checker could not judge is no wrong one."""
        assert self.groups.correct_PG is not None
        return np.asarray(np.isfinite(self.groups.correct_PG).sum(axis=1))

    @property
    def right_P(self) -> np.ndarray:
        assert self.groups.correct_PG is not None
        return np.asarray(np.nansum(self.groups.correct_PG, axis=1))

    @property
    def distinct_P(self) -> np.ndarray:
        """Different readable answers."""
        return np.array([len({a for a in answers if a is not None}) for answers in self.answers_PG], dtype=float)

    def first(self, most: int) -> Samples:
        """The first `most` completions of every problem."""
        places_B = torch.arange(len(self.samples.prompt_B), device=self.samples.prompt_B.device)
        return self.samples.take(places_B[places_B % self.answers_PG.shape[1] < most])


def collect(
    model: LanguageModel,
    tokens: Tokens,
    task: Task,
    problems: list[Problem],
    *,
    seed: tuple[int | str, ...],
    samples: int,
    temperature: float,
    max_tokens: int,
    graphs: StepGraphs | None = None,
) -> Batch:
    """`samples` completions of every problem, graded. Equal seeds draw equal completions, however large the batch."""
    drawn = generate(
        model,
        [tokens.encode(problem.prompt) for problem in problems],
        seeds=[seed_of(*seed, problem.id) for problem in problems],
        samples=samples,
        max_tokens=max_tokens,
        pad=tokens.pad,
        stop=tokens.stop,
        decoding=Decoding(temperature=temperature),
        graphs=graphs,
    )
    completions = read_completions(drawn, tokens)
    grades = [task.grade(problems[row // samples], completion) for row, completion in enumerate(completions)]
    shape = (len(problems), samples)
    answers_PG = np.array([None if g.answer is None else g.answer.text for g in grades], dtype=object).reshape(shape)
    return Batch(problems, completions, grades, _groups(problems, completions, grades, answers_PG), answers_PG, drawn)


def answer_tokens(batch: Batch, tokens: Tokens, shape: tuple[int, int]) -> np.ndarray:
    """(B, T) bool: the tokens in which the final answer stands."""
    answer_BT = np.zeros(shape, dtype=bool)
    for row, (completion, grade) in enumerate(zip(batch.completions, batch.grades, strict=True)):
        if grade.answer is not None and grade.answer.span is not None and completion.token_ids is not None:
            offsets = token_offsets([tokens.decode([token]) for token in completion.token_ids])
            span = Span("answer", "", *grade.answer.span)
            answer_BT[row, : len(offsets)] = spans_to_tokens([span], offsets)
    return answer_BT


def _groups(
    problems: list[Problem], completions: list[Completion], grades: list[Grade], answers_PG: np.ndarray
) -> Groups:
    shape = answers_PG.shape

    def laid_out(values: list[float | None]) -> np.ndarray:
        return np.array([np.nan if v is None else float(v) for v in values]).reshape(shape)

    code_of: dict[str, int] = {}
    codes = [-1 if text is None else code_of.setdefault(text, len(code_of)) for text in answers_PG.ravel()]
    return Groups(
        prompt_ids_P=tuple(problem.id for problem in problems),
        keep_PG=np.ones(shape, dtype=bool),
        reward_PG=laid_out([grade.reward for grade in grades]),
        correct_PG=laid_out([grade.correct for grade in grades]),
        answer_PG=np.array(codes).reshape(shape),
        confidence_PG=laid_out([grade.confidence for grade in grades]),
        n_tokens_PG=laid_out([completion.n_tokens for completion in completions]),
        truncated_PG=laid_out([completion.finish == "length" for completion in completions]),
        row_PG=np.arange(len(grades)).reshape(shape),
    )
