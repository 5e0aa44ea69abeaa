"""Demonstrations that think: attempts at a Countdown problem, each worked out, up to a right one, and then the answer.

    4,13,2=7>[4+13-2=17-2=15:8,13-4*2=13-8=5:2,13-2-4=11-4=7:0]13-2-4

Thinking stands between `START` and `END`, a character each; its attempts are joined by `NEXT`, and after `OFF` each says by how
much it misses the target. (Small models learn to subtract long before they learn to tell two numbers apart.) Three things are
shown:

- Wrong attempts before the right one, drawn at random, or the nearest of a few such to the target; sometimes there are none.
- The thinking ends where an attempt comes to the target, and its expression is the answer.
- Thinking that was cut off anywhere, in the middle of a number or before it began, and a right answer nonetheless: who is
  interrupted makes the best guess. So a model that is held to a budget answers something, whatever it had found.

Not all of a demonstration is to be learnt: see `Piece`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from random import Random
from typing import NamedTuple

from equipoise.base import Problem
from equipoise.errors import UsageError
from equipoise.tasks.countdown import Countdown
from equipoise.tasks.expressions import parse_expression
from equipoise.tasks.task import Seed, mix_seed

START, END, NEXT, OFF = "[", "]", ",", ":"
_INNERMOST = re.compile(r"\(([^()]*)\)")
_PRODUCT, _SUM = re.compile(r"(\d+)(\*)(\d+)"), re.compile(r"(\d+)([-+])(\d+)")
DRAWS = 6  # for one attempt: some are right, and some come twice


class Piece(NamedTuple):
    """A part of a demonstration. What is not `learnt` is read only.

    That is the expressions of wrong attempts: what is learnt of these is what they come to, and that the thinking then goes
    on, while every attempt of the model's own is meant to be right. And it is an end of the thinking that somebody
    forced: a model that learnt it would give up at any moment.
    """

    text: str
    learnt: bool


@dataclass(frozen=True, slots=True)
class Trace:
    """One demonstration."""

    problem: Problem
    pieces: tuple[Piece, ...]

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Shares:
    """How many demonstrations are of which kind, and how many wrong attempts one has."""

    cut: float = 0.4  # were cut off, and half of these at once, before any attempt
    near: float = 0.5  # of the wrong attempts: the nearest to the target of `nearest_of`
    nearest_of: int = 4
    go_on: float = 0.75  # chance of another wrong attempt after each: 3 on average
    most_wrong: int = 8


def make_traces(
    task: Countdown, *, seed: Seed, n: int, split: str = "train", shares: Shares = Shares()
) -> Iterator[Trace]:
    """Demonstrations of `n` different problems. Other seeds show some of them again, with other attempts."""
    if task.prompt != "short" or "/" in task.operators:
        raise UsageError(
            f"traces are for a model of single characters, prompt=short, that works with whole numbers, found "
            f"prompt={task.prompt} and operators={task.operators}: use short, and of + - *"
        )
    for problem in task.problems(seed, n, split=split):
        yield make_trace(task, problem, Random(mix_seed("trace", seed, problem.id)), shares=shares)


def make_trace(task: Countdown, problem: Problem, random: Random, *, shares: Shares = Shares()) -> Trace:
    if problem.reference is None:
        raise UsageError(f"problem {problem.id} has no solution to show: use problems that a seed makes, not a file's")
    pieces, target = [Piece(START, True)], problem.params["target"]
    for expression, value in _wrong_attempts(task, problem, random, shares):
        pieces += [Piece(expression, False), Piece(f"{work_out(expression)}{OFF}{abs(value - target)}{NEXT}", True)]
    pieces += [Piece(f"{problem.reference}{work_out(problem.reference)}{OFF}0{END}", True)]
    return Trace(problem, (*cut_off(pieces, random, shares), Piece(problem.reference, True)))


def cut_off(pieces: list[Piece], random: Random, shares: Shares) -> list[Piece]:
    """A whole thought as it is, or, for a share of them, its beginning and an end that somebody forced."""
    if random.random() >= shares.cut:
        return pieces
    thought = sum(len(piece.text) for piece in pieces) - len(END)
    at = 1 if random.random() < 0.5 else random.randint(1, thought)
    return [*_first(pieces, at), Piece(END, False)]


def work_out(expression: str) -> str:
    """One operation at a time, as 2*(13-4) is followed by =2*9=18. No part of what `Countdown.attempt` makes is below 0."""
    told = ""
    while not expression.isdigit():
        inner = _INNERMOST.search(expression)
        within = expression if inner is None else inner[1]
        made = _step(within)
        if inner is not None:
            kept = made if made.isdigit() else f"({made})"
            made = expression[: inner.start()] + kept + expression[inner.end() :]
        expression = made
        told += f"={expression}"
    return told


def _step(text: str) -> str:
    """Its first product worked out, or else its first sum or difference."""
    found = _PRODUCT.search(text) or _SUM.search(text)
    if found is None:
        raise UsageError(f"cannot work out '{text}': use whole numbers, + - * and parentheses")
    left, sign, right = int(found[1]), found[2], int(found[3])
    value = left * right if sign == "*" else left + right if sign == "+" else left - right
    return f"{text[: found.start()]}{value}{text[found.end() :]}"


def _wrong_attempts(
    task: Countdown, problem: Problem, random: Random, shares: Shares
) -> Iterator[tuple[str, int | Fraction]]:
    """None twice, in whatever order it is written. Fewer than were drawn, where the numbers make no more."""
    n, target = 0, problem.params["target"]
    while n < shares.most_wrong and random.random() < shares.go_on:
        n += 1
    found: dict[str, tuple[str, int | Fraction]] = {}
    for _ in range(DRAWS * n):
        made = task.attempt(problem.params["numbers"], random)
        if made is not None and made[1] != target:
            found.setdefault(_form(made[0]), made)
    left = list(found.values())
    for _ in range(min(n, len(left))):
        places = range(len(left)) if random.random() < shares.near else [random.randrange(len(left))]
        some = random.sample(places, min(shares.nearest_of, len(places)))
        yield left.pop(min(some, key=lambda place: abs(left[place][1] - target)))


def _form(expression: str) -> str:
    made = parse_expression(expression)
    assert made is not None
    return made.form


def _first(pieces: list[Piece], n: int) -> Iterator[Piece]:
    """The first `n` characters."""
    for piece in pieces:
        if n <= 0:
            return
        yield Piece(piece.text[:n], piece.learnt)
        n -= len(piece.text)
