"""Events that are like one before them but for their text, known without parsing: most of a stream is.

Servers write the chunks of one stream with the same fields in the same order, so that two of them differ in one string. What
was learned from an event that was parsed holds for every other with the same bytes around that string.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from equipoise.gateway.replies import write_event

# The inside of a JSON string that is not empty, as json.loads takes it but for the check of UTF-8.
_INSIDE = re.compile(rb'(?:[^"\\\x00-\x1f]+|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})+')
_NAMES = {"content": "answer", "text": "answer", "reasoning": "thinking", "reasoning_content": "thinking"}
_PLACE = "<~ the text goes here ~>"


@dataclass(frozen=True, slots=True)
class Shape:
    """The bytes before and after the text of an event as it is sent, and those around it in what the caller gets."""

    index: int  # of the choice
    line: Literal["answer", "thinking"]
    before: bytes
    after: bytes
    told: tuple[bytes, ...] | None  # None: what was sent

    def fill(self, data: bytes) -> bytes | None:
        """What the caller gets of bytes that are one event of this shape; None: they are not."""
        if not (data.startswith(self.before) and data.endswith(self.after)):
            return None
        start, stop = len(self.before), len(data) - len(self.after)
        if _INSIDE.fullmatch(data, start, stop) is None:
            return None
        if not data.isascii():
            try:
                data.decode()
            except UnicodeDecodeError:
                return None
        return data if self.told is None else data[start:stop].join(self.told)


def learn(data: bytes, told: Mapping[str, Any], *, changed: bool) -> Shape | None:
    """The shape of an event that was parsed, and counted as one token; `told` is what the caller gets of it.

    None where events like it could differ in more than one string of one choice, or could count as more.
    """
    choices = told["choices"]
    if len(choices) != 1 or b"\n" in data:
        return None
    choice = choices[0]
    said = choice["delta"] if isinstance(choice.get("delta"), dict) else choice
    names = [name for name in _NAMES if said.get(name)]
    plain = not choice.get("logprobs") and not said.get("tool_calls") and choice.get("finish_reason") is None
    if not names or not plain or len({said[name] for name in names}) != 1 or not isinstance(said[names[0]], str):
        return None
    found = [match for name in names for match in re.finditer(rb'"%b": ?"' % name.encode(), data)]
    inside = _INSIDE.match(data, found[0].end()) if len(found) == 1 else None
    # Read back, since a name may also stand in another object of the event.
    if inside is None or json.loads(b'"' + inside[0] + b'"') != said[names[0]]:
        return None
    around: tuple[bytes, ...] | None = None
    if changed:
        placed = dict(said) | dict.fromkeys(names, _PLACE)
        whole = dict(choice) | {"delta": placed} if said is not choice else placed
        around = tuple(write_event(dict(told) | {"choices": [whole]}).split(_PLACE.encode()))
        if len(around) != 1 + len(names):
            return None
    index = choice.get("index")
    line: Literal["answer", "thinking"] = "thinking" if _NAMES[names[0]] == "thinking" else "answer"
    before, after = b"data: " + data[: inside.start()], data[inside.end() :] + b"\n\n"
    return Shape(index if isinstance(index, int) else 0, line, before, after, around)
