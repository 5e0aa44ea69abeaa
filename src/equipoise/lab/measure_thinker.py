"""What a model that thinks makes of more thinking: held to a budget, made to go on past its own end, and drawn in parallel.

A thought is drawn once, to the largest budget: where the model ends it, `NEXT` is put in place of its end, as budget forcing puts
"Wait" (https://arxiv.org/abs/2501.19393). Every budget then answers from a beginning of that one thought, so budgets are paired.
Axes: P problems, G thoughts of each, R = P · G rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import log
from typing import Any

import numpy as np

from equipoise.base import Answer, Completion, Problem
from equipoise.lab.search_traces import END, NEXT, START
from equipoise.measures.intervals import Interval, mean_of_prompts, paired_difference
from equipoise.measures.votes import tally_votes
from equipoise.models.decoding import Decoding
from equipoise.models.generate import generate
from equipoise.models.language_model import LanguageModel, Tokens
from equipoise.models.packaged import MAX_TOKENS
from equipoise.models.samples import read_completions
from equipoise.tasks.task import Task, mix_seed

ROWS = 1024  # sampled at once, if nothing else is said
BUDGETS = (0, 8, 16, 32, 48, 64, 96, 128, 160, 192)


@dataclass(frozen=True, slots=True)
class Thoughts:
    """One long thought of every row, and after how many of its tokens the model ended it: None if it never did."""

    prompts: tuple[str, ...]
    ids: tuple[list[int], ...]  # of the thought alone
    ended: tuple[int | None, ...]


def think_long(
    model: LanguageModel,
    tokens: Tokens,
    prompts: Sequence[str],
    *,
    most: int,
    seed: int,
    temperature: float = 1.0,
    batch: int = ROWS,
) -> Thoughts:
    """A thought of `most` tokens for every prompt; an end before that is passed over. `batch` rows are sampled at once."""
    (start,), (end,), (again,) = (tokens.encode(mark) for mark in (START, END, NEXT))
    ids: list[list[int]] = [[] for _ in prompts]
    ended: list[int | None] = [None] * len(prompts)
    opened = [[*tokens.encode(prompt), start] for prompt in prompts]
    turn, going = 0, list(range(len(prompts)))
    while going:
        going.sort(key=lambda row: len(ids[row]))  # those sampled together are to leave alike room
        for first in range(0, len(going), batch):
            rows = going[first : first + batch]
            read = [opened[row] + ids[row] for row in rows]
            drawn = generate(
                model,
                read,
                seeds=[mix_seed("think", seed, row, turn) >> 1 for row in rows],
                samples=1,
                max_tokens=min(most - len(ids[rows[0]]), model.context - max(map(len, read))),
                pad=tokens.pad,
                stop=(end, *tokens.stop),
                decoding=Decoding(temperature=temperature),
            )
            made = zip(rows, drawn.ids_BT.tolist(), drawn.mask_BT.sum(1).tolist(), drawn.finish, strict=True)
            for row, found, n, finish in made:
                ids[row] += found[: n - (finish == "stop")]
                if finish == "stop" and len(ids[row]) < most:
                    ended[row] = len(ids[row]) if ended[row] is None else ended[row]
                    ids[row].append(again)
                del ids[row][most:]
        going = [row for row in going if len(ids[row]) < most]
        turn += 1
    return Thoughts(tuple(prompts), tuple(ids), tuple(ended))


def answer_after(
    model: LanguageModel,
    tokens: Tokens,
    thoughts: Thoughts,
    asked: Sequence[tuple[int, int]],
    *,
    seed: int,
    temperature: float = 1.0,
    batch: int = ROWS,
) -> list[Completion]:
    """The answer of each row of `asked` once so many tokens of its thought are read and the thinking is closed."""
    (start,), (end,) = tokens.encode(START), tokens.encode(END)
    found: list[Completion] = []
    for first in range(0, len(asked), batch):
        part = asked[first : first + batch]
        drawn = generate(
            model,
            [[*tokens.encode(thoughts.prompts[row]), start, *thoughts.ids[row][:n], end] for row, n in part],
            seeds=[mix_seed("answer", seed, row) >> 1 for row, _ in part],
            samples=1,
            max_tokens=MAX_TOKENS,
            pad=tokens.pad,
            stop=tokens.stop,
            decoding=Decoding(temperature=temperature),
        )
        found += read_completions(drawn, tokens)
    return found


def measure_thinker(
    model: LanguageModel,
    tokens: Tokens,
    task: Task,
    *,
    problems: int = 256,
    samples: int = 16,
    budgets: Sequence[int] = BUDGETS,
    seed: int = 0,
) -> dict[str, Any]:
    """At every budget: held to it (`capped`, which may end earlier), and thinking for all of it (`forced`)."""
    posed = task.problems(("thinker", "measure", seed), problems, split="test")
    rows = [problem for problem in posed for _ in range(samples)]
    prompts = [str(problem.prompt) for problem in rows]
    thoughts = think_long(model, tokens, prompts, most=max(budgets), seed=seed)
    ends = [len(ids) if end is None else end for ids, end in zip(thoughts.ids, thoughts.ended, strict=True)]
    wanted = sorted(
        {(row, n) for row, end in enumerate(ends) for budget in budgets for n in (min(budget, end), budget)}
    )
    answers = dict(zip(wanted, answer_after(model, tokens, thoughts, wanted, seed=seed), strict=True))
    graded = {key: task.grade(rows[key[0]], answer) for key, answer in answers.items()}
    stood_at = [found_at(task, problem, tokens.decode(ids)) for problem, ids in zip(rows, thoughts.ids, strict=True)]
    told: dict[str, Any] = {"problems": problems, "samples": samples, "seed": seed}
    told["ends_by_itself"] = float(np.mean([end is not None for end in thoughts.ended]))

    def tell(budget: int, places_R: Sequence[int]) -> dict[str, Any]:
        keys = list(enumerate(places_R))
        right_PG = np.array([bool(graded[key].correct) for key in keys]).reshape(problems, samples)
        read = [graded[key].answer for key in keys]
        had_it = [at is not None and at <= place for at, place in zip(stood_at, places_R, strict=True)]
        return {
            "budget": budget,
            "accuracy": asdict(mean_of_prompts(right_PG.mean(1), bounds=(0, 1))),
            "answer_entropy": asdict(_entropy(read, samples)),
            "had_it": float(np.mean(had_it)),  # a right expression stood in the thinking
            "tokens": float(np.mean([key[1] + 2 + (answers[key].n_tokens or 0) for key in keys])),  # with both marks
            "right_P": right_PG.sum(1).tolist(),
            "vote": _votes(task, posed, read, samples),
        }

    told["capped"] = [tell(budget, [min(budget, end) for end in ends]) for budget in budgets]
    told["forced"] = [tell(budget, [budget] * len(rows)) for budget in budgets]
    told["fall"] = _fall(told["forced"], samples)
    told["against_parallel"] = _against_parallel(told["capped"])
    for row in (*told["capped"], *told["forced"]):
        row["vote"] = {n: float(np.mean(each)) for n, each in row["vote"].items()}
    return told


def found_at(task: Task, problem: Problem, thought: str) -> int | None:
    """After how many characters of the thought, one token each, a right expression stood in it."""
    at = 0
    for attempt in thought.split(NEXT):
        expression, equals, _ = attempt.partition("=")
        at += len(attempt) + len(NEXT)
        if equals and task.grade(problem, Completion(expression, finish="stop")).correct:
            return at - len(NEXT)
    return None


def _entropy(answers: Sequence[Answer | None], samples: int) -> Interval:
    """Of the answers to a problem, −Σ p ln p over their shares; what holds no answer is left out. Mean over problems."""
    each = []
    for first in range(0, len(answers), samples):
        counts = Counter(answer.text for answer in answers[first : first + samples] if answer is not None)
        total = sum(counts.values())
        each.append(-sum(n / total * log(n / total) for n in counts.values()) if total else 0.0)
    return mean_of_prompts(each, bounds=(0, log(samples)))


def _votes(
    task: Task, posed: Sequence[Problem], answers: Sequence[Answer | None], samples: int
) -> dict[str, list[float]]:
    """By n: the share of right majority votes of n answers, over the disjoint n of a problem; a value per problem."""
    told = {}
    for n in (1, 2, 4, 8, 16):
        if n > samples:
            break
        each = []
        for p, problem in enumerate(posed):
            mine = answers[p * samples : (p + 1) * samples]
            winners = [
                tally_votes(mine[first : first + n], seed=first).winner for first in range(0, samples - n + 1, n)
            ]
            right = [
                answer is not None and bool(task.grade(problem, Completion(answer.text, finish="stop")).correct)
                for answer in winners
            ]
            each.append(float(np.mean(right)))
        told[str(n)] = each
    return told


def _fall(forced: Sequence[Mapping[str, Any]], samples: int) -> dict[str, Any]:
    """Whether accuracy falls past an optimum: the best budget of every other problem against the largest, on the rest."""
    best = max(forced, key=lambda row: sum(row["right_P"][::2]))
    last = forced[-1]
    change = paired_difference(np.array(last["right_P"][1::2]) / samples, np.array(best["right_P"][1::2]) / samples)
    return {"best_budget": best["budget"], "last_budget": last["budget"], "last_minus_best": asdict(change)}


def _against_parallel(capped: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One long thought against a majority of n short ones that take no more tokens, for every pair that is near in tokens."""
    told = []
    for long in capped:
        for short in capped:
            n = max((int(n) for n in short["vote"] if int(n) * short["tokens"] <= long["tokens"]), default=1)
            if n > 1:
                change = paired_difference(np.array(long["vote"]["1"]), np.array(short["vote"][str(n)]))
                told.append(
                    {
                        "budget": long["budget"],
                        "tokens": long["tokens"],
                        "of": n,
                        "of_budget": short["budget"],
                        "of_tokens": n * short["tokens"],
                        "vote": float(np.mean(short["vote"][str(n)])),
                        "one_minus_vote": asdict(change),
                    }
                )
    return told
