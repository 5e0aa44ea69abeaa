"""The answer in a completion: one that is stated as such, or else the whole of a short text."""

from __future__ import annotations

import re
from collections.abc import Callable

from equipoise.base import Answer, Completion
from equipoise.text.answers import choose_statement
from equipoise.text.statements import find_statements
from equipoise.text.thinking import split_thinking

Form = Callable[[str], str | None]  # an answer as written → its canonical form, or None: it is none

MAX_BARE = 1000  # characters of a text that may be an answer as a whole
MAX_READ = 1_000_000  # characters at the end of a text in which an answer is looked for

_BARE = re.compile(r"[-+*/(),=.0-9A-J ]*")  # nothing in which an answer could be stated, or thought about


def read_stated(text: str, form: Form, *, bare: Form | None = None) -> Answer | None:
    r"""The last answer that a text states (`\boxed{…}`, `<answer>`, "the answer is …"), in the form a task gives it.

    Small models that were trained on a task write nothing but the answer: a short text without any statement is read whole,
    its thinking left out, by `bare`, which is `form` unless that would take any words for an answer.
    """
    bare = bare or form
    if len(text) <= MAX_BARE and _BARE.fullmatch(text):
        whole = bare(text)
        return Answer(whole, (0, len(text))) if whole else None
    skipped = max(0, len(text) - MAX_READ)
    text = text[skipped:]
    statements, thinking = find_statements(text), split_thinking(text)
    if statements:
        answer = choose_statement(statements, thinking.spans, form)
        if answer is None or answer.span is None:
            return answer
        return Answer(answer.text, (skipped + answer.span[0], skipped + answer.span[1]))
    whole = bare(thinking.answer) if len(thinking.answer) <= MAX_BARE else None
    if not whole:
        return None
    start = skipped + text.rfind(thinking.answer)
    return Answer(whole, (start, start + len(thinking.answer)))


def read_completion(completion: Completion, read: Callable[[str], Answer | None]) -> Answer | None:
    """What `read` finds in the text, unless it reaches the end of a text that ran into its limit: more was to come."""
    if completion.text is None:
        return None
    answer = read(completion.text)
    if answer is not None and completion.finish in ("length", "budget"):
        reaches = answer.span is None or answer.span[1] >= len(completion.text.rstrip())
        return None if reaches else answer
    return answer
