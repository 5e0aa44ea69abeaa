"""A model in this process for many draws at once: those that wait together are one batch. Axes: R rows of a batch.

Searches ask for one reply to each of many prompts, and `InProcess`, which runs the rows of one draw together, then runs rows one by
one. Here a batch is made of what several draws, of several questions, wait for. It is written whole: there is nothing to cancel
in it, and no piece before the end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import torch

from equipoise.base import Chunk, Draw, Finish, Prompt, Sampling
from equipoise.errors import UsageError
from equipoise.models.decoding import draw_uniforms
from equipoise.models.generate import finish_rows, pad_left
from equipoise.models.language_model import LanguageModel, Tokens, prefill
from equipoise.models.loaders import Loaded
from equipoise.models.rows import Rows, Rules
from equipoise.models.thinking import marks_of
from equipoise.samplers.in_process import decoding_of, model_for, room_for
from equipoise.samplers.split_text import SplitText

WAIT = 0.002  # seconds after the first draw in which others may join its batch


class Batched:
    """The completions of a seed are those that `InProcess` draws, up to rounding. No log-prob but that of the sampled tokens."""

    def __init__(self, loaded: Loaded, *, rows: int = 4096) -> None:
        self.model: LanguageModel = loaded.model
        self.tokens: Tokens = loaded.tokens
        self.rows = rows  # of one batch, at most
        self.marks = marks_of(loaded.tokens, None)
        self._waiting: list[_BatchedDraw] = []
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="batched-model")
        self._runs: set[asyncio.Task[None]] = set()

    def draw(self, prompt: Prompt, how: Sampling, *, n: int, seed: int, first: int = 0) -> Draw:
        if how.top_logprobs is not None or how.thinking_budget is not None:
            raise UsageError("confidences and thinking budgets were asked of draws in batches: use InProcess")
        return _BatchedDraw(self, self.tokens.encode(prompt), how, n=n, seed=seed, first=first)

    def _join(self, draw: _BatchedDraw) -> None:
        self._waiting.append(draw)
        if len(self._waiting) == 1:
            run = asyncio.ensure_future(self._run())
            self._runs.add(run)
            run.add_done_callback(self._runs.discard)

    async def _run(self) -> None:
        """What has come until now, in batches of draws that are alike."""
        await asyncio.sleep(WAIT)
        draws, self._waiting = self._waiting, []
        alike: dict[tuple[int, int, str], list[_BatchedDraw]] = {}
        for draw in draws:
            alike.setdefault((draw.n, draw.limit, repr(draw.how)), []).append(draw)
        loop = asyncio.get_running_loop()
        for same in alike.values():
            most = max(1, self.rows // same[0].n)
            for start in range(0, len(same), most):
                part = [draw for draw in same[start : start + most] if len(draw.why) < draw.n]
                given_up = [draw for draw in same[start : start + most] if len(draw.why) == draw.n]
                for draw in given_up:
                    draw.take([Chunk(index, finish=draw.why[index]) for index in range(draw.n)])
                if not part:
                    continue
                try:
                    written = await loop.run_in_executor(self._worker, self._write, part)
                except BaseException as problem:
                    for draw in part:
                        draw.fail(problem)
                    if not isinstance(problem, Exception):
                        raise
                    continue
                for draw, chunks in zip(part, written, strict=True):
                    draw.take(chunks)

    @torch.no_grad()
    def _write(self, draws: Sequence[_BatchedDraw]) -> list[list[Chunk]]:
        """In the worker thread: every completion of these draws, which have one number of completions and one limit."""
        n, limit, how = draws[0].n, draws[0].limit, draws[0].how
        model = model_for(self.model, how)
        device = model.head.weight_VD.device
        rules = Rules(model, self.tokens.stop, decoding_of(how), siblings=n)
        was_training = model.training
        model.train(False)
        try:
            ids_PL, mask_PL = pad_left(
                [draw.ids for draw in draws], max(len(draw.ids) for draw in draws), pad=self.tokens.pad, device=device
            )
            hidden_PD, cache = prefill(model, ids_PL, mask_PL)
            uniforms = [
                draw_uniforms([draw.seed], samples=draw.first + n, n=limit, device=device)[draw.first :]
                for draw in draws
            ]
            rows = Rows.start(cache.expand(n, room=limit - 1), torch.cat(uniforms), pad=self.tokens.pad)
            rows.pick(hidden_PD.repeat_interleave(n, dim=0), rules)
            finish_rows(rows, rules)
        finally:
            model.train(was_training)
        ids_R, ends_R = rows.ids_BT.tolist(), rows.mask_BT.sum(1).tolist()
        logp_R = rows.logp_BT.tolist()
        return [
            [
                self._tell(draw, index, ids_R[row][: ends_R[row]], logp_R[row][: ends_R[row]])
                for index, row in enumerate(range(place * n, (place + 1) * n))
            ]
            for place, draw in enumerate(draws)
        ]

    def _tell(self, draw: _BatchedDraw, index: int, ids: list[int], logprobs: list[float]) -> Chunk:
        inside = self.marks is not None and self.marks.open_after(draw.ids)
        grown = SplitText(self.tokens, draw.how.stop, marks=self.marks, inside=inside).add(ids, last=True)
        end = len(ids) if grown.stopped_at is None else grown.stopped_at
        stopped = grown.stopped_at is not None or (bool(ids) and ids[-1] in self.tokens.stop)
        return Chunk(
            index,
            grown.text,
            grown.thinking,
            n_tokens=end,
            n_thinking=grown.n_thinking,
            token_ids=ids[:end],
            logprobs=logprobs[:end],
            prompt_tokens=len(draw.ids),
            cached_tokens=0 if index == 0 else len(draw.ids),
            finish="stop" if stopped else "length",
        )


class _BatchedDraw:
    def __init__(self, sampler: Batched, ids: Sequence[int], how: Sampling, *, n: int, seed: int, first: int) -> None:
        self._sampler, self.ids, self.how, self.n, self.seed, self.first = sampler, list(ids), how, n, seed, first
        self.limit = room_for(sampler.model, ids, how)
        self.why: dict[int, Finish] = {}
        self._chunks: deque[Chunk] = deque()
        self._ready: asyncio.Future[None] | None = None
        self._left = n

    def __aiter__(self) -> _BatchedDraw:
        return self

    def cancel(self, index: int, why: Finish) -> None:
        self.why.setdefault(index, why)

    async def __anext__(self) -> Chunk:
        if not self._left:
            raise StopAsyncIteration
        if self._ready is None:
            self._ready = asyncio.get_running_loop().create_future()
            self._sampler._join(self)
        await asyncio.shield(self._ready)
        self._left -= 1
        chunk = self._chunks.popleft()
        return replace(chunk, finish=self.why[chunk.index]) if chunk.index in self.why else chunk

    def take(self, chunks: Sequence[Chunk]) -> None:
        self._chunks += chunks
        if self._ready is not None and not self._ready.done():
            self._ready.set_result(None)

    def fail(self, problem: BaseException) -> None:
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(problem)
