"""The tables of docs/findings that are made from committed studies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pages import as_written, read_page, rows_of

from benchmarks.findings import arms, frontier, law, transfer, trials
from benchmarks.findings.policies import STUDIES
from benchmarks.findings.studied import Studied
from equipoise.errors import UsageError
from equipoise.files import read_json
from equipoise.lab.study_config import BASE
from equipoise.lab.study_numbers import Policies
from equipoise.lab.study_outcomes import COUNTS, Outcomes
from equipoise.training.recipe import Learning, Sampling, TrainConfig, as_settings


def make_study() -> Studied:
    """Two temperatures, two problems, ten samples: the base model has pass@1 .6 cold and .2 hot."""
    base = {
        "correct": np.array([[[8.0, 4.0], [4.0, 0.0]]]),
        "distinct": np.array([[[2.0, 4.0], [6.0, 10.0]]]),
    }
    run = {"state": "fit", "r2": 0.6, "r2_line": 0.5, "r2_saturating": 0.4}
    looks = [
        {"share": 0.5, "truth": truth, "at_final_entropy": {"value": 0.5, "low": 0.45, "high": 0.55}, "line": 0.7, "saturating": 0.1}
        for truth in (0.4, 0.5)
    ]  # fmt: skip
    results = {
        "headline": 1.0,
        "evaluation": {"samples": 10},
        "law": [run | {"backtest": [looks[0]]}, run | {"state": "no fit", "r2": 0.2, "backtest": [looks[1]]}],
    }
    return Studied("made", results, (0.3, 1.0), {"base": base})


def test_the_cooled_base_lies_between_two_temperatures():
    # pass@1 .5 is three quarters of the way from hot (.2) to cold (.6): 3/4 · (2, 4) + 1/4 · (6, 10)
    assert transfer.cool(make_study(), 0.5) == pytest.approx([3.0, 5.5])


def test_beyond_every_temperature_there_is_no_cooled_base():
    assert np.isnan(transfer.cool(make_study(), 0.61)).all()


def test_forecasts_are_compared_with_the_guess_of_the_mean_end():
    # ends .4 and .5: the law is off by .1 and 0, the line by .3 and .2, their mean (.45) by .05 each; only .5 is inside .45 to .55
    assert law.forecast(make_study(), 0.5) == ("made", "50%", "0.050", "0.250", "0.350", "0.050", "1 of 2")


def test_runs_that_the_law_fits_are_counted():
    assert law.described(make_study())[:4] == ("made", "2", "1", "0.40 (0.20 to 0.60)")


def test_where_the_base_model_has_no_such_temperature_the_table_says_on_which_side():
    # One problem of 4 samples: the base model has pass@1 .5 cold and .25 hot, at KL 1 and 2 per token.
    def policies(name, right, kl):
        counts = {count: np.full((2, 1), 4.0) for count in COUNTS}
        counts |= {"correct": np.array(right, dtype=float)[:, None], "drawn": np.full((2, 1), 4.0)}
        counts |= {"kl_sum": np.array(kl, dtype=float)[:, None], "kl_tokens": np.ones((2, 1))}
        return Policies(name, (None,), (Outcomes((0.3, 1.0), ("p",), counts),))

    arms_of = {BASE: policies(BASE, (2, 1), (1, 2)), "grpo": policies("grpo", (3, 3), (0.5, 0.5))}
    cells = arms.row(arms_of, "grpo", "grpo", 1.0)
    assert cells[5:8] == ("beyond it", "below it", "below it")
    between = arms_of | {"grpo": policies("grpo", (3, 3), (1.5, 1.5))}
    # half way between .5 and .25, and between the same pass@4 of 1
    assert [cell.split(" ")[0] for cell in arms.row(between, "grpo", "grpo", 1.0)[6:8]] == ["+0.375", "+0.000"]
    assert arms.row(between, BASE, "grpo", 1.0)[3:9] == ("",) * 6


def test_the_frontier_tells_areas_what_averaging_adds_and_how_many_an_arm_surpasses():
    def number(value, low, high):
        return {"value": value, "low": low, "high": high}

    def area(arm, value, **to):
        rows = [{"against": other, **number(*gap)} for other, gap in to.items()]
        return {"arm": arm, "volume": number(value, value - 0.1, value + 0.1), "differences": rows}

    points = [
        {"temperature": t, "pass@1": {"value": t / 10}, "pass@8": {"value": t / 2}} for t in (0.3, 0.6, 0.8, 1.0, 1.3)
    ]
    results = {
        "k_max": 8,
        "volumes": [
            area("base", 0.3, grpo=(0.1, 0.05, 0.15), grpo_ema=(-0.1, -0.3, 0.1)),
            area("grpo", 0.2, base=(-0.1, -0.15, -0.05), grpo_ema=(-0.3, -0.4, -0.2)),
            area("grpo_ema", 0.5, base=(0.2, 0.1, 0.3), grpo=(0.3, 0.2, 0.4)),
        ],
        "frontier": [{"arm": arm, "points": points} for arm in ("base", "grpo", "grpo_ema")],
    }
    lines = frontier.fronts(results).splitlines()
    assert lines[2].startswith(
        "| base | 0.030 / 0.150 | 0.060 / 0.300 | 0.100 / 0.500 | 0.130 / 0.650 | 0.300 [0.200, 0.400] |  |"
    )
    assert [line.split(" | ")[-1] for line in lines[2:]] == ["1 of 2 |", "0 of 2 |", "2 of 2 |"]
    assert frontier.averages(results).splitlines()[2:] == ["| grpo | 0.200 | 0.500 | +0.300 [+0.200, +0.400] |  |"]


def test_studies_side_by_side_are_told_as_each_tells_itself_and_only_where_they_pair():
    name = "frontier-small-confirmed"
    alone = read_json(frontier.RESULTS / name / "results.json")
    assert frontier.fronts(frontier.side_by_side([name])) == frontier.fronts(alone)
    with pytest.raises(UsageError, match="do not share seeds and problems"):
        frontier.side_by_side([name, "frontier-options"])


def test_the_page_of_the_law_has_what_its_command_prints():
    page = read_page("law").splitlines()
    for line in law.tables().splitlines():
        assert not line or line in page


def test_the_pages_of_the_frontier_have_what_its_command_prints():
    page, parts = read_page("frontier"), read_page("frontier-parts")
    results = read_json(frontier.RESULTS / "frontier" / "results.json")
    for row in frontier.parts(results).splitlines()[2:]:
        assert f"{as_written(row.split(' | ')[-1].rstrip(' |'))} |" in parts
    trial = read_json(frontier.RESULTS / frontier.TRIAL / "results.json")
    for row in frontier.averages(trial, frontier.CHOSEN).splitlines()[2:]:
        assert as_written(row.rstrip(" |").split(" | ", 3)[-1]) in page
    # Every row of the two tables that the answer stands on, but for the arm's name.
    for names in frontier.TOGETHER[:2]:
        for row in frontier.fronts(frontier.side_by_side(names)).splitlines()[2:]:
            cells = [as_written(cell.strip()) for cell in row.strip("|").split("|")]
            assert f"| {' | '.join(cells[1:6])} |" in page
            assert f"| {cells[-2]} | {cells[-1]} |" in page
    # Every average of the small model, with and without the KL, and of the longer runs.
    for names in (frontier.COOLER, ["frontier-cooler-longer"]):
        for row in frontier.fronts(frontier.side_by_side(names), (BASE,)).splitlines()[2:]:
            cells = [as_written(cell.strip()) for cell in row.strip("|").split("|")]
            if cells[0].endswith("_ema"):
                assert f"| {' | '.join(cells[1:7])} |" in parts
    # Every setting that was tried for the averaged recipe.
    for names in frontier.OPTIONS:
        for row in frontier.averages(frontier.side_by_side(names)).splitlines()[2:]:
            cells = [as_written(cell.strip()) for cell in row.strip("|").split("|")]
            assert [cells[1], cells[2], cells[4]] in rows_of(parts)


def test_the_recipe_is_above_every_other_arm_beyond_the_interval():
    areas = frontier.read_areas(frontier.side_by_side(frontier.CONFIRMED))
    assert len(areas) == 20
    assert all(each["low"] > 0 for each in areas[frontier.RECIPE]["to"].values())


def test_an_arm_is_told_by_what_its_study_does_not_share():
    def recipe(made_of: dict[str, object] | None, temperature: float = 1.0) -> dict[str, object]:
        sampling, learning = Sampling(temperature=temperature), Learning(steps=9, ema=0.5)
        return {
            "made_of": made_of,
            "settings": as_settings(TrainConfig(out=Path(), sampling=sampling, learning=learning)),
        }

    recipes = {
        "plain": recipe(None),
        "cool": recipe(None, 0.5),
        "average": recipe({"arm": "cool", "ema": True, "blend": 1.0}, 0.5),
        "blend": recipe({"arm": "cool", "ema": False, "blend": 0.7}, 0.5),
    }
    study = trials.shared({"recipes": recipes})
    assert study == {"learning.steps": "9", "learning.ema": "0.5"}
    assert [trials.of_arm(recipes[arm], study) for arm in recipes] == [
        "–",
        "sampling.temperature=0.5",
        "of=cool; ema=true",
        "of=cool; blend=0.7",
    ]


def test_every_study_of_the_frontier_is_in_the_table_of_its_arms():
    found = {
        path.parent.name for name in ("frontier*", "held-out*") for path in STUDIES.glob(f"results/{name}/results.json")
    }
    assert found == {*trials.CHOSE, *trials.ASKED}
    assert (STUDIES / "frontier-arms.md").read_text() == trials.page()
