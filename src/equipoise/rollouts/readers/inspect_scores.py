"""What inspect's scores say: each as a number, and which of them is a verdict."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, NamedTuple

from equipoise.rollouts.readers.foreign import as_object, number, zero_or_one

LETTERS = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
WORDS = {"yes": True, "true": True, "no": False, "false": False}
NO_PARSE = ("match", "includes", "exact", "f1")  # give the whole reply as answer: that is no parse


class Part(NamedTuple):
    """One score of a sample: a scorer's, or one entry of a scorer that gives a dictionary."""

    scorer: str
    value: Any


class Verdict(NamedTuple):
    scorer: str | None
    right: bool | None
    outcome: str | None


def parts_of(sample: Mapping[str, Any]) -> dict[str, Part]:
    """The scores in the log's order, those of a dictionary under scorer/key."""
    parts: dict[str, Part] = {}
    for scorer, score in as_object(sample.get("scores")).items():
        value = as_object(score).get("value")
        if isinstance(value, Mapping):
            parts |= {f"{scorer}/{key}": Part(scorer, item) for key, item in value.items()}
        else:
            parts[scorer] = Part(scorer, value)
    return parts


def numbers_of(parts: Mapping[str, Part]) -> dict[str, float]:
    """The scores as numbers, with inspect's own values for its letters. Lists and other texts are not numbers."""
    found = {name: _as_number(part.value) for name, part in parts.items()}
    return {name: value for name, value in found.items() if value is not None}


def _as_number(value: Any) -> float | None:
    if isinstance(value, str):
        value = LETTERS.get(value, WORDS.get(value.lower()))
    return float(value) if isinstance(value, bool) else number(value)


def verdict_of(parts: Mapping[str, Part], headline: str | None, accuracy: Container[str]) -> Verdict:
    """The headline if it is a verdict, else the first that is. Partial credit is a score."""
    names = sorted(parts, key=lambda name: name != headline)
    for scorer, value in (parts[name] for name in names):
        if value == "N":
            return Verdict(scorer, False, "unparsable")
        if value in ("C", "I"):
            right = value == "C"
        elif isinstance(value, str) and value.lower() in WORDS:
            right = WORDS[value.lower()]
        elif isinstance(value, bool) or (scorer in accuracy and zero_or_one(value) is not None):
            right = value == 1
        else:
            continue
        return Verdict(scorer, right, "right" if right else "wrong")
    return Verdict(parts[names[0]].scorer if names else None, None, None)


def answer_of(sample: Mapping[str, Any], scorer: str | None, completion: Any) -> Any:
    """What the scorer read as the answer; None where it only gives the reply back."""
    answer = as_object(as_object(sample.get("scores")).get(scorer or "")).get("answer")
    return None if scorer in NO_PARSE and answer == completion else answer
