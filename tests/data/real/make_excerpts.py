"""Cut the excerpts in this folder from the full sets: python make_excerpts.py FOLDER

FOLDER holds rollouts-game24-gpt4, rollouts-cruxeval-output, rollouts-math-rm8, rollouts-reasoning-gym and
rollouts-intercode-sql, each with the Parquet file that SOURCE.md names. Columns get the record's names; nothing else is changed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

HERE = Path(__file__).parent
GAME24_PUZZLES = range(900, 920)
CRUXEVAL = {"mixed": 40, "never": 10, "always": 10}  # problems by how often they were right
MATH_PROBLEMS = 40
GYM_MODELS = ("meta-llama_llama-3.3-70b-instruct", "openai_o3-mini")
GYM_TASKS = ("countdown", "leg_counting", "letter_counting", "products")
SQL_MODELS = ("gpt-4", "text-davinci-003")
SQL_TASKS = range(200)


def game24(folder: Path) -> pd.DataFrame:
    full = pd.read_parquet(folder / "rollouts-game24-gpt4" / "rollouts.parquet")
    rows = full[(full["prompting"] == "cot") & full["puzzle_idx"].isin(GAME24_PUZZLES)]
    rows = rows.rename(columns={"sample": "sample_index", "text": "completion"})
    rows["prompt_id"] = "game24-" + rows["puzzle_idx"].astype(str)
    return rows[["prompt_id", "sample_index", "completion", "answer", "correct"]]


def cruxeval(folder: Path) -> pd.DataFrame:
    full = pd.read_parquet(folder / "rollouts-cruxeval-output" / "rollouts.parquet")
    right = full.groupby("id")["correct"].mean().sort_index()
    kinds = {"mixed": right[(right > 0) & (right < 1)], "never": right[right == 0], "always": right[right == 1]}
    kept = [name for kind, n in CRUXEVAL.items() for name in kinds[kind].index[:n]]
    rows = full[full["id"].isin(kept)].sort_values(["id", "sample"], kind="stable")
    return rows.rename(columns={"id": "prompt_id", "sample": "sample_index"})[
        ["prompt_id", "sample_index", "answer", "correct"]
    ]


def math_rm8(folder: Path) -> pd.DataFrame:
    full = pd.read_parquet(folder / "rollouts-math-rm8" / "rollouts.parquet")
    right = full.groupby("idx")["correct"].mean()
    mixed = right[right < 1].index.tolist()
    kept = (mixed + right[right == 1].index.tolist())[:MATH_PROBLEMS]
    rows = full[full["idx"].isin(kept)].sort_values(["idx", "sample"], kind="stable")
    rows = rows.rename(columns={"sample": "sample_index", "pred": "answer", "rm_score": "reward"})
    rows["prompt_id"] = "math-" + rows["idx"].astype(str)
    return rows[["prompt_id", "sample_index", "answer", "correct", "reward"]]


def reasoning_gym(folder: Path) -> pd.DataFrame:
    full = pd.read_parquet(folder / "rollouts-reasoning-gym" / "answers.parquet")
    rows = full[(full["difficulty"] == "easy") & full["model"].isin(GYM_MODELS) & full["task"].isin(GYM_TASKS)]
    names = {"model": "run_id", "qid": "prompt_id", "task": "env", "sample": "sample_index", "score": "reward"}
    return rows.rename(columns=names)[["run_id", "prompt_id", "env", "sample_index", "answer", "reward"]]


def intercode_sql(folder: Path) -> pd.DataFrame:
    full = pd.read_parquet(folder / "rollouts-intercode-sql" / "turns.parquet")
    rows = full[full["model"].isin(SQL_MODELS) & full["task"].isin(SQL_TASKS)].rename(columns={"model": "run_id"})
    rows["prompt_id"] = "sql-" + rows["task"].astype(str)
    return rows[["run_id", "prompt_id", "turn", "reward"]]


def main(folder: Path) -> None:
    game24(folder).to_parquet(HERE / "game24.parquet", index=False, compression="zstd")
    cruxeval(folder).to_json(HERE / "cruxeval.jsonl", orient="records", lines=True, force_ascii=False)
    math_rm8(folder).to_parquet(HERE / "math_rm8.parquet", index=False, compression="zstd")
    reasoning_gym(folder).to_parquet(HERE / "reasoning_gym.parquet", index=False, compression="zstd")
    intercode_sql(folder).to_parquet(HERE / "intercode_sql.parquet", index=False, compression="zstd")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
