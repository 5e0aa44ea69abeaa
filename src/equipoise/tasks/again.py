"""A second try: what the checker said of a wrong answer, as a prompt. The reference answer is never in it."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from equipoise.base import Completion, Grade, Problem, Prompt
from equipoise.tasks.task import Task

ONLY_WRONG = "it is wrong"  # where a checker says no more


@runtime_checkable
class AsksAgain(Protocol):
    """A task with a form of its own, say for a model of single characters."""

    def ask_again(self, problem: Problem, completion: Completion, grade: Grade) -> Prompt | None:
        """The problem with this try and what is wrong with it; None where there is nothing to say of it."""
        ...


def ask_again(task: Task, problem: Problem, completion: Completion, grade: Grade) -> Prompt | None:
    """The prompt of another try after a wrong one, in the task's own form or in words; None: there is nothing to say.

    A chat gets the try as the model's turn and the checker's words as the next one.
    """
    if grade.correct is not False or completion.text is None:
        return None
    if isinstance(task, AsksAgain):
        return task.ask_again(problem, completion, grade)
    return in_words(problem, completion.text, grade)


def in_words(problem: Problem, text: str, grade: Grade) -> Prompt:
    again = f"The checker says: {grade.feedback or ONLY_WRONG}. Think again and answer the question anew."
    if isinstance(problem.prompt, str):
        return f"{problem.prompt}\n\nYour answer was:\n{text}\n\n{again}"
    return [*problem.prompt, {"role": "assistant", "content": text}, {"role": "user", "content": again}]
