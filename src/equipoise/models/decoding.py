"""How the next token is chosen: temperature, truncation, and a draw that only depends on the row and its position.

Axes: P prompts, G samples of each, B = P · G rows, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import isfinite, log
from typing import Literal, get_args

import torch
from torch import Tensor

from equipoise.errors import UsageError, unknown_name
from equipoise.models.language_model import Head

Order = Literal["temperature_first", "temperature_last"]
EDT_BASE = 0.8  # N of https://arxiv.org/abs/2403.14541
COLDEST = 0.01  # where the entropy is near 0 the formula's temperature is 0


@dataclass(frozen=True, slots=True)
class Decoding:
    """Truncations keep the tokens that all of them keep, and the most likely one always. Greedy decoding is `top_k=1`.

    `order`: whether top_k, top_p and min_p look at the softmax at the temperature, as in vLLM and transformers, or at the model's
    own, as in llama.cpp, where a hot model keeps no more tokens than a cold one. What top_n_sigma keeps is the same in both.

    `edt` (https://arxiv.org/abs/2403.14541) makes `temperature` T0 the hottest, and tokens of low entropy H colder:

        T = T0 · 0.8^(edt / H), H in nats, of the model's own softmax

    `repel`: see `siblings`.
    """

    temperature: float = 1.0
    top_k: int | None = None  # only the k most likely tokens
    top_p: float = 1.0  # only the fewest most likely tokens that hold this mass, https://arxiv.org/abs/1904.09751
    min_p: float = 0.0  # only tokens at least this share as likely as the most likely, https://arxiv.org/abs/2407.01082
    top_n_sigma: float | None = None  # only logits within n·σ of the largest, https://arxiv.org/abs/2411.07641
    order: Order = "temperature_first"
    edt: float = 0.0  # θ; 0: one temperature for all tokens
    repel: float = 0.0  # nats off a token for each sibling that took it; 0: siblings do not see each other
    repel_first: int = 4  # tokens of a completion in which they do

    def __post_init__(self) -> None:
        if not (isfinite(self.temperature) and self.temperature > 0):
            raise UsageError(f"temperature is {self.temperature}: use a number above 0, or top_k=1 for greedy decoding")
        if self.top_k is not None and self.top_k < 1:
            raise UsageError(f"top_k is {self.top_k}: use 1 or more, or None for no limit")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top_p is {self.top_p}: use a share above 0 and up to 1")
        if not 0 <= self.min_p <= 1:
            raise UsageError(f"min_p is {self.min_p}: use a share from 0 to 1")
        if self.top_n_sigma is not None and not (isfinite(self.top_n_sigma) and self.top_n_sigma > 0):
            raise UsageError(f"top_n_sigma is {self.top_n_sigma}: use a number above 0, or None for no limit")
        if self.order not in get_args(Order):
            raise unknown_name("order of temperature and truncation", self.order, get_args(Order))
        for name in ("edt", "repel", "repel_first"):
            if not (isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise UsageError(f"{name} is {getattr(self, name)}: use 0 or more")
        if self.repel_first != int(self.repel_first):
            raise UsageError(f"repel_first is {self.repel_first}: use a whole number of tokens")


Choose = Callable[[Tensor, Tensor], Tensor]  # weights (B, V) that need not sum to 1, and uniforms (B,), to tokens (B,)


@dataclass(frozen=True, slots=True)
class Picks:
    """One token per row, with its log-prob and the entropy of the full softmax at the row's temperature, in nats."""

    ids_B: Tensor
    logp_B: Tensor
    entropy_B: Tensor


def pick_tokens(
    hidden_BD: Tensor,
    head: Head,
    uniform_B: Tensor,
    decoding: Decoding,
    *,
    forced_B: Tensor | None = None,
    choose: Choose | None = None,
) -> Picks:
    """Sample a token per row by inverting the distribution function at `uniform_B`, in [0, 1), or as `choose` does it.

    Log-probs and entropies are those of the softmax before truncation, which is what training recomputes.
    Where `forced_B` is 0 or more it is the token, whatever its probability.
    Computed in float32, or float64 for float64 inputs.
    """
    logits_BV = head.logits(hidden_BD)
    logp_BV = (logits_BV / _temperature(logits_BV, decoding)).log_softmax(-1)
    p_BV = logp_BV.exp()
    ids_B = (choose or invert)(_truncate(p_BV, logits_BV, decoding), uniform_B)
    if forced_B is not None:
        ids_B = torch.where(forced_B >= 0, forced_B, ids_B)
    entropy_B = torch.special.entr(p_BV).sum(-1)  # −p ln p, and 0 at p = 0
    return Picks(ids_B, logp_BV.gather(1, ids_B[:, None])[:, 0], entropy_B)


def _temperature(logits_BV: Tensor, decoding: Decoding) -> Tensor | float:
    if decoding.edt == 0:
        return decoding.temperature
    entropy_B1 = torch.special.entr(logits_BV.softmax(-1)).sum(-1, keepdim=True)
    cooled_B1 = decoding.temperature * torch.exp(log(EDT_BASE) * decoding.edt / entropy_B1)  # exp(−∞) = 0 at H = 0
    return cooled_B1.clamp(min=min(COLDEST, decoding.temperature))


def _truncate(p_BV: Tensor, logits_BV: Tensor, decoding: Decoding) -> Tensor:
    """Probabilities with the tokens that may not be sampled at 0; the rest is not scaled up."""
    if decoding.order == "temperature_last":
        return p_BV.masked_fill(_keep(logits_BV.softmax(-1), logits_BV, decoding) == 0, 0.0)
    return _keep(p_BV, logits_BV, decoding)


def _keep(p_BV: Tensor, logits_BV: Tensor, decoding: Decoding) -> Tensor:
    kept_BV = p_BV
    if decoding.top_k is not None and decoding.top_k < p_BV.shape[1]:
        top = p_BV.topk(decoding.top_k)
        kept_BV = torch.zeros_like(p_BV).scatter(1, top.indices, top.values)
    if decoding.top_p < 1:
        ordered = kept_BV.sort(descending=True, stable=True)
        before_BV = ordered.values.cumsum(1) - ordered.values  # mass of the tokens that are more likely
        within_BV = ordered.values.masked_fill(before_BV >= decoding.top_p, 0.0)
        kept_BV = torch.zeros_like(p_BV).scatter(1, ordered.indices, within_BV)
    if decoding.min_p > 0:
        floor_B1 = decoding.min_p * p_BV.amax(1, keepdim=True)
        kept_BV = kept_BV.masked_fill(p_BV < floor_B1, 0.0)
    if decoding.top_n_sigma is not None:
        kept_BV = kept_BV.masked_fill(logits_BV < sigma_floor(logits_BV, decoding.top_n_sigma), 0.0)
    return kept_BV


def sigma_floor(logits_BV: Tensor, n: float) -> Tensor:
    """max − n·σ of each row, σ the standard deviation over the tokens that are not banned, divided by their number."""
    real_BV = ~logits_BV.isneginf()
    count_B1 = real_BV.sum(1, keepdim=True)
    mean_B1 = torch.where(real_BV, logits_BV, 0.0).sum(1, keepdim=True) / count_B1
    squares_B1 = torch.where(real_BV, (logits_BV - mean_B1) ** 2, 0.0).sum(1, keepdim=True)
    return logits_BV.amax(1, keepdim=True) - n * (squares_B1 / count_B1).sqrt()


def invert(p_BV: Tensor, uniform_B: Tensor) -> Tensor:
    """The first token whose cumulative mass exceeds the uniform's share of the total; never one of mass 0."""
    cumulative_BV = p_BV.double().cumsum(1)  # in float32 the tail of a large vocabulary would be lost
    threshold_B1 = uniform_B.double()[:, None] * cumulative_BV[:, -1:]
    ids_B = torch.searchsorted(cumulative_BV, threshold_B1, right=True)[:, 0]
    return ids_B.clamp(max=p_BV.shape[1] - 1)  # past the end only if a probability is nan, which `generate` reports


# --- randomness ------------------------------------------------------------------------------------------------------------

GOLDEN = 0x9E3779B97F4A7C15  # SplitMix64, https://doi.org/10.1145/2714064.2660195
MIX_1, MIX_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def seed_of(*parts: str | int) -> int:
    """One seed, below 2^63, from the parts that name a draw: ("run", seed, step, problem id). Equal parts, equal seed."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def draw_uniforms(seeds: Sequence[int], *, samples: int, n: int, device: torch.device | str = "cpu") -> Tensor:
    """(P · samples, n) float64 numbers in [0, 1), a row per sample of each seed.

    The number of sample g at position t depends on its seed, g and t alone: not on the batch, its order or its size.
    """
    for seed in seeds:
        if not 0 <= seed < 2**63:
            raise UsageError(f"a seed is {seed}: use 0 to 2^63 - 1")
    seeds_P = torch.tensor(list(seeds), dtype=torch.int64, device=device)
    row_seeds_B = splitmix64(seeds_P, samples).flatten()
    bits_BT = splitmix64(row_seeds_B, n)
    # 48 bits: the largest, 1 − 2⁻⁴⁸, times a sum of probabilities still stays below that sum in float64.
    return _shift_right(bits_BT, 16).double() * 2.0**-48


def splitmix64(seeds_N: Tensor, n: int) -> Tensor:
    """(N, n): the first n outputs of the generator started at each seed, as int64 with the bits of the unsigned numbers."""
    counter_n = torch.arange(1, n + 1, dtype=torch.int64, device=seeds_N.device)
    state_Nn = seeds_N[:, None] + counter_n * _signed(GOLDEN)
    state_Nn = (state_Nn ^ _shift_right(state_Nn, 30)) * _signed(MIX_1)
    state_Nn = (state_Nn ^ _shift_right(state_Nn, 27)) * _signed(MIX_2)
    return state_Nn ^ _shift_right(state_Nn, 31)


def _signed(bits: int) -> int:
    return bits - 2**64 if bits >= 2**63 else bits


def _shift_right(x: Tensor, by: int) -> Tensor:
    """Unsigned shift; torch's own repeats the sign bit."""
    shifted: Tensor = (x >> by) & (2 ** (64 - by) - 1)
    return shifted
