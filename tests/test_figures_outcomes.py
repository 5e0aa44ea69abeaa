"""Figures of outcomes: what is drawn equals the estimates, sentences tell their numbers, what is absent is named."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from making import run_of

from equipoise.base import Estimate
from equipoise.errors import UsageError
from equipoise.measures.evidence import Options
from equipoise.measures.table import measure_run
from equipoise.measures.transitions import CLASSES
from equipoise.views.conditions import by_condition
from equipoise.views.study_numbers import read_study
from equipoise.views.table import FIGURES, STUDY_FIGURES, figure, find_figure

NAMES = (
    "passk",
    "transitions",
    "group_health",
    "diversity",
    "sweep",
    "votes",
    "calibration",
    "risk_coverage",
    "lengths",
)
HOSTILE = "<b>x</b><a href='javascript:alert(1)'>%{y}"


def rollouts(*, seed: int, steps: int, split: str = "train", budgets=(None,), samples: int = 6, rate: float = 0.5):
    rng = np.random.default_rng(seed)
    rows = []
    for step in range(steps):
        for i in range(12):
            for budget in budgets:
                for sample in range(samples):
                    right = rng.random() < rate * (i + 1) / 9
                    rows.append(
                        {
                            "prompt_id": f"p{i}",
                            "group_id": f"{step}-{i}-{budget}",
                            "sample_index": sample,
                            "split": split,
                            "step": step if steps > 1 else None,
                            "budget": budget,
                            "correct": bool(right),
                            "reward": float(right),
                            "answer": "a" if right else "bcd"[rng.integers(3)],
                            "confidence": round(float(rng.random() * 0.5 + 0.5 * right), 3),
                            "n_tokens": int(rng.integers(5, 40)),
                            "finish_reason": "length" if rng.random() < 0.2 else "stop",
                        }
                    )
    return rows


@pytest.fixture(scope="module")
def numbers():
    rows = rollouts(seed=1, steps=4) + rollouts(seed=2, steps=1, split="eval", budgets=(64, 256, 1024))
    base = rollouts(seed=3, steps=1, samples=24, rate=0.4)
    needs = sorted({need for name in NAMES for need in find_figure(name).needs})
    return measure_run(needs, run_of(rows), baseline=run_of(base), options=Options()).estimates


def drawn_numbers(plot) -> set[float]:
    """Every number in the traces and shapes, whichever its place."""
    found: set[float] = set()

    def walk(value):
        if isinstance(value, bool):
            return
        if isinstance(value, int | float):
            found.add(float(value))
        elif isinstance(value, dict):
            for inner in value.values():
                walk(inner)
        elif isinstance(value, list | tuple):
            for inner in value:
                walk(inner)

    whole = json.loads(plot.to_json())
    walk([{key: trace.get(key) for key in ("x", "y", "z")} for trace in whole["data"]])
    walk([{key: shape.get(key) for key in ("x0", "x1")} for shape in whole["layout"].get("shapes", [])])
    return found


# What has a mark of its own; the other numbers that a figure shows are told by its sentence alone.
MARKED = {
    "passk": r"pass@\d+(_of_baseline)?$|crossing_k",
    "transitions": "transition",
    "group_health": ".*",
    "diversity": r"distinct@\d+$|ever_distinct",
    "sweep": "accuracy|answer_entropy|length",
    "votes": "vote_accuracy_by_share|answer_entropy_by_solve_rate",
    "calibration": "reliability",
    "risk_coverage": "selective_accuracy",
    "lengths": "length_share",
}


@pytest.mark.parametrize("name", NAMES)
def test_every_shown_value_is_drawn_as_it_is(numbers, name):
    marked = [n for n in find_figure(name).shown(numbers) if re.match(MARKED[name], n.name)]
    assert len(marked) > 3
    held = drawn_numbers(figure(name, numbers))
    for number in marked:
        assert number.value in held, number
        if name != "transitions" and number.low is not None:  # a cell's interval is in its hover text
            assert {number.low, number.high} <= held, number


def test_the_truncated_share_over_the_steps_is_drawn(numbers):
    steps = [n for n in numbers["health_steps"] if n.name == "truncated"]
    assert len(steps) == 4
    drawn = figure("lengths", numbers).data
    curve = next(each for each in drawn if each.name == "cut at the limit, train" and each.hovertext)
    assert (curve.x, curve.y) == (tuple(n.at["step"] for n in steps), tuple(n.value for n in steps))


@pytest.mark.parametrize("name", ["diversity", "votes", "calibration", "lengths"])
def test_panels_stand_above_each_other_with_axes_of_their_own(numbers, name):
    plot = figure(name, numbers)
    assert {(trace.xaxis, trace.yaxis) for trace in plot.data} == {("x", "y"), ("x2", "y2")}
    (low, high), (below, above) = plot.layout.yaxis.domain, plot.layout.yaxis2.domain
    assert 0 <= below < above < low < high == 1
    assert (plot.layout.xaxis2.anchor, plot.layout.yaxis2.anchor) == ("y2", "x2")


@pytest.mark.parametrize("name", NAMES)
def test_the_sentence_ends_and_holds_no_gap(numbers, name):
    wanted = find_figure(name)
    text = wanted.reading(wanted.shown(numbers))
    assert text.endswith(".")
    assert not text[0].islower() or text.startswith("pass@")
    assert "None" not in text
    assert "nan" not in text


@pytest.mark.parametrize("name", [*NAMES, *STUDY_FIGURES])
def test_without_numbers_a_figure_says_what_would_supply_them(name):
    wanted = find_figure(name)
    empty = {need: [] for need in wanted.needs}
    assert not wanted.drawable(empty)
    assert wanted.lacking(empty) == wanted.supply
    with pytest.raises(UsageError, match="nothing to draw") as told:
        figure(name, empty)
    assert wanted.supply in str(told.value)
    lacking = {need: [Estimate("x", None, missing="column y")] for need in wanted.needs}
    if name not in STUDY_FIGURES:  # their estimates say which arm they are of
        assert not wanted.drawable(lacking)
        assert wanted.lacking(lacking) == "column y"


def test_the_figures_stand_in_the_order_of_the_report():
    places = [FIGURES.index(name) for name in NAMES]
    assert places == list(range(places[0], places[0] + len(NAMES)))
    assert FIGURES[-1] == "mismatch"
    assert all(find_figure(name).name == name for name in (*NAMES, *STUDY_FIGURES))


@pytest.mark.parametrize("name", NAMES)
def test_names_from_a_file_are_no_markup(name):
    rows = [row | {"run_id": run} for run in ("plain", HOSTILE) for row in rollouts(seed=5, steps=2, budgets=(8, 16))]
    base = rollouts(seed=6, steps=1, samples=24)
    needs = find_figure(name).needs
    found = measure_run(needs, run_of(rows), baseline=run_of(base), options=Options()).estimates
    text = figure(name, found).to_json()
    assert "<b>" not in text.replace("\\u003c", "<")
    assert "<a" not in text.replace("\\u003c", "<")
    assert "%{y}" not in text


# --- by hand


def number(name, value, low=None, high=None, n=100, **at):
    return Estimate(name, value, low, high, n, at, "by hand")


def told(name, estimates, **more):
    numbers = {find_figure(name).needs[0]: estimates, **more}
    wanted = find_figure(name)
    return wanted.reading(wanted.shown({need: numbers.get(need, []) for need in wanted.needs}))


def curve(values, suffix="", **at):
    return [number(f"pass@{k}{suffix}", v, v - 0.1, v + 0.1, k=k, **at) for k, v in values.items()]


def test_passk_is_read_against_the_base():
    base = {"against": "baseline"}
    estimates = [
        *curve({1: 0.5, 16: 0.6}),
        *curve({1: 0.4, 16: 0.8}, "_of_baseline", **base),
        number("pass@1_vs_baseline", 0.1, 0.05, 0.15, k=1, **base),
        number("pass@16_vs_baseline", -0.2, -0.3, -0.1, k=16, **base),
        number("crossing_k", 4.0, 3.0, 6.0, k=[1, 16], **base),
    ]
    assert told("passk", estimates) == (
        "pass@1 is 50% [40%, 60%] and pass@16 60% [50%, 70%]; against the base model +10.0 points [+5.0, +15.0] at k = 1 and "
        "−20.0 points [−30.0, −10.0] at k = 16, below it from k = 4.00 [3.00, 6.00] on: sharpened rather than extended."
    )
    plot = figure("passk", {"passk": estimates})
    line, area = plot.layout.shapes
    assert (line.x0, line.x1, area.x0, area.x1) == (4.0, 4.0, 3.0, 6.0)
    assert plot.layout.xaxis.type == "log"
    assert [trace.name for trace in plot.data if trace.showlegend is not False] == ["run", "base model"]


def test_a_run_that_is_below_everywhere_is_not_called_sharpened():
    base = {"against": "baseline"}
    estimates = [
        *curve({1: 0.3, 4: 0.4}),
        *curve({1: 0.4, 4: 0.5}, "_of_baseline", **base),
        number("pass@1_vs_baseline", -0.1, k=1, **base),
        number("pass@4_vs_baseline", -0.1, k=4, **base),
        number("crossing_k", 1.0, 1.0, 2.0, k=[1, 4], **base),
    ]
    text = told("passk", estimates)
    assert text.endswith("below it at every k.")
    assert "sharpened" not in text


def test_passk_without_a_baseline_is_read_against_the_first_steps():
    estimates = [*curve({1: 0.5, 4: 0.7}, window="late"), *curve({1: 0.3, 4: 0.6}, window="early")]
    assert told("passk", estimates).endswith("in the first steps they were 30% [20%, 40%] and 60% [50%, 70%].")


def test_the_most_telling_condition_is_read_and_named():
    estimates = [*curve({1: 0.2, 4: 0.3}, split="train"), *curve({1: 0.5, 4: 0.7}, split="test")]
    assert told("passk", estimates).startswith("On test: pass@1 is 50%")


def test_of_a_sweep_the_largest_budget_comes_first():
    groups = by_condition([number("a", 1.0, budget=b) for b in (16.0, 128.0, 64.0)])
    assert [group[0].at["budget"] for group in groups] == [128.0, 64.0, 16.0]


def test_transitions_draw_the_counts_and_read_both_ways():
    at = {"against": "baseline"}
    cells = [
        number("transition", 0.3 if (b, a) == ("1", "0") else 0.0, n=10, before=b, after=a, count=3, **at)
        for b in CLASSES
        for a in CLASSES
    ]
    lost, won = number("lost@8", 0.3, 0.1, 0.5, n=10, k=8, **at), number("won@8", 0.05, n=10, k=8, **at)
    assert told("transitions", [*cells, lost, won]) == (
        "30% [10%, 50%] of 10 problems are solved by 8 samples of the base model and by none of 8 of the run; 5.0% the other way "
        "round."
    )
    heat = figure("transitions", {"transitions": [*cells, lost, won]}).data[0]
    # Before along x, after along y: what was always solved and is never solved now stands bottom right.
    assert heat.z[0][len(CLASSES) - 1] == 0.3
    assert (heat.x[-1], heat.y[0], heat.text[0][-1]) == ("1", "0", "3")
    assert "(3 of 10)" in heat.hovertext[0][-1]


def test_group_health_reads_the_first_and_the_last_step():
    steps = [
        number(name, value + step / 10, n=8, step=step, split=split)
        for split in ("test", "train")
        for name, value in (("dead_groups", 0.2), ("all_wrong", 0.1), ("all_right", 0.1), ("effective_samples", 0.5))
        for step in (0, 3)
    ]
    assert told("group_health", steps) == (
        "On train: groups without a gradient: 20% at step 0, 50% at step 3; groups that are all wrong: 10% at step 0, 40% at "
        "step 3; groups that are all right: 10% at step 0, 40% at step 3; 80% of the samples still carry a gradient."
    )


def test_a_fuller_log_stands_beside_the_recorded_steps():
    steps = [number("dead_groups", 0.5, 0.4, 0.6, step=4)]
    steps += [number("dead_groups", s / 10, step=s, source="log") for s in range(1, 5)]
    plot = figure("group_health", {"health_steps": steps})
    curves = {trace.name: tuple(trace.y) for trace in plot.data if trace.showlegend is not False}
    assert curves == {
        "no gradient (all rewards equal)": (0.5,),
        "no gradient (all rewards equal), logged": (0.1, 0.2, 0.3, 0.4),
    }
    assert told("group_health", steps) == "Groups without a gradient: 10% at step 1, 40% at step 4."


def test_diversity_takes_the_largest_k_that_all_conditions_have():
    def of(split, ks):
        return [number(f"distinct@{k}", k / 2, k / 4, k, k=k, problems="all", split=split) for k in ks]

    estimates = [*of("train", (2, 4, 8)), *of("test", (2, 4, 6))]
    shown = find_figure("diversity").shown({"diversity": estimates})
    assert [(n.at["split"], n.at["k"]) for n in shown] == [("test", 4), ("train", 4)]
    where = {"split": "train", "problems": "all", "visits": 2, "k": 32}
    gathered = [number("ever_distinct", 5.0, arm=arm, **where) for arm in ("run", "baseline")]
    gap = number("transfer_gap", -0.25, -0.4, -0.1, against="baseline", problems="unsolved", split="train")
    other = number("transfer_gap", -0.9, against="baseline", problems="unsolved", split="test")
    assert told("diversity", estimates, transfer=[other, *gathered, gap]) == (
        "4 samples hold 2.00 [1.00, 4.00] distinct answers (test); over training the run's differ in number by −25% "
        "[−40%, −10%] from those of as many base samples, on the problems that neither solved."
    )


def test_sweep_over_budgets_and_over_temperatures():
    budgets = [number("accuracy", a, a - 0.1, a + 0.1, budget=b) for b, a in ((64.0, 0.5), (128.0, 0.6), (256.0, 0.4))]
    budgets += [
        number("best_budget", 128.0, 64.0, 256.0),
        number("overthinking_loss", -0.2, -0.3, -0.1, budget=256.0, against="best budget"),
        number("disagreement_rise", 0.1, budget=256.0, against="best budget"),
    ]
    lengths = [number("length", 50.0, budget=b, split="eval") for b in (64.0, 128.0, 256.0)]
    assert told("sweep", budgets, health=lengths) == (
        "Accuracy is highest at a budget of 128 [64.0, 256] tokens; the largest changes it by −20.0 points [−30.0, −10.0] and the "
        "chance that two samples disagree by +10.0 points."
    )
    plot = figure("sweep", {"budget": budgets, "health": lengths, "passk": [], "diversity": []})
    # One line in both strips: what all rollouts of a sweep share does not name it.
    assert {trace.name for trace in plot.data} == {"rollouts"}
    assert [t.x for t in plot.data if t.yaxis == "y2"] == [(64.0, 128.0, 256.0)]
    warm = [number("pass@1", v, k=1, temperature=t) for t, v in ((0.6, 0.5), (1.0, 0.4), (0.2, 0.45))]
    empty = {"health": [], "diversity": []}
    wanted = find_figure("sweep")
    shown = wanted.shown({"budget": [Estimate("overthinking_loss", None, missing="x")], "passk": warm, **empty})
    assert [n.at["temperature"] for n in shown] == [0.2, 0.6, 1.0]
    assert wanted.reading(shown) == (
        "Accuracy is 45% at temperature 0.2 and 40% at temperature 1; it is highest, 50%, at temperature 0.6."
    )
    assert not wanted.drawable({"budget": [], "passk": warm[:1], **empty})


def test_votes_are_read_by_their_ends_with_enough_problems():
    classes = [
        number("vote_accuracy_by_share", v, n=n, share=[s, s + 0.2], mean_share=s + 0.1)
        for s, v, n in ((0.0, 0.0, 2), (0.2, 0.25, 20), (0.8, 0.9, 30))
    ]
    estimates = [
        number("vote_accuracy", 0.6, 0.5, 0.7, n=52),
        number("single_accuracy", 0.5, n=52),
        number("vote_overconfidence", -0.1, -0.2, 0.0, n=52),
        *classes,
    ]
    assert told("votes", estimates) == (
        "The vote is right on 60% [50%, 70%] of 52 problems, one sample on 50%; where the top answer has 90% of the votes on "
        "average it is right on 90% of 30 problems, where it has 30% on 25% of 20; its share exceeds how often it is right by "
        "−10.0 points [−20.0, +0.0]."
    )


def sourced(name, source, value, **at):
    return number(name, value, value - 0.1, value + 0.1, source=source, **at)


def test_calibration_tells_every_source_that_claims_a_probability():
    estimates = []
    for source, ece in (("stated", 0.3), ("agreement", 0.1), ("low entropy", 0.0)):
        estimates += [sourced("brier", source, 0.2), number("ece", ece, source=source)]
        estimates.append(sourced("reliability", source, 0.5, bin=[0.6, 0.7], confidence=0.65, count=12))
    assert told("calibration", estimates) == (
        "Stated is off by 0.300 (ECE), Brier 0.200 [0.100, 0.300]; agreement is off by 0.100 (ECE), Brier 0.200 [0.100, 0.300]; "
        "best calibrated: agreement."
    )
    plot = figure("calibration", {"confidence": estimates})
    bars = {trace.name: tuple(trace.y) for trace in plot.data if trace.type == "bar"}
    assert bars == {"stated": (12,), "agreement": (12,)}
    assert any("ECE 0.300, Brier 0.200" in (trace.name or "") for trace in plot.data)


def test_risk_coverage_reads_the_source_that_gains_most():
    estimates = []
    for source, half in (("stated", 0.6), ("agreement", 0.8)):
        estimates += [sourced("selective_accuracy", source, v, coverage=c) for c, v in ((0.5, half), (1.0, 0.5))]
        estimates.append(sourced("selective_gain", source, half - 0.5, coverage=0.5))
    assert told("risk_coverage", estimates) == (
        "Keeping the surest half by agreement takes accuracy from 50% [40%, 60%] to 80% [70%, 90%], +30.0 points [+20.0, +40.0], "
        "the most of 2 confidences."
    )


def test_one_sample_per_problem_is_one_number():
    assert told("passk", curve({1: 0.5})) == "pass@1 is 50% [40%, 60%]."


def test_without_a_vote_there_is_no_vote_profile():
    alone = [
        Estimate("vote_accuracy", None, missing="problems with ≥ 2 readable answers"),
        number("answer_entropy_by_solve_rate", 0.0, solve_rate="1"),
    ]
    wanted = find_figure("votes")
    assert not wanted.drawable({"votes": alone})
    assert wanted.lacking({"votes": alone}) == "problems with ≥ 2 readable answers"


def test_without_token_counts_and_steps_there_is_no_length_to_draw():
    cut = [number("truncated", 0.2), Estimate("length_share", None, missing="column n_tokens")]
    wanted = find_figure("lengths")
    assert not wanted.drawable({"lengths": cut, "health_steps": []})
    steps = [number("truncated", 0.1, step=1, split="train"), number("truncated", 0.3, step=2, split="train")]
    assert wanted.drawable({"lengths": cut, "health_steps": steps})
    assert len(figure("lengths", {"lengths": cut, "health_steps": steps}).data) == 1


def test_lengths_read_what_the_limit_cuts():
    histogram = [number("length_share", 0.5, verdict="right", tokens=[0, 9], count=3)]
    estimates = [
        *histogram,
        number("length_right", 100.0, 90.0, 110.0),
        number("length_wrong", 150.0, 140.0, 160.0),
        number("length_wrong_minus_right", 30.0, 20.0, 40.0),
        number("truncated", 0.2, 0.1, 0.3),
        number("accuracy_truncated", 0.0),
        number("accuracy_finished", 0.5),
    ]
    assert told("lengths", estimates) == (
        "Right rollouts have 100 [90.0, 110] tokens and wrong ones 150 [140, 160]; on one problem the wrong ones differ by +30.0 "
        "[+20.0, +40.0]; 20% [10%, 30%] are cut at the length limit, of which 0% are right against 50% of the others."
    )


# --- a study


def results(**more):
    def row(value, **cells):
        return {
            "value": value,
            "low": None if value is None else value - 0.05,
            "high": None if value is None else value + 0.05,
            "n": 64,
            "how": "by hand",
            "missing": None if value is not None else "a temperature",
            **cells,
        }

    def points(*pairs):
        return [{"temperature": t, "pass@1": row(a), "pass@8": row(b)} for t, a, b in pairs]

    return {
        "schema": "equipoise.study/1",
        "k_max": 8,
        "headline": 1.0,
        "recipes": {"grpo": {"against": "grpo"}, HOSTILE: {"against": "grpo"}},
        "frontier": [
            {"arm": "base", "points": points((0.5, 0.3, 0.7), (1.0, 0.2, 0.8))},
            {"arm": "grpo", "points": points((0.5, 0.45, 0.5), (1.0, 0.4, 0.6))},
            {"arm": HOSTILE, "points": points((1.0, 0.35, 0.75))},
        ],
        "differences": [
            row(0.2, arm="grpo", against="base", name="pass@1", temperature=1.0),
            row(0.3, arm="grpo", against="base", name="pass@1", temperature=0.5),
            row(-0.02, arm=HOSTILE, against="grpo", name="pass@1", temperature=1.0),
            row(0.15, arm=HOSTILE, against="grpo", name="pass@8", temperature=1.0),
            row(0.1, arm=HOSTILE, against="base", name="pass@8", temperature=1.0),
            row(9.0, arm=HOSTILE, against="grpo", name="pass@4", temperature=1.0),
        ],
        "matched": [
            row(None, arm="grpo", against="base", by="pass@1", name="pass@8"),
            row(-0.1, arm=HOSTILE, against="base", by="pass@1", name="pass@8"),
            row(-0.5, arm=HOSTILE, against="grpo", by="pass@1", name="pass@8"),
            row(-0.6, arm=HOSTILE, against="base", by="kl_to_base", name="pass@8"),
        ],
        **more,
    }


@pytest.fixture
def study(tmp_path) -> Path:
    (tmp_path / "results.json").write_text(json.dumps(results()))
    return tmp_path


def test_the_frontier_has_both_numbers_of_every_point(study):
    found = read_study(study)
    plot = figure("frontier", found)
    curves = {trace.name: (trace.x, trace.y) for trace in plot.data if trace.hovertext is not None}
    assert curves["base, cooled and heated"] == ((0.3, 0.2), (0.7, 0.8))
    assert curves["grpo"] == ((0.4,), (0.6,))
    held = drawn_numbers(plot)
    for each in find_figure("frontier").shown(found):
        assert {each.value, each.low, each.high} <= held
    text = find_figure("frontier").reading(find_figure("frontier").shown(found))
    assert "the base model has pass@1 20% [15%, 25%] and pass@8 80% [75%, 85%]" in text.lower().replace(
        "pass@", "pass@"
    )
    assert "highest pass@1 of 2 arms is 40% [35%, 45%] (grpo)" in text
    assert "<b>" not in plot.to_json().replace("\\u003c", "<")


def test_paired_arms_are_against_the_named_arm_and_the_cooled_base(study):
    found = read_study(study)
    shown = find_figure("paired_arms").shown(found)
    assert [(n.name, n.at["against"], n.value) for n in shown] == [
        ("pass@1_difference", "base", 0.2),
        ("pass@1_difference", "grpo", -0.02),
        ("pass@8_difference", "grpo", 0.15),
        ("pass@8_at_equal_pass@1", "base", -0.1),
    ]
    plot = figure("paired_arms", found)
    held = drawn_numbers(plot)
    assert all({n.value, n.low, n.high} <= held for n in shown)
    assert "<b>" not in plot.to_json().replace("\\u003c", "<")
    text = find_figure("paired_arms").reading(shown)
    assert text.startswith(
        "3 of 4 intervals leave out 0, 2 of them above it; the largest is +20.0 points [+15.0, +25.0] (grpo"
    )


def test_a_study_of_this_repository_is_read():
    found = read_study(Path(__file__).parents[1] / "studies" / "results" / "collapse-cpu")
    assert all(find_figure(name).drawable(found) for name in STUDY_FIGURES)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ('{"schema": "equipoise.diagnose/1"}', "no study's result: its schema is 'equipoise.diagnose/1'"),
        ("[]", "no study's result"),
        ('{"schema": "equipoise.study/1", "headline": 1}', "lacks"),
    ],
)
def test_what_is_no_study_is_refused_in_one_line(tmp_path, text, words):
    (tmp_path / "results.json").write_text(text)
    with pytest.raises(UsageError, match=words) as told_:
        read_study(tmp_path)
    assert "\n" not in str(told_.value)
    with pytest.raises(UsageError, match=r"has no results\.json"):
        read_study(tmp_path / "other")
