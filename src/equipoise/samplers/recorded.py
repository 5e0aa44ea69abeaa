"""A pool of recorded completions as a sampler: strategies run on it offline, and every token is counted as if it were made."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from equipoise.base import Answer, Chunk, Completion, Draw, Finish, Grade, Outcome, Prompt, Question, Sampling
from equipoise.errors import UsageError
from equipoise.rollouts.readers.table import Source, open_source
from equipoise.samplers.recorded_rows import Count, PoolRows, read_pool

AS_RECORDED = -1  # the seed that replays completions in the order of their sample numbers
NEAR = 2.0  # a recorded budget stands for one that was asked for up to this ratio


class RecordedPool:
    """Replays what was recorded. Sample i of a seed is the i-th completion of the question, in an order that the seed shuffles."""

    def __init__(self, rows: PoolRows, *, chunk: int = 32, resample: bool = False, budget: int | None = None) -> None:
        if chunk < 1:
            raise UsageError(f"chunk is {chunk}: pieces are of 1 token or more")
        self.rows, self.chunk, self.resample, self.budget = rows, chunk, resample, budget
        keys = zip(rows.problem_R.tolist(), rows.budget_R.tolist(), strict=True)
        starts: dict[tuple[str, float | None], int] = {}
        for row, (problem, given) in enumerate(keys):
            starts.setdefault((rows.ids[problem], None if np.isnan(given) else given), row)
        stops = [*list(starts.values())[1:], len(rows.problem_R)]
        self._asked: Sampling | None = None  # how its questions are to be sampled, once they were asked for
        self._groups: dict[str, dict[float | None, range]] = {}
        for ((name, given), start), stop in zip(starts.items(), stops, strict=True):
            self._groups.setdefault(name, {})[given] = range(start, stop)

    @classmethod
    def of(
        cls,
        source: Source | Sequence[Source],
        *,
        chunk: int = 32,
        resample: bool = False,
        count: Count = "tokens",
        budget: int | None = None,
        where: Mapping[str, Any] | None = None,
        columns: Mapping[str, str] | None = None,
        texts: bool = False,
        token_lists: bool = True,
        solved_at: float | None = None,
    ) -> RecordedPool:
        """The pool of a run, a file or a folder that the readers take; prompt_id, answer, correct and n_tokens are enough.

        `chunk`: tokens of a piece. `resample`: draw with replacement, so that there is no end; otherwise asking for more than
        were recorded is an error. `count`: "samples" lets every completion cost one token, where n_tokens was not recorded.
        `budget`: which of several recorded budgets, where a question's `thinking_budget` does not say.
        `where`: only rows with these values of a column or of a key in `extra`. `columns`: as in `equipoise.read`.
        `texts`, `token_lists`: keep those (a text comes with the last piece). `solved_at`: the reward from which one is right.
        """
        run = open_source(source, columns=columns)
        rows = read_pool(run, count=count, where=where or {}, texts=texts, token_lists=token_lists, solved_at=solved_at)
        return cls(rows, chunk=chunk, resample=resample, budget=budget)

    @property
    def ids(self) -> tuple[str, ...]:
        return self.rows.ids

    @property
    def budgets(self) -> tuple[int, ...]:
        """The recorded ones; empty where none was."""
        return tuple(int(budget) for budget in np.unique(self.rows.budget_R[~np.isnan(self.rows.budget_R)]))

    def size(self, prompt_id: str, *, thinking_budget: int | None = None) -> int:
        """How many completions of a question were recorded."""
        return len(self._group(prompt_id, thinking_budget))

    def questions(self, *, seed: int | None = 0, how: Sampling | None = None) -> list[Question]:
        """A question for every problem, whose prompt is the prompt_id. `seed` None: completions in the order they were recorded.

        `how`: default as many tokens as the longest completion took, so that none is cut.
        """
        longest = max(1, int(self.rows.n_tokens_R.max()))
        how = Sampling(max_tokens=longest, thinking_budget=self.budget) if how is None else how
        self._asked = how
        judged = bool(np.isfinite(self.rows.correct_R).any() or np.isfinite(self.rows.reward_R).any())
        return [
            Question(
                id=name,
                prompt=name,
                read=recorded_answer,
                how=how,
                judge=recorded_grade if judged else None,
                seed=AS_RECORDED if seed is None else _mixed(seed, name) >> 1,
            )
            for name in self.ids
        ]

    def draw(self, prompt: Prompt, how: Sampling, *, n: int, seed: int, first: int = 0) -> Draw:
        if not isinstance(prompt, str) or prompt not in self._groups:
            raise UsageError(
                f"a recorded pool answers its own {len(self.ids):,} questions, not the prompt {str(prompt)[:60]!r}: "
                "a strategy that writes prompts of its own needs a model"
            )
        self._refuse_other(how)
        group = self._group(prompt, how.thinking_budget)
        if first + n > len(group) and not self.resample:
            raise UsageError(
                f"completion number {first + n} of '{prompt}' was asked for, and {len(group)} were recorded: "
                "ask for fewer, record more, or draw with replacement (resample=True)"
            )
        if self.resample:
            places = (np.random.default_rng(_mixed(seed, prompt)).random(first + n) * len(group)).astype(int)
        elif seed == AS_RECORDED:
            places = np.arange(len(group))
        else:
            places = np.argsort(np.random.default_rng(_mixed(seed, prompt)).random(len(group)), kind="stable")
        chosen = [group[place] for place in places[first : first + n].tolist()]
        return _Replay(self.rows, chosen, chunk=self.chunk, limit=how.max_tokens)

    def _refuse_other(self, how: Sampling) -> None:
        """What was recorded cannot be sampled in another way."""
        if self._asked is None:
            return
        changed = [
            f"{name}={getattr(how, name)}"
            for name in ("temperature", "top_p", "extra")
            if getattr(how, name) != getattr(self._asked, name)
        ]
        if changed:
            raise UsageError(
                f"recorded samples were asked for with {', '.join(changed)}, and cannot be drawn again: compare on a model, "
                "or record a pool with these settings"
            )

    def _group(self, prompt_id: str, thinking_budget: int | None) -> range:
        groups = self._groups[prompt_id]
        asked = self.budget if thinking_budget is None else thinking_budget
        if len(groups) == 1 and asked is None:
            return next(iter(groups.values()))
        recorded = sorted(budget for budget in groups if budget is not None)
        if not recorded:  # one budget, which was not written down
            return groups[None]
        told = ", ".join(f"{budget:g}" for budget in recorded)
        if asked is None:
            raise UsageError(
                f"'{prompt_id}' was recorded with budgets {told}{' and without' if None in groups else ''}: "
                "choose one with budget=…, or ask with a thinking_budget"
            )
        nearest = min(recorded, key=lambda budget: (_ratio(budget, asked), budget))
        if _ratio(nearest, asked) > NEAR:
            raise UsageError(
                f"a budget of {asked} was asked for, and '{prompt_id}' was recorded with {told}: ask for one of these"
            )
        return groups[nearest]


def recorded_answer(completion: Completion) -> Answer | None:
    """The answer that was recorded; one that was cut short has none."""
    return None if completion.grade is None else completion.grade.answer


def recorded_grade(completion: Completion) -> Grade:
    return Grade(None, None, None) if completion.grade is None else completion.grade


class _Replay:
    """A piece of each completion in turn."""

    def __init__(self, rows: PoolRows, chosen: Sequence[int], *, chunk: int, limit: int) -> None:
        self._rows, self._chosen, self._chunk, self._limit = rows, chosen, chunk, limit
        self._made = [0] * len(chosen)
        self._turn = deque(range(len(chosen)))
        self._why: dict[int, Finish] = {}

    def __aiter__(self) -> _Replay:
        return self

    def cancel(self, index: int, why: Finish) -> None:
        self._why.setdefault(index, why)

    async def __anext__(self) -> Chunk:
        if not self._turn:
            raise StopAsyncIteration
        index = self._turn.popleft()
        if index in self._why:
            return Chunk(index, finish=self._why[index])
        rows, row, made = self._rows, self._chosen[index], self._made[index]
        total, thought = int(rows.n_tokens_R[row]), int(rows.n_thinking_R[row])
        until = self._made[index] = min(made + self._chunk, total, self._limit)
        pieces = {
            column: None if (values := found.of(row)) is None else values[made:until].tolist()
            for column, found in rows.lists.items()
        }
        n_thinking = max(0, min(until, thought) - made)
        finish: Finish | None = None
        if until == total:
            finish = _finish(rows, row)
        elif until == self._limit:
            finish = "length"
        else:
            self._turn.append(index)
        ended = until == total
        return Chunk(
            index,
            text=(_text(rows, "completion", row) if ended else None) or "",
            thinking=(_text(rows, "thinking", row) if ended else None) or "",
            n_tokens=until - made,
            n_thinking=n_thinking,
            token_confidences=pieces.get("token_confidences"),
            logprobs=pieces.get("logprobs_rollout"),
            entropies=pieces.get("entropies"),
            finish=finish,
            error="it was recorded as failed" if finish == "error" else None,
            trace_confidences=_traces(rows, row) if ended else None,
            grade=_grade(rows, row) if ended else None,
        )


def _text(rows: PoolRows, name: str, row: int) -> str | None:
    return rows.texts[name][row] if name in rows.texts else None


def _finish(rows: PoolRows, row: int) -> Finish:
    """As recorded, where it was. One that a budget cut is of that length here: it says nothing of the budget of today."""
    code = int(rows.finish_R[row])
    word = rows.finishes[code] if code >= 0 else "stop"
    return "length" if word == "budget" else word  # type: ignore[return-value]


def _grade(rows: PoolRows, row: int) -> Grade:
    code, correct = int(rows.answer_R[row]), float(rows.correct_R[row])
    answer = Answer(rows.answers[code]) if code >= 0 else None
    outcome: Outcome | None = None
    if not np.isnan(correct):
        outcome = "right" if correct else "unparsable" if answer is None else "wrong"
    return Grade(answer, outcome, _known(rows.reward_R[row]), confidence=_known(rows.confidence_R[row]))


def _traces(rows: PoolRows, row: int) -> dict[str, float] | None:
    found = {rule: float(values[row]) for rule, values in rows.traces.items() if not np.isnan(values[row])}
    return found or None


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _ratio(a: float, b: float) -> float:
    low, high = sorted((a, b))
    return high / low if low > 0 else (1.0 if high == low else np.inf)


def _mixed(seed: int, name: str) -> int:
    """64 bits of a seed and a question: neighbouring seeds share nothing, and no two questions are shuffled alike."""
    return int.from_bytes(blake2b(f"{seed}\x1f{name}".encode("utf-8", "replace"), digest_size=8).digest(), "big")
