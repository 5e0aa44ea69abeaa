"""Which column of a plain file is which column of the record, by its name and by what it holds.

The record's own name wins. Otherwise the first alias that fits: `tokens` may be a count or a list, `problem` a text or a
number, so a name alone does not decide.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.errors import UsageError
from equipoise.rollouts.columns import BY_NAME, COLUMNS, TOKEN_COLUMNS

ALIASES: dict[str, str] = {
    "run_id": "run run_name checkpoint model model_name engine policy arm",
    "step": "global_step train_step training_step iteration",
    "group_id": "group group_idx group_index uid",
    "sample_index": "sample sample_id sample_idx sample_number rollout rollout_id rollout_index rollout_idx attempt trial repeat",
    "env": "task environment dataset data_source benchmark",
    "budget": "thinking_budget token_budget",
    "prompt": "question problem instruction query puzzle input",
    "messages": "conversation conversations chat",
    "prompt_id": "problem_id question_id qid task_id puzzle_id puzzle_idx example_id doc_id prompt_idx question_idx problem_idx"
    " problem_index task_idx test_idx id idx problem task",
    "completion": "response output text generation generated_text model_output completions responses outputs generations",
    "thinking": "reasoning reasoning_content thoughts",
    "reference_answer": "gold target ground_truth expected expected_answer gold_answer correct_answer reference label gt",
    "answer": "pred prediction extracted_answer parsed_answer predicted_answer final_answer model_answer preds predictions answers",
    "correct": "is_correct acc passed is_right",
    "reward": "score total_reward scores",
    "confidence": "stated_confidence verbal_confidence",
    "format_ok": "format_correct valid_format",
    "advantage": "adv",
    "finish_reason": "finish stop_reason truncated is_truncated",
    "temperature": "temp",
    "n_tokens": "tokens num_tokens completion_tokens output_tokens completion_length response_length",
    "n_thinking": "thinking_tokens reasoning_tokens",
    "token_ids": "tokens completion_ids response_ids output_ids",
    "loss_mask": "mask response_mask completion_mask",
    "logprobs_rollout": "logprobs token_logprobs log_probs sampling_logprobs rollout_log_probs",
    "logprobs_train": "old_log_probs old_logprobs train_logprobs",
    "logprobs_ref": "ref_log_probs ref_logprobs reference_logprobs",
    "entropies": "entropy token_entropies token_entropy",
    "token_confidences": "token_confidence",
}
# One row may hold all samples of a prompt, as lists of these.
_LISTED = ("completion", "answer", "correct", "reward", "confidence")
_ROW_NUMBER = ("id", "idx")  # in some files these number the rows, not the problems

IDENTITY = ("prompt_id", "prompt", "messages", "group_id")
CONTENT = ("completion", "answer", "outcome", "correct", "reward", "rewards", *TOKEN_COLUMNS)
NEEDED = (
    "a file of rollouts needs at least one of completion, answer, correct, reward or a token list,"
    " and for anything but texts and tokens one of prompt, prompt_id or group_id"
)


@dataclass(frozen=True, slots=True)
class Names:
    """{record's name: file's name}, and how it came about."""

    source: Mapping[str, str]
    by_alias: Mapping[str, str]  # those of them that are neither the record's own names nor given by the caller
    passed_over: Mapping[str, str]  # {file's name: the record's name that something else was taken for}

    def note(self) -> str | None:
        """What to tell the reader of the figures: which names were guessed."""
        if not self.by_alias:
            return None
        used = ", ".join(f"{theirs} as {ours}" for ours, theirs in self.by_alias.items())
        over = ", ".join(f"{theirs} ({ours} is {self.source[ours]})" for theirs, ours in self.passed_over.items())
        return f"read {used}" + (f"; not used: {over}" if over else "")

    @property
    def usable(self) -> bool:
        found = set(self.source)
        return bool(found & {"completion", *TOKEN_COLUMNS}) or bool(found & set(CONTENT) and found & set(IDENTITY))


def match_names(
    samples: Mapping[str, Sequence[Any]], given: Mapping[str, str], *, numbers_rows: Iterable[str] = ()
) -> Names:
    """The map for a file whose columns are the keys of `samples`, with a few of their values.

    `given` is the caller's, and goes first. `numbers_rows` are columns that turned out to number the rows.
    """
    plain_name = {_plain(name): name for name in reversed(list(samples))}
    source = {ours: theirs for ours, theirs in given.items() if theirs in samples}
    by_alias: dict[str, str] = {}
    taken = set(source.values())
    for column in COLUMNS:
        own = plain_name.get(column.name)
        if column.name not in given and own is not None and own not in taken:
            source[column.name] = own
            taken.add(own)
    passed_over: dict[str, str] = {}
    for ours, names in ALIASES.items():
        for alias in names.split():
            theirs = plain_name.get(alias)
            if theirs is None or theirs in taken or alias in BY_NAME or not fits(ours, samples[theirs]):
                continue
            if ours in source or ours in given:
                passed_over.setdefault(theirs, ours)
            elif not (alias in _ROW_NUMBER and theirs in numbers_rows):
                source[ours] = by_alias[ours] = theirs
                taken.add(theirs)
    return Names(
        source,
        by_alias,
        {theirs: ours for theirs, ours in passed_over.items() if theirs not in taken and ours in source},
    )


def _plain(name: str) -> str:
    return name.strip().lower().replace(" ", "_").replace("-", "_")


def check_given(
    path: Path, given: Mapping[str, str], samples: Mapping[str, Sequence[Any]], *, for_another: bool = False
) -> dict[str, str]:
    """The caller's map, which may name only columns that the file has.

    `for_another`: it was written for another file. What this one lacks is left out where the column is here by itself.
    """
    kept = {ours: theirs for ours, theirs in given.items() if theirs in samples}
    own = match_names(samples, kept).source if for_another else kept
    for ours, theirs in given.items():
        if ours not in kept and ours not in own:
            neither = f" nor one that is {ours} itself" if for_another else ""
            raise UsageError(
                f"{path} has no column '{theirs}' to read as {ours}{neither}; its columns are {listed(samples)}"
            )
    return kept


def unusable(path: Path, found: Iterable[str]) -> UsageError:
    """The error for a file in which no column says what a model did."""
    return UsageError(
        f"{path} holds no rollouts that can be recognised: its columns are {listed(found)}; {NEEDED}; name them with --column, for example --column prompt_id=NAME (columns={{'prompt_id': 'NAME'}} in Python)"
    )


def listed(names: Iterable[str]) -> str:
    """Names in a message, the first twenty of them."""
    names = [repr(name)[1:-1][:40] for name in names]
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "") or "none"


def fits(ours: str, values: Sequence[Any]) -> bool:
    """Whether some of the values could be those of the record's column; a column without values could be anything."""
    values = [value for value in values if value is not None and value != ""]
    return not values or any(_fits(ours, value) for value in values)


