"""Which format an answer is written in. RL tends to drive a policy to one of those it was pretrained on
(https://arxiv.org/abs/2504.07912), so the share of each is followed over a run."""

from __future__ import annotations

import re

FORMATS = ("empty", "code", "json", "tagged", "boxed", "multiple-choice", "latex", "steps", "plain")

_CODE_FENCE = re.compile(r"```(?:python|py|cpp|c\+\+|c|java|javascript|js|typescript|sql|bash|sh|rust|go|lean)(?!\w)")
# A line as code has it: "from here on" and "import duties are high" are sentences.
_CODE_LINE = re.compile(
    r"\n(?:(?:def|class) [^\n]{0,200}:[ \t]*(?:\n|\Z)|import [\w.]+(?: as \w+)?[ \t]*(?:\n|\Z)|from [\w.]+ import |#include|<llm-code>)"
)
_LATEX = re.compile(r"\\(?:[\[(]|frac|begin\{|times|cdot)|\$\$")
_OPTION_ENDS = (")", ".", ":")
_CHOSEN = re.compile(r"nswer(?: is|:)\**:? {0,4}\**\(?[A-E]\)?(?![\w'])")


def classify_format(text: str) -> str:
    """The first format of `FORMATS` whose marker is in the text.

    empty: nothing but spaces. code: a fenced block of a programming language, or a line of code. json: one object or array,
    or a json fence. tagged: an `<answer>` tag. boxed: a `\\boxed`. multiple-choice: labelled options, or a letter as the
    answer. latex: formulas. steps: numbered steps. plain: the rest.
    """
    body = text.strip()
    if not body:
        return "empty"
    lines = "\n" + body
    if _CODE_FENCE.search(text) or _CODE_LINE.search(lines):
        return "code"
    if (body[0] + body[-1] in ("{}", "[]") and '"' in body) or "```json" in text:
        return "json"
    if "<answer>" in text:
        return "tagged"
    if "\\boxed" in text:
        return "boxed"
    if ("(B)" in text and "(A)" in text) or _has_options(lines) or _CHOSEN.search(text):
        return "multiple-choice"
    if _LATEX.search(text):
        return "latex"
    if ("tep 1" in text and "tep 2" in text) or any("\n2" + end in lines and "\n1" + end in lines for end in ".)"):
        return "steps"
    return "plain"


def _has_options(lines: str) -> bool:
    return "\nB" in lines and any("\nA" + end in lines and "\nB" + end in lines for end in _OPTION_ENDS)
