"""`sample`, `solve` and `probe` by way of a real server: what it streams is recorded, and a strategy answers under a budget."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from equipoise.base import Sampling
from equipoise.lab.probe import probe
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


def test_deepconf_stops_unsure_traces_at_the_server(llama_server):
    """Keep a twentieth: all traces after the warm-up but the surest are below its best lowest group, and are stopped early."""
    strategy = "deepconf_online:keep=0.05,warmup=3,cap=8,window=4,k=5,ballots=8,at_once=3"
    choice = solve("Write a story.", f"{llama_server}/v1", strategy=strategy, how=Sampling(max_tokens=24))
    stopped = [c for c in choice.drawn if c.finish == "confidence"]
    assert len(choice.drawn) == 8
    assert stopped
    for completion in stopped:
        confidences = list(completion.token_confidences)
        assert len(confidences) >= 4
        best = max(min(_means(list(each.token_confidences), 4)) for each in choice.drawn[:3])
        assert min(_means(confidences, 4)) < best
    assert choice.spent.cancelled == sum(c.n_tokens for c in stopped)


def _means(values, window):
    window = min(window, len(values))
    return [sum(values[i : i + window]) / window for i in range(len(values) - window + 1)]


def test_a_probe_runs_through_the_server(llama_server, tmp_path):
    found = probe(f"{llama_server}/v1", "chains", tmp_path / "probe", budgets=(4, 8, 16), samples=2, problems=3)
    told = found.to_dict()
    rows = pd.concat([pd.read_parquet(path) for path in (tmp_path / "probe").glob("rollouts/*/*.parquet")])
    assert len(rows) == 3 * 3 * 2
    assert (rows["n_tokens"] <= rows["budget"]).all()
    assert told["budgets"] == [4, 8, 16]
    assert told["inflated"] is None  # three problems are not enough to say
