"""The entropy budget: its identity against finite differences, its weights by brute force, its control on a bandit."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest
from scipy import stats

from equipoise.base import Tally
from equipoise.errors import UsageError
from equipoise.shaping.controllers import tally_tokens
from equipoise.shaping.entropy_budget import Account, EntropyBudget, predict_change, weigh_spenders
from equipoise.shaping.realised_change import RealisedChange


def softmax(z: np.ndarray) -> np.ndarray:
    p = np.exp(z - z.max())
    return p / p.sum()


def statistics(z: np.ndarray, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Log-prob, entropy and drift of sampled tokens, by loops over the vocabulary."""
    p = softmax(z)
    entropy = -sum(q * math.log(q) for q in p)
    drift = sum(q * q * (math.log(q) + entropy) for q in p)
    return np.log(p[tokens]), np.full(len(tokens), entropy), np.full(len(tokens), drift)


def moved(z: np.ndarray, tokens: np.ndarray, factors: np.ndarray, size: float) -> np.ndarray:
    """The logits after one step on the mean of factor · log p over the tokens."""
    p, after = softmax(z), z.copy()
    for token, factor in zip(tokens, factors, strict=True):
        after += size / len(tokens) * factor * (np.eye(len(z))[token] - p)
    return after


def finite_difference(z: np.ndarray, tokens: np.ndarray, factors: np.ndarray) -> float:
    h = 1e-5
    up, down = (stats.entropy(softmax(moved(z, tokens, factors, size))) for size in (h, -h))
    return float(up - down) / (2 * h)


def at(entropy: float, **settings) -> EntropyBudget:
    """A budget that has seen one step of this entropy."""
    budget = EntropyBudget(**settings)
    budget.observe(Tally(1, entropy, entropy**2))
    return budget


# --- the identity -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_the_predicted_change_of_a_token_is_the_derivative_of_entropy(seed):
    rng = np.random.default_rng(seed)
    z, advantage = rng.normal(0, 2, 50), float(rng.normal())
    for token in (np.array([i]) for i in (0, 17, int(z.argmax()), int(z.argmin()))):
        predicted = predict_change(*statistics(z, token), np.array([advantage]))
        assert predicted[0] == pytest.approx(finite_difference(z, token, np.array([advantage])), abs=1e-8)


def test_the_mean_over_a_batch_is_the_derivative_of_the_step_with_weights_too():
    rng = np.random.default_rng(7)
    z, tokens, advantages = rng.normal(0, 1.5, 12), rng.integers(0, 12, 30), rng.normal(size=30)
    weights = rng.random(30)
    change = predict_change(*statistics(z, tokens), advantages)
    assert change.mean() == pytest.approx(finite_difference(z, tokens, advantages), abs=1e-8)
    assert (weights * change).mean() == pytest.approx(finite_difference(z, tokens, weights * advantages), abs=1e-8)


def test_worked_by_hand():
    # p = (0.8, 0.2): H = 0.500402, ln p + H = (0.277259, −1.109035), drift = 0.64·0.277259 − 0.04·1.109035 = 0.133084.
    logp, entropy, drift = np.log([0.8, 0.2, 0.8, 0.2]), np.full(4, 0.500402), np.full(4, 0.133084)
    change = predict_change(logp, entropy, drift, np.array([1.0, 1.0, -1.0, -1.0]))
    # p_a (ln p_a + H) is ±0.221807: the likely token spends when rewarded, the unlikely one when punished.
    np.testing.assert_allclose(change, [-0.088723, 0.354891, 0.088723, -0.354891], atol=2e-6)


def test_a_uniform_policy_has_nothing_to_win_to_first_order():
    tokens = np.arange(5)
    np.testing.assert_allclose(predict_change(*statistics(np.zeros(5), tokens), np.ones(5)), 0, atol=1e-15)


def test_a_token_of_probability_zero_has_no_share_of_its_own():
    # Only the drift is left: −A (0 − 0.1).
    change = predict_change(np.array([-np.inf]), np.array([0.5]), np.array([0.1]), np.array([2.0]))
    assert change[0] == pytest.approx(0.2)


