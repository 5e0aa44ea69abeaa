"""A model in this process as a sampler: the small GPT, or any transformers causal LM. Axes: R rows of a draw, D width."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from equipoise.base import Chunk, Draw, Finish, Prompt, Sampling
from equipoise.errors import NoRoom, UsageError, unknown_name
from equipoise.models.decoding import Decoding, draw_uniforms
from equipoise.models.generate import pad_left
from equipoise.models.language_model import LanguageModel, Tokens, prefill
from equipoise.models.loaders import Loaded
from equipoise.models.proxy import ProxyModel
from equipoise.models.rows import Rows, Rules
from equipoise.models.thinking import Marks, ThinkingCap, marks_of
from equipoise.models.token_confidence import token_confidence
from equipoise.samplers.split_text import SplitText

ROOM = 128  # slots of the cache at first; it doubles when they are full
OWN = (
    "top_k",
    "min_p",
    "top_n_sigma",
    "order",
    "edt",
    "repel",
    "repel_first",
)  # of Sampling.extra; and alpha of a proxy


class InProcess:
    """Draws from a loaded model, `piece` tokens of every row at a time, in a worker thread: the event loop lives meanwhile.

    The completions of a seed are those that `models.generate` makes of it, whatever the pieces and whoever is drawn beside them.
    A model runs one batch at a time: the rows of one draw are a batch, and several draws take turns, a piece each. So a draw of
    sixteen is fast, and sixteen draws of one are not. The model goes on only when someone asks for the next piece, so that
    what is cancelled makes no more tokens; a draw that nobody reads costs nothing. `thinking`: the two tokens around the
    thinking, as ("<think>", "</think>"), which is then told apart and can have a budget; by default those of the tokenizer.
    """

    def __init__(self, loaded: Loaded, *, piece: int = 8, thinking: tuple[str, str] | None = None) -> None:
        if piece < 1:
            raise UsageError(f"piece is {piece}: a piece has 1 token or more")
        self.model: LanguageModel = loaded.model
        self.tokens: Tokens = loaded.tokens
        self.piece = piece
        self.marks = marks_of(loaded.tokens, thinking)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="in-process-model")

    def draw(self, prompt: Prompt, how: Sampling, *, n: int, seed: int, first: int = 0) -> Draw:
        """Text is continued; chat messages go through the tokenizer's template.

        `temperature` 0 is greedy; `extra` takes the other fields of `Decoding`, and `alpha` for a proxy-tuned model. Log-probs and
        entropies are those of the whole softmax at the temperature, token confidences (with `top_logprobs`) those of the model's
        own softmax, at temperature 1. A `thinking_budget` counts what stands between the marks; what they and the answer need is for
        `max_tokens` to leave. With `repel` the siblings are the completions of one draw.
        """
        return _ModelDraw(self, self.tokens.encode(prompt), how, n=n, seed=seed, first=first)


class _ModelDraw:
    """Completions of one prompt. All but `cancel` and `__anext__` runs in the worker thread."""

    def __init__(self, sampler: InProcess, ids: Sequence[int], how: Sampling, *, n: int, seed: int, first: int) -> None:
        if not 0 <= seed < 2**63:
            raise UsageError(f"a seed is {seed}: use 0 to 2^63 - 1")
        self._sampler, self._prompt, self._how = sampler, list(ids), how
        self._seed, self._numbers = seed, range(first, first + n)
        model = model_for(sampler.model, how)
        self._limit = room_for(model, ids, how)
        cap = cap_for(sampler.marks, how, [ids] * n, device=model.head.weight_VD.device)
        self._sure = TokenConfidences(model, how.top_logprobs) if how.top_logprobs else None
        self._rules = Rules(model, sampler.tokens.stop, decoding_of(how), self._sure, cap, siblings=n)
        self._rows: Rows | None = None
        inside = sampler.marks is not None and sampler.marks.open_after(ids)
        self._texts = [SplitText(sampler.tokens, how.stop, marks=sampler.marks, inside=inside) for _ in self._numbers]
        self._told = [0] * n  # tokens handed on
        self._live = set(range(n))  # those without a finish, in the worker's eyes
        self._why: dict[int, Finish] = {}
        self._ready: deque[Chunk] = deque()
        self._under_way: asyncio.Future[list[Chunk]] | None = None

    def __aiter__(self) -> _ModelDraw:
        return self

    def cancel(self, index: int, why: Finish) -> None:
        self._why.setdefault(index, why)

    async def __anext__(self) -> Chunk:
        while not self._ready:
            if self._under_way is None:
                if not self._live:
                    raise StopAsyncIteration
                loop = asyncio.get_running_loop()
                self._under_way = loop.run_in_executor(self._sampler._worker, self._advance, dict(self._why))
            # Shielded: whoever waits may be cancelled, the piece then comes to who asks next.
            self._ready += await asyncio.shield(self._under_way)
            self._under_way = None
        return self._ready.popleft()

    # --- in the worker thread

    @torch.no_grad()
    def _advance(self, cancelled: Mapping[int, Finish]) -> list[Chunk]:
        """Give up what was cancelled, make one piece of the others, and tell what is new."""
        chunks = [Chunk(index, finish=cancelled[index]) for index in sorted(self._live & set(cancelled))]
        self._live -= set(cancelled)
        if not self._live:
            self._rows = None
            return chunks
        model = self._rules.model
        was_training = model.training
        if was_training:
            model.train(False)
        try:
            rows = self._run(self._sampler.piece)
        finally:
            if was_training:
                model.train(True)
        chunks += [self._tell(rows, index) for index in sorted(self._live)]
        self._live -= {chunk.index for chunk in chunks if chunk.finish is not None}
        if not self._live:
            self._rows = None
        return chunks

    def _run(self, tokens: int) -> Rows:
        rows = self._rows
        if rows is None:
            rows = self._rows = self._start()
            tokens -= 1
        self._drop(rows)
        for _ in range(min(tokens, self._limit - int(rows.column_1))):
            if bool(rows.done_R.all()):
                break
            if int(rows.cache.slot_1) >= rows.cache.bias_BS.shape[1]:
                most = len(self._prompt) + self._limit - 1
                rows.cache = rows.cache.expand(1, room=min(rows.cache.bias_BS.shape[1], most - int(rows.cache.slot_1)))
            rows.advance(self._rules)
        return rows

    def _start(self) -> Rows:
        model, tokens, n = self._rules.model, self._sampler.tokens, len(self._numbers)
        device = model.head.weight_VD.device
        ids_1L, mask_1L = pad_left([self._prompt], len(self._prompt), pad=tokens.pad, device=device)
        hidden_1D, cache = prefill(model, ids_1L, mask_1L)
        uniform_BT = draw_uniforms([self._seed], samples=self._numbers.stop, n=self._limit, device=device)
        uniform_RT = uniform_BT[self._numbers.start :].clone()
        rows = Rows.start(cache.expand(n, room=min(ROOM, self._limit - 1)), uniform_RT, pad=tokens.pad)
        rows.pick(hidden_1D.repeat_interleave(n, dim=0), self._rules)
        return rows

    def _drop(self, rows: Rows) -> None:
        """Rows that are finished, cancelled or stopped by a text leave the batch."""
        live = torch.tensor(sorted(self._live), device=rows.index_R.device)
        rows.done_R |= ~torch.isin(rows.index_R, live)
        if bool(rows.done_R.any()):
            rows.drop_done()

    def _tell(self, rows: Rows, index: int) -> Chunk:
        start, end = self._told[index], int(rows.mask_BT[index].sum())
        ids = rows.ids_BT[index, start:end].tolist()
        logprobs = rows.logp_BT[index, start:end]
        if not bool(logprobs.isfinite().all()):
            raise FloatingPointError("a sampled token's log-prob is not finite: the model's weights have diverged")
        stopped = bool(ids) and ids[-1] in self._rules.stop
        finish: Finish | None = "stop" if stopped else "length" if end >= self._limit else None
        grown = self._texts[index].add(ids, last=finish is not None)
        if grown.stopped_at is not None:
            end, finish = start + grown.stopped_at, "stop"
        self._told[index] = end
        here, n = slice(start, end), end - start
        return Chunk(
            index,
            grown.text,
            grown.thinking,
            n_tokens=n,
            n_thinking=grown.n_thinking,
            token_ids=ids[:n],
            logprobs=logprobs[:n].tolist(),
            entropies=rows.entropy_BT[index, here].tolist(),
            token_confidences=None if self._sure is None else self._sure.of(index, here),
            prompt_tokens=len(self._prompt) if start == 0 else None,
            cached_tokens=(0 if index == 0 else len(self._prompt)) if start == 0 else None,  # the prompt runs once
            finish=finish,
        )


class TokenConfidences:
    """Watches sampling: −(1/k) Σ ln p of the k likeliest tokens at every position, of the model's own softmax, at temperature 1.

    k is at most the number of tokens that can be sampled at all: the others have no log-prob to average.
    """

    def __init__(self, model: LanguageModel, k: int) -> None:
        self._head = model.head
        bias_V = self._head.bias_V
        self._k = min(k, len(self._head.weight_VD) if bias_V is None else int(bias_V.isfinite().sum()))
        self._values_BT: torch.Tensor | None = None

    def __call__(self, rows: Rows, hidden_RD: torch.Tensor) -> None:
        if self._values_BT is None:
            self._values_BT = torch.zeros_like(rows.logp_BT)
        found_R = token_confidence(hidden_RD, self._head.weight_VD, k=self._k, bias_V=self._head.bias_V)
        self._values_BT[rows.index_R, rows.column_1] = found_R.float()

    def of(self, row: int, columns: slice) -> list[float]:
        assert self._values_BT is not None
        found: list[float] = self._values_BT[row, columns].tolist()
        return found


def room_for(model: LanguageModel, prompt: Sequence[int], how: Sampling) -> int:
    """Tokens that a completion may have: as asked, or up to the end of the model's context."""
    room = model.context - len(prompt)
    if not prompt or room < 1:
        raise NoRoom(
            f"a prompt of {len(prompt)} tokens for a model that reads {model.context}: "
            "give one of 1 token or more that leaves room for an answer"
        )
    return min(how.max_tokens, room)


