"""AReaL 1.0.4 (`dump_to_file`): `rollout/<version>/<task_id>.jsonl`, and `eval-rollout/…`.

| AReaL | here |
| --- | --- |
| `task_id` | group_id; a running number, so it says nothing of the problem: prompt_id comes from the prompt |
| `sample_idx` | sample_index; empty completions are not written, so numbers may be missing |
| `tail_version`, the folder's name | step: the newest weights that sampled |
| `prompt`, `completion`, decoded with special tokens | prompt, completion |
| `reward` | reward |
| `seqlen` - `prompt_len` | n_tokens |
| `eval-rollout` in the path | split |

For several turns AReaL cuts prompt and completion at the wrong place. There are no token ids, log-probs, verdicts, right
answers or finish reasons. A resumed run may append a task again; the later rows count as further samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from equipoise.rollouts.readers.foreign import (
    as_text,
    files_in,
    has_keys,
    leftovers,
    lines_of,
    natural,
    number_in,
    recognised,
    require,
    streaming,
    wanted,
)
from equipoise.rollouts.readers.mapping import check_map, mapped
from equipoise.rollouts.rows import Warn
from equipoise.rollouts.run import Run, RunInfo, Warnings

KEYS = ("task_id", "sample_idx", "seqlen", "prompt_len", "reward", "prompt", "completion")


def claims(path: Path) -> bool:
    return bool(_files(path))


def open(path: Path, *, columns: Mapping[str, str] | None = None) -> Run:
    warnings = Warnings()
    named = check_map(columns)
    files = require(_files(path), path, what="AReaL dump (rollout/<version>/<task>.jsonl)")

    def rows(asked: Sequence[str] | None, warn: Warn) -> Iterator[dict[str, Any]]:
        for file in files:
            seen: set[str | None] = set()
            for line in lines_of(file, warn):
                if not has_keys(line, *KEYS):
                    warn("mixed-schema", f"{file.name}: lines that are no AReaL sample were skipped")
                    continue
                index = as_text(line["sample_idx"])
                if index in seen:
                    warn(
                        "task-again",
                        f"{file.name}: a task was written twice, as after a resume; its later rows are further samples",
                    )
                row = _row(line, file, again=index in seen)
                seen.add(index)
                if wanted(asked, "extra"):
                    row["extra"] = leftovers(line, (*KEYS, "tail_version"))
                yield row | mapped(line, named, warn)

    info = RunInfo(source="areal", run_id=path.name if path.is_dir() else None, provenance={"reward": "as logged"})
    return Run(path, info, streaming(path, rows, named, warnings), warnings=warnings)


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return recognised([path], _is_sample)
    if not path.is_dir():
        return []
    patterns = ("*.jsonl", "*/*.jsonl", "*rollout/*/*.jsonl")  # a version, a dump, the log folder
    found = {p for pattern in patterns for p in files_in(path, pattern) if p.stem.isdecimal()}
    return recognised(sorted(found, key=natural), _is_sample)


def _is_sample(line: Mapping[str, Any] | None) -> bool:
    return has_keys(line, *KEYS)


def _row(line: Mapping[str, Any], file: Path, *, again: bool) -> dict[str, Any]:
    lengths = line["seqlen"], line["prompt_len"]
    version = line.get("tail_version", number_in(file.parent.name))
    return {
        "split": "eval" if "eval-rollout" in file.parts else "train",
        "step": version,
        "group_id": str(line["task_id"]),
        "sample_index": None if again else line["sample_idx"],
        "prompt": line["prompt"],
        "completion": line["completion"],
        "reward": line["reward"],
        "n_tokens": lengths[0] - lengths[1] if all(isinstance(n, int) for n in lengths) else None,
    }
