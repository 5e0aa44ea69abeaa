"""A plan tried on samples that it has not seen, against equal spending with the same tokens. Axes: Q questions, R orders, K samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from equipoise.base import Estimate
from equipoise.infer.policy import Goal
from equipoise.lab.plan_orders import Ordered, Orders
from equipoise.lab.plan_policy import assign, learn_policy, realised
from equipoise.measures.intervals import mean_of_prompts, paired_difference


@dataclass(frozen=True, slots=True)
class Backtest:
    """Accuracy of the plan and of equal spending at the same tokens; problems are the units, orders are averaged first."""

    plan: Estimate
    uniform: Estimate
    difference: Estimate
    tokens: float  # of all questions, realised
    samples: float  # that equal spending buys a question with them
    repeats: int

    def to_dict(self) -> dict[str, object]:
        return {
            "plan": self.plan.to_dict(),
            "uniform": self.uniform.to_dict(),
            "difference": self.difference.to_dict(),
            "tokens": self.tokens,
            "uniform_samples": self.samples,
            "repeats": self.repeats,
        }


def backtest(ordered: Ordered, *, goal: Goal, pilot: int, budget: float, seed: int) -> Backtest:
    """In every order, half of the questions are planned for with what the other half taught, and the reverse.

    The plan sees a question's pilot and never its verdicts on the rest. Equal spending gets the tokens that the plan really took,
    so that neither can win by having more, and the cap that was best for it on the other half.
    """
    n, repeats = len(ordered.ids), ordered.pilot.right_QRK.shape[1]
    rng = np.random.default_rng(seed)
    plan_QR, uniform_QR, tokens_QR = (np.zeros((n, repeats)) for _ in range(3))
    bought = []
    for order in range(repeats):
        half_Q = rng.permutation(n) % 2 == 0
        for mine_Q in (half_Q, ~half_Q):
            policy = learn_policy(ordered.of(~mine_Q), goal=goal, pilot=pilot)
            test = ordered.of(mine_Q)
            pilot_Q = test.pilot.tokens_QRK[:, order, pilot - 1]
            given = max(budget * mine_Q.mean() - float(pilot_Q.sum()), 0.0)
            state_Q = test.pilot.state_QRK[:, order, pilot - 1]
            options = assign(policy, state_Q, pilot_Q / pilot, budget=given).options
            plan_QR[mine_Q, order], tokens_QR[mine_Q, order] = realised(test, order, options, pilot=pilot)
            spent = float(tokens_QR[mine_Q, order].mean())
            drawn = max(ordered.of(~mine_Q).caps, key=lambda each: uniform_value(each, spent))
            k = samples_for(drawn, spent)
            uniform_QR[mine_Q, order] = spread(next(each for each in test.caps if each.cap == drawn.cap), order, spent)
            bought.append(k)
    plan_Q, uniform_Q = plan_QR.mean(axis=1), uniform_QR.mean(axis=1)
    return Backtest(
        mean_of_prompts(plan_Q, bounds=(0, 1)).named("accuracy", {"arm": "plan"}),
        mean_of_prompts(uniform_Q, bounds=(0, 1)).named("accuracy", {"arm": "equal spending"}),
        paired_difference(plan_Q, uniform_Q).named("difference", {"against": "equal spending"}),
        float(tokens_QR.sum(axis=0).mean()),
        float(np.mean(bought)),
        repeats,
    )


def samples_for(drawn: Orders, tokens: float) -> float:
    """How many samples of each question these tokens a question buy, on the mean over all orders; between two numbers linear."""
    cost_K = np.concatenate([[0.0], drawn.tokens_QRK.mean(axis=(0, 1))])
    return float(np.interp(tokens, cost_K, np.arange(len(cost_K))))


def spread(drawn: Orders, order: int, tokens: float) -> np.ndarray:
    """Right answers of equal spending in one order: k samples for some of the questions and k + 1 for the others, drawn by lot."""
    cost_K = np.concatenate([[0.0], drawn.tokens_QRK[:, order].mean(axis=0)])
    right_QK = np.concatenate([np.zeros((len(drawn.right_QRK), 1)), drawn.right_QRK[:, order]], axis=1)
    k = float(np.interp(tokens, cost_K, np.arange(len(cost_K))))
    low = min(int(k), len(cost_K) - 2)
    return np.asarray((1 - (k - low)) * right_QK[:, low] + (k - low) * right_QK[:, low + 1])


def uniform_value(drawn: Orders, tokens: float) -> float:
    """Mean of equal spending with these tokens a question, over all orders."""
    cost_K = np.concatenate([[0.0], drawn.tokens_QRK.mean(axis=(0, 1))])
    right_K = np.concatenate([[0.0], drawn.right_QRK.mean(axis=(0, 1))])
    return float(np.interp(tokens, cost_K, right_K))
