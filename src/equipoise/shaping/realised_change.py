"""How a predicted entropy change relates to the one that came true: the scale between them, and their correlation.

The prediction of `entropy_budget` is a derivative along the step size and exact for one softmax. In a network tokens share
weights and optimisers rescale gradients, so that

    realised = scale · predicted + noise

with a scale that has to be learnt and drifts. It follows the least-squares slope through the origin over the last pairs, as far
as these contradict the scale of before, and one pair moves it by a factor of 2 at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import atanh, sqrt, tanh
from typing import Any

from equipoise.base import Estimate
from equipoise.shaping.bounds import check_state, clip

_FIRST = 4  # pairs before a scale is believed at all
_BELIEF = 4.0  # standard errors that its slope must then be above 0
_FACTOR = 2.0  # the most that one pair may move the scale by
_DOUBT = 2.0  # standard errors between scale and slope that are taken for chance
_MEMORY = 0.95  # weight of a pair against the one after it
_SMALLEST, _LARGEST = 1e-12, 1e12
_SURE = 1.959964  # normal quantile of a 95% interval


class RealisedChange:
    """Learns `scale` from pairs of predicted and realised change. None until the pairs so far agree on one.

    `resolution`: realised changes smaller than this say nothing. While entropy is held the predictions are near 0, and what
    is left, second-order terms, would wear the scale away.
    """

    def __init__(self, *, scale: float | None = None, resolution: float = 0.0) -> None:
        self.scale, self.resolution = scale, resolution
        # Sums over the last pairs, about the origin: weights, x², y², x·y.
        self._w, self._xx, self._yy, self._xy = 0.0, 0.0, 0.0, 0.0
        # Moments of all pairs about their means, for the correlation (Welford's recurrences, which do not cancel).
        self._n, self._mean_x, self._mean_y = 0, 0.0, 0.0
        self._cxx, self._cyy, self._cxy = 0.0, 0.0, 0.0

    def learn(self, *, predicted: float, realised: float) -> None:
        """One pair. The change may be that of the step's own tokens, or of the mean from one step to the next."""
        self._count(predicted, realised)
        if self.scale is None:
            self._begin()
            return
        if not self._xx:
            return
        slope, noise = _line(self._w, self._xx, self._yy, self._xy)
        # As far as the pairs contradict the scale: not at all within two standard errors, nearly to the slope at many.
        error = sqrt(max(noise, self.resolution**2) / self._xx)
        apart = slope - self.scale
        if abs(apart) > _DOUBT * error:
            apart *= 1 - (_DOUBT * error / apart) ** 2
            moved = clip(self.scale + apart, self.scale / _FACTOR, self.scale * _FACTOR)
            self.scale = clip(moved, _SMALLEST, _LARGEST)

    def _begin(self) -> None:
        """The slope over all pairs so far, once it is clearly above 0.

        One pair is not enough: by noise it may show a scale so large that a budget would forbid the very steps that could
        correct it.
        """
        xx = self._cxx + self._n * self._mean_x**2
        if self._n < _FIRST or not xx:
            return
        yy, xy = self._cyy + self._n * self._mean_y**2, self._cxy + self._n * self._mean_x * self._mean_y
        slope, noise = _line(self._n, xx, yy, xy)
        if slope > _BELIEF * sqrt(noise / xx):
            self.scale = clip(slope, _SMALLEST, _LARGEST)

    def correlation(self) -> Estimate:
        """Pearson's, of all pairs so far. A low one says that the budget steers by feedback alone."""
        name, how = (
            "entropy_change_correlation",
            "Pearson over steps, Fisher's z for the interval, steps as independent",
        )
        if self._n < 4 or self._cxx <= 0 or self._cyy <= 0:
            return Estimate(
                name, None, n=self._n, how=how, missing="four or more steps with different predicted changes"
            )
        value = clip(self._cxy / sqrt(self._cxx * self._cyy), -1.0, 1.0)
        if abs(value) == 1:
            return Estimate(name, value, value, value, self._n, how=how)
        reach = _SURE / sqrt(self._n - 3)
        return Estimate(name, value, tanh(atanh(value) - reach), tanh(atanh(value) + reach), self._n, how=how)

    def _count(self, x: float, y: float) -> None:
        self._w = _MEMORY * self._w + 1
        self._xx = _MEMORY * self._xx + x * x
        self._yy = _MEMORY * self._yy + y * y
        self._xy = _MEMORY * self._xy + x * y
        self._n += 1
        dx, dy = x - self._mean_x, y - self._mean_y
        self._mean_x += dx / self._n
        self._mean_y += dy / self._n
        self._cxx += dx * (x - self._mean_x)
        self._cyy += dy * (y - self._mean_y)
        self._cxy += dx * (y - self._mean_y)

    def state(self) -> dict[str, Any]:
        return {
            "scale": self.scale,
            "recent": [self._w, self._xx, self._yy, self._xy],
            "n": self._n,
            "means": [self._mean_x, self._mean_y],
            "moments": [self._cxx, self._cyy, self._cxy],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        check_state("realised_change", state, self.state())
        self.scale, self._n = state["scale"], int(state["n"])
        self._w, self._xx, self._yy, self._xy = state["recent"]
        self._mean_x, self._mean_y = state["means"]
        self._cxx, self._cyy, self._cxy = state["moments"]


def _line(n: float, xx: float, yy: float, xy: float) -> tuple[float, float]:
    """Slope of y = slope · x by least squares, and the variance of what it leaves."""
    slope = xy / xx
    return slope, max(yy - slope * xy, 0.0) / max(n - 1, 1.0)
