"""When the votes so far are enough: rules of counts alone, looked at after every vote. What abstained is no evidence for any.

Of these only `weigh_leader` bounds an error, however often one looks. The others' thresholds do not: see
`benchmarks/stopping`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from math import exp, log

from scipy.special import betainc, betaln

from equipoise.base import Answer
from equipoise.errors import UsageError

FIRST_SHARE = 0.6  # of alpha, for the answer seen first; each later one has the rest times the same


def count_answers(answers: Sequence[Answer | None]) -> dict[str, int]:
    """Votes by answer, in the order in which the answers were first seen."""
    counts: dict[str, int] = {}
    for answer in answers:
        if answer is not None:
            counts[answer.text] = counts.get(answer.text, 0) + 1
    return counts


def beta_posterior(first: float, second: float) -> float:
    """P(p > ½ | votes) = 1 − I_½(v₁ + 1, v₂ + 1) for the two most common answers, under a flat prior.

    Adaptive-Consistency, https://arxiv.org/abs/2305.11860. It is right for one look at a number of votes chosen before.
    """
    return float(betainc(second + 1, first + 1, 0.5))


def unanimous(answers: Sequence[Answer | None]) -> bool:
    """Every completion gave the same answer; one that gave none is not of the same mind."""
    return len({None if answer is None else answer.text for answer in answers}) == 1 and answers[0] is not None


def agreement(counts: Mapping[str, int]) -> float:
    """The most common answer's share of the votes; 0 where there are none."""
    return max(counts.values()) / sum(counts.values()) if counts else 0.0


def doubling_batches(cap: int, *, first: int = 2) -> Iterator[int]:
    """Batches that double all votes so far: 2, 2, 4, 8, … up to `cap` in all."""
    drawn = 0
    while drawn < cap:
        batch = min(drawn or first, cap - drawn)
        drawn += batch
        yield batch


@lru_cache(maxsize=1 << 16)
def log_e_value(ahead: int, behind: int) -> float:
    """ln E of the evidence that one answer is likelier than another, from the votes that either of them got.

        E(a, b) = 2^{a+b+1} ∫_½^1 θ^a (1 − θ)^b dθ

    The likelihood ratio against a fair coin, averaged over every θ above ½. Where the first is *not* likelier, E is a
    supermartingale: 2θp + 2(1 − θ)(1 − p) ≤ 1 for p ≤ ½ ≤ θ. It then ever reaches c with probability at most 1/c (Ville),
    at whatever time one looks. It grows with a and falls with b; E(a, 0) = (2^{a+1} − 1)/(a + 1).
    """
    n = ahead + behind
    if ahead >= behind:  # 1 − I_½ is then ½ or more
        above_half = float(betainc(behind + 1, ahead + 1, 0.5))
        return (n + 1) * log(2) + float(betaln(ahead + 1, behind + 1)) + log(above_half)
    # It would underflow: the series of the incomplete beta function, E = Σ_i t_i with falling terms of one sign.
    term = total = 1 / (2 * (behind + 1))
    for i in count():
        term *= (n + 2 + i) / (2 * (behind + 2 + i))
        total += term
        if term < 1e-17 * total:
            break
    return log(total)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the votes say for the leader against its nearest challenger, seen or not yet seen."""

    leader: str
    log_e: float
    log_needed: float

    @property
    def enough(self) -> bool:
        return self.log_e >= self.log_needed

    @property
    def reading(self) -> str:
        found, needed = (exp(min(number, 700)) for number in (self.log_e, self.log_needed))
        return f"an e-value of {found:.3g} for {self.leader[:40]!r}, {needed:.3g} certify it"


def log_needed(place: int, *, alpha: float) -> float:
    """ln of the e-value that certifies the answer with this place, from 0, in the order of first sight: see `weigh_leader`."""
    if not 0 < alpha < 1:
        raise UsageError(f"alpha is a probability between 0 and 1, found {alpha}")
    return log_e_value(1, 0) - log(alpha * FIRST_SHARE) - place * log(1 - FIRST_SHARE)


def weigh_leader(counts: Mapping[str, int], *, alpha: float) -> Evidence | None:
    """Whether the leader is certified as the one most likely answer. `counts` in the order of first sight; None: no votes.

    The leader L, with place j in the order in which answers were first seen, is certified when against every other answer k

        E(v_L, v_k) ≥ E(1, 0) / (α w_j),   E(1, 0) = 3/2,   w_j = 0.6 · 0.4^{j−1}

    The nearest challenger decides, since E falls with v_k; an answer not yet seen has v_k = 0.

    For independent samples of one distribution, the probability of *ever* certifying an answer that is not the only mode is at
    most α, for any number of answers, known or not, and any rule of when to look:

    1. Let X_j be the answer that is seen as j-th, at time σ_j, and not the only mode. Then some mode m ≠ X_j has p_m ≥ p_{X_j}.
    2. From σ_j on, with all before it given, E(v_{X_j}, v_m) is a supermartingale (`log_e_value`). At σ_j it is E(1, v_m) ≤ E(1, 0).
    3. By Ville it ever reaches E(1, 0)/(α w_j) with probability at most α w_j, and X_j is certified only if it does.
    4. Over all places: α Σ_j w_j = α. ∎

    A bound of 1/α for every leader would hold for an answer named before the first vote (CITE, https://arxiv.org/abs/2605.05873);
    for one that the votes choose it does not. At two equally likely answers, either may be the one that is certified: with α =
    0.05 and a look after every vote that happens to 5.3 % of questions within 64 votes, 6.8 % within 400, and here to 2.0 % and
    2.6 %. The price: 8 votes instead of 7 where all agree.
    """
    if not counts:
        return None
    order = list(counts)
    leader = max(order, key=lambda text: counts[text])
    challenger = max((votes for text, votes in counts.items() if text != leader), default=0)
    return Evidence(leader, log_e_value(counts[leader], challenger), log_needed(order.index(leader), alpha=alpha))
