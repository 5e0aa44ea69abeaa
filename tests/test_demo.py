"""The demo at a small size: it trains, compares and tells both arms. Its numbers at full size are the demo's own output."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("torch", reason="needs the extra train: pip install 'equipoise[train]'")

from equipoise.cli.main import app
from equipoise.lab.demo import run_demo


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, Path]:
    folder = tmp_path_factory.mktemp("demo")
    return json.loads(json.dumps(run_demo(folder, steps=2, problems=24, samples=16).to_dict())), folder


def test_both_arms_are_trained_evaluated_and_diagnosed(told):
    found, folder = told
    assert [arm["arm"] for arm in found["arms"]] == ["plain", "kept"]
    for arm in found["arms"]:
        assert Path(arm["run"]) == folder / arm["arm"]
        assert arm["diagnosis"]["verdict"]
        assert {n["name"] for n in arm["after"]} >= {"pass@1", "pass@16", "distinct_unsolved", "entropy", "kl_to_base"}


def test_differences_are_those_of_the_recorded_problems(told):
    import pandas as pd

    found, folder = told

    def solved(arm: str, step: int) -> pd.Series:
        rows = pd.concat(
            pd.read_parquet(path) for path in (folder / arm / "rollouts" / f"step={step:06d}").glob("*.parquet")
        )
        return rows[rows["split"] == "test"].groupby("prompt_id")["correct"].mean().sort_index()

    base = solved("plain", 0)
    assert base.equals(solved("kept", 0))  # one model, the same problems and seeds
    for arm in found["arms"]:
        (change,) = [n for n in arm["against_base"] if n["name"] == "pass@1"]
        assert change["value"] == pytest.approx(float(np.mean(solved(arm["arm"], 2) - base)))
        assert change["n"] == 24


def test_a_folder_that_holds_a_run_is_refused(told):
    _, folder = told
    result = CliRunner().invoke(app, ["demo", "-o", str(folder), "--steps", "1"])
    assert result.exit_code != 0
    assert "holds a run already" in str(result.exception)