def test_what_lies_under_the_padding_is_never_read():
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, 6, 6)
    logp, entropy, drift = (x.reshape(2, 3) for x in statistics(rng.normal(size=6), tokens))
    adv, mask = rng.normal(size=(2, 3)), np.array([[True, True, False], [True, False, False]])
    clean = predict_change(logp, entropy, drift, adv, mask)
    broken = [
        np.where(mask, x, bad)
        for x, bad in zip((logp, entropy, drift, adv), (np.inf, np.nan, -np.inf, np.nan), strict=True)
    ]
    found = predict_change(*broken, mask)
    np.testing.assert_array_equal(found, clean)
    assert not found[~mask].any()
    np.testing.assert_array_equal(found[mask], predict_change(logp[mask], entropy[mask], drift[mask], adv[mask]))
    assert Account.of(np.where(mask, found, np.nan), mask) == Account.of(clean[mask])
    plan = at(0.1, target=9.0).plan(*broken, mask)  # far below its target: nothing may be spent
    assert plan.weight == 0
    assert (plan.weights_BT[~mask] == 1).all()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ((np.zeros(2), None, np.zeros(2), np.zeros(2)), "needs entropy_BT, which was not given: models.token_stats"),
        ((np.zeros(2), np.zeros(2), None, np.zeros(2)), "needs drift_BT"),
        ((np.zeros(2), np.zeros(3), np.zeros(2), np.zeros(2)), "must share one shape: logp_BT (2,), entropy_BT (3,)"),
        ((np.zeros(2), np.array([0, np.nan]), np.zeros(2), np.zeros(2)), "entropy_BT holds nan or inf"),
        ((np.array([0, np.nan]), np.zeros(2), np.zeros(2), np.zeros(2)), "logp_BT holds nan or inf"),
    ],
)
def test_bad_arrays_are_told_in_one_line(arrays, message):
    with pytest.raises(UsageError, match=re.escape(message)) as caught:
        predict_change(*arrays)
    assert "\n" not in str(caught.value)


# --- the weights of a step --------------------------------------------------------------------------------------------


def a_step(seed: int = 0, n: int = 40) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    z = rng.normal(0, 1.5, 8)
    tokens = rng.choice(8, n, p=softmax(z))
    return *statistics(z, tokens), rng.normal(0.3, 1, n)


def test_a_step_within_its_budget_keeps_weights_of_exactly_one():
    step = a_step()
    account = Account.of(predict_change(*step))
    plan = at(1.5, target=0.01, band=0.005, scale=1e-3).plan(*step)  # far above its target
    np.testing.assert_array_equal(plan.weights_BT, np.ones(40))
    assert (plan.weight, plan.predicted) == (1.0, account.change())
    assert account.weight(floor=account.change()) == 1.0  # exactly at the floor is within it


@pytest.mark.parametrize("share", [0.9, 0.5, 0.1, 0.0])
def test_the_weight_is_the_largest_that_keeps_the_floor(share):
    step = a_step()
    change = predict_change(*step)
    assert change.sum() < 0 < change.max()
    floor = share * change.mean() + (1 - share) * change[change > 0].sum() / 40
    weight = Account.of(change).weight(floor=floor)
    # By brute force: the largest weight on a fine grid whose weighted mean is not below the floor.
    grid = np.linspace(0, 1, 2001)
    best = max(w for w in grid if np.where(change < 0, w, 1.0) @ change / 40 >= floor - 1e-12)
    assert weight == pytest.approx(best, abs=5e-4)
    weights = weigh_spenders(change, weight=weight)
    assert weights @ change / 40 == pytest.approx(floor)
    assert (weights[change >= 0] == 1).all()


def test_no_weight_makes_entropy_out_of_nothing():
    spending, nothing = Account(4, 0.0, -1.0), Account(4, 1.0, 0.0)
    assert spending.weight(floor=0.5) == 0.0
    assert nothing.weight(floor=0.5) == 1.0  # there is no spending token to weigh
    assert nothing.change(weight=0.0) == 0.25


