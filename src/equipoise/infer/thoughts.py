"""One completion drawn in several requests: what it has thought, what it has answered, and how it is continued.

Thinking arrives apart from the answer (`Completion.thinking`) or inside the text, up to an end marker; both are kept apart here.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from equipoise.base import Completion, Finish, Prompt
from equipoise.infer.metered import MeteredDraw, join_completions
from equipoise.infer.prompts import extend


@dataclass(frozen=True, slots=True)
class Markers:
    """Tags stand on lines of their own, as chat templates write them; a marker of one character, a small model's, does not."""

    start: str
    end: str
    cue: str | None = None  # said after an end that was forced

    def opening(self) -> str:
        return self.start if len(self.start) == 1 else f"{self.start}\n"

    def closing(self, thinking: str) -> str:
        if len(self.end) == 1:
            return self.end
        newline = "" if thinking.endswith("\n") else "\n"
        return f"{newline}{self.end}\n\n"


@dataclass(slots=True)
class Thought:
    """A completion in the making."""

    markers: Markers
    thinking: str = ""
    text: str = ""
    closed: bool = False  # the thinking has ended
    finish: Finish | None = None
    parts: list[Completion] = field(default_factory=list)
    apart: bool = False  # the backend tells thinking from answer
    waits: int = 0
    _between: str = ""  # what stands between thinking and answer

    @property
    def n_tokens(self) -> int:
        return sum(part.n_tokens or 0 for part in self.parts)

    @property
    def cut(self) -> bool:
        return self.finish in ("length", "budget")

    @property
    def alive(self) -> bool:
        """May be continued: nobody gave it up and its requests did not fail."""
        return self.finish is None or self.cut or self.finish == "stop"

    @property
    def answered(self) -> bool:
        # One that was recorded with its grade is whole, also where its text was not kept.
        whole = bool(self.text.strip()) or any(part.grade is not None for part in self.parts)
        return self.finish == "tool" or (self.closed and self.finish == "stop" and whole)

    def take(self, part: Completion, *, stops_at_end: bool) -> None:
        """Add what a request brought. `stops_at_end`: it was to stop where the thinking ends, and all of it is thinking."""
        self.parts.append(part)
        self.finish = part.finish
        said = part.text or ""
        if self.closed:
            # Some reasoning parsers call everything thinking that has no end marker after it: here it is the answer.
            self.text += said or part.thinking or ""
            return
        if part.thinking:
            self.apart = True
            self.thinking += part.thinking
            if not stops_at_end and (said or part.finish == "stop"):
                self._close(said, self.markers.closing(self.thinking))
            return
        before, marker, after = said.partition(self.markers.end)
        if stops_at_end or (not marker and (part.finish != "stop" or self.thinking)):
            self.thinking += before
        elif marker:
            self.thinking += before
            self._close(after, self.markers.end)
        else:  # it ended without any thinking
            self._close(said, "")

    def wait(self, word: str) -> None:
        self.thinking += word
        self.waits += 1

    def force_end(self) -> None:
        """The end marker, and the cue after it, in place of more thinking."""
        self._close(self.markers.cue or "", self.markers.closing(self.thinking))

    def prompt(self, prompt: Prompt) -> Prompt:
        """The question's prompt with all that was said so far."""
        return extend(prompt, f"{self._opening(prompt)}{self.thinking}{self._between}{self.text}")

    def completion(self) -> Completion:
        thinking = self.thinking.lstrip().removeprefix(self.markers.start)
        whole = join_completions(self.parts, self.finish)
        return replace(whole, text=self.text.lstrip("\n"), thinking=thinking or None)

    def _close(self, answer: str, between: str) -> None:
        self.closed, self.text, self._between = True, answer, between

    def _opening(self, prompt: Prompt) -> str:
        """The start marker, where something was thought but neither prompt nor reply opened it visibly."""
        start = self.markers.start
        said = prompt if isinstance(prompt, str) else str(prompt[-1].get("content") or "") if prompt else ""
        open_already = said.rstrip().endswith(start) or self.thinking.lstrip().startswith(start)
        # The model continued this very text: it needs no marker that it did not see. Messages went through a template,
        # which may have opened the thinking unseen, and does not where it continues a message.
        as_seen = isinstance(prompt, str) and not self.apart and self.thinking
        no_thinking = not self._between and not self.thinking
        return "" if not start or open_already or as_seen or no_thinking else self.markers.opening()


async def collect(draw: MeteredDraw, end: str, *, stops_at_end: bool = False) -> list[Completion]:
    """All completions of a draw. Thinking inside the text is told to the ledger, to the piece in which its end arrives."""
    made: dict[int, int] = {}
    tails: dict[int, str] = {}
    ended: dict[int, int] = {}  # completion → tokens up to its end of thinking
    told: set[int] = set()  # those whose thinking the backend counts itself
    async with draw:
        async for chunk in draw:
            i = chunk.index
            if chunk.restart:
                made[i], tails[i] = 0, ""
                ended.pop(i, None)
            if chunk.n_thinking or chunk.thinking:
                told.add(i)
            made[i] = made.get(i, 0) + chunk.n_tokens
            tail = tails.get(i, "") + chunk.text
            if i not in ended and end in tail:
                ended[i] = made[i]
            tails[i] = tail[-len(end) :]
    for i, completion in draw.done.items():
        still_thinking = stops_at_end or completion.finish in ("length", "budget")
        if i not in told:
            draw.tell_thinking(i, ended.get(i, made[i] if still_thinking else 0))
    return [draw.done[i] for i in sorted(draw.done)]
