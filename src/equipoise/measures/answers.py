"""The per-problem answer table: one row of scalars per rollout, gathered in one pass and mergeable.

Axes: R rollouts, P problems. Answers are canonical (`text.answers.canonical`), so equal answers share a code.
Codes are −1 where nothing was measured; numbers are nan.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from equipoise.base import CORRECT
from equipoise.rollouts.batch import Rollouts
from equipoise.text.answers import canonical, canonical_expression, read_answer, read_expression

UNKNOWN = -1
REMEMBERED = 100_000  # answers whose canonical form is kept
# Tasks whose answer is an arithmetic expression, by what their `env` contains: its value is given, so "(6-4)*5 = 10" says (6-4)*5.
EXPRESSION_TASKS = ("countdown", "game24", "game_of_24", "puzzle24")
_CODED = ("run_id", "split", "strategy", "env", "group_id", "prompt_id", "finish_reason")
_NUMBERS = (
    "step",
    "sample_index",
    "budget",
    "temperature",
    "reward",
    "confidence",
    "n_tokens",
    "n_thinking",
    "format_ok",
    "turn",
)


class Interner:
    """Texts as small integers, in order of first sight."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self.texts: list[str] = []
        self._codes: dict[str, int] = {}
        for text in texts:
            self.code(text)

    def code(self, text: str) -> int:
        code = self._codes.get(text)
        if code is None:
            code = self._codes[text] = len(self.texts)
            self.texts.append(text)
        return code

    def codes(self, texts: Iterable[str]) -> np.ndarray:
        return np.fromiter((self.code(text) for text in texts), dtype=np.int64)

    def find(self, text: str) -> int | None:
        """The code of a text seen before."""
        return self._codes.get(text)


@dataclass(slots=True)
class AnswerTable:
    """Scalars of every rollout. `numbers[name]` and `codes[name]` are (R,) arrays; `names[name]` decodes a code."""

    columns: ClassVar[tuple[str, ...]] = (*_CODED, *_NUMBERS, "answer", "outcome", "correct", "reference_answer")

    numbers: dict[str, np.ndarray] = field(default_factory=lambda: {name: np.empty(0) for name in _NUMBERS})
    codes: dict[str, np.ndarray] = field(
        default_factory=lambda: {name: np.empty(0, np.int64) for name in (*_CODED, "answer")}
    )
    names: dict[str, Interner] = field(default_factory=lambda: {name: Interner() for name in (*_CODED, "answer")})
    correct: np.ndarray = field(default_factory=lambda: np.empty(0))  # 1, 0, nan
    correct_from: str | None = None  # which column said so, in words
    answer_from: str | None = None

    def __len__(self) -> int:
        return len(self.correct)

    @property
    def prompt_R(self) -> np.ndarray:
        return self.codes["prompt_id"]

    @property
    def answer_R(self) -> np.ndarray:
        return self.codes["answer"]

    def has(self, name: str) -> bool:
        """Whether any rollout has this column."""
        if name == "correct":
            return bool(np.isfinite(self.correct).any())
        values = self.codes.get(name)
        return bool((values >= 0).any()) if values is not None else bool(np.isfinite(self.numbers[name]).any())

    def take(self, rows: np.ndarray) -> AnswerTable:
        """The table of some rows (indices or a mask)."""
        return AnswerTable(
            {name: values[rows] for name, values in self.numbers.items()},
            {name: values[rows] for name, values in self.codes.items()},
            self.names,
            self.correct[rows],
            self.correct_from,
            self.answer_from,
        )

    def __add__(self, other: AnswerTable) -> AnswerTable:
        """Both tables' rollouts. Codes of the second are translated into the first's."""
        codes, names = {}, {}
        for name, mine in self.names.items():
            names[name] = Interner(mine.texts)
            translate = np.append(names[name].codes(other.names[name].texts), UNKNOWN)  # −1 indexes the last
            codes[name] = np.concatenate([self.codes[name], translate[other.codes[name]]])
        return AnswerTable(
            {name: np.concatenate([values, other.numbers[name]]) for name, values in self.numbers.items()},
            codes,
            names,
            np.concatenate([self.correct, other.correct]),
            _both(self.correct_from, other.correct_from),
            _both(self.answer_from, other.answer_from),
        )


