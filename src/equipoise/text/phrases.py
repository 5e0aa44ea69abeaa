"""Find fixed phrases in a text, fast: a byte search over a folded copy that has one byte per character.

Folding keeps lower-case letters and apostrophes, writes every digit as 0 and everything else as a space, so a phrase is found
whole words at a time, through any single separator, and a position in the copy is a position in the text.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from equipoise.errors import UsageError

PIECE = 8192  # characters that are searched at once, so that a long text costs no more for its length than a short one
MAX_PHRASE = 64  # characters; pieces overlap by this much

_KEPT = (string.ascii_lowercase + "'").encode()
_FOLD = bytes(c if c in _KEPT else ord("0") if c in string.digits.encode() else ord(" ") for c in range(256))
_WORDS = _FOLD.replace(
    b"0", b" "
)  # of a folded copy only the words: half of a calculation is digits, and no phrase needs them
_SPACED = bytes(ord(" ") if c < 128 and chr(c).isspace() else ord("a") for c in range(256))


class Span(NamedTuple):
    """A phrase found in a text: characters `start` up to, not including, `end`."""

    kind: str
    gram: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Folded:
    """A text made ready for phrase search: the copy with a space added at both ends, and the words of each piece."""

    padded: bytes
    pieces: tuple[tuple[int, frozenset[bytes]], ...]

    def shape(self) -> bytes:
        """The copy with every word written in a's, for `words_between`."""
        return self.padded.translate(_SPACED)


def words_between(shape: bytes, start: int, end: int) -> int:
    """Words that begin in characters `start` to `end` of the text; a number is one word."""
    return shape.count(b" a", start, end + 1)


def lower_aligned(text: str) -> str:
    """Lower case with every character in its place: U+0130 alone would become two characters."""
    return text.replace("\u0130", "I").lower()


def count_words(text: str) -> int:
    """Words separated by spaces, as `len(text.split())` counts them, without making them."""
    if not text.isascii():
        return len(text.split())
    return (b" " + text.encode().translate(_SPACED)).count(b" a")


def fold(text: str) -> Folded:
    return fold_lowered(lower_aligned(text))


def fold_lowered(lowered: str) -> Folded:
    """`fold` for a text whose `lower_aligned` form is at hand."""
    plain = lowered.replace("\u2019", "'")
    padded = b" " + plain.encode("ascii", "replace").translate(_FOLD) + b" "
    words = padded.translate(_WORDS)
    starts = range(0, len(padded), PIECE)
    return Folded(padded, tuple((at, frozenset(words[at : at + PIECE + MAX_PHRASE].split())) for at in starts))


class Phrases:
    """A table of phrases by kind, ready to be searched for."""

    def __init__(self, kinds: Mapping[str, Sequence[str]]) -> None:
        self.by_word: dict[bytes, list[tuple[frozenset[bytes], bytes, bytes, str, str]]] = {}
        for kind, phrases in kinds.items():
            for phrase in phrases:
                needle = fold(phrase).padded
                words = needle.translate(_WORDS).split()
                if not words or len(needle) > MAX_PHRASE:
                    raise UsageError(
                        f"phrase {phrase!r} cannot be searched for: use English words, {MAX_PHRASE - 2} characters at most"
                    )
                # A search compares last characters first, and in reasoning digits are everywhere: "not 0" is sought by "not".
                anchor = needle[1:].rstrip(b" 0") or needle[1:-1]
                self.by_word.setdefault(max(words, key=len), []).append(
                    (frozenset(words), needle, anchor, phrase, kind)
                )

    def find(self, folded: Folded) -> list[Span]:
        """All phrases in order of place. Where two overlap the one that starts first stays, then the longer.

        That also leaves one of a phrase found twice, in the overlap of two pieces.
        """
        padded = folded.padded
        found = []
        for piece, present in folded.pieces:
            end = piece + PIECE + MAX_PHRASE
            for word in self.by_word.keys() & present:
                for words, needle, anchor, phrase, kind in self.by_word[word]:
                    if not words <= present:
                        continue  # cheap, and true of most: no scan for a phrase that cannot be there
                    at = padded.find(anchor, piece, end)
                    while at >= 0:
                        # The needle has a space at both ends, so whole words only; the copy is one ahead of the text.
                        if padded.startswith(needle, at - 1):
                            found.append((at - 1, at + len(needle) - 3, phrase, kind))
                        at = padded.find(anchor, at + len(anchor), end)
        found.sort(key=lambda hit: (hit[0], -hit[1]))
        spans: list[Span] = []
        free = 0
        for start, stop, phrase, kind in found:
            if start >= free:
                spans.append(Span(kind, phrase, start, stop))
                free = stop
        return spans
