"""A tokenizer of single characters: its alphabet is its whole vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from equipoise.base import Prompt
from equipoise.errors import UsageError

PAD, END = 0, 1
FIRST = 2  # id of the alphabet's first character


@dataclass(frozen=True, slots=True)
class Characters:
    """Id 0 pads, id 1 ends a completion, ids from 2 are the characters of `alphabet` in order."""

    alphabet: str
    thinking: tuple[str, str] | None = None  # the characters that open and close the thinking
    _ids: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.alphabet or len(set(self.alphabet)) < len(self.alphabet):
            raise UsageError(f"an alphabet has each character once and is not empty, found {self.alphabet!r}")
        if self.thinking is not None and not (
            len(set(self.thinking)) == 2 and set(self.thinking) <= set(self.alphabet)
        ):
            raise UsageError(
                f"thinking is opened and closed by two characters of the alphabet {self.alphabet!r}, found {self.thinking!r}"
            )
        object.__setattr__(self, "_ids", {character: FIRST + i for i, character in enumerate(self.alphabet)})

    @property
    def size(self) -> int:
        return FIRST + len(self.alphabet)

    @property
    def pad(self) -> int:
        return PAD

    @property
    def stop(self) -> tuple[int, ...]:
        return (END,)

    def encode(self, prompt: Prompt) -> list[int]:
        if not isinstance(prompt, str):
            raise UsageError("a character model reads plain text, found chat messages: give the prompt as one string")
        try:
            return [self._ids[character] for character in prompt]
        except KeyError as missing:
            raise UsageError(
                f"no token for {missing.args[0]!r} in {prompt!r}: this model reads only {self.alphabet!r}, another has to be given for words"
            ) from None

    def decode(self, ids: Sequence[int]) -> str:
        """The text up to the first end; padding is left out."""
        text = []
        for token in ids:
            if token == END:
                break
            if not 0 <= token < self.size:
                raise UsageError(f"no character for token {token}: this model's ids are 0 to {self.size - 1}")
            if token != PAD:
                text.append(self.alphabet[token - FIRST])
        return "".join(text)
