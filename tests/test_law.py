"""The entropy law on curves made from it, on curves it must refuse, and on two real runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from scipy import linalg, optimize, stats

from equipoise.errors import UsageError
from equipoise.measures import autocorrelated
from equipoise.measures.autocorrelated import regress
from equipoise.measures.law import SHARES, LawFit, fit_law, forecast
from equipoise.measures.rivals import fit_saturating
from equipoise.measures.table import measure

REAL = Path(__file__).parent / "data" / "rl_curves"


def ar1(rng: np.random.Generator, n: int, rho: float) -> np.ndarray:
    noise = [rng.standard_normal()]
    for _ in range(n - 1):
        noise.append(rho * noise[-1] + (1 - rho**2) ** 0.5 * rng.standard_normal())
    return np.asarray(noise)


def curve(seed: int = 0, *, steps: int = 120, a: float = 0.5, b: float = 1.1, noise: float = 0.02) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    entropy = 0.1 + 0.9 * np.exp(-np.arange(steps) / steps / 0.25) + 0.01 * ar1(rng, steps, 0.3)
    reward = b - a * np.exp(entropy) + noise * ar1(rng, steps, 0.8)
    return pd.DataFrame({"step": np.arange(steps), "entropy": entropy, "reward": reward})


def fit(table: pd.DataFrame, **settings: object) -> LawFit:
    return fit_law(table["step"], table["entropy"], table["reward"], **settings)  # type: ignore[arg-type]


def test_recovers_an_exact_law() -> None:
    found = fit(curve(noise=0.0))
    assert (found.state, found.reason) == ("fit", "")
    assert (found.a.value, found.b.value, found.ceiling.value) == pytest.approx((0.5, 1.1, 0.6))
    assert (found.r2, found.n, found.dropped) == (pytest.approx(1.0), 120, 0)
    for past in found.backtest:
        assert past.error == pytest.approx(0.0, abs=1e-9)


def test_recovers_a_noisy_law_inside_its_intervals() -> None:
    found = fit(curve(1))
    assert found.state == "fit"
    for interval, truth in ((found.a, 0.5), (found.b, 1.1), (found.ceiling, 0.6)):
        assert interval.low < truth < interval.high
        assert interval.low <= interval.value <= interval.high
    assert 0.5 < found.autocorrelation < 1
    assert found.r2 > found.r2_line


def test_the_values_are_least_squares() -> None:
    table = curve(2)
    slope, constant = np.polyfit(np.exp(table["entropy"]), table["reward"], 1)
    found = fit(table)
    assert (found.a.value, found.b.value) == pytest.approx((-slope, constant))
    assert found.r2 == pytest.approx(np.corrcoef(np.exp(table["entropy"]), table["reward"])[0, 1] ** 2)
    assert found.r2_line == pytest.approx(np.corrcoef(table["entropy"], table["reward"])[0, 1] ** 2)


def test_saturating_curve_is_found() -> None:
    step = np.arange(3, 203.0, 2)
    found = fit_saturating(step, 0.7 - 0.5 * np.exp(-(step - 3) / 35))
    assert found.r2 == pytest.approx(1.0)
    assert (found.parameters["c"], found.parameters["d"], found.parameters["tau"]) == pytest.approx(
        (0.7, 0.5, 35), rel=1e-3
    )
    assert found.predict(np.asarray([1003.0]))[0] == pytest.approx(0.7, abs=1e-3)


def test_order_of_rows_does_not_matter_and_missing_ones_are_counted() -> None:
    table = curve(3)
    holes = pd.concat(
        [table, pd.DataFrame({"step": [500, None, 501], "entropy": [None, 0.3, 0.2], "reward": [0.5, 0.5, np.inf]})]
    )
    found = fit(holes.sample(frac=1, random_state=0))
    assert (found.n, found.dropped) == (120, 3)
    assert found.a == fit(table).a


def test_more_noise_in_time_means_a_wider_interval() -> None:
    rng = np.random.default_rng(4)
    x = np.column_stack([np.linspace(0, 1, 100), np.ones(100)])
    widths = []
    for rho in (0.0, 0.8):
        found = regress(x, x @ [1.0, 2.0] + ar1(rng, 100, rho)).interval(np.asarray([1.0, 0.0]))
        widths.append(found.high - found.low)
    assert widths[1] > 2 * widths[0]


def test_independent_errors_give_ordinary_least_squares() -> None:
    rng = np.random.default_rng(5)
    x = np.column_stack([np.linspace(0, 1, 4000), np.ones(4000)])
    y = x @ [1.0, 2.0] + rng.standard_normal(4000)
    ours, theirs = regress(x, y), sm.OLS(y, x).fit()
    for k, contrast in enumerate(np.eye(2)):
        found = ours.interval(contrast)
        assert (found.low, found.high) == pytest.approx(theirs.conf_int()[k], abs=0.1 * theirs.bse[k])
    later = ours.forecast(np.asarray([[1.1, 1.0]]), after=3)
    expected = theirs.get_prediction(np.asarray([[1.1, 1.0]])).conf_int(obs=True)[0]
    assert (later.low, later.high) == pytest.approx(expected, abs=0.03)


def dense_half(x: np.ndarray, y: np.ndarray, reach: np.ndarray) -> float:
    """The same interval with whole matrices: V by its definition, the restricted likelihood from a basis of the residual space."""
    rho_G = autocorrelated._RHO_G
    basis = linalg.null_space(x.T)
    seen = basis.T @ y
    degrees = len(seen)
    log_G, scale_G = [], []
    for rho in rho_G:
        v = rho ** np.abs(np.subtract.outer(np.arange(len(reach)), np.arange(len(reach)))) / (1 - rho**2)
        inner = basis.T @ v[: len(y), : len(y)] @ basis
        squares = seen @ np.linalg.solve(inner, seen)
        log_G.append(-(np.linalg.slogdet(inner)[1] + degrees * np.log(squares)) / 2)
        scale_G.append(np.sqrt(squares / degrees * (reach @ v @ reach)))
    weight_G = np.exp(np.asarray(log_G) - max(log_G)) * np.gradient(rho_G)
    weight_G /= weight_G.sum()

    def short(h: float) -> float:
        return (
            float(sum(w * (1 - 2 * stats.t.sf(h / s, degrees)) for w, s in zip(weight_G, scale_G, strict=True))) - 0.95
        )

    return float(optimize.brentq(short, 0, 100 * max(scale_G)))


def test_interval_and_forecast_equal_whole_matrices() -> None:
    rng = np.random.default_rng(6)
    x = np.column_stack([np.exp(-np.arange(30) / 8), rng.standard_normal(30), np.ones(30)])
    y = x @ [1.0, 0.2, 0.5] + 0.1 * ar1(rng, 30, 0.8)
    ours, contrast = regress(x, y), np.asarray([1.0, 0.0, 1.0])
    reach = x @ np.linalg.inv(x.T @ x)
    found = ours.interval(contrast)
    assert (found.high - found.low) / 2 == pytest.approx(dense_half(x, y, reach @ contrast), rel=1e-6)
    rows = np.asarray([[0.1, 0.0, 1.0], [0.05, 0.0, 1.0]])
    later = ours.forecast(rows, after=4)
    errors = np.concatenate([reach @ rows.mean(axis=0), np.zeros(4), [-0.5, -0.5]])
    assert (later.high - later.low) / 2 == pytest.approx(dense_half(x, y, errors), rel=1e-6)


def test_refuses_a_reward_that_rises_with_entropy() -> None:
    found = fit(curve(7, a=-0.5))
    assert found.state == "no fit"
    assert "a ≤ 0" in found.reason


def test_refuses_an_entropy_that_hardly_moves() -> None:
    rng = np.random.default_rng(8)
    table = curve(8)
    table["entropy"] = 0.3 + 0.01 * rng.standard_normal(len(table))
    found = fit(table)
    assert found.state == "no fit"
    assert "hardly moves" in found.reason
    table["entropy"] = 0.3
    assert (fit(table).reason, fit(table).a) == ("the entropy does not move", None)


def test_refuses_a_short_run_and_a_wide_ceiling() -> None:
    short = fit(curve(9, steps=23))
    assert short.state == "no fit"
    assert "23 steps, it needs 24" in short.reason
    assert (short.a.low, short.a.high) == (None, None)
    half = pd.read_csv(REAL / "ppo_qwen2.5-0.5b_gsm8k.csv").head(30)
    wide = fit_law(half["step"], half["actor/entropy_loss"], half["critic/score/mean"])
    assert wide.ceiling.high - wide.ceiling.low > np.ptp(half["critic/score/mean"])
    assert wide.state == "no fit"
    assert wide.reason.startswith("the interval of the ceiling is wider")


@pytest.mark.parametrize("rows", [0, 1, 3, 5])
def test_almost_no_rows(rows: int) -> None:
    found = fit(curve(10).head(rows))
    assert (found.state, found.n) == ("no fit", rows)
    assert len(found.backtest) == (len(SHARES) if rows else 0)


def test_refuses_to_mix_provenances() -> None:
    exact = {"estimator": "exact, full softmax", "temperature": 1.0}
    sampled = {"estimator": "minus log-prob of the samples", "temperature": 1.0}
    with pytest.raises(UsageError) as refused:
        fit(curve(), provenances=[exact, dict(exact), sampled])
    assert "exact, full softmax" in str(refused.value)
    assert "minus log-prob of the samples" in str(refused.value)
    assert "\n" not in str(refused.value)
    with pytest.raises(UsageError, match="unknown"):
        fit(curve(), provenances=[exact, None])
    assert fit(curve(), provenances=[exact, dict(exact)]).state == "fit"


def test_refuses_what_is_no_entropy_per_token() -> None:
    table = curve()
    with pytest.raises(UsageError, match="sign"):
        fit(table.assign(entropy=-table["entropy"]))
    with pytest.raises(UsageError, match="divide"):
        fit(table.assign(entropy=300 * table["entropy"]))
    with pytest.raises(UsageError, match="one shape"):
        fit_law([1, 2, 3], [0.1, 0.2], [0, 0])


def test_a_forecast_sees_only_the_first_part() -> None:
    table = curve(11)
    changed = table.copy()
    changed.loc[60:107, "reward"] = 0.0
    both = [forecast(t["step"], t["entropy"], t["reward"], share=0.5) for t in (table, changed)]
    assert both[0] == both[1]
    assert both[0].n == 60
    assert both[0].truth == pytest.approx(table["reward"].tail(12).mean())


def test_the_ppo_run_on_gsm8k() -> None:
    table = pd.read_csv(REAL / "ppo_qwen2.5-0.5b_gsm8k.csv")
    found = fit_law(table["step"], table["actor/entropy_loss"], table["critic/score/mean"])
    assert (found.n, found.dropped, found.state) == (61, 0, "fit")
    assert (found.r2, found.r2_line) == (pytest.approx(0.946, abs=5e-4), pytest.approx(0.943, abs=5e-4))
    fifth, half = found.backtest[0], found.backtest[3]
    assert fifth.state == "no fit"
    # Independent arithmetic: polyfit on the first rows, read off at the mean exp(H) of the last six.
    x, reward = np.exp(table["actor/entropy_loss"]), table["critic/score/mean"]
    for past, rows in ((fifth, 12), (half, 30)):
        expected = np.polyval(np.polyfit(x[:rows], reward[:rows], 1), x.tail(6).mean())
        assert past.at_final_entropy.value == pytest.approx(expected)
    assert fifth.at_final_entropy.value == pytest.approx(-0.03, abs=0.005)
    assert half.at_final_entropy.value == pytest.approx(0.60, abs=0.005)
    assert half.truth == pytest.approx(0.56, abs=0.005)
    assert half.at_final_entropy.low < half.truth < half.at_final_entropy.high


def test_the_grpo_run_on_countdown_is_no_fit() -> None:
    table = pd.read_csv(REAL / "grpo_trl_qwen3-0.6b_countdown.csv")
    found = fit_law(table["step"], table["entropy"], table["accuracy"])
    assert found.state == "no fit"
    assert found.r2 == pytest.approx(0.10, abs=0.005)
    assert "R² is 0.10" in found.reason


def test_measured_from_a_log() -> None:
    fitted = {
        (number.name, number.at.get("share"), number.at.get("model")): number
        for number in measure(REAL / "ppo_qwen2.5-0.5b_gsm8k.csv", "law")["law"]
    }
    assert fitted["law_ceiling", None, None].value == pytest.approx(0.866, abs=5e-4)
    assert "exact, full softmax" in fitted["law_ceiling", None, None].how
    assert fitted["law_r2", None, "line in H"].value == pytest.approx(0.943, abs=5e-4)
    assert fitted["law_forecast", 0.5, None].at["truth"] == pytest.approx(0.5627, abs=1e-4)
    refused = measure(REAL / "grpo_trl_qwen3-0.6b_countdown.csv", "law")["law"]
    assert [number.value for number in refused if number.name == "law_ceiling"] == [None]
    assert all("R² is" in (number.missing or "") for number in refused if number.name in ("law_a", "law_b"))


def test_coverage_smoke() -> None:
    """30 simulations; 92 to 98 % over 1,000 is counted in benchmarks/coverage."""
    from benchmarks.coverage.run import simulate

    found = simulate("law", "decay, ρ .8", 60, 1, 0, 30)
    for name in ("a", "b", "ceiling"):
        low, high, truth = np.asarray(found[name]).T
        assert ((low <= truth) & (truth <= high)).mean() >= 0.8
