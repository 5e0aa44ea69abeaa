"""MARS: traces side by side are stopped when no change of mind that is to be expected could change their vote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from equipoise.base import Choice, Question
from equipoise.errors import UsageError
from equipoise.infer.checks import check_count
from equipoise.infer.metered import Metered
from equipoise.infer.parallel_probe import settle
from equipoise.infer.switching import Said, SwitchModel, choose_gamma, fit_switches, safe_leader, switch_features
from equipoise.infer.trials import Trace, Trials
from equipoise.measures.votes import tally_votes


@dataclass(frozen=True, slots=True)
class MARS:
    """`warmup` traces run to their ends and teach how likely a trial answer is to change; the rest stop when the vote is safe.

    https://arxiv.org/abs/2606.12935 and its released code: the rule is `switching.safe_leader`, looked at every `every` tokens. At
    the first look the leader must also be the warm-up's answer. Here the warm-up traces vote too, since they were paid for;
    `every` is ours.
    """

    n: int = 512
    warmup: int = 16
    every: int = 512
    delta: float | None = None  # a bound on chance switches besides; None: as released, without
    probe_tokens: int = 20
    start: str = "<think>"
    end: str = "</think>"
    cue: str | None = None

    def __post_init__(self) -> None:
        for name in ("n", "warmup", "every", "probe_tokens"):
            check_count(name, getattr(self, name))
        if self.delta is not None and not 0 < self.delta < 1:
            raise UsageError(f"delta is a probability between 0 and 1, or None, found {self.delta}")

    async def __call__(self, question: Question, metered: Metered) -> Choice:
        trials = Trials.of(self, question, metered)
        warm = await trials.begin(min(self.warmup, self.n))
        while any(trace.running for trace in warm) and not trials.over:
            await trials.try_out(warm)
            if not trials.over:
                await trials.go_on(warm)
        if trials.over or self.n <= self.warmup:
            return settle(trials, stopped_by="")
        learned = Learned.of(question, warm, every=self.every, delta=self.delta)
        rest = await trials.begin(self.n - self.warmup)
        stopped, look = False, 0
        while any(trace.running for trace in rest) and not trials.over:
            await trials.try_out(rest)
            leader = learned.leader(question, trials.traces)
            stopped = leader is not None and (look > 0 or leader == learned.reference)
            if stopped:
                break
            look += 1
            if not trials.over:
                await trials.go_on(rest)
        return settle(trials, stopped_by="safe_margin" if stopped else "")


@dataclass(frozen=True, slots=True)
class Learned:
    """What the warm-up traces have taught."""

    model: SwitchModel | None  # None: none of them was ever asked, so nothing is known of switches
    gamma: float
    reference: str | None  # the warm-up's own vote
    every: int
    delta: float | None

    @classmethod
    def of(cls, question: Question, warm: Sequence[Trace], *, every: int, delta: float | None) -> Learned:
        ends = [trace.answer(question) for trace in warm]
        winner = tally_votes(ends).winner
        reference = None if winner is None else winner.text
        final_N: list[Said] = [None if end is None else end.text for end in ends]
        features = [_features(trace, every) for trace in warm]
        if not any(len(rows) for rows in features):
            return cls(None, 1.0, reference, every, delta)
        switched = [said != end for trace, end in zip(warm, final_N, strict=True) for said in _said(trace)]
        model = fit_switches(np.concatenate(features), np.array(switched, dtype=float))
        chances = [model.chances(rows) if len(rows) else np.empty(0) for rows in features]

        def stop_with(gamma: float) -> str | None:
            for c in range(max(len(rows) for rows in features)):
                now = [_said(t)[c] if c < len(q) else end for t, q, end in zip(warm, chances, final_N, strict=True)]
                q_N = [float(q[c]) if c < len(q) else 0.0 for q in chances]
                found = safe_leader(now, q_N, gamma=gamma, delta=delta)
                if found is not None:
                    return found
            return None

        return cls(model, choose_gamma(stop_with, reference), reference, every, delta)

    def leader(self, question: Question, traces: Sequence[Trace]) -> str | None:
        said = [None if (answer := trace.answer(question)) is None else answer.text for trace in traces]
        return safe_leader(said, [self._chance(trace) for trace in traces], gamma=self.gamma, delta=self.delta)

    def _chance(self, trace: Trace) -> float:
        """Of a change of mind: 0 where it is finished, 1 where nothing is known of it."""
        if not trace.running:
            return 0.0
        rows = _features(trace, self.every)
        return float(self.model.chances(rows[-1:])[0]) if self.model is not None and len(rows) else 1.0


def _said(trace: Trace) -> list[Said]:
    return [None if trial.answer is None else trial.answer.text for trial in trace.trials]


def _features(trace: Trace, every: int) -> np.ndarray:
    return switch_features(_said(trace), [trial.confidence for trial in trace.trials], every=every)