def test_ranks_and_micro_batches_find_the_weight_of_the_whole_step():
    change = predict_change(*a_step(seed=3))
    parts = [Account.of(change[part]) for part in (slice(0, 3), slice(3, 30), slice(30, 40))]
    added, whole = parts[0] + parts[1] + parts[2], Account.of(change)
    assert added.n == whole.n == 40
    assert added.change(weight=0.3) == pytest.approx(whole.change(weight=0.3), rel=1e-12)
    budget = at(1.0, target=1.0, scale=1.0)
    assert 0 < budget.weigh(whole) < 1
    assert budget.weigh(added) == pytest.approx(budget.weigh(whole), rel=1e-12)


def test_a_step_without_tokens_is_left_alone():
    empty = np.zeros((2, 3))
    plan = at(0.1, target=1.0, scale=1.0).plan(empty, empty, empty, empty, np.zeros((2, 3), bool))
    np.testing.assert_array_equal(plan.weights_BT, np.ones((2, 3)))
    assert (plan.weight, plan.predicted) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("entropy", "floor"),
    [
        (1.05, -0.05),  # in the band: half of the surplus of 0.05, over the scale 0.5
        (1.3, -0.5),  # surplus 0.3: half of the band's 0.1 and all of the other 0.2
        (1.0, 0.0),
        (0.96, 0.04),
        (0.7, 0.5),
    ],
)
def test_the_floor_worked_by_hand(entropy, floor):
    assert at(entropy, target=1.0, band=0.1, gain=0.5, scale=0.5).floor() == pytest.approx(floor)


def test_the_last_update_is_reckoned_in():
    # Entropy 1.2 was seen, its update predicted −0.3 at scale 0.5: 1.05 is expected, a surplus of 0.05.
    budget = EntropyBudget(target=1.0, band=0.1, gain=0.5, scale=0.5)
    budget.observe(Tally(10, 12.0, 14.4), predicted=-0.3)
    assert budget.expected() == pytest.approx(1.05)
    assert budget.settings() == {"entropy_budget.floor": pytest.approx(-0.05)}


def test_the_first_step_is_free():
    assert EntropyBudget(target=1.0, scale=0.5).floor() == -math.inf


def test_while_the_scale_is_unknown_a_step_is_free_above_the_target_and_may_not_spend_below_it():
    assert at(1.1, target=1.0).scale is None
    assert (at(1.1, target=1.0).floor(), at(0.9, target=1.0).floor()) == (-math.inf, math.inf)


