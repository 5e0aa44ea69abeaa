"""Studies with arms that draw as many rollouts as they need: bounded beforehand by what others draw, counted afterwards."""

from __future__ import annotations

import json

import pandas as pd
import pytest

pytest.importorskip("torch")

from equipoise.lab.study import study
from equipoise.lab.study_config import StudyConfig, rollouts_of

REFILLED = {
    "sampling": {"prompts": 6, "refills": 3, "most_prompts": 8},
    "method": {"filters": ["dynamic_sampling"]},
}
SCOUTED = {"sampling": {"prompts": 4, "samples": 10}, "method": {"allocation": "scouting:scouts=16,first=2"}}
REFINED = {"sampling": {"samples": 6}, "method": {"demonstrations": ["critique_loop:tries=2"]}}


def made(out, **arms) -> StudyConfig:
    return StudyConfig(
        out=out,
        seeds=(0,),
        base={
            "model": "packaged",
            "save_every": 2,
            "sampling": {"prompts": 8, "samples": 8},
            "learning": {"steps": 2},
            "evaluation": {"problems": 8, "samples": 2, "every": 2},
        },
        evaluation={"problems": 8, "samples": 2, "temperatures": (1.0,)},
        arms={"grpo": {}, **arms},
    )


def test_arms_are_equal_by_the_most_that_they_may_draw(tmp_path):
    config = made(tmp_path, refilled=REFILLED, refined=REFINED, scouted=SCOUTED)
    # 2 steps of 8 problems × 8; of at most 8 problems × 8; of 8 problems × (6 + 2); of 16 problems × 2 and 4 × 8 more
    assert [rollouts_of(config.train_config(arm, seed=0, out=tmp_path)) for arm in config.arms] == [128] * 4


@pytest.mark.parametrize(
    ("arm", "drawn"),
    [
        ({**REFILLED, "sampling": {"prompts": 6, "refills": 1}}, 2 * 12 * 8),
        ({**REFINED, "sampling": {}}, 2 * 8 * (8 + 2)),
        ({"method": {"demonstrations": ["critique_loop"]}}, 2 * 8 * (8 + 4)),
        ({**SCOUTED, "sampling": {"prompts": 5, "samples": 10}}, 2 * (16 * 2 + 5 * 8)),
    ],
)
def test_an_arm_that_may_draw_more_is_refused(tmp_path, arm, drawn):
    with pytest.raises(
        ValueError, match=f"arms must draw equal rollouts: x draws {drawn} of up to 20 tokens, others 128"
    ):
        made(tmp_path, plain={}, x=arm)


def test_what_was_drawn_is_counted_and_told(tmp_path):
    study(made(tmp_path / "out", refilled=REFILLED, refined=REFINED, scouted=SCOUTED))
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    text = (tmp_path / "out" / "README.md").read_text()
    assert results["rollouts_per_run"] == 128
    counted = {}
    for row in results["arms"]:
        if row["arm"] != "base":
            rows = pd.read_parquet(tmp_path / "out" / "runs" / f"{row['arm']}-0" / "rollouts")
            rows = rows[rows["split"] != "test"]
            assert (row["rollouts"], row["tokens"]) == (len(rows), rows["n_tokens"].sum())
            counted[row["arm"]] = len(rows)
    assert counted["grpo"] == counted["scouted"] == 128
    assert counted["refilled"] >= 96
    assert counted["refined"] > 96
    fewer = [f"{arm} drew {n}" for arm, n in counted.items() if n < 128]
    assert fewer
    assert f"128 rollouts in every run at most ({', '.join(fewer)} on average); evaluated" in text
