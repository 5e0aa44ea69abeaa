"""Simulated runs with a known truth. Axes: P prompts, G samples per prompt, A answers, S steps.

Success rates are Beta(.5, .5), as of a model that mostly can or cannot: pass@1 is 0.5, pass@64 0.93.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from scipy import signal, special

WRONG = 20  # answers that a wrong completion can give
POPULATION = 300_000  # prompts behind a truth that has no closed form


def success_rates(rng: np.random.Generator, prompts: int) -> np.ndarray:
    return np.clip(rng.beta(0.5, 0.5, prompts), 1e-12, 1 - 1e-12)


def shifted_rates(rng: np.random.Generator, rate_P: np.ndarray, *, shift: float, noise: float) -> np.ndarray:
    """Another policy on the same prompts: its log-odds are moved by `shift` and scattered by `noise`."""
    return special.expit(special.logit(rate_P) + shift + noise * rng.standard_normal(len(rate_P)))


@cache
def true_pass_at_k(k: int, *, shift: float = 0.0, noise: float = 0.0) -> float:
    """E[1 − (1 − p)^k] over prompts, by quadrature: p = sin²θ has the law Beta(.5, .5) for θ uniform on (0, π/2)."""
    theta = (np.arange(20_000) + 0.5) / 20_000 * np.pi / 2
    nodes, weights = np.polynomial.hermite_e.hermegauss(41)
    logit = 2 * np.log(np.tan(theta))
    missed = [np.mean(special.expit(-(logit + shift + noise * z)) ** k) for z in nodes]
    return 1 - float(np.dot(weights / weights.sum(), missed))


def pass_at_k(correct_P: np.ndarray, samples: int, k: int) -> np.ndarray:
    """1 − C(n − c, k) / C(n, k), as a product: the next of k draws is wrong too."""
    missed = np.ones(len(correct_P))
    for i in range(k):
        missed *= np.maximum(samples - correct_P - i, 0) / (samples - i)
    return 1 - missed


def answer_rates(rng: np.random.Generator, prompts: int) -> np.ndarray:
    """(P, 1 + WRONG) probabilities of each answer, the right one first; wrong ones are Dirichlet around Zipf's law."""
    right_P = success_rates(rng, prompts)
    zipf = 1 / np.arange(1, WRONG + 1)
    wrong_PA = rng.gamma(6 * zipf / zipf.sum(), size=(prompts, WRONG)) + 1e-300
    wrong_PA *= ((1 - right_P) / wrong_PA.sum(axis=1))[:, None]
    rates_PA = np.column_stack([right_P, wrong_PA])
    return sum_to_one(rates_PA)


def sum_to_one(rates_PA: np.ndarray) -> np.ndarray:
    return np.asarray(rates_PA / rates_PA.sum(axis=1, keepdims=True))


def sharpened(rates_PA: np.ndarray, power: float) -> np.ndarray:
    """The same answers at a lower temperature."""
    return sum_to_one(rates_PA**power)


def distinct_answers(rng: np.random.Generator, rates_PA: np.ndarray, samples: int) -> np.ndarray:
    return np.asarray((rng.multinomial(samples, rates_PA) > 0).sum(axis=1), dtype=float)


@cache
def true_distinct(samples: int, *, power: float = 1.0) -> float:
    rates_PA = sharpened(answer_rates(np.random.default_rng(1), POPULATION), power)
    return float((1 - (1 - rates_PA) ** samples).sum(axis=1).mean())


def token_sums(
    rng: np.random.Generator, prompts: int, samples: int, *, between: float, within: float, cap: float
) -> tuple[np.ndarray, np.ndarray]:
    """(P, G) summed entropy and tokens: log-normal lengths cut at `cap`; long prompts have a higher entropy per token."""
    prompt_P1, sample_PG = rng.standard_normal((prompts, 1)), rng.standard_normal((prompts, samples))
    tokens_PG = np.minimum(np.ceil(np.exp(6.5 + between * prompt_P1 + within * sample_PG)), cap)
    scatter_PG = 0.4 * rng.standard_normal((prompts, 1)) + 0.3 * rng.standard_normal((prompts, samples))
    entropy_PG = 0.3 * np.exp(scatter_PG + 0.2 * prompt_P1 + 0.1 * sample_PG)
    return entropy_PG * tokens_PG, tokens_PG


@cache
def true_token_entropy(*, between: float, within: float, cap: float) -> float:
    sums, tokens = token_sums(np.random.default_rng(2), POPULATION, 8, between=between, within=within, cap=cap)
    return float(sums.sum() / tokens.sum())


def stated_confidence(rng: np.random.Generator, prompts: int, samples: int) -> tuple[np.ndarray, np.ndarray]:
    """(P, G) confidence and correctness: the model half knows its prompts, and a little whether this sample is right."""
    rate_P1 = success_rates(rng, prompts)[:, None]
    right_PG = rng.random((prompts, samples)) < rate_P1
    scatter_PG = 0.7 * rng.standard_normal((prompts, 1)) + 0.7 * rng.standard_normal((prompts, samples))
    return special.expit(0.5 + 0.5 * special.logit(rate_P1) + 0.5 * right_PG + scatter_PG), right_PG


@cache
def true_auroc() -> float:
    confidence, right = stated_confidence(np.random.default_rng(3), POPULATION, 8)
    rank = np.empty(confidence.size)
    rank[np.argsort(confidence, axis=None)] = np.arange(1, confidence.size + 1)
    hits = float(right.sum())
    return (float(rank[right.ravel()].sum()) - hits * (hits + 1) / 2) / (hits * (confidence.size - hits))


def autoregressive(rng: np.random.Generator, steps: int, rho: float) -> np.ndarray:
    """AR(1) noise of unit variance, from its stationary law."""
    noise = rng.standard_normal(steps)
    noise[1:] *= (1 - rho**2) ** 0.5
    return signal.lfilter([1.0], [1.0, -rho], noise)


SHAPES = {
    "decay": lambda t: 0.1 + 0.9 * np.exp(-t / 0.25),
    "plateau": lambda t: 0.17 + 0.3 / (1 + np.exp((t - 0.5) / 0.1)),  # as the PPO curve on GSM8K: flat, fall, flat
}


def law_curve(
    rng: np.random.Generator, steps: int, *, shape: str, a: float, b: float, rho: float, batch_noise: float
) -> tuple[np.ndarray, np.ndarray]:
    """Entropy as logged and reward. The law holds for the entropy; `batch_noise` is what the log adds to it."""
    entropy_S = SHAPES[shape]((np.arange(steps) + 0.5) / steps)
    entropy_S = entropy_S + 0.01 * autoregressive(rng, steps, 0.5)
    reward_S = b - a * np.exp(entropy_S) + 0.03 * autoregressive(rng, steps, rho)
    return entropy_S + batch_noise * rng.standard_normal(steps), reward_S
