"""What a diagnosis asks for: what this data lacks, and nothing that was given already."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from making import evidence_of
from typer.testing import CliRunner

from equipoise.base import Diagnosis
from equipoise.cli.main import app
from equipoise.diagnosis.verdict import diagnose
from equipoise.lab.verdict_examples import example_path
from equipoise.measures.depth import common_depth
from equipoise.views.card import verdict_card

STEPS, PROMPTS, SAMPLES = 5, 20, 4


def completions(folder: Path, *, recurring: bool, first: int = 0) -> Path:
    """TRL's folder: 20 problems a step in five steps, two reward functions, of which only the second is 0 or 1."""
    (folder / "completions").mkdir(parents=True)
    for step in range(1, STEPS + 1):
        start = first if recurring else first + step * PROMPTS
        places = [(start + p, i) for p in range(PROMPTS) for i in range(SAMPLES)]
        # Fewer samples are right in later problems, so that no two groups are all alike.
        right = [float(i <= problem % SAMPLES) for problem, i in places]
        columns = {
            "step": [step] * len(places),
            "prompt": [f"What is {problem} + 1?" for problem, _ in places],
            "completion": [f"\\boxed{{{problem + 1 if ok else i}}}" for (problem, i), ok in zip(places, right, strict=True)],
            "length_reward": [0.25 + i / 10 for _, i in places],
            "accuracy_reward": right,
            "advantage": [ok - 0.5 for ok in right],
        }  # fmt: skip
        pq.write_table(pa.table(columns), folder / "completions" / f"completions_{step:05d}.parquet")
    return folder


@pytest.fixture(scope="module")
def fresh(tmp_path_factory) -> Path:
    return completions(tmp_path_factory.mktemp("fresh") / "out", recurring=False)


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory) -> Path:
    """Problems that `fresh` has none of."""
    return completions(tmp_path_factory.mktemp("elsewhere") / "out", recurring=True, first=1000)


def asks(found: Diagnosis, text: str) -> bool:
    return any(text in line for line in found.missing)


def card(*words: object) -> list[str]:
    result = CliRunner().invoke(app, ["diagnose", *map(str, words)])
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def test_verdicts_that_no_rollout_has_are_asked_for_first(fresh):
    found = diagnose(fresh)
    assert found.verdict == "not enough data"
    assert found.missing[0] == (
        "verdicts (right or wrong), which no rollout has: --column correct=accuracy_reward if it is 0 or 1, "
        "or --column reward=accuracy_reward --solved-at NUMBER (rewards: accuracy_reward, length_reward)"
    )
    lines = card(fresh)
    assert lines[lines.index("  not measured") + 1].strip() == found.missing[0]


@pytest.mark.parametrize(
    "options", [{"columns": {"correct": "accuracy_reward"}}, {"columns": {"reward": "length_reward"}, "solved_at": 0.5}]
)
def test_what_is_asked_for_supplies_them(fresh, options):
    found = diagnose(fresh, **options)
    assert not asks(found, "verdicts")
    assert any(finding.name == "pass@1" for finding in found.findings)


def test_a_known_total_needs_no_column_and_a_log_alone_no_verdicts(tmp_path):
    rows = [{"prompt_id": p, "reward": 0.1 * i, "answer": str(i)} for p in range(12) for i in range(4)]
    table = pa.Table.from_pylist([{**row, "prompt_id": str(row["prompt_id"])} for row in rows])
    pq.write_table(table, tmp_path / "run.parquet")
    told = diagnose(tmp_path / "run.parquet").missing[0]
    assert told.endswith("--column correct=COLUMN if it is 0 or 1, or --solved-at NUMBER")
    (tmp_path / "trainer_state.json").write_text(
        '{"log_history": [' + ", ".join(f'{{"step": {s}, "loss": 0.1, "entropy": 0.5}}' for s in range(1, 30)) + "]}"
    )
    assert not asks(diagnose(tmp_path / "trainer_state.json"), "verdicts")


