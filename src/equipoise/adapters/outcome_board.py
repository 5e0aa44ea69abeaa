"""One place where the completions of a group meet, whichever worker scored them: the memory of a run's answers.

A host scores completions one by one, on many workers. Rarity of an answer over training, or its share of the group, is known
only once the group is complete. Workers post what they know of a completion and collect its term later; nobody waits inside
the board, so it can be a plain actor that does one thing at a time and is exact however many workers call it.

A term is a method of the catalogue that reads the answers, verdicts, lengths or confidences of a group. Counts are those of the
steps before this one (https://arxiv.org/abs/2509.06941): the answers of a step are counted when a later step's come in.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.catalogue.build import build, read_spec
from equipoise.catalogue.table import find_method
from equipoise.errors import UsageError
from equipoise.files import atomic_write, make_folder, read_json
from equipoise.shaping.counter import OutcomeCounter

INPUTS = ("visits_PG", "keep_PG", "correct_PG", "answer_PG", "confidence_PG", "n_tokens_PG")
ACTOR = "equipoise_outcomes"
WAIT = 1800.0  # seconds until a group is closed without those that never came
AT_A_TIME = 1000  # calls that a Ray actor of coroutines holds, as verl's reward workers are
ROOM = 0.8  # of them: completions go to workers at random, so some get more than their share


def workers_needed(completions: int) -> int:
    """Reward workers that can hold so many completions while each waits for the rest of its group."""
    return -(-completions // int(AT_A_TIME * ROOM))


@dataclass(frozen=True, slots=True)
class Scored:
    """What a worker knows of one completion. None: not known."""

    prompt_id: str  # the same in every step
    answer: str | None  # canonical
    correct: bool | None
    confidence: float | None
    n_tokens: int
    step: int


@dataclass(slots=True)
class _Meeting:
    size: int
    began: float
    rows: dict[int, Scored] = field(default_factory=dict)
    workers: dict[int, set[str]] = field(default_factory=dict)  # a host that pads its batches scores some rows twice


class OutcomeBoard:
    """Terms of groups and the counter behind them. All methods return at once."""

    def __init__(
        self, terms: Sequence[str], *, folder: str | None = None, save_every: int = 0, wait: float = WAIT
    ) -> None:
        self._terms = [_built(spec) for spec in terms]
        self._counter = OutcomeCounter()
        self._pending: list[tuple[int, str, list[str | None]]] = []  # step, problem and answers, not counted yet
        self._meetings: dict[str, _Meeting] = {}
        self._ready: dict[str, dict[tuple[str, int], float]] = {}  # by worker
        self._told: dict[str, dict[int, float]] = {}  # groups of this step that are closed
        self._closed: set[str] = set()  # groups that were closed before all had come
        self._folder, self._save_every, self._wait = folder, save_every, wait
        self._step: int | None = None
        self._broken: UsageError | None = None

    def post(self, worker: str, group: str, member: int, size: int, row: Mapping[str, Any]) -> None:
        """One completion of a group of `size`. The last one closes the group."""
        self._check()
        if group in self._closed or group in self._told:
            self._ready.setdefault(worker, {})[group, member] = self._told.get(group, {}).get(member, 0.0)
            return
        meeting = self._meetings.setdefault(group, _Meeting(size, time.monotonic()))
        meeting.rows[member] = Scored(**row)
        meeting.workers.setdefault(member, set()).add(worker)
        if len(meeting.rows) == meeting.size:
            self._close(group)

    def collect(self, worker: str) -> dict[tuple[str, int], float]:
        """The terms of this worker's completions since it last asked; groups that waited too long are closed as they are."""
        self._check()
        now = time.monotonic()
        for group in [name for name, meeting in self._meetings.items() if now - meeting.began > self._wait]:
            self._close(group)
            self._closed.add(group)
        return self._ready.pop(worker, {})

    def incomplete(self) -> int:
        """Groups that were closed before all their completions had come."""
        return len(self._closed)

    def state(self) -> dict[str, Any]:
        """The counter with everything that was posted so far, as plain JSON."""
        whole = OutcomeCounter(most_answers=self._counter.most_answers)
        whole.restore(self._counter.state())
        for _, prompt, answers in self._pending:
            _observe(whole, prompt, answers)
        return whole.state()

    def _close(self, group: str) -> None:
        meeting = self._meetings.pop(group)
        members = sorted(meeting.rows)
        rows = [meeting.rows[member] for member in members]
        self._count_before(max(row.step for row in rows))
        answers = [row.answer for row in rows]
        try:
            values_G = self._values(rows, answers)
        except UsageError as problem:
            self._broken = problem  # told to every worker that waits, not only to the one that closed the group
            raise
        self._pending.append((rows[0].step, rows[0].prompt_id, answers))
        self._told[group] = dict(zip(members, map(float, values_G), strict=True))
        for member, value in self._told[group].items():
            for worker in meeting.workers[member]:
                self._ready.setdefault(worker, {})[group, member] = value

    def _values(self, rows: Sequence[Scored], answers: list[str | None]) -> np.ndarray:
        codes: dict[str, int] = {}
        given = {
            "visits_PG": self._counter.count([rows[0].prompt_id], _one_group(answers)),
            "keep_PG": np.ones((1, len(rows)), dtype=bool),
            "correct_PG": _numbers([row.correct for row in rows]),
            "answer_PG": np.array([[-1 if a is None else codes.setdefault(a, len(codes)) for a in answers]]),
            "confidence_PG": _numbers([row.confidence for row in rows]),
            "n_tokens_PG": _numbers([row.n_tokens for row in rows]),
        }
        total_PG = np.zeros((1, len(rows)))
        for call in self._terms:
            taken = [name for name in signature(call).parameters if name in given]
            if "correct_PG" in taken and np.isnan(given["correct_PG"]).all():
                raise UsageError(
                    f"{getattr(call, '__name__', 'a term')} reads right and wrong, and no completion of a group has a verdict: let the "
                    "reward function return acc, 0 or 1, beside its score"
                )
            # nan: a completion without a verdict, which keeps the host's own score.
            total_PG = total_PG + np.nan_to_num(call(**{name: given[name] for name in taken}), nan=0.0)
        return np.asarray(total_PG[0])

    def _check(self) -> None:
        if self._broken is not None:
            raise self._broken

    def _count_before(self, step: int) -> None:
        """Count the answers of earlier steps; where a new step begins, keep the counts on disk, or take them up at the first."""
        if self._step is None:
            self._take_up(step)
        elif step > self._step:
            self._told.clear()
            if self._save_every > 0 and self._step % self._save_every == 0:
                self._keep(self._step)
        earlier = [entry for entry in self._pending if entry[0] < step]
        self._pending = [entry for entry in self._pending if entry[0] >= step]
        for _, prompt, answers in earlier:
            _observe(self._counter, prompt, answers)
        self._step = step if self._step is None else max(step, self._step)

    def _keep(self, step: int) -> None:
        if self._folder is None:
            return
        folder = Path(self._folder)
        make_folder(folder)
        with atomic_write(folder / f"outcomes-{step:08d}.json", "w") as handle:
            json.dump(self.state(), handle)

    def _take_up(self, step: int) -> None:
        """The newest counts of a step before this one: those of the checkpoint that the run goes on from."""
        if self._folder is None or not Path(self._folder).is_dir():
            return
        kept = {int(path.stem.rpartition("-")[2]): path for path in Path(self._folder).glob("outcomes-*.json")}
        earlier = [number for number in kept if number < step]
        if earlier:
            self._counter.restore(read_json(kept[max(earlier)]))


