"""Any run as our run folder, streamed: the folder appears when it is complete, and not at all otherwise."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from equipoise.errors import UsageError
from equipoise.files import append_lines, make_folder
from equipoise.rollouts.batch import Rollouts
from equipoise.rollouts.folder import step_folders
from equipoise.rollouts.readers.table import Source, open_source
from equipoise.rollouts.run import Run
from equipoise.rollouts.writer import RunWriter

_TOKENS = ("token_ids", "logprobs_rollout", "entropies")  # any of them tells how long a completion is


def convert(
    source: Source | Sequence[Source], folder: Path | str, *, columns: Mapping[str, str] | None = None
) -> dict[str, int]:
    """Read a run of any known format and write it as a run folder; what was written, counted."""
    return convert_run(open_source(source, columns=columns), folder)


def convert_run(run: Run, folder: Path | str) -> dict[str, int]:
    """Write a run into a folder that does not exist yet, or is empty; what was written, counted."""
    folder = Path(folder)
    try:
        make_folder(folder.parent)
    except OSError as problem:
        raise UsageError(
            f"cannot make {folder.parent}: {problem.strerror}; name a folder that can be written"
        ) from problem
    if not os.access(folder.parent, os.W_OK):
        raise UsageError(f"cannot write into {folder.parent}: Permission denied; name a folder that can be written")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} exists and is not an empty folder; name one that does not exist")
    partial = folder.with_name(f".{folder.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        counts = _write(run, partial)
        os.rename(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return counts


def _write(run: Run, folder: Path) -> dict[str, int]:
    writer = RunWriter(folder, run.info)
    counts = {"n_rollouts": 0, "n_steps": 0, "n_tokens": 0, "n_metrics": 0, "n_choices": 0}

    def counted() -> Iterator[Rollouts]:
        for rollouts in run.rollouts():
            tokens = next((lists for name in _TOKENS if (lists := rollouts.ragged(name)) is not None), None)
            counts["n_tokens"] += 0 if tokens is None else int(tokens.offsets[-1])
            yield rollouts

    counts["n_rollouts"] = writer.write_batches(counted())
    counts["n_steps"] = sum(step is not None for step, _ in step_folders(folder))
    counts["n_metrics"] = _append(
        folder / "metrics.jsonl", (line for line in run.metrics() if line.get("step") is not None)
    )
    counts["n_choices"] = _append(folder / "choices.jsonl", run.choices())
    texts = run.vocab()
    if texts:
        writer.vocab(texts)
    if not counts["n_rollouts"] and not counts["n_metrics"] and not counts["n_choices"]:
        raise UsageError(f"{run.path} holds neither rollouts nor metrics: there is nothing to convert")
    return counts


def _append(path: Path, lines: Iterable[Mapping[str, Any]]) -> int:
    written = 0
    lines = iter(lines)
    while some := list(islice(lines, 1000)):
        append_lines(path, some)
        written += len(some)
    return written
