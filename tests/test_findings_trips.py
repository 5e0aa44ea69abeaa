"""What the findings ask of trips: thoughts that check themselves, a confidence after a plan, a base model that is taught first."""

from __future__ import annotations

from random import Random

import pytest
import torch
from pages import as_written, read_page, rows_of
from safetensors.torch import load_file

from benchmarks.findings import buy_back, confidence, inflation_trips, two_loops
from benchmarks.findings.arms import arms_table, ends_table
from benchmarks.findings.inflation_smollm2 import FILE, Asked, Twice
from benchmarks.findings.policies import STUDIES, load_study, policies_made, policies_of, read_rows, train_base
from benchmarks.findings.stated import StatedTrips
from benchmarks.findings.thinking import think
from benchmarks.findings.trip_thoughts import check, make_thought, make_thoughts
from equipoise.base import Completion, Problem
from equipoise.config import load_config
from equipoise.errors import UsageError
from equipoise.lab.search_traces import Piece, Shares, cut_off
from equipoise.models.checkpoint import load_gpt
from equipoise.tasks.trips import Trips
from equipoise.training.loop import train
from equipoise.training.opening import open_model
from equipoise.training.recipe import Learning, Sampling, TrainConfig

# Flights A-B and B-C alone: the two right plans are ABC and CBA.
PARAMS = {"stays": {"A": 2, "B": 1, "C": 2}, "flights": [["A", "B"], ["B", "C"]], "dates": []}
PROBLEM = Problem("p", "trips", "A2B,B1AC,C2B|>", "ABC", PARAMS)
TASK = Trips(cities=3, flights=2, dates=0)
NEVER_CUT = Shares(cut=0.0, go_on=1.0, most_wrong=20)


def test_a_plan_is_checked_as_by_hand():
    assert check("ABC", PROBLEM) == "=AB1C1:0"
    assert check("CAB", PROBLEM) == "=CA0B1:1"
    assert check("BAC", PROBLEM) == "=BA1C0:1"
    with pytest.raises(UsageError, match="use dates=0"):
        next(make_thoughts(Trips(dates=1), seed="dated", n=1))


def test_a_thought_ends_at_a_right_plan_which_is_the_answer():
    for seed in range(20):
        found = make_thought(TASK, PROBLEM, Random(seed), shares=NEVER_CUT)
        thought, answer = found.text[1:].split("]")
        *wrong, right = (attempt.partition("=")[0] for attempt in thought.split(","))
        assert answer == right in ("ABC", "CBA")
        assert len(wrong) == len(set(wrong))
        assert {*wrong} <= {"ACB", "BAC", "BCA", "CAB"}
        # Wrong plans are read, all else is learnt.
        assert [piece.text for piece in found.pieces if not piece.learnt] == wrong


def test_a_thought_that_is_cut_off_keeps_its_beginning_and_its_answer():
    pieces = [Piece("[", True), Piece("ACB", False), Piece("=AC0B1:1,", True), Piece("ABC=AB1C1:0]", True)]
    assert cut_off(pieces, Random(0), Shares(cut=0.0)) == pieces
    whole = "".join(piece.text for piece in pieces)
    lengths = set()
    for seed in range(200):
        *begun, end = cut_off(pieces, Random(seed), Shares(cut=1.0))
        assert end == Piece("]", False)
        text = "".join(piece.text for piece in begun)
        assert whole.startswith(text)
        assert len(text) < len(whole)
        lengths.add(len(text))
    assert lengths == set(range(1, len(whole)))  # from the mark alone to all but its end


def test_a_model_is_taught_to_think_and_asked(tmp_path):
    small = ["steps=2", "traces=40", "batch_tokens=512", "seeds=[3]", f"out={tmp_path}"]
    config = load_config(inflation_trips.Taught, overrides=small)
    policy = inflation_trips.teach(config, 3)
    model, tokens = load_gpt(tmp_path / "runs" / "taught-3.safetensors")
    assert (model.context, tokens.thinking) == (320, ("[", "]"))
    how = Twice(problems=4, tune=4, samples=2, temperatures=(1.0,), capped=(0, 8), forced=(8, 16))
    rows = think(policy, how)
    found = Asked([{"arm": "taught", "seed": 3, **row} for row in rows], 1.0)
    assert found.budgets["forced"] == [8, 16]
    # 16 tokens of thinking, both marks, and an answer of one token at least, its end
    assert found.values(("forced", 16), "tokens").min() >= 19
    with pytest.raises(UsageError, match="only trips"):
        next(inflation_trips.thoughts("countdown", config.lesson(3)))


def test_a_confidence_after_a_plan_leaves_its_grade():
    task = StatedTrips(dates=2)
    (problem,) = task.problems("stated", 1)
    right = task.grade(problem, Completion(f"{problem.reference},3", finish="stop"))
    assert (right.outcome, right.reward, right.confidence, right.format_ok) == ("right", 1.0, 3 / 9, True)
    wrong = task.grade(problem, Completion(f"{problem.reference[::-1][:-1]},9", finish="stop"))  # a city too few
    assert (wrong.outcome, wrong.reward, wrong.confidence) == ("wrong", 0.0, 1.0)
    unstated = task.grade(problem, Completion(problem.reference, finish="stop"))
    assert (unstated.outcome, unstated.confidence, unstated.format_ok) == ("right", None, False)


