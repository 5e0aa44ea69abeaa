"""Demonstrations that think about trips, in the form of `lab.search_traces`: plans, each gone through flight by flight, up to a right one.

    A2B,B1AC,C2B|>[ACB=AC0B1:1,ABC=AB1C1:0]ABC

After = the plan comes once more, with 1 after a city that a flight leads to and 0 after one that none does, and after : how many
there are that none leads to. Wrong plans are solutions with cities moved. As there, wrong plans are read and not learnt, a right one
ends the thinking, and some thoughts were cut off anywhere and are answered rightly nonetheless. Trips with dates are left out: to
tell a wrong day, days have to be added up.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from random import Random

from equipoise.base import Problem
from equipoise.errors import UsageError
from equipoise.lab.make_planner import moved
from equipoise.lab.search_traces import END, NEXT, OFF, START, Piece, Shares, Trace, cut_off
from equipoise.tasks.task import Seed, mix_seed
from equipoise.tasks.trips import Trips, find_faults

CHECKED = "="  # after a plan, before what is wrong with it


def make_thoughts(task: Trips, *, seed: Seed, n: int, shares: Shares = Shares()) -> Iterator[Trace]:
    """Of `n` different problems of the split "train"."""
    if task.dates:
        raise UsageError(f"thoughts go through flights alone, found trips with {task.dates} dates: use dates=0")
    for problem in task.problems(seed, n):
        yield make_thought(task, problem, Random(mix_seed("thought", seed, problem.id)), shares=shares)


def make_thought(task: Trips, problem: Problem, random: Random, *, shares: Shares = Shares()) -> Trace:
    right = sorted(task.solutions(problem))
    pieces = [Piece(START, True)]
    for plan in _wrong_plans(right, random, shares):
        pieces += [Piece(plan, False), Piece(f"{check(plan, problem)}{NEXT}", True)]
    answer = random.choice(right)
    pieces.append(Piece(f"{answer}{check(answer, problem)}{END}", True))
    return Trace(problem, (*cut_off(pieces, random, shares), Piece(answer, True)))


def check(plan: str, problem: Problem) -> str:
    """Leg by leg."""
    missing = {fault.short for fault in find_faults(plan, problem.params)}
    marks = [int(f"{a}{b}" not in missing) for a, b in pairwise(plan)]
    legs = "".join(f"{city}{mark}" for city, mark in zip(plan[1:], marks, strict=True))
    return f"{CHECKED}{plan[0]}{legs}{OFF}{len(marks) - sum(marks)}"


def _wrong_plans(right: list[str], random: Random, shares: Shares) -> Iterator[str]:
    """None twice; 3 on average."""
    seen = set(right)
    for _ in range(shares.most_wrong):
        if random.random() >= shares.go_on:
            return
        plan = moved(random.choice(right), random)
        if plan not in seen:
            seen.add(plan)
            yield plan