def test_a_target_is_a_number_a_line_or_any_function():
    line = EntropyBudget(target=1.0, end=0.5, over=10, band=0.05, gain=0.4, scale=1.0)
    assert [line.target(step) for step in (0, 4, 10, 99)] == pytest.approx([1.0, 0.8, 0.5, 0.5])
    assert EntropyBudget(target=lambda step: 1 / (1 + step)).target(3) == 0.25
    for _ in range(4):
        line.observe(Tally(1, 0.83))
    assert line.floor() == pytest.approx(0.4 * (0.8 - 0.83))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gain": 1.5}, "a gain of at most 1, found 1.5"),
        ({"band": 0.0}, "needs band above 0"),
        ({"target": -1.0}, "needs target above 0"),
        ({"scale": 0.0}, "needs scale above 0"),
        ({"end": 0.1}, "'end' and 'over' together"),
        ({"target": lambda step: 1.0, "end": 0.1, "over": 5}, "'end' and 'over' together"),
    ],
)
def test_bad_settings_are_told_in_one_line(settings, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        EntropyBudget(**settings)


# --- control ----------------------------------------------------------------------------------------------------------

RIGHT, ARMS, TARGET, BAND = 5, 10, 1.0, 0.1


class Bandit:
    """Ten arms, five of them right; one pays a little more often, so that plain policy gradient ends in it alone."""

    def __init__(self, seed: int, budget: EntropyBudget | None, size: float = 0.5, seen: float = 0.0) -> None:
        self.rng, self.budget, self.size, self.seen = np.random.default_rng(seed), budget, size, seen
        self.z = np.zeros(ARMS)
        self.pays = np.where(np.arange(ARMS) < RIGHT, 0.8, 0.05)
        self.pays[0] = 0.95

    def step(self) -> tuple[float, float]:
        p = softmax(self.z)
        arms = self.rng.choice(ARMS, 64, p=p)
        rewards = (self.rng.random(64) < self.pays[arms]).astype(float)
        adv = rewards - rewards.mean()
        logp, entropy, drift = statistics(self.z, arms)
        if self.budget is not None:
            plan = self.budget.plan(logp, entropy, drift, adv)
            adv = adv * plan.weights_BT
            self.budget.observe(tally_tokens(entropy + self.rng.normal(0, self.seen)), plan.predicted)
        self.z = moved(self.z, arms, adv, self.size)
        return float(entropy[0]), float(p[:RIGHT].sum())


@pytest.mark.parametrize("seed", range(2))
def test_the_budget_holds_its_target_on_a_bandit_where_plain_policy_gradient_collapses(seed):
    plain = Bandit(seed, None)
    lost, right = np.array([plain.step() for _ in range(400)]).T
    assert lost[-1] < 0.3
    assert right[-1] > 0.95
    held = Bandit(seed, budget := EntropyBudget(target=TARGET, band=BAND))
    kept, right = np.array([held.step() for _ in range(400)]).T
    arrived = int(np.argmax(kept < TARGET + BAND))
    assert 0 < arrived < 200
    assert (np.abs(kept[arrived:] - TARGET) <= BAND).all()
    assert right[-1] > 0.95  # entropy among the right arms, not on the wrong ones
    assert budget.scale == pytest.approx(0.5, rel=0.05)  # one softmax: the scale is the step size
    found = budget.correlation()
    assert found.low is not None
    assert found.low > 0.95


def test_a_noisy_entropy_is_held_too():
    budget = EntropyBudget(target=TARGET, band=BAND)
    bandit = Bandit(0, budget, seen=0.05)
    kept = np.array([bandit.step() for _ in range(600)])[:, 0]
    late = kept[int(np.argmax(kept < TARGET + BAND)) :]
    assert (np.abs(late - TARGET) <= BAND).mean() > 0.95
    assert budget.scale == pytest.approx(0.5, rel=0.5)


def test_noise_alone_does_not_feign_a_relation_of_predicted_and_realised_change():
    rng, budget = np.random.default_rng(0), EntropyBudget(target=1.0, band=0.1, scale=1.0)
    account = Account(100, 5.0, -20.0)
    for _ in range(1000):  # the true entropy never moves
        weight = budget.weigh(account)
        budget.observe(Tally(1, 1 + rng.normal(0, 0.1)), account.change(weight=weight))
    found = budget.correlation().value
    assert found is not None
    assert abs(found) < 0.1  # three standard errors; a floor set by the step's own entropy gives 0.5 and more


def test_only_observing_moves_the_state_and_a_restored_budget_goes_on_bit_for_bit():
    first = Bandit(5, EntropyBudget(target=TARGET, band=BAND))
    for _ in range(60):
        first.step()
    assert first.budget is not None
    before = json.dumps(first.budget.state())
    z = first.z
    first.budget.plan(*statistics(z, np.arange(ARMS)), np.ones(ARMS))
    first.budget.weigh(Account(3, 0.1, -0.2))
    first.budget.settings()
    first.budget.correlation()
    first.budget.observe(Tally())  # no tokens: nothing was measured
    assert json.dumps(first.budget.state()) == before
    second = Bandit(5, EntropyBudget(target=TARGET, band=BAND))
    second.budget.restore(json.loads(before))
    second.z, second.rng = first.z.copy(), np.random.default_rng(9)
    first.rng = np.random.default_rng(9)
    assert [first.step() for _ in range(30)] == [second.step() for _ in range(30)]
    assert first.budget.state() == second.budget.state()


def test_a_change_measured_on_the_same_tokens_is_learnt_at_once_and_only_once():
    budget = EntropyBudget(target=1.0)
    for entropy, predicted in ((5.0, -1.0), (1.0, -2.0), (9.0, -3.0), (2.0, -1.5)):  # means of steps that tell nothing
        budget.observe(Tally(1, entropy), predicted, realised=0.25 * predicted)
    assert budget.scale == pytest.approx(0.25)
    assert budget.expected() == pytest.approx(2.0 - 0.25 * 1.5)
    assert budget.correlation().n == 4


def test_a_broken_state_is_refused():
    budget = EntropyBudget()
    with pytest.raises(
        UsageError, match="a state of entropy_budget has entropy, predicted, realised, step, unpaired; found step"
    ):
        budget.restore({"step": 1})
    with pytest.raises(UsageError, match="has entropy=nan"):
        budget.restore(budget.state() | {"entropy": math.nan})


# --- predicted and realised -------------------------------------------------------------------------------------------


def test_the_scale_is_learnt_under_noise_and_follows_a_change():
    rng = np.random.default_rng(0)
    found = RealisedChange()
    for true, steps in ((0.02, 200), (0.1, 200)):
        for x in rng.normal(0, 1, steps):
            found.learn(predicted=float(x), realised=float(true * x + rng.normal(0, 0.02)))
        assert found.scale == pytest.approx(true, rel=0.35)


def test_one_pair_moves_the_scale_by_a_factor_of_two_at_most_and_never_below_zero():
    found = RealisedChange(scale=1.0)
    found.learn(predicted=1.0, realised=1e9)
    assert found.scale == pytest.approx(2.0)
    for _ in range(50):
        before = found.scale
        found.learn(predicted=1.0, realised=-1e9)
        assert before / 2 <= found.scale <= before * 2
    assert found.scale > 0


def test_pairs_that_do_not_agree_show_no_scale():
    rng = np.random.default_rng(0)
    noise, backwards, single = RealisedChange(), RealisedChange(), RealisedChange()
    for _ in range(20):
        noise.learn(predicted=float(rng.normal()), realised=float(rng.normal()))
        backwards.learn(predicted=-1.0, realised=0.5)
    single.learn(predicted=1e-9, realised=0.1)
    assert noise.scale is backwards.scale is single.scale is None


def test_a_held_entropy_does_not_wear_the_scale_away():
    found, worn = RealisedChange(scale=0.5, resolution=1e-3), RealisedChange(scale=0.5)
    for _ in range(500):
        found.learn(predicted=1e-5, realised=-1e-5)
        worn.learn(predicted=1e-5, realised=-1e-5)
    assert found.scale == pytest.approx(0.5, rel=0.05)
    assert worn.scale < 0.01


def test_a_wrong_guess_of_the_scale_is_corrected_in_few_steps():
    rng = np.random.default_rng(4)
    found = RealisedChange(scale=1e-6)
    for x in rng.normal(0, 1, 20):
        found.learn(predicted=float(x), realised=float(1e-2 * x + rng.normal(0, 1e-3)))
    assert found.scale == pytest.approx(1e-2, rel=0.1)


def test_the_correlation_is_pearson_s_with_fisher_s_interval():
    rng = np.random.default_rng(2)
    x = rng.normal(5, 1, 40)  # far from 0, where sums of squares would cancel
    y = 0.3 * x + rng.normal(0, 0.5, 40) + 1e3
    found = RealisedChange()
    for a, b in zip(x, y, strict=True):
        found.learn(predicted=float(a), realised=float(b))
    expected = stats.pearsonr(x, y)
    low, high = expected.confidence_interval(0.95)
    estimate = found.correlation()
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx((expected.statistic, low, high), rel=1e-6)
    assert estimate.n == 40


def test_too_few_pairs_have_no_correlation_and_say_what_is_missing():
    found = RealisedChange()
    for _ in range(10):
        found.learn(predicted=1.0, realised=1.0)
    assert found.correlation().value is None
    assert "different predicted changes" in (found.correlation().missing or "")
