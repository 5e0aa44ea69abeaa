"""What came of many questions, and the run folder that holds it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, is_dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from equipoise.base import Choice, Estimate, Grade, Problem, Question, Rollout, Spend
from equipoise.errors import UsageError
from equipoise.infer.ballots import read_answers
from equipoise.infer.metered import Metered
from equipoise.lab.open_model import Opened
from equipoise.measures.html import html_table, number_cell
from equipoise.measures.intervals import mean_of_prompts
from equipoise.rollouts.run import RunInfo
from equipoise.rollouts.writer import RunWriter
from equipoise.text.display import many

Strategy = Callable[[Question, Metered], Awaitable[Choice]]


@dataclass(frozen=True, slots=True)
class Answered:
    """One question and what came of it. `correct` None: nobody can say."""

    question: str
    choice: Choice
    correct: bool | None

    def to_dict(self) -> dict[str, Any]:
        return {"question": self.question, "correct": self.correct} | self.choice.to_dict()


@dataclass(frozen=True, slots=True)
class Solved:
    """All questions that were answered, in the order they were asked."""

    strategy: str
    model: str
    answered: tuple[Answered, ...]
    asked: int
    spent: Spend
    accuracy: Estimate
    tokens: Estimate  # of a question
    folder: str | None = None
    interrupted: bool = False
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": "equipoise.solve/1",
            "strategy": self.strategy,
            "model": self.model,
            "asked": self.asked,
            "answered": len(self.answered),
            "accuracy": self.accuracy.to_dict(),
            "tokens": self.tokens.to_dict(),
            "spent": self.spent.to_dict(),
            "results": [one.to_dict() for one in self.answered],
            "run": self.folder,
            "interrupted": self.interrupted,
            "warnings": list(self.warnings),
        }

    def rows(self) -> list[list[str]]:
        """A row for each question, under `HEADS`."""
        said = {True: "yes", False: "no", None: "–"}
        return [
            [
                one.question,
                "–" if one.choice.answer is None else one.choice.answer.text,
                said[one.correct],
                f"{one.choice.spent.generated:,}",
                str(len(one.choice.drawn)),
                one.choice.stopped_by,
            ]
            for one in self.answered
        ]

    def about(self) -> str:
        right = f"accuracy {number_cell(self.accuracy)}, " if self.accuracy.value is not None else ""
        return (
            f"{self.strategy} on {self.model}: {len(self.answered)} of {many(self.asked, 'question')}, {right}"
            f"{many(self.spent.generated, 'token')}, {number_cell(self.tokens)} a question"
        )

    def _repr_html_(self) -> str:
        return html_table(HEADS, self.rows(), title=self.about())


HEADS = ["question", "answer", "right", "tokens", "samples", "stopped by"]


def accuracy_of(answered: Iterable[Answered]) -> Estimate:
    known = [float(one.correct) for one in answered if one.correct is not None]
    if not known:
        return Estimate("accuracy", None, n=0, missing="questions with a checker: those of a task, or of a graded pool")
    return mean_of_prompts(known, bounds=(0, 1)).named("accuracy")


def tokens_of(answered: Sequence[Answered]) -> Estimate:
    return mean_of_prompts([one.choice.spent.generated for one in answered], bounds=(0, float("inf"))).named("tokens")


# --- the folder ------------------------------------------------------------------------------------------------------------


def open_writer(
    folder: Path,
    opened: Opened,
    strategy: Strategy,
    name: str,
    questions: Sequence[Question],
    budget: int | None,
    run_budget: int | None,
) -> RunWriter:
    if (folder / "run.json").exists():
        raise UsageError(f"{folder} holds a run already: name a new folder")
    how = questions[0].how
    settings: dict[str, Any] = {
        "strategy": name,
        "budget": budget,
        "run_budget": run_budget,
        "questions": len(questions),
    }
    if is_dataclass(strategy) and not isinstance(strategy, type):
        settings["strategy_settings"] = asdict(strategy)
    return RunWriter(
        folder,
        RunInfo(
            source="equipoise",
            source_version=version("equipoise"),
            run_id=folder.name,
            model=opened.name,
            sampling=opened.describe_sampling(how, max_tokens=how.max_tokens),
            settings=settings,
        ),
    )


def rollouts_of(
    problem: Problem, question: Question, choice: Choice, info: RunInfo, strategy: str, budget: int | None
) -> list[Rollout]:
    answers = read_answers(question, choice.drawn)
    found = []
    for number, (completion, answer) in enumerate(zip(choice.drawn, answers, strict=True)):
        grade = Grade(answer, None, None)
        if question.judge is not None and answer is not None:
            grade = question.judge(completion)
        # The answer that took part in the choice, whatever form the checker gives it.
        found.append(
            Rollout(
                run_id=info.run_id or "",
                split="offline",
                step=None,
                group_id=problem.id,
                sample_index=number,
                problem=problem,
                completion=completion,
                grade=replace(grade, answer=answer),
                budget=budget,
                strategy=strategy,
                extra={"temperature": question.how.temperature},
            )
        )
    return found
