"""The caller's map over other tools' files: a wrong name is an error, and a map made for the run never takes a baseline's own column."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from equipoise.errors import UsageError
from equipoise.rollouts.readers.table import open_source

GOLDEN = Path(__file__).parent / "golden"
SOURCES = [
    *("areal/rollout", "inspect/match.eval", "lm_eval", "nemo_rl", "open_instruct", "prime_rl", "skyrl/dumped_evals"),
    *("trl/plain", "verifiers/traces.jsonl", "verl/legacy"),
]


def cells(run, name):
    return [row.get(name) for batch in run.rollouts(["prompt_id", name]) for row in batch.rows()]


def verl_dump(folder, lines):
    folder.mkdir()
    rows = [{"input": "2+2?", "output": "4", "gts": "4", "score": 1.0, "step": 1, **line} for line in lines]
    (folder / "1.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


@pytest.mark.parametrize("path", SOURCES)
def test_a_name_that_no_row_has_is_an_error_that_lists_what_rows_have(path):
    run = open_source(GOLDEN / path, columns={"confidence": "sureness"})
    with pytest.raises(UsageError, match=r"^no row of .* has 'sureness' to read as confidence; a row has \w+, \w+"):
        cells(run, "confidence")
    against = open_source(GOLDEN / path, columns={"confidence": "sureness"}, baseline=True)
    with pytest.raises(UsageError, match=r"has 'sureness' to read as confidence and it has no confidence of its own"):
        cells(against, "confidence")


@pytest.mark.parametrize("path", SOURCES)
def test_a_baseline_keeps_its_own_column_where_the_map_of_the_run_does_not_fit(path):
    own = cells(open_source(GOLDEN / path), "reward")
    assert any(value is not None for value in own)
    against = open_source(GOLDEN / path, columns={"reward": "accuracy_reward"}, baseline=True)
    assert cells(against, "reward") == own
    said = [line for line in against.warnings.lines() if "accuracy_reward" in line]
    assert said == ["own-column: 'accuracy_reward', named for reward, is in no row: its own reward stands there"]
    assert len(cells(against, "prompt_id")) == len(own)  # nobody asked for rewards: nothing is missing


def test_names_that_could_be_meant_come_first_in_the_message():
    run = open_source(GOLDEN / "inspect" / "numeric.eval", columns={"reward": "nope"})
    with pytest.raises(UsageError) as problem:
        cells(run, "reward")
    listed = str(problem.value).split("a row has ")[1]
    with_scores = open_source(GOLDEN / "inspect" / "numeric.eval", columns={"reward": listed.split(", ")[0]})
    assert any(isinstance(value, float) for value in cells(with_scores, "reward"))


def test_where_some_rows_lack_the_column_a_run_has_nulls_and_a_baseline_its_own(tmp_path):
    folder = verl_dump(tmp_path / "dump", [{"acc": False, "judge": 1.0}, {"acc": True}, {"acc": True, "judge": 0.0}])
    run = open_source(folder, columns={"correct": "judge"})
    assert cells(run, "correct") == [True, None, False]  # never acc, which is another's verdict
    assert [line.split(": ")[0] for line in run.warnings.lines() if "judge" in line] == ["missing-column"]
    against = open_source(folder, columns={"correct": "judge"}, baseline=True)
    assert cells(against, "correct") == [True, True, False]
    assert [line for line in against.warnings.lines() if "judge" in line] == [
        "own-column: 'judge', named for correct, is not in every row: its own correct stands there"
    ]


def test_a_filter_that_was_named_for_another_lm_eval_run_does_not_shut_a_baseline_out():
    own = cells(open_source(GOLDEN / "lm_eval"), "answer")
    with pytest.raises(UsageError, match="has no filter 'nope'"):
        cells(open_source(GOLDEN / "lm_eval", columns={"answer": "nope"}), "answer")
    assert cells(open_source(GOLDEN / "lm_eval", columns={"answer": "nope"}, baseline=True), "answer") == own


def test_diagnose_tells_of_it_in_one_line(tmp_path):
    from typer.testing import CliRunner

    from equipoise.cli.main import app

    run = verl_dump(tmp_path / "run", [{"accuracy_reward": n % 2, "uid": str(n // 2)} for n in range(8)])
    base = verl_dump(tmp_path / "base", [{"acc": True, "uid": str(n // 2)} for n in range(8)])
    words = ["diagnose", str(run), "--column", "correct=accuracy_reward", "--baseline"]
    done = CliRunner().invoke(app, [*words, str(base)])
    assert done.exit_code == 0, done.output
    assert "baseline: own-column: 'accuracy_reward', named for correct, is in no row" in done.output
    lacking = verl_dump(tmp_path / "lacking", [{"score": 0.5, "uid": str(n // 2)} for n in range(8)])
    refused = CliRunner().invoke(app, [*words, str(lacking)])
    assert isinstance(refused.exception, UsageError)
    assert "has no correct of its own" in str(refused.exception)
