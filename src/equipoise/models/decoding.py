"""How the next token is chosen: temperature, truncation, and a draw that only depends on the row and its position.

Axes: P prompts, G samples of each, B = P · G rows, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import isfinite

import torch
from torch import Tensor

from equipoise.errors import UsageError
from equipoise.models.language_model import Head


@dataclass(frozen=True, slots=True)
class Decoding:
    """Truncation acts on the softmax at `temperature`. Greedy decoding is `top_k=1`."""

    temperature: float = 1.0
    top_k: int | None = None  # only the k most likely tokens
    top_p: float = 1.0  # only the fewest most likely tokens that hold this mass, https://arxiv.org/abs/1904.09751
    min_p: float = 0.0  # only tokens at least this share as likely as the most likely, https://arxiv.org/abs/2407.01082

    def __post_init__(self) -> None:
        if not (isfinite(self.temperature) and self.temperature > 0):
            raise UsageError(f"temperature is {self.temperature}: use a number above 0, or top_k=1 for greedy decoding")
        if self.top_k is not None and self.top_k < 1:
            raise UsageError(f"top_k is {self.top_k}: use 1 or more, or None for no limit")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top_p is {self.top_p}: use a share above 0 and up to 1")
        if not 0 <= self.min_p <= 1:
            raise UsageError(f"min_p is {self.min_p}: use a share from 0 to 1")


@dataclass(frozen=True, slots=True)
class Picks:
    """One token per row, with its log-prob and the entropy of the full softmax at the temperature, in nats."""

    ids_B: Tensor
    logp_B: Tensor
    entropy_B: Tensor


def pick_tokens(
    hidden_BD: Tensor, head: Head, uniform_B: Tensor, decoding: Decoding, *, forced_B: Tensor | None = None
) -> Picks:
    """Sample a token per row by inverting the distribution function at `uniform_B`, in [0, 1).

    Log-probs and entropies are those of the softmax before truncation, which is what training recomputes.
    Where `forced_B` is 0 or more it is the token, whatever its probability.
    Computed in float32, or float64 for float64 inputs.
    """
    exact = torch.promote_types(hidden_BD.dtype, torch.float32)
    logits_BV = hidden_BD.to(exact) @ head.weight_VD.to(exact).T
    if head.bias_V is not None:
        logits_BV = logits_BV + head.bias_V.to(exact)
    logp_BV = (logits_BV / decoding.temperature).log_softmax(-1)
    p_BV = logp_BV.exp()
    ids_B = _invert(_truncate(p_BV, decoding), uniform_B)
    if forced_B is not None:
        ids_B = torch.where(forced_B >= 0, forced_B, ids_B)
    entropy_B = torch.special.entr(p_BV).sum(-1)  # −p ln p, and 0 at p = 0
    return Picks(ids_B, logp_BV.gather(1, ids_B[:, None])[:, 0], entropy_B)


def _truncate(p_BV: Tensor, decoding: Decoding) -> Tensor:
    """Probabilities with the tokens that may not be sampled at 0; the rest is not scaled up."""
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
    return kept_BV


def _invert(p_BV: Tensor, uniform_B: Tensor) -> Tensor:
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
