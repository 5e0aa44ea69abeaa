"""A task posed as multiple choice: the same problems, one right option among wrong ones, a letter as the answer.

How a problem is posed sets how much there is to explore before any training: four letters against all expressions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from string import ascii_uppercase

from equipoise.base import Answer, Completion, Grade, Problem
from equipoise.errors import UsageError
from equipoise.tasks.reading import read_completion, read_stated
from equipoise.tasks.task import (
    Distracting,
    ManySolutions,
    Seed,
    Task,
    mix_seed,
    need,
    right_or_wrong,
    unparsable,
)
from equipoise.text.answers import canonical

MAX_OPTIONS = 10  # A to J
TRIES = 40  # distractors drawn per problem, and problems whose answers fill up where a task writes no distractors
POOL_SEED = "options"

HOW = "Give the letter of the one right option within <answer> and </answer>."


@dataclass(frozen=True, slots=True)
class Choices:
    task: Task
    options: int = 4

    def __post_init__(self) -> None:
        need(2 <= self.options <= MAX_OPTIONS, f"options of a task is 2 to {MAX_OPTIONS}, found {self.options}")

    @property
    def env(self) -> str:
        return f"{self.task.env}-choice"

    @property
    def letters(self) -> str:
        return ascii_uppercase[: self.options]

    def problems(self, seed: Seed, n: int, *, split: str = "train") -> list[Problem]:
        """The task's own problems for this seed and split. Which options one has depends on the problem only."""
        pool: list[Problem] = []
        posed = []
        for problem in self.task.problems(seed, n, split=split):
            right, wrong = self._options(problem, pool, split)
            posed.append(self._pose(problem, right, wrong))
        return posed

    def read(self, problem: Problem, text: str) -> Answer | None:
        return read_stated(text, self._letter)

    def grade(self, problem: Problem, completion: Completion) -> Grade:
        answer = read_completion(completion, lambda text: self.read(problem, text))
        if answer is None:
            return unparsable(f"no letter from A to {self.letters[-1]} found")
        return right_or_wrong(answer, answer.text == problem.reference)

    def solutions(self, problem: Problem) -> frozenset[str]:
        return frozenset([problem.reference or ""])

    def _letter(self, text: str) -> str | None:
        letter = (canonical(text) or "").upper()
        return letter if len(letter) == 1 and letter in self.letters else None

    def _pose(self, problem: Problem, right: str, wrong: list[str]) -> Problem:
        options = [right, *wrong]
        Random(mix_seed("order", problem.id, self.options)).shuffle(options)
        question = str(problem.params["question"])
        if question == problem.prompt:  # the short form, with nothing said of how to answer: 3,7,2,9=24|A3*7+…|B…>
            text = (
                question.removesuffix(">")
                + "".join(f"|{a}{o}" for a, o in zip(self.letters, options, strict=True))
                + ">"
            )
        else:
            listed = "\n".join(f"{a}) {o}" for a, o in zip(self.letters, options, strict=True))
            text = f"{question}\n{listed}\n{HOW}"
        letter = self.letters[options.index(right)]
        params = {"free": problem.id, "options": options, "question": text}
        return Problem(f"{problem.id}/choice{self.options}", self.env, text, letter, params)

    def _options(self, problem: Problem, pool: list[Problem], split: str) -> tuple[str, list[str]]:
        """The right option and the others. The task's own checker says of each which it is."""
        solutions = self.task.solutions(problem) if isinstance(self.task, ManySolutions) else ()
        right = problem.reference or min(solutions, default=None)
        checked = self._checked(problem, right) if right else None
        if right is None or checked is None or checked.outcome != "right" or checked.answer is None:
            raise UsageError(f"problem {problem.id} has no reference that its own checker calls right, so no options")
        seen = {checked.answer.text}
        wrong: list[str] = []
        for text in self._candidates(problem, pool, split):
            checked = self._checked(problem, text)
            if checked.outcome == "wrong" and checked.answer is not None and checked.answer.text not in seen:
                seen.add(checked.answer.text)
                wrong.append(text)
            if len(wrong) == self.options - 1:
                return right, wrong
        raise UsageError(
            f"problem {problem.id} has {len(wrong)} wrong options: ask for options={len(wrong) + 1}, or fewer"
        )

    def _candidates(self, problem: Problem, pool: list[Problem], split: str) -> Iterator[str]:
        """Distractors of the task, then the answers of its other problems."""
        random = Random(mix_seed("distractors", problem.id, self.options))
        if isinstance(self.task, Distracting):
            yield from filter(None, (self.task.distractor(problem, random) for _ in range(TRIES)))
        if not pool:
            pool += self.task.problems(POOL_SEED, TRIES, split=split)
        yield from filter(None, (other.reference for other in random.sample(pool, len(pool))))

    def _checked(self, problem: Problem, text: str) -> Grade:
        return self.task.grade(problem, Completion(f"<answer>{text}</answer>"))
