"""Controllers that hold policy entropy by moving one setting from step to step.

    controller                moves                below              above
    AdaptiveEntropy           entropy_bonus.coef   up by a step       down by a step, and off
    EntropyBand               entropy_bonus.coef   up by a step       down by a step, to a penalty if need be
    AdaptiveClip              clip_high            doubled            halved

`observe` takes the tally of the step's token entropies (nats, at the sampling temperature), added over micro-batches and
ranks, and is the only method that changes anything; `settings` is what the next update shall use. Call `observe` after
the forward pass and before the update and the step is steered by its own entropy, as in Skywork-OR1; call it after the
update and it is steered by the entropy of the step before, as in TRL. Every setting stays within its bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from equipoise.base import Tally
from equipoise.errors import UsageError, same_shape
from equipoise.shaping.bounds import check_state, clip, ordered, positive


def tally_tokens(values: np.ndarray, mask: np.ndarray | None = None, *, edges: np.ndarray | None = None) -> Tally:
    """The tally of the numbers where `mask` is True; what lies under the padding is never read.

    `bins` has one more number than `edges` has edges: below the first, between each two, from the last on.
    """
    values = np.asarray(values, dtype=np.float64)
    if mask is not None:
        same_shape(values=values, mask=np.asarray(mask))
        values = values[np.asarray(mask, dtype=bool)]
    values = values.ravel()
    bins: tuple[int, ...] = ()
    if edges is not None:
        found = np.bincount(np.searchsorted(edges, values, side="right"), minlength=len(edges) + 1)
        bins = tuple(int(count) for count in found)
    return Tally(int(values.size), float(values.sum()), float(values @ values), bins)


class AdaptiveEntropy:
    """An entropy bonus that grows while entropy is below a target and is off above it (Skywork-OR1).

        c ← clip(c + step, min, max) where H < target, else clip(c − step, min, max)
        entropy_bonus.coef = c where H < target, else 0

    https://arxiv.org/abs/2505.22312, with the numbers of its released scripts. The coefficient is that of the mean
    entropy per token. TRL 1.16 counts H = target as below (`inclusive`), gates on the entropy of the step before, and
    has other defaults: step 0.005 and max 1.0.
    """

    def __init__(
        self,
        *,
        target: float = 0.2,
        step: float = 1e-4,
        max: float = 5e-3,
        min: float = 0.0,
        start: float = 0.0,
        inclusive: bool = False,
    ) -> None:
        ordered("adaptive_entropy", min=min, start=start, max=max)
        positive("adaptive_entropy", target=target, step=step)
        self.target, self.step, self.max, self.min, self.inclusive = target, step, max, min, inclusive
        self._coef = start
        self._below = False  # nothing observed yet: no bonus

    def observe(self, tally: Tally) -> None:
        entropy = tally.mean
        if entropy is None:
            return
        self._below = entropy < self.target or (self.inclusive and entropy == self.target)
        self._coef = clip(self._coef + (self.step if self._below else -self.step), self.min, self.max)

    def settings(self) -> dict[str, float]:
        return {"entropy_bonus.coef": self._coef if self._below else 0.0}

    def state(self) -> dict[str, Any]:
        return {"coef": self._coef, "below": self._below}

    def restore(self, state: Mapping[str, Any]) -> None:
        check_state("adaptive_entropy", state, self.state())
        # Bounds may have been changed since the state was saved.
        self._coef = clip(float(state["coef"]), self.min, self.max)
        self._below = bool(state["below"])


class EntropyBand:
    """Holds entropy between `low` and `high`: the bonus grows below the band and shrinks above it, to a penalty if need be.

    It starts to move the coefficient by `step` when entropy leaves the band and goes on until entropy has come back to the
    middle, so that noise at an edge does not switch it on and off; in between the coefficient stays where it is.
    Methods that act on one side only do not see the other failure: negative advantages on likely tokens raise entropy,
    without an upper limit (`entropy_budget.predict_change`). The numbers are ours.
    """

    def __init__(
        self,
        *,
        low: float = 0.2,
        high: float = 0.6,
        step: float = 1e-4,
        max: float = 5e-3,
        min: float = -5e-3,
        start: float = 0.0,
    ) -> None:
        ordered("band", min=min, start=start, max=max)
        positive("band", low=low, high=high, step=step)
        if low >= high:
            raise UsageError(f"band needs low < high, found low={low:g}, high={high:g}")
        self.low, self.high, self.step, self.max, self.min = low, high, step, max, min
        self._coef = start
        self._moving: Literal["up", "down", "no"] = "no"

    def observe(self, tally: Tally) -> None:
        entropy = tally.mean
        if entropy is None:
            return
        middle = (self.low + self.high) / 2
        if entropy < self.low:
            self._moving = "up"
        elif entropy > self.high:
            self._moving = "down"
        elif (self._moving == "up" and entropy >= middle) or (self._moving == "down" and entropy <= middle):
            self._moving = "no"
        by = {"up": self.step, "down": -self.step, "no": 0.0}[self._moving]
        self._coef = clip(self._coef + by, self.min, self.max)

    def settings(self) -> dict[str, float]:
        return {"entropy_bonus.coef": self._coef}

    def state(self) -> dict[str, Any]:
        return {"coef": self._coef, "moving": self._moving}

    def restore(self, state: Mapping[str, Any]) -> None:
        check_state("band", state, self.state())
        if state["moving"] not in ("up", "down", "no"):
            raise UsageError(f"band's state 'moving' is up, down or no, found {state['moving']!r}")
        self._coef = clip(float(state["coef"]), self.min, self.max)
        self._moving = state["moving"]


class AdaptiveClip:
    """The upper clip bound, doubled while entropy is below where it began and halved while it is above (ADAPO).

        clip_high ← clip(clip_high · factor, min, max) where H < H_0, clip(clip_high / factor, min, max) where H > H_0

    H_0 is the entropy of the first step observed, or `initial`. https://arxiv.org/abs/2603.11682; the bounds are ours.
    It moves `clip_high`, a distance from 1, which does nothing on strictly on-policy updates.
    """

    def __init__(
        self,
        *,
        start: float = 0.28,
        min: float = 0.05,
        max: float = 1.0,
        factor: float = 2.0,
        initial: float | None = None,
    ) -> None:
        ordered("adaptive_clip", min=min, start=start, max=max)
        positive("adaptive_clip", min=min, **({} if initial is None else {"initial": initial}))
        if not 1 < factor < float("inf"):
            raise UsageError(f"adaptive_clip needs a factor above 1, found {factor}: the published one is 2")
        self.min, self.max, self.factor = min, max, factor
        self._clip_high, self._initial = start, initial

    def observe(self, tally: Tally) -> None:
        entropy = tally.mean
        if entropy is None:
            return
        if self._initial is None:
            self._initial = entropy
        if entropy < self._initial:
            self._clip_high = clip(self._clip_high * self.factor, self.min, self.max)
        elif entropy > self._initial:
            self._clip_high = clip(self._clip_high / self.factor, self.min, self.max)

    def settings(self) -> dict[str, float]:
        return {"clip_high": self._clip_high}

    def state(self) -> dict[str, Any]:
        return {"clip_high": self._clip_high, "initial": self._initial}

    def restore(self, state: Mapping[str, Any]) -> None:
        check_state("adaptive_clip", state, self.state())
        self._clip_high = clip(float(state["clip_high"]), self.min, self.max)
        self._initial = None if state["initial"] is None else float(state["initial"])
