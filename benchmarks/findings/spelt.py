"""A language model's tokenizer, made to write as the small models do: a token for every character of a thought."""

from __future__ import annotations

import re
from collections.abc import Sequence

from equipoise.base import Prompt
from equipoise.errors import UsageError
from equipoise.lab.make_thinker import TOKENS
from equipoise.lab.search_traces import END, START
from equipoise.models.language_model import Tokens


class Spelt:
    """Characters of the thinker's alphabet are tokens by themselves; anything between them is as `inner` has it.

    Left to itself a tokenizer joins some of them, as in ")*" or "](": a mark, or the place where a thought is cut, would be
    inside a token. Budgets count the same things as with the packaged thinker.
    """

    thinking = (START, END)

    def __init__(self, inner: Tokens, *, alphabet: str = TOKENS.alphabet) -> None:
        self.inner = inner
        self._opening = len(inner.encode(""))
        self._ids = {character: self._of(character) for character in alphabet}
        joined = [character for character, ids in self._ids.items() if len(ids) != 1]
        if joined:
            raise UsageError(f"this tokenizer has no single token for {' '.join(joined)}: use a model that has")
        some = re.escape(alphabet)
        self._parts = re.compile(f"[{some}]|[^{some}]+")

    @property
    def pad(self) -> int:
        return self.inner.pad

    @property
    def stop(self) -> tuple[int, ...]:
        return self.inner.stop

    def encode(self, prompt: Prompt) -> list[int]:
        if not isinstance(prompt, str):
            raise UsageError("a spelt prompt is plain text, found chat messages: give it as one string")
        parts = self._parts.findall(prompt)
        return [token for part in parts for token in self._ids.get(part) or self._of(part)]

    def decode(self, ids: Sequence[int]) -> str:
        return self.inner.decode(ids)

    def _of(self, text: str) -> list[int]:
        return self.inner.encode(text)[self._opening :]
