"""`Setup`: what a run is like, as far as it is known, for the linter."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from math import inf, log, sqrt
from typing import Any

from equipoise.catalogue.hosts import HOSTS
from equipoise.errors import UsageError, unknown_name


def _known(ask: str, *, least: float = 0.0, most: float = inf) -> Any:
    """A field that is None until it is known, with the sentence that asks for it and the numbers that it can be."""
    return field(default=None, metadata={"ask": ask, "least": least, "most": most})


@dataclass(frozen=True, slots=True)
class Setup:
    """What a run is like. None: not known, and a rule that needs it says so instead of guessing."""

    host: str | None = _known("trl, verl or equipoise")
    # --- updates
    updates_per_batch: int | None = _known("optimiser updates that follow one batch of completions", least=1)
    on_policy: bool | None = _known("whether every update is on completions of the very weights that it changes")
    reduction: str | None = _known("what the loss is divided by: token_mean, sequence_mean, … or verl's loss_agg_mode")
    dual_clip: float | None = _known(
        "cap on the ratio of tokens with a negative advantage; inf where there is none", least=1
    )
    choice_tokens: int | None = _known(
        "tokens that a share is taken of: those of a micro-batch, or of the step for a _step method"
    )
    # --- rewards and groups
    group_size: int | None = _known("completions per problem", least=1)
    std_scaling: bool | None = _known("whether advantages are divided by the group's standard deviation")
    shaped_reward: bool | None = _known("whether the reward has other parts than right or wrong")
    filter_metric: str | None = _known(
        "what the group filter reads: 'correct', or the host's name, say verl's 'acc' or 'reward'"
    )
    pass_rate: float | None = _known("share of right completions", most=1)
    lone_successes: float | None = _known("share of the groups in which exactly one completion is right", most=1)
    # --- tokens
    entropy: float | None = _known("mean token entropy observed over the first steps, in nats")
    vocabulary: int | None = _known("size of the vocabulary", least=2)
    mean_tokens: float | None = _known("mean tokens of a completion")
    max_tokens: int | None = _known("limit on the tokens of one completion, or the longest seen")
    all_answer: bool | None = _known("whether a completion is nothing but its answer, as in Countdown without thinking")
    bonus_on_answer: bool | None = _known("whether an exploration bonus reaches the tokens of the final answer as well")
    # --- inference
    deepconf_window: int | None = _known(
        "tokens of DeepConf's sliding window; left out where DeepConf is not used", least=1
    )

    def __post_init__(self) -> None:
        if self.host is not None and self.host not in HOSTS:
            raise unknown_name("host", self.host, HOSTS)
        for its in fields(self):
            value = getattr(self, its.name)
            if isinstance(value, bool | str) or value is None:
                continue
            low, high = its.metadata["least"], its.metadata["most"]
            if not low <= value <= high:
                allowed = f"from {low:g} to {high:g}" if high < inf else f"at least {low:g}"
                raise UsageError(f"{its.name} of a setup must be {allowed}, found {value!r}: {its.metadata['ask']}")


ASKS = {its.name: its.metadata["ask"] for its in fields(Setup)}


class Unknown(LookupError):
    """A rule has read a field that is not known."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Known:
    """A setup as rules read it: a field that is not known raises `Unknown`, so no rule can take None for an answer."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._setup, name)
        if value is None:
            raise Unknown(name)
        return value

    def maybe(self, name: str) -> Any:
        """None where it is not known."""
        return getattr(self._setup, name)

    @property
    def on_policy(self) -> bool:
        """As given, else whether each batch of completions is used for one update only."""
        given = self._setup.on_policy
        return bool(self.updates_per_batch == 1) if given is None else given

    @property
    def most_entropy(self) -> float:
        return log(self.vocabulary)

    @property
    def lone_advantage(self) -> float:
        """What one success among G gets when advantages are divided by the population's standard deviation."""
        return sqrt(self.group_size - 1)

    @property
    def wrong(self) -> float:
        """Wrong completions in a group, on average."""
        return float(self.group_size * (1 - self.pass_rate))

    @property
    def to_be_off_policy(self) -> str:
        """How the host makes several updates of one batch."""
        host = self._setup.host
        how = HOSTS[host].off_policy if host is not None else ""
        return f" ({HOSTS[host].title}: {how})" if how and host is not None else ""
