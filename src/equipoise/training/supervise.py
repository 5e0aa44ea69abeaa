"""The supervised part of a run: what it learns from, and what the log says of it. The training itself: `sft`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from equipoise.base import Prompt
from equipoise.errors import UsageError
from equipoise.files import read_json_lines
from equipoise.models.language_model import LanguageModel, Tokens
from equipoise.models.thinking import marks_of
from equipoise.tasks.task import Task
from equipoise.training.recipe import Supervised
from equipoise.training.sft import Pair, Progress, fine_tune, make_pairs

REPORTS = 20  # losses that are logged, each the mean over as many steps


def pairs_of(how: Supervised, task: Task, tokens: Tokens) -> list[Pair]:
    """Prompts and completions: solved problems of the task, or those of a file."""
    if how.file is not None:
        return read_pairs(how.file, tokens)
    assert how.problems is not None
    return list(make_pairs(task, seed=("sft", how.seed), n=how.problems, template=how.template))


def supervise(
    model: LanguageModel,
    tokens: Tokens,
    pairs: list[Pair],
    how: Supervised,
    *,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, float]:
    """Train the model in place; what to log at step 0.

    `sft/loss@50` is the mean over the steps up to the 50th since the loss before it, `sft/loss` the last of these.
    """

    def tell(at: Progress) -> None:
        left = at.seconds / at.step * (at.steps - at.step)
        say(f"supervised step {at.step}/{at.steps}  loss {at.loss:.3f}  {left:.0f} s left")

    heard = fine_tune(
        model,
        tokens,
        pairs,
        steps=how.steps,
        batch=how.batch,
        lr=how.lr,
        seed=how.seed,
        schedule=how.schedule,
        warmup=how.warmup,
        weight_decay=how.weight_decay,
        rows=how.rows,
        every=max(1, how.steps // REPORTS),
        say=tell,
    )
    return {
        "sft/pairs": float(len(pairs)),
        "sft/loss": heard[-1].loss,
        **{f"sft/loss@{at.step}": at.loss for at in heard},
        "seconds/sft": round(heard[-1].seconds, 4),
    }


def read_pairs(path: Path, tokens: Tokens) -> list[Pair]:
    """Pairs of a JSON-lines file, as `lab.demonstrations` and TRL's SFTTrainer write them; a line that is none is refused."""

    def refuse(kind: str, words: str) -> None:
        raise UsageError(f"{path} cannot be learnt from ({words}): give a JSON object per line, prompt and completion")

    found: list[Pair] = []
    for number, row in read_json_lines(path, warn=refuse):
        prompt, text = _prompt(row.get("prompt")), _text(row.get("completion"))
        if prompt is None or text is None:
            raise UsageError(
                f"{path}: line {number} needs a prompt and a completion, each a text or chat messages, the completion one of the "
                f"assistant's; found {', '.join(row) or 'nothing'}"
            )
        found.append((prompt, _with_thinking(text, row, prompt, tokens, f"{path}: line {number}")))
    if not found:
        raise UsageError(f"{path} holds no line to learn from: give a JSON object per line, prompt and completion")
    return found


def _prompt(given: Any) -> Prompt | None:
    if isinstance(given, str):
        return given or None
    return given if isinstance(given, list) and given and all(map(_is_message, given)) else None


def _text(given: Any) -> str | None:
    if isinstance(given, str):
        return given
    if isinstance(given, list) and len(given) == 1 and _is_message(given[0]) and given[0]["role"] == "assistant":
        return str(given[0]["content"])
    return None


def _is_message(given: Any) -> bool:
    return isinstance(given, dict) and all(isinstance(given.get(name), str) for name in ("role", "content"))


def _with_thinking(text: str, row: Mapping[str, Any], prompt: Prompt, tokens: Tokens, where: str) -> str:
    """The text after its thinking, between the marks of the tokenizer: left out, the model would learn not to think."""
    thinking, marks = row.get("thinking"), marks_of(tokens)
    if thinking is None:
        return text
    if marks is None or not isinstance(thinking, str):
        raise UsageError(
            f"{where} has thinking, and this tokenizer no marks for it: write it into the completion, or leave it out"
        )
    start, end = (tokens.decode([mark]) for mark in (marks.start, marks.end))
    opened = marks.open_after(tokens.encode(prompt))
    return f"{'' if opened else start}{thinking}{end}{text}"
