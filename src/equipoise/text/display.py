"""Model text made safe to print, and counts with their nouns."""

from __future__ import annotations

import re

from equipoise.errors import UsageError

WINDOW = 8  # characters read for each one shown: enough for text that is mostly escapes, and a bound for huge ones

# Terminal control: CSI and OSC sequences (a window title, a link), then any other escape. Possessive, so linear.
_ESCAPE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*+[ -/]*+[@-~]?|(?:\x1b\]|\x9d)[^\x07\x1b\x9c]*+(?:\x07|\x1b\\|\x9c)?|\x1b.?", re.DOTALL
)
_SPACES = re.compile(r"[\s\x1c-\x1f\u2028\u2029]+")
# Other control characters; marks that turn or hide text (bidi, zero width, soft hyphen, tags).
_HIDDEN = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
_SURROGATE = re.compile("[\ud800-\udfff]")


def many(n: int, one: str, *, plural: str | None = None) -> str:
    """`1 problem`, `1,234 problems`; `plural` where it takes more than an s."""
    return f"{n:,} {noun(n, one, plural=plural)}"


def noun(n: int, one: str, *, plural: str | None = None) -> str:
    """`problem` for 1, `problems` for any other number."""
    return one if n == 1 else plural or f"{one}s"


def safe_text(text: str, limit: int) -> str:
    """`text` in one line of at most `limit` characters that cannot move the cursor, colour, retitle or reverse a terminal.

    Escape sequences, control and invisible characters go, line breaks become spaces, a lone surrogate, which no stream can
    encode, becomes U+FFFD, and what is cut off is marked by "…". Markup of a printing library, as [bold], is left in.
    """
    if limit < 1:
        raise UsageError(f"safe_text was asked for {limit} characters: use 1 or more")
    window = text[: WINDOW * limit + 256]
    shown = _ESCAPE.sub("", window)
    shown = _SURROGATE.sub("\ufffd", _HIDDEN.sub("", _SPACES.sub(" ", shown))).strip()
    if len(shown) <= limit and len(window) == len(text):
        return shown
    return shown[: limit - 1].rstrip() + "…"
