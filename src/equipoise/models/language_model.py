"""What the trainer and the sampler ask of a model, and the two ways they run it: over whole sequences, or token by token.

The small GPT and any transformers causal LM both give `forward` and `head`; everything else is written once, over these two.
Axes: P prompts, B sequences, T tokens of this call, S slots of the cache, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from equipoise.base import Prompt
from equipoise.errors import UsageError, same_shape
from equipoise.models.cache import KVCache, Past
from equipoise.models.token_stats import MaskedTokenStats, masked_token_stats


@dataclass(frozen=True, slots=True)
class Head:
    """Logits are hidden · weight + bias. A bias of −∞ bans a token: it is never sampled and never trained."""

    weight_VD: Tensor
    bias_V: Tensor | None = None

    def logits(self, hidden_BD: Tensor) -> Tensor:
        """(B, V) in float32, or float64 for float64 states: rounded to half precision they would lose their leading digits."""
        exact = torch.promote_types(hidden_BD.dtype, torch.float32)
        logits_BV = hidden_BD.to(exact) @ self.weight_VD.to(exact).T
        return logits_BV if self.bias_V is None else logits_BV + self.bias_V.to(exact)


class LanguageModel(Protocol):
    """A `torch.nn.Module` with these members."""

    training: bool

    @property
    def context(self) -> int:
        """The longest sequence, prompt and completion together."""

    @property
    def head(self) -> Head: ...

    def __call__(self, ids_BT: Tensor, positions_BT: Tensor, bias_B1TS: Tensor, past: Past | None = None) -> Tensor:
        """Final hidden states (B, T, D). `bias_B1TS` is added to the attention scores; keys and values go through `past`."""

    def parameters(self) -> Iterator[nn.Parameter]: ...

    def state_dict(self) -> dict[str, Tensor]: ...

    def train(self, mode: bool = True) -> nn.Module: ...


class Tokens(Protocol):
    """Text to token ids and back."""

    @property
    def pad(self) -> int: ...

    @property
    def stop(self) -> tuple[int, ...]:
        """Ids that end a completion."""

    def encode(self, prompt: Prompt) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a completion, without the token that ended it."""


def hidden_states(model: LanguageModel, ids_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Hidden states (B, T, D); `mask_BT` is True at real tokens. Padding on either side changes nothing at them.

    At a padded position the state is finite and means nothing.
    """
    _check_mask(ids_BT, mask_BT)
    if ids_BT.shape[1] > model.context:
        raise UsageError(
            f"{ids_BT.shape[1]} columns, but this model reads at most {model.context} tokens: shorten them"
        )
    dtype = model.head.weight_VD.dtype
    return model(ids_BT, positions_of(mask_BT), causal_bias(mask_BT, dtype))


def score_tokens(
    model: LanguageModel, ids_BS: Tensor, mask_BS: Tensor, *, n_prompt: int, temperature: float = 1.0
) -> MaskedTokenStats:
    """Log-prob, entropy and drift of the tokens after the first `n_prompt` columns, with gradients: what training needs.

    Column t of the result is about `ids_BS[:, n_prompt + t]`.
    """
    if not 1 <= n_prompt < ids_BS.shape[1]:
        raise UsageError(f"n_prompt is {n_prompt}: {ids_BS.shape[1]} columns need 1 <= n_prompt < {ids_BS.shape[1]}")
    hidden_BSD = hidden_states(model, ids_BS, mask_BS)
    head = model.head
    return masked_token_stats(
        hidden_BSD[:, n_prompt - 1 : -1],
        head.weight_VD,
        ids_BS[:, n_prompt:],
        mask_BS[:, n_prompt:],
        temperature=temperature,
        bias_V=head.bias_V,
    )


@torch.no_grad()
def prefill(model: LanguageModel, ids_PT: Tensor, mask_PT: Tensor) -> tuple[Tensor, KVCache]:
    """Run left-padded prompts. Returns the hidden states (P, D) that predict the first tokens, and the prompts' cache."""
    _check_mask(ids_PT, mask_PT)
    if not bool(mask_PT[:, -1].all()):
        raise UsageError(
            "prompts must end in the last column, found padding there: pad on the left, with no empty prompt"
        )
    dtype = model.head.weight_VD.dtype
    cache = KVCache.of_prompts(mask_PT, dtype)
    hidden_PTD = model(ids_PT, positions_of(mask_PT), causal_bias(mask_PT, dtype), cache)
    return hidden_PTD[:, -1], cache


@torch.no_grad()
def step(model: LanguageModel, ids_B: Tensor, cache: KVCache) -> Tensor:
    """Append one token to every row of the cache. Returns the hidden states (B, D) that predict the tokens after."""
    positions_B1, bias_B11S = cache.open_slot()
    hidden_B1D = model(ids_B[:, None], positions_B1, bias_B11S, cache)
    cache.close_slot()
    return hidden_B1D[:, 0]


def positions_of(mask_BT: Tensor) -> Tensor:
    """The how-manieth real token each one is, from 0; padding before the first real token gets 0."""
    return (mask_BT.long().cumsum(1) - 1).clamp(min=0)


def causal_bias(mask_BS: Tensor, dtype: torch.dtype, *, first: int = 0) -> Tensor:
    """(B, 1, S − first, S): 0 where the query of a column from `first` on may look at a key, −∞ elsewhere.

    A query sees real keys up to itself. It always sees itself, real or not: with no key at all softmax would give nan.
    """
    columns_S = torch.arange(mask_BS.shape[1], device=mask_BS.device)
    queries_T1 = columns_S[first:, None]
    hidden_BTS = ((columns_S > queries_T1) | ~mask_BS[:, None, :]) & (columns_S != queries_T1)
    return torch.zeros(hidden_BTS.shape, dtype=dtype, device=mask_BS.device).masked_fill_(hidden_BTS, -torch.inf)[
        :, None
    ]


def _check_mask(ids_BT: Tensor, mask_BT: Tensor) -> None:
    same_shape(ids_BT=ids_BT, mask_BT=mask_BT)
    if mask_BT.dtype != torch.bool:
        raise UsageError(f"mask_BT must be boolean, found {mask_BT.dtype}: pass mask_BT.bool()")
