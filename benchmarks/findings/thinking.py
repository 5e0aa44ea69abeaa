"""A policy that thinks, asked in three ways from one and the same thought of every sample.

own      it thinks until it ends by itself, at the latest at the longest budget
capped   the same, and ended at a smaller budget: the answer is drawn from the beginning of that thought
forced   its own end is passed over until the budget is spent, another attempt begun in its place

A vote of n capped thoughts takes n times their tokens, which is how it is compared with one forced thought.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.findings.outcomes import Cells, count_answers
from benchmarks.findings.policies import Asking, Policy, Row
from equipoise.lab.measure_thinker import answer_after, think_long
from equipoise.tasks.table import find_task
from equipoise.training.opening import open_model

BATCH = 2048  # rows sampled at once, on every device: thoughts follow from it too


@dataclass(frozen=True, slots=True)
class Thinking(Asking):
    """The problems of the tuning split choose the cap of a vote."""

    temperatures: tuple[float, ...] = (0.3, 0.6, 1.0)
    capped: tuple[int, ...] = (8, 16, 32, 48, 64, 96, 128)
    forced: tuple[int, ...] = (32, 64, 96, 128, 192)
    seed: int = 0

    @property
    def most(self) -> int:
        return max(*self.capped, *self.forced)


KEY = ("arm", "temperature", "split", "mode", "budget")


def think(policy: Policy, how: Thinking) -> list[Row]:
    """Counts of every problem under every temperature, split, way and budget."""
    loaded, task = open_model(policy.model, device=policy.device).loaded, find_task(policy.task)
    found: list[Row] = []
    for split, n in (("tune", how.tune), ("test", how.problems)):
        posed = task.problems(("findings", how.seed), n, split=split)
        rows = [problem for problem in posed for _ in range(how.samples)]
        for temperature in how.temperatures:
            thoughts = think_long(
                loaded.model,
                loaded.tokens,
                [str(problem.prompt) for problem in rows],
                most=how.most,
                seed=how.seed,
                temperature=temperature,
                batch=BATCH,
            )
            ends = [how.most if end is None else end for end in thoughts.ended]
            ways = {("own", how.most): ends}
            ways |= {("capped", budget): [min(budget, end) for end in ends] for budget in how.capped}
            ways |= {("forced", budget): [budget] * len(rows) for budget in how.forced}
            wanted = sorted({(row, place) for places in ways.values() for row, place in enumerate(places)})
            drawn = answer_after(
                loaded.model, loaded.tokens, thoughts, wanted, seed=how.seed, temperature=temperature, batch=BATCH
            )
            answers = dict(zip(wanted, drawn, strict=True))
            graded = {key: task.grade(rows[key[0]], answer) for key, answer in answers.items()}
            for (mode, budget), places in ways.items():
                keys = list(enumerate(places))
                counted = count_answers(
                    [problem.id for problem in posed],
                    [graded[key] for key in keys],
                    [place + 2 + (answers[row, place].n_tokens or 0) for row, place in keys],  # with both marks
                    votes=range(1, how.samples + 1),
                )
                at = {"temperature": temperature, "split": split, "mode": mode, "budget": budget}
                found += [at | row for row in counted]
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
        if key[:3] != (arm, temperature, "tune") or key[3] == "forced":
            continue
        each = cells.mean(key, "tokens")
        n = min(int(tokens // each), samples)
        if n >= 1:
            offers.append((cells.mean(key, f"maj@{n}"), Vote(n, int(str(key[4])), str(key[3]), n * each)))
    return max(offers, key=lambda offer: offer[0])[1]
