"""An exponential moving average of the weights, beside a training that it does not touch."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from equipoise.models.language_model import LanguageModel


class Average:
    """θ̄ ← decay · θ̄ + (1 − decay) · θ after every step, from the weights before the first on.

    Polyak averaging; in the policies of RL it stands for WARP's anchor (https://arxiv.org/abs/2406.16768). Over n steps the first
    weights keep decay^n: a decay near 1 − 1/n also blends with the model that training began with.
    """

    def __init__(self, model: LanguageModel, decay: float) -> None:
        self.decay = decay
        self.weights: dict[str, Tensor] = {}
        self.restore(model.state_dict())  # type: ignore[attr-defined]

    def restore(self, weights: Mapping[str, Tensor]) -> None:
        like = self.weights
        self.weights = {
            name: tensor.detach().clone().to(like[name].device if name in like else tensor.device)
            for name, tensor in weights.items()
        }

    @torch.no_grad()
    def add(self, model: LanguageModel) -> None:
        for name, tensor in model.state_dict().items():  # type: ignore[attr-defined]
            if tensor.is_floating_point():
                self.weights[name].lerp_(tensor, 1 - self.decay)
            else:
                self.weights[name].copy_(tensor)
