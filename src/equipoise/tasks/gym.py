"""reasoning-gym's procedural tasks, made and scored in a killable child process (Apache-2.0, read at version 0.1.25)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from dataclasses import field as own
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

from equipoise.base import Answer, Completion, Grade, Problem
from equipoise.child import Reply, shared_child
from equipoise.errors import MissingExtra, UsageError
from equipoise.tasks.reading import read_completion, read_stated
from equipoise.tasks.task import Draft, Seed, draw_problems, mix_seed, need, unparsable
from equipoise.text.answers import canonical

HOW = "Give the final answer within <answer> and </answer>."
MAKE_SECONDS = 120.0  # of CPU time for a chunk of problems
SECONDS = 5.0  # and for one score
MEMORY_MB = 2048
MAX_ANSWER = 10_000  # characters
MAX_MISSES = 1000  # items in a row without a new question
CACHED = 16_384  # scores

# Some of its scorers hand the answer to Python's `eval` or to sympy's parser, which evaluates too. No answer has such names.
_CODE = re.compile(
    r"__|\blambda\b|\b(?:exec|eval|compile|open|input|breakpoint|exit|quit|help|vars|dir|globals|locals|getattr|setattr"
    r"|delattr|print|import_module|type|memoryview)\s*\("
)


@dataclass(frozen=True, slots=True)
class Gym:
    """One dataset of reasoning-gym; `settings` are its own, by its own names."""

    dataset: str = "chain_sum"
    seconds: float = SECONDS
    settings: Mapping[str, Any] = own(default_factory=dict)

    def __post_init__(self) -> None:
        need(self.seconds > 0, f"seconds of {self.env} is above 0, found {self.seconds}")
        for name in ("seed", "size"):
            need(
                name not in self.settings, f"{name} of {self.env} comes from the seed that problems are asked for with"
            )

    @property
    def env(self) -> str:
        return f"gym/{self.dataset}"

    def problems(self, seed: Seed, n: int, *, split: str = "train") -> list[Problem]:
        """reasoning-gym makes item i of seed s from s + i, so neighbouring seeds share their items: here seeds are hashed."""
        drafts = self._drafts(seed)
        return draw_problems(
            lambda _random: next(drafts), space=self.env, seed=seed, n=n, split=split, max_misses=MAX_MISSES
        )

    def read(self, problem: Problem, text: str) -> Answer | None:
        raw = read_stated(text, _raw)
        return None if raw is None else Answer(canonical(raw.text) or raw.text, raw.span)

    def grade(self, problem: Problem, completion: Completion) -> Grade:
        """The dataset's score is the reward; right is a full score. A scorer that fails or hangs has an outcome of its own."""
        raw = read_completion(completion, lambda text: read_stated(text, _raw))
        if raw is None:
            return unparsable()
        if _CODE.search(raw.text):
            return unparsable("the answer looks like program code")
        answer = Answer(canonical(raw.text) or raw.text, raw.span)
        at = problem.params
        reply = _scored(self.dataset, self._listed, at["seed"], at["index"], at["question"], raw.text, self.seconds)
        if reply.failure is not None:
            return Grade(answer, reply.failure, None, feedback=reply.message, format_ok=True)
        score = float(reply.value)
        return Grade(answer, "right" if score >= 1 else "wrong", score, format_ok=True)

    @property
    def _listed(self) -> str:
        return json.dumps(dict(self.settings), sort_keys=True)

    def _drafts(self, seed: Seed) -> Iterator[Draft]:
        chunk = 0
        while True:
            chunk_seed = mix_seed("gym", self.dataset, self._listed, seed, chunk) % (
                2**32 - 2**16
            )  # numpy's have 32 bits
            for index, made in enumerate(_made(self.dataset, self._listed, chunk_seed)):
                question, answer = made["question"], made["answer"]
                params = {"dataset": self.dataset, "seed": chunk_seed, "index": index, "question": question}
                name = f"{self.env}:{mix_seed(question, self._listed):016x}"
                reference = answer if isinstance(answer, str) else None
                yield Draft(f"{self.env}:{question}", Problem(name, self.env, f"{question}\n{HOW}", reference, params))
            chunk += 1


def _raw(text: str) -> str | None:
    return text.strip() or None if len(text) <= MAX_ANSWER else None


def _made(dataset: str, settings: str, seed: int) -> list[dict[str, Any]]:
    _needs_extra(f"gym:dataset={dataset}")
    child = shared_child(seconds=MAKE_SECONDS, memory_mb=2 * MEMORY_MB)
    reply = child.call("equipoise.tasks.gym_worker:make", dataset, settings, seed)
    if reply.failure is not None:
        raise UsageError(f"reasoning-gym made no problems of '{dataset}' with {settings}: {reply.message}")
    made: list[dict[str, Any]] = reply.value
    return made


@lru_cache(maxsize=CACHED)
def _scored(dataset: str, settings: str, seed: int, index: int, question: str, answer: str, seconds: float) -> Reply:
    _needs_extra(f"gym:dataset={dataset}")
    child = shared_child(seconds=seconds, memory_mb=MEMORY_MB)
    return child.call("equipoise.tasks.gym_worker:score", dataset, settings, seed, index, question, answer)


def _needs_extra(asked: str) -> None:
    if find_spec("reasoning_gym") is None:
        raise MissingExtra("tasks", needed_for=asked)
