"""A baseline for a recorded run: the same prompts, ids and sampling, drawn of another model, and what cannot be had is said."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from making import find

torch = pytest.importorskip("torch")

import equipoise as eq  # noqa: E402
from equipoise.adapters.trl_step import prompt_key  # noqa: E402
from equipoise.errors import UsageError  # noqa: E402
from equipoise.lab.sample import sample  # noqa: E402
from equipoise.measures.table import measure  # noqa: E402
from equipoise.models.loaders import load_model  # noqa: E402
from equipoise.rollouts.folder import info_of  # noqa: E402
from equipoise.rollouts.run import RunInfo  # noqa: E402
from equipoise.rollouts.writer import RunWriter  # noqa: E402
from equipoise.samplers.scripted import Scripted  # noqa: E402
from equipoise.tasks.table import find_task  # noqa: E402

PROMPTS = ["3,7,2,9=24>", "1,2,3,4=10>", "5,5,2,6=18>"]


def rows_of(folder):
    return [row for batch in eq.read(folder).rollouts() for row in batch.rows()]


def captured(folder, prompts=PROMPTS, *, steps=(1, 2), group=4, right="1+2+3+4", drawn_with=(), **cells):
    """A run folder as the capture inside TRL writes it: ids are made of the prompt's tokens, the prompt is a text."""
    tokens = load_model("packaged").tokens
    provenance = {"logprobs_train": {"kind": "processed", "temperature": 0.7}}
    sampling = {"temperature": 0.7, "max_completion_length": 12, "top_k": 0, **dict(drawn_with)}
    info = RunInfo("trl", run_id="trl", sampling=sampling, provenance=provenance)
    rows = [
        {
            "run_id": "trl", "split": "train", "step": step, "group_id": f"train-{step}-{place}", "sample_index": n,
            "prompt_id": prompt_key(tokens.encode(prompt)), "prompt": prompt, "completion": right, "answer": right,
            "correct": prompt == PROMPTS[1], "temperature": 0.7, "finish_reason": "stop", **cells,
        }
        for step in steps for place, prompt in enumerate(prompts) for n in range(group)
    ]  # fmt: skip
    writer = RunWriter(folder, info)
    writer.write(rows)
    return str(folder)


def test_a_captured_run_and_its_baseline_are_compared_problem_by_problem(tmp_path):
    run, base = captured(tmp_path / "run"), tmp_path / "base"
    told = sample("packaged", run, base, samples=4, grader="countdown")
    rows = rows_of(base)
    assert told.warnings == ()
    assert {row["prompt_id"]: row["prompt"] for row in rows} == {r["prompt_id"]: r["prompt"] for r in rows_of(run)}
    assert Counter(row["prompt"] for row in rows) == dict.fromkeys(PROMPTS, 4)
    # As the run was drawn, and judged by the task whose numbers stand in the prompts.
    assert {row["temperature"] for row in rows} == {0.7}
    assert info_of(base / "run.json").sampling["max_tokens"] == 12
    for row in rows:
        expected = False
        if row["answer"] is not None:
            numbers, target = row["prompt"].rstrip(">").split("=")
            used = sorted(int(n) for n in "".join(c if c.isdigit() else " " for c in row["answer"]).split())
            expected = used == sorted(map(int, numbers.split(","))) and eval(row["answer"]) == int(target)
        assert row["correct"] is expected
    compared = find(measure([run], ["passk"], baseline=base).estimates["passk"], "pass@1_vs_baseline")
    per_problem = [sum(r["correct"] for r in rows if r["prompt"] == prompt) / 4 for prompt in PROMPTS]
    assert (compared.n, compared.value) == (3, pytest.approx((0 + 1 + 0) / 3 - sum(per_problem) / 3))


def test_without_a_grader_nothing_is_called_right_or_wrong_and_that_is_said(tmp_path):
    told = sample("packaged", captured(tmp_path / "run", correct=None, answer=None), tmp_path / "base", samples=2)
    assert {(row.get("correct"), row.get("reward"), row.get("outcome")) for row in rows_of(tmp_path / "base")} == {
        (None, None, None)
    }
    assert [line.split(":")[0] for line in told.warnings] == ["no-verdicts"]
    assert find(told.estimates, "pass@1").value is None