def cap_for(
    marks: Marks | None, how: Sampling, prompts: Sequence[Sequence[int]], *, device: torch.device
) -> ThinkingCap | None:
    """What holds one row of each of these prompts to the thinking budget; None where there is none."""
    if how.thinking_budget is None:
        return None
    if marks is None:
        raise UsageError(
            f"a thinking budget of {how.thinking_budget} was asked of a model in this process whose thinking has no marks: "
            'name them, as thinking=("<think>", "</think>"), or use the strategy cap, which ends the thinking itself'
        )
    return ThinkingCap(marks, how.thinking_budget, [marks.open_after(prompt) for prompt in prompts], device=device)


def model_for(model: LanguageModel, how: Sampling) -> LanguageModel:
    """The model with the alpha that was asked for, where it is a proxy."""
    alpha = how.extra.get("alpha")
    if alpha is None:
        return model
    if not isinstance(model, ProxyModel):
        raise UsageError(
            f"alpha={alpha} was asked for, and this model is not proxy-tuned: name one as proxy:base=…,expert=…,anti=…"
        )
    return model.at(alpha)


def decoding_of(how: Sampling) -> Decoding:
    own: dict[str, Any] = {name: value for name, value in how.extra.items() if name != "alpha"}
    for name in own:
        if name not in OWN:
            raise unknown_name("sampling setting of a model in this process", name, OWN)
    if how.temperature == 0:
        return Decoding(**{**own, "top_k": 1}, top_p=how.top_p)
    return Decoding(temperature=how.temperature, top_p=how.top_p, **own)