def _both(mine: str | None, other: str | None) -> str | None:
    return " and ".join(dict.fromkeys(word for word in (mine, other) if word is not None)) or None


class AnswerCounter:
    """Fills an `AnswerTable` from batches. `solved_at`: a reward from which a rollout counts as right.

    `read_texts`: where no rollout brings an answer, read answers out of the completions.
    """

    columns = AnswerTable.columns

    def __init__(self, *, solved_at: float | None = None, read_texts: bool = True) -> None:
        self._solved_at = solved_at
        self._read_texts = read_texts
        self._names = {name: Interner() for name in (*_CODED, "answer", "text_answer", "reference_answer")}
        self._codes: dict[str, list[np.ndarray]] = {name: [] for name in self._names}
        self._numbers: dict[str, list[np.ndarray]] = {name: [] for name in _NUMBERS}
        self._stated: list[np.ndarray] = []
        self._outcome: list[np.ndarray] = []
        self._text_known: list[np.ndarray] = []

    def add(self, rollouts: Rollouts) -> None:
        n = len(rollouts)
        for name in _NUMBERS:
            values = rollouts.numbers(name)
            self._numbers[name].append(np.full(n, np.nan) if values is None else values)
        for name in _CODED:
            found = rollouts.codes(name)
            self._codes[name].append(np.full(n, UNKNOWN) if found is None else self._translated(name, *found))
        expression_R = _expressions(rollouts)
        for name in ("answer", "reference_answer"):
            self._codes[name].append(self._canonical_codes(rollouts, name, expression_R))
        codes, known = self._answers_in_texts(rollouts, expression_R)
        self._codes["text_answer"].append(codes)
        self._text_known.append(known)
        stated = rollouts.numbers("correct")
        self._stated.append(np.full(n, np.nan) if stated is None else stated)
        self._outcome.append(_outcomes(rollouts))

    def _translated(self, name: str, codes: np.ndarray, texts: Sequence[str | None]) -> np.ndarray:
        """A batch's codes as the table's; a text that is None, and the code −1, stay unknown."""
        ours = [UNKNOWN if text is None else self._names[name].code(text) for text in texts]
        return _look_up(ours, codes, otherwise=UNKNOWN)

    def _canonical_codes(self, rollouts: Rollouts, name: str, expression_R: np.ndarray) -> np.ndarray:
        found = rollouts.codes(name)
        if found is None:
            return np.full(len(rollouts), UNKNOWN)
        codes, texts = found
        result = np.full(len(rollouts), UNKNOWN)
        for rows, form in ((~expression_R, _canonical), (expression_R, _canonical_expression)):
            if rows.any():
                used = {code: form(texts[code]) for code in np.unique(codes[rows]).tolist() if code >= 0}
                result[rows] = self._translated(name, codes[rows], [used.get(code) for code in range(len(texts))])
        return result

    def _answers_in_texts(self, rollouts: Rollouts, expression_R: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Answers read out of completions, as long as no rollout has brought an answer of its own; and who has a text."""
        texts = rollouts.texts("completion") if self._read_texts else None
        if texts is None or self._names["answer"].texts:
            return np.full(len(rollouts), UNKNOWN), np.zeros(len(rollouts), dtype=bool)
        codes = np.full(len(rollouts), UNKNOWN)
        for row, (text, expression) in enumerate(zip(texts, expression_R.tolist(), strict=True)):
            answer = None if text is None else (read_expression if expression else read_answer)(text)
            if answer is not None:
                codes[row] = self._names["text_answer"].code(answer.text)
        return codes, np.asarray([text is not None for text in texts], dtype=bool)

    def table(self) -> AnswerTable:
        numbers = {name: np.concatenate([np.empty(0), *chunks]) for name, chunks in self._numbers.items()}
        codes = {name: np.concatenate([np.empty(0, np.int64), *chunks]) for name, chunks in self._codes.items()}
        from_text = not self._names["answer"].texts and bool(self._names["text_answer"].texts)
        source = "text_answer" if from_text else "answer"
        names = {name: self._names[name] for name in _CODED} | {"answer": self._names[source]}
        answer, reference = codes[source], codes["reference_answer"]
        table_codes = {name: codes[name] for name in _CODED} | {"answer": answer}
        looked = np.concatenate([np.empty(0, bool), *self._text_known]) if from_text else np.full(len(answer), True)
        expression = _look_up([asks_expression(env) for env in names["env"].texts], codes["env"], otherwise=False)
        same = self._agrees(answer, names["answer"], reference)
        same[~looked | expression] = np.nan  # a reference is one of many right expressions, or their common value
        correct, said_by = self._judge(numbers["reward"], same)
        said = {"answer": "the answer column", "text_answer": "read from the completion"}[source]
        return AnswerTable(numbers, table_codes, names, correct, said_by, said if names["answer"].texts else None)

    def _agrees(self, answer: np.ndarray, names: Interner, reference: np.ndarray) -> np.ndarray:
        """1 where the answer equals the reference, 0 where it does not or could not be read, nan without a reference.

        Where no rollout at all has an answer, nobody looked for one, and nothing is known.
        """
        if not names.texts:
            return np.full(len(answer), np.nan)
        unseen = -2  # no answer has this code
        found = [names.find(text) for text in self._names["reference_answer"].texts]
        in_answers = np.asarray([*(unseen if code is None else code for code in found), unseen])
        return np.where(reference < 0, np.nan, (answer == in_answers[reference]).astype(float))

    def _judge(self, reward: np.ndarray, same: np.ndarray) -> tuple[np.ndarray, str | None]:
        """Right or wrong, from the first source that says anything; a reward counts only when told or when it is binary."""
        stated = np.concatenate([np.empty(0), *self._stated])
        outcome = np.concatenate([np.empty(0), *self._outcome])
        scored = np.isfinite(reward)
        if np.isfinite(stated).any():
            return stated, "the correct column"
        if np.isfinite(outcome).any():
            return outcome, "the outcome column"
        if self._solved_at is not None and scored.any():
            right = (reward >= self._solved_at).astype(float)
            return np.where(scored, right, np.nan), f"reward ≥ {self._solved_at:g}"
        values = set(np.unique(reward[scored]).tolist())
        if values and (values <= {0.0, 1.0} or values <= {-1.0, 1.0}):
            right = (reward == 1).astype(float)
            return np.where(scored, right, np.nan), "the reward, which takes only two values"
        if np.isfinite(same).any():
            return same, "comparison of the answer with the reference"
        return stated, None


def answers_needed(first: Rollouts, *, solved_at: float | None) -> bool:
    """Whether verdicts may have to come from comparing answers with references, judging by the first rollouts."""
    stated = solved_at is not None or any(_holds(first, name) for name in ("correct", "outcome"))
    return not stated and _holds(first, "reference_answer")


def brings_answers(first: Rollouts) -> bool:
    return _holds(first, "answer")


def _holds(rollouts: Rollouts, name: str) -> bool:
    if name == "correct":
        values = rollouts.numbers(name)
        return values is not None and bool(np.isfinite(values).any())
    found = rollouts.codes(name)
    return found is not None and bool((found[0] >= 0).any())


def asks_expression(env: str) -> bool:
    """Whether a task's answer is an expression, so that its value is not the answer."""
    name = env.lower().replace("-", "_").replace(" ", "_")
    return any(task in name for task in EXPRESSION_TASKS)


def _expressions(rollouts: Rollouts) -> np.ndarray:
    found = rollouts.codes("env")
    if found is None:
        return np.zeros(len(rollouts), dtype=bool)
    codes, envs = found
    return _look_up([asks_expression(env) for env in envs], codes, otherwise=False)


def _outcomes(rollouts: Rollouts) -> np.ndarray:
    found = rollouts.codes("outcome")
    if found is None:
        return np.full(len(rollouts), np.nan)
    codes, texts = found
    verdicts = [CORRECT.get(text) for text in texts]
    return _look_up([np.nan if right is None else float(right) for right in verdicts], codes, otherwise=np.nan)


def _look_up(values: Sequence[Any], codes: np.ndarray, *, otherwise: Any) -> np.ndarray:
    """values[code] for each code, and `otherwise` for −1."""
    found: np.ndarray = np.asarray([*values, otherwise])[codes]  # −1 is the last
    return found


_canonical = lru_cache(maxsize=REMEMBERED)(canonical)
_canonical_expression = lru_cache(maxsize=REMEMBERED)(canonical_expression)
