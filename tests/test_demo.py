"""The demo at a small size: it trains, compares and tells both arms. Its numbers at full size are the demo's own output."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from html_tables import read_tables
from typer.testing import CliRunner

pytest.importorskip("torch", reason="needs the extra train: pip install 'equipoise[train]'")

from equipoise.cli.demo import _write_report
from equipoise.cli.main import app
from equipoise.lab.demo import Demo, run_demo


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    return run_demo(tmp_path_factory.mktemp("demo"), steps=2, problems=24, samples=16)


@pytest.fixture(scope="module")
def told(found: Demo) -> tuple[dict, Path]:
    return json.loads(json.dumps(found.to_dict())), Path(found.arms[0].trained.folder).parent


def test_a_notebook_shows_the_base_model_beside_both_arms(found: Demo, told: tuple[dict, Path]) -> None:
    html = found._repr_html_()
    (table,) = read_tables(html)
    assert list(table.columns) == ["base model", *(arm["title"] for arm in told[0]["arms"])]
    for column, numbers in zip(
        table.columns, (told[0]["base"], *(arm["after"] for arm in told[0]["arms"])), strict=True
    ):
        for number in numbers:
            cell = table[column][number["name"]]
            assert float(cell.split(" ")[0]) == pytest.approx(
                number["value"], abs=0.051 if number["value"] > 9.9 else 5.1e-4
            )
    assert html.count("<p>") == 3  # each arm against the base model, and both against each other
    assert all(arm["diagnosis"]["verdict"] in html for arm in told[0]["arms"])


def test_both_arms_are_trained_evaluated_and_diagnosed(told):
    found, folder = told
    assert [arm["arm"] for arm in found["arms"]] == ["plain", "kept"]
    for arm in found["arms"]:
        assert Path(arm["run"]) == folder / arm["arm"]
        assert arm["diagnosis"]["verdict"]
        assert {n["name"] for n in arm["after"]} >= {"pass@1", "pass@16", "distinct_unsolved", "entropy", "kl_to_base"}


def test_the_arms_are_grpo_and_preserve_with_equal_rollouts(told):
    found, folder = told
    plain, kept = (json.loads((folder / arm / "run.json").read_text())["settings"] for arm in ("plain", "kept"))
    assert [arm["title"] for arm in found["arms"]] == ["GRPO", "preserve"]
    assert (plain["recipe"], kept["recipe"]) == ("grpo", "preserve")
    assert [run["sampling"]["prompts"] * run["sampling"]["samples"] for run in (plain, kept)] == [512, 512]
    assert [run["sampling"]["temperature"] for run in (plain, kept)] == [1, 0.5]
    assert kept["method"]["regularisers"] == ["kl:coef=0.05,kind=exact"]
    assert (kept["learning"]["ema"], kept["learning"]["blend"]) == (0.95, 1)
    assert {**kept["learning"], "ema": None, "blend": None, "lr": 2e-4} == plain["learning"]
    assert kept["learning"]["lr"] == 1e-4  # half


def test_differences_are_those_of_the_recorded_problems(told):
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


def test_all_policies_spend_the_same_tokens_and_a_checked_search_finds_what_the_samples_hold(told):
    found, folder = told
    policies = [("plain", 0, found["base_spending"])] + [(arm["arm"], 2, arm["spending"]) for arm in found["arms"]]
    for arm, step, spending in policies:
        rows = pd.concat(pd.read_parquet(p) for p in (folder / arm / "rollouts" / f"step={step:06d}").glob("*.parquet"))
        rows = rows[rows["split"] == "test"]
        by_way = {way["strategy"]: way for way in spending}
        assert list(by_way) == ["single", "majority", "best_of_n"]
        for name, way in by_way.items():
            assert way["accuracy"]["n"] == 24
            assert way["tokens"]["value"] <= 256
            # 16 samples of at most 16 tokens: all of them fit, and the checker finds a right one wherever there is one.
            if name == "best_of_n":
                assert way["accuracy"]["value"] == pytest.approx(rows.groupby("prompt_id")["correct"].any().mean())
                assert way["tokens"]["value"] == pytest.approx(rows.groupby("prompt_id")["n_tokens"].sum().mean())


def test_a_folder_that_holds_a_run_is_refused(told):
    _, folder = told
    result = CliRunner().invoke(app, ["demo", "-o", str(folder), "--steps", "1"])
    assert result.exit_code != 0
    assert "holds a run already" in str(result.exception)


def test_the_demo_ends_with_a_report_of_both_arms(found, told):
    pytest.importorskip("plotly", reason="needs the extra report: pip install 'equipoise[report]'")
    page = _write_report(found, told[1])
    assert page == told[1] / "report.html"
    twin = json.loads(page.with_suffix(".json").read_text())
    assert [(run["name"], run["diagnosis"]["verdict"]) for run in twin["runs"]] == [
        (arm["arm"], arm["diagnosis"]["verdict"]) for arm in told[0]["arms"]
    ]
    # Every character that the model drew is named, so that the heat maps show text.
    drawn = {token for row in twin["runs"][0]["rollouts"]["rows"] for token in row["ids"]}
    assert drawn <= {int(token) for token in twin["runs"][0]["rollouts"]["vocab"]}
