"""Problems and plain texts as questions: what a strategy is asked."""

from __future__ import annotations

from dataclasses import replace

from equipoise.base import Answer, Problem, Prompt, Question, Sampling
from equipoise.errors import UsageError
from equipoise.tasks.again import own_form
from equipoise.tasks.problem_files import read_rows
from equipoise.tasks.reading import read_completion, read_stated
from equipoise.tasks.table import find_task
from equipoise.tasks.task import Rewords, StepChecked, Task, Tooled, mix_seed
from equipoise.text.answers import canonical

MAX_PLAIN = 80  # characters of a line that may be an answer though nothing says so


def ask(task: Task, problem: Problem, how: Sampling = Sampling(), *, seed: int = 0) -> Question:
    """A problem as a question. `read` knows no right answer; `judge` is the task's checker, which does.
    `progress`, `tools` and `reworded` are the task's too, where it has them.

    The question's own seed comes from `seed` and the problem's id, so that no two problems are sampled alike.
    """
    return Question(
        id=problem.id,
        prompt=problem.prompt,
        read=lambda completion: read_completion(completion, lambda text: task.read(problem, text)),
        how=how,
        judge=lambda completion: task.grade(problem, completion),
        seed=mix_seed("ask", seed, problem.id) >> 1,
        again=own_form(task, problem),
        progress=(lambda completion: task.progress(problem, completion)) if isinstance(task, StepChecked) else None,
        tools=task.tools(problem) if isinstance(task, Tooled) else {},
        reworded=(lambda number: _reworded(task, problem, number)) if isinstance(task, Rewords) else None,
    )


def _reworded(task: Rewords, problem: Problem, number: int) -> Prompt:
    prompt = task.reworded(problem, number)
    return prompt if isinstance(problem.prompt, str) or not isinstance(prompt, str) else as_chat(prompt)


def ask_text(text: str, how: Sampling = Sampling(), *, seed: int = 0, chat: bool = True) -> Question:
    r"""A question of nobody's task: its answer is what a completion states (`\boxed{…}`, "the answer is …"), or a short line."""
    if not text.strip():
        raise UsageError("the question is empty: write what is to be answered")
    return Question(
        id=text,
        prompt=as_chat(text) if chat else text,
        read=lambda completion: read_completion(completion, _read_any),
        how=how,
        seed=mix_seed("ask", seed, text) >> 1,
    )


def as_chat(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def posed_as_chat(problem: Problem) -> Problem:
    """The same problem, its prompt as a user's message: what models that were tuned to chat expect."""
    return replace(problem, prompt=as_chat(problem.prompt)) if isinstance(problem.prompt, str) else problem


def find_task_or_file(spec: str) -> Task:
    """`find_task`, and for the path of a problem file the task that reads such files: Countdown, or else mathematics."""
    if not spec.endswith((".jsonl", ".json", ".gz", ".parquet")) or "file=" in spec:
        return find_task(spec)
    columns = set(read_rows(spec)[0])
    if columns & {"numbers", "nums", "puzzle"}:
        return find_task("countdown" if "target" in columns else "game24", file=spec, prompt="words")
    return find_task("math", file=spec)


def default_split(task: Task) -> str:
    """All of a file, which somebody chose; of a task that makes its problems those that no training sees."""
    return "test" if getattr(task, "file", None) is None else "all"


def _read_any(text: str) -> Answer | None:
    return read_stated(text, canonical, bare=_short)


def _short(text: str) -> str | None:
    line = text.strip()
    return canonical(line) if "\n" not in line and len(line) <= MAX_PLAIN else None
