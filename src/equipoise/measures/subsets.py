"""Draws without replacement: shares over all subsets of k of a problem's rollouts, exact. Axes: any, elementwise.

Every estimator built on them is unbiased for k fresh samples, because any k of n exchangeable rollouts are k samples.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from equipoise.errors import UsageError

MOST = 0.9  # share of the problems that must have k samples for k to be a default


def missed_share(count: np.ndarray, drawn: np.ndarray, k: int) -> np.ndarray:
    """The share of k-subsets of `drawn` things that hold none of `count` marked ones; nan where drawn < k.

        C(n − c, k) / C(n, k) = Π_{j<k} (n − c − j) / (n − j)

    The product has no large numbers and no differences of nearly equal ones, so it is right to a few last digits.
    """
    count, drawn = np.broadcast_arrays(np.asarray(count, dtype=np.int64), np.asarray(drawn, dtype=np.int64))
    # Problems repeat few (count, drawn) pairs, so the product is taken once per pair.
    width = int(drawn.max(initial=0)) + 1
    pairs, place = np.unique(np.clip(count, 0, drawn) * width + drawn, return_inverse=True)
    c, n = pairs // width, pairs % width
    share = np.where(n < k, np.nan, 1.0)
    for j in range(k):
        share = share * np.maximum(n - c - j, 0) / np.maximum(n - j, 1)
    return np.asarray(share[place].reshape(count.shape))


def check_ks(ks: Sequence[int]) -> tuple[int, ...]:
    """The asked ks in order, once each; a k below 1 is refused."""
    bad = [k for k in ks if k < 1]
    if bad:
        raise UsageError(f"k counts completions: {bad[0]} was asked, it must be 1 or more")
    return tuple(sorted(set(ks)))


def common_size(drawn_P: np.ndarray) -> int:
    """The largest number of samples that at least nine in ten problems have (of those with any). 0 without problems.

    Not the smallest: one problem whose checker failed would otherwise set the largest k of the whole run.
    """
    sizes = np.sort(drawn_P[drawn_P > 0])[::-1]
    return 0 if not len(sizes) else int(sizes[int(np.ceil(MOST * len(sizes))) - 1])


def default_ks(drawn_P: np.ndarray) -> tuple[int, ...]:
    """1, 2, 4, … up to the common number of samples, and that number itself."""
    size = common_size(drawn_P)
    return tuple(sorted({2**i for i in range(size.bit_length())} | {size})) if size else ()
