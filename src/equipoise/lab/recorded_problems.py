"""The problems of a recorded run, to be asked again: its prompts under its own ids, so that a pool of another model pairs with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from equipoise.base import Answer, Completion, Grade, Problem, Prompt
from equipoise.errors import UsageError, unknown_name
from equipoise.rollouts.readers.table import read_run
from equipoise.rollouts.run import Run, RunInfo
from equipoise.tasks.maths import Maths
from equipoise.tasks.reading import read_completion
from equipoise.tasks.table import BY_NAME, find_task
from equipoise.tasks.task import AtMost, Recognises, Seed, Task, mix_seed
from equipoise.text.answers import read_answer

COMPARED = 100  # recorded completions called right, and as many called wrong, that a grader is held against
LOOKED_AT = 50_000  # rows of the run among which these are looked for
EXACT = ("trl", "equipoise")  # these write prompts as the model read them


@dataclass(frozen=True, slots=True)
class Recorded:
    """A prompt of the run, with where it was drawn last."""

    problem: Problem
    step: int
    splits: frozenset[str]


@dataclass(frozen=True, slots=True)
class RecordedProblems:
    """A `Task` whose problems are a run's. `grader`: the task that judges; without one completions are read and not judged."""

    run: Run
    grader: Task | None = None
    recorded: Mapping[str, Recorded] = field(default_factory=dict)
    ungraded: frozenset[str] = frozenset()  # ids of problems in which the grader does not find what it needs
    env: str = "recorded"

    def problems(self, seed: Seed, n: int, *, split: str = "all") -> list[Problem]:
        """Those drawn last come first, since a run is judged by its last steps."""
        known = sorted({name for one in self.recorded.values() for name in one.splits})
        if split != "all" and split not in known:
            raise unknown_name(f"split of {self.run.path}", split, ["all", *known])
        pool = [one for one in self.recorded.values() if split == "all" or split in one.splits]
        if len(pool) < n and not isinstance(n, AtMost):
            raise UsageError(
                f"{n} problems were asked for, and {self.run.path} has {len(pool)}: ask for fewer (--problems)"
            )
        pool.sort(key=lambda one: (-one.step, mix_seed("pick", seed, one.problem.id)))
        return [one.problem for one in pool[:n]]

    def read(self, problem: Problem, text: str) -> Answer | None:
        return read_answer(text) if self.grader is None else self.grader.read(problem, text)

    def grade(self, problem: Problem, completion: Completion) -> Grade:
        if self.grader is None or problem.id in self.ungraded:
            return Grade(read_completion(completion, read_answer), None, None)
        return self.grader.grade(problem, completion)

    def notes(self) -> list[str]:
        """What cannot be had, one line each."""
        lines, source = [], self.run.info.source
        if self.grader is None:
            lines.append(
                f"no-verdicts: the reward functions of {self.run.path} are not in its record, so nothing says which of these completions "
                "are right: name a task that can, as --grader math (by recorded reference answers) or --grader countdown"
            )
        elif self.ungraded:
            needs = (
                "reference answer is recorded" if isinstance(self.grader, Maths) else "numbers are found in the prompt"
            )
            lines.append(
                f"no-verdicts: {len(self.ungraded):,} of {len(self.recorded):,} problems are not judged: no {needs}"
            )
        if source not in EXACT and any(isinstance(one.problem.prompt, str) for one in self.recorded.values()):
            lines.append(
                f"prompts: they are asked as the text that {source} wrote, without special tokens that it left out"
            )
        top_k = self.run.info.sampling.get("top_k")
        if isinstance(top_k, int) and top_k > 0:
            lines.append(f"sampling: the run was drawn with top_k={top_k}, which is not done here")
        return lines + self._compared()

    def _compared(self) -> list[str]:
        """The run's own completions read and graded again: whether two arms would be measured alike."""
        judged = other = read = otherwise = 0
        for row in _some_rows(self.run):
            one = self.recorded.get(row["prompt_id"])
            if one is None:
                continue
            grade = self.grade(one.problem, Completion(row["completion"], finish=row.get("finish_reason")))
            if grade.correct is not None:
                judged, other = judged + 1, other + (grade.correct != row["correct"])
            if row.get("answer") is not None:
                read, otherwise = read + 1, otherwise + (grade.answer is None or grade.answer.text != row["answer"])
        lines = []
        if other:
            lines.append(
                f"other-verdicts: of {judged} completions of the run {other} are judged otherwise than the run says: "
                "a difference between the two is in part the graders'"
            )
        if otherwise:
            lines.append(
                f"other-answers: of {read} answers of the run {otherwise} are read otherwise here: do not compare diversity or votes"
            )
        return lines


def names_a_run(task: str) -> bool:
    """Whether what stands for a task is a folder; a task of that name comes first."""
    return task not in BY_NAME and Path(task).is_dir()


