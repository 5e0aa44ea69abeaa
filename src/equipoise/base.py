"""The nouns that pass between rooms. Frozen; a field that was not measured is `None`, never 0 or ''."""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from html import escape
from math import isfinite
from typing import Any, Literal, Protocol

from equipoise.errors import UsageError

Outcome = Literal["right", "wrong", "unparsable", "timeout", "error"]
# What an outcome says of an answer; it says nothing where the checker itself failed.
CORRECT: Mapping[str | None, bool] = {"right": True, "wrong": False, "unparsable": False}
Finish = Literal["stop", "length", "tool", "error", "confidence", "consensus", "budget", "cancelled"]
Prompt = str | Sequence[Mapping[str, Any]]  # plain text, or chat messages {role, content}


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer read out of a text, in canonical form: equal answers are equal strings."""

    text: str
    span: tuple[int, int] | None = None  # where it stood in the text, in characters


@dataclass(frozen=True, slots=True)
class Problem:
    id: str
    env: str | None
    prompt: Prompt
    reference: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Completion:
    """What a model produced. Token lists are `array.array`, which numpy reads without a copy."""

    text: str | None
    thinking: str | None = None
    n_tokens: int | None = None  # the backend's count
    finish: Finish | None = None
    token_ids: array[int] | None = None
    token_texts: tuple[str, ...] | None = None
    logprobs: array[float] | None = None  # of the sampled tokens, under the policy that sampled them
    entropies: array[float] | None = None  # nats
    token_confidences: array[float] | None = None
    tool_calls: tuple[Mapping[str, Any], ...] | None = None
    trace_confidences: Mapping[str, float] | None = None  # by rule, where those of the tokens were not kept
    grade: Grade | None = None  # what was recorded with it; a live completion has none


@dataclass(frozen=True, slots=True)
class Grade:
    """What a checker or judge said of one completion."""

    answer: Answer | None
    outcome: Outcome | None
    reward: float | None
    parts: Mapping[str, float] = field(default_factory=dict)
    feedback: str | None = None
    confidence: float | None = None  # stated by the model, 0 to 1
    format_ok: bool | None = None

    @property
    def correct(self) -> bool | None:
        """True for right, False for wrong and unparsable, None where the checker itself failed."""
        return CORRECT.get(self.outcome)


@dataclass(frozen=True, slots=True)
class Rollout:
    """One completion in its place in a run: the row of the record."""

    run_id: str
    split: str | None
    step: int | None
    group_id: str | None
    sample_index: int | None
    problem: Problem
    completion: Completion
    grade: Grade
    budget: int | None = None
    strategy: str | None = None
    advantage: float | None = None
    loss_mask: array[int] | None = None
    logprobs_train: array[float] | None = None
    logprobs_ref: array[float] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Estimate:
    """One number with its interval. `value` None: not measurable, and `missing` says what would supply it."""

    name: str
    value: float | None
    low: float | None = None
    high: float | None = None
    n: int | None = None  # independent units behind it: prompts, unless `how` says otherwise
    at: Mapping[str, Any] = field(default_factory=dict)  # step, k, budget, arm, token, …
    how: str = ""  # estimator and interval method, in words
    missing: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"at": dict(self.at)}

    @property
    def width(self) -> float | None:
        return None if self.low is None or self.high is None else self.high - self.low


Loop = Literal["training", "inference"]
Severity = Literal["failing", "watch", "ok", "unclear", "info"]  # info: a number that no rule reads
Verdict = Literal[
    "healthy",
    "training-time entropy collapse",
    "inference-time variance inflation",
    "both",
    "not enough data",
]


@dataclass(frozen=True, slots=True)
class Finding:
    """An estimate read against its rule."""

    estimate: Estimate
    name: str  # of the rule, or of the number itself
    loop: Loop
    severity: Severity
    reading: str  # one sentence made from the numbers
    strength: float  # how far the value is from the rule's limit, in standard errors; 0 where no interval is known
    interval: str | None = None  # in the unit of the reading

    def to_dict(self) -> dict[str, Any]:
        number = self.estimate
        return {
            "name": self.name,
            "loop": self.loop,
            "severity": self.severity,
            "value": number.value,
            "low": number.low,
            "high": number.high,
            "n": number.n,
            "reading": self.reading,
            "measure": number.name,
            "at": dict(number.at),
            "how": number.how,
        }


@dataclass(frozen=True, slots=True)
class Prescription:
    """One next action. `settings` has every host's exact keys, None where a host has no such setting."""

    method: str | None  # None: nothing to change
    why: str
    settings: Mapping[str, Mapping[str, Any] | None]
    lines: tuple[str, ...] = ()  # one per host, as a person would paste it; "trl, with equipoise: …" needs our adapter
    next_round: tuple[str, ...] = ()  # what the next training or serving round should change too
    next_lines: tuple[str, ...] = ()  # its first item to paste, for hosts that have no line yet

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"settings": {host: None if s is None else dict(s) for host, s in self.settings.items()}}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The verdict on a run, with the evidence it stands on and what would change it."""

    verdict: Verdict
    confidence: float | None  # None where the verdict is "not enough data"
    use: str
    findings: tuple[Finding, ...]
    missing: tuple[str, ...]
    would_change: tuple[str, ...]
    prescription: Prescription
    n_prompts: int
    n_rollouts: int
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": "equipoise.diagnose/1",
            "verdict": self.verdict,
            "confidence": self.confidence,
            "use": self.use,
            "n_prompts": self.n_prompts,
            "n_rollouts": self.n_rollouts,
            "findings": [finding.to_dict() for finding in self.findings],
            "missing": list(self.missing),
            "would_change": list(self.would_change),
            "prescription": self.prescription.to_dict(),
            "warnings": list(self.warnings),
        }

    def _repr_html_(self) -> str:
        """The card for a notebook. Every text is escaped: readings may hold names that a file brought."""
        sure = "" if self.confidence is None else f", confidence {self.confidence:.2f}"
        rows = "".join(
            f"<tr><td>{escape(f.severity)}</td><td>{escape(f.reading)}</td><td>{escape(f.interval or '')}</td>"
            f"<td>{'' if f.estimate.n is None else f.estimate.n}</td></tr>"
            for f in self.findings
        )
        lines = "".join(f"<li><code>{escape(line)}</code></li>" for line in self.prescription.lines)
        missing = "".join(f"<li>{escape(line)}</li>" for line in self.missing)
        return (
            f"<h4>{escape(self.verdict)}{sure} (for {escape(self.use)})</h4>"
            f"<table><tr><th></th><th>reading</th><th>95% interval</th><th>n</th></tr>{rows}</table>"
            + (f"<p>Not measured:</p><ul>{missing}</ul>" if missing else "")
            + f"<p>{escape(self.prescription.why)}</p><ul>{lines}</ul>"
        )


@dataclass(frozen=True, slots=True)
class Tally:
    """How many numbers, their sum, their sum of squares, and counts between edges that the caller chose.

    Tallies add, so micro-batches and ranks give the mean over all tokens, whatever their lengths.
    """

    n: int = 0
    sum: float = 0.0
    squares: float = 0.0
    bins: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.n < 0 or not (isfinite(self.sum) and isfinite(self.squares)):
            raise UsageError(
                f"a tally needs n >= 0 and finite sums, found n={self.n}, sum={self.sum}, squares={self.squares}: "
                "leave padding and unmeasured numbers out"
            )

    def __add__(self, other: Tally) -> Tally:
        if not self.n or not other.n:  # a tally of nothing need not know the edges
            return self if self.n else other
        if len(self.bins) != len(other.bins):
            raise UsageError(
                f"these tallies have {len(self.bins)} and {len(other.bins)} bins: use the same edges in both"
            )
        bins = tuple(a + b for a, b in zip(self.bins, other.bins, strict=True))
        return Tally(self.n + other.n, self.sum + other.sum, self.squares + other.squares, bins)

    @property
    def mean(self) -> float | None:
        return self.sum / self.n if self.n else None

    @property
    def variance(self) -> float | None:
        """Of these numbers, divided by n. Rounding may move it, but never below 0."""
        return max(self.squares / self.n - (self.sum / self.n) ** 2, 0.0) if self.n else None


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a completion is to be sampled."""

    max_tokens: int = 1024  # of thinking and answer together
    thinking_budget: int | None = None  # None: no limit of its own
    temperature: float = 1.0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    top_logprobs: int | None = None  # likeliest tokens to tell at every position; None: no log-probs at all
    extra: Mapping[str, Any] = field(default_factory=dict)  # the backend's own fields


