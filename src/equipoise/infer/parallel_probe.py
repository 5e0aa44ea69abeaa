"""Traces side by side that are probed together: stop when their majority stays, drop those that stay away from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from equipoise.base import Answer, Choice, Question
from equipoise.infer.ballots import first_with
from equipoise.infer.checks import check_count
from equipoise.infer.metered import Metered
from equipoise.infer.trials import Trials
from equipoise.measures.votes import tally_votes


@dataclass(frozen=True, slots=True)
class ParallelProbe:
    """n traces, a trial answer of each every so many tokens; stop when the majority was the same at `stable` probes in a row.

    After `warmup` probes a trace that disagrees with the majority at `patience` probes in a row is dropped. Parallel-Probe,
    https://arxiv.org/abs/2602.03845, with its thresholds; n and `every` are ours. No answer is no disagreement.
    """

    n: int = 16
    every: int = 512
    stable: int = 3
    warmup: int = 4
    patience: int = 2
    probe_tokens: int = 20
    start: str = "<think>"
    end: str = "</think>"
    cue: str | None = None

    def __post_init__(self) -> None:
        for name in ("n", "every", "stable", "patience", "probe_tokens"):
            check_count(name, getattr(self, name))
        check_count("warmup", self.warmup, least=0)

    async def __call__(self, question: Question, metered: Metered) -> Choice:
        trials = Trials.of(self, question, metered)
        await trials.begin(self.n)
        watch, stopped = Watch(self.stable, self.warmup, self.patience), False
        while any(trace.running for trace in trials.traces) and not trials.over:
            await trials.try_out(trials.traces)
            stopped = watch.look([None if t.pruned else t.answer(question) for t in trials.traces])
            if stopped:
                break
            for trace, dropped in zip(trials.traces, watch.dropped, strict=True):
                trace.pruned = trace.pruned or (dropped and trace.running)
            if not trials.over:
                await trials.go_on(trials.traces)
        return settle(trials, stopped_by="consensus" if stopped else "")


@dataclass(slots=True)
class Watch:
    """The majority over the probes, and how long each trace has been against it."""

    stable: int
    warmup: int
    patience: int
    leader: str | None = None
    same: int = 0  # probes in a row with this leader
    probes: int = 0
    away: list[int] = field(default_factory=list)  # probes in a row that a trace disagreed
    dropped: list[bool] = field(default_factory=list)

    def look(self, answers: Sequence[Answer | None]) -> bool:
        """One probe of all traces, None for one that is not there any more: whether to stop."""
        self.away = self.away or [0] * len(answers)
        votes = tally_votes(answers)
        leader = None if votes.winner is None else votes.winner.text
        self.same = self.same + 1 if leader is not None and leader == self.leader else 1
        self.leader = leader
        self.probes += 1
        if self.probes > self.warmup:
            against = [leader is not None and a is not None and a.text != leader for a in answers]
            self.away = [so_far + 1 if now else 0 for so_far, now in zip(self.away, against, strict=True)]
        self.dropped = [away >= self.patience for away in self.away]
        return leader is not None and self.same >= self.stable and self.probes > self.warmup


def settle(trials: Trials, *, stopped_by: str) -> Choice:
    """A vote of what the traces say now, those dropped left out."""
    question, metered = trials.question, trials.stepping.metered
    said = [None if trace.pruned else trace.answer(question) for trace in trials.traces]
    drawn = [trace.completion(question) for trace in trials.traces]
    votes = tally_votes(said, seed=question.seed)
    pruned = sum(trace.pruned for trace in trials.traces)
    return metered.choice(
        votes.winner,
        drawn,
        votes,
        stopped_by=stopped_by or ("budget" if trials.stepping.out_of_budget else "finished"),
        chosen=first_with(votes.winner, said, drawn),
        notes=(f"{pruned} of {len(drawn)} traces were dropped: they stayed away from the majority",) if pruned else (),
    )
