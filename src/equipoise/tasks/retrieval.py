"""Questions whose answer is several look-ups away: facts made up from a seed, and a search over them that needs no network.

    Where does the friend of the teacher of Mirela live?

Mirela's teacher is in one sentence, the teacher's friend in another, and where that one lives in a third. Each look-up finds the
next name, so that the number of hops is the number of calls that are needed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from itertools import pairwise
from random import Random

from equipoise.base import Answer, Completion, Grade, Problem
from equipoise.tasks.reading import read_completion, read_stated
from equipoise.tasks.task import Draft, Seed, draw_problems, need, right_or_wrong, unparsable

RELATIONS = ("teacher", "friend", "neighbour", "doctor", "cousin", "landlord")
FACT = "The {relation} of {name} is {other}."
HOME = "{name} lives in {place}."
QUESTION = "Where does {who} live?"
HOW = "Look facts up with <search>words</search>. When you know it, give the place alone within <answer> and </answer>."
NOTHING = "nothing found"
SHOWN = 200  # characters of a query that are read

_SYLLABLES = ("ba", "do", "fe", "gi", "ka", "lo", "mi", "na", "po", "ra", "se", "tu", "va", "we", "zo")
_WORD = re.compile(r"[a-z]+")
_COMMON = frozenset({"the", "of", "is", "lives", "in", "who", "where", "does", "live", "a"})


@dataclass(frozen=True, slots=True)
class Retrieval:
    """`hops` facts lead from the name in the question to the answer, among `people` who have one fact of each relation."""

    env: str = "retrieval"
    hops: int = 3  # look-ups needed, the last one for the place
    people: int = 12
    shown: int = 1  # facts that a search shows

    def __post_init__(self) -> None:
        need(1 <= self.hops <= 6, f"hops of {self.env} is 1 to 6, found {self.hops}")
        need(self.hops < self.people <= 60, f"people of {self.env} is above hops and at most 60, found {self.people}")
        need(1 <= self.shown <= 10, f"shown of {self.env} is 1 to 10, found {self.shown}")

    def problems(self, seed: Seed, n: int, *, split: str = "train") -> list[Problem]:
        space = {name: value for name, value in asdict(self).items() if name != "shown"}
        return draw_problems(self._draw, space=space, seed=seed, n=n, split=split)

    def read(self, problem: Problem, text: str) -> Answer | None:
        return read_stated(text, _form, bare=lambda said: _form(said) if said.strip().isalpha() else None)

    def grade(self, problem: Problem, completion: Completion) -> Grade:
        answer = read_completion(completion, lambda text: self.read(problem, text))
        if answer is None:
            return unparsable("no name of a place found")
        return right_or_wrong(answer, answer.text == problem.reference)

    def solutions(self, problem: Problem) -> frozenset[str]:
        return frozenset([problem.reference or ""])

    def distractor(self, problem: Problem, random: Random) -> str | None:
        """The home of somebody else."""
        facts: Sequence[str] = problem.params["facts"]
        homes = [fact.rstrip(".").rpartition(" ")[2].lower() for fact in facts if " lives in " in fact]
        return random.choice([home for home in homes if home != problem.reference])

    def tools(self, problem: Problem) -> Mapping[str, Callable[[str], str]]:
        return {"search": lambda query: search_facts(query, problem.params["facts"], shown=self.shown)}

    def _draw(self, random: Random) -> Draft | None:
        names = _new_words(random, self.people)
        places = _new_words(random, self.people, but=names)
        chain = [names[0]]
        steps = []
        facts = [HOME.format(name=name, place=place) for name, place in zip(names, places, strict=True)]
        others = {(name, r): random.choice([n for n in names if n != name]) for name in names for r in RELATIONS}
        for _ in range(self.hops - 1):
            relation = random.choice(RELATIONS)
            fresh = [name for name in names if name not in chain]
            others[chain[-1], relation] = random.choice(fresh)
            steps.append(relation)
            chain.append(others[chain[-1], relation])
        facts += [FACT.format(relation=r, name=name, other=other) for (name, r), other in others.items()]
        random.shuffle(facts)
        who = chain[0]
        for relation in steps:
            who = f"the {relation} of {who}"
        question = QUESTION.format(who=who)
        home = places[names.index(chain[-1])].lower()
        params = {"facts": facts, "question": question, "chain": chain, "relations": steps}
        key = f"{question} {home} {sorted(facts)}"
        return Draft(key, Problem(f"{self.env}:{question} {home}", self.env, f"{question} {HOW}", home, params))


def search_facts(query: str, facts: Sequence[str], *, shown: int = 1) -> str:
    """The facts that share most with the query: words, and pairs of neighbouring words; of equals the first.

    Each counts 1 / (facts that have it), so that a rare one counts for more. Sums of fractions: exact, and the same everywhere.
    """
    asked = _terms(query[:SHOWN])
    terms = {fact: _terms(fact) for fact in facts}
    spread = Counter(term for fact in facts for term in terms[fact])
    score = {fact: sum((Fraction(1, spread[term]) for term in asked & terms[fact]), Fraction(0)) for fact in facts}
    found = sorted((fact for fact in facts if score[fact] > 0), key=lambda fact: -score[fact])[:shown]
    return "\n".join(found) if found else NOTHING


def _terms(text: str) -> set[str]:
    words = _WORD.findall(text.lower())
    pairs = {f"{first} {second}" for first, second in pairwise(words) if {first, second} - _COMMON}
    return pairs | (set(words) - _COMMON)


def _form(text: str) -> str | None:
    word = text.strip().strip(".").lower()
    return word if 0 < len(word) <= 40 and word.isascii() and word.isalpha() else None


def _new_words(random: Random, n: int, but: Sequence[str] = ()) -> list[str]:
    found: list[str] = []
    while len(found) < n:
        word = "".join(random.choice(_SYLLABLES) for _ in range(3)).capitalize()
        if word not in found and word not in but and word.lower() not in _COMMON:
            found.append(word)
    return found
