"""`sample` and `solve` by way of a real server: what it streams is recorded, and a strategy answers under a budget."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from equipoise.lab.sample import sample
from equipoise.lab.solve import solve

pytestmark = pytest.mark.integration


def test_a_servers_completions_are_recorded(llama_server, tmp_path):
    out = tmp_path / "pool"
    told = sample(f"{llama_server}/v1", "chains", out, problems=2, samples=2, max_tokens=12, top_logprobs=5)
    assert (told.problems, told.rollouts) == (2, 4)
    rows = pd.concat([pd.read_parquet(path) for path in out.glob("rollouts/*/*.parquet")])
    assert rows["messages"].notna().all()
    for row in rows.itertuples():
        assert len(row.token_confidences) == len(row.logprobs_rollout) == row.n_tokens <= 12
        assert json.loads(row.extra)["trace_confidences"]["mean"] == pytest.approx(
            row.token_confidences.mean(), abs=1e-4
        )
    again = sample(f"{llama_server}/v1", "chains", out, problems=2, samples=2, max_tokens=12, top_logprobs=5)
    assert (again.drawn, again.rollouts) == (0, 4)


def test_a_question_is_answered_under_a_budget(llama_server):
    choice = solve("What is 2+2? Answer with a number only.", f"{llama_server}/v1", strategy="majority:n=3", budget=20)
    assert choice.spent.generated <= 20
    assert choice.drawn
