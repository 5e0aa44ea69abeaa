"""A policy that thinks, asked in several ways from one and the same thought of every sample.

own      it thinks until it ends by itself, at the latest at the longest budget
capped   the same, and ended at a smaller budget: the answer is drawn from the beginning of that thought
forced   its own end is passed over until the budget is spent, another attempt begun in its place
wait     the same, with "Wait," in place of the end, as budget forcing has it (https://arxiv.org/abs/2501.19393): for language models

A vote of n capped thoughts takes n times their tokens, which is how it is compared with one forced thought.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.findings.forcing import think_on
from benchmarks.findings.outcomes import Cells, count_answers
from benchmarks.findings.policies import Asking, Policy, Row, say
from benchmarks.findings.spelt import Spelt
from equipoise.base import Problem
from equipoise.lab.measure_thinker import Thoughts, answer_after, found_at
from equipoise.lab.search_traces import NEXT
from equipoise.models.language_model import LanguageModel, Tokens
from equipoise.models.thinking import marks_of
from equipoise.tasks.table import find_task
from equipoise.tasks.task import Task
from equipoise.training.opening import open_model

WAIT = "Wait,"
VOTED = ("own", "capped")  # the ways that a vote is taken of


@dataclass(frozen=True, slots=True)
class Thinking(Asking):
    """The problems of the tuning split choose the cap of a vote."""

    temperatures: tuple[float, ...] = (0.3, 0.6, 1.0)
    capped: tuple[int, ...] = (8, 16, 32, 48, 64, 96, 128)
    forced: tuple[int, ...] = (32, 64, 96, 128, 192)
    wait: tuple[int, ...] = ()
    rows: int = 2048  # sampled at once, on every device: thoughts follow from it too, by rounding
    seed: int = 0

    @property
    def most(self) -> int:
        return max(*self.capped, *self.forced, *self.wait)

    def ways(self, again: str, ends: Sequence[int]) -> dict[tuple[str, int], Sequence[int]]:
        """After how many tokens of every thought the answer is drawn, by mode and budget; thoughts go on with `again`."""
        if again == WAIT:
            return {("wait", budget): [budget] * len(ends) for budget in self.wait}
        ways: dict[tuple[str, int], Sequence[int]] = {("own", self.most): ends}
        ways |= {("capped", budget): [min(budget, end) for end in ends] for budget in self.capped}
        return ways | {("forced", budget): [budget] * len(ends) for budget in self.forced}


KEY = ("arm", "temperature", "split", "mode", "budget")


def think(policy: Policy, how: Thinking) -> list[Row]:
    """Counts of every problem under every temperature, split, way and budget."""
    loaded, task = open_model(policy.model, device=policy.device).loaded, find_task(policy.task)
    tokens = loaded.tokens if marks_of(loaded.tokens) else Spelt(loaded.tokens)
    found: list[Row] = []
    for split, n in (("tune", how.tune), ("test", how.problems)):
        posed = task.problems(("findings", how.seed), n, split=split)
        for temperature in how.temperatures:
            for again in (NEXT, WAIT) if how.wait else (NEXT,):
                started = time.perf_counter()
                thoughts = think_on(
                    loaded.model,
                    tokens,
                    [str(problem.prompt) for problem in posed],
                    samples=how.samples,
                    most=how.most,
                    seed=how.seed,
                    temperature=temperature,
                    again=again,
                    batch=how.rows,
                )
                ways = how.ways(again, [how.most if end is None else end for end in thoughts.ended])
                thought = time.perf_counter()
                rows = answer_ways(loaded.model, tokens, task, posed, thoughts, ways, how, temperature)
                found += [{"temperature": temperature, "split": split, **row} for row in rows]
                say(
                    f"{policy.name}, {split}, T = {temperature:g}, {again!r}: {thought - started:.0f} s for "
                    f"{len(thoughts.ids)} thoughts, {time.perf_counter() - thought:.0f} s for their answers"
                )
    return found


def answer_ways(
    model: LanguageModel,
    tokens: Tokens,
    task: Task,
    posed: Sequence[Problem],
    thoughts: Thoughts,
    ways: Mapping[tuple[str, int], Sequence[int]],
    how: Thinking,
    temperature: float,
) -> list[Row]:
    """A row per problem and way. `had`: the share of the thoughts in which a right expression stood by then."""
    rows = [problem for problem in posed for _ in range(how.samples)]
    # By their place: those sampled together are then alike in length.
    wanted = sorted({key[::-1] for places in ways.values() for key in enumerate(places)})
    asked = [(row, place) for place, row in wanted]
    drawn = answer_after(model, tokens, thoughts, asked, seed=how.seed, temperature=temperature, batch=how.rows)
    answers = dict(zip(asked, drawn, strict=True))
    graded = {key: task.grade(rows[key[0]], answer) for key, answer in answers.items()}
    stood_at = [found_at(task, problem, tokens.decode(ids)) for problem, ids in zip(rows, thoughts.ids, strict=True)]

    def had_it(row: int, place: int) -> bool:
        at = stood_at[row]
        return at is not None and at <= len(tokens.decode(thoughts.ids[row][:place]))

    found: list[Row] = []
    for (mode, budget), places in ways.items():
        keys = list(enumerate(places))
        counted = count_answers(
            [problem.id for problem in posed],
            [graded[key] for key in keys],
            [place + 2 + (answers[row, place].n_tokens or 0) for row, place in keys],  # with both marks
            votes=range(1, how.samples + 1) if mode in VOTED else (),
        )
        had_P = np.array([had_it(*key) for key in keys]).reshape(len(posed), how.samples).mean(axis=1)
        found += [
            {"mode": mode, "budget": budget, **row, "had": float(had)} for row, had in zip(counted, had_P, strict=True)
        ]
    return found


@dataclass(frozen=True, slots=True)
class Vote:
    """n thoughts of up to `cap` tokens, and the tokens that they take together."""

    n: int
    cap: int
    mode: str
    tokens: float


def best_vote(cells: Cells, arm: str, temperature: float, tokens: float, *, samples: int) -> Vote:
    """The vote that is right most often on the tuning split among those that take no more than `tokens` there; seeds averaged.

    The cap that leaves it to the model when to end is among them. A vote of one is allowed: then it is a single capped thought.
    """
    offers = []
    for key in cells:
        if key[:3] != (arm, temperature, "tune") or key[3] not in VOTED:
            continue
        each = cells.mean(key, "tokens")
        n = min(int(tokens // each), samples)
        if n >= 1:
            offers.append((cells.mean(key, f"maj@{n}"), Vote(n, int(str(key[4])), str(key[3]), n * each)))
    return max(offers, key=lambda offer: offer[0])[1]


def vote_against(cells: Cells, arm: str, temperature: float, way: tuple[str, int], *, samples: int) -> Vote:
    """The best vote of no more tokens than a way of thinking takes, chosen on the tuning split.

    Where thoughts are longer on the test split, fewer of them vote: there too it takes no more tokens.
    """
    tuned, tokens = (cells.mean((arm, temperature, split, *way), "tokens") for split in ("tune", "test"))
    vote = best_vote(cells, arm, temperature, tuned, samples=samples)
    each = cells.mean((arm, temperature, "test", vote.mode, vote.cap), "tokens")
    n = max(1, min(vote.n, int(tokens // each)))
    return Vote(n, vote.cap, vote.mode, n * each)
