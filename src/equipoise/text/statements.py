"""Where a text states its answer: a box, answer tags, a `####` line, a JSON "answer", "the answer is …"."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from equipoise.text.forms import MAX_CHARS, canonical
from equipoise.text.numerals import parse_number
from equipoise.text.phrases import lower_aligned

MAX_STATEMENTS = 64  # places of each kind that are looked at: the first and the last 63
MAX_PROSE = 2000  # characters of an answer without delimiters; one that has not ended by then is left out
MAX_UNCLOSED = 200  # characters after a last <answer> whose closing tag was cut off, as stop strings are
STRONG = frozenset({"boxed", "tagged", "hashes", "json"})  # marked as the answer on purpose

_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_BARE_BOX = re.compile(r"\s{1,4}([^\s${}\\]{1,100})")
_JSON = re.compile(r'answer"\s{0,4}:\s{0,4}(?:"((?:[^"\\]|\\.)*+)"|(-?[0-9][0-9.,/]{0,99}|true|false))')
_PROSE = re.compile(
    r"answer[*_`')]{0,4}\s{0,4}(?:to (?:the|this) \w{1,12} )?(?::|=|(is|would be|must be|should be)(?![\w'])):?[\s*`]{0,8}"
    r"|final answer[*_`: \t]{0,8}\n[\s*`]{0,8}"
)
_LEAD = re.compile(r"(?:therefore|thus|simply|just|then|indeed)[\s,:]+")
# What follows "the answer is" without being one: "not …", "correct", "in the form …".
_NO_ANSWER = re.compile(
    r"(?:not|in|to|correct|incorrect|wrong|right|given|found|the same|that|supposed|expected|unclear)\b|[?.]"
)
_SENTENCE_END = re.compile(r"[.;!?。](?=\s|$)|,? (?:because|since|which|as|so|where|when|but)\b")
_PAIRS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"))


@dataclass(frozen=True, slots=True)
class Statement:
    """One answer as stated: characters `start` to `end` of the text, and what stands there."""

    kind: str
    start: int
    end: int
    raw: str

    def form(self) -> str | None:
        return canonical(self.raw)


def find_statements(text: str) -> list[Statement]:
    """Every place where an answer is stated, in order; empty statements such as `\\boxed{}` are left out."""
    return statements_lowered(text, lower_aligned(text))


def statements_lowered(text: str, lowered: str) -> list[Statement]:
    """`find_statements` for a text whose `lower_aligned` form is at hand."""
    found = list(_hashes(text))
    if "\\" in text:
        found += _boxed(text)
    words = _places(lowered, "answer")
    if words:
        tags = [at - 1 for at in words if at and lowered.startswith("<answer>", at - 1)]
        keys = [at for at in words if lowered.startswith('answer"', at)]
        found += [*_tagged(text, lowered, tags), *_json_values(text, lowered, keys), *_prose(text, lowered, words)]
    found.sort(key=lambda statement: statement.start)
    return [statement for statement in found if statement.raw.strip()]


def _places(text: str, marker: str) -> list[int]:
    places = []
    at = text.find(marker)
    while at >= 0:
        places.append(at)
        at = text.find(marker, at + len(marker))
    return places


def _few(places: list[int]) -> list[int]:
    return places if len(places) <= MAX_STATEMENTS else places[:1] + places[1 - MAX_STATEMENTS :]


def _boxed(text: str) -> Iterator[Statement]:
    for at in _few(_places(text, r"\boxed")):
        start = at + len(r"\boxed")
        if text[start : start + 1] != "{":
            bare = _BARE_BOX.match(text, start)
            if bare:
                yield Statement("boxed", *bare.span(1), bare[1])
            continue
        depth = 0
        for brace in _BRACE.finditer(text, start, start + MAX_CHARS):
            depth += {"{": 1, "}": -1}.get(brace[0], 0)
            if depth == 0 and brace[0] == "}":
                yield Statement("boxed", start + 1, brace.start(), text[start + 1 : brace.start()])
                break


def _tagged(text: str, lowered: str, places: list[int]) -> Iterator[Statement]:
    places = _few(places)
    closed = "</answer>" in lowered
    for at, following in zip(places, [*places[1:], len(text)], strict=False):
        start = at + len("<answer>")
        end = lowered.find("</answer>", start, min(following, start + MAX_CHARS))
        if end < 0 and not closed and following == len(text) and len(text) - start <= MAX_UNCLOSED:
            end = len(text)
        if end >= 0:
            yield Statement("tagged", start, end, text[start:end])


def _hashes(text: str) -> Iterator[Statement]:
    places = _few(_places(text, "####"))
    last_line = len(text.rstrip()) if places else 0
    for at in places:
        start = at + 4
        if (at > 0 and text[at - 1] != "\n") or text[start : start + 1] == "#":
            continue
        raw = text[start : start + MAX_PROSE].partition("\n")[0]
        end = start + len(raw)
        # A fourth-level heading looks the same: it is an answer only as a number or as the last line.
        if end >= last_line or parse_number(canonical(raw) or "") is not None:
            yield Statement("hashes", start, end, raw)


def _json_values(text: str, lowered: str, places: list[int]) -> Iterator[Statement]:
    for at in _few(places):
        match = _JSON.match(lowered, at, at + MAX_CHARS)
        if match is None:
            continue
        start, end = match.span(1) if match[1] is not None else match.span(2)
        raw = text[start:end].rstrip(",") if match[1] is None else _unescape(text[start:end])
        yield Statement("json", start, end, raw)


def _unescape(literal: str) -> str:
    try:
        return str(json.loads(f'"{literal}"'))
    except ValueError:  # LaTeX with its backslashes left single: take it as written
        return literal


def _prose(text: str, lowered: str, places: list[int]) -> Iterator[Statement]:
    last_seen = -1
    for at in _few(places):
        # "final answer" with the answer in the next line begins six characters before.
        match = _PROSE.match(lowered, at) or _PROSE.match(lowered, max(0, at - len("final ")))
        if match is None or match.end() <= last_seen:
            continue
        last_seen = match.end()
        lead = _LEAD.match(lowered, match.end(), match.end() + 20)
        start = lead.end() if lead else match.end()
        line = _answer_lines(text, start, own_line="\n" in match[0])
        if match[1] and _NO_ANSWER.match(line.lower()):
            continue
        raw = line if "\n" in line else _first_phrase(line)
        # A box or a tag in it is a statement of its own.
        if len(raw) < MAX_PROSE and r"\boxed" not in raw and "<answer>" not in raw.lower():
            yield Statement("prose", start, start + len(raw), raw)


def _answer_lines(text: str, start: int, *, own_line: bool) -> str:
    """The rest of the line; where the answer has its own lines, all of them (a grid, a list) unless the first is a number."""
    block = text[start : start + MAX_PROSE]
    line, _, more = block.partition("\n")
    if not own_line or not more or parse_number(canonical(line) or "") is not None:
        return line
    return block.partition("\n\n")[0].partition("```")[0].rstrip()


def _first_phrase(line: str) -> str:
    """The answer at the start of a line: what its delimiters enclose, or up to the end of the sentence or clause."""
    for opening, closing in _PAIRS:
        if line.startswith(opening):
            end = line.find(closing, len(opening))
            # "$18 and $3" is money: a formula does not end with a space.
            if end > len(opening) and not line[end - 1].isspace():
                return line[: end + len(closing)]
    stop = _SENTENCE_END.search(line)
    return line[: stop.start()] if stop else line.rstrip()
