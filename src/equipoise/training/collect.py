"""One step's completions: problems drawn, sampled, graded, and laid out by group. Axes: P problems, G completions each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
from equipoise.text.degenerate import find_degenerate
from equipoise.text.phrases import Span
from equipoise.text.planning import planning_spans, spans_to_tokens, token_offsets


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

    @property
    def degenerate_PG(self) -> np.ndarray:
        """1 where a text has a sign of degeneracy, 0 where it has none, nan where there is no text."""
        return self._laid_out(
            [
                None if c.text is None else bool(find_degenerate(c.text, answer=_answer_of(g)).flags)
                for c, g in zip(self.completions, self.grades, strict=True)
            ]
        )

    @property
    def format_ok_PG(self) -> np.ndarray | None:
        """1 where the checker found the form that it asks for; None where it never says."""
        found_PG = self._laid_out([grade.format_ok for grade in self.grades])
        return None if np.isnan(found_PG).all() else found_PG

    def _laid_out(self, values: Sequence[float | None]) -> np.ndarray:
        return _by_group(values, self.answers_PG.shape)

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
    return lay_out(problems, completions, _grade_all(task, problems, completions, samples), drawn)


def lay_out(problems: list[Problem], completions: list[Completion], grades: list[Grade], samples: Samples) -> Batch:
    """Graded completions by group: as many of every problem, in the order of the problems."""
    shape = (len(problems), len(completions) // len(problems))
    answers_PG = np.array([_answer_of(grade) for grade in grades], dtype=object).reshape(shape)
    return Batch(problems, completions, grades, _groups(problems, completions, grades, answers_PG), answers_PG, samples)


def _grade_all(task: Task, problems: list[Problem], completions: list[Completion], samples: int) -> list[Grade]:
    """Equal completions of a problem, and a policy that has narrowed writes many, are checked once."""
    known: dict[tuple[Any, ...], Grade] = {}
    grades = []
    for row, completion in enumerate(completions):
        place = row // samples
        key = (place, completion.text, completion.thinking, completion.finish)
        if key not in known:
            known[key] = task.grade(problems[place], completion)
        grades.append(known[key])
    return grades


def mark_tokens(name: str, batch: Batch, tokens: Tokens, shape: tuple[int, int]) -> np.ndarray:
    """(B, T) bool: the tokens in which the final answer stands ("answer_BT"), or those that plan ("planning_BT")."""
    marked_BT = np.zeros(shape, dtype=bool)
    for row, (completion, grade) in enumerate(zip(batch.completions, batch.grades, strict=True)):
        if completion.token_ids is not None:
            texts = [tokens.decode([token]) for token in completion.token_ids]
            whole = "".join(texts)
            # A grade's span counts from the text, which stands after the thinking where a completion has both.
            before = len(whole) - len(completion.text or "") if completion.thinking is not None else 0
            spans = _answer_spans(grade, before) if name == "answer_BT" else planning_spans(whole)
            marked_BT[row, : len(texts)] = spans_to_tokens(spans, token_offsets(texts))
    return marked_BT


def _answer_of(grade: Grade) -> str | None:
    return None if grade.answer is None else grade.answer.text


def _answer_spans(grade: Grade, before: int) -> list[Span]:
    if grade.answer is None or grade.answer.span is None:
        return []
    start, end = grade.answer.span
    return [Span("answer", "", before + start, before + end)]


def _by_group(values: Sequence[float | None], shape: tuple[int, ...]) -> np.ndarray:
    return np.array([np.nan if value is None else float(value) for value in values]).reshape(shape)


def _groups(
    problems: list[Problem], completions: list[Completion], grades: list[Grade], answers_PG: np.ndarray
) -> Groups:
    shape = answers_PG.shape

    def laid_out(values: Sequence[float | None]) -> np.ndarray:
        return _by_group(values, shape)

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
