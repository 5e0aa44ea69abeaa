"""Runs in the child process: reasoning-gym's problems and its scores."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import reasoning_gym

CHUNK = 64  # items of one dataset object


@lru_cache(maxsize=32)
def _dataset(name: str, settings: str, seed: int) -> Any:
    return reasoning_gym.create_dataset(name, seed=seed, size=CHUNK, **json.loads(settings))


@lru_cache(maxsize=4096)
def _entry(name: str, settings: str, seed: int, index: int) -> dict[str, Any]:
    entry: dict[str, Any] = _dataset(name, settings, seed)[index]
    return entry


def make(name: str, settings: str, seed: int) -> list[dict[str, Any]]:
    """The questions of one chunk, with their reference answers; None where a dataset gives none."""
    entries = [_entry(name, settings, seed, index) for index in range(CHUNK)]
    return [{"question": str(entry["question"]), "answer": entry["answer"]} for entry in entries]


def score(name: str, settings: str, seed: int, index: int, question: str, answer: str) -> float:
    """The dataset's own score of an answer, 0 to 1. The item is made again from its seed: not all of it is JSON."""
    entry = _entry(name, settings, seed, index)
    if str(entry["question"]) != question:
        raise LookupError(f"{name} makes another question from seed {seed} and index {index} than was asked")
    return float(_dataset(name, settings, seed).score_answer(answer, entry))
