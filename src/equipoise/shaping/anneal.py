"""A setting that moves with the step and with nothing else: a schedule, in the form of a controller."""

from __future__ import annotations

from collections.abc import Mapping
from math import floor, isfinite
from typing import Any, Literal

from equipoise.base import Tally
from equipoise.errors import UsageError, unknown_name
from equipoise.shaping.bounds import check_state, positive

BY = ("line", "factor")


class Anneal:
    """`setting` from `start` to `end` over so many steps, and `end` from then on.

        t = min((step − 1) / over, 1)
        line:   start + t (end − start)
        factor: start^(1−t) · end^t, the same factor at every step
        whole:  rounded to the nearest whole number, halves upwards

    The first step has `start`. `setting` names a method and its setting, `kl.coef` say. What the entropies are does not matter:
    `observe` counts steps. Annealing k of pass@k from above: https://arxiv.org/abs/2505.15201.
    """

    def __init__(
        self,
        *,
        setting: str,
        start: float,
        end: float,
        over: int,
        by: Literal["line", "factor"] = "line",
        whole: bool = False,
    ) -> None:
        if not all(setting.partition(".")):
            raise UsageError(f"anneal moves a setting of a method, kl.coef say, found '{setting}'")
        if by not in BY:
            raise unknown_name("way to anneal", by, BY)
        positive("anneal", over=over, **({"start": start, "end": end} if by == "factor" else {}))
        if not (isfinite(start) and isfinite(end)):
            raise UsageError(f"anneal needs finite numbers, found start={start}, end={end}")
        self.setting, self.start, self.end, self.over, self.by, self.whole = setting, start, end, over, by, whole
        self._seen = 0

    def value(self, step: int) -> float:
        t = min(max(step - 1, 0) / self.over, 1.0)
        if t == 1:
            value = self.end
        elif self.by == "factor":
            value = self.start ** (1 - t) * self.end**t
        else:
            value = self.start + t * (self.end - self.start)
        return floor(value + 0.5) if self.whole else float(value)

    def observe(self, tally: Tally) -> None:
        self._seen += 1

    def settings(self) -> dict[str, float]:
        return {self.setting: self.value(self._seen)}

    def state(self) -> dict[str, Any]:
        return {"seen": self._seen}

    def restore(self, state: Mapping[str, Any]) -> None:
        check_state("anneal", state, self.state())
        self._seen = int(state["seen"])
