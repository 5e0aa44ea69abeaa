"""A second try: what the checker said of a wrong answer, as a prompt. The reference answer is never in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from equipoise.base import Completion, Grade, Problem, Prompt
from equipoise.tasks.task import Task

ONLY_WRONG = "it is wrong"  # where a checker says no more


Try = tuple[Completion, Grade]


@runtime_checkable
class AsksAgain(Protocol):
    """A task with a form of its own for models of single characters, which its short prompt goes with."""

    @property
    def prompt(self) -> str: ...

    def ask_again(self, problem: Problem, tries: Sequence[Try]) -> Prompt | None:
        """The problem with these tries and what is wrong with each; None where there is nothing to say of any."""
        ...


def ask_again(task: Task, problem: Problem, completion: Completion, grade: Grade) -> Prompt | None:
    """The prompt of another try after a wrong one, in the task's own form or in words; None: there is nothing to say.

    A chat gets the try as the model's turn and the checker's words as the next one.
    """
    if grade.correct is not False or completion.text is None:
        return None
    form = own_form(task, problem)
    return in_words(problem, completion.text, grade) if form is None else form([(completion, grade)])


def own_form(task: Task, problem: Problem) -> Callable[[Sequence[Try]], Prompt | None] | None:
    """How a task puts earlier tries at a problem where it has a form of its own; None: they are put in words."""
    if not isinstance(task, AsksAgain) or task.prompt != "short" or not isinstance(problem.prompt, str):
        return None
    asks: AsksAgain = task
    return lambda tries: asks.ask_again(problem, tries)


def in_words(problem: Problem, text: str, grade: Grade) -> Prompt:
    again = f"The checker says: {grade.feedback or ONLY_WRONG}. Think again and answer the question anew."
    if isinstance(problem.prompt, str):
        return f"{problem.prompt}\n\nYour answer was:\n{text}\n\n{again}"
    return [*problem.prompt, {"role": "assistant", "content": text}, {"role": "user", "content": again}]
