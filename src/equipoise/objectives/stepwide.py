"""Methods whose choice of tokens is made once, from the whole optimiser step, and then sliced with its rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import Signature, signature
from typing import Any

from torch import Tensor


@dataclass(frozen=True, slots=True)
class StepWide:
    """A choice of tokens and the method that acts on it, `act(…, chosen_BT, *, settings of both)`.

    A quantile or a top share of a micro-batch changes with its size; that of the step does not. `compose` runs `choose` on
    the step's detached tensors and hands the rows of its result to `act` as `chosen_BT`. Called directly, the tensors given
    are taken for the whole step.
    """

    choose: Callable[..., Tensor]
    act: Callable[..., Tensor]

    def __call__(self, *tensors: Tensor, **settings: Any) -> Tensor:
        return self.act(*tensors, **settings)

    @property
    def __name__(self) -> str:
        return f"{self.act.__name__}_step"

    @property
    def __signature__(self) -> Signature:
        return signature(self.act)
