"""open-instruct (August 2026, `save_traces`): `<run>_rollouts_NNNNNN.jsonl` shards with `<run>_metadata.jsonl`.

| open-instruct | here |
| --- | --- |
| `step`, `prompt_idx` | step, group_id |
| `sample_idx`, a position in the whole batch | counted anew within the group: sample_index |
| `prompt_tokens` | prompt_id, as a digest; there is no text |
| `response_tokens`, `logprobs` (the sampler's) | token_ids, logprobs_rollout; their number: n_tokens |
| `reward`, `advantage`, `finish_reason`, `dataset` | reward (on the run's own scale), advantage, finish_reason, env |
| `ground_truth` (token ids), `request_info` | extra |

There is no text at all: prompt and completion stay null, and `answer` and `correct` with them. A folder with several runs
needs the name of one of its files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from equipoise.errors import UsageError
from equipoise.rollouts.readers.foreign import (
    files_in,
    first_object,
    has_keys,
    leftovers,
    lines_of,
    natural,
    recognised,
    require,
    streaming,
    wanted,
)
from equipoise.rollouts.readers.mapping import check_map, mapped
from equipoise.rollouts.rows import Warn, stable_id
from equipoise.rollouts.run import Run, RunInfo, Warnings

NAME = re.compile(r"(?P<run>.+)_rollouts_(?P<shard>\d+)\.jsonl(?:\.gz)?")
KEYS = ("step", "sample_idx", "prompt_idx", "prompt_tokens", "response_tokens", "reward", "advantage")
MAPPED = (*KEYS, "finish_reason", "dataset", "logprobs")


def claims(path: Path) -> bool:
    return bool(_files(path))


def open(path: Path, *, columns: Mapping[str, str] | None = None) -> Run:
    warnings = Warnings()
    named = check_map(columns)
    files = require(_files(path), path, what="open-instruct rollouts (<run>_rollouts_NNNNNN.jsonl)")
    runs = sorted({_run(file) for file in files})
    if len(runs) > 1:
        raise UsageError(
            f"{path} holds {len(runs)} open-instruct runs ({', '.join(runs[:4])}): give one file of the run to read"
        )
    if path.is_file():  # one shard names its run
        files = [
            p for p in files_in(path.parent, f"{_glob(runs[0])}_rollouts_*.jsonl*") if NAME.fullmatch(p.name)
        ] or files
    about = first_object(files[0].with_name(f"{runs[0]}_metadata.jsonl")) or {}

    def rows(asked: Sequence[str] | None, warn: Warn) -> Iterator[dict[str, Any]]:
        for file in files:
            for line in lines_of(file, warn):
                if not has_keys(line, *KEYS):
                    warn("mixed-schema", f"{file.name}: lines that are no rollout record were skipped")
                    continue
                row = _row(line)
                if wanted(asked, "extra"):
                    row["extra"] = leftovers(line, MAPPED)
                yield row | mapped(line, named, warn)

    info = RunInfo(
        source="open-instruct",
        source_version=about.get("git_commit"),
        run_id=runs[0],
        model=about.get("model_name"),
        provenance={
            "reward": "as logged, on the run's own scale",
            "logprobs_rollout": {"kind": "unknown", "source": "sampler"},
        },
    )
    return Run(path, info, streaming(path, rows, named, warnings), warnings=warnings)


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        paths = files_in(path, "*_rollouts_*.jsonl*")
    else:
        paths = [path] if path.is_file() else []
    return recognised(sorted((p for p in paths if NAME.fullmatch(p.name)), key=natural), _is_record)


def _is_record(line: Mapping[str, Any] | None) -> bool:
    return has_keys(line, *KEYS)


def _run(file: Path) -> str:
    found = NAME.fullmatch(file.name)
    return found["run"] if found else file.stem


def _glob(name: str) -> str:
    """The name with the characters that a pattern reads as wild cards made plain."""
    return re.sub(r"([\[\]*?])", r"[\1]", name)


def _row(line: Mapping[str, Any]) -> dict[str, Any]:
    tokens = line["response_tokens"]
    prompt = line["prompt_tokens"]
    return {
        "split": "train",
        "step": line["step"],
        "group_id": str(line["prompt_idx"]),
        "prompt_id": stable_id(",".join(map(str, prompt))) if isinstance(prompt, list) else None,
        "env": line.get("dataset"),
        "reward": line["reward"],
        "advantage": line["advantage"],
        "finish_reason": line.get("finish_reason"),
        "n_tokens": len(tokens) if isinstance(tokens, list) else None,
        "token_ids": tokens,
        "logprobs_rollout": line.get("logprobs") or None,
    }
