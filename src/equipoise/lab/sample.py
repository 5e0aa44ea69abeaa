"""A pool of completions, recorded: problems × samples × budgets from a model or a server, graded, into a run folder."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from equipoise.base import Problem, Sampler, Sampling
from equipoise.errors import UsageError
from equipoise.lab.interrupting import run_to_end
from equipoise.lab.open_model import Opened, open_sampler
from equipoise.lab.recorded_problems import (
    RecordedProblems,
    drawn_with,
    find_recorded_problems,
    names_a_run,
    token_notes,
)
from equipoise.lab.sample_draws import Job, Served, draw_batches
from equipoise.lab.sample_record import Recorder, Sampled, Say, count_pool, describe_pool, find_recorded
from equipoise.rollouts.writer import RunWriter
from equipoise.tasks.asking import ask, default_split, find_task_or_file, posed_as_chat
from equipoise.tasks.task import AtMost, Task
from equipoise.text.display import many

K = 20  # likeliest tokens of a token confidence, https://arxiv.org/abs/2508.15260
ROWS, LONG_ROWS = 4096, 64  # completions at once: of the small GPT, and of a model whose cache is large


def sample(
    model: str | Path | Sampler,
    task: str | Task,
    out: str | Path,
    *,
    problems: int = AtMost(100),
    samples: int = 16,
    budgets: Sequence[int] = (),
    answer_tokens: int | None = None,
    max_tokens: int | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    decoding: Mapping[str, Any] = {},
    split: str | None = None,
    grader: str | None = None,
    columns: Mapping[str, str] | None = None,
    seed: int = 0,
    tokens: float = 1.0,
    top_logprobs: int | None = K,
    chat: bool | None = None,
    served: str | None = None,
    device: str = "cpu",
    rows: int | None = None,
    at_once: int = 16,
    say: Say = lambda line: None,
) -> Sampled:
    """Draw `samples` completions of each of `problems` problems and record them. Started again, it goes on with what is missing.

    `model`: see `open_sampler`; `served`: which of a server's models. `task`: a task's spec, or a problem file;
    `split`: default "all" of a file, else "test". A file with fewer than the default of `problems` gives all it has.
    A folder in place of a task is a recorded run: its prompts are asked again as they stand, under its ids, sampled as it says it was, and
    `grader` names the task that judges them (`RecordedProblems`), `columns` what of its files cannot be guessed. Else `temperature` and `top_p` are 1.
    `budgets`: each is a limit on a completion's tokens, instead of `max_tokens`; with `answer_tokens` it limits the thinking, and
    so many more are for the answer (models whose thinking has marks, servers that know a thinking budget). `tokens`: the share of the problems whose token
    lists are recorded; trace confidences are recorded of all. `top_logprobs`: k of the token confidences, None: none are asked for.
    `decoding`: more of how tokens are chosen, as {"min_p": 0.1}: what `models.decoding` knows, or the server.
    `chat`: prompts as a user's message; default where the model has a template, or is a server.
    `rows`, `at_once`: completions at once in this process, problems at once from a server; they change no result.
    """
    started = time.perf_counter()
    _check(problems, samples, budgets, answer_tokens, tokens, top_logprobs)
    asked = _find(task, grader, columns)
    again = asked if isinstance(asked, RecordedProblems) else None
    split = ("all" if again else default_split(asked)) if split is None else split
    folder = Path(out)
    opened = open_sampler(model, served=served, device=device)
    chat = (opened.chat and again is None) if chat is None else chat  # what is recorded was posed already
    as_drawn = {} if again is None else drawn_with(again.run.info)
    temperature = as_drawn.get("temperature", 1.0) if temperature is None else temperature
    top_p = as_drawn.get("top_p", 1.0) if top_p is None else top_p
    decoding = {name: value for name, value in as_drawn.items() if name == "min_p"} | dict(decoding)
    limit = as_drawn.get("max_tokens", opened.max_tokens) if max_tokens is None else max_tokens
    posed = [posed_as_chat(p) if chat else p for p in asked.problems(("sample", seed), problems, split=split)]
    settings = {
        "task": task if isinstance(task, str) else asked.env, "problems": len(posed), "samples": samples, "budgets": list(budgets),
        "answer_tokens": answer_tokens, "max_tokens": None if budgets else limit, "temperature": temperature, "top_p": top_p,
        "decoding": decoding or None, "split": split, "seed": seed, "tokens": tokens, "top_logprobs": top_logprobs, "chat": chat,
        "grader": grader,
    }  # fmt: skip
    have = find_recorded(folder, opened.name, settings)
    how = Sampling(max_tokens=limit, temperature=temperature, top_p=top_p, top_logprobs=top_logprobs, extra=decoding)
    notes = [] if again is None else _tell(again, posed, opened, say)
    jobs = [
        Job(problem, ask(asked, problem, _with_budget(how, budget, answer_tokens), seed=seed), budget, missing)
        for problem in posed  # a problem with all its budgets, then the next: what Ctrl-C leaves can be compared
        for budget in budgets or (None,)
        if (missing := tuple(sorted({*range(samples)} - have.get((problem.id, budget), set()))))
    ]
    writer = RunWriter(folder, describe_pool(folder, opened, settings, how))
    recorder = Recorder(writer, asked, share=tokens, temperature=temperature, n_jobs=len(jobs), say=say)
    if have and jobs:
        say(
            f"{folder} has {many(sum(map(len, have.values())), 'completion')} already; {many(len(jobs), 'group')} lacking some"
        )
    interrupted = _draw(opened, jobs, recorder, samples=samples, rows=rows, at_once=at_once)
    found = count_pool(folder, recorder, seconds=time.perf_counter() - started, interrupted=interrupted)
    return replace(found, warnings=(*notes, *found.warnings))


def _find(task: str | Task, grader: str | None, columns: Mapping[str, str] | None) -> Task:
    if isinstance(task, str) and names_a_run(task):
        return find_recorded_problems(task, grader=grader, columns=columns)
    if grader is not None or columns:
        raise UsageError(
            f"--grader and --column are for the prompts of a recorded run, and '{task}' is no folder of one: leave them out, a task grades its own"
        )
    return find_task_or_file(task) if isinstance(task, str) else task


def _tell(asked: RecordedProblems, posed: Sequence[Problem], opened: Opened, say: Say) -> list[str]:
    """What a pool of recorded prompts lacks, before hours are spent on it."""
    notes = asked.notes() + ([] if opened.loaded is None else token_notes(asked, posed, opened.loaded.tokens))
    for line in notes:
        say(line)
    return notes


def _check(
    problems: int,
    samples: int,
    budgets: Sequence[int],
    answer_tokens: int | None,
    tokens: float,
    top_logprobs: int | None,
) -> None:
    if problems < 1 or samples < 1 or not 0 <= tokens <= 1 or (top_logprobs is not None and top_logprobs < 1):
        raise UsageError(
            f"a pool of {many(problems, 'problem')} × {many(samples, 'sample')} with tokens of a share {tokens:g} and top_logprobs={top_logprobs}: "
            "use 1 or more of each, a share from 0 to 1, and top_logprobs=None for no log-probs"
        )
    least = 1 if answer_tokens is None else 0  # thinking may be forbidden, an answer needs a token
    if len(set(budgets)) < len(budgets) or any(budget < least for budget in budgets):
        raise UsageError(
            f"budgets are different numbers of {least} or more tokens, found {', '.join(map(str, budgets))}"
        )


def _with_budget(how: Sampling, budget: int | None, answer_tokens: int | None) -> Sampling:
    if budget is None:
        return how
    if answer_tokens is None:
        return replace(how, max_tokens=budget)
    return replace(how, max_tokens=budget + answer_tokens, thinking_budget=budget)


def _draw(
    opened: Opened, jobs: Sequence[Job], recorder: Recorder, *, samples: int, rows: int | None, at_once: int
) -> bool:
    """Draws and records; whether Ctrl-C ended it early."""
    if not jobs:
        return False
    if opened.loaded is None:
        served = Served(opened.sampler, at_once=at_once)
        try:
            run_to_end(lambda: served.run(jobs, recorder.add), stop=served.stop)
        finally:
            recorder.flush()
        return served.stopped
    most = rows or (ROWS if opened.small else LONG_ROWS)
    try:
        for batch in draw_batches(opened.loaded, jobs, samples=samples, rows=most):
            for got in batch:
                recorder.add(got)
            recorder.flush()
    except KeyboardInterrupt:
        return True
    finally:
        recorder.flush()
        recorder.tell_vocabulary(opened.loaded.tokens)
    return False
