"""Rows while they are sampled. All that changes is in tensors, changed in place, so one step can be captured as a CUDA graph.

Axes: B rows that were asked for, R of them still in the batch, T sampled columns, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from equipoise.models.cache import KVCache
from equipoise.models.decoding import Decoding, pick_tokens
from equipoise.models.language_model import LanguageModel, step
from equipoise.models.siblings import choose_apart
from equipoise.models.thinking import ThinkingCap

Watch = Callable[["Rows", Tensor], None]  # sees the states (R, D) that predict a column before it is sampled


@dataclass(frozen=True, slots=True)
class Rules:
    """What stays the same from step to step."""

    model: LanguageModel
    stop: tuple[int, ...]
    decoding: Decoding
    watch: Watch | None = None
    cap: ThinkingCap | None = None
    siblings: int = 1  # rows of a prompt, which follow each other; `repel` keeps these apart


@dataclass(slots=True)
class Rows:
    """The R rows in the batch, and what was sampled for all B."""

    cache: KVCache
    last_R: Tensor  # the token sampled last
    done_R: Tensor
    index_R: Tensor  # which of the B rows each one is
    column_1: Tensor  # the column that is sampled next
    uniform_BT: Tensor
    ids_BT: Tensor
    mask_BT: Tensor
    logp_BT: Tensor
    entropy_BT: Tensor

    @classmethod
    def start(cls, cache: KVCache, uniform_BT: Tensor, *, pad: int) -> Rows:
        device, shape = uniform_BT.device, uniform_BT.shape
        return cls(
            cache,
            last_R=torch.full(shape[:1], pad, device=device),
            done_R=torch.zeros(shape[0], dtype=torch.bool, device=device),
            index_R=torch.arange(shape[0], device=device),
            column_1=torch.zeros(1, dtype=torch.long, device=device),
            uniform_BT=uniform_BT,
            ids_BT=torch.full(shape, pad, device=device),
            mask_BT=torch.zeros(shape, dtype=torch.bool, device=device),
            logp_BT=torch.zeros(shape, dtype=torch.float32, device=device),
            entropy_BT=torch.zeros(shape, dtype=torch.float32, device=device),
        )

    def pick(self, hidden_RD: Tensor, rules: Rules) -> None:
        """Sample the next column from the states that predict it; nothing is written for rows that are done."""
        if rules.watch is not None:
            rules.watch(self, hidden_RD)
        here = (self.index_R, self.column_1)
        forced_R = None if rules.cap is None else rules.cap.forced(self)
        apart = None if rules.decoding.repel == 0 else partial(choose_apart, self, rules)
        picks = pick_tokens(
            hidden_RD, rules.model.head, self.uniform_BT[here], rules.decoding, forced_B=forced_R, choose=apart
        )
        if rules.cap is not None:
            rules.cap.follow(self, picks.ids_B)
        live_R = ~self.done_R
        self.ids_BT[here] = torch.where(live_R, picks.ids_B, self.ids_BT[here])
        self.mask_BT[here] = live_R
        self.logp_BT[here] = torch.where(live_R, picks.logp_B.float(), 0.0)
        self.entropy_BT[here] = torch.where(live_R, picks.entropy_B.float(), 0.0)
        for token in rules.stop:
            self.done_R |= picks.ids_B == token
        self.last_R.copy_(picks.ids_B)
        self.column_1 += 1

    def advance(self, rules: Rules) -> None:
        """One token further: read the last one, sample the next."""
        self.pick(step(rules.model, self.last_R, self.cache), rules)

    def drop_done(self) -> None:
        live = (~self.done_R).nonzero()[:, 0]
        self.cache = self.cache.keep(live)
        self.last_R, self.done_R, self.index_R = self.last_R[live], self.done_R[live], self.index_R[live]

    def tensors(self) -> list[Tensor]:
        return [
            *self.cache.tensors(),
            *(self.last_R, self.done_R, self.index_R, self.column_1),
            *(self.uniform_BT, self.ids_BT, self.mask_BT, self.logp_BT, self.entropy_BT),
        ]
