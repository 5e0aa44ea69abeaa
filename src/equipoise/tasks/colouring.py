"""Graph colouring: give neighbours different colours. Colours are interchangeable: 2,1,2 and 1,2,1 are one answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import combinations
from random import Random

from equipoise.base import Answer, Completion, Grade, Problem
from equipoise.tasks.reading import read_completion, read_stated
from equipoise.tasks.task import Draft, Seed, draw_problems, need, right_or_wrong, unparsable, with_how
from equipoise.tasks.whole_numbers import listed_form, whole_numbers

MAX_NODES = 12

SHORT_PROMPT = "{colours}={edges}>"  # 3=1-2,2-3,2-4> and then 1,2,1,1
QUESTION = (
    "Colour the nodes 1 to {nodes} of a graph with the colours 1 to {colours} so that no edge joins two nodes of one colour. "
    "The edges are {edges}."
)
HOW = "Give the colours of the nodes in order, separated by commas, within <answer> and </answer>."

Edge = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Colouring:
    env: str = "colouring"
    nodes: int = 6
    edges: int = 8
    colours: int = 3
    least_solutions: int = 2
    prompt: str = "short"  # or "words"

    def __post_init__(self) -> None:
        need(2 <= self.nodes <= MAX_NODES, f"nodes of {self.env} is 2 to {MAX_NODES}, found {self.nodes}")
        need(2 <= self.colours <= self.nodes, f"colours of {self.env} is 2 to {self.nodes}, found {self.colours}")
        most = self.nodes * (self.nodes - 1) // 2
        need(1 <= self.edges <= most, f"edges of {self.env} is 1 to {most} for {self.nodes} nodes, found {self.edges}")
        need(self.prompt in ("short", "words"), f"prompt of {self.env} is short or words, found '{self.prompt}'")

    def problems(self, seed: Seed, n: int, *, split: str = "train") -> list[Problem]:
        space = {name: value for name, value in asdict(self).items() if name != "prompt"}
        return draw_problems(self._draw, space=space, seed=seed, n=n, split=split)

    def read(self, problem: Problem, text: str) -> Answer | None:
        return read_stated(text, lambda raw: _form(raw, problem.params["nodes"]))

    def grade(self, problem: Problem, completion: Completion) -> Grade:
        answer = read_completion(completion, lambda text: self.read(problem, text))
        if answer is None:
            return unparsable(f"no list of {problem.params['nodes']} colours found")
        fault = _fault(whole_numbers(answer.text), problem)
        return right_or_wrong(answer, fault is None, fault)

    def solutions(self, problem: Problem) -> frozenset[str]:
        return _solutions(problem.params["nodes"], _edges(problem), problem.params["colours"])

    def distractor(self, problem: Problem, random: Random) -> str | None:
        """A solution in which one node has taken a neighbour's colour."""
        colours = whole_numbers(random.choice(sorted(self.solutions(problem))))
        here, there = random.choice(_edges(problem))
        colours[here - 1] = colours[there - 1]
        return ",".join(map(str, _renamed(colours)))

    def _draw(self, random: Random) -> Draft | None:
        """A hidden colouring, and edges between its classes only, so that there is a solution."""
        hidden = [random.randint(1, self.colours) for _ in range(self.nodes)]
        pairs = [(a, b) for a, b in combinations(range(1, self.nodes + 1), 2) if hidden[a - 1] != hidden[b - 1]]
        if len(pairs) < self.edges:
            return None
        edges = tuple(sorted(random.sample(pairs, self.edges)))
        if {node for edge in edges for node in edge} != set(range(1, self.nodes + 1)):
            return None  # a node on its own could have any colour, and the short prompt would not show it
        if len(_solutions(self.nodes, edges, self.colours)) < self.least_solutions:
            return None
        listed = ",".join(f"{a}-{b}" for a, b in edges)
        template = SHORT_PROMPT if self.prompt == "short" else QUESTION
        shown = listed if self.prompt == "short" else listed.replace(",", ", ")
        question = template.format(nodes=self.nodes, colours=self.colours, edges=shown)
        text = with_how(question, HOW, self.prompt)
        params = {
            "nodes": self.nodes,
            "colours": self.colours,
            "edges": [list(edge) for edge in edges],
            "question": question,
        }
        reference = ",".join(map(str, _renamed(hidden)))
        key = f"{self.colours}={listed}"
        return Draft(f"colouring:{key}", Problem(f"{self.env}:{key}", self.env, text, reference, params))


def _edges(problem: Problem) -> tuple[Edge, ...]:
    return tuple((a, b) for a, b in problem.params["edges"])


def _form(text: str, nodes: int) -> str | None:
    listed = listed_form(text, nodes)
    return ",".join(map(str, _renamed(whole_numbers(listed)))) if listed else None


def _renamed(colours: Sequence[int]) -> list[int]:
    """Colours numbered as they first appear."""
    names: dict[int, int] = {}
    return [names.setdefault(colour, len(names) + 1) for colour in colours]


def _fault(colours: Sequence[int], problem: Problem) -> str | None:
    if max(colours) > problem.params["colours"]:
        return f"uses {max(colours)} colours, not {problem.params['colours']}"
    for a, b in _edges(problem):
        if colours[a - 1] == colours[b - 1]:
            return f"nodes {a} and {b} share a colour"
    return None


@lru_cache(maxsize=4096)
def _solutions(nodes: int, edges: tuple[Edge, ...], colours: int) -> frozenset[str]:
    before = [[a for a, b in edges if b == node] for node in range(1, nodes + 1)]  # edges lead from lower to higher

    def extend(chosen: list[int]) -> Iterator[str]:
        if len(chosen) == nodes:
            yield ",".join(map(str, chosen))
            return
        # A colour not used so far is always the next number: every answer appears once, in its canonical form.
        for colour in range(1, min(colours, max(chosen, default=0) + 1) + 1):
            if all(chosen[a - 1] != colour for a in before[len(chosen)]):
                yield from extend([*chosen, colour])

    return frozenset(extend([]))
