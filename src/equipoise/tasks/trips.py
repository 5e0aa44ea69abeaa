"""Trip planning: an order of cities with a direct flight between neighbours, and some of them on a given day.

How long each stay lasts is given, so the order is the whole plan: a few letters. The checker says which flights there are not and which
days are missed, and scores a plan by how much of it holds: what a search that learns from its failures needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import combinations, pairwise
from random import Random
from typing import Any, NamedTuple

from equipoise.base import Answer, Completion, Grade, Problem, Prompt
from equipoise.tasks.again import Try
from equipoise.tasks.reading import read_completion, read_stated
from equipoise.tasks.task import Draft, Seed, draw_problems, need, unparsable, with_how
from equipoise.text.tidy import tidy_text

CITIES = "ABCDEFGHI"
MAX_CHARS = 200

# For a model of single characters: A2BC,B1AC,C3AB|B3> are three cities with their days and the cities that flights join
# them to, and B on day 3. It answers with the order alone: ABC.
SHORT_PROMPT = "{cities}|{dates}>"
QUESTION = (
    "Plan a trip that visits each of the cities {names} exactly once. {stays}. There are direct flights, both ways, between {flights}, and "
    "no others; flying takes no time, and the day after the last day in one city is the first day in the next. {dates}."
)
HOW = "Give the cities in the order of the visits, separated by commas, within <answer> and </answer>."
# A second try in the short form: the first, what is wrong with it, and then another. ACB!AC!B> is a plan with no flight
# from A to C, and B not on its day, or not visited once.
WRONG = "!"

_PLAN = re.compile(r"[A-J](?:(?:\s|,|;|-|–|>|→)*[A-J])*")
_CITY = re.compile(r"[A-J]")

Legs = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Trips:
    """Settings are the difficulty: fewer flights and more dates leave fewer plans."""

    env: str = "trips"
    cities: int = 8
    flights: int = 14
    dates: int = 3
    longest_stay: int = 4
    least_solutions: int = 2
    prompt: str = "short"  # or "words"
    reward: str = "share"  # of the rules that hold; or "right": 1 for a right plan and 0 for any other

    def __post_init__(self) -> None:
        most = len(CITIES)
        need(3 <= self.cities <= most, f"cities of {self.env} is 3 to {most}, found {self.cities}")
        pairs = self.cities * (self.cities - 1) // 2
        need(
            self.cities - 1 <= self.flights <= pairs,
            f"flights of {self.env} is {self.cities - 1} to {pairs} for {self.cities} cities, found {self.flights}",
        )
        need(0 <= self.dates <= self.cities, f"dates of {self.env} is 0 to {self.cities}, found {self.dates}")
        need(1 <= self.longest_stay <= 9, f"longest_stay of {self.env} is 1 to 9, found {self.longest_stay}")
        need(self.prompt in ("short", "words"), f"prompt of {self.env} is short or words, found '{self.prompt}'")
        need(self.reward in ("share", "right"), f"reward of {self.env} is share or right, found '{self.reward}'")

    def problems(self, seed: Seed, n: int, *, split: str = "train") -> list[Problem]:
        space = {name: value for name, value in asdict(self).items() if name not in ("prompt", "reward")}
        return draw_problems(self._draw, space=space, seed=seed, n=n, split=split)

    def read(self, problem: Problem, text: str) -> Answer | None:
        return read_stated(text, lambda raw: _form(raw, 2 * len(problem.params["stays"])))

    def grade(self, problem: Problem, completion: Completion) -> Grade:
        """The share of rules that hold: flights and dates, less one for every city too many or too few. 1 is right."""
        answer = read_completion(completion, lambda text: self.read(problem, text))
        if answer is None:
            return unparsable("no list of cities found")
        faults = find_faults(answer.text, problem.params)
        stays, dates = problem.params["stays"], problem.params["dates"]
        share = max(0.0, 1 - len(faults) / (len(stays) - 1 + len(dates)))
        return Grade(
            answer,
            "wrong" if faults else "right",
            float(not faults) if self.reward == "right" else share,
            {"rules": share},
            feedback="; ".join(fault.words for fault in faults) or None,
            format_ok=True,
        )

    def solutions(self, problem: Problem) -> frozenset[str]:
        params = problem.params
        return _solutions(tuple(params["stays"].items()), legs_of(params), tuple(map(tuple, params["dates"])))

    def distractor(self, problem: Problem, random: Random) -> str | None:
        """A plan in which two cities have changed places."""
        plan = list(random.choice(sorted(self.solutions(problem))))
        here, there = random.sample(range(len(plan)), 2)
        plan[here], plan[there] = plan[there], plan[here]
        changed = "".join(plan)
        return None if changed in self.solutions(problem) else changed

    def ask_again(self, problem: Problem, tries: Sequence[Try]) -> Prompt | None:
        """In the short form …|B3>ACB!AC!B> and then another try; several tries stand one after the other."""
        told = [
            f"{grade.answer.text}{''.join(WRONG + fault.short for fault in find_faults(grade.answer.text, problem.params))}>"
            for _, grade in tries
            if grade.answer is not None
        ]
        return f"{problem.prompt}{''.join(told)}" if told else None

    def _draw(self, random: Random) -> Draft | None:
        """A hidden plan, its flights and some more, and days on which it is in some of its cities."""
        names = CITIES[: self.cities]
        plan = random.sample(names, self.cities)
        stays = {name: random.randint(1, self.longest_stay) for name in names}
        legs = {_leg(a, b) for a, b in pairwise(plan)}
        others = [leg for leg in combinations(names, 2) if leg not in legs]
        legs |= set(random.sample(others, self.flights - len(legs)))
        first = _first_days(plan, stays)
        dated = sorted(random.sample(names, self.dates))
        dates = tuple((name, first[name] + random.randrange(stays[name])) for name in dated)
        if len(_solutions(tuple(stays.items()), frozenset(legs), dates)) < self.least_solutions:
            return None
        params = {
            "stays": stays,
            "flights": [list(leg) for leg in sorted(legs)],
            "dates": [list(date) for date in dates],
        }
        key = _short(params)
        question = key if self.prompt == "short" else _in_words(params)
        prompt = with_how(question, HOW, self.prompt)
        return Draft(
            f"trips:{key}",
            Problem(f"{self.env}:{key[:-1]}", self.env, prompt, "".join(plan), params | {"question": question}),
        )


class Fault(NamedTuple):
    """A rule that a plan breaks, in words and in the short form."""

    words: str
    short: str


def find_faults(plan: str, params: Mapping[str, Any]) -> list[Fault]:
    """All that is wrong with a plan, flights first."""
    stays, legs = params["stays"], legs_of(params)
    faults = [Fault(f"there is no flight from {a} to {b}", a + b) for a, b in pairwise(plan) if _leg(a, b) not in legs]
    faults += [Fault(f"there is no city {name}", name) for name in sorted(set(plan) - set(stays))]
    for name in stays:
        if (times := plan.count(name)) != 1:
            faults.append(Fault(f"{name} is visited {times} times" if times else f"{name} is not visited", name))
    first = _first_days(plan, stays)
    for name, day in params["dates"]:
        if name in first and not first[name] <= day < first[name] + stays[name]:
            last = first[name] + stays[name] - 1
            days = f"day {last}" if first[name] == last else f"days {first[name]} to {last}"
            faults.append(Fault(f"{name} is visited on {days}, not on day {day}", name))
    return faults


def legs_of(params: Mapping[str, Any]) -> Legs:
    return frozenset((a, b) for a, b in params["flights"])


def _leg(a: str, b: str) -> tuple[str, str]:
    return (a, b) if a < b else (b, a)


def _first_days(plan: Sequence[str], stays: Mapping[str, int]) -> dict[str, int]:
    """The day on which each city is first come to; days count from 1."""
    day, first = 1, dict[str, int]()
    for name in plan:
        first.setdefault(name, day)
        day += stays.get(name, 0)
    return first


def _form(text: str, most: int) -> str | None:
    if len(text) > MAX_CHARS or not _PLAN.fullmatch(tidied := tidy_text(text).strip()):
        return None
    cities = _CITY.findall(tidied)
    return "".join(cities) if 2 <= len(cities) <= most else None


def _short(params: Mapping[str, Any]) -> str:
    joined: dict[str, list[str]] = {name: [] for name in params["stays"]}
    for a, b in params["flights"]:
        joined[a].append(b)
        joined[b].append(a)
    cities = ",".join(f"{name}{days}{''.join(sorted(joined[name]))}" for name, days in params["stays"].items())
    return SHORT_PROMPT.format(cities=cities, dates=",".join(f"{name}{day}" for name, day in params["dates"]))


def _in_words(params: Mapping[str, Any]) -> str:
    def days(n: int) -> str:
        return "1 day" if n == 1 else f"{n} days"

    dates = " and ".join(f"in {name} on day {day}" for name, day in params["dates"])
    return QUESTION.format(
        names=", ".join(params["stays"]),
        stays="Stay " + ", ".join(f"{days(n)} in {name}" for name, n in params["stays"].items()),
        flights=", ".join(f"{a} and {b}" for a, b in params["flights"]),
        dates=f"Be {dates}" if dates else "No day is fixed",
    )


@lru_cache(maxsize=4096)
def _solutions(stays: tuple[tuple[str, int], ...], legs: Legs, dates: tuple[tuple[str, int], ...]) -> frozenset[str]:
    days, due = dict(stays), dict(dates)
    next_to = {name: [other for other in days if _leg(name, other) in legs] for name in days}

    def extend(plan: str, day: int) -> Iterator[str]:
        if len(plan) == len(days):
            yield plan
            return
        if any(last < day and name not in plan for name, last in due.items()):
            return  # its day is over, and it was not visited
        for name in next_to[plan[-1]] if plan else days:
            if name not in plan and (name not in due or due[name] < day + days[name]):
                yield from extend(plan + name, day + days[name])

    return frozenset(extend("", 1))
