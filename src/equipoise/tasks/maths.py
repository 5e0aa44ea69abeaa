"""GSM8K, MATH and the like: problems of a file, answers compared by math-verify in a killable child process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from importlib.util import find_spec
from random import Random

from equipoise.base import Answer, Completion, Grade, Outcome, Problem
from equipoise.child import shared_child
from equipoise.errors import MissingExtra
from equipoise.tasks.problem_files import cell, read_rows
from equipoise.tasks.reading import read_completion, read_stated
from equipoise.tasks.task import Draft, Seed, need, pick_problems, right_or_wrong, unparsable
from equipoise.text.answers import canonical, read_answer
from equipoise.text.forms import MAX_CHARS
from equipoise.text.numerals import parse_number, show_number

HOW = "Reason step by step, and put the final answer within \\boxed{}."
SECONDS = 5.0  # of CPU time for one comparison
MEMORY_MB = 1024
CACHED = 16_384  # comparisons: the samples of a group give few different answers


@dataclass(frozen=True, slots=True)
class Maths:
    env: str = "maths"
    file: str | None = None  # columns question (or problem), answer; id where there is one
    seconds: float = SECONDS

    def __post_init__(self) -> None:
        need(self.seconds > 0, f"seconds of {self.env} is above 0, found {self.seconds}")

    def problems(self, seed: Seed, n: int, *, split: str = "train") -> list[Problem]:
        need(self.file is not None, f"{self.env} needs its problems: write {self.env}:file=PATH")
        return pick_problems(self._of_file(str(self.file)), seed=seed, n=n, split=split)

    def pose(self, question: str, reference: str, *, name: str) -> Problem:
        return Problem(f"{self.env}:{name}", self.env, f"{question}\n{HOW}", reference, {"question": question})

    def read(self, problem: Problem, text: str) -> Answer | None:
        raw = read_stated(text, _raw, bare=_number)
        return None if raw is None else Answer(canonical(raw.text) or raw.text, raw.span)

    def grade(self, problem: Problem, completion: Completion) -> Grade:
        r"""Equal strings are right, and two unequal whole numbers wrong, without a child; the rest math-verify compares.

        All right answers get the reference's form, so that `\frac{2}{4}` and `1/2` are one answer in a vote.
        """
        raw = read_completion(completion, lambda text: read_stated(text, _raw, bare=_number))
        if raw is None or problem.reference is None:
            return unparsable()
        answer = Answer(canonical(raw.text) or raw.text, raw.span)
        reference = canonical(problem.reference) or problem.reference
        outcome, message = compare_maths(problem.reference, raw.text, self.seconds)
        if outcome == "unparsable":
            return unparsable(f"no mathematics in '{answer.text[:80]}'")
        if outcome in ("timeout", "error"):
            return Grade(answer, outcome, None, feedback=message, format_ok=True)
        return right_or_wrong(Answer(reference, answer.span) if outcome == "right" else answer, outcome == "right")

    def distractor(self, problem: Problem, random: Random) -> str | None:
        """A number near the right one; None where the reference is no number."""
        value = parse_number(canonical(problem.reference or "") or "")
        if value is None:
            return None
        step = random.choice([1, 2, 5, 10])
        slips = [value + step, value - step, 2 * value, value / 2, -value, value + Fraction(round(value), 10)]
        slip = random.choice([number for number in slips if number.denominator == 1 or value.denominator > 1])
        return show_number(slip)

    def _of_file(self, path: str) -> Iterator[Draft]:
        for at, row in enumerate(read_rows(path)):
            question = str(cell(row, ("question", "problem", "prompt"), path=path))
            reference = str(cell(row, ("answer", "reference", "reference_answer"), path=path))
            if "####" in reference:  # GSM8K as published: the solution, and its answer in the last line
                stated = read_answer(reference)
                reference = stated.text if stated else reference
            name = str(row.get("id") if row.get("id") is not None else at)
            yield Draft(f"maths:{' '.join(question.split())}", self.pose(question, reference, name=name))


def compare_maths(reference: str, answer: str, seconds: float = SECONDS) -> tuple[Outcome, str | None]:
    """Whether an answer equals the reference, both as written, and what was said where it could not be found out."""
    wanted, given = canonical(reference), canonical(answer)
    if given is None:
        return "unparsable", None
    if given == wanted:
        return "right", None
    if _whole(given) and _whole(wanted or ""):
        return "wrong", None
    if find_spec("math_verify") is None:
        raise MissingExtra("tasks", needed_for="comparing answers in mathematical notation")
    return _verified(reference, answer, seconds)


@lru_cache(maxsize=CACHED)
def _verified(reference: str, answer: str, seconds: float) -> tuple[Outcome, str | None]:
    child = shared_child(seconds=seconds, memory_mb=MEMORY_MB)
    # As written, and tidied: math-verify knows \in but not ∈, and would read 9**9, which is no LaTeX, as 9.
    spelt = [[text.replace("**", "^"), canonical(text) or ""] for text in (reference, answer)]
    reply = child.call("equipoise.tasks.maths_worker:compare", *(list(dict.fromkeys(texts)) for texts in spelt))
    if reply.failure is not None:
        return reply.failure, reply.message
    return reply.value, None


def _raw(text: str) -> str | None:
    return text.strip() or None if len(text) <= MAX_CHARS else None


def _number(text: str) -> str | None:
    return text.strip() if parse_number(canonical(text) or "") is not None else None


def _whole(text: str) -> bool:
    value = parse_number(text)
    return value is not None and value.denominator == 1
