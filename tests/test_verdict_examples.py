"""The bundled examples: each comes out as it was made, is what its maker writes, and stays small."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from html import escape
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from equipoise.base import Diagnosis
from equipoise.cli.main import app
from equipoise.lab.make_examples import make_examples
from equipoise.lab.synthetic import World
from equipoise.lab.verdict_examples import BASE, EXAMPLES, diagnose_examples, example_path
from equipoise.measures.table import measure
from equipoise.views.card import verdict_card


@cache
def diagnoses() -> dict[str, tuple[str, Diagnosis]]:
    return dict(zip((example.name for example in EXAMPLES), diagnose_examples(), strict=True))


def implied(world: World) -> str:
    """What a world's knobs say is wrong with it."""
    return {
        (False, False): "healthy",
        (True, False): "training-time entropy collapse",
        (False, True): "inference-time variance inflation",
        (True, True): "both",
    }[world.collapse > 0, world.inflation > 0]


def test_one_example_per_verdict_labelled_by_its_world():
    assert [example.label for example in EXAMPLES[:4]] == [implied(example.world) for example in EXAMPLES[:4]]
    last = EXAMPLES[4]
    assert last.label == "not enough data"
    assert last.world.problems < 10
    assert not last.world.budgets
    assert not last.baseline
    assert len({example.label for example in EXAMPLES}) == 5
    assert all("synthetic" in example.title.lower() for example in EXAMPLES)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_the_diagnosis_is_the_label(example):
    title, found = diagnoses()[example.name]
    assert title == example.title
    assert found.verdict == example.label
    assert (found.confidence is None) == (found.verdict == "not enough data")
    assert found.n_prompts == example.world.problems


def test_a_card_has_one_line_for_a_host_and_says_which_need_equipoise():
    hosts = {
        name: [line.partition(": ")[0] for line in (*found.prescription.lines, *found.prescription.next_lines)]
        for name, (_, found) in diagnoses().items()
    }
    own = ["trl", "verl", "equipoise"]
    assert hosts["collapse"] == own
    # The lines of the next training are for hosts that have none for now.
    assert hosts["inflation"] == ["gateway", "openai", "trl, with equipoise", "verl, with equipoise", "equipoise"]
    assert hosts["both"] == [*own, "gateway", "openai"]
    assert hosts["healthy"] == []
    found = diagnoses()["inflation"][1]
    page = verdict_card(found, anchor="a")
    shown = CliRunner().invoke(app, ["demo", "--cards"], env={"COLUMNS": "1000"}).stdout
    for line in found.prescription.next_lines:
        mark, _, pasted = line.partition(": ")
        assert f"      {line}\n" in shown
        assert f'<p class="fine">{mark}</p><pre><code>{escape(pasted)}</code></pre>' in page


def test_the_command_shown_prints_the_same_verdict():
    example = EXAMPLES[1]
    program, *arguments = example.command().split()
    assert program == "equipoise"
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout) == json.loads(json.dumps(diagnoses()["collapse"][1].to_dict()))
    failing = CliRunner().invoke(app, [*arguments, "--fail-on", "collapse"])
    assert failing.exit_code == 3


def test_the_command_line_shows_every_card_and_its_command(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        "equipoise.lab.verdict_examples.diagnose_examples", lambda: list(diagnoses().values())
    )  # once is enough
    result = CliRunner().invoke(app, ["demo", "--cards"])
    assert result.exit_code == 0
    for example in EXAMPLES:
        assert example.title in result.stdout
        assert example.label.upper() in result.stdout
        assert example.command() in result.stdout.replace("\n", " ")
    as_json = json.loads(CliRunner().invoke(app, ["demo", "--cards", "--json"]).stdout)
    assert [run["diagnosis"]["verdict"] for run in as_json["runs"]] == [example.label for example in EXAMPLES]
    assert all(run["synthetic"] for run in as_json["runs"])


def test_the_files_are_small_and_are_what_the_maker_writes(tmp_path: Path):
    make_examples(tmp_path)
    for name in (BASE, *(example.name for example in EXAMPLES)):
        shipped, made = example_path(name), tmp_path / f"{name}.parquet"
        assert shipped.stat().st_size <= 150_000
        assert pq.read_table(shipped).equals(pq.read_table(made)), name


def test_made_up_runs_hold_no_text_that_a_measure_would_judge():
    for example in EXAMPLES:
        columns = pq.read_schema(example.path).names
        assert "completion" not in columns
        assert {"prompt", "answer", "reference_answer", "token_ids", "entropies"} <= set(columns)
    found = measure(example_path("collapse"), "health")
    assert not [one for one in found["health"] if one.name.startswith("degenerate") and one.value is not None]


def test_the_maker_runs_as_a_program(tmp_path: Path):
    subprocess.run([sys.executable, "-m", "equipoise.lab.make_examples", str(tmp_path / "new")], check=True)
    assert len(list((tmp_path / "new").glob("*.parquet"))) == 6
