"""The rows of a recorded pool as arrays, a few dozen bytes a row, in the order of problems, budgets and samples.

Axes: R recorded completions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from equipoise.errors import UsageError, unknown_name
from equipoise.files import parse_json
from equipoise.measures.answers import AnswerCounter, AnswerTable, brings_answers
from equipoise.measures.trace_confidence import RULES, trace_confidence
from equipoise.rollouts.batch import Rollouts
from equipoise.rollouts.run import Run

Count = Literal["tokens", "samples"]

LISTS = ("token_confidences", "logprobs_rollout", "entropies")
TEXTS = ("completion", "thinking")
TRACES = "trace_confidences"  # key of `extra`: {rule: confidence of the whole completion}
# A pool is one sampler: completions of several of these are of several samplers, and a vote over them means nothing.
ALIKE = ("run_id", "split", "step", "temperature", "strategy")


@dataclass(frozen=True, slots=True)
class TokenLists:
    """A token column: row r holds values[starts_R[r] : starts_R[r] + lengths_R[r]]; a length of −1: it has none."""

    values: np.ndarray
    starts_R: np.ndarray
    lengths_R: np.ndarray

    def of(self, row: int) -> np.ndarray | None:
        start, length = int(self.starts_R[row]), int(self.lengths_R[row])
        return None if length < 0 else self.values[start : start + length]


@dataclass(frozen=True, slots=True)
class PoolRows:
    """nan, and a code of −1, where nothing was recorded."""

    ids: tuple[str, ...]  # of the problems, in the order of their first rows
    problem_R: np.ndarray
    budget_R: np.ndarray
    n_tokens_R: np.ndarray
    n_thinking_R: np.ndarray
    answer_R: np.ndarray
    answers: Sequence[str]  # by code, canonical
    correct_R: np.ndarray
    reward_R: np.ndarray
    confidence_R: np.ndarray
    finish_R: np.ndarray
    finishes: Sequence[str]  # by code
    lists: Mapping[str, TokenLists]
    texts: Mapping[str, Sequence[str | None]]
    traces: Mapping[str, np.ndarray]  # by rule
    notes: tuple[str, ...]


def read_pool(
    run: Run, *, count: Count, where: Mapping[str, Any], texts: bool, token_lists: bool, solved_at: float | None
) -> PoolRows:
    """The rows of a run that `where` admits. See `RecordedPool.of`."""
    counter, gathered = AnswerCounter(solved_at=solved_at), _Gathered(TEXTS if texts else (), (TRACES, *where))
    for batch in run.rollouts(_columns(run, texts)):
        counter.add(batch)
        gathered.add(batch)
    table = counter.table()
    if not len(table):
        raise UsageError(f"{run.path} holds no completions: record some with equipoise sample")
    kept = np.flatnonzero(_admitted(table, gathered, where))
    if not len(kept):
        asked = ", ".join(f"{name}={value}" for name, value in where.items()) or "a prompt_id"
        raise UsageError(f"no completion of {run.path} has {asked}: choose rows by what its columns hold")
    _check_alike(table.take(kept), run)
    sample_R, budget_R = (np.nan_to_num(table.numbers[name], nan=np.inf) for name in ("sample_index", "budget"))
    order_R = kept[np.lexsort((sample_R[kept], budget_R[kept], _first_seen(table.prompt_R[kept])))]
    return _laid_out(table.take(order_R), gathered, order_R, run, count=count, token_lists=token_lists)


def _columns(run: Run, texts: bool) -> list[str]:
    """Without completions where nobody asks for them: they are most of a pool. Answers may have to be read out of them."""
    first = next(iter(run.rollouts(["answer"])), None)
    read = first is not None and not brings_answers(first)
    more = TEXTS if texts else ("completion",) if read else ()
    return [*AnswerTable.columns, *LISTS, *more, "extra"]


@dataclass(slots=True)
class _Gathered:
    """What the answer table does not hold, batch by batch."""

    text_columns: tuple[str, ...]
    extra_keys: tuple[str, ...]
    n: int = 0
    texts: dict[str, list[str | None]] = field(default_factory=dict)
    extra: dict[int, dict[str, Any]] = field(default_factory=dict)  # by row
    lists: dict[str, list[tuple[int, np.ndarray, np.ndarray]]] = field(
        default_factory=dict
    )  # first row, values, lengths

    def add(self, batch: Rollouts) -> None:
        for name in LISTS:
            ragged = batch.ragged(name)
            if ragged is not None:
                lengths = np.where(ragged.known, ragged.lengths, -1)
                self.lists.setdefault(name, []).append((self.n, ragged.values.astype(np.float32), lengths))
        for name in self.text_columns:
            self.texts.setdefault(name, []).extend(batch.texts(name) or [None] * len(batch))
        for row, text in enumerate(batch.texts("extra") or ()):
            if text is not None and any(key in text for key in self.extra_keys):
                found = parse_json(text)
                if isinstance(found, dict):
                    self.extra[self.n + row] = {key: found[key] for key in self.extra_keys if key in found}
        self.n += len(batch)

    def lists_of(self, name: str, order_R: np.ndarray) -> TokenLists | None:
        if name not in self.lists:
            return None
        starts, lengths = np.zeros(self.n, np.int64), np.full(self.n, -1)
        base = 0
        for first, values, sizes in self.lists[name]:
            rows, real = slice(first, first + len(sizes)), np.maximum(sizes, 0)
            starts[rows], lengths[rows] = base + np.cumsum(real) - real, sizes
            base += len(values)
        joined = np.concatenate([values for _, values, _ in self.lists[name]])
        return TokenLists(joined, starts[order_R], lengths[order_R])


def _admitted(table: AnswerTable, gathered: _Gathered, where: Mapping[str, Any]) -> np.ndarray:
    found = table.prompt_R >= 0  # a row that names no problem answers none
    for name, value in where.items():
        if name in table.codes:
            code = table.names[name].find(str(value))
            found &= table.codes[name] == (-2 if code is None else code)
        elif name in table.numbers:
            try:
                found &= table.numbers[name] == float(value)
            except ValueError:
                raise UsageError(f"rows are chosen by {name}={value}: {name} is a number") from None
        else:
            seen = {row: held[name] for row, held in gathered.extra.items() if name in held}
            if not seen:
                raise unknown_name("column to choose rows by", name, [*table.codes, *table.numbers])
            mine = [row for row, held in seen.items() if str(held) == str(value)]
            found &= np.isin(np.arange(len(table)), mine)
    return found


def _check_alike(table: AnswerTable, run: Run) -> None:
    for name in ALIKE:
        column = table.codes[name] if name in table.codes else table.numbers[name]
        values = np.unique(column[column >= 0])  # a row without one does not contradict the others
        if len(values) > 1:
            said = [table.names[name].texts[int(v)] if name in table.codes else f"{v:g}" for v in values[:5]]
            raise UsageError(
                f"{run.path} mixes {len(values)} values of {name} ({', '.join(said)}{', …' if len(values) > 5 else ''}), which are "
                f"different samplers: choose one of them, as in where={{'{name}': '{said[0]}'}}"
            )
    posed = set(zip(table.prompt_R.tolist(), table.codes["env"].tolist(), strict=True))
    if len(posed) > len({problem for problem, _ in posed}):
        envs = ", ".join(table.names["env"].texts[:5])
        raise UsageError(f"{run.path} has one prompt_id in several envs ({envs}): choose one, as in where={{'env': …}}")


def _first_seen(codes_R: np.ndarray) -> np.ndarray:
    """Codes numbered anew by where they first stand."""
    _, first, places = np.unique(codes_R, return_index=True, return_inverse=True)
    return np.asarray(np.argsort(np.argsort(first))[places])


def _laid_out(
    table: AnswerTable, gathered: _Gathered, order_R: np.ndarray, run: Run, *, count: Count, token_lists: bool
) -> PoolRows:
    lists = {name: found for name in LISTS if (found := gathered.lists_of(name, order_R)) is not None}
    n_tokens_R = _token_counts(table, lists, run) if count == "tokens" else np.ones(len(table), np.int32)
    whole, notes = {}, []
    for name, found in lists.items():
        torn_R = (found.lengths_R >= 0) & (found.lengths_R != n_tokens_R)
        if count == "tokens" and torn_R.any():
            notes.append(f"{int(torn_R.sum()):,} lists of {name} are not as long as n_tokens says and were left out")
        whole[name] = TokenLists(found.values, found.starts_R, np.where(torn_R, -1, found.lengths_R))
    keep = token_lists and count == "tokens"
    problem_R = _first_seen(table.prompt_R)
    firsts = np.unique(problem_R, return_index=True)[1]
    thinking_R = (
        np.minimum(np.nan_to_num(table.numbers["n_thinking"]), n_tokens_R) if count == "tokens" else 0 * n_tokens_R
    )
    return PoolRows(
        ids=tuple(table.names["prompt_id"].texts[code] for code in table.prompt_R[firsts].tolist()),
        problem_R=problem_R.astype(np.int32),
        budget_R=table.numbers["budget"],
        n_tokens_R=n_tokens_R,
        n_thinking_R=thinking_R.astype(np.int32),
        answer_R=table.answer_R.astype(np.int32),
        answers=table.names["answer"].texts,
        correct_R=table.correct.astype(np.float32),
        reward_R=table.numbers["reward"],
        confidence_R=table.numbers["confidence"],
        finish_R=table.codes["finish_reason"].astype(np.int8),
        finishes=table.names["finish_reason"].texts,
        lists={name: found for name, found in whole.items() if keep and (found.lengths_R >= 0).any()},
        texts={name: [held[row] for row in order_R.tolist()] for name, held in gathered.texts.items()},
        traces=_traces(gathered, order_R, None if keep else lists.get("token_confidences")),
        notes=tuple(notes),
    )


def _token_counts(table: AnswerTable, lists: Mapping[str, TokenLists], run: Run) -> np.ndarray:
    """As recorded, or as long as a token list of the row is."""
    n_tokens_R = table.numbers["n_tokens"]
    for found in lists.values():
        n_tokens_R = np.where(np.isnan(n_tokens_R) & (found.lengths_R >= 0), found.lengths_R, n_tokens_R)
    unknown = int(np.isnan(n_tokens_R).sum())
    if unknown:
        raise UsageError(
            f"{unknown:,} of {len(table):,} completions in {run.path} have no n_tokens, so what they cost is not known: "
            "record it, or let every completion count as one token with --count samples (count='samples')"
        )
    return n_tokens_R.astype(np.int32)


def _traces(gathered: _Gathered, order_R: np.ndarray, confidences: TokenLists | None) -> dict[str, np.ndarray]:
    """Those that were recorded; and what the token lists give, where they are not kept themselves."""
    traces: dict[str, np.ndarray] = {}

    def tell(rule: str, row: int, value: Any) -> None:
        if isinstance(value, int | float):
            if rule not in traces:
                traces[rule] = np.full(len(order_R), np.nan)
            traces[rule][row] = value

    for row, source in enumerate(order_R.tolist()):
        told = gathered.extra.get(source, {}).get(TRACES)
        tokens = None if confidences is None else confidences.of(row)
        if isinstance(told, dict):
            for rule, value in told.items():
                tell(rule, row, value)
        elif tokens is not None and np.isfinite(tokens).all():
            for rule in RULES:
                tell(rule, row, trace_confidence(tokens, rule))
    return traces
