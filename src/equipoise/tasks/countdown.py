"""Countdown: reach a target from given numbers, each used exactly once. Game of 24 is the same with the target fixed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from random import Random
from typing import Any

from equipoise.base import Answer, Completion, Grade, Problem, Prompt
from equipoise.errors import UsageError
from equipoise.tasks.again import Try
from equipoise.tasks.countdown_prefixes import MOST_NUMBERS, can_become, solution_texts
from equipoise.tasks.countdown_solver import MAX_NUMBERS, solve
from equipoise.tasks.expressions import MAX_CHARS, Expression, parse_expression
from equipoise.tasks.problem_files import cell, read_rows
from equipoise.tasks.reading import read_completion, read_stated
from equipoise.tasks.task import (
    Draft,
    Seed,
    draw_problems,
    mix_seed,
    need,
    pick_problems,
    right_or_wrong,
    unparsable,
    with_how,
)
from equipoise.text.answers import canonical_expression
from equipoise.text.numerals import show_number

# For a model of single characters, which answers with the expression alone: 3,7,2,9=24> and then 2*(3*7-9).
SHORT_PROMPT = "{numbers}={target}>"
QUESTION = (
    "Using the numbers {numbers}, each exactly once, and the operations {operators}, "
    "write an expression that equals {target}."
)
HOW = "Give the expression alone within <answer> and </answer>."
SIGNS = "+-*/"
MAX_THOUGHT = 20_000  # characters of a thinking in which attempts are looked for
_PART = re.compile(r"[0-9]+|[-+*/()]")
# Either form of a prompt, wherever a chat template has put it.
_POSED = re.compile(
    r"Using the numbers ([0-9, ]{3,200}), each exactly once, [^.]{0,100}? equals ([0-9]{1,9})\."
    r"|(?<![0-9,])([0-9]{1,9}(?:,[0-9]{1,9})+)=([0-9]{1,9})>"
)


@dataclass(frozen=True, slots=True)
class Countdown:
    """Settings are the difficulty. A sign that stands twice in `operators` is drawn twice as often when a problem is made."""

    env: str = "countdown"
    numbers: int = 4
    smallest: int = 1
    largest: int = 20
    operators: str = "++--*"
    target_from: int = 1
    target_to: int = 99
    largest_step: int = 200  # of the solution that a problem is made from
    prompt: str = "short"  # or "words"
    file: str | None = None  # problems of a file instead: columns numbers (or nums, puzzle) and target

    def __post_init__(self) -> None:
        need(2 <= self.numbers <= MAX_NUMBERS, f"numbers of {self.env} is 2 to {MAX_NUMBERS}, found {self.numbers}")
        need(
            1 <= self.smallest <= self.largest,
            f"{self.env} needs 1 <= smallest <= largest, found {self.smallest} and {self.largest}",
        )
        need(
            1 <= self.target_from <= self.target_to,
            f"{self.env} needs 1 <= target_from <= target_to, found {self.target_from} and {self.target_to}",
        )
        need(
            bool(self.operators) and not set(self.operators) - set(SIGNS),
            f"operators of {self.env} are of {SIGNS}, found '{self.operators}'",
        )
        need(self.prompt in ("short", "words"), f"prompt of {self.env} is short or words, found '{self.prompt}'")

    def problems(self, seed: Seed, n: int, *, split: str = "train") -> list[Problem]:
        if self.file is not None:
            return pick_problems(self._of_file(self.file), seed=seed, n=n, split=split)
        space = {name: value for name, value in asdict(self).items() if name != "prompt"}
        return draw_problems(self._draw, space=space, seed=seed, n=n, split=split)

    def pose(self, numbers: Sequence[int], target: int, *, reference: str | None = None) -> Problem:
        """The problem of these numbers. `reference` is one solution, as a demonstration would write it."""
        listed = ",".join(map(str, numbers))
        template = SHORT_PROMPT if self.prompt == "short" else QUESTION
        question = template.format(
            numbers=listed if self.prompt == "short" else listed.replace(",", ", "),
            target=target,
            operators=", ".join(self.allowed),
        )
        params = {"numbers": list(numbers), "target": target, "question": question}
        return Problem(
            f"{self.env}:{listed}={target}", self.env, with_how(question, HOW, self.prompt), reference, params
        )

    def read(self, problem: Problem, text: str) -> Answer | None:
        return read_stated(text, _form)

    def grade(self, problem: Problem, completion: Completion) -> Grade:
        answer = read_completion(completion, lambda text: self.read(problem, text))
        expression = parse_expression(answer.text) if answer else None
        if answer is None or expression is None:
            return unparsable("no expression of whole numbers, + - * / and parentheses found")
        fault = self._fault(expression, problem.params)
        return right_or_wrong(answer, fault is None, fault)

    def progress(self, problem: Problem, completion: Completion) -> float | None:
        """1 where what was written can still become a solution, or where an attempt in the thinking was one; else 0.

        Solutions are looked for with no more parentheses than they need; None for more than four numbers, whose solutions are
        too many to write out.
        """
        numbers, target = tuple(sorted(problem.params["numbers"])), problem.params["target"]
        written = (completion.text or "")[:MAX_CHARS].strip()
        if not written and completion.thinking:
            tries = (parse_expression(each.partition("=")[0]) for each in completion.thinking[:MAX_THOUGHT].split(","))
            return float(any(made is not None and self._fault(made, problem.params) is None for made in tries))
        if len(numbers) > MOST_NUMBERS:
            return None
        return float(can_become(written, solution_texts(numbers, target, self.allowed)))

    def solutions(self, problem: Problem) -> frozenset[str]:
        numbers = tuple(sorted(problem.params["numbers"]))
        return solve(numbers, problem.params["target"], self.allowed)

    def distractor(self, problem: Problem, random: Random) -> str | None:
        """A solution with a sign changed or two numbers exchanged: of some tries, the one that comes nearest to the target."""
        right = problem.reference or min(self.solutions(problem), default=None)
        if right is None:
            return None
        tries = [_changed(right, random, self.allowed) for _ in range(8)]
        target = problem.params["target"]
        off = {
            text: abs(made.value - target)
            for text in tries
            if (made := parse_expression(text)) and made.value is not None and made.value != target
        }
        return min(off, key=lambda text: (off[text], text), default=None)

    def ask_again(self, problem: Problem, tries: Sequence[Try]) -> Prompt | None:
        """In the short form 3,7,2,9=24>3*7+2-9=14> and then another try: expressions, and what each comes to."""
        told = []
        for completion, grade in tries:
            made = parse_expression(grade.answer.text) if grade.answer else None
            if made is not None and made.value is not None:
                told.append(f"{completion.text}={show_number(Fraction(made.value))}>")
        return f"{problem.prompt}{''.join(told)}" if told else None

    def reworded(self, problem: Problem, number: int) -> Prompt:
        """The numbers in another order, which changes nothing but what a model makes of them."""
        if number == 0:
            return problem.prompt
        numbers = list(problem.params["numbers"])
        Random(mix_seed("reworded", problem.id, number)).shuffle(numbers)
        return self.pose(numbers, problem.params["target"]).prompt

    def recognise(self, prompt: str) -> Mapping[str, Any] | None:
        """The numbers and the target of the last problem that a prompt poses: earlier ones are examples."""
        posed = list(_POSED.finditer(prompt))
        if not posed:
            return None
        listed, target = (part for part in posed[-1].groups() if part is not None)
        numbers = [int(number) for number in re.findall("[0-9]+", listed)]
        return {"numbers": numbers, "target": int(target)} if len(numbers) <= MAX_NUMBERS else None

    @property
    def allowed(self) -> str:
        return "".join(sign for sign in SIGNS if sign in self.operators)

    def _fault(self, made: Expression, params: Mapping[str, Any]) -> str | None:
        """What is wrong with an expression, or None."""
        given = tuple(sorted(params["numbers"]))
        if made.numbers != given:
            return f"uses {', '.join(map(str, made.numbers))}, not {', '.join(map(str, given))}"
        if not made.operators <= set(self.operators):
            return f"uses {' '.join(sorted(made.operators - set(self.operators)))}, which is not allowed"
        if made.value is None:
            return "divides by 0"
        if made.value != params["target"]:
            return f"comes to {show_number(Fraction(made.value))}, not {params['target']}"
        return None

    def attempt(self, numbers: Sequence[int], random: Random) -> tuple[str, int | Fraction] | None:
        """The numbers joined two by two at random, and what they come to; None where this draw leaves what `largest_step` allows."""
        parts = [_Part(number, str(number), 3) for number in numbers]
        while len(parts) > 1:
            right, left = (parts.pop(random.randrange(len(parts))) for _ in range(2))
            joined = _join(random.choice(self.operators), left, right)
            if joined is None or joined.value > self.largest_step:
                return None
            parts.append(joined)
        return parts[0].text, parts[0].value

    def _draw(self, random: Random) -> Draft | None:
        """A random attempt at random numbers: what it comes to is the target, and how it did the reference."""
        numbers = [random.randint(self.smallest, self.largest) for _ in range(self.numbers)]
        made = self.attempt(numbers, random)
        if made is None:
            return None
        reference, target = made
        if target != int(target) or not self.target_from <= target <= self.target_to:
            return None
        return Draft(_key(numbers, int(target)), self.pose(numbers, int(target), reference=reference))

    def _of_file(self, path: str) -> Iterator[Draft]:
        for row in read_rows(path):
            numbers = _numbers(cell(row, ("numbers", "nums", "puzzle"), path=path), path)
            fixed = {"fixed": self.target_from} if self.target_from == self.target_to else {}
            target = cell({**fixed, **row}, ("target", "fixed"), path=path)
            if not isinstance(target, int) or target < 1:
                raise UsageError(f"a target in '{path}' is {target!r}: targets are whole numbers of at least 1")
            solution = row.get("gold_expr") or row.get("solution") or row.get("reference")
            reference = solution if isinstance(solution, str) else None
            yield Draft(_key(numbers, target), self.pose(numbers, target, reference=reference))


def _key(numbers: Sequence[int], target: int) -> str:
    return f"countdown:{','.join(map(str, sorted(numbers)))}={target}"


def _form(text: str) -> str | None:
    made = parse_expression(text)
    if made is None and (tidied := canonical_expression(text)):
        made = parse_expression(tidied)
    return made.form if made else None


def _numbers(found: Any, path: str) -> list[int]:
    numbers = found.split() if isinstance(found, str) else found
    try:
        whole = [int(number) for number in numbers]
    except (TypeError, ValueError):
        whole = []
    if not 1 <= len(whole) <= MAX_NUMBERS or min(whole) < 0:
        raise UsageError(f"numbers in '{path}' are {found!r}: give 1 to {MAX_NUMBERS} whole numbers, not below 0")
    return whole


@dataclass(frozen=True, slots=True)
class _Part:
    value: int | Fraction
    text: str
    level: int  # 3 a number, 2 a product, 1 a sum

    def within(self, level: int) -> str:
        return self.text if self.level >= level else f"({self.text})"


def _join(sign: str, left: _Part, right: _Part) -> _Part | None:
    """One step of a solution, with no more parentheses than it needs; None for one that divides by 0."""
    if sign == "-" and left.value < right.value:
        left, right = right, left
    if sign == "+":
        return _Part(left.value + right.value, f"{left.text}+{right.text}", 1)
    if sign == "-":
        return _Part(left.value - right.value, f"{left.text}-{right.within(2)}", 1)
    if sign == "*":
        return _Part(left.value * right.value, f"{left.within(2)}*{right.within(2)}", 2)
    if right.value == 0:
        return None
    return _Part(Fraction(left.value) / right.value, f"{left.within(2)}/{right.within(3)}", 2)


def _changed(text: str, random: Random, signs: str) -> str:
    parts = _PART.findall(text)
    numbers = [at for at, part in enumerate(parts) if part.isdigit()]
    places = [at for at, part in enumerate(parts) if part in SIGNS]
    if len(signs) > 1 and places and random.random() < 0.5:
        at = random.choice(places)
        parts[at] = random.choice([sign for sign in signs if sign != parts[at]])
    elif len(numbers) > 1:
        first, second = random.sample(numbers, 2)
        parts[first], parts[second] = parts[second], parts[first]
    return "".join(parts)
