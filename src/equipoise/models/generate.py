"""Batched sampling: prompts run once, then expand to their samples; a step is a token for every unfinished row.

Axes: P prompts, G samples of each, B = P · G rows in the order of prompts, L prompt columns, T sampled columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from equipoise.errors import UsageError
from equipoise.models.decoding import Decoding, draw_uniforms
from equipoise.models.graphs import StepGraphs
from equipoise.models.language_model import LanguageModel, prefill
from equipoise.models.rows import Rows, Rules, Watch
from equipoise.models.samples import Samples
from equipoise.models.thinking import ThinkingCap

DROP_AT = 0.25  # share of finished rows at which they leave the batch: copying the others' cache costs about a step


@torch.no_grad()
def generate(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    *,
    seeds: Sequence[int],
    samples: int,
    max_tokens: int,
    pad: int,
    stop: Sequence[int],
    decoding: Decoding = Decoding(),
    graphs: StepGraphs | None = None,
    watch: Watch | None = None,
    cap: ThinkingCap | None = None,
) -> Samples:
    """`samples` completions of every prompt (token ids), one seed per prompt; a token of `stop` or `max_tokens` ends each.

    A row's randomness comes from its prompt's seed, its sample number and the position alone, so any split or order of the
    prompts draws the same completions, and more samples only add to fewer. (Up to rounding: a matrix product of another size
    may move a probability by 1e-7, and a draw within that of a boundary then falls on its other side.)

    `graphs`: on a GPU, replay each step as one captured CUDA graph, kept there for later calls. `watch` sees the states of every
    column; a captured step has nobody who looks on. `cap`: a limit on the thinking of the B rows.
    """
    if graphs is not None and (watch is not None or cap is not None):
        raise UsageError(
            "sampling was asked to be watched or capped, and to replay captured graphs: leave out the graphs, or the others"
        )
    _check(model, prompts, seeds, samples=samples, max_tokens=max_tokens)
    longest = max(map(len, prompts))
    columns = longest if graphs is None else graphs.columns(longest)
    device = model.head.weight_VD.device
    rules = Rules(model, tuple(stop), decoding, watch, cap, samples)
    was_training = model.training
    model.train(False)
    try:
        ids_PL, mask_PL = pad_left(prompts, columns, pad=pad, device=device)
        hidden_PD, cache = prefill(model, ids_PL, mask_PL)
        uniform_BT = draw_uniforms(seeds, samples=samples, n=max_tokens, device=device)
        rows = Rows.start(cache.expand(samples, room=max_tokens - 1), uniform_BT, pad=pad)
        rows.pick(hidden_PD.repeat_interleave(samples, dim=0), rules)
        if graphs is None:
            finish_rows(rows, rules)
        else:
            rows = graphs.run(rows, rules)
    finally:
        model.train(was_training)
    return _collect(rows, ids_PL[:, -longest:], mask_PL[:, -longest:], samples=samples, stop=rules.stop)


def finish_rows(rows: Rows, rules: Rules) -> None:
    """Sample on until every row has ended or its columns are full; the first column is there."""
    for _ in range(1, rows.ids_BT.shape[1]):
        n_done = int(rows.done_R.sum())
        if n_done == len(rows.done_R):
            return
        if n_done >= DROP_AT * len(rows.done_R):
            rows.drop_done()
        rows.advance(rules)


def _collect(rows: Rows, ids_PL: Tensor, mask_PL: Tensor, *, samples: int, stop: tuple[int, ...]) -> Samples:
    if not bool(rows.logp_BT.isfinite().all()):
        raise FloatingPointError("a sampled token's log-prob is not finite: the model's weights have diverged")
    # Copies: the rows of a graph are written again by its next run.
    used = slice(0, int(rows.mask_BT.sum(1).max()))
    ids_BT, mask_BT = rows.ids_BT[:, used].clone(), rows.mask_BT[:, used].clone()
    ends = torch.tensor(stop, dtype=torch.long, device=ids_BT.device)
    stopped_B = (torch.isin(ids_BT, ends) & mask_BT).any(1)
    return Samples(
        ids_PL,
        mask_PL,
        torch.arange(len(ids_PL), device=ids_PL.device).repeat_interleave(samples),
        ids_BT,
        mask_BT,
        rows.logp_BT[:, used].clone(),
        rows.entropy_BT[:, used].clone(),
        tuple("stop" if stopped else "length" for stopped in stopped_B.tolist()),
    )


def pad_left(
    prompts: Sequence[Sequence[int]], columns: int, *, pad: int, device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor]:
    """Ids (P, columns) that end in the last column, and the mask that is True at real tokens."""
    ids_PL = torch.tensor([[pad] * (columns - len(prompt)) + list(prompt) for prompt in prompts], dtype=torch.long)
    lengths_P = torch.tensor([len(prompt) for prompt in prompts])
    mask_PL = torch.arange(columns) >= columns - lengths_P[:, None]
    return ids_PL.to(device), mask_PL.to(device)


def _check(
    model: LanguageModel, prompts: Sequence[Sequence[int]], seeds: Sequence[int], *, samples: int, max_tokens: int
) -> None:
    if not prompts or not all(len(prompt) for prompt in prompts):
        lengths = [len(prompt) for prompt in prompts]
        raise UsageError(
            f"sampling needs at least one prompt and one token in each, found prompts of {lengths[:8]} tokens"
        )
    if len(seeds) != len(prompts):
        raise UsageError(f"{len(prompts)} prompts need as many seeds, found {len(seeds)}")
    if samples < 1 or max_tokens < 1:
        raise UsageError(f"samples is {samples} and max_tokens is {max_tokens}: both must be 1 or more")
    longest = max(map(len, prompts))
    if longest + max_tokens > model.context:
        raise UsageError(
            f"a prompt of {longest} tokens and {max_tokens} new ones exceed this model's {model.context}: "
            f"use max_tokens <= {model.context - longest}, or shorter prompts"
        )