def find_recorded_problems(
    path: str | Path, *, grader: str | None = None, columns: Mapping[str, str] | None = None
) -> RecordedProblems:
    """The problems of a run folder, or of the folder that another trainer wrote, whose `columns` are named as in `read_run`."""
    run = read_run(path, columns=columns)
    judge = None if grader is None else find_task(grader)
    if (
        judge is not None
        and type(judge).__module__.startswith("equipoise.")
        and not isinstance(judge, Recognises | Maths)
    ):
        raise UsageError(
            f"{grader} cannot grade recorded prompts: countdown and game24 find their numbers in the prompt, math and gsm8k need "
            "reference answers in the record, and a task of yours is named as module:Class"
        )
    found = {one.problem.id: one for one in _recorded(run)}
    if not found:
        raise UsageError(f"{path} holds no prompts (columns prompt or messages), so there is nothing to ask again")
    ungraded = set()
    for name, one in found.items():
        if isinstance(judge, Recognises):
            params = judge.recognise(_as_text(one.problem.prompt))
            found[name] = replace(one, problem=replace(one.problem, params=params or {}))
            ungraded |= set() if params else {name}
        elif isinstance(judge, Maths) and one.problem.reference is None:
            ungraded.add(name)
    if judge is not None and len(ungraded) == len(found):
        lacking = (
            "reference answers: a capture takes them along by columns={'reference_answer': …}, other files by --column reference_answer=…"
            if isinstance(judge, Maths)
            else "problems of this task"
        )
        raise UsageError(f"{grader} cannot grade {path}: it has no {lacking}")
    return RecordedProblems(run, judge, found, frozenset(ungraded))


def drawn_with(info: RunInfo) -> dict[str, Any]:
    """How the run was sampled, as far as it says so, under our names."""
    told = info.sampling
    found = {
        "temperature": told.get("temperature"),
        "top_p": told.get("top_p"),
        "min_p": told.get("min_p"),
        "max_tokens": told.get("max_tokens", told.get("max_completion_length")),
    }
    return {name: value for name, value in found.items() if isinstance(value, int | float)}


def token_notes(asked: RecordedProblems, problems: Sequence[Problem], tokens: Any) -> list[str]:
    """Whether prompts come back to the tokens that a TRL run was captured with: its ids are made of them."""
    if asked.run.info.source != "trl" or "logprobs_train" not in asked.run.info.provenance:
        return []
    from equipoise.adapters.trl_step import prompt_key  # inside: needs torch

    other = sum(prompt_key(tokens.encode(problem.prompt)) != problem.id for problem in problems)
    if not other:
        return []
    return [
        f"other-tokens: {other:,} of {len(problems):,} prompts are not the tokens that the run had: is this the model that it started from?"
    ]


def _recorded(run: Run) -> Iterator[Recorded]:
    """Every problem once, as it stands first."""
    first: dict[str, Problem] = {}
    steps: dict[str, int] = {}
    splits: dict[str, set[str]] = {}
    columns = ("prompt_id", "prompt", "messages", "reference_answer", "env", "split", "step")
    for batch in run.rollouts(columns):
        for row in batch.rows():
            name, prompt = row.get("prompt_id"), _prompt_of(row)
            if name is None or prompt is None:
                continue
            if name not in first:
                first[name] = Problem(name, row.get("env"), prompt, row.get("reference_answer"))
            step = row.get("step")
            steps[name] = max(steps.get(name, -1), -1 if step is None else step)
            splits.setdefault(name, set()).update({row["split"]} if row.get("split") else ())
    for name, problem in first.items():
        yield Recorded(problem, steps[name], frozenset(splits[name]))


def _prompt_of(row: Mapping[str, Any]) -> Prompt | None:
    """The messages, of which a text beside them may be all joined; where they end with a reply, the text."""
    messages, prompt = row.get("messages"), row.get("prompt")
    if messages and (prompt is None or messages[-1]["role"] != "assistant"):
        return [dict(message) for message in messages]
    return None if prompt is None else str(prompt)


def _some_rows(run: Run) -> Iterator[dict[str, Any]]:
    """Completions with a verdict, some of either kind."""
    left, rows = {True: COMPARED, False: COMPARED}, 0
    columns = ("prompt_id", "completion", "answer", "correct", "finish_reason")
    for batch in run.rollouts(columns):
        for row in batch.rows():
            if row.get("correct") is not None and row.get("completion") is not None and left[row["correct"]]:
                left[row["correct"]] -= 1
                yield row
        rows += len(batch)
        if not any(left.values()) or rows > LOOKED_AT:
            return


def _as_text(prompt: Prompt) -> str:
    return prompt if isinstance(prompt, str) else "\n".join(str(message.get("content") or "") for message in prompt)
