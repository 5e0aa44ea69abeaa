"""Group advantages against hand tables, Python's `statistics` and numpy's quantiles; the catalogue rows against the code they name."""

from __future__ import annotations

import inspect
import statistics
from fractions import Fraction
from importlib import import_module
from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.catalogue.advantages import ADVANTAGES
from equipoise.errors import UsageError
from equipoise.shaping.advantages import group_mean, group_std, leave_one_out, quantile_baseline
from equipoise.shaping.passk_training import passk_training
from equipoise.shaping.pkpo import pkpo

NAN = np.nan
ALL = {
    "group_std": group_std,
    "group_mean": group_mean,
    "leave_one_out": leave_one_out,
    "quantile_baseline": quantile_baseline,
    "pkpo": lambda reward, keep: pkpo(reward, keep, k=2),
}
rewards = st.lists(st.integers(-64, 64).map(lambda i: i / 8), min_size=2, max_size=9)


def of(function, values, **settings):
    """The advantages of one full group."""
    values = np.asarray([values], dtype=float)
    return function(values, np.ones(values.shape, dtype=bool), **settings)[0]


# ---------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("size", "population", "unbiased", "none"),
    [(4, 1.73, 1.50, 0.75), (8, 2.65, 2.47, 0.875), (16, 3.87, 3.75, 0.938), (64, 7.94, 7.88, 0.984)],
)
def test_one_success_among_g_is_amplified(size, population, unbiased, none):
    lone = [1.0] + [0.0] * (size - 1)
    by_n = of(group_std, lone, std="population", eps=0)
    assert by_n[0] == pytest.approx(population, abs=5e-3)
    assert by_n[0] == pytest.approx(sqrt(size - 1), rel=1e-12)
    np.testing.assert_allclose(by_n[1:], -1 / sqrt(size - 1), rtol=1e-12)
    assert of(group_std, lone, std="unbiased", eps=0)[0] == pytest.approx(unbiased, abs=5e-3)
    assert of(group_mean, lone)[0] == pytest.approx(none, abs=5e-4)
    assert of(leave_one_out, lone)[0] == 1.0


def test_worked_by_hand():
    # Mean 2; squares 4 + 1 + 1 + 4 = 10: by n 2.5, by n − 1 10/3.
    group = [0.0, 1.0, 3.0, 4.0]
    np.testing.assert_array_equal(of(group_mean, group), [-2, -1, 1, 2])
    np.testing.assert_allclose(of(leave_one_out, group), [-8 / 3, -4 / 3, 4 / 3, 8 / 3], rtol=1e-15)
    np.testing.assert_allclose(of(group_std, group, std="population", eps=0.5)[3], 2 / (sqrt(2.5) + 0.5), rtol=1e-15)
    np.testing.assert_allclose(of(group_std, group, std="unbiased", eps=0.5)[0], -2 / (sqrt(10 / 3) + 0.5), rtol=1e-15)
    # The 0.4-quantile is the 2nd of 4: 1/4 of them are at most 0, 2/4 at most 1.
    np.testing.assert_allclose(
        of(quantile_baseline, group, std="population", eps=0), np.array([-1, 0, 2, 3]) / sqrt(2.5)
    )


@pytest.mark.parametrize("seed", range(6))
def test_ragged_groups_equal_a_loop_with_statistics(seed):
    rng = np.random.default_rng(seed)
    keep = rng.random((12, 7)) < 0.8
    reward = np.where(rng.random((12, 7)) < 0.85, rng.integers(0, 4, (12, 7)) / 2, NAN)
    expected = {name: np.zeros(keep.shape) for name in ("population", "unbiased", "mean", "out", "quantile")}
    for p in range(len(keep)):
        known = [g for g in range(7) if keep[p, g] and not np.isnan(reward[p, g])]
        values = [float(reward[p, g]) for g in known]
        if len(set(values)) < 2:
            continue
        for g in known:
            above = reward[p, g] - statistics.fmean(values)
            expected["mean"][p, g] = above
            expected["population"][p, g] = above / (statistics.pstdev(values) + 1e-3)
            expected["unbiased"][p, g] = above / (statistics.stdev(values) + 1e-3)
            expected["out"][p, g] = reward[p, g] - statistics.fmean([reward[p, j] for j in known if j != g])
            baseline = np.quantile(values, 0.4, method="inverted_cdf")
            expected["quantile"][p, g] = (reward[p, g] - baseline) / (statistics.stdev(values) + 1e-3)
    found = {
        "population": group_std(reward, keep, std="population", eps=1e-3),
        "unbiased": group_std(reward, keep, std="unbiased", eps=1e-3),
        "mean": group_mean(reward, keep),
        "out": leave_one_out(reward, keep),
        "quantile": quantile_baseline(reward, keep, quantile=0.4, std="unbiased", eps=1e-3),
    }
    for name, value in found.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-12, atol=1e-14, err_msg=name)


@pytest.mark.parametrize("tenths", range(1, 10))
def test_the_quantile_gate_for_every_count_and_size(tenths):
    share = Fraction(tenths, 10)
    for size in range(2, 33):
        for right in range(size + 1):
            found = of(quantile_baseline, [1.0] * right + [0.0] * (size - right), quantile=tenths / 10)
            wins, fails = found[:right], found[right:]
            if right in (0, size):
                assert not found.any()
            elif Fraction(right, size) <= 1 - share:  # hard: the baseline is 0
                assert (wins > 0).all()
                assert not fails.any()
            else:
                assert not wins.any()
                assert (fails < 0).all()


def test_an_interpolated_quantile_is_another_method():
    # The authors' code calls torch.quantile, which interpolates as numpy's default does.
    right_5_of_8 = [0.0] * 3 + [1.0] * 5
    assert np.quantile(right_5_of_8, 0.4) == pytest.approx(0.8)
    assert np.quantile(right_5_of_8, 0.4, method="inverted_cdf") == 1.0
    assert not of(quantile_baseline, right_5_of_8)[3:].any()


