"""NeMo-RL (August 2026): `train_data_stepN.jsonl` and `val_data_stepN.jsonl` of a log folder (`<log_dir>/exp_NNN`).

Every value but `idx` is a batch of one and is taken out of its list.

| NeMo-RL | here |
| --- | --- |
| the file's name | step, split |
| `content`: the rendered prompt, then reply and environment in turn | prompt, completion (the replies) |
| runs of equal prompts, counted off in groups of one size | group_id, sample_index |
| `rewards` | reward |
| `token_ids`, `token_loss_mask` from the first to the last trained token | token_ids, loss_mask; trained tokens: n_tokens |
| `generation_logprobs`, `prev_logprobs` | logprobs_rollout, logprobs_train |
| `advantages` | advantages; their mean over trained tokens: advantage |

Values outside the mask are fillers and become null. `sample_loss_mask` and, with dynamic sampling, `filtered_rewards` go to
extra. There are no entropies, right answers, verdicts or finish reasons; training dumps are not written while NeMo-Gym
logs its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from equipoise.rollouts.columns import TOKEN_COLUMNS
from equipoise.rollouts.readers.foreign import (
    files_in,
    has_keys,
    leftovers,
    lines_of,
    natural,
    recognised,
    require,
    streaming,
    text_of,
    wanted,
)
from equipoise.rollouts.readers.grouping import GroupCounter, group_size, run_lengths
from equipoise.rollouts.readers.mapping import check_map, mapped
from equipoise.rollouts.rows import Warn, stable_id
from equipoise.rollouts.run import Run, RunInfo, Warnings

NAME = re.compile(r"(?P<split>train|val)_data_step(?P<step>\d+)\.jsonl(?:\.gz)?")
STREAMS = {"generation_logprobs": "logprobs_rollout", "prev_logprobs": "logprobs_train", "advantages": "advantages"}
MAPPED = ("content", "rewards", "token_ids", "token_loss_mask", "input_lengths", "idx", *STREAMS)


def claims(path: Path) -> bool:
    return bool(_files(path))


def open(path: Path, *, columns: Mapping[str, str] | None = None) -> Run:
    warnings = Warnings()
    named = check_map(columns)
    files = require(_files(path), path, what="NeMo-RL dump (train_data_stepN.jsonl)")

    def rows(asked: Sequence[str] | None, warn: Warn) -> Iterator[dict[str, Any]]:
        size = {split: _size(files, split) for split in ("train", "val")}
        for file in files:
            place = NAME.fullmatch(file.name)
            split = place["split"] if place else "train"
            if size[split] is None:
                warn(
                    "uneven-groups",
                    f"prompts of the {split} files repeat unevenly: rows of one prompt in a row are one group",
                )
            counter = GroupCounter(size[split])
            for line in lines_of(file, warn):
                texts = _texts(line)
                if not texts:
                    warn("mixed-schema", f"{file.name}: lines without content were skipped")
                    continue
                group, index = counter.next(texts[0])
                row = {
                    "run_id": file.parent.name,
                    "split": "train" if split == "train" else "eval",
                    "step": int(place["step"]) if place else None,
                    "group_id": stable_id(split, str(group)),
                    "sample_index": index,
                    "prompt": texts[0],
                    "completion": "\n".join(texts[1::2]) if len(texts) > 1 else None,
                    "reward": _one(line.get("rewards")),
                }
                if wanted(asked, "n_tokens", "advantage", *TOKEN_COLUMNS):
                    row |= _tokens(line)
                if wanted(asked, "extra"):
                    row["extra"] = leftovers({key: _one(value) for key, value in line.items()}, MAPPED)
                yield row | mapped({key: _one(value) for key, value in line.items()}, named, warn)

    info = RunInfo(
        source="nemo-rl",
        run_id=path.name if path.is_dir() else path.parent.name,
        provenance={
            "reward": "as logged; before filtering where dynamic sampling is on",
            "logprobs_rollout": {"kind": "unknown", "source": "generation engine"},
            "logprobs_train": {"kind": "unknown", "source": "policy before the update"},
        },
    )
    return Run(path, info, streaming(path, rows, named, warnings), warnings=warnings)


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        paths = [*files_in(path, "*_data_step*.jsonl*"), *files_in(path, "exp_*/*_data_step*.jsonl*")]
    else:
        paths = [path] if path.is_file() else []
    return recognised(sorted((p for p in paths if NAME.fullmatch(p.name)), key=_order), _is_sample)


def _is_sample(line: Mapping[str, Any] | None) -> bool:
    return has_keys(line, "content", "rewards", "idx")


def _order(file: Path) -> tuple[Any, ...]:
    place = NAME.fullmatch(file.name)
    return natural(file.parent), int(place["step"]) if place else 0, file.name


def _size(files: Sequence[Path], split: str) -> int | None:
    chosen = [file for file in files if file.name.startswith(split)]
    return group_size(run_lengths(texts[0] for line in lines_of(file) if (texts := _texts(line))) for file in chosen)


def _one(value: Any) -> Any:
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _texts(line: Mapping[str, Any]) -> list[str]:
    """Prompt, reply, environment, reply, …: as texts in training, as role and content in validation."""
    content = _one(line.get("content"))
    if not isinstance(content, list):
        return []
    texts = [text_of(part.get("content")) if isinstance(part, Mapping) else text_of(part) for part in content]
    return [text or "" for text in texts]


def _tokens(line: Mapping[str, Any]) -> dict[str, Any]:
    ids, mask = _one(line.get("token_ids")), _one(line.get("token_loss_mask"))
    if not isinstance(ids, list) or not isinstance(mask, list) or len(ids) != len(mask):
        return {}
    trained = [flag == 1 for flag in mask]
    if True not in trained:
        return {"n_tokens": 0}
    start, end = trained.index(True), len(trained) - trained[::-1].index(True)
    row: dict[str, Any] = {"token_ids": ids[start:end], "loss_mask": trained[start:end], "n_tokens": sum(trained)}
    for theirs, ours in STREAMS.items():
        values = _one(line.get(theirs))
        if isinstance(values, list) and len(values) == len(ids):
            row[ours] = [
                value if kept else None for value, kept in zip(values[start:end], trained[start:end], strict=True)
            ]
    known = [a for a in row.get("advantages", []) if isinstance(a, int | float)]
    return row | {"advantage": sum(known) / len(known) if known else None}
