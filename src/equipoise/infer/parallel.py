"""Parallel thinking: a token budget split over independent shorter completions and a vote, instead of one long one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from equipoise.base import Choice, Question
from equipoise.errors import UsageError
from equipoise.infer.ballots import elect, read_answers
from equipoise.infer.capped import Capped, Drawn, draw_capped
from equipoise.infer.checks import check_count
from equipoise.infer.metered import Metered


@dataclass(frozen=True, slots=True)
class Parallel:
    """z_1 … z_n drawn independently with Σ|z_i| ≤ B, then the most common answer (https://arxiv.org/abs/2506.04210).

    Each may take ⌊B/n⌋ tokens and is cut there. With `answer`, so many of them are kept for an answer that is forced where the
    thinking does not end by itself, as `Capped` does it: for models that think, and backends that continue a reply.
    """

    n: int = 8
    budget: int = 16384  # B: of all completions together
    answer: int = 0  # 0: what is cut has no answer and abstains
    start: str = "<think>"
    end: str = "</think>"
    cue: str | None = None
    native: bool = False

    def __post_init__(self) -> None:
        check_count("n", self.n)
        check_count("budget", self.budget)
        check_count("answer", self.answer, least=0)
        if self.budget // self.n <= self.answer:
            raise UsageError(
                f"a budget of {self.budget} tokens for n={self.n} is {self.budget // self.n} each, of which {self.answer} are "
                "kept for the answer: use fewer completions or a larger budget"
            )
        if self.native and not self.answer:
            raise UsageError(
                "native=True limits the thinking alone: say with answer=… how many tokens are for the answer"
            )

    async def __call__(self, question: Question, metered: Metered) -> Choice:
        share = min(self.budget // self.n, question.how.max_tokens)
        drawn, out, notes = await self._draw(replace(question, how=replace(question.how, max_tokens=share)), metered)
        return elect(question, metered, drawn, read_answers(question, drawn), out_of_budget=out, notes=notes)

    async def _draw(self, question: Question, metered: Metered) -> Drawn:
        if not self.answer:
            draw = metered.draw(question, n=self.n)
            return Drawn(await draw.completions(), draw.out_of_budget)
        tokens = question.how.max_tokens - self.answer
        if tokens < 1:
            raise UsageError(
                f"max_tokens of {question.how.max_tokens} leaves no thinking beside answer={self.answer}: raise it, or keep less"
            )
        cap = Capped(tokens, self.answer, start=self.start, end=self.end, cue=self.cue, native=self.native)
        return await draw_capped(question, metered, cap, n=self.n)
