"""Made-up models whose truth is known: a base model, what training did to it, and what long thinking does to it.

Axes: P problems, A answers of a problem (answer 0 is the right one; a problem with fewer than A answers is padded
with probability 0). A model is a table `prob_PA` of how often it gives each answer, so pass@k and the number of
distinct answers follow exactly, without sampling. `synthetic_run` draws rollouts from it.

    base        success rates are Beta(½, ½), apart from problems that the model cannot solve; the wrong answers of a
                problem follow a Zipf law whose length and exponent are its own
    learning    π ∝ base · exp(boost · right): the optimum of reward against KL, https://arxiv.org/abs/2504.07912.
                Mass moves to the right answer where there was any; the wrong answers keep their proportions
    collapse    π ∝ (…)^β, β > 1: every problem is drawn to its own mode, right or wrong, solved or unsolved
                (https://arxiv.org/abs/2509.06941 measures this on unsolved problems)
    inflation   past a problem's best budget, part of the answers is drawn evenly from all of its answers: accuracy
                rises, then falls, while the answers spread (https://arxiv.org/abs/2506.04210)

The constants below set what 1 means on each knob. They come from the cited reports, not from the limits of the diagnosis.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

BUDGETS = (256, 512, 1024, 2048, 4096, 8192, 16384)

BOOST = 1.5  # nats given to the right answer by full learning: odds × 4.5, pass@1 from 0.42 to about 0.57
SHARPEST = 5.0  # β of a full collapse
WANDER = 0.2  # training also moves every answer's logit at random: nats at the end, standard deviation
UNEVEN = 4.0  # shape of the Gamma by which training acts on each problem: standard deviation 1/2 of the mean
OPENNESS = 0.3  # standard deviation over problems of the exponent of their forks, see `synthetic_tokens`
SHORT = 2.0  # nats that the right answer lacks without any thinking
# A severe inflation sends half of the answers astray two octaves past a problem's best budget: the largest budget then
# loses about a quarter of the best accuracy. R1-Distill-Qwen-1.5B lost a fifth on GSM8K (87 to 70 %) and a third on
# AIME24 (27 to 17 %) when made to think for 16k tokens (https://arxiv.org/abs/2506.04210).
ASTRAY = 0.5
OCTAVES = 2.0
# The best budget is about 1k tokens on easy and 8k on hard problems (https://arxiv.org/abs/2604.10739).
EASY, HARD = 1024.0, 8192.0


@dataclass(frozen=True, slots=True)
class World:
    """What is true of a run. The four knobs in [0, 1] are effects: 0 none, 1 severe or full."""

    learning: float = 0.0
    collapse: float = 0.0
    inflation: float = 0.0
    narrowing: float = 0.0  # routine tokens lose entropy, forks keep theirs
    problems: int = 100
    samples: int = 16  # per problem and pass
    passes: int = 5  # over the problems; 0: no training, the rollouts are the base model's
    steps_per_pass: int = 2
    pace: float = 0.3  # share of the run after which training has done 63 % of what it will do
    unsolvable: float = 0.15  # share of problems that the base model never solves
    unreadable: float = 0.02  # share of rollouts without a readable answer
    budgets: tuple[int, ...] = BUDGETS  # thinking budgets at which the final model is tried; empty: none
    budget_samples: int = 8
    continued: bool = False  # a sample's budgets are lengths of one trace; else every budget is sampled anew
    tokens: int = 0  # mean number of tokens with entropies in a training rollout; 0: none
    prompts: bool = False  # of the training rollouts, with the right answers; no texts: the tokens stand for no words

    @property
    def steps(self) -> int:
        return self.passes * self.steps_per_pass


@dataclass(frozen=True, slots=True)
class Problems:
    """A set of problems with the base model's answers, and how each responds to training and to thinking."""

    base_PA: np.ndarray
    wander_PA: np.ndarray
    pull_P: np.ndarray  # how strongly training acts here, mean 1
    optimum_P: np.ndarray  # best thinking budget
    openness_P: np.ndarray  # how much more open its forks are than those of other problems, mean 0
    number_PA: np.ndarray  # the answers themselves, whole numbers


