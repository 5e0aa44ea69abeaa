"""An exponential moving average of the weights, beside a training that it does not touch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


class Average:
    """θ̄ ← decay · θ̄ + (1 − decay) · θ after every step, from the weights before the first on.

    Polyak averaging; in the policies of RL it stands for WARP's anchor (https://arxiv.org/abs/2406.16768). Over n steps the first
    weights keep decay^n: a decay near 1 − 1/n also blends with the model that training began with. Held at least in float32: half
    precision would round a hundredth of a step away.
    """

    def __init__(self, model: Any, decay: float) -> None:
        self.decay = decay
        self.weights: dict[str, Tensor] = {}
        self.restore(model.state_dict())

    def restore(self, weights: Mapping[str, Tensor]) -> None:
        like = self.weights
        self.weights = {
            name: _wide(tensor.detach(), like[name].device if name in like else tensor.device)
            for name, tensor in weights.items()
        }

    @torch.no_grad()
    def add(self, model: Any) -> None:
        for name, tensor in model.state_dict().items():
            held = self.weights[name]
            if held.is_floating_point():
                held.lerp_(tensor.to(held.dtype), 1 - self.decay)
            else:
                held.copy_(tensor)


def _wide(tensor: Tensor, device: torch.device) -> Tensor:
    kind = torch.promote_types(tensor.dtype, torch.float32) if tensor.is_floating_point() else tensor.dtype
    return tensor.to(device, kind, copy=True)
