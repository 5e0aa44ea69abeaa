"""The run folder of a pool: grading and writing what is drawn, finding what is there already, counting it at the end."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.base import Completion, Estimate, Rollout, Sampling
from equipoise.errors import UsageError
from equipoise.lab.open_model import Opened
from equipoise.lab.sample_draws import Got
from equipoise.measures.html import html_table, number_cell
from equipoise.measures.intervals import mean_of_prompts
from equipoise.measures.trace_confidence import RULES, trace_confidence
from equipoise.rollouts.folder import info_of, open_folder
from equipoise.rollouts.run import RunInfo
from equipoise.rollouts.writer import RunWriter
from equipoise.tasks.task import Task
from equipoise.text.display import many

Say = Callable[[str], None]

FLUSH_ROWS, FLUSH_SECONDS = 2048, 30.0  # a part of the run folder holds about so much of what a server sends
# May differ when a pool is gone on with: they only add to it, or change nothing that is recorded.
FREE = ("problems", "samples", "budgets", "tokens")


@dataclass(frozen=True, slots=True)
class Sampled:
    """What the folder holds now. An estimate of each kind for every budget."""

    folder: str
    problems: int
    rollouts: int
    drawn: int  # by this call; the others were there before
    tokens: int  # of all
    estimates: tuple[
        Estimate, ...
    ]  # pass@1; shares of completions that were cut or hold no answer; tokens of a completion
    seconds: float
    interrupted: bool = False
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": "equipoise.sample/1",
            "run": self.folder,
            "problems": self.problems,
            "n": self.rollouts,
            "drawn": self.drawn,
            "tokens": self.tokens,
            "pass@1": [number.to_dict() for number in self.estimates if number.name == "pass@1"],
            "estimates": [number.to_dict() for number in self.estimates],
            "seconds": round(self.seconds, 1),
            "interrupted": self.interrupted,
            "warnings": list(self.warnings),
        }

    def _repr_html_(self) -> str:
        names = list(dict.fromkeys(number.name for number in self.estimates))
        by = {(number.at.get("budget"), number.name): number for number in self.estimates}
        rows = [
            ["–" if budget is None else f"{budget:,}", *(number_cell(by[budget, name]) for name in names)]
            for budget in dict.fromkeys(budget for budget, _ in by)
        ]
        title = f"{self.folder}: {many(self.rollouts, 'completion')} of {many(self.problems, 'problem')}, {many(self.tokens, 'token')}"
        return html_table(["budget", *names], rows, title=title)


@dataclass(slots=True)
class Recorder:
    """Grades what comes and writes it, some of it at a time."""

    writer: RunWriter
    task: Task
    share: float
    temperature: float
    n_jobs: int
    say: Say
    held: list[Rollout] = field(default_factory=list)
    drawn: int = 0
    right: int = 0
    judged: int = 0
    made: int = 0  # tokens
    done: int = 0
    seen: set[int] = field(default_factory=set)  # token ids
    began: float = field(default_factory=time.monotonic)
    written: float = field(default_factory=time.monotonic)

    def add(self, got: Got) -> None:
        problem = got.job.problem
        listed = _share_of(problem.id) < self.share
        for number, completion in sorted(got.completions.items()):
            grade = self.task.grade(problem, completion)
            extra: dict[str, Any] = {"temperature": self.temperature}
            if got.n_thinking[number] is not None:
                extra["n_thinking"] = got.n_thinking[number]
            if completion.token_confidences is not None:
                extra["trace_confidences"] = _traces(completion)
            if listed:
                self.seen.update(completion.token_ids or ())
            self.held.append(
                Rollout(
                    run_id=self.writer.info.run_id or "",
                    split="offline",
                    step=None,
                    group_id=problem.id if got.job.budget is None else f"{problem.id} at {got.job.budget}",
                    sample_index=number,
                    problem=problem,
                    completion=completion if listed else _without_lists(completion),
                    grade=grade,
                    budget=got.job.budget,
                    extra=extra,
                )
            )
            self.drawn += 1
            self.made += completion.n_tokens or 0
            self.judged += grade.correct is not None
            self.right += bool(grade.correct)
        self.done += 1
        if len(self.held) >= FLUSH_ROWS or time.monotonic() - self.written > FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        if not self.held:
            return
        held, self.held = self.held, []
        self.writer.write(held)
        self.written = time.monotonic()
        taken = self.written - self.began
        left = taken / self.done * (self.n_jobs - self.done)
        right = "–" if not self.judged else f"{self.right / self.judged:.3f}"
        self.say(
            f"{self.done:,} of {many(self.n_jobs, 'group')}, {many(self.drawn, 'completion')}, pass@1 {right}, "
            f"{self.made / max(taken, 1e-9):,.0f} tokens/s, {left:,.0f} s left"
        )

    def tell_vocabulary(self, tokens: Any) -> None:
        if self.seen:
            self.writer.vocab({token: tokens.decode([token]) for token in self.seen})


def _traces(completion: Completion) -> dict[str, float]:
    assert completion.token_confidences is not None
    found = {rule: trace_confidence(completion.token_confidences, rule) for rule in RULES}
    return {rule: round(value, 6) for rule, value in found.items() if value is not None}


def _without_lists(completion: Completion) -> Completion:
    return replace(completion, token_ids=None, token_texts=None, logprobs=None, entropies=None, token_confidences=None)


def _share_of(name: str) -> float:
    """A number in [0, 1) that is the problem's own, so that the same problems have token lists in every pool."""
    return int.from_bytes(blake2b(name.encode("utf-8", "replace"), digest_size=8).digest(), "big") / 2**64


