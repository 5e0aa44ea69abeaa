"""Traces that run side by side and are asked for a trial answer every so many tokens: what strategies that look inside them share.

A trial answer is what the model says when its thinking is ended where it stands. Its tokens are in the probe line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import exp, fsum
from typing import Protocol

from equipoise.base import Answer, Completion, Prompt, Question, Sampling
from equipoise.infer.ballots import read_one
from equipoise.infer.metered import Metered
from equipoise.infer.prompts import extend
from equipoise.infer.steps import Branch, Stepping
from equipoise.infer.thoughts import Markers
from equipoise.infer.together import together


@dataclass(frozen=True, slots=True)
class Trial:
    """A trial answer, and how probable its tokens were; None: it gave none, or the backend sent no log-probs."""

    answer: Answer | None
    confidence: float | None
    text: str = ""


@dataclass(slots=True)
class Trace:
    """One completion under way, with its trial answers so far."""

    branch: Branch
    trials: list[Trial] = field(default_factory=list)
    pruned: bool = False

    @property
    def running(self) -> bool:
        return self.branch.finish is None and not self.pruned

    @property
    def cut(self) -> bool:
        """Not finished by itself: what it would answer is what its last trial says."""
        return self.branch.finish in (None, "length", "budget")

    def answer(self, question: Question) -> Answer | None:
        """Its own answer, or that of its last trial where it has none yet."""
        own = None if self.branch.finish is None else read_one(question, self.branch.completion())
        return self.trials[-1].answer if own is None and self.cut and self.trials else own

    def completion(self, question: Question) -> Completion:
        """As it stands, or ended where its last trial answer was given."""
        whole = self.branch.completion()
        if not self.cut or not self.trials or (self.branch.finish and read_one(question, whole) is not None):
            return whole
        said = self.branch.thinking + self.branch.text
        return replace(whole, thinking=said or None, text=self.trials[-1].text, finish="consensus")


class TrialSettings(Protocol):
    """What a strategy that asks for trial answers is set with."""

    @property
    def every(self) -> int: ...
    @property
    def probe_tokens(self) -> int: ...
    @property
    def start(self) -> str: ...
    @property
    def end(self) -> str: ...
    @property
    def cue(self) -> str | None: ...


@dataclass(slots=True)
class Trials:
    """The traces of one question, advanced `every` tokens at a time, all of them together."""

    stepping: Stepping
    cue: str | None  # said after the end of the thinking, before the trial answer
    probe_tokens: int
    traces: list[Trace] = field(default_factory=list)

    @classmethod
    def of(cls, settings: TrialSettings, question: Question, metered: Metered) -> Trials:
        markers = Markers(settings.start, settings.end)
        return cls(Stepping(question, metered, settings.every, "", markers), settings.cue, settings.probe_tokens)

    @property
    def question(self) -> Question:
        return self.stepping.question

    @property
    def over(self) -> bool:
        """Nothing may be drawn any more."""
        return self.stepping.out_of_budget or self.stepping.metered.interrupted

    async def begin(self, n: int) -> list[Trace]:
        """`n` further traces, each up to its first checkpoint."""
        started = [Trace(branch) for branch in (await self.stepping.go_on([Branch()], [n]))[0]]
        self.traces += started
        return started

    async def go_on(self, traces: Sequence[Trace]) -> None:
        """Those of them that still run, to their next checkpoint."""
        running = [trace for trace in traces if trace.running]
        grown = await self.stepping.go_on([trace.branch for trace in running], [1] * len(running))
        for trace, ways in zip(running, grown, strict=True):
            trace.branch = ways[0] if ways else replace(trace.branch, finish="budget")

    async def try_out(self, traces: Sequence[Trace]) -> None:
        """A trial answer of each that runs. One that could not be asked for any more stays as it was."""
        running = [trace for trace in traces if trace.running]
        metered, how = self.stepping.metered, self.question.how
        asked = Sampling(max_tokens=self.probe_tokens, temperature=0.0, top_logprobs=1, extra=how.extra, stop=how.stop)
        draws = [
            metered.draw(self.question, kind="probe", prompt=self._cut_short(trace), how=asked) for trace in running
        ]
        found = await together(draw.completions() for draw in draws)
        self.stepping.out_of_budget |= any(draw.out_of_budget for draw in draws)
        for trace, replies in zip(running, found, strict=True):
            if replies:
                trace.trials.append(self._read(replies[0]))

    def _cut_short(self, trace: Trace) -> Prompt:
        branch, markers = trace.branch, self.stepping.markers
        said = branch.prompt(self.question.prompt, markers)
        thinks = branch.thinking and not branch.text
        return extend(said, f"{markers.closing(branch.thinking) if thinks else ''}{self.cue or ''}")

    def _read(self, reply: Completion) -> Trial:
        # A short trial may be cut after its answer: what was said is then all there is to read.
        whole = replace(reply, finish="stop") if reply.finish in ("length", "budget") else reply
        sure = exp(min(0.0, fsum(reply.logprobs) / len(reply.logprobs))) if reply.logprobs else None
        return Trial(read_one(self.question, whole), sure, reply.text or "")
