"""Signs that a rollout games its checker or has broken down: loops, hammered answers, answers without work, gibberish.

Training on problems that are too hard brings these out (https://arxiv.org/abs/2605.28388). Each is a rough, cheap reading of
one text; what matters is how its share moves over a run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from equipoise.text.forms import canonical
from equipoise.text.statements import Statement, find_statements

FLAGS = ("loop", "repeated-answer", "answer-first", "gibberish")

LOOP_FLAG = 0.5  # loop_ratio from here on
REPEATED_FLAG = 3  # statements of the same final answer from here on
GIBBERISH_SHARE = 0.5  # of the tail's visible characters are one and the same
GIBBERISH_CHARS = 32  # visible characters needed to speak of gibberish
WORK_WORDS = 20  # words before an answer that count as work even without arithmetic: not every task computes

TAIL_CHARS = (
    4096  # loops and gibberish are looked for at the end of a text, where a run-away sample stays: for a period
)
TAIL_WORDS = 256  # for repeated word n-grams
GRAM_WORDS = 6
TAIL_UNSPACED = 1024  # characters: gibberish, and the n-grams of text without spaces
GRAM_CHARS = 24
PROBE_CHARS = 32  # the end of the text that must come again for a period
LOOP_CHARS = 96  # a shorter run is not called a loop
LOOP_TURNS = 3  # neither is one that comes round less often

# For counting operations: digits and brackets become 0, operators +, and what may stand between a number and an operator is
# dropped. A line break is not, so a list of "- 3" is no subtraction.
_OPERATION = bytes(
    ord("0") if chr(c) in "0123456789()" else ord("+") if chr(c) in "+-*/^×÷" else ord("a") for c in range(256)
)
_SKIPPED = b" \t$%{}\\"
_BETWEEN_NUMBERS = re.compile(rb"0\+(?=0)")  # the second number is left for the next operator: 1+2+3 has two


@dataclass(frozen=True, slots=True)
class Degeneracy:
    """None: no answer is known or stated, so it cannot be said."""

    loop_ratio: float
    repeated_answers: int | None
    answers_before_work: bool | None
    n_operations: int
    gibberish: bool
    flags: tuple[str, ...]


def find_degenerate(text: str, *, answer: str | None) -> Degeneracy:
    """Degenerate patterns of one text. `answer`: its final answer, read from it or on record; None where there is none.

    loop_ratio: share of the end of the text (`TAIL_CHARS`, `TAIL_WORDS`) that comes round again, as an exact period or as
    repeated word n-grams; long answers are left out, as they are for gibberish. repeated_answers: how often the final answer
    is stated as the answer, among `MAX_STATEMENTS` statements of a kind. answers_before_work: the first answer of any kind
    stands before any arithmetic and before `WORK_WORDS` words. n_operations: operators between two numbers.
    """
    return degenerate_parts(text, find_statements(text), answer)


def degenerate_parts(text: str, statements: Sequence[Statement], answer: str | None) -> Degeneracy:
    """`find_degenerate` for a text whose statements are at hand."""
    work = _without_answers(text, statements)
    loop = measure_loop(work)
    repeated = _count_repeats(statements, answer)
    early = _answers_first(text, statements) if statements else None
    gibberish = _one_character(work[-TAIL_UNSPACED:])
    raised = (loop >= LOOP_FLAG, repeated is not None and repeated >= REPEATED_FLAG, early is True, gibberish)
    flags = tuple(flag for flag, is_raised in zip(FLAGS, raised, strict=True) if is_raised)
    return Degeneracy(loop, repeated, early, count_operations(text), gibberish, flags)


def _without_answers(text: str, statements: Sequence[Statement]) -> str:
    """The text without its long answers: a chess board or a list of moves repeats by nature."""
    kept, seen = [], 0
    for statement in statements:
        if statement.end - statement.start >= LOOP_CHARS and statement.start >= seen:
            kept.append(text[seen : statement.start])
            seen = statement.end
    return "".join([*kept, text[seen:]]) if kept else text


def count_operations(text: str) -> int:
    r"""Arithmetic operations between two numbers, `\frac` included. A date or a range in digits counts as well."""
    plain = text.replace("**", "")
    fractions = 0
    if "\\" in plain:
        fractions = plain.count("frac{")
        plain = plain.replace("\\times", "*").replace("\\cdot", "*").replace("\\div", "/")
    if not plain.isascii():
        plain = plain.replace("−", "-").replace("–", "-").replace("⋅", "*")
    signs = plain.encode("latin-1", "replace").translate(_OPERATION, _SKIPPED)
    return len(_BETWEEN_NUMBERS.findall(signs)) + fractions


def measure_loop(text: str) -> float:
    """Share of the text's tail that repeats, the larger of two readings; linear in the tail.

    As a period p: the longest end of the tail in which every character equals the one p later, if it comes round
    `LOOP_TURNS` times. As n-grams: 1 - distinct / all, over runs of `GRAM_WORDS` words, which also sees a loop that has ended
    or that varies here and there.
    """
    tail = text[-TAIL_CHARS:].rstrip()
    if len(tail) < LOOP_CHARS:
        return 0.0
    words = tail.rsplit(None, TAIL_WORDS)[-TAIL_WORDS:]
    if len(words) > len(tail) // GRAM_CHARS:
        grams = len(words) - GRAM_WORDS + 1
        different = len(set(zip(*(words[i:] for i in range(GRAM_WORDS)), strict=False)))
        repeats = 1 - different / grams if grams >= 2 * GRAM_WORDS else 0.0
    else:
        run = tail[-TAIL_UNSPACED:]
        grams = len(run) - GRAM_CHARS + 1
        repeats = 1 - len({run[i : i + GRAM_CHARS] for i in range(grams)}) / grams
    return max(repeats, _periodic_share(tail))


def _periodic_share(tail: str) -> float:
    at = tail.rfind(tail[-PROBE_CHARS:], 0, len(tail) - 1)
    if at < 0:
        return 0.0
    period = len(tail) - PROBE_CHARS - at
    # Where the periodic end begins, by bisection: an end of a periodic text is periodic.
    low, high = 0, len(tail) - period
    while low < high:
        middle = (low + high) // 2
        if tail[middle:-period] == tail[middle + period :]:
            high = middle
        else:
            low = middle + 1
    run = len(tail) - low
    return run / len(tail) if run >= max(LOOP_CHARS, LOOP_TURNS * period) else 0.0


def _one_character(tail: str) -> bool:
    tail = tail.rstrip()
    visible = len(tail) - sum(tail.count(space) for space in " \n\t\r")
    if visible < GIBBERISH_CHARS:
        return False
    # The last characters name the suspect; counting all of them one by one would cost more than everything else here.
    last = tail[-GIBBERISH_CHARS:]
    return tail.count(max(set(last) - set(" \n\t\r"), key=last.count, default=" ")) / visible >= GIBBERISH_SHARE


def _count_repeats(statements: Sequence[Statement], answer: str | None) -> int | None:
    form = None if answer is None else canonical(answer)
    if form is None:
        return None
    seen = repeats = 0
    for statement in statements:
        # A box inside answer tags is one statement, not two.
        if statement.start >= seen and statement.form() == form:
            repeats += 1
            seen = statement.end
    return repeats


def _answers_first(text: str, statements: Sequence[Statement]) -> bool:
    before = text[: statements[0].start]
    return len(before.split(None, WORK_WORDS)) < WORK_WORDS and count_operations(before) == 0
