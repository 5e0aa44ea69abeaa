"""A length penalty that sets in before the limit. Axes: P groups, G completions each."""

from __future__ import annotations

import numpy as np

from equipoise.errors import UsageError
from equipoise.shaping.inputs import numbers


def soft_overlong(
    n_tokens_PG: np.ndarray | None,
    keep_PG: np.ndarray,
    *,
    limit: int = 20480,
    buffer: int = 4096,
    penalty: float = 1.0,
) -> np.ndarray:
    """DAPO's soft overlong penalty (https://arxiv.org/abs/2503.14476), a part of the reward in [−penalty, 0].

        0                                          up to limit − buffer tokens
        −penalty · (n − (limit − buffer)) / buffer   from there to the limit
        −penalty                                   beyond

    Like every part of a reward it is nan where the length is unknown and where there is no completion.
    """
    if not 0 < buffer <= limit or penalty < 0:
        raise UsageError(
            f"the penalty needs 0 < buffer <= limit and penalty >= 0, found buffer={buffer}, limit={limit}, penalty={penalty:g}"
        )
    over_PG = (numbers(keep_PG, n_tokens_PG=n_tokens_PG) - (limit - buffer)) / buffer
    return 0.0 - penalty * np.clip(over_PG, 0.0, 1.0)