def _fits(ours: str, value: Any) -> bool:
    if ours in _LISTED and isinstance(value, list) and value and not isinstance(value[0], dict | list):
        return _fits(ours, value[0])
    if ours in TOKEN_COLUMNS:
        return _is_numbers(value) or (isinstance(value, str) and value.lstrip().startswith("["))
    if ours == "messages":
        return is_chat(value)
    if ours in ("prompt", "completion"):
        return is_chat(value) or (isinstance(value, str) and (ours == "completion" or not _is_number(value)))
    if ours in ("env", "run_id"):
        return isinstance(value, str) and not _is_number(value)
    if ours == "finish_reason":
        return isinstance(value, str | bool)
    if BY_NAME[ours].kind == "number" or ours in ("step", "sample_index", "budget"):
        return isinstance(value, bool | int | float) or (
            isinstance(value, str) and (_is_number(value) or ours in ("correct", "format_ok"))
        )
    return isinstance(value, str | bool | int | float) or ours == "reference_answer"


def is_chat(value: Any) -> bool:
    """A list of messages."""
    return isinstance(value, list) and bool(value) and all(isinstance(message, Mapping) for message in value)


def _is_numbers(value: Any) -> bool:
    if not isinstance(value, list):
        return False
    items = [item for item in value[:8] if item is not None]
    return all(isinstance(item, bool | int | float) or (isinstance(item, list) and _is_numbers(item)) for item in items)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
