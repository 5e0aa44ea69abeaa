"""Runs in the child process: whether two answers in mathematical notation are equal, by math-verify."""

from __future__ import annotations

import logging
from typing import Any

from math_verify import LatexExtractionConfig, parse, verify

logging.disable(logging.WARNING)  # it warns of every call without its own timeout; the child has a better one


def compare(references: list[str], answers: list[str]) -> str:
    """right, wrong or unparsable, for spellings of a reference and spellings of an answer.

    Only LaTeX is parsed: its grammar is math-verify's own, while plain expressions go through sympy's `parse_expr`, which
    evaluates Python.
    """
    gold: list[Any] = next(filter(None, map(_parsed, references)), [])
    outcome = "unparsable"
    for given in filter(None, map(_parsed, answers)):
        if gold and verify(gold, given, timeout_seconds=None, raise_on_error=True):
            return "right"
        outcome = "wrong"
    if outcome == "unparsable" and not _parsed("1"):
        # math-verify also finds nothing where memory ran out under its parser: that says nothing about the answer.
        raise MemoryError("the parser reads nothing at all")
    return outcome


def _parsed(text: str) -> list[Any]:
    found: list[Any] = parse(
        f"${text.strip().strip('$')}$",
        extraction_config=[LatexExtractionConfig()],
        fallback_mode="no_fallback",
        parsing_timeout=None,
        raise_on_error=True,
    )
    return found
