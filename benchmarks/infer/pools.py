"""Recorded pools as JSON lines, one sample a line: prompt_id, sample_index, answer, correct, n_tokens.

Where a source tells no token counts, n_tokens are the pieces of its text: words, digits and signs. Where it keeps no text, 1.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from equipoise.text.answers import canonical

PIECE = re.compile(r"\d|[^\W\d_]+|[^\w\s]|_")
POOLS = ("math-rm8", "cruxeval", "game24")
COUNTDOWN = "countdown"  # the packaged small model at T = 0.3, 600 problems × 64


def pieces(text: str) -> int:
    return len(PIECE.findall(text))


def rows_of(name: str, data: Path) -> Iterator[dict[str, Any]]:
    """The rows of one pool, from the folder of rollouts."""
    if name == "game24":  # chain of thought only: the other half of the file has another prompt
        for row in _read(data / "rollouts-game24-gpt4" / "rollouts.parquet"):
            if row["prompting"] == "cot":
                yield _row(str(row["puzzle_idx"]), row["sample"], row["answer"], row["correct"], pieces(row["text"]))
    elif name == "math-rm8":
        for row in _read(data / "rollouts-math-rm8" / "rollouts.parquet"):
            yield _row(str(row["idx"]), row["sample"], row["pred"], row["correct"], pieces(row["text"]))
    elif name == "cruxeval":
        for row in _read(data / "rollouts-cruxeval-output" / "rollouts.parquet"):
            yield _row(row["id"], row["sample"], row["answer"], row["correct"], 1)
    else:
        raise ValueError(f"unknown pool '{name}': known are {', '.join(POOLS)}")


def _row(prompt_id: str, sample: int, answer: str | None, correct: bool, n_tokens: int) -> dict[str, Any]:
    read = None if answer is None else canonical(answer)
    return {"prompt_id": prompt_id, "sample_index": sample, "answer": read, "correct": correct, "n_tokens": n_tokens}


def _read(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows


def write_pool(name: str, data: Path, path: Path) -> int:
    rows = list(rows_of(name, data))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return len(rows)


def draw_countdown(work: Path, path: Path) -> Path:
    """The run folder of the packaged model's pool, drawn where it is not there yet, and its rows as JSON lines."""
    from equipoise.lab.sample import sample
    from equipoise.rollouts.readers.table import read_run

    run = work / "countdown_run"
    sample("packaged", "countdown", out=run, samples=64, problems=600, temperature=0.3, seed=0)
    columns = ("prompt_id", "sample_index", "answer", "correct", "n_tokens")
    with path.open("w") as handle:
        for batch in read_run(run).rollouts(columns):
            handle.writelines(json.dumps({name: row[name] for name in columns}) + "\n" for row in batch.rows())
    return run