def test_the_base_model_of_a_study_is_taught_before_it_is_asked(tmp_path):
    small = ["sft.problems=8", "sft.steps=1", "sft.batch=4", "sft.warmup=0", "evaluation.problems=8"]
    config = load_study("difficulty-trips", [*small, "evaluation.samples=1", f"out={tmp_path}"])
    train_base(config)
    taught, planner = (open_model(name).loaded.model for name in (policies_of(config)[0].model, config.base.model))
    assert not torch.equal(taught.head.weight_VD, planner.head.weight_VD)
    written = (tmp_path / "runs" / "base" / "finished.json").stat().st_mtime_ns
    train_base(config)  # finished: nothing is done again
    assert (tmp_path / "runs" / "base" / "finished.json").stat().st_mtime_ns == written


def test_the_average_of_a_run_is_asked_as_a_policy_of_its_own(tmp_path):
    config = load_study(
        "two-loops-trips",
        [f"out={tmp_path}", "base.model=packaged", "base.task=countdown", "seeds=[4]", "base.learning.steps=2"],
    )
    run = tmp_path / "runs" / "cool_kl_exact-4"
    learning = Learning(steps=2, lr=1e-2, ema=0.5)
    train(
        TrainConfig(model="packaged", out=run, save_every=2, sampling=Sampling(prompts=4, samples=4), learning=learning)
    )
    (policy,) = policies_made(config)
    assert (policy.arm, policy.seed, policy.task) == ("preserved", 4, "countdown")
    average = load_file(run / "checkpoints" / "step=000002" / "ema.safetensors")
    model, last = open_model(policy.model).loaded.model, open_model(run).loaded.model
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, average[name])
    assert not torch.equal(model.head.weight_VD, last.head.weight_VD)


def test_the_pages_have_what_the_commands_print_of_trips():
    page = read_page("inflation")
    rows = read_rows(inflation_trips.Taught().out / FILE)
    shown = {1.0: [("own", 192), ("capped", 0), ("capped", 32), *(("forced", n) for n in (32, 64, 128, 192))]}
    shown[0.6] = [("own", 192), ("capped", 0), ("forced", 128), ("forced", 192)]
    for temperature, ways in shown.items():
        found = Asked(rows, temperature)
        for way in ways:
            assert " | ".join(map(as_written, found.row(*way)[1:-3])).rstrip(" |") in page
            assert as_written(found.row(*way)[-1]) in page
    stated = read_rows(STUDIES / "results" / "confidence-trips" / confidence.FILE)
    for row in (
        *(confidence.row(stated, arm, 1.0) for arm in ("base", "binary", "rlcr")),
        confidence.change(stated, 1.0),
    ):
        for cell in row[4:]:
            assert as_written(cell) in read_page("confidence")
    for name in ("where", "difficulty"):
        for row in arms_table(STUDIES / "results" / f"{name}-trips").splitlines()[2:]:
            for cell in row.split(" | ")[1 : -2 if name == "where" else -3]:
                assert as_written(cell.strip()) in read_page(name)
    for study, written in (("history", "all arms, .44."), ("history-trips", "ends at .42 to .43 in all arms")):
        rows = ends_table(STUDIES / "results" / study).splitlines()[2:]
        ends = sorted({f"{float(row.split(' | ')[1]):.2f}" for row in rows})
        assert " to ".join(map(as_written, ends)) in written
        assert written in read_page("history")
    for row in arms_table(STUDIES / "results" / "history-trips").splitlines()[2:]:
        cells = [as_written(cell.strip()) for cell in row.strip("|").split("|")[1:]]
        assert [*cells[:5], *cells[7:]] in rows_of(read_page("history"))
    for row in arms_table(STUDIES / "results" / "held-out-trips").splitlines()[3:6]:
        cells = [as_written(cell.strip()) for cell in row.strip("|").split("|")]
        means = [cells[place].split(" [")[0] for place in (1, 2, 9, 8)]
        assert [*means, *cells[3:6]] in rows_of(read_page("collapse"))


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        ("direct", {1.0: (1, 16, 64, 256), None: (1, 4, 64, 256)}),
        ("trips", dict.fromkeys((1.0, None), buy_back.SHARES)),
    ],
)
def test_the_page_has_what_the_command_prints_of_samples(kind, shown):
    drawn = buy_back.read_drawn(kind, [STUDIES / "results" / name for name in buy_back.STUDIES[kind]])
    written = [cells[1:] for cells in rows_of(read_page("buy-back"))]
    for temperature, shares in shown.items():
        share = None
        for row in buy_back.curve(drawn, kind, temperature):
            share = int(row[3]) if row[2].startswith("base") else share
            if share in shares and row[2].startswith(("base", "grpo", "preserve")):
                assert [*map(as_written, row[3:])] in written


@pytest.mark.parametrize("study", [two_loops.STUDY, two_loops.TRIPS])
def test_the_page_has_what_the_command_prints_of_both_loops(study):
    rows = read_rows(STUDIES / "results" / study / two_loops.FILE)
    temperatures = sorted({row["temperature"] for row in rows}, reverse=True)
    warm, *cooler = (two_loops.Loops(rows, temperature) for temperature in temperatures)
    page, written = read_page("two-loops"), rows_of(read_page("two-loops"))
    for arm in warm.arms:
        for way in ("own", "overlong", "parallel"):
            tokens, accuracy, entropy = warm.row(arm, way)[3:6]
            others = [f"{loops.values(arm, way, 'accuracy').mean():.3f}" for loops in cooler]
            cells = [tokens, accuracy, "" if way == "parallel" else entropy, *others]
            assert [way.replace("own", "own end"), *map(as_written, cells)] in written
        for to, of in (("overlong", "own"), ("parallel", "overlong")):
            assert as_written(warm.effect(arm, to, of, "accuracy")) in page
    for loops in (warm, *cooler):
        assert as_written(loops.interaction("overlong", "own", "accuracy")) in page
