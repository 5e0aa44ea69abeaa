"""Everything the measuring pass wants to know about one completion's text, in one call."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from equipoise.text.answers import choose_statement
from equipoise.text.degenerate import degenerate_parts
from equipoise.text.formats import classify_format
from equipoise.text.phrases import count_words, fold_lowered, lower_aligned
from equipoise.text.planning import planning_spans_in
from equipoise.text.profile import profile_folded
from equipoise.text.statements import statements_lowered
from equipoise.text.thinking import split_lowered


@dataclass(frozen=True, slots=True)
class TextFacts:
    """Per-rollout scalars, named as in the readings they come from; None: not measurable in this text."""

    format: str
    n_words: int  # separated by spaces
    has_thinking: bool
    thinking_closed: bool | None
    loop_ratio: float
    repeated_answers: int | None
    answers_before_work: bool | None
    n_operations: int
    gibberish: bool
    flags: tuple[str, ...]
    opened: int
    opened_total: int
    verified: int
    abandoned: int
    branch_depth: float | None
    n_planning: int
    grams: Counter[str]


def read_facts(text: str, *, answer: str | None = None) -> TextFacts:
    """All facts of one text, thinking included. `answer`: the final answer on record; None: the one the text states, if any.

    Linear in the text. Loops and gibberish are looked for in its end only (`degenerate.TAIL_CHARS`).
    """
    lowered = lower_aligned(text)
    folded = fold_lowered(lowered)
    statements = statements_lowered(text, lowered)
    thinking = split_lowered(text, lowered)
    if answer is None and statements:
        stated = choose_statement(statements, thinking.spans)
        answer = stated.text if stated else None
    degeneracy = degenerate_parts(text, statements, answer)
    profile = profile_folded(text, folded)
    grams = Counter(span.gram for span in planning_spans_in(folded))
    return TextFacts(
        format=classify_format(text),
        n_words=count_words(text),
        has_thinking=thinking.thinking is not None,
        thinking_closed=thinking.closed,
        loop_ratio=degeneracy.loop_ratio,
        repeated_answers=degeneracy.repeated_answers,
        answers_before_work=degeneracy.answers_before_work,
        n_operations=degeneracy.n_operations,
        gibberish=degeneracy.gibberish,
        flags=degeneracy.flags,
        opened=profile.opened,
        opened_total=profile.opened_total,
        verified=profile.verified,
        abandoned=profile.abandoned,
        branch_depth=profile.mean_branch_depth,
        n_planning=grams.total(),
        grams=grams,
    )
