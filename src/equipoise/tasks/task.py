"""What a task is, and what all tasks share: seeds, splits, and drawing problems that do not repeat."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from random import Random
from typing import Any, Protocol, runtime_checkable

from equipoise.base import Answer, Completion, Grade, Problem, Prompt
from equipoise.errors import UsageError, unknown_name

Seed = int | str | Sequence[int | str]  # several parts, say ("run 7", step), are hashed as one

# Which problems a split has is decided by their content alone, so no seed of one split meets a problem of another.
SPLITS: Mapping[str, range] = {"test": range(1), "tune": range(1, 2), "train": range(2, 8), "all": range(8)}
MAX_MISSES = 20_000  # draws in a row without a new problem; then there are hardly more


class Task(Protocol):
    """Problems made from a seed, and the checker that grades a completion of one."""

    @property
    def env(self) -> str: ...

    def problems(self, seed: Seed, n: int, *, split: str = "train") -> list[Problem]:
        """`n` different problems; the first m of them are `problems(seed, m)`.

        `split`: train (3/4 of all problems), tune, test (1/8 each) or all. Splits share no problem whatever the seeds, nor one
        that differs only in the order in which it is written. Two seeds of one split meet by chance only, which is rare
        where a task has many problems: evaluate on another split than you train on.
        """
        ...

    def read(self, problem: Problem, text: str) -> Answer | None:
        """The answer that a text gives, in canonical form; None: it gives none."""
        ...

    def grade(self, problem: Problem, completion: Completion) -> Grade: ...


@runtime_checkable
class ManySolutions(Protocol):
    """A task that knows every right answer."""

    def solutions(self, problem: Problem) -> frozenset[str]:
        """All right answers in canonical form: what `read` gives for them."""
        ...


@runtime_checkable
class Distracting(Protocol):
    """A task that can write answers that look right and are wrong."""

    def distractor(self, problem: Problem, random: Random) -> str | None:
        """One such answer, or None where this draw found none."""
        ...


@runtime_checkable
class StepChecked(Protocol):
    """A task that can tell how good the beginning of a reply is."""

    def progress(self, problem: Problem, completion: Completion) -> float | None:
        """0 to 1, of a reply that is not finished; None: it cannot tell for this problem."""
        ...


@runtime_checkable
class Rewords(Protocol):
    """A task that can put a problem in other ways, so that a right answer stays right."""

    def reworded(self, problem: Problem, number: int) -> Prompt:
        """The prompt in the way of this number; 0 is as it is, and others may repeat where there are few."""
        ...


@runtime_checkable
class Recognises(Protocol):
    """A task that finds its problem in a prompt that somebody else recorded."""

    def recognise(self, prompt: str) -> Mapping[str, Any] | None:
        """The `params` of the problem, enough to grade by; None: the prompt holds none of this task's."""
        ...


@runtime_checkable
class Tooled(Protocol):
    """A task that comes with tools to look things up."""

    def tools(self, problem: Problem) -> Mapping[str, Callable[[str], str]]:
        """What may be called, by name: an argument in, a text out."""
        ...


@dataclass(frozen=True, slots=True)
class Draft:
    """A problem before its split is known. `key` is its content: equal keys are one problem, in whatever order written."""

    key: str
    problem: Problem


def mix_seed(*parts: Any) -> int:
    """64 bits from the parts of a seed. Hashed, since in seed + index neighbouring seeds share nearly all items."""
    text = json.dumps(parts, separators=(",", ":"), sort_keys=True)
    return int.from_bytes(sha256(text.encode()).digest()[:8], "big")


def in_split(key: str, split: str) -> bool:
    if split not in SPLITS:
        raise unknown_name("split", split, SPLITS)
    return mix_seed("split", key) % 8 in SPLITS[split]


def draw_problems(
    draw: Callable[[Random], Draft | None],
    *,
    space: Any,
    seed: Seed,
    n: int,
    split: str,
    max_misses: int = MAX_MISSES,
) -> list[Problem]:
    """Draw until there are `n` different problems of the split. `space` is what tells this task's settings from others'."""
    random = Random(mix_seed("problems", space, seed))
    found: dict[str, Problem] = {}
    misses = 0
    while len(found) < n:
        draft = draw(random)
        if draft is not None and draft.key not in found and in_split(draft.key, split):
            found[draft.key] = draft.problem
            misses = 0
            continue
        misses += 1
        if misses > max_misses:
            raise _too_few(n, len(found), split, hint="ask for fewer, or make its settings wider")
    return list(found.values())


class AtMost(int):
    """A number of problems that nobody asked for, a default: a finite pool that holds fewer gives all of them."""


def pick_problems(drafts: Iterable[Draft], *, seed: Seed, n: int, split: str) -> list[Problem]:
    """`n` problems of a finite pool, in an order that the seed decides; all of a smaller pool where `n` is `AtMost`."""
    pool = {draft.key: draft.problem for draft in drafts if in_split(draft.key, split)}
    if len(pool) < (min(n, 1) if isinstance(n, AtMost) else n):
        raise _too_few(n, len(pool), split, hint="ask for fewer" + ("" if split == "all" else ", or for split 'all'"))
    return [pool[key] for key in sorted(pool, key=lambda key: mix_seed("pick", seed, key))[:n]]


def _too_few(asked: int, found: int, split: str, *, hint: str) -> UsageError:
    return UsageError(
        f"{asked} different problems were asked for, and this task has {found} in split '{split}': {hint} (--problems, --split)"
    )


def with_how(question: str, how: str, prompt: str) -> str:
    """A question with how to answer it. A short one is for models that know, and multiple choice says it in its own way."""
    return question if prompt == "short" else f"{question} {how}"


def right_or_wrong(answer: Answer, right: bool, feedback: str | None = None) -> Grade:
    return Grade(
        answer, "right" if right else "wrong", 1.0 if right else 0.0, feedback=feedback or None, format_ok=True
    )


def unparsable(feedback: str = "no answer found") -> Grade:
    return Grade(None, "unparsable", 0.0, feedback=feedback, format_ok=False)


def need(condition: bool, problem: str) -> None:
    """Refuse a task's setting."""
    if not condition:
        raise UsageError(problem)
