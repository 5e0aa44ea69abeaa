"""Thoughts that go on past their own end, in one pass: where a model ends its thinking, other words are put in place of the end.

`lab.measure_thinker` does the same in turns, each a new call of the sampler; here a thought of n tokens takes n steps however often it
ends, which is what a language model can afford. Axes: P prompts, G thoughts of each, R = P · G rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from equipoise.errors import UsageError
from equipoise.lab.measure_thinker import ROWS, Thoughts
from equipoise.lab.search_traces import END, NEXT, START
from equipoise.models.decoding import Decoding, draw_uniforms
from equipoise.models.generate import pad_left
from equipoise.models.language_model import LanguageModel, Tokens, prefill
from equipoise.models.rows import Rows, Rules
from equipoise.tasks.task import mix_seed


class GoOn:
    """Reads the column that was sampled last: an end becomes the first token of `again`, the next columns the rest of it."""

    def __init__(self, ends: Sequence[int], again: Sequence[int], n_rows: int, *, device: torch.device) -> None:
        self._ends, self._again = (torch.tensor(list(ids), device=device) for ids in (ends, again))
        self._written_R = torch.zeros(n_rows, dtype=torch.long, device=device)  # tokens of `again`, 0 outside of it
        self.ended_R = torch.full_like(self._written_R, -1)  # tokens before the first end

    def pass_over(self, rows: Rows) -> None:
        column, inside_R = rows.column_1 - 1, self._written_R > 0
        ends_R = torch.isin(rows.last_R, self._ends)
        self.ended_R = torch.where(ends_R & (self.ended_R < 0), column, self.ended_R)
        instead_R = ends_R | inside_R
        token_R = torch.where(instead_R, self._again[self._written_R], rows.last_R)
        rows.last_R.copy_(token_R)
        rows.ids_BT[rows.index_R, column] = token_R
        self._written_R = torch.where(instead_R, (self._written_R + 1) % len(self._again), 0)


@torch.no_grad()
def think_on(
    model: LanguageModel,
    tokens: Tokens,
    prompts: Sequence[str],
    *,
    samples: int,
    most: int,
    seed: int,
    temperature: float = 1.0,
    again: str = NEXT,
    batch: int = ROWS,
) -> Thoughts:
    """`samples` thoughts of `most` tokens for every prompt, those of a prompt after one another; an end before that is passed over.

    Up to its first end a thought does not depend on `again`.
    """
    (start,), (end,) = tokens.encode(START), tokens.encode(END)
    read = [[*tokens.encode(prompt), start] for prompt in prompts]
    longest = max(map(len, read))
    if longest + most > model.context:
        raise UsageError(f"a prompt of {longest} tokens and {most} of thinking exceed this model's {model.context}")
    device, ends = model.head.weight_VD.device, (end, *tokens.stop)
    rules = Rules(model, (), Decoding(temperature=temperature))
    found: list[tuple[Tensor, Tensor]] = []
    was_training = model.training
    model.train(False)
    at_once = max(1, batch // samples)
    for first in range(0, len(read), at_once):
        part = read[first : first + at_once]
        ids_PL, mask_PL = pad_left(part, max(map(len, part)), pad=tokens.pad, device=device)
        hidden_PD, cache = prefill(model, ids_PL, mask_PL)
        seeds = [mix_seed("think", seed, first + place) >> 1 for place in range(len(part))]
        uniform_RT = draw_uniforms(seeds, samples=samples, n=most, device=device)
        rows = Rows.start(cache.expand(samples, room=most - 1), uniform_RT, pad=tokens.pad)
        going = GoOn(ends, tokens.encode(again), len(uniform_RT), device=device)
        rows.pick(hidden_PD.repeat_interleave(samples, dim=0), rules)
        going.pass_over(rows)
        for _ in range(1, most):
            rows.advance(rules)
            going.pass_over(rows)
        if not bool(rows.logp_BT.isfinite().all()):
            raise FloatingPointError("a sampled token's log-prob is not finite: the model's weights have diverged")
        found.append((rows.ids_BT.cpu(), going.ended_R.cpu()))
    model.train(was_training)
    return Thoughts(
        tuple(prompt for prompt in prompts for _ in range(samples)),
        tuple(ids for ids_RT, _ in found for ids in ids_RT.tolist()),
        tuple(None if end < 0 else end for _, ended_R in found for end in ended_R.tolist()),
    )
