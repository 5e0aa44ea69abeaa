"""The small table that `run.py` reads, out of the recorded turns of SQL agents.

    python -m benchmarks.agents.make_table TURNS.parquet

TURNS is the multi-turn SQL part of princeton-nlp/intercode (MIT licence): a row per turn with model, task, turn, action, observation,
reward and valid. Kept of each turn: whether it solved the task, and a code for what the agent saw. No texts.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

HERE = Path(__file__).parent
STATES = ("error", "repeated", "empty", "listing", "rows")
LISTINGS = ("show", "describe", "desc ", "explain")


def state_of(action: str, observation: str | None, valid: bool | None, earlier: set[str]) -> int:
    """What the agent sees of its last call, without knowing whether it was right."""
    asked = " ".join(action.lower().split())
    if asked in earlier:
        return STATES.index("repeated")
    if not valid:
        return STATES.index("error")
    if asked.startswith(LISTINGS) or "information_schema" in asked:
        return STATES.index("listing")
    return STATES.index("empty" if (observation or "").strip() in ("", "[]") else "rows")


def make_table(path: Path) -> pa.Table:
    rows = pq.read_table(path).to_pylist()
    rows.sort(key=lambda row: (row["model"], row["task"], row["turn"]))
    states, seen, last = [], set(), None
    for row in rows:
        if (row["model"], row["task"]) != last:
            seen, last = set(), (row["model"], row["task"])
        states.append(state_of(row["action"], row["observation"], row["valid"], seen))
        seen.add(" ".join(row["action"].lower().split()))
    return pa.table(
        {
            "model": pa.array([row["model"] for row in rows]).dictionary_encode(),
            "task": np.array([row["task"] for row in rows], dtype=np.int16),
            "call": np.array([row["turn"] + 1 for row in rows], dtype=np.int8),
            "solved": [row["reward"] >= 1 for row in rows],
            "state": np.array(states, dtype=np.int8),
        }
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("turns", type=Path)
    pq.write_table(make_table(parser.parse_args().turns), HERE / "turns.parquet", compression="zstd")
