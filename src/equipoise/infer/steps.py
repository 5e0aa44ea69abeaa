"""Replies in the making, step by step: what was said so far is continued, several ways at once.

A step ends with a separator, or after a number of tokens. The separator is looked for as pieces arrive, since servers do not say
whether a stop text or the model itself ended a reply; what a piece brings beyond it is dropped, and was spent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from equipoise.base import Completion, Finish, Prompt, Question, Sampling
from equipoise.infer.metered import Metered, MeteredDraw, join_completions
from equipoise.infer.prompts import extend
from equipoise.infer.thoughts import Markers
from equipoise.infer.together import together


@dataclass(frozen=True, slots=True)
class Branch:
    """A reply up to some step. `finish` None: it can go on."""

    thinking: str = ""
    text: str = ""
    finish: Finish | None = None
    steps: tuple[Completion, ...] = ()
    score: float | None = None

    @property
    def n_tokens(self) -> int:
        return sum(step.n_tokens or 0 for step in self.steps)

    @property
    def failed(self) -> bool:
        return self.finish in ("error", "cancelled")

    @property
    def finished(self) -> bool:
        return self.finish in ("stop", "tool")

    def prompt(self, prompt: Prompt, markers: Markers) -> Prompt:
        """The question's prompt with all that was said so far."""
        if not self.steps:
            return prompt
        if not self.thinking:
            return extend(prompt, self.text)
        closing = markers.closing(self.thinking) if self.text else ""
        return extend(prompt, f"{markers.opening()}{self.thinking}{closing}{self.text}")

    def take(self, step: Completion) -> Branch:
        """This reply with one more step, which may be its last."""
        return replace(
            self,
            thinking=self.thinking + (step.thinking or ""),
            text=self.text + (step.text or ""),
            finish=step.finish,
            steps=(*self.steps, step),
            score=None,
        )

    def completion(self) -> Completion:
        """All of it as one completion; one that was not finished is of the length it has."""
        whole = join_completions(self.steps, self.finish or "length")
        return replace(whole, text=self.text, thinking=self.thinking or None)


@dataclass(slots=True)
class Stepping:
    """Draws the steps of one question's replies. Axes of what it gives: a list for every branch, a branch for each way on."""

    question: Question
    metered: Metered
    tokens: int  # of a step
    separator: str = ""  # "": a step ends with its tokens
    markers: Markers = field(default_factory=lambda: Markers("<think>", "</think>"))
    top_logprobs: int | None = None
    out_of_budget: bool = False

    async def go_on(
        self, branches: Sequence[Branch], ways: Sequence[int], *, to_end: bool = False
    ) -> list[list[Branch]]:
        """`ways[i]` different next steps of branch i, or fewer where the budget ends. `to_end`: one step up to the end of the reply."""
        rows = [(branch, n) for branch, n in zip(branches, ways, strict=True) if n]
        draws = [self._draw(branch, n, to_end) for branch, n in rows]
        found = await together(_collect(draw, "" if to_end else self.separator) for draw in draws)
        self.out_of_budget |= any(draw.out_of_budget for draw in draws)
        grown = {
            id(branch): [self._grow(branch, step, draw.how.max_tokens) for step in steps]
            for (branch, _), draw, steps in zip(rows, draws, found, strict=True)
        }
        return [grown.get(id(branch), []) for branch in branches]

    def _draw(self, branch: Branch, n: int, to_end: bool) -> MeteredDraw:
        left = self.question.how.max_tokens - branch.n_tokens
        how = replace(self._how(), max_tokens=left if to_end else min(self.tokens, left))
        return self.metered.draw(self.question, n=n, prompt=branch.prompt(self.question.prompt, self.markers), how=how)

    def _how(self) -> Sampling:
        how = self.question.how
        return how if self.top_logprobs is None else replace(how, top_logprobs=self.top_logprobs)

    def _grow(self, branch: Branch, step: Completion, asked: int) -> Branch:
        """A step that ran to its tokens can be gone on from, while the reply has tokens left.

        One that was cut before them has come to the end of what the backend reads.
        """
        grown = branch.take(step)
        can_go_on = (step.n_tokens or 0) >= asked and grown.n_tokens < self.question.how.max_tokens
        return replace(grown, finish=None) if step.finish == "length" and can_go_on else grown


async def _collect(draw: MeteredDraw, separator: str) -> list[Completion]:
    """The completions of a draw, each up to and with its first separator that something stands before."""
    said: dict[int, list[str]] = {}  # thinking and text so far
    made: dict[int, int] = {}
    cuts: dict[int, _Cut] = {}
    async with draw:
        async for chunk in draw:
            i = chunk.index
            if chunk.restart:
                said.pop(i, None)
                made.pop(i, None)
                cuts.pop(i, None)
            so_far = said.setdefault(i, ["", ""])
            so_far[0] += chunk.thinking
            so_far[1] += chunk.text
            made[i] = made.get(i, 0) + chunk.n_tokens
            if not separator or i in cuts:
                continue
            end = _end_of_step(so_far[0] + so_far[1], separator)
            whole = chunk.finish is not None and end == len(so_far[0]) + len(so_far[1])
            if end is not None and not whole:
                cuts[i] = _Cut(end, made[i])
                draw.cancel(i, "stop")
    return [_cut(done, cuts[i]) if i in cuts else done for i, done in sorted(draw.done.items())]


@dataclass(frozen=True, slots=True)
class _Cut:
    characters: int  # of thinking and text that belong to the step
    tokens: int  # up to the piece in which it ended


def _end_of_step(said: str, separator: str) -> int | None:
    start = len(said) - len(said.lstrip())
    at = said.find(separator, start)
    while at == start:  # nothing stands before it
        start += len(separator)
        at = said.find(separator, start)
    return None if at < 0 else at + len(separator)


def _cut(done: Completion, cut: _Cut) -> Completion:
    thinking, text = done.thinking or "", done.text or ""
    over = (done.n_tokens or 0) > cut.tokens or len(thinking) + len(text) > cut.characters
    thought = thinking[: cut.characters]
    lists = {"token_ids": None, "token_texts": None, "entropies": None} if over else {}
    sure, logprobs = done.token_confidences, done.logprobs
    return replace(
        done,
        thinking=thought or None,
        text=text[: cut.characters - len(thought)],
        finish="error" if done.finish == "error" else "cancelled" if done.finish == "cancelled" else None,
        token_confidences=None if sure is None else sure[: cut.tokens],
        logprobs=None if logprobs is None else logprobs[: cut.tokens],
        **lists,  # type: ignore[arg-type]
    )
