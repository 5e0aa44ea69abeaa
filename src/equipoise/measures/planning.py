"""Which tokens are planning tokens: the strategic grams of a text, carried over to the tokens that spell it.

Searching a text costs more than all else that is counted of its tokens, so of a large run only a sample is searched: the
rollouts whose text has a hash with `level` zero bits at its end, at the lowest level that leaves at most 1,024 of them. Which
these are depends on the set of texts alone, not on their order, so samples can be merged. Axes: R rollouts, T tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from zlib import crc32

import numpy as np

from equipoise.measures.frames import Frame
from equipoise.text.planning import planning_spans

MAX_TOKEN_ID = 1 << 20  # the largest vocabularies have a quarter of this; an id past it would only cost memory

SAMPLE = 1_024
HASHED = 512  # characters from the end: completions tend to begin alike


def text_keys(texts: Sequence[str | None]) -> np.ndarray:
    """A hash of each text, (R,); 0 where there is none."""
    keys = (0 if text is None else crc32(text[-HASHED:].encode("utf-8", "replace")) or 1 for text in texts)
    return np.fromiter(keys, dtype=np.uint32, count=len(texts))


def in_sample(key_R: np.ndarray, level: int) -> np.ndarray:
    """Which rollouts are searched at this level."""
    found: np.ndarray = (key_R > 0) & (key_R & np.uint32((1 << level) - 1) == 0)
    return found


def sample_level(key_R: np.ndarray, level: int) -> int:
    """The lowest level, from the given one up, that leaves few enough; 32 bits end every search."""
    while level < 32 and np.count_nonzero(in_sample(key_R, level)) > SAMPLE:
        level += 1
    return level


def string_lengths(vocab: Mapping[int, str]) -> np.ndarray:
    """Characters of each token id, −1 where the vocabulary does not say; the last entry stands for ids outside it."""
    ids = np.fromiter((i for i in vocab if 0 <= i < MAX_TOKEN_ID), dtype=np.int64)
    lengths_V = np.full(int(ids.max(initial=-1)) + 2, -1, dtype=np.int64)
    lengths_V[ids] = [len(vocab[int(i)]) for i in ids]
    return lengths_V


def planning_tokens(part: Frame, texts: Sequence[str | None], lengths_V: np.ndarray) -> np.ndarray | None:
    """1 for tokens that overlap a strategic gram, 0 for the others, −1 in rollouts without a text or whose tokens do not
    spell it, (T,). None: there is no such rollout here."""
    id_T = part.columns["token_ids"]
    planning_T = None
    for row, text in enumerate(texts):
        tokens = slice(part.offsets[row], part.offsets[row + 1])
        inside = None if text is None else tokens_in_grams(text, _lengths(id_T[tokens], lengths_V))
        if inside is not None:
            planning_T = np.full(len(id_T), -1, dtype=np.int8) if planning_T is None else planning_T
            planning_T[tokens] = inside
    return planning_T


def _lengths(id_T: np.ndarray, lengths_V: np.ndarray) -> np.ndarray:
    outside = len(lengths_V) - 1
    found: np.ndarray = lengths_V[np.where((id_T < 0) | (id_T > outside), outside, id_T)]
    return found


def tokens_in_grams(text: str, length_T: np.ndarray) -> np.ndarray | None:
    """Which tokens of these lengths overlap a strategic gram by a character; None where they do not spell the text.

    Token i covers the characters from Σ_{j<i} len_j up to Σ_{j≤i} len_j. Tokens spell the text when the lengths add up to
    its own, with or without the last token: an end-of-sequence token is often no part of the text.
    """
    if not len(length_T) or length_T.min() < 0:
        return None
    end_T = np.cumsum(length_T)
    start_T = end_T - length_T
    if len(text) not in (end_T[-1], start_T[-1]):
        return None
    spans = planning_spans(text)
    # From the first token that ends past a span's start up to the last that starts before its end.
    first = np.searchsorted(end_T, [span.start for span in spans], side="right")
    after = np.searchsorted(start_T, [span.end for span in spans], side="left")
    depth = np.bincount(first, minlength=len(length_T) + 1) - np.bincount(after, minlength=len(length_T) + 1)
    found: np.ndarray = (np.cumsum(depth)[:-1] > 0) & (length_T > 0)
    return found
