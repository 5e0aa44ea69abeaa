"""A small GPT to read in one sitting: RMSNorm, rotary positions, causal attention, a GELU MLP, tied embeddings.

Axes: B sequences, T tokens of this call, S slots of the cache, H heads, K width of a head, D width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from equipoise.errors import UsageError
from equipoise.models.cache import Past
from equipoise.models.language_model import Head


@dataclass(frozen=True, slots=True)
class GPTConfig:
    """About 12 · layers · width² parameters: 0.33 M for the defaults, 1.8 M for width 192, 4 layers, 6 heads."""

    vocabulary: int
    width: int = 96
    layers: int = 3
    heads: int = 3
    context: int = 64
    pad: int = 0  # this token is never sampled

    def __post_init__(self) -> None:
        for name in ("vocabulary", "width", "layers", "heads", "context"):
            if getattr(self, name) < 1:
                raise UsageError(f"a GPT needs {name} >= 1, found {getattr(self, name)}")
        if self.width % (2 * self.heads):
            raise UsageError(
                f"width {self.width} over {self.heads} heads: each head needs an even width, use a multiple of {2 * self.heads}"
            )
        if not 0 <= self.pad < self.vocabulary:
            raise UsageError(f"pad is {self.pad}: use one of the {self.vocabulary} ids, 0 to {self.vocabulary - 1}")


class GPT(nn.Module):
    """Weights are drawn from `seed`, so equal configs and seeds are equal models."""

    no_pad_V: Tensor
    turns_CK: Tensor

    def __init__(self, config: GPTConfig, *, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocabulary, config.width)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.layers))
        self.norm = nn.RMSNorm(config.width, eps=1e-6)
        no_pad_V = torch.zeros(config.vocabulary)
        no_pad_V[config.pad] = -torch.inf
        self.register_buffer("no_pad_V", no_pad_V, persistent=False)
        self.register_buffer("turns_CK", rotary_turns(config.context, config.width // config.heads), persistent=False)
        self._draw_weights(torch.Generator().manual_seed(seed))

    @torch.no_grad()
    def _draw_weights(self, generator: torch.Generator) -> None:
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                # Each block adds twice to the residual stream: scaled so, its variance does not grow with depth.
                added = name.endswith(("out.weight", "down.weight"))
                std = 0.02 / (2 * self.config.layers) ** 0.5 if added else 0.02
                weight.copy_(std * torch.randn(weight.shape, generator=generator))

    @property
    def context(self) -> int:
        return self.config.context

    @property
    def head(self) -> Head:
        return Head(self.embed.weight, self.no_pad_V)

    def forward(self, ids_BT: Tensor, positions_BT: Tensor, bias_B1TS: Tensor, past: Past | None = None) -> Tensor:
        x_BTD: Tensor = self.embed(ids_BT)
        turns_B1TK = self.turns_CK[positions_BT][:, None]
        for block in self.blocks:
            x_BTD = block(x_BTD, turns_B1TK, bias_B1TS, past)
        normed_BTD: Tensor = self.norm(x_BTD)
        return normed_BTD


class Block(nn.Module):
    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__()
        width = config.width
        self.layer, self.heads = layer, config.heads
        self.norm_attention = nn.RMSNorm(width, eps=1e-6)
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norm_mlp = nn.RMSNorm(width, eps=1e-6)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x_BTD: Tensor, turns_B1TK: Tensor, bias_B1TS: Tensor, past: Past | None) -> Tensor:
        x_BTD = x_BTD + self.attention(self.norm_attention(x_BTD), turns_B1TK, bias_B1TS, past)
        mlp_BTD: Tensor = self.down(gelu(self.up(self.norm_mlp(x_BTD))))
        return x_BTD + mlp_BTD

    def attention(self, x_BTD: Tensor, turns_B1TK: Tensor, bias_B1TS: Tensor, past: Past | None) -> Tensor:
        B, T, D = x_BTD.shape
        qkv_BTNK = self.query_key_value(x_BTD).view(B, T, 3 * self.heads, D // self.heads)
        qk_BNTK, v_BHTK = qkv_BTNK.transpose(1, 2).split([2 * self.heads, self.heads], dim=1)
        q_BHTK, k_BHTK = rotate(qk_BNTK, turns_B1TK).chunk(2, dim=1)
        if past is not None:
            k_BHTK, v_BHTK = past.write(self.layer, k_BHTK, v_BHTK)
        y_BTD: Tensor = self.out(attend(q_BHTK, k_BHTK, v_BHTK, bias_B1TS).transpose(1, 2).reshape(B, T, D))
        return y_BTD


def attend(q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, bias_B1TS: Tensor) -> Tensor:
    """softmax(q · k / √K + bias) · v."""
    if q_BHTK.shape[2] == 1 and q_BHTK.device.type == "cpu":
        # For a single query two small products take half the time of the fused kernel.
        scores_BH1S: Tensor = q_BHTK @ k_BHSK.transpose(2, 3) * q_BHTK.shape[3] ** -0.5
        return (scores_BH1S + bias_B1TS).softmax(-1) @ v_BHSK
    return scaled_dot_product_attention(q_BHTK, k_BHSK, v_BHSK, attn_mask=bias_B1TS)


def rotary_turns(context: int, width: int) -> Tensor:
    """(C, K): cosines, then sines, of position · 10000^(−2i/K), i < K/2 (RoPE, https://arxiv.org/abs/2104.09864)."""
    rates = 10_000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.arange(context, dtype=torch.float64)[:, None] * rates
    return torch.cat([angles.cos(), angles.sin()], dim=1).float()


def rotate(x_BHTK: Tensor, turns_B1TK: Tensor) -> Tensor:
    """Turn each pair (x_i, x_{i+K/2}) by its position's angle: a product of two such vectors depends on their distance only."""
    cos, sin = turns_B1TK.chunk(2, dim=-1)
    left, right = x_BHTK.chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)
