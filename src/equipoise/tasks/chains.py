"""Arithmetic chains: what does 7+5-3*2 come to? One right answer; the length is the difficulty."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from random import Random

from equipoise.base import Answer, Completion, Grade, Problem
from equipoise.tasks.expressions import MAX_CHARS, parse_expression
from equipoise.tasks.reading import read_completion, read_stated
from equipoise.tasks.task import Draft, Seed, draw_problems, need, right_or_wrong, unparsable, with_how
from equipoise.text.answers import canonical
from equipoise.text.numerals import parse_number

SHORT_PROMPT = "{chain}>"  # 7+5-3> and then 9
QUESTION = "What is {chain}?"
HOW = "Give the number alone within <answer> and </answer>."


@dataclass(frozen=True, slots=True)
class Chains:
    env: str = "chains"
    length: int = 4  # numbers in the chain
    largest: int = 20
    operators: str = "+-"  # also *, which binds tighter as usual
    prompt: str = "short"  # or "words"

    def __post_init__(self) -> None:
        fits = (len(str(self.largest)) + 1) * self.length <= MAX_CHARS
        need(
            self.length >= 2 and fits,
            f"length of {self.env} is at least 2 and at most {MAX_CHARS} characters, found {self.length}",
        )
        need(1 <= self.largest < 10**9, f"largest of {self.env} is 1 to 999999999, found {self.largest}")
        need(
            bool(self.operators) and not set(self.operators) - set("+-*"),
            f"operators of {self.env} are of +-*, found '{self.operators}'",
        )
        need(self.prompt in ("short", "words"), f"prompt of {self.env} is short or words, found '{self.prompt}'")

    def problems(self, seed: Seed, n: int, *, split: str = "train") -> list[Problem]:
        space = {name: value for name, value in asdict(self).items() if name != "prompt"}
        return draw_problems(self._draw, space=space, seed=seed, n=n, split=split)

    def read(self, problem: Problem, text: str) -> Answer | None:
        return read_stated(text, _form)

    def grade(self, problem: Problem, completion: Completion) -> Grade:
        answer = read_completion(completion, lambda text: self.read(problem, text))
        if answer is None:
            return unparsable("no number found")
        return right_or_wrong(answer, answer.text == problem.reference)

    def solutions(self, problem: Problem) -> frozenset[str]:
        return frozenset([problem.reference or ""])

    def distractor(self, problem: Problem, random: Random) -> str | None:
        """A slip: off by one, by ten, or by twice one of the numbers, as when a sign is misread."""
        numbers = problem.params["numbers"]
        slip = random.choice([1, 2, 10, 2 * random.choice(numbers), random.choice(numbers)])
        return str(int(problem.reference or 0) + random.choice([-1, 1]) * slip)

    def _draw(self, random: Random) -> Draft | None:
        numbers = [random.randint(1, self.largest) for _ in range(self.length)]
        chain = str(numbers[0]) + "".join(f"{random.choice(self.operators)}{number}" for number in numbers[1:])
        made = parse_expression(chain)
        if made is None:
            return None
        question = (SHORT_PROMPT if self.prompt == "short" else QUESTION).format(chain=chain)
        text = with_how(question, HOW, self.prompt)
        params = {"chain": chain, "numbers": numbers, "question": question}
        # The key is the normal form: 2+3 and 3+2 are one problem.
        return Draft(f"chains:{made.form}", Problem(f"{self.env}:{chain}", self.env, text, str(made.value), params))


def _form(text: str) -> str | None:
    tidied = canonical(text)
    return tidied if tidied is not None and parse_number(tidied) is not None else None