@dataclass(frozen=True, slots=True)
class Question:
    """What a strategy is asked. It reads answers as `read` does, and knows no right one."""

    id: str
    prompt: Prompt  # messages that end with the assistant's are to be continued
    read: Callable[[Completion], Answer | None]
    how: Sampling = Sampling()
    judge: Callable[[Completion], Grade] | None = None  # a verifier or reward that costs no tokens
    seed: int = 0
    # The question with earlier tries and what was wrong with each, in a form that its model was taught; None: put it in words.
    again: Callable[[Sequence[tuple[Completion, Grade]]], Prompt | None] | None = None
    progress: Callable[[Completion], float | None] | None = None  # how good the beginning of a reply is, 0 to 1
    tools: Mapping[str, Callable[[str], str]] = field(default_factory=dict)  # what an agent may call, by name
    reworded: Callable[[int], Prompt] | None = None  # the question in other words, 0: as it is


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of one completion of a draw, as it arrives. Pieces of a text join to the whole; so do the token lists."""

    index: int  # which completion of the draw
    text: str = ""
    thinking: str = ""
    n_tokens: int = 0  # generated for this piece, by the backend's count
    n_thinking: int = 0  # those of them inside the thinking
    token_ids: Sequence[int] | None = None
    token_texts: Sequence[str] | None = None
    logprobs: Sequence[float] | None = None
    entropies: Sequence[float] | None = None
    token_confidences: Sequence[float] | None = None
    prompt_tokens: int | None = None  # told once for a completion, where the backend says it
    cached_tokens: int | None = None
    restart: bool = False  # all that came before for this completion is void: its request failed and was sent again
    finish: Finish | None = None  # the last piece
    error: str | None = None  # with finish "error"
    tool_calls: tuple[Mapping[str, Any], ...] | None = None
    trace_confidences: Mapping[str, float] | None = None
    grade: Grade | None = None


class Draw(Protocol):
    """Completions under way. Every one ends with a piece that has `finish`; then the stream ends."""

    def __aiter__(self) -> AsyncIterator[Chunk]: ...

    async def __anext__(self) -> Chunk: ...

    def cancel(self, index: int, why: Finish) -> None:
        """End a completion: the backend stops making tokens. What had arrived still comes, and last a piece with `why`."""
        ...


class Sampler(Protocol):
    def draw(self, prompt: Prompt, how: Sampling, *, n: int, seed: int, first: int = 0) -> Draw:
        """`n` completions. Those of a seed are numbered: a draw of two, and one of two with first=2, is a draw of four."""
        ...


class Scorer(Protocol):
    async def score(self, prompt: Prompt, text: str) -> Completion:
        """A given text with the log-probs of its tokens."""
        ...


@dataclass(frozen=True, slots=True)
class Spend:
    """Tokens by what they were for, money and wall time. Every generated token stands in one line, whatever became of it."""

    prompt: int | None = 0  # None: the backend did not say
    cached: int | None = 0  # those of the prompt that the backend had at hand
    thinking: int = 0
    answer: int = 0
    probe: int = 0  # trial answers, questions for a confidence
    judge: int = 0
    retry: int = 0  # of requests that failed and were sent again
    cancelled: int = 0  # of completions that were ended before they were finished
    money: float | None = None  # None: no prices are known
    seconds: float = 0.0

    @property
    def generated(self) -> int:
        return self.thinking + self.answer + self.probe + self.judge + self.retry + self.cancelled

    def __add__(self, other: Spend) -> Spend:
        def both(name: str) -> Any:
            mine, theirs = getattr(self, name), getattr(other, name)
            return None if mine is None or theirs is None else mine + theirs

        return Spend(**{each.name: both(each.name) for each in fields(self)})

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"generated": self.generated}


@dataclass(frozen=True, slots=True)
class Choice:
    """What a strategy answered, with everything it drew and spent to get there."""

    answer: Answer | None  # None: no completion held an answer
    chosen: Completion | None  # the completion that stands for it
    drawn: tuple[Completion, ...]
    ballots: Mapping[str, float]  # answer → its votes
    abstained: int
    tied: tuple[str, ...]  # the answers that shared the lead; empty where one led alone
    stopped_by: str  # finished, consensus, certificate, budget, interrupted, …
    spent: Spend
    notes: tuple[str, ...] = ()  # what went wrong and was gone on from: failed requests, missing log-probs

    def to_dict(self) -> dict[str, Any]:
        """Without the texts of the completions."""
        return {
            "schema": "equipoise.choice/1",
            "answer": None if self.answer is None else self.answer.text,
            "ballots": dict(self.ballots),
            "drawn": len(self.drawn),
            "abstained": self.abstained,
            "tied": list(self.tied),
            "stopped_by": self.stopped_by,
            "spent": self.spent.to_dict(),
            "notes": list(self.notes),
        }


class Stateful(Protocol):
    """What a checkpoint saves: `state` is plain JSON, and an object restored from it goes on as the first would have."""

    def state(self) -> dict[str, Any]: ...

    def restore(self, state: Mapping[str, Any]) -> None: ...


class Controller(Stateful, Protocol):
    """Moves settings from step to step. Only `observe` changes it, so evaluation, which never calls it, cannot."""

    def observe(self, tally: Tally) -> None: ...

    def settings(self) -> dict[str, float]: ...
