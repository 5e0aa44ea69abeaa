"""Weights on the straight line between two models, and a model that wears other weights for a while.

θ(λ) = θ_base + λ (θ_trained − θ_base): linear interpolation of a model and its fine-tuned self, as in WiSE-FT
(https://arxiv.org/abs/2109.01903) and, for policies trained by RL, WARP (https://arxiv.org/abs/2406.16768).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


def interpolate(base: Mapping[str, Tensor], trained: Mapping[str, Tensor], point: float) -> dict[str, Tensor]:
    """base + point · (trained − base), at least in float32, then in the dtype of the inputs; at 0 and 1 the inputs themselves."""
    if point in (0, 1):
        return dict(trained if point == 1 else base)
    return {name: _between(tensor, trained[name], point) for name, tensor in base.items()}


def _between(base: Tensor, trained: Tensor, point: float) -> Tensor:
    if not base.is_floating_point() or torch.equal(base, trained):
        return base  # whole numbers have no in-between; a constant may hold −∞, which has no difference to itself
    wide = torch.promote_types(base.dtype, torch.float32)
    return torch.lerp(base.to(wide), trained.to(wide), point).to(base.dtype)


@contextmanager
def wearing(model: Any, weights: Mapping[str, Tensor] | None) -> Iterator[None]:
    """The model with these weights, and with its own again afterwards, bit for bit; None: its own all along.

    In place: on a GPU captured graphs read the weights where they were, and an optimiser holds on to its parameters.
    """
    if weights is None:
        yield
        return
    own = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    model.load_state_dict(weights)
    try:
        yield
    finally:
        model.load_state_dict(own)
