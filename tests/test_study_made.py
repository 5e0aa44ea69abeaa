"""Arms that train nothing, blends and averages of another arm's weights; and the area under a front of pass@1 and pass@k."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from scipy import stats

torch = pytest.importorskip("torch")

from safetensors.torch import load_file  # noqa: E402
from test_study import entry, outcomes_of, policies_of, settings, tiny, without_times  # noqa: E402

from equipoise.errors import UsageError  # noqa: E402
from equipoise.lab.study import study  # noqa: E402
from equipoise.lab.study_config import StudyConfig  # noqa: E402
from equipoise.lab.study_page import page  # noqa: E402
from equipoise.lab.study_run import Job, run_job  # noqa: E402
from equipoise.lab.study_volume import area, volumes  # noqa: E402
from equipoise.models.checkpoint import load_gpt, save_gpt  # noqa: E402
from equipoise.tasks.table import find_task  # noqa: E402
from equipoise.training.evaluate import SEED  # noqa: E402

MADE = {
    "grpo": {"learning": {"ema": 0.5}, "method": {"regularisers": ("entropy_bonus:coef=3",)}},
    "half": {"of": "grpo", "blend": 0.5},
    "mean": {"of": "grpo", "ema": True},
    "both": {"of": "grpo", "ema": True, "blend": 0.25},
}


@pytest.mark.parametrize(
    ("arms", "words"),
    [
        ({"a": {}, "b": {"blend": 0.5}}, "b has blend or ema and no arm to make it of"),
        ({"a": {}, "b": {"of": "c", "blend": 0.5}}, "b is made of 'c', which is no arm that trains"),
        (
            {"a": {}, "b": {"of": "a", "blend": 0.5}, "c": {"of": "b", "blend": 0.5}},
            "c is made of 'b', which is no arm that trains",
        ),
        ({"a": {}, "b": {"of": "a"}}, "b is a itself: set blend below 1, or ema"),
        ({"a": {}, "b": {"of": "a", "ema": True}}, "a moving average that a does not keep"),
        (
            {"a": {"learning": {"blend": 0.5}}},
            "arm a has learning.blend, and a study looks at the weights that were trained",
        ),
        ({"a": {}, "b": {"of": "a", "blend": 0.5, "learning": {"lr": 1e-3}}}, "b is made of a and trains nothing"),
    ],
)
def test_an_arm_that_can_be_made_of_nothing_is_refused(tmp_path, arms, words):
    with pytest.raises(ValueError, match=words):
        StudyConfig(**settings(tmp_path, arms=arms))


def test_only_needs_the_arm_that_another_is_made_of(tmp_path):
    arms = {"plain": {}, "kl": {"method": {"regularisers": ("kl",)}}, "half": {"of": "kl", "blend": 0.5}}
    with pytest.raises(ValueError, match="only has half, which is made of kl: name that too"):
        StudyConfig(**settings(tmp_path, arms=arms, only=("plain", "half")))
    made = StudyConfig(**settings(tmp_path, arms=arms, only=("plain", "kl", "half")))
    assert made.train_config("half", seed=1, out=tmp_path) == made.train_config("kl", seed=1, out=tmp_path)


def test_made_arms_are_looked_at_with_the_weights_that_they_name(tmp_path):
    config = tiny(tmp_path, seeds=(0,), arms=MADE, tune={"problems": 8, "samples": 4})
    results = study(config).to_dict()
    runs = config.out / "runs"
    folders = {path.parent.name for path in runs.glob("*/checkpoints")}
    assert folders == {"grpo-0"}  # nothing else was trained
    newest = sorted((runs / "grpo-0" / "checkpoints").glob("step=*"))[-1]
    last, mean = (load_file(newest / f"{name}.safetensors") for name in ("model", "ema"))
    model, tokens = load_gpt(config.base.model)
    base = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for arm, (weights, share) in {"half": (last, 0.5), "mean": (mean, 1.0), "both": (mean, 0.25)}.items():
        with torch.no_grad():
            for name, tensor in model.state_dict().items():
                tensor.copy_(base[name] + share * (weights[name] - base[name]))
        path = tmp_path / f"{arm}.safetensors"
        save_gpt(path, model, tokens)
        # The same weights as a model of their own, looked at without any training.
        alone = config.train_config("grpo", seed=0, out=tmp_path / arm)
        alone = alone.model_copy(
            update={"model": str(path), "learning": alone.learning.model_copy(update={"steps": 0, "ema": None})}
        )
        run_job(Job(config=alone, look=config.evaluation, base_temperature=1.0))
        ours, theirs = (
            pytest.importorskip("pyarrow.parquet").read_table(folder / "outcomes.parquet").to_pydict()
            for folder in (runs / f"{arm}-0", tmp_path / arm)
        )
        for column in ("correct", "distinct", "tokens", "entropy_sum"):
            assert ours[column] == pytest.approx(theirs[column], rel=1e-4), (arm, column)
        made = entry(results, arm, 0)
        assert made["kl_to_base"] > 0
        assert made["rollouts"] == entry(results, "grpo", 0)["rollouts"] > 0
    assert {row["arm"] for row in results["law"]} == {"grpo"}
    assert [row["arm"] for row in results["tuned"]] == ["base", *MADE]
    assert results["recipes"]["both"]["made_of"] == {"arm": "grpo", "blend": 0.25, "ema": True}
    told = page(results)
    assert "- both: the moving average (0.5) of grpo, blended with the base: base + 0.25 · (trained − base)" in told
    # Once more, with what is there: nothing changes, and no weights are needed.
    for path in config.out.rglob("*.safetensors"):
        path.unlink()
    assert without_times(study(config).to_dict()) == without_times(results)


def test_a_blend_of_weights_that_are_gone_is_told_in_one_line(tmp_path):
    study(tiny(tmp_path, seeds=(0,), arms={"grpo": {}}))
    for path in (tmp_path / "out").rglob("complete"):
        path.unlink()
    with pytest.raises(UsageError, match="grpo-0 has no checkpoint of its last step to look at"):
        study(tiny(tmp_path, seeds=(0,), arms={"grpo": {}, "half": {"of": "grpo", "blend": 0.5}}))


def test_a_run_without_blend_and_average_is_finished_as_before(tmp_path):
    config = tiny(tmp_path, seeds=(0,), arms={"grpo": {}})
    study(config)
    told = json.loads((config.out / "runs" / "grpo-0" / "finished.json").read_text())["settings"]
    assert not {"blend", "ema", "recipe"} & {*told, *told["config"], *told["config"]["learning"]}


def test_another_evaluation_seed_poses_other_problems(tmp_path):
    looks = {name: {"problems": 8, "samples": 2, "temperatures": (1.0,)} for name in ("usual", "fresh")}
    looks["fresh"]["seed"] = "fresh"
    found = {}
    for name, look in looks.items():
        made = settings(tmp_path / name, arms={"grpo": {}}, seeds=(0,), evaluation=look)
        made["base"] |= {"evaluation": {"problems": 2, "samples": 1}}
        study(StudyConfig(**made))
        found[name] = set(pd.read_parquet(tmp_path / name / "problems.parquet")["problem"])
        told = json.loads((tmp_path / name / "runs" / "grpo-0" / "finished.json").read_text())["settings"]["look"]
        assert told.get("seed") == look.get("seed")
    assert found["usual"] == {problem.id for problem in find_task("countdown").problems(SEED, 8, split="test")}
    assert len(found["fresh"]) == 8
    assert found["fresh"].isdisjoint(found["usual"])


def test_rows_that_were_imitated_are_counted_beside_the_rollouts(tmp_path):
    arms = {
        "grpo": {},
        "anchored": {"method": {"demonstrations": ("base_anchor:problems=4,rows=1",)}, "learning": {"steps": 1}},
    }
    config = StudyConfig(
        **settings(
            tmp_path / "out", arms=arms, seeds=(0,), evaluation={"problems": 8, "samples": 8, "temperatures": (1.0,)}
        )
    )
    results = study(config).to_dict()
    plain, anchored = (entry(results, arm, 0) for arm in arms)
    assert plain["rollouts"] == anchored["rollouts"] == 2 * 16  # one step of 4 · 4, and 4 · 4 of the base
    assert (plain["imitated"], anchored["imitated"]) == (0, 1)
    assert "- anchored: 1 more rows of training" in page(results)


# ---------------------------------------------------------------- the area under a front


def test_the_area_of_overlapping_rectangles_worked_by_hand():
    # 0.4 × 0.5 and 0.2 × 0.9: 0.2 · 0.9 + 0.2 · 0.5. The third lies inside both.
    x, y = np.array([[0.2, 0.1, 0.4]]), np.array([[0.9, 0.4, 0.5]])
    assert area(x, y)[0] == pytest.approx(0.28)
    assert area(x[:, ::-1], y[:, ::-1])[0] == pytest.approx(0.28)
    assert area(np.array([[0.3]]), np.array([[0.5]]))[0] == pytest.approx(0.15)
    assert area(np.array([[0.3, 0.3]]), np.array([[0.5, 0.7]]))[0] == pytest.approx(0.21)


def test_the_area_is_the_share_of_a_fine_grid_below_some_point():
    random = np.random.default_rng(0)
    x, y = random.random((5, 6)), random.random((5, 6))
    grid = (np.arange(1000) + 0.5) / 1000
    for row in range(5):
        under = ((grid[:, None, None] < x[row]) & (grid[None, :, None] < y[row])).any(axis=2)
        assert area(x, y)[row] == pytest.approx(under.mean(), abs=2e-3)


def test_areas_and_their_differences_follow_from_the_outcomes():
    # Two problems, 10 samples, pass@2 of c right: c = 1: 0.2, c = 4: 2/3, c = 10: 1. T = 0.5: (1, 0) and T = 1: (4, 1).
    arm = policies_of(outcomes_of([[10, 0], [4, 1]]))
    base = policies_of(outcomes_of([[1, 1], [1, 1]]), arm="base")
    mine, other = volumes([arm, base], k=2)
    # Points (0.5, 0.5) and (0.25, 0.4333): the first holds the second. The base: (0.1, 0.2).
    assert mine["volume"]["value"] == pytest.approx(0.25)
    assert other["volume"]["value"] == pytest.approx(0.02)
    assert (mine["best_pass@1"], mine["best_pass@2"]) == (pytest.approx(0.5), pytest.approx(0.5))
    assert [(gap["against"], gap["value"]) for gap in mine["differences"]] == [("base", pytest.approx(0.23))]
    assert other["volume"]["low"] is None  # nothing varies


def test_the_interval_pairs_problems_and_adds_the_spread_of_seeds():
    random = np.random.default_rng(3)
    easy_P = random.integers(0, 11, 60)
    shifted = [np.clip(easy_P + shift, 0, 10) for shift in (0, 1, 2)]
    one = policies_of(*(outcomes_of([each, each]) for each in shifted))
    two = policies_of(*(outcomes_of([each // 2, each // 2]) for each in shifted), arm="b")
    mine, _ = volumes([one, two], k=4)
    (gap,) = mine["differences"]
    each_S = np.array(gap["per_seed"])
    assert gap["value"] == pytest.approx(each_S.mean())
    inside = (gap["over_problems"][1] - gap["over_problems"][0]) / 2
    assert (gap["high"] - gap["low"]) / 2 > 1.05 * inside  # seeds vary too
    least = stats.t.ppf(0.975, 2) * each_S.std(ddof=1) / 3**0.5
    assert gap["high"] - gap["value"] < inside + 1.5 * least
    # Paired: the same policy against itself differs by 0 in every resample.
    twice, _ = volumes([one, policies_of(*one.outcomes, arm="c")], k=4)
    assert (twice["differences"][0]["value"], twice["differences"][0]["low"]) == (0, None)


@pytest.mark.parametrize("gain", [0.0, 0.02])
def test_the_interval_covers_the_truth(gain):
    """Arms of known pass rates at two temperatures: the interval of the difference of areas holds the true one."""
    random, hits, n = np.random.default_rng(5), 0, 200
    grid = np.linspace(0, 1, 10_001)
    rates = stats.beta(1, 3).ppf(np.clip(grid, 1e-6, 1 - 1e-6))

    def area_of(shift):
        p = np.minimum(rates + shift, 1)
        hotter = p * 0.8
        miss = [np.mean(1 - (1 - each) ** 4) for each in (p, hotter)]
        return area(np.array([[p.mean(), hotter.mean()]]), np.array([miss]))[0]

    truth = area_of(gain) - area_of(0.0)
    for _ in range(n):
        p = stats.beta(1, 3).rvs(128, random_state=random)
        arms = []
        for name, shift in (("a", gain), ("b", 0.0)):
            each = np.minimum(p + shift, 1)
            arms.append(policies_of(outcomes_of(random.binomial(32, [each, each * 0.8]), drawn=32), arm=name))
        (gap,) = volumes(arms, k=4)[0]["differences"]
        hits += gap["low"] <= truth <= gap["high"]
    assert 0.91 <= hits / n <= 0.99