def draw_problems(world: World, *, seed: int) -> Problems:
    """The problems of a world: the same for one seed, whatever the knobs say was done to the model."""
    rng = np.random.default_rng([seed, 0])
    n, most = world.problems, 40
    right_P = np.where(rng.random(n) < world.unsolvable, 0.0, rng.beta(0.5, 0.5, n))
    wrong_P = rng.integers(6, most, n, endpoint=True)
    exponent_P = rng.uniform(0.6, 1.6, n)
    rank_A = np.arange(1, most + 1)
    weight_PA = np.where(rank_A <= wrong_P[:, None], rank_A ** -exponent_P[:, None], 0.0)
    wrong_PA = (1 - right_P)[:, None] * weight_PA / weight_PA.sum(axis=1, keepdims=True)
    base_PA = np.concatenate([right_P[:, None], wrong_PA], axis=1)
    octave_P = np.log2(EASY) * right_P + np.log2(HARD) * (1 - right_P) + rng.normal(0, 0.5, n)
    offset_PA = rng.permuted(np.tile(np.arange(1, most + 1), (n, 1)), axis=1)
    answer_P = rng.integers(100, 1000, n)
    return Problems(
        base_PA,
        rng.normal(size=base_PA.shape),
        rng.gamma(UNEVEN, 1 / UNEVEN, n),
        2**octave_P,
        rng.normal(0, OPENNESS, n),
        np.concatenate([answer_P[:, None], answer_P[:, None] + offset_PA], axis=1),
    )


def progress(world: World, step: int) -> float:
    """How much of the training's effect is there when a step's rollouts are drawn: 0 at the first, 1 at the last."""
    done = step / max(1, world.steps - 1)
    return float(np.expm1(-done / world.pace) / np.expm1(-1 / world.pace))


def sharpness(world: World, problems: Problems, progress: float) -> np.ndarray:
    """β of every problem, (P,)."""
    return np.asarray(1 + (SHARPEST ** (world.collapse * progress) - 1) * problems.pull_P)


def trained(world: World, problems: Problems, progress: float) -> np.ndarray:
    """The model at this point of training, prob_PA."""
    logit_PA = _log(problems.base_PA) + WANDER * progress * problems.wander_PA
    logit_PA[:, 0] += world.learning * BOOST * progress * problems.pull_P
    return _softmax(sharpness(world, problems, progress)[:, None] * logit_PA)


def thinking(world: World, problems: Problems, prob_PA: np.ndarray, budget: int) -> tuple[np.ndarray, np.ndarray]:
    """A model that is made to think for a budget: how it answers while it is on track, prob_PA, and how often it has
    gone astray, (P,). Astray, every answer of the problem is as likely as any other."""
    logit_PA = _log(prob_PA)
    logit_PA[:, 0] -= SHORT * np.exp(-2 * budget / problems.optimum_P)
    past_P = np.log2(budget / problems.optimum_P) / OCTAVES
    return _softmax(logit_PA), world.inflation * ASTRAY * np.clip(past_P, 0, 1)


def astray(problems: Problems) -> np.ndarray:
    """Every answer of a problem alike, prob_PA. A right answer that the base model cannot reach stays out of reach."""
    known_PA = problems.base_PA > 0
    return np.asarray(known_PA / known_PA.sum(axis=1, keepdims=True))


def at_budget(world: World, problems: Problems, prob_PA: np.ndarray, budget: int) -> np.ndarray:
    """How often a model gives each answer at a thinking budget, prob_PA."""
    on_track_PA, astray_P = thinking(world, problems, prob_PA, budget)
    return np.asarray((1 - astray_P)[:, None] * on_track_PA + astray_P[:, None] * astray(problems))


def pass_at(prob_PA: np.ndarray, k: int, *, unreadable: float = 0.0) -> np.ndarray:
    """1 − (1 − p)^k of every problem: the truth that pass@k estimates."""
    return np.asarray(1 - (1 - (1 - unreadable) * prob_PA[:, 0]) ** k)


def distinct_at(prob_PA: np.ndarray, k: int, *, unreadable: float = 0.0) -> np.ndarray:
    """Σ 1 − (1 − p)^k over the answers of every problem: the expected number of distinct answers among k samples."""
    return np.asarray((1 - (1 - (1 - unreadable) * prob_PA) ** k).sum(axis=1))


def _log(prob_PA: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        logit_PA: np.ndarray = np.log(prob_PA)
    return logit_PA


def _softmax(logit_PA: np.ndarray) -> np.ndarray:
    weight_PA = np.exp(logit_PA - logit_PA.max(axis=1, keepdims=True))
    return np.asarray(weight_PA / weight_PA.sum(axis=1, keepdims=True))