# ---------------------------------------------------------------- identities


@pytest.mark.parametrize("name", ["group_std", "group_mean", "leave_one_out"])
@given(values=rewards)
def test_a_group_s_advantages_sum_to_zero(name, values):
    assert of(ALL[name], values).sum() == pytest.approx(0, abs=1e-9)


@given(values=rewards, scale=st.sampled_from([0.125, 0.5, 2.0, 3.0]), shift=st.integers(-5, 5))
def test_scale_and_shift_of_the_rewards(values, scale, shift):
    moved = [scale * value + shift for value in values]
    for std in ("population", "unbiased"):
        np.testing.assert_allclose(
            of(group_std, moved, std=std, eps=0), of(group_std, values, std=std, eps=0), atol=1e-9
        )
    np.testing.assert_allclose(of(quantile_baseline, moved, eps=0), of(quantile_baseline, values, eps=0), atol=1e-9)
    for function in (group_mean, leave_one_out, ALL["pkpo"]):
        np.testing.assert_allclose(of(function, moved), scale * of(function, values), atol=1e-9)


@pytest.mark.parametrize("name", ALL)
@given(values=rewards, data=st.data())
def test_order_of_completions_and_padding_do_not_matter(name, values, data):
    order = data.draw(st.permutations(range(len(values))))
    plain = of(ALL[name], values)
    np.testing.assert_allclose(of(ALL[name], [values[i] for i in order]), plain[order], rtol=1e-12, atol=1e-12)
    for junk in (NAN, np.inf, -7.0):
        padded = np.array([[junk, *values, junk], [junk, *values[::-1], junk]])
        keep = np.zeros(padded.shape, dtype=bool)
        keep[:, 1:-1] = True
        found = ALL[name](padded, keep)
        np.testing.assert_allclose(found[0, 1:-1], plain, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(found[1, 1:-1], plain[::-1], rtol=1e-12, atol=1e-12)
        assert not found[:, [0, -1]].any()


# ---------------------------------------------------------------- nothing to compare


@pytest.mark.parametrize("name", ALL)
def test_constant_rewards_groups_of_one_and_missing_rewards_give_exact_zeros(name):
    constant = [[0.1] * 3, [1e9] * 3, [-0.7] * 3]
    assert not ALL[name](np.array(constant), np.ones((3, 3), dtype=bool)).any()
    lonely = np.array([[5.0, NAN, NAN], [3.0, 8.0, 8.0], [NAN, NAN, NAN]])
    keep = np.array([[True, True, True], [True, False, False], [True, True, True]])
    assert not ALL[name](lonely, keep).any()
    assert ALL[name](np.empty((0, 0)), np.empty((0, 0), dtype=bool)).shape == (0, 0)
    assert not ALL[name](np.empty((0, 4)), np.empty((0, 4), dtype=bool)).size


def test_float32_noise_is_no_signal_even_without_eps():
    noisy = np.array([0.7, 0.7 + 1e-8, 0.7 - 1e-8, 0.7])
    for function in (group_std, quantile_baseline):
        assert not of(function, noisy, eps=0).any()
    assert of(group_std, [0.7, 0.7 + 1e-3], eps=0).any()


@pytest.mark.parametrize("name", ALL)
def test_an_unscored_completion_is_outside_the_baseline(name):
    whole = of(ALL[name], [1.0, 0.0, 0.0, 2.0])
    with_gap = of(ALL[name], [1.0, NAN, 0.0, 0.0, 2.0])
    np.testing.assert_array_equal(np.delete(with_gap, 1), whole)
    assert with_gap[1] == 0


# ---------------------------------------------------------------- bad input, and the rows

ONES = np.ones((2, 3))
KEEP = ONES.astype(bool)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: group_std(ONES, KEEP[:1]), "these must share one shape"),
        (lambda: group_mean(None, KEEP), "reward_PG is needed and was not measured: the column reward supplies it"),
        (lambda: leave_one_out(ONES * np.inf, KEEP), "reward_PG holds an infinite value"),
        (lambda: group_mean(ONES, ONES), "keep_PG must be bool"),
        (lambda: group_mean(ONES[0], KEEP[0]), "keep_PG must be bool of shape"),
        (lambda: group_std(ONES, KEEP, std="sample"), "found 'sample'"),
        (lambda: group_std(ONES, KEEP, eps=-1), "0 or more, found -1"),
        (lambda: quantile_baseline(ONES, KEEP, quantile=1), "between 0 and 1, found 1"),
        (lambda: passk_training(ONES / 2, KEEP, k=1), "correct_PG must hold 0, 1 or nan, found 0.5"),
    ],
)
def test_bad_input_is_told_in_one_line(call, message):
    with pytest.raises(UsageError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("method", ADVANTAGES, ids=lambda m: m.name)
def test_a_row_names_code_its_settings_and_its_inputs(method):
    module, _, name = method.target.partition(":")
    target = getattr(import_module(module), name)
    parameters = inspect.signature(target).parameters
    assert set(method.settings) <= {key for key, p in parameters.items() if p.kind is p.KEYWORD_ONLY}
    call = target
    if inspect.isclass(target):
        call = target.choose if method.kind == "allocation" else target.observe
    fed = inspect.signature(call).parameters
    optional = {*method.settings, "self", "n", "std", "eps", "seed"}
    assert method.inputs == tuple(key for key in fed if key not in optional)
    for key, value in method.settings.items():
        default = parameters[key].default
        assert default is inspect.Parameter.empty or type(default) is type(value)
    assert method.equation
    assert method.traps
