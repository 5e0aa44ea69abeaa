"""A tool-using agent with two budgets, tokens and calls, that is told what is left of both and stops when a call is not worth it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from equipoise.base import Choice, Completion, Prompt, Question, Sampling
from equipoise.errors import UsageError
from equipoise.infer.ballots import elect, read_answers
from equipoise.infer.call_value import unsettled_gain, worth_a_call
from equipoise.infer.calls import CallLedger, show_left
from equipoise.infer.checks import check_count
from equipoise.infer.metered import Metered
from equipoise.infer.prompts import extend, fence
from equipoise.measures.votes import tally_votes

MAX_REPLY = 20_000  # characters of a tool's reply that are shown


@dataclass(frozen=True, slots=True)
class Agent:
    """One reply in which `<search>words</search>` calls the question's tool of that name, at most `calls` times.

    After every reply of a tool the agent reads what is left of its calls and tokens (`show`; Budget Tracker,
    https://arxiv.org/abs/2511.17006). With `probes`, that many trial answers are drawn after each call, in the probe line, and the
    agent is made to answer when a further call is not worth `price` per token of its cost: see `call_value`. A call that is
    asked for when none is left is not made: it answers. `answer` tokens are kept for that.
    """

    calls: int = 10
    show: bool = True
    answer: int = 64
    probes: int = 0
    price: float = 1e-4  # chance of being right that a token must add
    call_tokens: int = 100  # what a call costs besides, in tokens
    cue: str = "\nWith what is known so far, the answer is: "
    budget_line: str = "\nWhat is left: {left}\n"

    def __post_init__(self) -> None:
        check_count("calls", self.calls, least=0)
        check_count("answer", self.answer)
        check_count("probes", self.probes, least=0)
        check_count("call_tokens", self.call_tokens, least=0)
        if self.price < 0:
            raise UsageError(f"price is 0 or more, found {self.price}")

    async def __call__(self, question: Question, metered: Metered) -> Choice:
        talk = _Talk(question, metered, CallLedger(self.calls))
        stopped_by, cut = "", False
        if self.show and question.tools:
            talk.said += self._left(talk)
        while True:
            part = await talk.turn(keep=self.answer if question.tools else 0)
            if part is None or not (call := find_call(part.text or "", question.tools)):
                cut = part is None and talk.out_of_budget and bool(question.tools)  # what was kept is for this
                break
            if not talk.calls.reserve(call.tool):
                stopped_by = "calls"
                break
            talk.call(call)
            talk.said += self._left(talk) if self.show else ""
            if self.probes and not await self._worth_it(talk):
                stopped_by = "value"
                break
        if stopped_by or cut:
            await talk.answer_now(self.cue, self.answer)
        return self._conclude(talk, stopped_by)

    def _left(self, talk: _Talk) -> str:
        return self.budget_line.replace("{left}", show_left(talk.calls, talk.question.tools, talk.metered.ledger.left))

    async def _worth_it(self, talk: _Talk) -> bool:
        agreement = await talk.try_out(self.cue, n=self.probes, tokens=self.answer)
        made = talk.calls.made.total()
        if agreement is None:  # nothing is left to ask with
            return False
        gain = unsettled_gain(agreement, fresh=talk.fresh, calls=made)
        cost = self.call_tokens + talk.metered.ledger.spent.generated / made
        return worth_a_call(gain, cost=cost, price=self.price, budget=self.calls, left=self.calls - made)

    def _conclude(self, talk: _Talk, stopped_by: str) -> Choice:
        drawn = talk.completions()
        made = ", ".join(f"{tool}: {count} of {self.calls} calls" for tool, count in talk.calls.made.items())
        notes = (made,) if made else ()
        choice = elect(
            talk.question,
            talk.metered,
            drawn,
            read_answers(talk.question, drawn),
            out_of_budget=talk.out_of_budget,
            notes=notes,
        )
        plain = choice.stopped_by == "finished" and stopped_by
        return replace(choice, stopped_by=stopped_by) if plain else choice


@dataclass(frozen=True, slots=True)
class Call:
    tool: str
    argument: str


def find_call(text: str, tools: Mapping[str, Any]) -> Call | None:
    """The call with which a text ends: a tool's tag that was opened, and at most just closed."""
    if not tools:
        return None
    names = "|".join(re.escape(name) for name in tools)
    found = re.search(rf"<({names})>((?:(?!</?(?:{names})>).)*)(?:</\1>)?\s*\Z", text, re.DOTALL)
    return Call(found[1], found[2].strip()) if found else None


@dataclass(slots=True)
class _Talk:
    """What was said so far: the model's turns, the tools' replies and the budget lines between them."""

    question: Question
    metered: Metered
    calls: CallLedger
    said: str = ""
    parts: list[Completion] = field(default_factory=list)
    last: Completion | None = None  # said since the last call
    made: list[dict[str, str]] = field(default_factory=list)
    fresh: int = 0  # calls whose reply was new
    out_of_budget: bool = False

    @property
    def n_tokens(self) -> int:
        return sum(part.n_tokens or 0 for part in self.parts)

    async def turn(self, *, keep: int) -> Completion | None:
        """The model's next words, up to a call or to the end; None: nothing may be drawn any more."""
        left = self.question.how.max_tokens - self.n_tokens
        if left < 1:
            return None
        stop = (*self.question.how.stop, *(f"</{tool}>" for tool in self.question.tools))
        return await self._draw(replace(self.question.how, max_tokens=left, stop=stop), keep=keep)

    async def answer_now(self, cue: str, tokens: int) -> None:
        self.said, self.last = self.said + cue, None
        await self._draw(replace(self.question.how, max_tokens=tokens), keep=0)

    async def try_out(self, cue: str, *, n: int, tokens: int) -> float | None:
        """The share of the most common of n trial answers; None: none could be drawn."""
        how = Sampling(max_tokens=tokens, temperature=self.question.how.temperature, extra=self.question.how.extra)
        draw = self.metered.draw(self.question, n=n, kind="probe", prompt=self._prompt(cue), how=how, keep=tokens)
        trials = await draw.completions()
        votes = tally_votes(read_answers(self.question, trials))
        return max(votes.counts.values(), default=0.0) / len(trials) if trials else None

    def call(self, call: Call) -> None:
        """Make a call that was reserved, and say its reply."""
        try:
            reply = self.question.tools[call.tool](call.argument)[:MAX_REPLY]
        except BaseException:
            self.calls.release(call.tool)
            raise
        self.calls.commit(call.tool)
        self.fresh += reply not in [earlier["reply"] for earlier in self.made]
        self.made.append({"tool": call.tool, "argument": call.argument, "reply": reply})
        closed = self.said.rstrip().endswith(f"</{call.tool}>")
        self.said += f"{'' if closed else f'</{call.tool}>'}\n{fence('reply', reply)}"
        self.last = None

    def completions(self) -> list[Completion]:
        """The whole reply as one completion: its text is what was said after the last call."""
        if not self.parts:
            return []
        last = Completion("", finish="budget") if self.last is None else self.last
        if len(self.parts) == 1:
            return [last]
        return [
            Completion(
                last.text,
                thinking=last.thinking,
                n_tokens=self.n_tokens,
                finish=last.finish,
                tool_calls=tuple(self.made) or last.tool_calls,
                grade=last.grade,
            )
        ]

    async def _draw(self, how: Sampling, *, keep: int) -> Completion | None:
        draw = self.metered.draw(self.question, prompt=self._prompt(), how=how, keep=keep)
        drawn: Sequence[Completion] = await draw.completions()
        self.out_of_budget |= draw.out_of_budget
        if not drawn:
            return None
        self.last = drawn[0]
        self.parts.append(drawn[0])
        self.said += drawn[0].text or ""
        return drawn[0] if drawn[0].finish == "stop" else None

    def _prompt(self, more: str = "") -> Prompt:
        said = self.said + more
        return extend(self.question.prompt, said) if said else self.question.prompt
