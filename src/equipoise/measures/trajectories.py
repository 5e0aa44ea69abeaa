"""How alike whole texts are: a short signature per text, gathered in the pass over a run, and what is read from it.

A signature has 32 numbers, and the share in which two signatures agree estimates the Jaccard similarity of the texts'
sets of 8-byte shingles: |A ∩ B| / |A ∪ B| (MinHash with one permutation, rotated into empty bins,
https://arxiv.org/abs/1406.4784). Its standard error is at most √(¼ / 32) = 0.09 per pair. The hash is the same in every
run, so what two runs' texts have in common (a fixed heading, say) weighs the same in both.

`TextTable` keeps them as `signatures_R32`, (R, 32) uint32 in the order of the answer table's rows, from
`sign_texts(completions)`, and `known_R`, (R,) bool: False, and a row of zeros, where a rollout has no text.
Axes: N texts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

SIGNATURE = 32  # numbers per text
SHINGLE = 8  # bytes: about a word and a half, in any language
WINDOW = 16_384  # bytes: a signature speaks of a text's first 16 kB
CUT = 0.27  # texts at least this similar went the same way; see `cluster_texts`

_BATCH = 1 << 21  # bytes signed at once: what fits a cache
_EMPTY = np.uint32(0xFFFFFFFF)
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))  # odd, with well spread bits (splitmix64's)
_STEP = 0x9E3779B1


def sign_texts(texts: Sequence[str | None]) -> np.ndarray:
    """The signatures of some texts, (N, 32) uint32; zeros for None. Only the first 16 kB of a text are read."""
    signatures = np.zeros((len(texts), SIGNATURE), dtype=np.uint32)
    batch: list[bytes] = []
    rows: list[int] = []
    size = 0
    for row, text in enumerate(texts):
        if text is None:
            continue
        # A text shorter than one shingle is filled up to one: the empty text is like itself and nothing else.
        batch.append(text[:WINDOW].encode("utf-8", "surrogatepass")[:WINDOW].ljust(SHINGLE, b"\0"))
        rows.append(row)
        size += len(batch[-1])
        if size >= _BATCH:
            signatures[rows] = _sign(batch)
            batch, rows, size = [], [], 0
    if batch:
        signatures[rows] = _sign(batch)
    return signatures


def _sign(texts: list[bytes]) -> np.ndarray:
    joined = b"".join(texts)
    lengths = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
    hashes = np.ndarray(len(joined) - SHINGLE + 1, dtype="<u8", buffer=joined, strides=(1,)) * _MIX[0]
    hashes ^= hashes >> np.uint64(32)
    hashes *= _MIX[1]
    # Bins of neighbouring texts follow each other; a shingle that reaches into the next text goes to no text's bin.
    text_of_byte = np.repeat(np.arange(len(texts)), lengths)
    own = text_of_byte[: len(hashes)] == text_of_byte[SHINGLE - 1 :]
    place = np.where(
        own,
        text_of_byte[: len(hashes)] * SIGNATURE + (hashes >> np.uint64(59)).astype(np.int64),
        len(texts) * SIGNATURE,
    )
    least = np.full(len(texts) * SIGNATURE + 1, _EMPTY)
    np.minimum.at(least, place, (hashes >> np.uint64(24)).astype(np.uint32))
    return _fill_empty(least[:-1].reshape(len(texts), SIGNATURE))


def _fill_empty(least: np.ndarray) -> np.ndarray:
    """An empty bin takes the next full one's number, moved by the distance, so that it agrees only at equal distances."""
    full = least != _EMPTY
    filled, open_ = least.copy(), ~full
    for distance in range(1, SIGNATURE):
        if not open_.any():
            break
        take = open_ & np.roll(full, -distance, axis=1)
        filled[take] = (np.roll(least, -distance, axis=1) + np.uint32(distance * _STEP & 0xFFFFFFFF))[take]
        open_ &= ~take
    return filled


def similarity(signatures: np.ndarray) -> np.ndarray:
    """The estimated Jaccard similarity of every pair: (…, N, 32) in, (…, N, N) out, ones on the diagonal."""
    return np.asarray((signatures[..., :, None, :] == signatures[..., None, :, :]).mean(axis=-1))


def vendi(similarity: np.ndarray) -> np.ndarray:
    """The effective number of different texts: exp(−Σ λ ln λ), λ the eigenvalues of similarity / N; (…, N, N) in, (…) out.

    1 where all are equal, N where no two share anything (https://arxiv.org/abs/2210.02410).
    """
    eigenvalues = np.clip(np.linalg.eigvalsh(similarity / similarity.shape[-1]), 0, None)
    logs = np.log(np.where(eigenvalues > 0, eigenvalues, 1.0))
    return np.asarray(np.exp(-(eigenvalues * logs).sum(axis=-1)))


def cluster_texts(similarity: np.ndarray, cut: float = CUT) -> np.ndarray:
    """A group number for every text: average linkage (UPGMA), groups joined while their mean similarity is `cut` or more.

    The grouping of https://arxiv.org/abs/2509.21128, which cuts at chrF 60: on real solutions of MATH problems and of
    Game of 24 that is a Jaccard similarity of 8-byte shingles of 0.29 and 0.27.
    """
    if len(similarity) < 2:
        return np.ones(len(similarity), dtype=np.int64)
    distance = squareform(1 - similarity, checks=False)
    return np.asarray(fcluster(linkage(distance, "average"), 1 - cut + 1e-9, "distance"), dtype=np.int64)


def count_clusters(similarity: np.ndarray, cut: float = CUT) -> int:
    """The number of groups of alike texts."""
    return len(np.unique(cluster_texts(similarity, cut)))
