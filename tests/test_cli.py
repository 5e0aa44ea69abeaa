"""The command line: help, JSON alone on stdout, one-line errors, exit codes, and text that cannot touch the terminal."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from equipoise.base import Estimate
from equipoise.cli.numbers import MOST_ALIKE, print_estimates
from equipoise.measures.table import MEASURES

COMMANDS = (
    "demo", "diagnose", "measure", "convert", "methods", "train", "study", "blend", "sample", "solve", "compare", "probe", "plan", "doctor",
    "report", "dash", "watch", "serve"
)  # fmt: skip
HOSTILE = "\x1b[31mred\x1b[0m [bold red]x[/bold red]\n\x1b]0;title\x07 \u202eback \x9b2J"


def rollouts(prompts=24, samples=8, seed=0, **cells):
    """One group per problem at each of two steps, with everything that the measures read."""
    rng = np.random.default_rng(seed)
    rate = rng.beta(0.5, 0.5, prompts)
    rows = []
    for step in (1, 2):
        for p in range(prompts):
            for i in range(samples):
                right = bool(rng.random() < rate[p])
                answer = str(p) if right else f"{p}{rng.integers(1, 4)}"
                n = int(rng.integers(5, 20))
                entropies = rng.gamma(0.5, 0.6, n)
                rows.append(
                    {
                        "step": step, "prompt_id": f"p{p}", "group_id": f"g{p}", "sample_index": i, "correct": right,
                        "answer": answer, "reward": float(right), "confidence": round(float(rng.random()), 2),
                        "completion": f"Let me see. {p} + 0 = {answer}. The answer is {answer}.", "n_tokens": n,
                        "finish_reason": "stop", "token_ids": rng.integers(0, 50, n).tolist(),
                        "entropies": entropies.tolist(), "logprobs_rollout": (-entropies).tolist(),
                        "logprobs_train": (-entropies - 0.01).tolist(), "logprobs_ref": (-entropies - 0.1).tolist(), **cells,
                    }
                )  # fmt: skip
    return rows


def swept(prompts=30, samples=4):
    """A sweep over three budgets that peaks in the middle."""
    rng = np.random.default_rng(1)
    return [
        {"prompt_id": f"p{p}", "budget": budget, "sample_index": i, "answer": "7" if right else "8", "correct": right}
        for p in range(prompts)
        for budget, rate in ((1000, 0.3), (2000, 0.9), (4000, 0.4))
        for i, right in enumerate((rng.random(samples) < rate).tolist())
    ]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    return {
        "run": write(folder / "run.jsonl", rollouts()),
        "base": write(folder / "base.jsonl", [row for row in rollouts(seed=5) if row["step"] == 1]),
        "sweep": write(folder / "sweep.jsonl", swept()),
        "hostile": write(folder / "hostile.jsonl", [row | {"env": HOSTILE, "run_id": run, "prompt": HOSTILE} for run in (HOSTILE, "b") for row in rollouts(8, 2)]),
    }  # fmt: skip


# --- help ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_shows_an_example(equipoise, command):
    result = equipoise(command, "--help")
    assert result.code == 0
    assert f"Example: equipoise {command}" in " ".join(result.out.split())


def test_help_lists_the_commands_and_version_is_printed(equipoise):
    result = equipoise("--help")
    assert result.code == 0
    assert all(command in result.out for command in COMMANDS)
    assert re.fullmatch(r"equipoise \d+\.\d+\.\d+\S*\n", equipoise("--version").out)


# --- measure ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [measure.name for measure in MEASURES])
def test_every_measure_gives_numbers_or_says_what_is_missing(equipoise, files, name):
    result = equipoise("measure", name, files["run"], "--baseline", files["base"], "--json")
    assert result.code == 0, result.err
    found = result.json
    assert found["schema"] == "equipoise.measure/1"
    assert found["measure"] == name
    assert found["n_prompts"] == 24
    assert found["n_rollouts"] == 2 * 24 * 8
    assert found["results"]
    for number in found["results"]:
        assert {"name", "value", "low", "high", "n", "at", "how", "missing"} <= set(number)
        assert number["value"] is not None or number["missing"] or number["how"]
        if number["low"] is not None:
            assert number["low"] <= number["high"]
    if name not in (
        "budget",
        "law",
        "transfer",
    ):  # the run has neither several budgets nor a long curve nor a deep base pool
        assert any(number["value"] is not None for number in found["results"])
    printed = equipoise("measure", name, files["run"])
    assert printed.code == 0
    assert printed.out.startswith(f"{name}: 24 problems, 384 rollouts\n")


def test_a_measure_is_what_pandas_computes(equipoise, files):
    frame = pd.read_json(files["run"], lines=True)
    late = frame[frame["step"] == 2]
    found = {
        n["name"]: n["value"]
        for n in equipoise("measure", "passk", files["run"], "-k", "1", "--json").json["results"]
        if n["at"].get("window") == "late"
    }
    assert found["pass@1"] == pytest.approx(late.groupby("prompt_id")["correct"].mean().mean(), abs=1e-9)


def test_options_reach_the_measure(equipoise, tmp_path):
    rows = [{"prompt_id": "p", "reward": r, "confidence": 0.5} for r in (0.2, 0.7, 0.9, 0.9)] * 2
    path = write(tmp_path / "r.jsonl", rows)
    result = equipoise("measure", "passk", path, "--solved-at", "0.8", "-k", "1", "-k", "2", "--json")
    assert [n["name"] for n in result.json["results"]] == ["pass@1", "pass^1", "pass@2", "pass^2"]
    assert result.json["results"][0]["value"] == pytest.approx(0.5)
    renamed = write(tmp_path / "s.jsonl", [{"puzzle": row["prompt_id"], "ok": row["reward"] > 0.8} for row in rows])
    result = equipoise("measure", "passk", renamed, "--column", "prompt_id=puzzle", "--column", "correct=ok", "--json")
    assert result.json["results"][0]["value"] == pytest.approx(0.5)


def test_several_files_are_one_run(equipoise, files, tmp_path):
    rows = rollouts()
    halves = [write(tmp_path / f"{i}.jsonl", rows[i::2]) for i in (0, 1)]
    assert equipoise("measure", "health", *halves, "--json").json["n_rollouts"] == len(rows)


# --- diagnose --------------------------------------------------------------------------------------------------------------


def test_diagnose_keeps_its_contract(equipoise, files):
    result = equipoise("diagnose", files["sweep"], "--use", "answer", "--json")
    assert result.code == 0, result.err
    found = result.json
    assert found["schema"] == "equipoise.diagnose/1"
    assert found["verdict"] == "inference-time variance inflation"
    assert 0.5 < found["confidence"] <= 1
    assert {"name", "loop", "severity", "value", "low", "high", "n", "reading"} <= set(found["findings"][0])
    assert {"trl", "verl", "equipoise", "gateway"} <= set(found["prescription"]["settings"])
    assert found["prescription"]["why"]
    (loss,) = [finding for finding in found["findings"] if finding["measure"] == "overthinking_loss"]
    frame = pd.read_json(files["sweep"], lines=True)
    accuracy = frame.groupby("budget")["correct"].mean()
    assert loss["severity"] == "failing"
    assert loss["value"] == pytest.approx(accuracy[4000] - accuracy[2000])  # 2000 is best in either half


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "folder", "parts"])
@pytest.mark.parametrize("command", ["diagnose", "measure passk"])
def test_a_column_map_does_not_shut_out_a_baseline_that_has_the_column(equipoise, files, tmp_path, command, kind):
    run = [{("accuracy_reward" if k == "correct" else k): v for k, v in row.items()} for row in rollouts()]
    path = write(tmp_path / "run.jsonl", run)
    base = pd.read_json(files["base"], lines=True, dtype=False)
    against = tmp_path / f"base.{kind}"
    if kind == "jsonl":
        write(against, base.to_dict("records"))
    elif kind == "parquet":
        base.to_parquet(against)
    elif kind == "folder":
        assert equipoise("convert", files["base"], against).code == 0
    else:  # one file of it has the run's name of the column, the other the record's
        against.mkdir()
        write(against / "a.jsonl", base[::2].rename(columns={"correct": "accuracy_reward"}).to_dict("records"))
        write(against / "b.jsonl", base[1::2].to_dict("records"))
    options = ("--column", "correct=accuracy_reward", "--json")
    found = equipoise(*command.split(), path, "--baseline", against, *options).json
    plain = equipoise(*command.split(), files["run"], "--baseline", files["base"], "--json").json
    (numbers,) = {"findings", "results"} & set(plain)
    assert plain[numbers]
    assert found[numbers] == plain[numbers]


def test_a_baseline_with_neither_column_of_the_map_is_refused(equipoise, tmp_path):
    run = [{("accuracy_reward" if k == "correct" else k): v for k, v in row.items()} for row in rollouts()]
    base = [{k: v for k, v in row.items() if k != "correct"} for row in rollouts(seed=5)]
    paths = write(tmp_path / "run.jsonl", run), "--baseline", write(tmp_path / "base.jsonl", base)
    result = equipoise("diagnose", *paths, "--column", "correct=accuracy_reward")
    one_line(result, "base.jsonl has no column 'accuracy_reward' to read as correct nor one that is correct itself")
    # The map of the run itself is taken at its word, also where the record's name is there.
    typo = equipoise("diagnose", write(tmp_path / "own.jsonl", rollouts()), "--column", "correct=acuracy_reward")
    one_line(typo, "no column 'acuracy_reward' to read as correct;")


def test_the_card_names_verdict_evidence_and_action(equipoise, files):
    result = equipoise("diagnose", files["sweep"], "--use", "answer")
    assert result.code == 0
    assert result.out.startswith("INFERENCE-TIME VARIANCE INFLATION")
    for word in ("evidence", "what would change this", "next action", "cap it at 2,000 tokens"):
        assert word in result.out


@pytest.mark.parametrize(("verdict", "code"), [("inflation", 3), ("any", 3), ("inference-time variance inflation", 3), ("collapse", 0), ("no-data", 0)])  # fmt: skip
def test_fail_on_a_verdict(equipoise, files, verdict, code):
    assert equipoise("diagnose", files["sweep"], "--use", "answer", "--fail-on", verdict).code == code


def test_fail_on_prints_the_same_json(equipoise, files):
    words = ("diagnose", files["sweep"], "--use", "answer", "--json")
    assert equipoise(*words, "--fail-on", "any").json == equipoise(*words).json


# --- errors: one line, exit code 2 -----------------------------------------------------------------------------------------


def one_line(result, *words):
    assert result.code == 2
    assert result.out == ""
    assert result.err.count("\n") == 1
    assert result.err.startswith("equipoise: ")
    for word in words:
        assert word in result.err
    return True


def test_unknown_names_suggest_the_nearest(equipoise, files):
    assert one_line(equipoise("measure", "pask", files["run"]), "'pask'", "did you mean 'passk'?")
    assert one_line(equipoise("diagnose", files["run"], "--use", "serach"), "did you mean 'search'?")
    assert one_line(equipoise("diagnose", files["run"], "--fail-on", "colapse"), "did you mean 'collapse'?")
    assert one_line(equipoise("methods", "majorty"), "did you mean 'majority'?")
    assert len(equipoise("methods", "majorty").err) < 100  # not the list of all, which stands where none is near
    assert one_line(equipoise("methods", "zzz"), "known are adaptive_clip, ", ", majority, ")
    assert one_line(equipoise("measure", "passk", files["run"], "--column", "prompt_id"), "OURS=THEIRS")


@pytest.mark.parametrize("command", [("diagnose",), ("measure", "passk"), ("convert",)])
def test_a_missing_or_unreadable_file_is_one_line(equipoise, tmp_path, command):
    target = (tmp_path / "out",) if command == ("convert",) else ()
    assert one_line(equipoise(*command, tmp_path / "nowhere.jsonl", *target), "nowhere.jsonl does not exist")
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    assert one_line(equipoise(*command, empty, *target), "is empty")
    garbage = tmp_path / "garbage.bin"
    garbage.write_bytes(bytes(range(256)) * 8)
    assert one_line(equipoise(*command, garbage, *target), "garbage.bin")
    torn = tmp_path / "torn.parquet"
    torn.write_bytes(b"PAR1" + b"\0" * 100)
    assert one_line(equipoise(*command, torn, *target), "torn.parquet")


def test_wrong_numbers_are_refused(equipoise, files):
    assert one_line(equipoise("measure", "passk", files["run"], "-k", "0"), "0 was asked")
    assert one_line(equipoise("measure", "calibration", files["run"], "--bins", "0"), "0 was asked")
    assert equipoise("measure", "passk", files["run"], "--seed", "-1").code == 2
    assert equipoise("measure", "passk").code == 2
    assert equipoise("nothing").code == 2


def test_an_internal_error_is_one_line_with_exit_code_1(equipoise, files, monkeypatch):
    def broken(*args, **options):
        raise RuntimeError("two\nlines")

    monkeypatch.setattr("equipoise.measures.table.measure", broken)
    result = equipoise("measure", "passk", files["run"])
    assert result.code == 1
    assert result.err == "equipoise: internal error, RuntimeError: two lines (EQUIPOISE_DEBUG=1 shows where)\n"


# --- what reaches the terminal ---------------------------------------------------------------------------------------------


def shown_safely(text):
    assert "\x1b" not in text
    assert "\x9b" not in text
    assert "\u202e" not in text
    assert "\x07" not in text
    return True


@pytest.mark.parametrize(
    "words", [("diagnose",), ("measure", "passk"), ("measure", "health"), ("measure", "diversity")]
)
def test_hostile_text_is_shown_harmless(equipoise, files, words):
    result = equipoise(*words, files["hostile"])
    assert result.code == 0, result.err
    assert shown_safely(result.out + result.err)
    assert "red [bold red]x[/bold red] back" in result.out or words == ("diagnose",)
    found = equipoise(*words, files["hostile"], "--json")
    assert shown_safely(found.out)
    if words[0] == "measure":
        assert HOSTILE in {number["at"].get("run_id") for number in found.json["results"]}  # whole, but escaped


def test_a_hostile_path_and_column_are_shown_harmless(equipoise, files, tmp_path):
    result = equipoise("measure", "passk", tmp_path / "\x1b[2J[red]no")
    assert one_line(result, "[red]no does not exist")
    assert shown_safely(result.err)
    assert shown_safely(equipoise("measure", "\x1b[2Jpassk", files["run"]).err)


def test_piped_output_has_no_colours_and_is_not_cut(equipoise, files):
    for words in (("diagnose", files["sweep"]), ("measure", "health", files["run"]), ("methods",), ("demo",)):
        assert "\x1b" not in equipoise(*words).out
    long = write(
        files["run"].parent / "long.jsonl",
        [row | {"run_id": run} for run in ("r" * 100, "s" * 100) for row in rollouts(4, 2)],
    )
    assert "r" * 100 in equipoise("measure", "passk", long).out


def test_warnings_go_to_stderr(equipoise, tmp_path):
    path = write(tmp_path / "r.jsonl", [{"prompt_id": "p", "reward": r} for r in (0, 1)])
    for words in (("measure", "passk", path), ("diagnose", path)):
        result = equipoise(*words, "--json")
        assert "warning: correct: taken from the reward" in result.err
        assert result.json["warnings"]
        assert "warning:" not in equipoise(*words).out


PLURALS = re.compile(
    r"\b1 (problems|rollouts|samples|steps|runs|tokens|completions|questions|notes|distinct answers|prompts)\b"
)


def test_one_of_a_thing_is_named_in_the_singular(equipoise, tmp_path):
    one = write(tmp_path / "one.jsonl", [{"prompt_id": "p", "answer": "7", "correct": True, "n_tokens": 1, "step": 1}])
    alike = write(
        tmp_path / "alike.jsonl",
        [
            {"prompt_id": f"p{p}", "answer": "7", "correct": False, "step": s}
            for p in range(3)
            for s in (1, 2)
            for _ in "ab"
        ],
    )
    said = [equipoise("measure", "health", one).out, equipoise("diagnose", one).out, equipoise("diagnose", alike).out]
    said.append(equipoise("compare", "--pool", one, "--strategies", "single").out)
    assert "(1 problem, 1 rollout)" in said[1]
    assert "1 distinct answer in 2" in said[2]
    assert said[3].startswith(f"{one}: 1 problem × 1 sample; mean over 20 orders")
    assert "agreement with the vote over all 1 sample\n" in said[3]
    assert [PLURALS.findall(text) for text in said] == [[], [], [], []]


def test_a_reader_that_leaves_early_is_no_error():
    program = "import sys; sys.argv = ['equipoise', 'methods']; from equipoise.cli.main import run; run()"
    command = f'"{sys.executable}" -c "{program}" | head -1'
    piped = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert piped.stdout.count("\n") == 1
    assert piped.stderr == ""


# --- convert, methods, demo ------------------------------------------------------------------------------------------------


def test_convert_gives_a_folder_that_measures_the_same(equipoise, files, tmp_path):
    target = tmp_path / "out"
    result = equipoise("convert", files["run"], target, "--json")
    assert result.code == 0, result.err
    assert result.json["schema"] == "equipoise.convert/1"
    before = equipoise("measure", "passk", files["run"], "--json").json["results"]
    after = equipoise("measure", "passk", target, "--json").json["results"]
    assert [(n["name"], n["value"]) for n in before] == [(n["name"], n["value"]) for n in after]
    assert "384 rollouts" in equipoise("convert", files["run"], tmp_path / "again").out
    assert one_line(equipoise("convert", files["run"], target))


def test_methods_are_listed_and_shown(equipoise):
    listed = equipoise("methods", "--json").json
    assert listed["schema"] == "equipoise.methods/1"
    names = [method["name"] for method in listed["methods"]]
    assert "kl" in names
    assert all(name in equipoise("methods").out for name in names)
    one = equipoise("methods", "kl", "--json").json["methods"]
    assert [method["name"] for method in one] == ["kl"]
    page = equipoise("methods", "kl").out
    assert "https://arxiv.org/abs/2504.07912" in page
    assert "GRPOConfig(beta=0.01)" in page
    assert all(trap in page for trap in one[0]["traps"])
    assert one[0]["paste"]["trl"] == {"needs": "", "lines": ["GRPOConfig(beta=0.01)"]}


def test_a_method_that_a_host_lacks_is_shown_with_what_our_adapter_takes(equipoise):
    page = equipoise("methods", "entropy_budget").out.splitlines()
    call = "explore(GRPOTrainer)(…, exploration=['entropy_budget:target=0.3,band=0.05,gain=0.3'])"
    at = page.index(f"  trl       {call}")
    assert page[at - 1].startswith("  trl       with equipoise (pip install 'equipoise[trl]';")
    assert not any(line.startswith("  verl ") for line in page)  # it hands no entropies to a loss
    (row,) = equipoise("methods", "entropy_budget", "--json").json["methods"]
    assert row["paste"]["trl"]["lines"] == [call]
    assert "pip install" in row["paste"]["trl"]["needs"]
    assert set(row["paste"]) == {"trl", "equipoise"}
    (listed,) = (line for line in equipoise("methods").out.splitlines() if line.startswith("entropy_budget "))
    assert "trl*, equipoise " in listed


def test_recipes_are_listed_and_shown_with_what_becomes_of_the_weights(equipoise):
    listed = equipoise("methods", "--json").json["recipes"]
    assert [recipe["name"] for recipe in listed] == ["grpo", "dapo", "skywork_or1", "preserve"]
    assert [(recipe["temperature"], recipe["ema"]) for recipe in listed] == [(None, None)] * 3 + [(0.5, 0.99)]
    overview = equipoise("methods").out.splitlines()
    at = overview.index("recipes of training:")
    assert [line.split()[0] for line in overview[at + 1 : at + 5]] == [recipe["name"] for recipe in listed]
    assert equipoise("methods", "kl", "--json").json["recipes"] == []
    found = equipoise("methods", "preserve", "--json").json
    assert (found["methods"], [recipe["name"] for recipe in found["recipes"]]) == ([], ["preserve"])
    assert found["recipes"][0]["methods"] == {"kl": {"coef": 0.05, "kind": "exact"}}
    page = equipoise("methods", "preserve").out.splitlines()
    assert "  method    kl:coef=0.05,kind=exact" in page
    assert "  sampling  at temperature 0.5, and so with the policy that learns and a KL" in page
    assert "  average   of the weights over the steps: w̄ ← 0.99 w̄ + 0.01 w, which is handed over" in page
    assert "  batch     256 problems × 4 completions a step, updates: 1" in page
    assert "  equipoise equipoise train recipe=preserve sampling.prompts=256 sampling.samples=4 out=FOLDER" in page
    plain = equipoise("methods", "dapo").out
    assert "average" not in plain
    assert "temperature" not in plain
    assert one_line(equipoise("methods", "preserv"), "did you mean 'preserve'?")


def test_the_examples_in_help_name_things_that_exist(equipoise):
    example = re.search(r"Example: equipoise methods (\w+)", equipoise("methods", "--help").out)
    assert equipoise("methods", example[1]).code == 0
    example = re.search(r"Example: equipoise measure (\w+)", equipoise("measure", "--help").out)
    assert example[1] in [measure.name for measure in MEASURES]
    listed = " ".join(equipoise("measure", "--help").out.replace("│", "").split())
    assert all(measure.name in listed for measure in MEASURES)


def test_demo_is_json_too(equipoise):
    result = equipoise("demo", "--cards", "--json")
    assert result.code == 0
    assert result.json["schema"] == "equipoise.demo.cards/1"
    assert {run["diagnosis"]["verdict"] for run in result.json["runs"]} >= {"healthy", "both"}


# --- tables of numbers -----------------------------------------------------------------------------------------------------


def printed(capfd, *estimates):
    print_estimates(estimates)
    return capfd.readouterr().out.splitlines()


def test_a_row_without_a_window_says_its_own_step(capfd):
    rows = [
        Estimate("entropy_at_step", 0.5, n=3, at={"step": [2, 4]}),
        Estimate("entropy_at_step", 0.4, n=3, at={"step": 5}),
    ]
    lines = printed(capfd, *rows)
    assert [line.split()[1:3] for line in lines[1:]] == [["step", "2–4"], ["step", "5"]]


def test_digits_are_those_that_the_interval_supports(capfd):
    lines = printed(
        capfd,
        Estimate("a", 0.283712, 0.2704, 0.2977, n=1200),
        Estimate("b_change", -0.0160, -0.0282, -0.0039, n=100),
        Estimate("b_change_rel", -0.0535, -0.0922, -0.0132, n=100),
        Estimate("c", 1234.5678, 1200.1, 1260.9, n=7),
        Estimate("d", 3.4e-7, 7.6e-8, 1.57e-6, n=7),
        Estimate("e", 0.0, 1.7e-18, 0.0188, n=7),
        Estimate("f", 0.123456, n=None, how="no interval: …"),
    )
    cells = [re.split(r"\s{2,}", line.strip()) for line in lines]
    assert cells == [
        ["measure", "value", "95% interval", "n"],
        ["a", "0.284", "[0.270, 0.298]", "1,200"],
        ["b_change", "-0.016", "[-0.028, -0.004]", "100"],
        ["b_change_rel", "-5.3%", "[-9.2%, -1.3%]", "100"],
        ["c", "1,235", "[1,200, 1,261]", "7"],
        ["d", "3.4e-07", "[7.6e-08, 1.57e-06]", "7"],
        ["e", "0.0000", "[0.0000, 0.0188]", "7"],
        ["f", "0.1235", "no interval", "–"],
    ]
    assert len({line.index("[") for line in lines if "[" in line}) == 1  # aligned


def test_what_rows_share_is_said_once_above_them(capfd):
    late, early = {"window": "late", "step": [8, 9]}, {"window": "early", "step": [0, 1]}
    lines = printed(
        capfd,
        Estimate("pass@8", 0.5, 0.4, 0.6, 10, {"split": "eval", "budget": None, **late, "k": 8}),
        Estimate("pass@8", 0.4, 0.3, 0.5, 10, {"split": "eval", "budget": None, **early, "k": 8}),
        Estimate(
            "pass@8_change",
            0.1,
            0.0,
            0.2,
            10,
            {"split": "eval", "budget": None, "window": "change", "step": [0, 9], "k": 8},
        ),
        Estimate("accuracy", 0.5, 0.4, 0.6, 10, {"split": "train", "budget": 16384.0, "tokens": 16384.0}),
        Estimate("law", None, at={"split": "train"}, missing="a longer run"),
    )
    assert lines[0] == "split eval, no budget  late: steps 8–9, early: steps 0–1"
    cells = [re.split(r"\s{2,}", line) for line in lines]
    assert [row[:2] for row in cells[2:5]] == [["pass@8", "late"], ["pass@8", "early"], ["pass@8_change", "+0.10"]]
    assert lines[6] == "split train"
    assert cells[8][:2] == ["accuracy", "budget 16,384"]
    assert lines[9] == "law (split train) not measured: needs a longer run"


def test_long_series_are_cut_and_say_so(capfd):
    rows = [Estimate("fork_token", 1.0, n=3, at={"token": str(i)}) for i in range(MOST_ALIKE + 7)]
    lines = printed(capfd, *rows, Estimate("other", 2.0, n=1))
    assert sum(line.startswith("fork_token") for line in lines) == MOST_ALIKE
    assert lines[-1] == "… and 7 more of the same; --json has them all"
    assert any(line.startswith("other") for line in lines)


def test_nothing_to_show(capfd):
    assert printed(capfd) == []
