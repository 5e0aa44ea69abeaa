"""Controllers of entropy: sequences worked by hand, bounds, state, and tallies that add."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.base import Controller, Tally
from equipoise.errors import UsageError
from equipoise.shaping.controllers import AdaptiveClip, AdaptiveEntropy, EntropyBand, tally_tokens
from equipoise.shaping.entropy_budget import EntropyBudget


def seen(entropy: float, n: int = 1) -> Tally:
    return Tally(n, n * entropy, n * entropy**2)


def follow(controller: Controller, name: str, entropies: list[float]) -> list[float]:
    found = []
    for entropy in entropies:
        controller.observe(seen(entropy))
        found.append(controller.settings()[name])
    return found


# --- tallies ----------------------------------------------------------------------------------------------------------


def test_tallies_of_ranks_add_to_the_tally_of_all_tokens():
    rng = np.random.default_rng(0)
    values, edges = rng.exponential(0.5, 100), np.array([0.1, 0.5, 1.0])
    parts = [tally_tokens(part, edges=edges) for part in (values[:7], values[7:60], values[60:])]
    whole = parts[0] + parts[1] + parts[2]
    assert whole.n == 100
    assert whole.mean == pytest.approx(values.mean())
    assert whole.variance == pytest.approx(values.var())
    assert whole.bins == tuple(np.histogram(values, [-np.inf, 0.1, 0.5, 1.0, np.inf])[0])
    # Tokens count alike, not ranks: the mean of the means is another number.
    assert abs(np.mean([part.mean for part in parts]) - values.mean()) > 1e-3


def test_a_tally_reads_nothing_under_the_padding():
    values, mask = np.array([[0.5, np.nan], [np.inf, 1.5]]), np.array([[True, False], [False, True]])
    assert tally_tokens(values, mask) == Tally(2, 2.0, 2.5)
    assert tally_tokens(values, np.zeros((2, 2), bool)) == Tally()


def test_a_tally_of_nothing_has_no_mean_and_adds_to_anything():
    nothing, something = Tally(), Tally(2, 1.0, 0.6, (1, 1))
    assert nothing.mean is nothing.variance is None
    assert nothing + something == something + nothing == something


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Tally(2, math.nan, 1.0), "finite sums, found n=2, sum=nan"),
        (lambda: Tally(1, 1.0, 1.0, (1,)) + Tally(1, 1.0, 1.0), "have 1 and 0 bins"),
        (lambda: tally_tokens(np.array([1.0, np.inf])), "finite sums"),
        (lambda: tally_tokens(np.zeros(3), np.ones(2, bool)), "must share one shape"),
    ],
)
def test_bad_tallies_are_told_in_one_line(make, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        make()


# --- adaptive entropy -------------------------------------------------------------------------------------------------


def test_adaptive_entropy_worked_by_hand():
    controller = AdaptiveEntropy(target=0.2, step=1e-4, max=3e-4, min=0.0, start=0.0)
    assert controller.settings() == {"entropy_bonus.coef": 0.0}  # nothing observed
    # Up by a step below the target, to its maximum; off at and above the target, where the coefficient itself only walks back.
    found = follow(controller, "entropy_bonus.coef", [0.3, 0.1, 0.1, 0.1, 0.1, 0.2, 0.25, 0.19])
    assert found == pytest.approx([0.0, 1e-4, 2e-4, 3e-4, 3e-4, 0.0, 0.0, 2e-4])


def test_exactly_at_the_target_is_above_it_here_and_below_it_in_trl():
    assert follow(AdaptiveEntropy(target=0.5), "entropy_bonus.coef", [0.5]) == [0.0]
    assert follow(AdaptiveEntropy(target=0.5, inclusive=True), "entropy_bonus.coef", [0.5]) == [1e-4]


def test_trl_s_documented_example_never_lets_go():
    # target 5.0, start 0.01, TRL's step 0.005 and max 1.0, on a model that falls from 0.6 to 0.1 nats.
    falling = list(np.linspace(0.6, 0.1, 300))
    example = AdaptiveEntropy(target=5.0, start=0.01, step=0.005, max=1.0, inclusive=True)
    found = follow(example, "entropy_bonus.coef", falling)
    assert min(found) > 0
    assert found[-1] == 1.0
    # With Skywork's numbers it is off for the steps above 0.2 and small after.
    found = follow(AdaptiveEntropy(), "entropy_bonus.coef", falling)
    assert max(found[: sum(entropy >= 0.2 for entropy in falling)]) == 0
    assert 0 < max(found) <= 5e-3


# --- band -------------------------------------------------------------------------------------------------------------


def test_a_band_moves_until_the_middle_is_reached_again():
    controller = EntropyBand(low=0.2, high=0.6, step=1.0, max=10, min=-10)  # middle 0.4
    found = follow(controller, "entropy_bonus.coef", [0.3, 0.1, 0.25, 0.35, 0.4, 0.3, 0.5, 0.7, 0.5, 0.41, 0.4, 0.5])
    #   inside   below: up, up, up   middle: stop   inside   above: down, down, down   middle: stop
    assert found == [0, 1, 2, 3, 3, 3, 3, 2, 1, 0, 0, 0]


def test_a_band_has_two_sides():
    low, high = EntropyBand(low=0.2, high=0.6), EntropyBand(low=0.2, high=0.6)
    assert follow(low, "entropy_bonus.coef", [0.05] * 100)[-1] == pytest.approx(5e-3)
    assert follow(high, "entropy_bonus.coef", [3.0] * 100)[-1] == pytest.approx(-5e-3)


def test_a_band_crossed_in_one_step_turns_round():
    assert follow(EntropyBand(low=0.2, high=0.6, step=1.0, max=9, min=-9), "entropy_bonus.coef", [0.1, 0.1, 2.0]) == [
        1,
        2,
        1,
    ]


# --- clip -------------------------------------------------------------------------------------------------------------


def test_adaptive_clip_worked_by_hand():
    controller = AdaptiveClip(start=0.28, min=0.05, max=1.0)
    # The first step is the reference; below it the bound doubles to its maximum, above it halves to its minimum.
    found = follow(controller, "clip_high", [0.5, 0.4, 0.4, 0.5, 0.6, 0.6, 0.6, 0.6, 0.6])
    assert found == pytest.approx([0.28, 0.56, 1.0, 1.0, 0.5, 0.25, 0.125, 0.0625, 0.05])


def test_the_reference_can_be_given():
    assert follow(AdaptiveClip(initial=0.9), "clip_high", [0.5]) == [0.56]


# --- every controller -------------------------------------------------------------------------------------------------

MAKERS = {
    "adaptive_entropy": (AdaptiveEntropy, "entropy_bonus.coef", (0.0, 5e-3)),
    "band": (EntropyBand, "entropy_bonus.coef", (-5e-3, 5e-3)),
    "adaptive_clip": (AdaptiveClip, "clip_high", (0.05, 1.0)),
    "entropy_budget": (EntropyBudget, "entropy_budget.floor", (-math.inf, math.inf)),
}
ENTROPIES = st.lists(st.floats(0, 12), min_size=1, max_size=40)


@pytest.mark.parametrize("name", MAKERS)
@given(entropies=ENTROPIES)
def test_a_setting_stays_in_its_bounds(name, entropies):
    make, setting, (low, high) = MAKERS[name]
    assert all(low <= value <= high for value in follow(make(), setting, entropies))


@pytest.mark.parametrize("name", MAKERS)
@given(entropies=ENTROPIES, after=ENTROPIES)
def test_state_survives_json_and_goes_on_the_same(name, entropies, after):
    make, setting, _ = MAKERS[name]
    first, second = make(), make()
    follow(first, setting, entropies)
    second.restore(json.loads(json.dumps(first.state(), allow_nan=False)))
    assert second.settings() == first.settings()
    assert follow(second, setting, after) == follow(first, setting, after)


@pytest.mark.parametrize("name", MAKERS)
def test_reading_settings_and_empty_steps_move_nothing(name):
    make, setting, _ = MAKERS[name]
    controller = make()
    follow(controller, setting, [0.5, 0.1, 0.9])
    before = controller.state()
    for _ in range(5):
        controller.settings()
        controller.observe(Tally())
    assert controller.state() == before


@pytest.mark.parametrize("name", MAKERS)
def test_a_rank_with_many_tokens_counts_for_more(name):
    make, _, _ = MAKERS[name]
    split, whole = make(), make()
    split.observe(seen(0.1, 30) + seen(0.7, 10))
    whole.observe(seen(0.25, 40))
    assert split.settings() == whole.settings()


@pytest.mark.parametrize("name", MAKERS)
def test_a_state_of_something_else_is_refused(name):
    controller = MAKERS[name][0]()
    with pytest.raises(UsageError, match=f"a state of {name} has .*; found other"):
        controller.restore({"other": 1})


def test_a_restored_value_keeps_to_new_bounds():
    narrow = AdaptiveEntropy(max=1e-3)
    narrow.restore({"coef": 5e-3, "below": True})
    assert narrow.settings() == {"entropy_bonus.coef": 1e-3}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: AdaptiveEntropy(start=1.0),
            "adaptive_entropy needs min <= start <= max, found min=0, start=1, max=0.005",
        ),
        (lambda: AdaptiveEntropy(step=0.0), "adaptive_entropy needs step above 0, found 0.0"),
        (lambda: AdaptiveEntropy(target=math.nan), "adaptive_entropy needs target above 0"),
        (lambda: EntropyBand(low=0.6, high=0.2), "band needs low < high"),
        (lambda: EntropyBand().restore({"coef": 0.0, "moving": "sideways"}), "up, down or no, found 'sideways'"),
        (lambda: AdaptiveClip(factor=1.0), "a factor above 1, found 1.0"),
        (lambda: AdaptiveClip(min=0.5), "adaptive_clip needs min <= start <= max"),
        (lambda: AdaptiveClip().restore({"clip_high": math.nan, "initial": None}), "has clip_high=nan"),
    ],
)
def test_bad_settings_are_told_in_one_line(make, message):
    with pytest.raises(UsageError, match=re.escape(message)) as caught:
        make()
    assert "\n" not in str(caught.value)
