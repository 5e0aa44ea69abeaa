"""N-Queens completion: some queens stand already, place one in every other row. Most problems have several solutions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from random import Random

from equipoise.base import Answer, Completion, Grade, Problem
from equipoise.tasks.reading import read_completion, read_stated
from equipoise.tasks.task import Draft, Seed, draw_problems, need, right_or_wrong, unparsable, with_how
from equipoise.tasks.whole_numbers import listed_form, whole_numbers

SIZES = range(4, 11)  # 10 × 10 has 724 solutions

SHORT_PROMPT = "{columns}>"  # 0 where a queen is to be placed: 2,0,1,0> and then 2,4,1,3
QUESTION = (
    "Place {size} queens on a {size} x {size} board so that no two share a row, a column or a diagonal. "
    "Row by row, the queens' columns are {columns}, where 0 is a queen yet to be placed."
)
HOW = "Give the columns of all queens, separated by commas, within <answer> and </answer>."


@dataclass(frozen=True, slots=True)
class Queens:
    env: str = "queens"
    size: int = 8
    given: int = 2  # queens that stand already
    least_solutions: int = 2
    prompt: str = "short"  # or "words"

    def __post_init__(self) -> None:
        need(self.size in SIZES, f"size of {self.env} is {SIZES[0]} to {SIZES[-1]}, found {self.size}")
        need(0 <= self.given < self.size, f"given of {self.env} is 0 to {self.size - 1}, found {self.given}")
        need(self.prompt in ("short", "words"), f"prompt of {self.env} is short or words, found '{self.prompt}'")

    def problems(self, seed: Seed, n: int, *, split: str = "train") -> list[Problem]:
        space = {name: value for name, value in asdict(self).items() if name != "prompt"}
        return draw_problems(self._draw, space=space, seed=seed, n=n, split=split)

    def read(self, problem: Problem, text: str) -> Answer | None:
        return read_stated(text, lambda raw: listed_form(raw, self.size))

    def grade(self, problem: Problem, completion: Completion) -> Grade:
        answer = read_completion(completion, lambda text: self.read(problem, text))
        if answer is None:
            return unparsable(f"no list of {self.size} columns found")
        fault = _fault(whole_numbers(answer.text), problem.params["columns"])
        return right_or_wrong(answer, fault is None, fault)

    def solutions(self, problem: Problem) -> frozenset[str]:
        return frozenset(",".join(map(str, board)) for board in _completions(tuple(problem.params["columns"])))

    def distractor(self, problem: Problem, random: Random) -> str | None:
        """A solution in which two of the placed queens have exchanged their columns."""
        columns = problem.params["columns"]
        free = [row for row, column in enumerate(columns) if not column]
        board = list(random.choice(_completions(tuple(columns))))
        if len(free) < 2:
            return None
        first, second = random.sample(free, 2)
        board[first], board[second] = board[second], board[first]
        return ",".join(map(str, board)) if _fault(board, columns) else None

    def _draw(self, random: Random) -> Draft | None:
        board = random.choice(all_boards(self.size))
        standing = set(random.sample(range(self.size), self.given))
        columns = [column if row in standing else 0 for row, column in enumerate(board)]
        if len(_completions(tuple(columns))) < self.least_solutions:
            return None
        listed = ",".join(map(str, columns))
        template = SHORT_PROMPT if self.prompt == "short" else QUESTION
        question = template.format(
            size=self.size, columns=listed if self.prompt == "short" else listed.replace(",", ", ")
        )
        reference = ",".join(map(str, board))
        params = {"columns": columns, "question": question}
        text = with_how(question, HOW, self.prompt)
        return Draft(f"queens:{listed}", Problem(f"{self.env}:{listed}", self.env, text, reference, params))


@cache
def all_boards(size: int) -> tuple[tuple[int, ...], ...]:
    """Every way to place `size` queens: the column of each row, from 1."""
    boards: list[tuple[int, ...]] = [()]
    for row in range(size):
        boards = [
            (*board, column)
            for board in boards
            for column in range(1, size + 1)
            if all(column != other and abs(column - other) != row - above for above, other in enumerate(board))
        ]
    return tuple(boards)


def _completions(columns: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    fixed = [(row, column) for row, column in enumerate(columns) if column]
    return tuple(board for board in all_boards(len(columns)) if all(board[row] == column for row, column in fixed))


def _fault(board: Sequence[int], columns: Sequence[int]) -> str | None:
    """What is wrong with a board, or None."""
    size = len(columns)
    for row, column in enumerate(board, 1):
        if not 1 <= column <= size:
            return f"there is no column {column}"
        if columns[row - 1] not in (0, column):
            return f"the queen of row {row} stands in column {columns[row - 1]}"
    for row, column in enumerate(board):
        for above in range(row):
            if column == board[above] or abs(column - board[above]) == row - above:
                return f"the queens of rows {above + 1} and {row + 1} attack each other"
    return None
