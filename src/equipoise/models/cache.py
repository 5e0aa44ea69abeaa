"""What attention looks back at: the cache of sampling, and prompts that several completions share in training.

A model hands each layer's keys and values to `write`, and gets back all that its queries may look at.
Axes: P prompts, B sequences, H key-value heads, S slots, T tokens of this call, K width of a head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Past(Protocol):
    def write(self, layer: int, keys_BHTK: Tensor, values_BHTK: Tensor) -> tuple[Tensor, Tensor]:
        """Take a layer's keys and values of this call's tokens. Returns them with those of the tokens before."""


@dataclass(slots=True)
class KVCache:
    """For sampling: buffers of fixed size, where a step writes one slot and copies nothing.

    All rows fill the same slot at the same time; left padding makes prompts of different lengths end together.
    """

    keys: list[Tensor]  # a (B, H, S, K) per layer
    values: list[Tensor]
    bias_BS: Tensor  # added to the attention scores: 0 where a slot holds a token, −∞ at padding and free slots
    positions_B: Tensor  # position of each row's next token: padding is not counted
    slot_1: Tensor  # the next free slot; a tensor, so that a captured CUDA graph moves on when it is replayed
    reach: int  # slots that a query looks at; the graph always looks at all of them

    @classmethod
    def of_prompts(cls, mask_PT: Tensor, dtype: torch.dtype) -> KVCache:
        """Filled by the forward pass over the prompts: the first write of each layer is kept as it is."""
        bias_PT = torch.zeros(mask_PT.shape, dtype=dtype, device=mask_PT.device).masked_fill_(~mask_PT, -torch.inf)
        n_slots = mask_PT.shape[1]
        slot_1 = torch.tensor([n_slots], device=mask_PT.device)
        return cls([], [], bias_PT, mask_PT.sum(1), slot_1, n_slots)

    def write(self, layer: int, keys_BHTK: Tensor, values_BHTK: Tensor) -> tuple[Tensor, Tensor]:
        if layer == len(self.keys):
            self.keys.append(keys_BHTK)
            self.values.append(values_BHTK)
            return keys_BHTK, values_BHTK
        keys, values = self.keys[layer], self.values[layer]
        keys.index_copy_(2, self.slot_1, keys_BHTK)
        values.index_copy_(2, self.slot_1, values_BHTK)
        return keys[:, :, : self.reach], values[:, :, : self.reach]

    def open_slot(self) -> tuple[Tensor, Tensor]:
        """Positions (B, 1) and attention bias (B, 1, 1, S) of the token that the next writes store."""
        self.reach = min(self.reach + 1, self.bias_BS.shape[1])
        self.bias_BS.index_fill_(1, self.slot_1, 0.0)
        return self.positions_B[:, None], self.bias_BS[:, None, None, : self.reach]

    def close_slot(self) -> None:
        self.positions_B += 1
        self.slot_1 += 1

    def expand(self, samples: int, *, room: int) -> KVCache:
        """Every row `samples` times, with `room` free slots after it."""
        n_rows, n_slots = len(self.bias_BS) * samples, self.bias_BS.shape[1]

        def widened(buffer_PHTK: Tensor) -> Tensor:
            _, heads, _, width = buffer_PHTK.shape
            wide = buffer_PHTK.new_zeros(n_rows, heads, n_slots + room, width)  # zeros: −∞ hides a number, not a nan
            wide[:, :, :n_slots] = buffer_PHTK.repeat_interleave(samples, dim=0)
            return wide

        bias_BS = self.bias_BS.new_full((n_rows, n_slots + room), -torch.inf)
        bias_BS[:, :n_slots] = self.bias_BS.repeat_interleave(samples, dim=0)
        return KVCache(
            [widened(keys) for keys in self.keys],
            [widened(values) for values in self.values],
            bias_BS,
            self.positions_B.repeat_interleave(samples),
            self.slot_1.clone(),
            self.reach,
        )

    def keep(self, rows: Tensor) -> KVCache:
        """Only these rows, in this order."""
        return KVCache(
            [keys[rows] for keys in self.keys],
            [values[rows] for values in self.values],
            self.bias_BS[rows],
            self.positions_B[rows],
            self.slot_1,
            self.reach,
        )

    def tensors(self) -> list[Tensor]:
        return [*self.keys, *self.values, self.bias_BS, self.positions_B, self.slot_1]


class SharedPrompts:
    """For training: keeps what the prompts write, then puts it before what their completions write, with gradients."""

    def __init__(self, prompt_B: Tensor) -> None:
        self._prompt_B = prompt_B  # which prompt each completion follows
        self._prompts: list[tuple[Tensor, Tensor]] = []  # keys and values, a (P, H, L, K) per layer

    def write(self, layer: int, keys_BHTK: Tensor, values_BHTK: Tensor) -> tuple[Tensor, Tensor]:
        if layer == len(self._prompts):
            self._prompts.append((keys_BHTK, values_BHTK))
            return keys_BHTK, values_BHTK
        prompt_keys, prompt_values = self._prompts[layer]
        return (
            torch.cat([prompt_keys.index_select(0, self._prompt_B), keys_BHTK], dim=2),
            torch.cat([prompt_values.index_select(0, self._prompt_B), values_BHTK], dim=2),
        )
