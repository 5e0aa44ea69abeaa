"""A row of a plain file as rows of the record: chats, lists of samples, and which problem a row belongs to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from equipoise.files import parse_json
from equipoise.rollouts.columns import TOKEN_COLUMNS
from equipoise.rollouts.readers.aliases import Names, is_chat
from equipoise.rollouts.readers.foreign import chat_of, leftovers, text_of
from equipoise.rollouts.rows import Warn

SAMPLED = ("completion", "answer", "correct", "reward")  # a list in the first of these that is there makes several rows
_TRUNCATED = {"true": "length", "1": "length", "1.0": "length", "false": "stop", "0": "stop", "0.0": "stop"}


def record_rows(row: Mapping[str, Any], names: Names, warn: Warn, *, with_extra: bool) -> Iterator[dict[str, Any]]:
    """The rows of the record in one row of a file: more than one where it holds all samples of a prompt as lists."""
    cells = {ours: row.get(theirs) for ours, theirs in names.source.items()}
    if with_extra and "extra" not in cells:
        cells["extra"] = leftovers(row, set(names.source.values()))
    split_chat(cells)
    cells["finish_reason"] = finish_of(cells.get("finish_reason"), names)
    yield from _samples(cells, warn)


def finish_of(value: Any, names: Names) -> Any:
    """A finish reason; a column that only says whether a completion was cut off says that much."""
    if names.source.get("finish_reason", "").lower().endswith("truncated"):
        return _TRUNCATED.get(str(value).strip().lower(), value)
    return value


def split_chat(cells: dict[str, Any]) -> None:
    """Conversations as prompt messages and a completion: what the assistant says last is the completion."""
    if is_chat(cells.get("prompt")):
        cells["messages"], cells["prompt"] = cells["prompt"], None
    if is_chat(cells.get("completion")):
        said = [text_of(m.get("content")) for m in cells["completion"] if m.get("role", "assistant") == "assistant"]
        cells["completion"] = "\n".join(text for text in said if text is not None)
    messages = cells.get("messages")
    if isinstance(messages, str):
        try:
            messages = parse_json(messages)
        except ValueError:
            return
    if messages is not None and is_chat(messages):
        named = [_named(message) for message in messages]
        if cells.get("completion") is None and named[-1].get("role") == "assistant":
            cells["completion"] = text_of(named.pop().get("content"))
        cells["messages"] = chat_of(named)


def _named(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message under the names of OpenAI's format; some data sets have {from: human, value: …}."""
    if "from" in message and "role" not in message:
        role = {"human": "user", "gpt": "assistant"}.get(str(message["from"]), message["from"])
        return {"role": role, "content": message.get("value")}
    return message


def _samples(cells: dict[str, Any], warn: Warn) -> Iterator[dict[str, Any]]:
    first = next((cells[name] for name in SAMPLED if cells.get(name) is not None), None)
    if not isinstance(first, list):
        yield cells
        return
    n = len(first)
    if n == 0:
        warn("no-samples", "a row holds an empty list of samples, so that nothing of it is kept")
    listed = {name: value for name, value in cells.items() if _is_per_sample(name, value)}
    for name, value in listed.items():
        if len(value) != n:
            warn("unequal-lists", f"a row holds {n} samples but {len(value)} of {name}; its {name} was read as null")
    for index in range(n):
        own = {name: value[index] if len(value) == n else None for name, value in listed.items()}
        yield cells | own | ({} if cells.get("sample_index") is not None else {"sample_index": index})


def _is_per_sample(name: str, value: Any) -> bool:
    """Whether a cell holds a value for each sample: a list, for token lists a list of lists."""
    if not isinstance(value, list) or name in ("messages", "extra", "reference_answer"):
        return False
    if name in TOKEN_COLUMNS:
        depth = 3 if name.startswith("topk_") else 2
        return _depth(value) >= depth
    return name != "rewards" or all(isinstance(part, Mapping) for part in value)


def _depth(value: Any) -> int:
    return 1 + _depth(next((item for item in value if item), None)) if isinstance(value, list) else 0


def numbers_rows(ids: Sequence[Any], prompts: Sequence[Any]) -> bool:
    """Whether an id counts rows, not problems: it is different in every row while prompts come again."""
    return len({str(found) for found in ids}) == len(ids) > len({str(prompt) for prompt in prompts})


class Identity:
    """Which problem a row belongs to, where a file has several tasks whose problems are numbered anew.

    An id that goes by another name than prompt_id is taken together with the task. One that is called prompt_id, or was
    named by the caller, is believed, with a warning when two tasks share it.
    """

    def __init__(self, names: Names, warn: Warn) -> None:
        self._warn = warn
        self._task_of: dict[str, str] = {}
        if "prompt_id" in names.by_alias and "env" in names.source:
            task, found = names.source["env"], names.source["prompt_id"]
            warn("prompt-id", f"prompt_id is {task}/{found}, since an id may come again in another {task}")

    def fix(self, cells: dict[str, Any], names: Names) -> None:
        found, task = cells.get("prompt_id"), cells.get("env")
        if found is None or task is None or isinstance(found, dict | list):
            return
        if "prompt_id" in names.by_alias:
            whole = isinstance(found, float) and found.is_integer()
            cells["prompt_id"] = f"{task}/{int(found) if whole else found}"
        elif self._task_of.setdefault(str(found), str(task)) != str(task):
            first = self._task_of[str(found)]
            self._warn("prompt-id-reused", f"prompt_id {found} is in {first} and in {task}, and counts as one problem")
