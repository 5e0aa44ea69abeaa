"""Split a completion into its thinking and the answer the reader sees."""

from __future__ import annotations

from dataclasses import dataclass

from equipoise.text.phrases import lower_aligned

TAGS = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("[think]", "[/think]"),
    ("<seed:think>", "</seed:think>"),
    ("◁think▷", "◁/think▷"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),
)
_TAG_WORDS = ("think>", "think▷", "thinking>", "think]", "thought>", "thought|>", "reasoning>", "<|channel|>")
MAX_BLOCKS = 1000  # blocks of one completion that are told apart; what follows them counts as answer


@dataclass(frozen=True, slots=True)
class Thinking:
    """`closed` is None where there is no thinking, False where the last block was cut off before its end."""

    thinking: str | None
    answer: str
    closed: bool | None
    spans: tuple[tuple[int, int], ...] = ()  # characters of each block, tags excluded


def split_thinking(text: str) -> Thinking:
    """Thinking blocks and what stands outside them, in any of the usual tag pairs (`TAGS`), in any case.

    A closing tag without an opening one ends a block that began with the text: chat templates such as DeepSeek-R1's put the
    opening tag into the prompt. A block that never closes runs to the end and leaves no answer.
    """
    return split_lowered(text, lower_aligned(text))


def split_lowered(text: str, lowered: str) -> Thinking:
    """`split_thinking` for a text whose `lower_aligned` form is at hand."""
    pair = _first_pair(lowered)
    if pair is None:
        return Thinking(None, text.strip(), None)
    opening, closing = pair
    spans, visible = [], []
    first_open, first_close = lowered.find(opening), lowered.find(closing)
    seen = 0  # everything before this character is sorted
    closed = True
    if first_close >= 0 and (first_open < 0 or first_close < first_open):
        spans.append((0, first_close))
        seen = first_close + len(closing)
    while len(spans) < MAX_BLOCKS and (at := lowered.find(opening, seen)) >= 0:
        visible.append(text[seen:at])
        start = at + len(opening)
        end = lowered.find(closing, start)
        closed = end >= 0
        spans.append((start, end if closed else len(text)))
        seen = end + len(closing) if closed else len(text)
    visible.append(text[seen:])
    thinking = "\n".join(text[start:end].removesuffix("<|end|><|start|>assistant").strip() for start, end in spans)
    return Thinking(thinking, "".join(visible).strip(), closed, tuple(spans))


def _first_pair(lowered: str) -> tuple[str, str] | None:
    """The tag pair that occurs first; others inside it are plain text."""
    if not any(word in lowered for word in _TAG_WORDS):  # most texts: no need to look for every tag
        return None
    found = [(at, pair) for pair in TAGS for tag in pair if (at := lowered.find(tag)) >= 0]
    return min(found)[1] if found else None
