"""The answer and the confidence that a completion states, or None: what is not stated is an abstention, never a class."""

from __future__ import annotations

import re
from collections.abc import Callable

from equipoise.base import Answer
from equipoise.text.forms import canonical, canonical_expression
from equipoise.text.phrases import lower_aligned
from equipoise.text.statements import STRONG, Statement, statements_lowered
from equipoise.text.thinking import split_lowered

__all__ = ["canonical", "canonical_expression", "choose_statement", "read_answer", "read_confidence", "read_expression"]

_NUMBER = r"(-?[0-9]{1,9}(?:\.[0-9]{0,20})?|-?\.[0-9]{1,20})\s{0,2}(%|/\s{0,2}[0-9]{1,4})?"
_CONFIDENCE = re.compile(
    r"confidence>?(?:\s{0,2}(?:score|level))?[\"'*_`]{0,4}\s{0,4}(?:is|:|=|of)?[\s*_`\"'\\]{0,8}"
    + _NUMBER
    + r"(?![0-9.]*[0-9])"
)
_CONFIDENT = re.compile(rf"(?<![0-9.]){_NUMBER} {{0,2}}\Z")  # what stands before "confident"


def read_answer(text: str) -> Answer | None:
    r"""The last answer a text states, in canonical form, with the place where it stood.

    Boxes, answer tags, `####` lines and JSON "answer" values come before sentences ("the answer is …"), and what stands
    outside the thinking before what stands inside. Inside it sentences do not count at all: they try answers out.
    """
    return _read(text, canonical)


def read_expression(text: str) -> Answer | None:
    """`read_answer` where the answer asked for is an arithmetic expression: see `canonical_expression`."""
    return _read(text, canonical_expression)


def _read(text: str, form: Callable[[str], str | None]) -> Answer | None:
    lowered = lower_aligned(text)
    statements = statements_lowered(text, lowered)
    if not statements:
        return None
    return choose_statement(statements, split_lowered(text, lowered).spans, form)


def choose_statement(
    statements: list[Statement], thinking: tuple[tuple[int, int], ...], form: Callable[[str], str | None] = canonical
) -> Answer | None:
    """The statement that counts as the answer, by the order given in `read_answer`."""

    def rank(statement: Statement) -> tuple[bool, bool, int]:
        hidden = any(start <= statement.start < end for start, end in thinking)
        return (not hidden, statement.kind in STRONG, statement.start)

    for statement in sorted(statements, key=rank, reverse=True):
        visible, strong, _ = rank(statement)
        if (visible or strong) and (answer := form(statement.raw)):
            return Answer(answer, (statement.start, statement.end))
    return None


def read_confidence(text: str) -> float | None:
    """The confidence a text states last, 0 to 1: `<confidence>0.8</confidence>`, "Confidence: 80%", "90% confident".

    A number without a unit must lie in [0, 1], a percentage in [0, 100]: anything else is None, not a guess at what was meant.
    """
    lowered = lower_aligned(text)
    stated = [(match.start(), match.groups()) for match in _CONFIDENCE.finditer(lowered)]
    at = lowered.rfind("confident")
    while at >= 0 and (not stated or at > stated[-1][0]):
        match = _CONFIDENT.search(lowered[max(0, at - 40) : at])
        if match:
            stated.append((at, match.groups()))
            break
        at = lowered.rfind("confident", 0, at)
    if not stated:
        return None
    _, (number, unit) = max(stated)
    scale = 1.0 if unit is None else 100.0 if unit == "%" else float(unit[1:])
    value = float(number)
    return value / scale if 0 <= value <= scale and scale > 0 else None