def test_reference_answers_of_the_record_are_graded_by_mathematics(tmp_path):
    cells = {
        "reference_answer": "42",
        "answer": None,
        "correct": None,
        "prompt": "What is 6 times 7?",
        "prompt_id": "a",
    }
    run = captured(tmp_path / "run", PROMPTS[:1], **cells)
    told = sample(Scripted(["The answer is 42.", "The answer is 41."]), run, tmp_path / "base",
                  samples=2, grader="math", max_tokens=50, top_logprobs=None)  # fmt: skip
    assert [(row["answer"], row["correct"]) for row in rows_of(tmp_path / "base")] == [("42", True), ("41", False)]
    assert told.warnings == ()
    with pytest.raises(UsageError, match="has no reference answers"):
        sample("packaged", captured(tmp_path / "without"), tmp_path / "b", grader="math")


def test_messages_stay_messages_and_a_rendered_text_is_not_wrapped_again(tmp_path):
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]
    text = "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n"
    path = tmp_path / "dump"
    path.mkdir()
    lines = [
        {"prompt_id": "chat", "messages": chat, "completion": "4"},
        {"prompt_id": "text", "prompt": text, "completion": "4"},
    ]
    (path / "rollouts.jsonl").write_text("\n".join(map(json.dumps, lines)))
    server = Scripted(["The answer is 4."])  # as a server, it would be asked by chat
    told = sample(server, str(path), tmp_path / "base", samples=1, top_logprobs=None)
    assert sorted(server.prompts, key=str) == sorted([chat, text], key=str)
    assert {row["prompt_id"]: row.get("messages") or row.get("prompt") for row in rows_of(tmp_path / "base")} == {
        "chat": chat,
        "text": text,
    }
    assert any(line.startswith("prompts: they are asked as the text that plain wrote") for line in told.warnings)


@pytest.mark.parametrize("kind", ["plain", "chat"])
def test_trl_s_own_completions_get_a_baseline_whatever_their_prompts_are(tmp_path, kind):
    folder = Path(__file__).parent / "golden" / "trl" / kind
    theirs = {row["prompt_id"]: row.get("messages") or row["prompt"] for row in rows_of(folder)}
    assert all(isinstance(prompt, list) == (kind == "chat") for prompt in theirs.values())
    server = Scripted(["The answer is 4.", "5"])
    sample(server, str(folder), tmp_path / "base", samples=2, top_logprobs=None)
    assert {row["prompt_id"]: row.get("messages") or row["prompt"] for row in rows_of(tmp_path / "base")} == theirs
    columns = {"correct": "correct_reward"}  # for the run: a run folder has the record's names
    against = eq.diagnose(folder, columns=columns, baseline=tmp_path / "base")
    assert not any("none of" in line and "is in it" in line for line in against.missing)
    assert any("no rollout of the baseline has" in line for line in against.missing)


def test_min_p_of_the_run_is_taken_over_and_its_top_k_is_named(tmp_path):
    run = captured(tmp_path / "run", drawn_with={"min_p": 0.1, "top_k": 20, "top_p": 0.9}.items())
    told = sample("packaged", run, tmp_path / "base", samples=1, grader="countdown")
    assert told.warnings == ("sampling: the run was drawn with top_k=20, which is not done here",)
    found = info_of(tmp_path / "base" / "run.json").sampling
    assert (found["min_p"], found["top_p"], found["temperature"]) == (0.1, 0.9, 0.7)
    sample("packaged", run, tmp_path / "other", samples=1, temperature=1.0, top_p=1.0, decoding={"min_p": 0.2})
    found = info_of(tmp_path / "other" / "run.json").sampling
    assert (found["min_p"], found["top_p"], found["temperature"]) == (0.2, 1.0, 1.0)


def test_messages_that_end_with_a_reply_are_gone_on_with_where_there_is_no_text(tmp_path):
    begun = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "It is"}]
    rows = [
        {"prompt_id": "begun", "messages": begun, "completion": "4"},
        {"prompt_id": "whole", "messages": begun, "prompt": "2+2?", "completion": "It is"},
    ]
    RunWriter(tmp_path / "run", RunInfo("trl")).write(rows)
    server = Scripted(["The answer is 4."])
    sample(server, str(tmp_path / "run"), tmp_path / "base", samples=1, top_logprobs=None)
    assert sorted(server.prompts, key=str) == sorted([begun, "2+2?"], key=str)


