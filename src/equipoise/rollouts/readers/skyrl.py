"""SkyRL 0.3.0 (`dump_eval_results`, on by default): `dumped_evals/global_step_N_evals/<data source>.jsonl`.

| SkyRL | here |
| --- | --- |
| the folder's name | step (none for `eval_only`) |
| `data_source` | env |
| `input_prompt`, `output_response`, decoded with special tokens | prompt, completion |
| `score`: a number, or a list with one entry a token | reward: the number, or the list's sum |
| `env_extras.reward_spec.ground_truth` | reference_answer |
| `stop_reason` | finish_reason |
| runs of equal prompts, counted off in groups of one size | group_id, sample_index |
| `aggregated_results.jsonl` | metrics |

Evaluations only: the training batches are pickles and are not read. Step-wise evaluation writes one row per step of a
trajectory without marking it. There are no token ids, log-probs or verdicts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from equipoise.rollouts.readers.curves import metrics_of_rows
from equipoise.rollouts.readers.foreign import (
    files_in,
    has_keys,
    leftovers,
    lines_of,
    natural,
    number,
    number_in,
    recognised,
    require,
    streaming,
    wanted,
)
from equipoise.rollouts.readers.grouping import GroupCounter, group_size, run_lengths
from equipoise.rollouts.readers.mapping import check_map, mapped
from equipoise.rollouts.rows import Warn, stable_id
from equipoise.rollouts.run import Run, RunInfo, Warnings

KEYS = ("input_prompt", "output_response", "score", "stop_reason", "env_class")
TOTALS = "aggregated_results.jsonl"


def claims(path: Path) -> bool:
    return bool(_files(path))


def open(path: Path, *, columns: Mapping[str, str] | None = None) -> Run:
    warnings = Warnings()
    named = check_map(columns)
    files = require(_files(path), path, what="SkyRL evaluation dump (global_step_N_evals/<data source>.jsonl)")
    totals = {file.parent / TOTALS for file in files if (file.parent / TOTALS).is_file()} if path.is_dir() else set()
    logged = ({"step": _step(file)} | line for file in sorted(totals, key=natural) for line in lines_of(file, warnings))
    curves = metrics_of_rows(logged, warn=warnings, tool="skyrl")

    def rows(asked: Sequence[str] | None, warn: Warn) -> Iterator[dict[str, Any]]:
        runs = [run_lengths(line.get("input_prompt") for line in lines_of(file)) for file in files]
        size = group_size(runs)
        if size is None:
            warn(
                "uneven-groups",
                "prompts repeat unevenly, as in step-wise evaluation: rows of one prompt in a row are one group",
            )
        for file in files:
            counter = GroupCounter(size)
            for line in lines_of(file, warn):
                if not has_keys(line, "input_prompt", "output_response"):
                    warn("mixed-schema", f"{file.name}: lines without input_prompt and output_response were skipped")
                    continue
                group, index = counter.next(line["input_prompt"])
                row = _row(line, _step(file)) | {"group_id": stable_id(file.stem, str(group)), "sample_index": index}
                if wanted(asked, "extra"):
                    row["extra"] = leftovers(line, (*KEYS, "data_source"))
                yield row | mapped(line, named, warn)

    info = RunInfo(
        source="skyrl",
        run_id=path.name if path.is_dir() else None,
        provenance=curves.provenance | {"reward": "score as logged, summed over tokens"},
    )
    return Run(
        path,
        info,
        streaming(path, rows, named, warnings),
        read_metrics=lambda: map(dict, curves.steps),
        warnings=warnings,
    )


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return recognised([path], _is_result)
    if not path.is_dir():
        return []
    for pattern in (
        "*.jsonl",
        "*evals*/*.jsonl",
        "eval_only/*.jsonl",
        "dumped_evals/*/*.jsonl",
    ):  # a step, a dump, a run
        found = [p for p in files_in(path, pattern) if p.name != TOTALS]
        if recognised(found, _is_result):
            return sorted(found, key=natural)
    return []


def _is_result(line: Mapping[str, Any] | None) -> bool:
    return has_keys(line, *KEYS)


def _step(file: Path) -> int | None:
    return number_in(file.parent.name) if file.parent.name.startswith("global_step") else None


def _row(line: Mapping[str, Any], step: int | None) -> dict[str, Any]:
    score = line.get("score")
    if isinstance(score, list):
        parts = [number(part) for part in score]
        reward = sum(p for p in parts if p is not None) if parts and None not in parts else None
    else:
        reward = number(score)
    extras = line.get("env_extras")
    spec = extras.get("reward_spec") if isinstance(extras, Mapping) else None
    return {
        "split": "eval",
        "step": step,
        "env": line.get("data_source"),
        "prompt": line["input_prompt"],
        "completion": line["output_response"],
        "reference_answer": spec.get("ground_truth") if isinstance(spec, Mapping) else None,
        "reward": reward,
        "finish_reason": line.get("stop_reason"),
    }
