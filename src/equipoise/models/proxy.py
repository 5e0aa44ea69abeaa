"""Proxy-tuning: a large model steered, token by token, by what tuning did to a small one (https://arxiv.org/abs/2401.08565).

    logits = base + alpha · (expert − anti-expert)

The expert is the anti-expert after tuning; the base is never tuned. Three models are one `LanguageModel` here: their states stand side by
side, and so do the layers of their caches. All that samples, watches or scores a model works on it, on any device.
Axes: B sequences, T tokens of this call, D width (of all three together), V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.errors import UsageError
from equipoise.models.cache import Past
from equipoise.models.language_model import Head
from equipoise.models.loaders import Loaded

PASSES = 3  # forward passes for a token, one of each model


@dataclass(frozen=True, slots=True)
class ProxyHead(Head):
    """`weight_VD` and `bias_V` give the same logits in one product, up to rounding: for those who only look on."""

    parts: tuple[Head, ...] = ()
    alpha: float = 1.0

    @classmethod
    def of(cls, base: Head, expert: Head, anti: Head, *, alpha: float) -> ProxyHead:
        weight_VD = torch.cat(
            [base.weight_VD, alpha * expert.weight_VD, -alpha * anti.weight_VD], dim=1
        ).detach()  # fmt: skip
        bias_V = None
        if any(head.bias_V is not None for head in (base, expert, anti)):
            biases = [
                torch.zeros_like(h.weight_VD[:, 0]) if h.bias_V is None else h.bias_V for h in (base, expert, anti)
            ]
            bias_V = combine_logits(*biases, alpha=alpha).detach()
        return cls(weight_VD, bias_V, (base, expert, anti), alpha)

    def logits(self, hidden_BD: Tensor) -> Tensor:
        widths = [part.weight_VD.shape[1] for part in self.parts]
        hidden = torch.split(hidden_BD, widths, dim=-1)
        # Contiguous, as a model alone has them: the products are then the same to the last bit.
        logits = [part.logits(each.contiguous()) for part, each in zip(self.parts, hidden, strict=True)]
        return combine_logits(*logits, alpha=self.alpha)


def combine_logits(base_BV: Tensor, expert_BV: Tensor, anti_BV: Tensor, *, alpha: float) -> Tensor:
    """base + alpha · (expert − anti-expert); a token that is banned (−∞) stays so.

    In float64 the difference of two float32 numbers is exact, and so is the sum where base and anti-expert are one: an expert equal to
    the anti-expert gives the base, and the latter equal to the base gives the expert, bit for bit.
    """
    banned_BV = base_BV.isneginf()
    shift_BV = torch.where(banned_BV, 0.0, alpha * (expert_BV.double() - anti_BV.double()))
    return (base_BV.double() + shift_BV).to(base_BV.dtype)


class ProxyModel(nn.Module):
    """The three as one model that is only sampled from: its head is a copy, made once."""

    def __init__(self, base: Any, expert: Any, anti: Any, *, alpha: float = 1.0) -> None:
        super().__init__()
        if not isfinite(alpha):
            raise UsageError(
                f"alpha of proxy-tuning is {alpha}: use a finite number, 1 as in the paper, 0 for the base"
            )
        self.parts: Any = nn.ModuleList([base, expert, anti])
        self.alpha = alpha
        self._head = ProxyHead.of(*_heads_of(base, expert, anti), alpha=alpha)
        self._at: dict[float, ProxyModel] = {}
        self.train(False)

    @property
    def context(self) -> int:
        return min(int(part.context) for part in self.parts)

    @property
    def head(self) -> Head:
        return self._head

    def at(self, alpha: float) -> ProxyModel:
        """The same models with another alpha."""
        if alpha == self.alpha:
            return self
        if alpha not in self._at:
            self._at[alpha] = ProxyModel(*self.parts, alpha=alpha)
        return self._at[alpha]

    def forward(self, ids_BT: Tensor, positions_BT: Tensor, bias_B1TS: Tensor, past: Past | None = None) -> Tensor:
        hidden, first = [], 0
        for part in self.parts:
            layers = None if past is None else _Layers(past, first)
            hidden.append(part(ids_BT, positions_BT, bias_B1TS, layers))
            first = 0 if layers is None else layers.end
        return torch.cat(hidden, dim=-1)


class _Layers:
    """One model's layers in a cache that holds three models' layers, one after another."""

    def __init__(self, past: Past, first: int) -> None:
        self._past, self._first, self.end = past, first, first

    def write(self, layer: int, keys_BHTK: Tensor, values_BHTK: Tensor) -> tuple[Tensor, Tensor]:
        self.end = max(self.end, self._first + layer + 1)
        return self._past.write(self._first + layer, keys_BHTK, values_BHTK)


def proxy_of(base: Loaded, expert: Loaded, anti: Loaded, *, alpha: float = 1.0) -> Loaded:
    """The three as one, with the base's tokenizer. They must share it: a token is the same text, and the same id, in all."""
    for name, other in (("expert", expert), ("anti-expert", anti)):
        if _vocabulary(other.tokens) != _vocabulary(base.tokens):
            raise UsageError(
                f"proxy-tuning adds logits token by token, and the {name}'s vocabulary is not the base's: take models of one tokenizer"
            )
    return Loaded(ProxyModel(base.model, expert.model, anti.model, alpha=alpha), base.tokens)


def _vocabulary(tokens: Any) -> Any:
    """What tells two tokenizers apart: the ids of all texts."""
    inner = getattr(tokens, "inner", None)
    return tokens if inner is None else inner.get_vocab()


def _heads_of(base: Any, expert: Any, anti: Any) -> list[Head]:
    """Rows of the expert and anti-expert beyond the base's are padding of their tables, and are left out."""
    V, dtype, device = len(base.head.weight_VD), base.head.weight_VD.dtype, base.head.weight_VD.device
    heads: list[Head] = []
    for name, model in (("base", base), ("expert", expert), ("anti-expert", anti)):
        weight_VD, bias_V = model.head.weight_VD, model.head.bias_V
        if len(weight_VD) < V:
            raise UsageError(
                f"proxy-tuning adds logits token by token: the base has {V} of them, the {name} {len(weight_VD)}; "
                "take models of one vocabulary"
            )
        if (weight_VD.dtype, weight_VD.device) != (dtype, device):
            raise UsageError(
                f"proxy-tuning needs the three models in one precision on one device: the base is {dtype} on {device}, "
                f"the {name} {weight_VD.dtype} on {weight_VD.device}"
            )
        head = Head(weight_VD[:V], None if bias_V is None else bias_V[:V])
        if heads and not torch.equal(_banned(head), _banned(heads[0])):
            raise UsageError(
                f"the {name} of proxy-tuning bans other tokens than the base: take models of one vocabulary"
            )
        heads.append(head)
    return heads


def _banned(head: Head) -> Tensor:
    return torch.zeros_like(head.weight_VD[:, 0]).bool() if head.bias_V is None else head.bias_V.isneginf()
