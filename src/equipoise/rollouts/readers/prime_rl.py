"""prime-rl (August 2026): a run's `rollouts/step_N/<train|eval>/<all|effective>/traces.jsonl` and its token exports.

The lines are verifiers traces; `verifiers.py` has their dictionary. Besides:

| prime-rl | here |
| --- | --- |
| the folders' names | step and split, where the line has none |
| `all` | read; `effective` is already filtered and is read only where `all` is missing, with a warning |
| `token_exports/step_N/rank_R.jsonl` | joined by token ids: full digits for the streams below |
| `inference_logprobs`, `trainer_logprobs` | logprobs_rollout, logprobs_train |
| `entropy` (nats, after the training temperature), `advantages` | entropies, advantages |
| `metrics.jsonl` | metrics |

Exports hold no text, reward or group, cover only trained rollouts and are complete only with the `STABLE` marker: a step
without it is left out. `effective` hides the groups without signal, which diversity and dead-group measures count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from equipoise.rollouts.columns import TOKEN_COLUMNS
from equipoise.rollouts.readers import verifiers
from equipoise.rollouts.readers.curves import metrics_of_rows
from equipoise.rollouts.readers.foreign import (
    files_in,
    first_object,
    lines_of,
    number_in,
    quiet,
    recognised,
    require,
    streaming,
    wanted,
)
from equipoise.rollouts.readers.mapping import check_map
from equipoise.rollouts.rows import Warn
from equipoise.rollouts.run import Run, Warnings

PLACE = re.compile(r"step_(?P<step>\d+)/(?P<split>train|eval)/(?P<kind>all|effective)/traces\.jsonl(?:\.gz)?")
STREAMS = {
    "inference_logprobs": "logprobs_rollout",
    "trainer_logprobs": "logprobs_train",
    "entropy": "entropies",
    "advantages": "advantages",
}


def claims(path: Path) -> bool:
    return bool(_files(path, quiet))


def open(path: Path, *, columns: Mapping[str, str] | None = None) -> Run:
    warnings = Warnings()
    named = check_map(columns)
    files = require(_files(path, warnings), path, what="prime-rl traces (rollouts/step_N/train/all/traces.jsonl)")
    step_or_run = path.parent if path.name.startswith("step_") else path
    run = step_or_run.parent if step_or_run.name == "rollouts" else step_or_run
    exports, log = run / "token_exports", run / "metrics.jsonl"
    lines = lines_of(log, warnings) if log.is_file() else ()
    logged = ({key: value for key, value in line.items() if key != "time"} for line in lines)  # several lines a step
    curves = metrics_of_rows(logged, warn=warnings, tool="prime-rl")

    def rows(asked: Sequence[str] | None, warn: Warn) -> Iterator[dict[str, Any]]:
        samples = verifiers.SampleCounter()
        with_tokens = wanted(asked, "n_tokens", "advantage", *TOKEN_COLUMNS)
        for step, split, file in files:
            exported = _Exports(exports / f"step_{step}", warn) if with_tokens and split == "train" else None
            for line in lines_of(file, warn):
                for row in verifiers.rows_of(line, samples, named, asked, warn, join=exported):
                    row["step"] = step if row["step"] is None else row["step"]
                    row["split"] = row["split"] or split
                    yield row

    about = verifiers.info_of(first_object(files[0][2]) or {}, source="prime-rl")
    entropies = {
        "estimator": "exact, full softmax",
        "temperature": "training",
        "aggregation": "none",
        "mask": "sampled tokens",
    }
    info = replace(about, provenance=curves.provenance | dict(about.provenance) | {"entropies": entropies})
    return Run(
        path,
        info,
        streaming(path, rows, named, warnings),
        read_metrics=lambda: map(dict, curves.steps),
        warnings=warnings,
    )


def _files(path: Path, warn: Warn) -> list[tuple[int, str, Path]]:
    """(step, split, file), in step order, one file per step and split."""
    folder = path / "rollouts" if (path / "rollouts").is_dir() else path
    pattern = "*/*/traces.jsonl*" if folder.name.startswith("step_") else "step_*/*/*/traces.jsonl*"
    found: dict[tuple[int, str], Path] = {}
    for file in files_in(folder, pattern):
        place = PLACE.fullmatch("/".join(file.parts[-4:]))
        # "all" sorts before "effective", so the first of a step and split is the one to read.
        if place:
            found.setdefault((int(place["step"]), place["split"]), file)
    if not recognised(list(found.values()), verifiers.is_trace_line):
        return []
    for (step, split), file in found.items():
        if file.parent.name == "effective":
            warn(
                "effective-only",
                f"step {step} {split} has only the filtered rollouts (effective): groups without signal are missing",
            )
    return [(step, split, file) for (step, split), file in sorted(found.items())]


class _Exports:
    """The token exports of one step by their token ids. Equal sequences have equal streams, so any of them fits."""

    def __init__(self, folder: Path, warn: Warn) -> None:
        self._by_ids: dict[bytes, dict[str, list[Any]]] = {}
        if not folder.is_dir():
            return
        if not (folder / "STABLE").exists():
            warn(
                "unstable-export",
                f"token_exports/{folder.name} has no STABLE marker, so it is still being written and was left out",
            )
            return
        for file in sorted(files_in(folder, "rank_*.jsonl"), key=lambda p: number_in(p.stem) or 0):
            for line in lines_of(file, warn):
                ids = line.get("token_ids")
                streams = {ours: line[theirs] for theirs, ours in STREAMS.items() if isinstance(line.get(theirs), list)}
                if isinstance(ids, list) and all(len(values) == len(ids) for values in streams.values()):
                    self._by_ids[_key(ids)] = streams
                else:
                    warn("bad-export", f"{file.name}: lines whose lists differ in length were left out")

    def __call__(self, ids: list[int]) -> Mapping[str, Any] | None:
        return self._by_ids.get(_key(ids))


def _key(ids: Sequence[Any]) -> bytes:
    return ",".join(map(str, ids)).encode()
