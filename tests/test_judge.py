"""When an unclear loop keeps a run from being called healthy, and which k a run is judged at."""

from __future__ import annotations

from dataclasses import replace

import pytest

from equipoise.base import Diagnosis, Estimate, Finding, Prescription
from equipoise.diagnosis.judge import Judgement, judge
from equipoise.diagnosis.prescribe import _merge, prescribe, recorded_kl
from equipoise.diagnosis.verdict import diagnose
from equipoise.lab.synthetic import World
from equipoise.lab.synthetic_run import make_baseline, make_run


def estimates(**values: tuple[float, float | None, float | None, int]) -> dict[str, list[Estimate]]:
    """By measure: pass@8 against the baseline, and the loss at the largest budget."""
    names = {"passk": "pass@8_vs_baseline", "budget": "overthinking_loss"}
    return {measure: [Estimate(names[measure], *number)] for measure, number in values.items()}


KEPT = (0.02, -0.01, 0.05, 100)  # surely short of a loss of 5 %


@pytest.mark.parametrize(
    ("budget", "verdict"),
    [
        ((-0.01, -0.03, 0.01, 100), "healthy"),  # surely short of the limit of −4 %
        ((-0.03, -0.07, 0.01, 100), "not enough data"),  # may be past it, and leans there
        ((0.0, None, None, 100), "healthy"),  # the largest budget is the best; nothing speaks of harm
        ((0.02, -0.05, 0.09, 100), "healthy"),  # wide, but on the good side
        ((-0.08, -0.12, -0.04, 8), "not enough data"),  # too few problems to be read, and bad
        ((-0.08, -0.12, -0.04, 100), "inference-time variance inflation"),
    ],
)
def test_a_loop_that_leans_towards_harm_and_is_not_known_is_no_healthy_run(budget, verdict):
    assert judge(estimates(passk=KEPT, budget=budget), use="search", k=8).verdict == verdict


def test_a_loop_that_was_not_measured_does_not_count_against_the_other():
    found = judge(estimates(passk=KEPT), use="search", k=8)
    assert (found.verdict, found.states["inference"]) == ("healthy", "unknown")
    alone = judge(estimates(budget=(-0.08, -0.12, -0.04, 100)), use="search", k=8)
    assert (alone.verdict, alone.states["training"]) == ("inference-time variance inflation", "unknown")


def judged_at(world: World, *, baseline: World | None = None) -> int:
    base = None if baseline is None else make_baseline(baseline, seed=0)
    return int(diagnose(make_run(world, seed=0), baseline=base).use.rpartition("= ")[2])


def test_k_is_half_of_the_samples_of_one_condition():
    trained = World(problems=20, samples=16, passes=2, unreadable=0.0, budgets=(256, 1024, 4096), budget_samples=64)
    assert judged_at(trained) == 8  # the 192 samples of the sweep do not count
    assert judged_at(replace(trained, unreadable=0.05)) == 8  # one unreadable sample in most problems leaves 8 in all
    assert judged_at(trained, baseline=replace(trained, samples=4)) == 2  # no more than the baseline has
    assert judged_at(replace(trained, samples=2)) == 2
    assert judged_at(replace(trained, samples=1)) == 1


def test_a_notebook_card_escapes_what_a_file_brought():
    number = Estimate("pass@1", 0.5, 0.4, 0.6, 20)
    finding = Finding(number, "pass@1", "training", "info", "<img src=x onerror=alert(1)>", 0.0, "40% to 60%")
    nothing = Prescription(None, "a & b", {})
    card = Diagnosis("healthy", 0.9, "search", (finding,), ("<b>",), (), nothing, 1, 1)._repr_html_()
    assert "<img" not in card
    assert "&lt;img src=x onerror=alert(1)&gt;" in card
    assert "a &amp; b" in card


def test_what_the_linter_calls_inert_is_not_prescribed():
    settings: dict[str, dict] = {}
    _merge(settings, "kl_cov")  # verl has it, and on one update per batch it changes nothing
    _merge(settings, "clip_higher")
    assert settings == {}
    _merge(settings, "kl", coef=0.01)
    assert settings["trl"] == {"beta": 0.01}


@pytest.mark.parametrize(
    ("settings", "coef"),
    [
        ({}, None),
        ({"method": {"regularisers": ["entropy_bonus:coef=0.3", "kl:coef=0.05,kind=exact"]}}, 0.05),
        ({"method": {"regularisers": ["kl"]}}, 0.01),  # the catalogue's own
        ({"beta": 0.02, "exploration": ["band:low=0.2"]}, 0.02),
        ({"beta": 0.02, "exploration": ["kl:coef=0.04"]}, 0.04),
        ({"beta": 0.0}, None),
        ({"beta": "0.02", "method": "grpo", "exploration": ["kl:", 3, None]}, None),  # any file may say it
    ],
)
def test_the_kl_that_a_run_had_is_read_from_its_settings(settings, coef):
    assert recorded_kl(settings) == coef


@pytest.mark.parametrize(("had", "told"), [({}, 0.01), ({"beta": 0.004}, 0.01), ({"beta": 0.05}, 0.1)])
def test_a_run_that_collapsed_with_a_kl_is_told_a_larger_one(had, told):
    failing = Judgement("training-time entropy collapse", 0.9, {"training": "failing", "inference": "unknown"}, ())
    found = prescribe(failing, {}, had)
    assert found.settings["trl"] == {"beta": told}
    assert ("although the run has a KL" in found.why) == (told == 0.1)


@pytest.mark.parametrize(
    ("averages", "advice"),
    [
        ({}, "equipoise methods preserve"),
        ({"learning": {"ema": None}}, "equipoise methods preserve"),
        ({"learning": {"ema": 0.99}}, "equipoise blend"),
        ({"average": 0.95}, "equipoise blend"),  # a TRL capture
        ({"learning": "any file may say it"}, "equipoise methods preserve"),
    ],
)
def test_a_run_of_the_recipe_is_not_told_to_take_it(averages, advice):
    had = {"method": {"regularisers": ["kl:coef=0.05"]}, **averages}
    failing = Judgement("training-time entropy collapse", 0.9, {"training": "failing", "inference": "unknown"}, ())
    assert prescribe(failing, {}, had).why.endswith(f"({advice}).")
