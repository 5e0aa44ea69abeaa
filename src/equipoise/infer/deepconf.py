"""DeepConf: votes of the surest traces; online, traces that grow unsure are stopped (https://arxiv.org/abs/2508.15260)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from equipoise.base import Answer, Choice, Chunk, Completion, Question
from equipoise.infer.ballots import first_with, read_one
from equipoise.infer.checks import check_count, check_share, check_word
from equipoise.infer.metered import GIVEN_UP, Metered
from equipoise.infer.weighted import NEEDS
from equipoise.infer.weights import Missing, confidence_of, note_missing, with_logprobs
from equipoise.measures.trace_confidence import Rule, RunningGroup
from equipoise.measures.votes import Votes, tally_votes

ROUNDING = 1e-12  # four equal weights of five are a share of 0.8, whatever their last digits


@dataclass(frozen=True, slots=True)
class DeepConf:
    """Offline: of n traces those with a confidence in the top `keep` vote, V(a) = Σ_t C_t 1[answer(t) = a].

    The threshold is the percentile 100 (1 − keep) over the traces that hold an answer. Where fewer than `ballots` are left, the
    plain majority of all decides, and the choice says so: a filter that leaves one or two ballots lets them outvote any number.
    """

    n: int = 512
    keep: float = 0.1
    rule: Rule = "tail"  # mean, bottom, lowest or tail: see measures.trace_confidence
    window: int = 2048  # tokens of a group, and of the tail
    k: int = 20  # likeliest tokens that a token's confidence is the mean of
    ballots: int = 3
    at_once: int | None = None  # under way together; None: all that the budget has room for
    missing: Missing = "error"  # what a ballot without log-probs leads to

    def __post_init__(self) -> None:
        check_share("keep", self.keep)
        check_word("rule", self.rule, Rule)
        check_word("fallback", self.missing, Missing)
        for name in ("n", "window", "k", "ballots"):
            check_count(name, getattr(self, name))

    async def __call__(self, question: Question, metered: Metered) -> Choice:
        draw = metered.draw(question, n=self.n, how=with_logprobs(question.how, self.k), at_once=self.at_once)
        drawn = await draw.completions()
        box = BallotBox(question, self.rule, self.window, self.missing)
        box.add(drawn)
        box.threshold = percentile([number for _, number in box.ballots], keep=self.keep)
        stopped_by = "budget" if draw.out_of_budget else "finished"
        return box.choice(metered, drawn, least=self.ballots, stopped_by=stopped_by)


@dataclass(frozen=True, slots=True)
class DeepConfOnline:
    """A warm-up of whole traces sets a threshold s on the confidence of a group; later traces stop where they fall below it.

    s is the percentile 100 (1 − keep) of the warm-up's lowest groups: keep = 0.1 is the paper's DeepConf-low, 0.9 its
    DeepConf-high. A trace is stopped at the first token where the mean of its last `window` tokens is below s, never before
    there are so many; it has no vote, and its tokens were spent. Votes are weighted with the lowest group, and those of a trace
    below s do not count, in the warm-up neither. When the leader's share of them β = V(â)/ΣV is `consensus`, nothing more is
    started and what is under way is cancelled. β is no error bound, so at least `ballots` votes have to be there; where fewer
    are left at the end, the plain majority of all finished traces decides, and the choice says so.
    """

    keep: float = 0.1
    warmup: int = 16
    cap: int = 512  # traces in all
    window: int = 2048
    consensus: float = 0.95
    k: int = 20
    ballots: int = 3
    at_once: int | None = 16
    missing: Missing = "error"

    def __post_init__(self) -> None:
        check_share("keep", self.keep)
        check_share("consensus", self.consensus)
        check_word("fallback", self.missing, Missing)
        for name in ("warmup", "cap", "window", "k", "ballots"):
            check_count(name, getattr(self, name))

    async def __call__(self, question: Question, metered: Metered) -> Choice:
        how = with_logprobs(question.how, self.k)
        box = BallotBox(question, "lowest", self.window, self.missing)
        warmup = metered.draw(question, n=min(self.warmup, self.cap), how=how, at_once=self.at_once)
        drawn = await warmup.completions()
        box.add(drawn)
        box.threshold = percentile([box.confidence(trace) for trace in drawn if _ended(trace)], keep=self.keep)
        out_of_budget, agreed = warmup.out_of_budget, box.agrees(self.consensus, least=self.ballots)
        if self.cap > self.warmup and not agreed:
            draw = metered.draw(question, n=self.cap - self.warmup, how=how, at_once=self.at_once)
            watched: dict[int, TraceWatch] = {}
            async with draw:
                async for chunk in draw:
                    watch = watched.setdefault(chunk.index, TraceWatch(self.window))
                    if watch.falls(chunk, box.threshold):
                        draw.cancel(chunk.index, "confidence")
                    if chunk.finish is None:
                        continue
                    del watched[chunk.index]
                    if not agreed:
                        box.add([draw.done[chunk.index]])
                        agreed = box.agrees(self.consensus, least=self.ballots)
                        if agreed:
                            draw.cancel_rest("consensus")
            drawn += [draw.done[place] for place in sorted(draw.done)]
            out_of_budget |= draw.out_of_budget
        stopped_by = "consensus" if agreed else "budget" if out_of_budget else "finished"
        return box.choice(metered, drawn, least=self.ballots, stopped_by=stopped_by, notes=self._idle(drawn))

    def _idle(self, drawn: Sequence[Completion]) -> tuple[str, ...]:
        """Where the threshold could stop no trace."""
        tokens = [len(trace.token_confidences) for trace in drawn if trace.token_confidences is not None]
        if not tokens and any(trace.trace_confidences for trace in drawn):
            return (
                "confidences of tokens were not recorded: no trace could be stopped early, and all tokens are counted",
            )
        if tokens and max(tokens) < self.window:
            return (
                f"no trace has window={self.window} tokens, the longest {max(tokens)}: none could be stopped early",
            )
        return ()


@dataclass(slots=True)
class BallotBox:
    """Finished traces that hold an answer, with their confidence. Those below the threshold are kept, but do not count."""

    question: Question
    rule: Rule
    window: int
    missing: Missing
    threshold: float | None = None  # None: all count
    traces: list[Completion] = field(default_factory=list)
    ballots: list[tuple[Answer, float | None]] = field(default_factory=list)
    abstained: int = 0
    notes: tuple[str, ...] = ()  # of confidences that are missing: the vote is then a plain one

    def confidence(self, trace: Completion) -> float | None:
        return confidence_of(trace, self.rule, window=self.window)

    def add(self, traces: Sequence[Completion]) -> None:
        for trace in traces:
            answer = read_one(self.question, trace)
            if answer is not None:
                self.traces.append(trace)
                self.ballots.append((answer, self.confidence(trace)))
            elif trace.finish not in GIVEN_UP:
                self.abstained += 1
        answers, found = [answer for answer, _ in self.ballots], [number for _, number in self.ballots]
        self.notes = note_missing(answers, found, missing=self.missing, needs=NEEDS["confidence"])

    def agrees(self, consensus: float, *, least: int) -> bool:
        """The leader's share of the votes that count is `consensus`, and they are `least` or more."""
        counted = self._counted()
        counts = self._tally(counted).counts.values()
        return len(counted) >= least and max(counts) >= (consensus - ROUNDING) * sum(counts)

    def choice(
        self,
        metered: Metered,
        drawn: Sequence[Completion],
        *,
        least: int,
        stopped_by: str,
        notes: Sequence[str] = (),
    ) -> Choice:
        everyone, counted = list(range(len(self.ballots))), self._counted()
        told = list(self.notes)
        weighted = not self.notes
        if len(counted) < min(least, len(everyone)):
            told.append(
                f"{len(counted)} of {len(everyone)} ballots are left above the confidence {self.threshold:.4g}, fewer than "
                f"{least}: counted as a plain vote of all"
            )
            counted, weighted = everyone, False
        votes = self._tally(counted, weighted=weighted)
        return metered.choice(
            votes.winner,
            drawn,
            replace(votes, abstained=self.abstained),
            stopped_by=stopped_by,
            chosen=first_with(votes.winner, [self.ballots[i][0] for i in counted], [self.traces[i] for i in counted]),
            notes=(*told, *notes),
        )

    def _counted(self) -> list[int]:
        if self.notes or self.threshold is None:
            return list(range(len(self.ballots)))
        return [i for i, (_, number) in enumerate(self.ballots) if number is not None and number >= self.threshold]

    def _tally(self, counted: Sequence[int], *, weighted: bool = True) -> Votes:
        answers = [self.ballots[i][0] for i in counted]
        weights = [number for i in counted if (number := self.ballots[i][1]) is not None]
        plain = not weighted or bool(self.notes)
        return tally_votes(answers, None if plain else weights, seed=self.question.seed)


class TraceWatch:
    """Watches one trace under way for the first group below a threshold."""

    def __init__(self, window: int) -> None:
        self._group = RunningGroup(window)

    def falls(self, chunk: Chunk, threshold: float | None) -> bool:
        """Whether a group that ends in this piece is below. A piece of many tokens is looked at token by token."""
        if chunk.restart:
            self._group = RunningGroup(self._group.window)
        groups = [self._group.add(confidence) for confidence in chunk.token_confidences or ()]
        return threshold is not None and any(group is not None and group < threshold for group in groups)


def percentile(confidences: Sequence[float | None], *, keep: float) -> float | None:
    """The threshold that a share `keep` of these confidences reaches; None where there are none."""
    known = [number for number in confidences if number is not None]
    return float(np.percentile(known, 100 * (1 - keep))) if known else None


def _ended(trace: Completion) -> bool:
    """Ended by itself or at its limit; neither given up nor failed."""
    return trace.finish not in (*GIVEN_UP, "error")