# --- the folder ------------------------------------------------------------------------------------------------------------


def describe_pool(folder: Path, opened: Opened, settings: Mapping[str, Any], how: Sampling) -> RunInfo:
    at: dict[str, Any] = {"temperature": how.temperature}
    if how.extra.get("edt"):
        at["edt"] = how.extra["edt"]  # then that is the hottest
    entropies = {"estimator": "full softmax", **at, "aggregation": "per token"}
    log_probs = {"kind": "processed", **at}
    confidences: dict[str, Any] = {"k": how.top_logprobs, "kind": "raw"}
    if opened.loaded is None:  # what a server's log-probs are is a setting of the server
        entropies, log_probs, confidences = (
            {},
            {"kind": "the server's"},
            {"k": how.top_logprobs, "kind": "the server's"},
        )
    columns = {"entropies": entropies, "logprobs_rollout": log_probs}
    if how.top_logprobs is not None:
        columns["token_confidences"] = confidences
    return RunInfo(
        source="equipoise",
        source_version=version("equipoise"),
        run_id=folder.name,
        model=opened.name,
        sampling=opened.describe_sampling(how, max_tokens=settings["max_tokens"]),
        settings=dict(settings),
        seed=settings["seed"],
        provenance={name: told for name, told in columns.items() if told},
    )


def find_recorded(folder: Path, model: str, settings: Mapping[str, Any]) -> dict[tuple[str, int | None], set[int]]:
    """The sample numbers that a folder has, by problem and budget. Refuses to mix two pools in one."""
    have: dict[tuple[str, int | None], set[int]] = {}
    path = folder / "run.json"
    if not path.exists():
        if folder.exists() and any(folder.iterdir()):
            raise UsageError(f"{folder} exists and is no run folder: name a new folder")
        return have
    found = info_of(path)
    asked = {name: value for name, value in settings.items() if name not in FREE} | {"model": model}
    there = {name: found.settings.get(name) for name in asked} | {"model": found.model}
    for name, value in asked.items():
        if there[name] != value:
            raise UsageError(
                f"{folder} was sampled with {name}={there[name]}, not {value}: sample with the same to go on, or name another folder"
            )
    for row in _rows_of(folder):
        have.setdefault((row.problem, row.budget), set()).add(row.number)
    return have


@dataclass(frozen=True, slots=True)
class _Row:
    problem: str
    budget: int | None
    number: int
    correct: float
    n_tokens: float
    cut: bool
    answered: bool


def _rows_of(folder: Path) -> Iterable[_Row]:
    columns = ("prompt_id", "budget", "sample_index", "correct", "n_tokens", "finish_reason", "answer")
    for batch in open_folder(folder).rollouts(columns):
        for row in batch.rows():
            correct, n = row.get("correct"), row.get("n_tokens")
            yield _Row(
                row["prompt_id"],
                row.get("budget"),
                row["sample_index"],
                np.nan if correct is None else float(correct),
                np.nan if n is None else float(n),
                row.get("finish_reason") == "length",
                row.get("answer") is not None,
            )


def count_pool(folder: Path, recorder: Recorder, *, seconds: float, interrupted: bool) -> Sampled:
    """All that the folder holds, read back."""
    groups: defaultdict[int | None, defaultdict[str, list[_Row]]] = defaultdict(lambda: defaultdict(list))
    rows = list(_rows_of(folder))
    for row in rows:
        groups[row.budget][row.problem].append(row)
    estimates = []
    for budget in sorted(groups, key=lambda budget: (budget is not None, budget or 0)):
        each = list(groups[budget].values())
        at = {} if budget is None else {"budget": budget}
        estimates += [
            _mean("pass@1", [[row.correct for row in mine] for mine in each], (0, 1), at | {"k": 1}),
            _mean("tokens", [[row.n_tokens for row in mine] for mine in each], (0, np.inf), at),
            _mean("cut", [[row.cut for row in mine] for mine in each], (0, 1), at),
            _mean("no_answer", [[not row.answered for row in mine] for mine in each], (0, 1), at),
        ]
    return Sampled(
        folder=str(folder),
        problems=len({row.problem for row in rows}),
        rollouts=len(rows),
        drawn=recorder.drawn,
        tokens=int(np.nansum([row.n_tokens for row in rows])),
        estimates=tuple(estimates),
        seconds=seconds,
        interrupted=interrupted,
        warnings=tuple(recorder.writer.warnings.lines()),
    )


def _mean(name: str, values: Sequence[Sequence[float]], bounds: tuple[float, float], at: Mapping[str, Any]) -> Estimate:
    """Within a problem first: problems are the units of the interval. Completions that nobody could judge are left out."""
    known = [[float(value) for value in mine if not np.isnan(value)] for mine in values]
    means_P = [float(np.mean(mine)) for mine in known if mine]
    if not means_P:
        return Estimate(name, None, n=0, at=dict(at), missing="completions that the checker could judge")
    return mean_of_prompts(means_P, bounds=bounds).named(name, dict(at))
