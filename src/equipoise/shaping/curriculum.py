"""Which problems come next: a sampler that follows the model's success on each. Axes: P groups, G completions, N problems.

The rule, in order:

- **Estimate.** p̂ = (prior · m + right) / (prior + tried), m being the success rate over all problems: few verdicts lean on
  the whole. Old verdicts lose half their weight every `half_life` steps, because the model that earned them is gone.
- **Weight.** p̂ (1 − p̂), half the chance that two completions differ, largest where half of them are right. The easy tier
  (p̂ > `easy_above`) helps at the start and fades: its weight halves every `easy_half_life` steps.
- **Deferral.** At least `draws` verdicts with a rate below `defer_below` send a problem away for `defer_for` steps, twice as
  long each time in a row, at most `defer_most`. None right in a few draws is no proof that a problem cannot be solved, so
  nothing is ever deleted.
- **Review.** A share of every batch, one at least, goes to the problems that have been due longest, whatever their weight.
  So a problem is drawn again within `defer_most` + ⌈N / reviewed per batch⌉ batches: none starves, and none keeps an estimate
  from long ago.

Curricula by success rate: https://arxiv.org/abs/2506.06632, https://arxiv.org/abs/2509.19803. The numbers here are ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from math import ceil
from typing import Any

import numpy as np

from equipoise.errors import UsageError
from equipoise.shaping.inputs import verdicts

_COLUMNS = ("right", "tried", "seen", "due", "deferrals")


class Curriculum:
    """Draws problems by their estimated success rate. Equal seeds draw alike.

    Only `add`, `draw`, `observe`, `reprofile` and `restore` change it, so evaluation, which calls none of them, cannot.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        half_life: float = 50.0,
        prior: float = 4.0,
        draws: int = 8,
        defer_below: float = 0.125,
        defer_for: int = 20,
        defer_most: int = 320,
        easy_above: float = 0.75,
        easy_half_life: float = 50.0,
        review: float = 0.1,
    ) -> None:
        if min(half_life, prior, easy_half_life) <= 0 or draws < 1 or not 1 <= defer_for <= defer_most:
            raise UsageError(
                "a curriculum needs half_life, prior and easy_half_life above 0, draws >= 1 and 1 <= defer_for <= defer_most"
            )
        if not 0 <= defer_below < easy_above <= 1 or not 0 <= review <= 1:
            raise UsageError(
                f"a curriculum needs 0 <= defer_below < easy_above <= 1 and 0 <= review <= 1, "
                f"found {defer_below:g}, {easy_above:g} and {review:g}"
            )
        self.seed, self.half_life, self.prior = seed, half_life, prior
        self.draws, self.defer_below, self.defer_for, self.defer_most = draws, defer_below, defer_for, defer_most
        self.easy_above, self.easy_half_life, self.review = easy_above, easy_half_life, review
        self.step = 0  # batches drawn
        self._place: dict[str, int] = {}  # problem → its place in the columns below
        self._right, self._tried = np.zeros(0), np.zeros(0)  # as of the step in _seen
        self._seen, self._due, self._deferrals = (np.zeros(0, dtype=np.int64) for _ in range(3))

    def add(self, prompt_ids: Sequence[str]) -> None:
        """Take in problems; known ones stay as they are. A new one is due now."""
        known = len(self._place)
        for prompt_id in prompt_ids:
            self._place.setdefault(prompt_id, len(self._place))
        fresh = len(self._place) - known
        self._right, self._tried = (np.append(column, np.zeros(fresh)) for column in (self._right, self._tried))
        self._seen, self._due = (np.append(column, np.full(fresh, self.step)) for column in (self._seen, self._due))
        self._deferrals = np.append(self._deferrals, np.zeros(fresh, dtype=np.int64))

    def draw(self, n: int, *, beside: Sequence[str] = ()) -> tuple[str, ...]:
        """n different problems for the next batch. Deferred ones come early only where there are too few others.

        `beside`: those already drawn for a batch that turned out too small; what is added to it are others, and it stays one batch.
        """
        taken = [self._place[prompt_id] for prompt_id in beside]
        free = len(self._place) - len(taken)
        if not 1 <= n <= free:
            raise UsageError(f"{n} problems were asked of {free}: draw at least 1, and add more before drawing more")
        now = self.step - 1 if taken else self.step
        by_due_N = np.lexsort((np.arange(len(self._due)), self._due))
        is_due_N = self._due <= now
        is_due_N[taken] = False
        n_reviewed = 0 if taken else max(1, ceil(self.review * n))  # a batch that is added to has had its share
        reviewed = [i for i in by_due_N[:n_reviewed] if is_due_N[i]][:n]
        # The n smallest of Exp(1) / weight are a draw by weight without replacement (https://doi.org/10.1016/j.ipl.2005.11.003).
        # Keyed by seed and step, so that a restored curriculum draws what the first would have drawn.
        key = [self.seed, now, len(taken)] if taken else [self.seed, now]
        wait_N = np.random.default_rng(key).exponential(size=len(self._due)) / self._weights()
        wait_N[~is_due_N] = np.inf
        wait_N[reviewed] = np.inf
        others = [i for i in np.argsort(wait_N, kind="stable")[: n - len(reviewed)] if np.isfinite(wait_N[i])]
        chosen = dict.fromkeys([*reviewed, *others])
        left_out = {*chosen, *taken}
        early = islice((i for i in by_due_N if i not in left_out), n - len(chosen))
        places = np.array([*chosen, *early], dtype=np.int64)
        self.step = now + 1
        self._due[places] = self.step
        names = list(self._place)
        return tuple(names[i] for i in places)

    def observe(
        self, *, prompt_ids_P: Sequence[str | None], correct_PG: np.ndarray | None, keep_PG: np.ndarray
    ) -> None:
        """Count raw verdicts, which may come any number of batches after the draw, and defer what is too hard for now."""
        correct_PG = verdicts(keep_PG, correct_PG=correct_PG)
        if len(prompt_ids_P) != len(correct_PG):
            raise UsageError(f"{len(prompt_ids_P)} prompt ids were given for {len(correct_PG)} groups")
        for prompt_id in prompt_ids_P:
            if prompt_id not in self._place:
                raise UsageError(f"the curriculum does not know the problem {prompt_id!r}: add it first")
        place_P = np.array(
            [self._place[prompt_id] for prompt_id in prompt_ids_P if prompt_id is not None], dtype=np.int64
        )
        seen = np.unique(place_P[(~np.isnan(correct_PG)).any(axis=1)])
        right, tried = self._faded(seen)
        self._right[seen], self._tried[seen], self._seen[seen] = right, tried, self.step
        np.add.at(self._right, place_P, np.nansum(correct_PG, axis=1))
        np.add.at(self._tried, place_P, (~np.isnan(correct_PG)).sum(axis=1))
        hard = (self._tried[seen] >= self.draws) & (self._right[seen] < self.defer_below * self._tried[seen])
        self._deferrals[seen] = np.where(hard, self._deferrals[seen] + 1, 0)
        away = seen[hard]
        doublings = np.minimum(self._deferrals[away] - 1, 62 - self.defer_for.bit_length())
        self._due[away] = self.step + np.minimum(self.defer_for << doublings, self.defer_most)

    def reprofile(self) -> None:
        """Forget every verdict and end every deferral, say after a plateau: the order of waiting stays."""
        self._right[:], self._tried[:], self._deferrals[:] = 0, 0, 0
        self._due = np.minimum(self._due, self.step)

    def rates(self) -> dict[str, float]:
        """p̂ of every problem, as of now."""
        return dict(zip(self._place, self._estimates().tolist(), strict=True))

    def tiers(self) -> dict[str, int]:
        """How many problems are new (no verdict yet), deferred, easy, and in the middle."""
        new_N, deferred_N, easy_N = self._tried == 0, self._due > self.step, self._estimates() > self.easy_above
        tier_N = np.select([deferred_N, new_N, easy_N], ["deferred", "new", "easy"], "middle")
        return {tier: int((tier_N == tier).sum()) for tier in ("new", "deferred", "easy", "middle")}

    def state(self) -> dict[str, Any]:
        """Plain JSON; the settings are not part of it."""
        columns = {name: getattr(self, f"_{name}").tolist() for name in _COLUMNS}
        return {"step": self.step, "prompt_ids": list(self._place), **columns}

    def restore(self, state: Mapping[str, Any]) -> None:
        sizes = {name: len(state[name]) for name in ("prompt_ids", *_COLUMNS)}
        if len({*sizes.values(), len(set(state["prompt_ids"]))}) > 1:
            raise UsageError(f"this curriculum state does not hold together, its columns differ in length: {sizes}")
        self.step = int(state["step"])
        self._place = {prompt_id: place for place, prompt_id in enumerate(state["prompt_ids"])}
        self._right, self._tried = (np.array(state[name], dtype=np.float64) for name in _COLUMNS[:2])
        self._seen, self._due, self._deferrals = (np.array(state[name], dtype=np.int64) for name in _COLUMNS[2:])

    def _faded(self, places: np.ndarray | slice) -> tuple[np.ndarray, np.ndarray]:
        """Right and tried at this step, older verdicts counting less."""
        left = 0.5 ** ((self.step - self._seen[places]) / self.half_life)
        return self._right[places] * left, self._tried[places] * left

    def _estimates(self) -> np.ndarray:
        right_N, tried_N = self._faded(slice(None))
        overall = (right_N.sum() + 1) / (tried_N.sum() + 2)  # never 0 or 1, so no weight is 0
        return np.asarray((self.prior * overall + right_N) / (self.prior + tried_N))

    def _weights(self) -> np.ndarray:
        rate_N = self._estimates()
        fade = max(0.5 ** (self.step / self.easy_half_life), 1e-9)  # a weight of 0 could not be divided by
        return np.asarray(rate_N * (1 - rate_N) * np.where(rate_N > self.easy_above, fade, 1.0))
