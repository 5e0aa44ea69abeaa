"""Which rollouts a page shows, and what it tells of each. Groups stay whole, steps take turns, bytes are bounded.

A run may hold millions of rollouts and a page some hundred: first the keys of all are read, then the columns of the chosen.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from equipoise.files import plain
from equipoise.measures.rollout_facts import describe_rollout
from equipoise.rollouts.batch import Ragged, Rollouts
from equipoise.rollouts.run import Run
from equipoise.views.embed import narrow

SHOWN = 200
MAX_BYTES = 9_000_000  # of the rollouts of all runs on a page, which with Plotly's 4.8 MB stays below 15 MB
TOP = 5  # alternatives kept per token

_KEYS = ("run_id", "split", "step", "group_id", "prompt_id", "strategy", "budget", "temperature")
_TEXTS = ("run_id", "split", "group_id", "prompt_id", "env", "strategy", "prompt", "completion", "thinking", "reference_answer", "answer", "outcome", "finish_reason")  # fmt: skip
_NUMBERS = ("step", "sample_index", "budget", "correct", "reward", "confidence", "format_ok", "advantage", "temperature", "n_tokens", "n_thinking", "turn")  # fmt: skip
_TOKENS = {"ids": "token_ids", "entropies": "entropies", "logprobs": "logprobs_rollout"}
_WHOLE = {"step", "sample_index", "budget", "n_tokens", "n_thinking", "turn"}
_FLAG = {"correct", "format_ok"}

Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Browsed:
    """The rollouts that a page shows. `rows` are plain JSON; token lists are numpy arrays as the record has them."""

    rows: tuple[dict[str, Any], ...]
    total: int
    path: str
    vocab: Mapping[int, str]  # of the tokens shown

    @property
    def choice(self) -> str:
        """How they were chosen, and where the others are."""
        if not self.total:
            return f"{self.path} holds no rollouts; its figures come from what was logged."
        if len(self.rows) == self.total:
            return f"All {self.total:,} rollouts of {self.path}."
        return (
            f"{len(self.rows):,} of {self.total:,} rollouts: whole groups, taken in turn from steps and settings spread over "
            f"the run, those with token entropies first. The others are in {self.path}."
        )

    def to_dict(self) -> dict[str, Any]:
        rows = [
            row | {name: None if row[name] is None else row[name].tolist() for name in _TOKENS} for row in self.rows
        ]
        vocab = {str(token): text for token, text in self.vocab.items()}
        return {"total": self.total, "path": self.path, "choice": self.choice, "rows": rows, "vocab": vocab}


def browse(
    run: Run, *, shown: int = SHOWN, max_bytes: int = MAX_BYTES, measured_R: np.ndarray | None = None
) -> Browsed:
    """Up to `shown` rollouts, or one group if that is larger, in at most about `max_bytes` of JSON.

    `measured_R`: how many token entropies each rollout has, in the run's order; groups with any come first.
    """
    groups, first = _groups(run, measured_R)
    total = sum(groups.values())
    chosen = choose_groups(groups, shown, first=first)
    vocab = run.vocab() or {}
    kept: dict[Key, list[dict[str, Any]]] = {key: [] for key in chosen}
    wanted = sum(groups[key] for key in chosen)
    for rollouts in run.rollouts(sorted({*_TEXTS, *_NUMBERS, *_TOKENS.values(), "messages", "topk_ids", "topk_logprobs", "rewards"})):  # fmt: skip
        if not wanted:
            break
        keys = list(_keys_of(rollouts))
        places = [place for place, key in enumerate(keys) if key in kept]
        for place, row in zip(places, _rows(rollouts, places), strict=True):
            kept[keys[place]].append(row)
            wanted -= 1
    rows = _within(kept, max_bytes)
    seen = {int(token) for row in rows if row["ids"] is not None for token in np.unique(row["ids"])}
    seen |= {token for row in rows for tokens in row["top_ids"] or () for token in tokens or ()}
    return Browsed(tuple(rows), total, str(run.path), {token: vocab[token] for token in sorted(seen) if token in vocab})


def _keys_of(rollouts: Rollouts) -> Iterator[Key]:
    """A group's key for each row: how it was drawn, at which step, and its id, or else its problem."""
    texts = {name: rollouts.texts(name) or [None] * len(rollouts) for name in ("run_id", "split", "group_id", "prompt_id", "strategy")}  # fmt: skip
    numbers = {name: rollouts.numbers(name) for name in ("step", "budget", "temperature")}
    for place in range(len(rollouts)):
        step, budget, temperature = (_number(numbers[name], place) for name in numbers)
        group = texts["group_id"][place]
        drawn = tuple(texts[name][place] for name in ("run_id", "split", "strategy"))
        yield (*drawn, budget, temperature, step, texts["prompt_id"][place] if group is None else group)


def _groups(run: Run, measured_R: np.ndarray | None) -> tuple[dict[Key, int], set[Key]]:
    """How many rollouts each group has, and the groups with token entropies."""
    counts: dict[Key, int] = {}
    first: set[Key] = set()
    known = 0 if measured_R is None else len(measured_R)  # a run that grows has more rollouts by now
    for place, key in enumerate(key for rollouts in run.rollouts(_KEYS) for key in _keys_of(rollouts)):
        counts[key] = counts.get(key, 0) + 1
        if measured_R is not None and place < known and measured_R[place]:
            first.add(key)
    return counts, first


