"""The one list of the record's columns: one row per sampled completion. Unknown is null, never 0 or ''.

Token lists of a row are equal in length or null. Log-probs and entropies are in nats.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal

import pyarrow as pa

from equipoise.base import Rollout
from equipoise.files import plain

SCHEMA_VERSION = 1

Kind = Literal["key", "number", "text", "tokens"]


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: pa.DataType
    kind: Kind
    about: str


_MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))

COLUMNS: tuple[Column, ...] = (
    Column("run_id", pa.string(), "key", "run or checkpoint"),
    Column("split", pa.string(), "key", "train, eval or offline"),
    Column("step", pa.int64(), "key", "optimiser step, or the checkpoint's step"),
    Column("group_id", pa.string(), "key", "the completions drawn together for one prompt; unique within run and step"),
    Column("sample_index", pa.int32(), "key", "position in the group"),
    Column("prompt_id", pa.string(), "key", "the problem, stable across steps and runs"),
    Column("env", pa.string(), "key", "task or data set"),
    Column("strategy", pa.string(), "key", "inference strategy that drew it"),
    Column("budget", pa.int64(), "key", "token budget it was given"),
    Column("prompt", pa.string(), "text", "rendered prompt"),
    Column("messages", _MESSAGES, "text", "the prompt in chat form"),
    Column("completion", pa.string(), "text", "what the model wrote"),
    Column("thinking", pa.string(), "text", "the thinking part, where the source keeps it apart"),
    Column("reference_answer", pa.string(), "text", "the right answer"),
    Column("answer", pa.string(), "text", "the final answer as parsed; null: none could be read"),
    Column("outcome", pa.string(), "key", "right, wrong, unparsable, timeout or error"),
    Column("correct", pa.bool_(), "number", "the checker's verdict; null: not checked, or the checker failed"),
    Column("reward", pa.float64(), "number", "the scalar used for learning; null: unscored"),
    Column("rewards", pa.map_(pa.string(), pa.float64()), "number", "its parts, unweighted"),
    Column("confidence", pa.float64(), "number", "stated probability of being right, 0 to 1"),
    Column("format_ok", pa.bool_(), "number", "the parser's verdict"),
    Column("advantage", pa.float64(), "number", "sequence advantage, or the mean of the token ones"),
    Column("finish_reason", pa.string(), "key", "stop, length, tool, error, confidence, consensus, budget, cancelled"),
    Column("temperature", pa.float64(), "number", "sampling temperature"),
    Column("n_tokens", pa.int64(), "number", "generated tokens"),
    Column("n_thinking", pa.int64(), "number", "those inside the thinking part"),
    Column("parent_id", pa.string(), "key", "branch this one grew from"),
    Column("turn", pa.int32(), "number", "turn in a conversation"),
    Column("token_ids", pa.list_(pa.int32()), "tokens", "completion tokens"),
    Column("loss_mask", pa.list_(pa.bool_()), "tokens", "false: tool or environment text"),
    Column("logprobs_rollout", pa.list_(pa.float32()), "tokens", "under the policy that sampled"),
    Column("logprobs_train", pa.list_(pa.float32()), "tokens", "under the trainer's policy before the update"),
    Column("logprobs_ref", pa.list_(pa.float32()), "tokens", "under the reference model"),
    Column("entropies", pa.list_(pa.float16()), "tokens", "full-vocabulary entropy at each position, nats"),
    Column("token_confidences", pa.list_(pa.float32()), "tokens", "minus the mean log-prob of the top k"),
    Column("advantages", pa.list_(pa.float32()), "tokens", "token advantages"),
    Column("topk_ids", pa.list_(pa.list_(pa.int32())), "tokens", "the k likeliest tokens"),
    Column("topk_logprobs", pa.list_(pa.list_(pa.float32())), "tokens", "their log-probs"),
    Column("extra", pa.string(), "text", "whatever the source holds besides, as JSON"),
)

BY_NAME = {column.name: column for column in COLUMNS}
TOKEN_COLUMNS = tuple(column.name for column in COLUMNS if column.kind == "tokens")


def schema(names: tuple[str, ...] | None = None, *, exact: bool = False) -> pa.Schema:
    """The Arrow schema of all columns, or of those named, in the record's order.

    The types are those on disk. `exact` keeps token numbers as float64, for rows read from a source that has more
    digits than the record stores: its figures are then measured as they are.
    """
    chosen = [c for c in COLUMNS if names is None or c.name in names]
    return pa.schema([(c.name, exact_type(c.type) if exact else c.type) for c in chosen])


def exact_type(kind: pa.DataType) -> pa.DataType:
    """The type with every float inside a list widened to float64."""
    if pa.types.is_list(kind):
        return pa.list_(exact_type(kind.value_type))
    return pa.float64() if pa.types.is_floating(kind) else kind


def _answer(rollout: Rollout) -> str | None:
    answer = rollout.grade.answer
    return None if answer is None else answer.text


def _text_prompt(rollout: Rollout) -> str | None:
    prompt = rollout.problem.prompt
    return prompt if isinstance(prompt, str) else None


def _chat_prompt(rollout: Rollout) -> list[dict[str, Any]] | None:
    prompt = rollout.problem.prompt
    return None if isinstance(prompt, str) else [_message(message) for message in prompt]


# Where the cell of a column stands in a Rollout.
CELLS: Mapping[str, Callable[[Rollout], Any]] = {
    "run_id": attrgetter("run_id"),
    "split": attrgetter("split"),
    "step": attrgetter("step"),
    "group_id": attrgetter("group_id"),
    "sample_index": attrgetter("sample_index"),
    "prompt_id": attrgetter("problem.id"),
    "env": attrgetter("problem.env"),
    "strategy": attrgetter("strategy"),
    "budget": attrgetter("budget"),
    "prompt": _text_prompt,
    "messages": _chat_prompt,
    "completion": attrgetter("completion.text"),
    "thinking": attrgetter("completion.thinking"),
    "reference_answer": attrgetter("problem.reference"),
    "answer": _answer,
    "outcome": attrgetter("grade.outcome"),
    "correct": attrgetter("grade.correct"),
    "reward": attrgetter("grade.reward"),
    "rewards": lambda rollout: list(rollout.grade.parts.items()) or None,
    "confidence": attrgetter("grade.confidence"),
    "format_ok": attrgetter("grade.format_ok"),
    "advantage": attrgetter("advantage"),
    "finish_reason": attrgetter("completion.finish"),
    "n_tokens": attrgetter("completion.n_tokens"),
    "token_ids": attrgetter("completion.token_ids"),
    "loss_mask": attrgetter("loss_mask"),
    "logprobs_rollout": attrgetter("completion.logprobs"),
    "logprobs_train": attrgetter("logprobs_train"),
    "logprobs_ref": attrgetter("logprobs_ref"),
    "entropies": attrgetter("completion.entropies"),
    "token_confidences": attrgetter("completion.token_confidences"),
}


def flatten(rollout: Rollout) -> dict[str, Any]:
    """A Rollout as one row of the record; token lists stay the arrays that they are.

    What `extra` holds under a column's name (temperature, turn, topk_ids, …) goes into that column, the rest stays JSON.
    """
    row = {name: cell(rollout) for name, cell in CELLS.items()}
    named = {name: value for name, value in rollout.extra.items() if name in BY_NAME and row.get(name) is None}
    rest = {name: value for name, value in rollout.extra.items() if name not in named}
    return row | named | {"extra": extra_text(rest)}


def extra_text(rest: Mapping[str, Any]) -> str | None:
    """What has no column of its own, as JSON."""
    return json.dumps(plain(rest), ensure_ascii=False) if rest else None


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if content is not None and not isinstance(content, str):
        content = json.dumps(plain(content), ensure_ascii=False)
    return {"role": message.get("role"), "content": content}
