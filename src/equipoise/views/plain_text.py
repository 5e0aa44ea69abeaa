"""Text for a Plotly figure. Plotly reads a little HTML, entities, TeX and `%{…}` in every label, and names and tokens are a stranger's."""

from __future__ import annotations

from equipoise.text.display import safe_text

# Each is decoded again after tags, TeX and templates were looked for, so it is shown and means nothing.
_MEANS = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "$": "&#36;", "%": "&#37;"})
_SEEN = str.maketrans({" ": "␣", "\n": "↵", "\r": "↵", "\t": "⇥"})
TOKEN = 24  # characters of a token that are shown


def plotly_text(text: str, *, limit: int = 60) -> str:
    """`text` in one line of at most `limit` characters that Plotly shows literally: no tag, link, formula or placeholder."""
    return safe_text(text, limit).translate(_MEANS)


def token_name(token: str | int) -> str:
    """A token for a sentence: spaces and line ends are seen, one that would show nothing is told by its code points.

    A number is the id of a token whose string is not known.
    """
    if isinstance(token, int):
        return f"id {token}"
    shown = safe_text(token[: 8 * TOKEN].translate(_SEEN), TOKEN)
    return shown or " ".join(f"U+{ord(letter):04X}" for letter in token[:4]) or "(empty)"


def token_text(token: str | int) -> str:
    """The same as a label of a Plotly figure."""
    return plotly_text(token_name(token))
