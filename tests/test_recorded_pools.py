"""The recorded pools: they open, hold what they promise, and the packaged models make them again."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from equipoise.measures.trace_confidence import RULES, trace_confidence
from equipoise.rollouts.readers.table import read_run
from equipoise.samplers.recorded import RecordedPool
from equipoise.tasks.table import find_task

FOLDER = Path(__file__).parents[1] / "benchmarks" / "infer" / "recorded"
POOLS = {
    "thinker": ("packaged:thinker", "countdown:numbers=3", (0, 16, 32, 64, 128)),
    "small": ("packaged", "countdown", (None,)),
}
COLUMNS = ["prompt_id", "budget", "sample_index", "completion", "answer", "correct", "n_tokens", "extra"]
LISTS = ["token_ids", "logprobs_rollout", "entropies", "token_confidences"]


@pytest.fixture(scope="module", params=POOLS)
def pool(request):
    """Name and rows, as pandas reads the Parquet files."""
    paths = sorted((FOLDER / request.param).glob("rollouts/*/*.parquet"))
    rows = pd.concat([pd.read_parquet(path) for path in paths], ignore_index=True)
    return request.param, rows


def test_every_problem_has_64_samples_at_every_budget_in_less_than_10_megabytes(pool):
    name, rows = pool
    budgets = POOLS[name][2]
    assert rows["prompt_id"].nunique() == 500
    found = rows["budget"].dropna().unique()
    assert set(found) == {budget for budget in budgets if budget is not None}
    sizes = rows.groupby(["prompt_id", "budget"], dropna=False)["sample_index"].agg(["size", "nunique", "min", "max"])
    assert len(sizes) == 500 * len(budgets)
    assert (sizes == [64, 64, 0, 63]).all().all()
    assert sum(path.stat().st_size for path in (FOLDER / name).rglob("*") if path.is_file()) < 10_000_000


def test_accuracy_is_neither_hopeless_nor_done(pool):
    name, rows = pool
    by_budget = rows.groupby("budget", dropna=False)["correct"].mean()
    middling = by_budget[(by_budget > 0.3) & (by_budget < 0.6)]
    assert len(middling) == (3 if name == "thinker" else 1)  # the thinker's two large budgets come to more
    assert (by_budget > 0.3).all()
    assert (by_budget < 0.8).all()
    assert rows["correct"].notna().all()


def test_answers_are_graded_as_the_task_grades_them(pool):
    name, rows = pool
    task = find_task(POOLS[name][1])
    posed = {problem.id: problem for problem in task.problems(("sample", 0), 500, split="test")}
    assert set(rows["prompt_id"]) == set(posed)
    for row in rows.sample(300, random_state=0).itertuples():
        recorded = None if pd.isna(row.answer) else row.answer
        answer = task.read(posed[row.prompt_id], row.completion or "")
        if row.finish_reason == "stop":
            assert (None if answer is None else answer.text) == recorded
        assert (recorded in task.solutions(posed[row.prompt_id])) == row.correct


def test_token_lists_of_a_tenth_and_trace_confidences_of_all(pool):
    _, rows = pool
    listed = rows["token_ids"].notna()
    share = rows.loc[listed, "prompt_id"].nunique() / 500
    assert 0.05 < share < 0.15
    assert (rows.groupby("prompt_id")["token_ids"].count().isin([0, len(rows) // 500])).all()
    for row in rows[listed].sample(50, random_state=0).itertuples():
        assert {len(getattr(row, name)) for name in LISTS} == {row.n_tokens}
        told = json.loads(row.extra)["trace_confidences"]
        for rule, value in told.items():
            assert value == pytest.approx(trace_confidence(row.token_confidences, rule), abs=1e-3)
    assert all(set(json.loads(extra)["trace_confidences"]) == set(RULES) for extra in rows["extra"].sample(300))


def test_the_thinker_keeps_its_budget_and_a_larger_one_goes_on_from_a_smaller():
    rows = pd.read_parquet(next((FOLDER / "thinker").glob("rollouts/*/*.parquet")))
    unopened = rows["thinking"].isna()  # a few completions in ten thousand begin otherwise than they were taught
    assert unopened.mean() < 1e-3
    rows = rows[~unopened]
    assert (rows["n_thinking"] <= rows["budget"]).all()
    assert (rows["thinking"].str.len() <= rows["budget"]).all()
    assert rows["answer"].notna().mean() > 0.98
    by_budget = rows.groupby("budget")["correct"].mean()
    assert by_budget.is_monotonic_increasing
    by_budget = {
        budget: mine.set_index(["prompt_id", "sample_index"])["thinking"] for budget, mine in rows.groupby("budget")
    }
    both = pd.concat([by_budget[32], by_budget[64]], axis=1, keys=["short", "long"], join="inner")
    assert sum(long.startswith(short) for short, long in both.itertuples(index=False)) > 0.99 * len(both)


def test_pools_open_through_the_readers_and_replay(pool):
    name, rows = pool
    run = read_run(FOLDER / name)
    assert sum(len(batch) for batch in run.rollouts(("prompt_id",))) == len(rows)
    budget = POOLS[name][2][-1]
    replay = RecordedPool.of(FOLDER / name, budget=budget)
    assert len(replay.ids) == 500
    assert replay.size(replay.ids[0]) == 64


def test_the_committed_model_draws_the_same_again(pool, tmp_path):
    """Rounding differs between kinds of CPU, and a draw that lies within it of a boundary then falls on its other side."""
    pytest.importorskip("torch")
    from equipoise.lab.sample import sample

    name, rows = pool
    settings = json.loads((FOLDER / name / "run.json").read_text())["settings"]
    budgets = () if POOLS[name][2] == (None,) else (0, 32)
    sample(
        POOLS[name][0],
        POOLS[name][1],
        tmp_path / "again",
        problems=3,
        samples=64,
        budgets=budgets,
        answer_tokens=settings["answer_tokens"],
        temperature=settings["temperature"],
        seed=settings["seed"],
    )
    again = pd.concat([pd.read_parquet(path) for path in (tmp_path / "again").glob("rollouts/*/*.parquet")])
    keys = ["prompt_id", "budget", "sample_index"]
    both = again[COLUMNS].merge(rows[COLUMNS], on=keys, suffixes=("", "_pool"))
    assert len(both) == 3 * 64 * max(1, len(budgets))
    assert (both["completion"] == both["completion_pool"]).mean() > 0.95
    assert (both["n_tokens"] == both["n_tokens_pool"]).mean() > 0.95
