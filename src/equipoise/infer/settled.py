"""A vote that stops once what is left of it can hardly change the result: an error bound on the vote at the cap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf, log

import numpy as np
from scipy.special import gammaln, logsumexp

from equipoise.base import Answer, Choice, Question
from equipoise.errors import UsageError
from equipoise.infer.adaptive import vote_until
from equipoise.infer.checks import check_count
from equipoise.infer.metered import Metered

FIRST_BET = 2  # votes of the leader: before an answer has come twice, who leads changes too often to bet on


@dataclass(frozen=True, slots=True)
class Settled:
    """Votes until the result of all `cap` votes is settled, with error at most `alpha`: it stands for `majority:n=cap`.

    Over questions, at most a share `alpha` stops with an answer that would not have won, or tied for, the vote over all `cap`
    completions (`Race`). It is no claim about correctness, nor about the model's most likely answer, as `anytime` makes: a close
    race is settled when its votes run out, so this stops earlier. Completions are taken as exchangeable.
    """

    alpha: float = 0.05
    cap: int = 64
    at_once: int = 1  # under way together; those not needed any more are cancelled, and their tokens were spent

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 1:
            raise UsageError(f"alpha={self.alpha}: use a probability between 0 and 1, as 0.05")
        check_count("cap", self.cap)
        check_count("at_once", self.at_once)

    async def __call__(self, question: Question, metered: Metered) -> Choice:
        race, needed = Race(self.cap), -log(self.alpha)

        def enough(answers: Sequence[Answer | None]) -> bool:
            last = answers[-1]
            return race.add(None if last is None else last.text) >= needed

        poll = await vote_until(question, metered, enough, cap=self.cap, at_once=self.at_once)
        return poll.choice(question, metered, stopped_by="certificate")


class Race:
    """Evidence that the leader of the votes so far wins or ties the vote over all `cap` completions.

    For every answer m, seen or not, money is bet against "m wins or ties": whoever leads, L ≠ m, is bet on to get the next vote
    that either of the two gets. If M of all completions, the coming ones included, give L or m, and K of these give L, then
    all orders of the M are equally likely. That L is behind or level means K ≤ ⌊M/2⌋, and the bet is a likelihood ratio against it,
    averaged over the K that lead; a spell of L as leader, from the votes (a₀, b₀) to (a, b), multiplies the money by

        E_M(a, b) / E_M(a₀, b₀),   E_M(a, b) = mean_{K = ⌊M/2⌋+1 … M} P(a, b | K) / P(a, b | ⌊M/2⌋),   P(a, b | K) = C(M−a−b, K−a) / C(M, K)

    M is not known; what counts is the least over all that are possible. W_m is the product over the spells. While m leads, nothing
    is bet against it. The evidence for the leader is min_m W_m, and an answer that neither wins nor ties the whole vote ever
    has evidence of 1/α with probability at most α, at whatever times one looks:

    1. Let m win the whole vote, and take the bets at the true M. In a bet on L the next of the M votes is one for L with
       probability p = (K−a)/(M−a−b), which is at most p₀ = (⌊M/2⌋−a)/(M−a−b). A vote for L multiplies the money by f_L ≥ 1 and one for m by
       f_m ≤ 1, with p₀ f_L + (1−p₀) f_m = 1. So p f_L + (1−p) f_m ≤ 1: W_m is a supermartingale that starts at 1, whoever is bet on.
    2. The least over M is at most that, and an answer other than m has evidence of 1/α only while W_m ≥ 1/α. By Ville this ever
       happens with probability at most α. ∎

    There is one bet for each m, not one for each pair, so nothing is paid for the number of answers. Betting on samples without
    replacement: https://arxiv.org/abs/2006.04347.
    """

    def __init__(self, cap: int) -> None:
        self.cap, self.left = cap, cap
        self.counts: dict[str, int] = {}
        self.leader: str | None = None  # of those with the most votes the one that had them first
        # By the answer that is bet against, None for all not seen yet: ln of the money from the spells that are over, and the
        # votes at which the present one began.
        self._won: dict[str | None, float] = {None: 0.0}
        self._since: dict[str | None, tuple[int, int]] = {}

    def add(self, answer: str | None) -> float:
        """One more vote, or an abstention; ln of the evidence for the leader."""
        self.left -= 1
        if answer is not None:
            self._count(answer)
        if self.leader is None:
            return -inf
        return min(self._money(other) for other in (*self.counts, None) if other != self.leader)

    def _count(self, answer: str) -> None:
        if answer not in self.counts:  # what was bet against all that were not seen was bet against it
            self.counts[answer], self._won[answer] = 0, self._won[None]
            if None in self._since:
                self._since[answer] = self._since[None]
        self.counts[answer] += 1
        if answer != self.leader and self.counts[answer] > self.counts.get(self.leader or "", 0):
            for other, began in self._since.items():
                self._won[other] += self._gain(other, began)
            self._since.clear()
            self.leader = answer
        votes = self.counts[self.leader or answer]
        if votes >= FIRST_BET:
            for other in (*self.counts, None):
                if other != self.leader:
                    self._since.setdefault(other, (votes, self._votes(other)))

    def _votes(self, answer: str | None) -> int:
        return 0 if answer is None else self.counts[answer]

    def _money(self, other: str | None) -> float:
        if self._votes(self.leader) - self._votes(other) > self.left:  # it stays ahead whatever comes
            return inf
        return self._won[other] + (self._gain(other, self._since[other]) if other in self._since else 0.0)

    def _gain(self, other: str | None, began: tuple[int, int]) -> float:
        return spell_gain((self._votes(self.leader), self._votes(other)), began, left=self.left, cap=self.cap)


@lru_cache(maxsize=1 << 18)
def spell_gain(now: tuple[int, int], began: tuple[int, int], *, left: int, cap: int) -> float:
    """min_M ln E_M(now) / E_M(began) over the M that a pair may come to have; inf where the first leads whatever comes."""
    most = min(sum(now) + left, cap)
    least = max(sum(now), 2 * now[0])  # of fewer than 2a votes a are more than half
    if least > most:
        return inf
    span = slice(least, most + 1)
    return float((_log_e(*now, cap)[span] - _log_e(*began, cap)[span]).min())


@lru_cache(maxsize=1 << 12)
def _log_e(ahead: int, behind: int, cap: int) -> np.ndarray:
    """ln E_M(a, b) for M from 0 to `cap`, up to a number for each M that cancels; nan where M is less than 2a or a + b.

    Axes: M, and K.
    """
    both_M = np.arange(max(ahead + behind, 2 * ahead), cap + 1)
    found = np.full(cap + 1, np.nan)
    if not len(both_M):
        return found
    half_M, rest_M, leads_K = both_M // 2, both_M - ahead - behind, np.arange(cap + 1)
    of_all_MK = _log_choose(both_M[:, None], np.minimum(leads_K, both_M[:, None]))
    given_MK = _log_choose(rest_M[:, None], leads_K - ahead) - of_all_MK
    leading_M = logsumexp(np.where(leads_K > half_M[:, None], given_MK, -inf), axis=1)
    found[both_M] = leading_M - _log_choose(rest_M, half_M - ahead)
    return found


def _log_choose(n: np.ndarray, k: np.ndarray) -> np.ndarray:
    """ln C(n, k), −inf outside 0 ≤ k ≤ n."""
    inside = (k >= 0) & (k <= n)
    held = np.where(inside, k, 0)
    table = _log_factorials(int(n.max()).bit_length())
    return np.where(inside, table[n] - table[held] - table[n - held], -inf)


@lru_cache(maxsize=32)
def _log_factorials(bits: int) -> np.ndarray:
    return np.asarray(gammaln(np.arange(2**bits) + 1.0))
