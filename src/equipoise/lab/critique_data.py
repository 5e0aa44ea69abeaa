"""Self-training data with a critic in the loop (https://arxiv.org/abs/2411.16579): wrong solutions get a second chance.

For every problem: draw solutions and keep the right ones; hand each wrong one to a critic and its critique to a refiner, and
keep what comes back right. Hard problems, of which plain rejection sampling keeps little, so stay in the data. Without a
critic it is rejection sampling. Fine-tune on what was kept, then build again with the better model.

Sampler, critic and refiner are functions of the caller's; they see a problem without its reference and params. Only the
grader sees all of it, and its grade goes to nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol
from zlib import crc32

from equipoise.base import Completion, Grade, Problem, Rollout
from equipoise.errors import UsageError
from equipoise.lab.demonstrations import normal_text

Grader = Callable[[Problem, Completion], Grade]


class Sampler(Protocol):
    def __call__(self, problem: Problem, /, *, n: int, seed: int) -> Sequence[Completion]: ...


class Critic(Protocol):
    """What is wrong with a solution, in words; None: nothing to say. A separate model: critiques of one's own are unreliable."""

    def __call__(self, problem: Problem, completion: Completion, /, *, seed: int) -> str | None: ...


class Refiner(Protocol):
    """A new solution after a critique."""

    def __call__(self, problem: Problem, completion: Completion, critique: str, /, *, seed: int) -> Completion: ...


@dataclass(frozen=True, slots=True)
class Harvest:
    """What one problem gave. `rollouts` are right, and no two of them have the same text."""

    problem_id: str
    drawn: int
    checked: int  # of those drawn; the checker failed on the others
    right: int  # of those drawn
    refined: int  # refinements asked for
    repaired: int  # refinements that were right
    rollouts: tuple[Rollout, ...]

    @property
    def pass_rate(self) -> float | None:
        """How easy the problem is: right per checked draw, refinements left out; None: nothing was checked."""
        return self.right / self.checked if self.checked else None


def harvest(problems: Iterable[Problem], **how: Any) -> Iterator[Harvest]:
    """`harvest_problem` for each, one at a time, so that a long build can be written as it goes."""
    return (harvest_problem(problem, **how) for problem in problems)


def harvest_problem(
    problem: Problem,
    *,
    sample: Sampler,
    grade: Grader,
    critique: Critic | None,
    refine: Refiner | None = None,
    draws: int,
    turns: int = 1,
    seed: int = 0,
    run_id: str = "critique",
) -> Harvest:
    """Right solutions of one problem: as drawn, and as refined after at most `turns` critiques of a wrong one.

    Seeds follow the problem's id and the draw, whatever the order of problems. A solution that the checker could not judge
    is neither kept nor criticised.
    """
    if (critique is None) != (refine is None):
        raise UsageError(
            "a critic needs a refiner and a refiner a critic: give both, or neither for rejection sampling"
        )
    if draws < 1 or turns < 1:
        raise UsageError(f"at least 1 draw and 1 turn are needed: found draws={draws}, turns={turns}")
    shown = hide_answer(problem)
    kept: dict[str, Rollout] = {}
    checked = right = refined = repaired = 0

    def judge(completion: Completion, index: int, source: str, **extra: Any) -> bool | None:
        verdict = grade(problem, completion)
        text = normal_text(completion)
        if verdict.correct and text is not None and text not in kept:
            kept[text] = Rollout(
                run_id, "train", None, problem.id, index, problem, completion, verdict, strategy=source, extra=extra
            )
        return verdict.correct

    drawn = sample(shown, n=draws, seed=_seed(seed, problem, "sample"))
    for index, solution in enumerate(drawn):
        correct = judge(solution, index, "sampled")
        checked += correct is not None
        right += correct is True
        for turn in range(turns):
            if correct is not False or critique is None or refine is None:
                break
            comment = critique(shown, solution, seed=_seed(seed, problem, "critique", index, turn))
            if comment is None:
                break
            solution = refine(shown, solution, comment, seed=_seed(seed, problem, "refine", index, turn))
            correct = judge(solution, index, "refined", critique=comment, turn=turn + 1, parent_id=str(index))
            refined += 1
            repaired += correct is True
    return Harvest(problem.id, len(drawn), checked, right, refined, repaired, tuple(kept.values()))


def hide_answer(problem: Problem) -> Problem:
    """The problem as a solver may see it: `params` go too, as a task may keep its answer there."""
    return replace(problem, reference=None, params={})


def _seed(seed: int, problem: Problem, *what: object) -> int:
    return crc32(repr((seed, problem.id, *what)).encode("utf-8", "surrogatepass"))
