"""Plain text from how models write answers: unicode variants, LaTeX, markdown, spacing. What it says stays as it is."""

from __future__ import annotations

import re
import unicodedata

# LaTeX commands by the plain text that means the same. A name that is missing here stays as it is.
_COMMANDS = (
    dict.fromkeys(["left", "right", "big", "Big", "bigl", "bigr", "displaystyle", "!", "(", ")", "[", "]"], "")
    | dict.fromkeys([",", ";", ":", " ", "quad", "qquad"], " ")
    | dict.fromkeys(["dfrac", "tfrac", "cfrac"], r"\frac")
    | dict.fromkeys(["cdot", "times"], "*")
    | dict.fromkeys(["le", "leq"], "≤")
    | dict.fromkeys(["ge", "geq"], "≥")
    | dict.fromkeys(["ne", "neq"], "≠")
    | dict.fromkeys(["to", "rightarrow"], "→")
    | dict.fromkeys(["circ", "degree"], "°")
    | dict.fromkeys(["dots", "ldots", "cdots"], "...")
    | dict.fromkeys(["lbrace", "{"], "{")
    | dict.fromkeys(["rbrace", "}"], "}")
    | {"div": "/", "pm": "±", "pi": "π", "infty": "∞", "cup": "∪", "cap": "∩", "in": "∈"}
    | {"%": "%", "$": "", "#": "#", "&": "&", "_": "_"}
)
_COMMAND = re.compile(r"\\(\\|[A-Za-z]+|.)", re.DOTALL)
_WRAPPERS = "text|textbf|textit|textrm|emph|mbox|mathrm|mathbf|mathit|mathsf|operatorname|boxed|fbox"
_WRAPPED = re.compile(rf"\\(?:{_WRAPPERS})\s*\{{|\\\\|\\[{{}}]|[{{}}]")
_FRAC = re.compile(r"\\frac\s*(?:([0-9])|\{([^{}]*)\})\s*(?:([0-9])|\{([^{}]*)\})")
_ROOT = re.compile(r"\\sqrt\s*([0-9A-Za-z])(?![0-9A-Za-z])|√\s*([0-9]+|[A-Za-z])")

_SYMBOLS = str.maketrans(
    {"×": "*", "·": "*", "⋅": "*", "∙": "*", "÷": "/", "−": "-", "–": "-", "‐": "-", "‑": "-", "⁄": "/"}
    | {"‘": "'", "’": "'", "“": '"', "”": '"', "。": ".", "$": "", "`": ""}
)
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_RAISED = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+")
_HIDDEN = ("Cc", "Cf", "Cs")  # control, format (zero width, bidi) and lone surrogates
_QUOTED_WORDS = re.compile(r"(['\"])[^\W\d_]+(?: [^\W\d_]+)*\1")
# Two stars are a power in 2**3 and 2 ** 3, and bold print anywhere else.
_POWER = re.compile(r"(?<=[\w)\]}])\*\*(?=[\w(\[{\\-])|(?<=[\w)\]}] )\*\*(?= )")
_THOUSANDS = re.compile(r"(?<![0-9,.])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9]|,[0-9])")


def tidy_text(text: str) -> str:
    r"""One spelling for one text: `$\dfrac{1}{2}$` is `\frac{1}{2}`, `1,234 × 5.` is `1234 * 5`, `"Yes"` is `Yes`.

    A dollar sign goes, as money and as LaTeX. A comma between groups of three digits goes, except within brackets, where it
    separates. Quotes go around words only: `'12'` is a string and `12` a number.
    """
    if not text.isascii():
        text = _plain_unicode(text)
    text = text.replace("{,}", ",")
    if "**" in text:
        text = _POWER.sub("^", text).replace("**", "")
    if "\\" in text or "√" in text:
        text = _plain_latex(text)
    text = " ".join(text.translate(_SYMBOLS).split())
    if "°" in text:
        text = text.replace("^{°}", "°").replace("^°", "°").replace("^{ °}", "°")
    if text.endswith((".", ",", ";")) and not text.endswith(".."):
        text = text[:-1].rstrip()
    if text.startswith(("'", '"')) and _QUOTED_WORDS.fullmatch(text):
        text = text[1:-1]
    if "," in text and not any(bracket in text for bracket in "([{"):
        text = _THOUSANDS.sub(lambda match: match[0].replace(",", ""), text)
    return text


def _plain_unicode(text: str) -> str:
    # Before the compatibility form, which writes ½ as 1⁄2 and x² as x2: 1½ would become 11/2.
    text = "".join(" " + c if unicodedata.decomposition(c).startswith("<fraction>") else c for c in text)
    text = _RAISED.sub(lambda match: "^" + match[0].translate(_SUPERSCRIPTS), text)
    text = unicodedata.normalize("NFKC", text)
    return "".join(c for c in text if c.isspace() or unicodedata.category(c) not in _HIDDEN)


def _plain_latex(text: str) -> str:
    text = _unwrap(text)
    text = _COMMAND.sub(lambda match: _COMMANDS.get(match[1], match[0]), text)
    text = _FRAC.sub(_braced_fraction, text)
    return _ROOT.sub(lambda match: rf"\sqrt{{{match[1] or match[2]}}}", text)


def _braced_fraction(match: re.Match[str]) -> str:
    top, bottom = match[1] or match[2] or "", match[3] or match[4] or ""
    return rf"\frac{{{top.strip()}}}{{{bottom.strip()}}}"


def _unwrap(text: str) -> str:
    r"""Drop `\text{…}`, `\boxed{…}` and the like with their own closing braces, in one pass, however deep they stand."""
    out: list[str] = []
    dropped: list[bool] = []  # for each brace now open: was it a wrapper's?
    seen = 0
    for match in _WRAPPED.finditer(text):
        mark = match[0]
        drop = False
        if mark == "}":
            drop = bool(dropped) and dropped.pop()
        elif mark[-1] == "{" and mark != r"\{":
            drop = mark != "{"
            dropped.append(drop)
        if drop:
            out += [text[seen : match.start()], " "]
            seen = match.end()
    return "".join(out) + text[seen:]