def shared_board(terms: Sequence[str], **how: Any) -> Any:
    """The run's one board as a named Ray actor, made by whichever worker comes first."""
    import ray

    OutcomeBoard(terms)  # a bad spec is told here, not inside an actor that fails to start
    return ray.remote(OutcomeBoard).options(name=ACTOR, get_if_exists=True, num_cpus=0).remote(list(terms), **how)


def _built(spec: str) -> Callable[..., np.ndarray]:
    name, _ = read_spec(spec)
    if ":" not in name:
        row = find_method(name)
        lacking = [each for each in row.inputs if each not in INPUTS and each != "format_ok_PG"]
        if row.kind not in ("bonus", "reward") or lacking:
            why = f"is a {row.kind}" if row.kind not in ("bonus", "reward") else f"needs {', '.join(lacking)}"
            raise UsageError(f"{row.name} {why}: a term here is a bonus or a reward of {', '.join(INPUTS)}")
    call: Callable[..., np.ndarray] = build(spec)
    if getattr(call, "keywords", {}).get("malformed") == "unscored":
        raise UsageError(f"'{spec}' leaves completions out of their group, which this host cannot: use malformed=worst")
    return call


def scored(**known: Any) -> dict[str, Any]:
    """A `Scored` as what travels between processes."""
    return asdict(Scored(**known))


def _one_group(answers: list[str | None]) -> np.ndarray:
    answers_PG = np.full((1, len(answers)), None, dtype=object)
    answers_PG[0, :] = answers
    return answers_PG


def _observe(counter: OutcomeCounter, prompt: str, answers: list[str | None]) -> None:
    counter.observe([prompt], _one_group(answers))


def _numbers(values: Sequence[float | bool | None]) -> np.ndarray:
    return np.array([[np.nan if value is None else float(value) for value in values]])