def test_the_problems_drawn_last_come_first(tmp_path):
    folder = tmp_path / "run"
    for step, prompt in enumerate(PROMPTS, start=1):
        captured(folder, [prompt], steps=[step])
    sample("packaged", str(folder), tmp_path / "base", problems=2, samples=1)
    assert {row["prompt"] for row in rows_of(tmp_path / "base")} == set(PROMPTS[1:])
    with pytest.raises(UsageError, match=r"4 problems were asked for, and .* has 3"):
        sample("packaged", str(folder), tmp_path / "more", problems=4, samples=1)
    with pytest.raises(UsageError, match=r"unknown split of .* 'eval'.* all, train"):
        sample("packaged", str(folder), tmp_path / "more", split="eval", samples=1)


def test_verdicts_and_answers_that_the_run_came_to_otherwise_are_counted(tmp_path):
    # 1+2+3+4 is right for the second prompt only; this record calls it right in all 24 rows, and read an answer of its own.
    run = captured(tmp_path / "run", correct=True, answer="10")
    told = sample("packaged", run, tmp_path / "base", samples=1, grader="countdown")
    assert [line.split(":")[0] for line in told.warnings] == ["other-verdicts", "other-answers"]
    assert "of 24 completions of the run 16 are judged otherwise" in told.warnings[0]
    assert "of 24 answers of the run 24 are read otherwise" in told.warnings[1]


def test_prompts_that_are_other_tokens_than_the_run_had_are_counted(tmp_path):
    run = captured(tmp_path / "run", PROMPTS[:2])
    captured(tmp_path / "run", PROMPTS[2:], prompt_id="0123456789abcdef")
    told = sample("packaged", run, tmp_path / "base", samples=1, grader="countdown")
    assert [line[:37] for line in told.warnings] == ["other-tokens: 1 of 3 prompts are not t"[:37]]


def test_a_problem_in_which_the_grader_finds_nothing_is_left_without_a_verdict(tmp_path):
    run = captured(tmp_path / "run")
    captured(tmp_path / "run", ["1+2="])
    told = sample("packaged", run, tmp_path / "base", samples=2, grader="countdown")
    judged = {(row["prompt"], row["correct"] is not None) for row in rows_of(tmp_path / "base")}
    assert judged == {*((prompt, True) for prompt in PROMPTS), ("1+2=", False)}
    assert told.warnings[0].startswith("no-verdicts: 1 of 4 problems are not judged")


def test_what_cannot_grade_is_refused_before_anything_is_drawn(tmp_path):
    run = captured(tmp_path / "run")
    for grader, says in (("queens", "queens cannot grade recorded prompts"), ("queen", "unknown task 'queen'")):
        with pytest.raises(UsageError, match=says):
            sample("packaged", run, tmp_path / "base", grader=grader)
    with pytest.raises(UsageError, match="'countdown' is no folder of one"):
        sample("packaged", "countdown", tmp_path / "base", grader="math")
    bare = tmp_path / "bare"
    RunWriter(bare, RunInfo("trl")).write([{"prompt_id": "a", "completion": "b"}])
    with pytest.raises(UsageError, match="holds no prompts"):
        sample("packaged", str(bare), tmp_path / "base")
    assert not (tmp_path / "base").exists()


def test_countdown_finds_its_numbers_in_either_form_of_a_prompt():
    task = find_task("countdown:prompt=words")
    posed = task.pose([3, 7, 2, 9], 24).prompt
    assert task.recognise(f"<|user|>{posed}<|assistant|>") == {"numbers": [3, 7, 2, 9], "target": 24}
    assert task.recognise("1,2=3> 10,4,4=2>") == {"numbers": [10, 4, 4], "target": 2}
    assert task.recognise("What is 3,7=21?") is None


def test_the_command_makes_a_baseline(tmp_path):
    from typer.testing import CliRunner

    from equipoise.cli.main import app

    run, base = captured(tmp_path / "run"), tmp_path / "base"
    done = CliRunner().invoke(
        app, ["sample", "packaged", run, "-o", str(base), "-n", "4", "--grader", "countdown", "--json"]
    )
    assert done.exit_code == 0, done.output
    diagnosed = eq.diagnose(run, baseline=base).to_dict()
    against = {line["measure"]: line["n"] for line in diagnosed["findings"] if line["at"].get("against") == "baseline"}
    assert against["pass@2_vs_baseline"] == 3
