"""The branches of a verifiers trace: paths through its message graph, each with its texts and token lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from equipoise.rollouts.columns import TOKEN_COLUMNS
from equipoise.rollouts.readers.foreign import as_list, as_object, chat_of, number, text_of, wanted
from equipoise.rollouts.rows import Warn

MAX_STEPS = 1_000_000  # messages along all branches of one trace
STREAMS = {
    "logprobs": "logprobs_rollout",
    "trainer_logprobs": "logprobs_train",
    "reference_logprobs": "logprobs_ref",
    "entropies": "entropies",
    "advantages": "advantages",
}

Tokens = dict[str, list[Any]]
Join = Callable[[list[int]], Mapping[str, Any] | None]  # further streams for a whole token sequence, or None


def list_branches(nodes: Sequence[Mapping[str, Any]], warn: Warn) -> Iterator[list[int]]:
    """Root-to-leaf paths. A compaction attempt that the harness did not resume from is no path of the rollout."""
    parents = {node["parent"] for node in nodes if isinstance(node.get("parent"), int)}
    links = [(i, as_object(link)) for i, node in enumerate(nodes) for link in as_list(node.get("semantic_parents"))]
    resumed = {
        link["node"] for _, link in links if link.get("type") == "compaction" and isinstance(link.get("node"), int)
    }
    attempts = {i for i, link in links if link.get("type") == "compaction_attempt"}
    left = MAX_STEPS
    for leaf in range(len(nodes)):
        if leaf in parents or (leaf in attempts and leaf not in resumed):
            continue
        path: dict[int, None] = {}  # in order, and quick to look up: a damaged graph may loop
        at: Any = leaf
        while isinstance(at, int) and 0 <= at < len(nodes) and at not in path and left > 0:
            path[at] = None
            at, left = nodes[at].get("parent"), left - 1
        if left == 0:
            warn("too-many-branches", f"a trace with more than {MAX_STEPS} messages along its branches was cut there")
            return
        yield list(path)[::-1]


def branch_row(
    path: Sequence[int],
    nodes: Sequence[Mapping[str, Any]],
    calls: Sequence[Mapping[str, Any]],
    asked: Sequence[str] | None,
    join: Join | None,
) -> dict[str, Any]:
    branch = [nodes[i] for i in path]
    first = next((i for i, node in enumerate(branch) if node.get("sampled")), len(branch))
    written = [as_object(node.get("message")) for node in branch if node.get("sampled")]
    usage = [as_object(call.get("usage")) for call in calls]
    row: dict[str, Any] = {
        "messages": chat_of([as_object(node.get("message")) for node in branch[:first]]),
        "completion": _joined(message.get("content") for message in written) if written else None,
        "thinking": _joined(message.get("reasoning_content") for message in written) or None,
        "n_tokens": _total(u.get("completion_tokens") for u in usage),
        "n_thinking": _total(u.get("reasoning_tokens") for u in usage),
        "finish_reason": calls[-1].get("finish_reason") if calls else None,
    }
    if not wanted(asked, "n_tokens", "advantage", *TOKEN_COLUMNS):
        return row
    tokens = _tokens(branch, join)
    if tokens:
        row |= tokens | {"n_tokens": sum(tokens["loss_mask"])}
        known = [a for a in map(number, tokens.get("advantages", [])) if a is not None]
        row["advantage"] = sum(known) / len(known) if known else None
    return row


def _tokens(branch: Sequence[Mapping[str, Any]], join: Join | None) -> Tokens:
    """Token lists from the first to the last sampled token; values only where a token was sampled."""
    ids: list[Any] = []
    mask: list[Any] = []
    streams: Tokens = {ours: [] for ours in STREAMS.values()}
    for node in branch:
        own, flags = as_list(node.get("token_ids")), as_list(node.get("mask"))
        ids += own
        mask += [bool(flag) for flag in flags] if len(flags) == len(own) else [False] * len(own)
        for theirs, ours in STREAMS.items():
            streams[ours] += _spread(node.get(theirs), mask[len(mask) - len(own) :])
    if True not in mask:
        return {}
    for ours, values in ((join(ids) if join else None) or {}).items():
        streams[ours] = [value if sampled else None for value, sampled in zip(values, mask, strict=True)]
    start, end = mask.index(True), len(mask) - mask[::-1].index(True)
    present = {name: values for name, values in streams.items() if any(value is not None for value in values)}
    return {name: values[start:end] for name, values in ({"token_ids": ids, "loss_mask": mask} | present).items()}


def _spread(values: Any, mask: Sequence[bool]) -> list[Any]:
    """A node's values, one a sampled token, at the places of those tokens. A list of another length says nothing."""
    if not isinstance(values, list) or len(values) != sum(mask):
        return [None] * len(mask)
    left = iter(values)
    return [next(left) if sampled else None for sampled in mask]


def _joined(texts: Any) -> str:
    return "\n".join(text for text in map(text_of, texts) if text)


def _total(counts: Any) -> int | None:
    known = [n for n in counts if isinstance(n, int) and not isinstance(n, bool)]
    return sum(known) if known else None