def test_a_baseline_without_verdicts_is_named(tmp_path):
    base = pa.Table.from_pylist([{"prompt_id": str(p), "answer": str(i)} for p in range(12) for i in range(4)])
    pq.write_table(base, tmp_path / "base.parquet")
    run = pa.Table.from_pylist(
        [{"prompt_id": str(p), "answer": str(i), "correct": i < p % 4} for p in range(12) for i in range(4)]
    )
    pq.write_table(run, tmp_path / "run.parquet")
    found = diagnose(tmp_path / "run.parquet", baseline=tmp_path / "base.parquet")
    assert found.missing[0].startswith("verdicts (right or wrong), which no rollout of the baseline has: ")
    assert not asks(found, "--baseline")


def test_a_baseline_of_other_problems_is_not_asked_for_again(fresh, elsewhere):
    found = diagnose(fresh, baseline=elsewhere, columns={"correct": "accuracy_reward"})
    assert asks(
        found, "none of its 20 prompt ids is among the run's 100 (--column prompt_id=COLUMN, if both have such ids)"
    )
    assert not asks(found, "--baseline")
    assert all(len(line) <= 300 for line in found.missing)  # the card cuts there


def test_steps_without_recurring_problems_are_called_so(fresh, elsewhere):
    columns = {"correct": "accuracy_reward"}
    assert asks(diagnose(fresh, columns=columns), "in which problems recur (of 100 problems in 5 steps, none does)")
    assert not asks(diagnose(elsewhere, columns=columns), "none does")


def test_a_run_compared_with_itself_shows_no_difference_and_asks_for_no_more_problems():
    base = example_path("base")
    found = diagnose(base, baseline=base)
    assert found.verdict == "not enough data"
    assert found.findings[0].reading.endswith("of the problems: no problem differs")
    assert asks(found, "there is no difference on any problem (pass@k lost: n = 100, ")
    assert not asks(found, "more problems")


def test_the_card_says_of_which_steps_its_numbers_are(fresh):
    lines = card(fresh, "--column", "correct=accuracy_reward")
    assert "(100 problems, 400 rollouts)" in lines[0]
    assert "  measured in step 5, the last" in lines  # one of five: a fifth of the steps
    lines = card(example_path("collapse"), "--baseline", example_path("base"))
    assert "  measured in steps 6 to 7, the last" in lines  # two of eight
    assert sum(bool(re.search(r"changed by .*\[split train, steps 6 to 7\]$", line)) for line in lines) == 2
    assert "  measured" in card(example_path("base"))  # no steps
    page = verdict_card(diagnose(example_path("collapse"), baseline=example_path("base")), anchor="a")
    assert page.count("split train, steps 6 to 7") == 7  # the two comparisons, and five numbers of the training split


def test_a_baseline_of_the_same_problems_that_does_not_compare_says_why(tmp_path):
    rows = [{"prompt_id": str(p), "answer": str(i), "correct": i < p % 4} for p in range(12) for i in range(4)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "run.parquet")
    twice = [{**row, "temperature": t} for row in rows for t in (0.5, 1.0)]
    pq.write_table(pa.Table.from_pylist(twice), tmp_path / "base.parquet")
    found = diagnose(tmp_path / "run.parquet", baseline=tmp_path / "base.parquet")
    assert asks(found, "training loop: a baseline of one condition: this one has 2 that would do")
    found = diagnose(tmp_path / "run.parquet", baseline=tmp_path / "run.parquet", k=8)  # four samples are too few
    assert asks(found, "training loop: draw ≥ 8 samples per problem, in both")
    assert asks(found, "training loop: unsolved problems with ≥ 8 answers, in both")
    assert not asks(found, "--baseline")


def test_a_baseline_without_verdicts_does_not_set_the_k_of_the_run():
    def drawn(correct: bool | None) -> list[dict[str, object]]:
        return [{"prompt_id": f"p{p}", "answer": str(n), "correct": correct} for p in range(10) for n in range(8)]

    judged, unjudged = (evidence_of(drawn(correct)).answers for correct in (True, None))
    assert common_depth([judged]) == 4  # half of 8
    assert common_depth([judged, unjudged]) == 4
    assert common_depth([unjudged]) == 1