def choose_groups(groups: Mapping[Key, int], shown: int, *, first: Collection[Key] = ()) -> list[Key]:
    """Whole groups, in turn from every step and way of drawing, first the last step, then the first, then between.

    One group at least is taken if any is asked for; another is passed over where it would lead over `shown`. Of one step and
    way, groups in `first` come first.
    """
    if shown < 1:
        return []
    strata: dict[Key, list[Key]] = {}
    for key in sorted(groups, key=lambda key: key not in first):  # sorted keeps the order of the run otherwise
        strata.setdefault(key[:-1], []).append(key)
    order = [sorted(strata, key=_place)[place] for place in spread(len(strata))]
    chosen: list[Key] = []
    used = turn = 0
    while any(turn < len(strata[name]) for name in order):
        for name in order:
            if turn >= len(strata[name]):
                continue
            key = strata[name][turn]
            if not chosen or used + groups[key] <= shown:
                chosen.append(key)
                used += groups[key]
        if used + min(groups.values()) > shown:
            break
        turn += 1
    return sorted(chosen, key=_place)


def _place(key: Key) -> tuple[Any, ...]:
    """Order by step, then by how it was drawn; None first. A stratum's key has no group."""
    step = key[5]
    return (step is not None, step or 0, tuple((part is not None, str(part)) for part in key[:5]))


def spread(n: int) -> list[int]:
    """0 … n − 1 so that any beginning is spread over the whole: the last, the first, then middles of the widest gaps."""
    if n < 3:
        return [n - 1, 0][:n] if n else []
    order, gaps = [n - 1, 0], [(0, n - 1)]
    while gaps:
        following = []
        for low, high in gaps:
            middle = (low + high) // 2
            if middle not in (low, high):
                order.append(middle)
                following += [(low, middle), (middle, high)]
        gaps = following
    return order


def _within(kept: Mapping[Key, list[dict[str, Any]]], max_bytes: int) -> list[dict[str, Any]]:
    """The groups that fit, whole; of a first group that alone does not fit, its first rollouts."""
    rows: list[dict[str, Any]] = []
    for group in kept.values():
        sizes = [size_of(row) for row in group]
        if sum(sizes) <= max_bytes:
            rows += group
            max_bytes -= sum(sizes)
        elif not rows:
            for row, size in zip(group, sizes, strict=True):
                if size > max_bytes:
                    break
                rows.append(row)
                max_bytes -= size
    return rows


def size_of(row: Mapping[str, Any]) -> int:
    """Bytes that a row takes in a page: token arrays as base64, the rest as JSON with `<` escaped."""
    arrays = sum(4 * (int(row[name].nbytes) + 2) // 3 for name in _TOKENS if row[name] is not None)
    rest = json.dumps(plain({name: value for name, value in row.items() if name not in _TOKENS}), ensure_ascii=False)
    return arrays + len(rest.encode("utf-8", "replace")) + 5 * sum(map(rest.count, "<>&"))


def _rows(rollouts: Rollouts, places: Sequence[int]) -> Iterator[dict[str, Any]]:
    texts = {name: rollouts.texts(name) for name in _TEXTS}
    numbers = {name: rollouts.numbers(name) for name in _NUMBERS}
    tokens = {ours: rollouts.ragged(theirs) for ours, theirs in _TOKENS.items()}
    whole = rollouts.batch.schema.names
    nested = {name: rollouts.batch.column(name) if name in whole else None for name in ("messages", "rewards", "topk_ids", "topk_logprobs")}  # fmt: skip
    for place in places:
        row: dict[str, Any] = {name: None if cells is None else cells[place] for name, cells in texts.items()}
        row |= {name: _typed(name, _number(cells, place)) for name, cells in numbers.items()}
        row |= {name: _list(cells, place) for name, cells in tokens.items()}
        others = {name: None if cells is None else cells[place].as_py() for name, cells in nested.items()}
        if row["prompt"] is None and others["messages"]:
            row["prompt"] = "\n".join(f"[{m.get('role')}] {m.get('content')}" for m in others["messages"])
        row["rewards"] = dict(others["rewards"]) if others["rewards"] else None
        ids, logprobs = others["topk_ids"], others["topk_logprobs"]
        row["top_ids"] = None if ids is None else [None if t is None else t[:TOP] for t in ids]
        row["top_logprobs"] = None if logprobs is None else [None if t is None else t[:TOP] for t in logprobs]
        facts = describe_rollout(
            row["entropies"], row["completion"], finish=row["finish_reason"], outcome=row["outcome"]
        )
        row |= {"mean_entropy": facts.mean_entropy, "p95_entropy": facts.p95_entropy, "fork_from": facts.fork_from, "flags": list(facts.flags)}  # fmt: skip
        yield row


def _number(cells: np.ndarray | None, place: int) -> float | None:
    return None if cells is None or not np.isfinite(cells[place]) else float(cells[place])


def _typed(name: str, value: float | None) -> float | int | bool | None:
    if value is None:
        return None
    return bool(value) if name in _FLAG else int(value) if name in _WHOLE else value


def _list(cells: Ragged | None, place: int) -> np.ndarray | None:
    if cells is None or not cells.known[place]:
        return None
    return narrow(cells.values[cells.offsets[place] : cells.offsets[place + 1]])
