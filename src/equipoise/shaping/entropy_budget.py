"""The entropy budget: a step may spend no more entropy than a target schedule allows.

A policy-gradient step on one sampled token a, with advantage A, moves the logits by dz/dη = A (1_a − p), and entropy by

    dH/dη = −A · [p_a (ln p_a + H) − Σ_v p_v² (ln p_v + H)]

Most tokens hardly count; some spend entropy (dH < 0: likely tokens that are rewarded, unlikely ones that are punished), some
earn it. The controller gives the spending tokens one weight in [0, 1], the largest with which the step's predicted change
stays above its floor, and leaves all others at 1. A step within its budget is untouched: every weight is exactly 1.

    predict_change   per token, from log-probs, entropies and drift Σp²(ln p + H), all of which `models.token_stats` gives
    Account          sums over tokens; they add over micro-batches and ranks, so every rank finds the same weight
    EntropyBudget    the floor of a step: target schedule, band and gain; learns the scale of predictions

The identity follows from dH = −Cov_p(ln p, dz) (https://arxiv.org/abs/2505.22617) and is exact for one softmax; in a network it
leaves out what tokens do to each other. `EntropyBudget.correlation()` says how much the prediction is worth in a run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from equipoise.base import Estimate, Tally
from equipoise.errors import UsageError, same_shape
from equipoise.shaping.bounds import check_state, clip, positive
from equipoise.shaping.realised_change import RealisedChange


def predict_change(
    logp_BT: np.ndarray,
    entropy_BT: np.ndarray | None,
    drift_BT: np.ndarray | None,
    adv_BT: np.ndarray,
    mask_BT: np.ndarray | None = None,
) -> np.ndarray:
    """dH/dη of each token's own update, −A·[p_a(ln p_a + H) − drift]; exactly 0 where `mask_BT` is False.

    `adv_BT` is the factor of ∇ ln π in the step's objective: the advantage on-policy, ratio times advantage off-policy, 0
    where a clip stops the gradient. Any shape will do, flat tokens too, as long as it is one. float64 out.
    """
    if entropy_BT is None or drift_BT is None:
        name = "entropy_BT" if entropy_BT is None else "drift_BT"
        raise UsageError(f"the entropy budget needs {name}, which was not given: models.token_stats supplies it")
    given = {"logp_BT": logp_BT, "entropy_BT": entropy_BT, "drift_BT": drift_BT, "adv_BT": adv_BT}
    arrays = {name: np.asarray(values, dtype=np.float64) for name, values in given.items()}
    mask = np.ones(arrays["logp_BT"].shape, bool) if mask_BT is None else np.asarray(mask_BT, dtype=bool)
    same_shape(**arrays, mask_BT=mask)
    # What lies under the padding must not be read: a nan times 0 is a nan.
    logp, entropy, drift, adv = (np.where(mask, values, 0.0) for values in arrays.values())
    for name, values in {"entropy_BT": entropy, "drift_BT": drift, "adv_BT": adv}.items():
        if not np.isfinite(values).all():
            raise UsageError(f"{name} holds nan or inf on tokens that count: mask them, or compute it in float32")
    if np.isnan(logp).any() or (logp == inf).any():
        raise UsageError("logp_BT holds nan or inf on tokens that count: mask them, or compute it in float32")
    # p (ln p + H) tends to 0 with p; a finite logarithm makes it so at p = 0.
    own = np.exp(logp) * (np.maximum(logp, -1e300) + entropy)
    change: np.ndarray = np.where(mask, -adv * (own - drift), 0.0)
    return change


@dataclass(frozen=True, slots=True)
class Account:
    """What a step would do to the entropy of its tokens. Accounts add, over micro-batches and ranks."""

    n: int  # tokens that count
    earned: float  # Σ of the predicted changes above 0
    spent: float  # Σ of those below 0: not positive

    @classmethod
    def of(cls, change_BT: np.ndarray, mask_BT: np.ndarray | None = None) -> Account:
        change_BT = np.asarray(change_BT)
        if mask_BT is not None:
            mask_BT = np.asarray(mask_BT, dtype=bool)
            same_shape(change_BT=change_BT, mask_BT=mask_BT)
            change_BT = change_BT[mask_BT]
        earned, spent = np.maximum(change_BT, 0.0).sum(), np.minimum(change_BT, 0.0).sum()
        return cls(int(change_BT.size), float(earned), float(spent))

    def __add__(self, other: Account) -> Account:
        return Account(self.n + other.n, self.earned + other.earned, self.spent + other.spent)

    def change(self, *, weight: float = 1.0) -> float:
        """Predicted mean change per token, dH/dη, where the spending tokens have this weight. 0 without tokens."""
        return (self.earned + weight * self.spent) / self.n if self.n else 0.0

    def weight(self, *, floor: float) -> float:
        """The largest weight of the spending tokens, in [0, 1], with `change(weight=…)` at or above `floor`.

        0 where even that is not enough: no weight makes entropy out of nothing.
        """
        if not self.spent or self.change() >= floor:
            return 1.0
        return clip((floor * self.n - self.earned) / self.spent, 0.0, 1.0)


def weigh_spenders(change_BT: np.ndarray, *, weight: float) -> np.ndarray:
    """`weight` for the tokens that spend entropy, exactly 1 for all others and under the padding."""
    weights: np.ndarray = np.where(np.asarray(change_BT) < 0, weight, 1.0)
    return weights


@dataclass(frozen=True, slots=True)
class Plan:
    """The weights of one step and what they are expected to do."""

    weights_BT: np.ndarray
    weight: float  # of the spending tokens
    predicted: float  # mean change per token with these weights, dH/dη; hand it to `observe`
    floor: float  # what it had to stay above


class EntropyBudget:
    """Follows a target for the mean token entropy by limiting what a step may spend. Ours.

        H     = entropy of the step before + scale · its predicted change
        e     = target(step) − H
        floor = [gain · clip(e, −band, band) + (e − clip(e, −band, band))] / scale

    Above the target a step may spend `gain` of the surplus, below it must earn `gain` of what is missing; outside the band all
    of it, so that noise inside the band is not chased. `scale` translates the prediction into realised change and is
    learnt (`RealisedChange`); while it is unknown a step is free above the target and may not spend below it. It limits
    spending only: entropy that rises above its target by itself is left alone (see `controllers.EntropyBand`).

    H is not the entropy of the step's own tokens: its noise would both set the floor and, with the other sign, stand in the
    change to the next step, and so feign a relation of predicted and realised change.

    A step: `plan` (or, on several ranks, `predict_change`, `Account.of`, the sum of accounts, `weigh`, `weigh_spenders`), the
    update, then `observe(entropies, predicted)`. Only `observe` changes the state.
    """

    def __init__(
        self,
        *,
        target: float | Callable[[int], float] = 0.3,
        band: float = 0.05,
        gain: float = 0.3,
        end: float | None = None,
        over: int = 0,
        scale: float | None = None,
    ) -> None:
        positive("entropy_budget", band=band, gain=gain)
        if gain > 1:
            raise UsageError(f"entropy_budget needs a gain of at most 1, found {gain:g}: more overshoots the target")
        if scale is not None:
            positive("entropy_budget", scale=scale)
        if not callable(target):
            positive("entropy_budget", target=target, **({} if end is None else {"end": end}))
        if (end is not None) != (over > 0) or (end is not None and callable(target)):
            raise UsageError(
                "entropy_budget takes 'end' and 'over' together: a line from target to end over so many steps"
            )
        self.band, self.gain = band, gain
        self._target, self._end, self._over = target, end, over
        self._realised = RealisedChange(scale=scale, resolution=band / 100)
        self._step = 0
        self._entropy: float | None = None
        self._predicted: float | None = None
        self._unpaired: float | None = None  # a prediction whose change is the next step's to show

    def target(self, step: int) -> float:
        if callable(self._target):
            return float(self._target(step))
        if self._end is None:
            return self._target
        return self._target + (self._end - self._target) * min(step / self._over, 1.0)

    def expected(self) -> float | None:
        """The entropy that the next step should find; None before the first was observed."""
        if self._entropy is None or self._predicted is None or self._realised.scale is None:
            return self._entropy
        return self._entropy + self._realised.scale * self._predicted

    def floor(self) -> float:
        """The least predicted mean change per token, dH/dη, that the next step may have. −inf: no limit."""
        entropy, scale = self.expected(), self._realised.scale
        if entropy is None:
            return -inf
        miss = self.target(self._step) - entropy
        if scale is None:
            return inf if miss > 0 else -inf
        inside = clip(miss, -self.band, self.band)
        return (self.gain * inside + (miss - inside)) / scale

    def weigh(self, account: Account) -> float:
        """The weight of the spending tokens of the step with this account."""
        return account.weight(floor=self.floor())

    def plan(
        self,
        logp_BT: np.ndarray,
        entropy_BT: np.ndarray | None,
        drift_BT: np.ndarray | None,
        adv_BT: np.ndarray,
        mask_BT: np.ndarray | None = None,
    ) -> Plan:
        """The weights of a step whose tokens are all here."""
        change_BT = predict_change(logp_BT, entropy_BT, drift_BT, adv_BT, mask_BT)
        account = Account.of(change_BT, mask_BT)
        weight = self.weigh(account)
        return Plan(weigh_spenders(change_BT, weight=weight), weight, account.change(weight=weight), self.floor())

    def observe(self, tally: Tally, predicted: float | None = None, realised: float | None = None) -> None:
        """The entropies of a step's tokens before its update, and the change that was predicted for the update.

        `realised` is the change of mean entropy on those same tokens, where a second forward pass has measured it: far less
        noisy than the difference to the next step, which stands in for it otherwise.
        """
        entropy = tally.mean
        if entropy is None:
            return
        if self._entropy is not None and self._unpaired is not None:
            self._realised.learn(predicted=self._unpaired, realised=entropy - self._entropy)
        if predicted is not None and realised is not None:
            self._realised.learn(predicted=predicted, realised=realised)
        self._unpaired = predicted if realised is None else None
        self._step, self._entropy, self._predicted = self._step + 1, entropy, predicted

    def settings(self) -> dict[str, float]:
        """The floor of the next step, for a loop that weighs tokens itself (`Account.weight`)."""
        return {"entropy_budget.floor": self.floor()}

    @property
    def scale(self) -> float | None:
        """Realised change per predicted change."""
        return self._realised.scale

    def correlation(self) -> Estimate:
        """Of predicted and realised change over the steps so far."""
        return self._realised.correlation()

    def state(self) -> dict[str, Any]:
        return {
            "step": self._step,
            "entropy": self._entropy,
            "predicted": self._predicted,
            "unpaired": self._unpaired,
            "realised": self._realised.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        check_state("entropy_budget", state, self.state())
        self._realised.restore(state["realised"])
        self._step, self._entropy = int(state["step"]), state["entropy"]
        self._predicted, self._unpaired = state["predicted"], state["unpaired"]
