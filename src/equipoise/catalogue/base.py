"""The rows of the catalogue: a method, a recipe of methods, a host and its key for each of our settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from equipoise.specs import write_spec

Loop = Literal["training", "inference"]
Kind = Literal[
    "ratio_clip",  # a surrogate that bounds the policy ratio: on-policy it is plain policy gradient
    "surrogate",  # another policy-gradient term per token
    "regulariser",  # a term added to the loss
    "weight",  # a weight per token
    "reduction",  # what the terms of all tokens are divided by
    "advantage",  # turns the rewards of a group into advantages
    "controller",  # moves a setting from step to step
    "reward",  # a part of the reward
    "bonus",  # a term added to the advantage, kept apart from the reward
    "filter",  # chooses which groups or completions are learnt from
    "curriculum",  # chooses which problems are drawn next
    "allocation",  # chooses which problems of a step get more of its completions
    "data",  # makes demonstrations for supervised training
    "cap",  # limits the tokens of one completion
    "strategy",  # spends a token budget on one question
]


@dataclass(frozen=True, slots=True)
class Method:
    """One way to act on a loop. A prescription names it; its settings are what the paper or the released code used."""

    name: str
    kind: Kind
    loop: Loop
    about: str
    target: str  # "module:name" of our implementation, which may not be there yet: `table.is_built`
    settings: Mapping[str, Any]
    paper: str  # arXiv id of where the method and the settings come from
    # Host → the fixed options that switch the method on there, beside its settings. Absent: the host does not have it.
    hosts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    acts_only: tuple[str, ...] = ()  # conditions without which it does nothing: "off_policy", …
    traps: tuple[str, ...] = ()
    # What our own results say of it: of a strategy by the rule in benchmarks/statuses.py, of a training method by a study.
    status: Literal["untested", "proven", "mixed", "neutral"] = "untested"
    results: tuple[str, ...] = ()  # folders of a clone that hold them
    equation: str = ""  # one line of plain text
    inputs: tuple[str, ...] = ()  # what it needs, by the parameter names of its target
    lacking: str = ""  # what our own trainer would need to run it and does not have; nothing: it runs there

    @property
    def link(self) -> str:
        return f"https://arxiv.org/abs/{self.paper}"


@dataclass(frozen=True, slots=True)
class Recipe:
    """Methods chosen together, with the batch they were reported with, the temperature, and what becomes of the weights."""

    name: str
    about: str
    methods: Mapping[str, Mapping[str, Any]]  # method → settings that differ from its own
    prompts_per_step: int
    completions_per_prompt: int
    updates_per_step: int
    paper: str
    temperature: float | None = None  # of the rollouts, of the policy that learns from them and of a KL; None: as set
    # Decay of a moving average of the weights over the steps, which is handed over; None: none is kept.
    ema: float | None = None

    @property
    def specs(self) -> tuple[str, ...]:
        """Its methods as on the command line."""
        return tuple(write_spec(name, settings) for name, settings in self.methods.items())

    @property
    def link(self) -> str:
        return f"https://arxiv.org/abs/{self.paper}"


@dataclass(frozen=True, slots=True)
class Setting:
    """A host's key for one of our settings, the way its value is written there, and what differs in meaning."""

    key: str
    note: str = ""
    values: Mapping[Any, Any] = field(default_factory=dict)  # our value → the host's, where they differ

    def write(self, value: Any) -> Any:
        return self.values.get(value, value) if isinstance(value, bool | str) else value


@dataclass(frozen=True, slots=True)
class Host:
    """A program that our settings are written for. A setting is named plainly, or `method.setting` where it is one method's."""

    name: str
    title: str
    versions: str  # releases in which every key below was found
    settings: Mapping[str, Setting]
    ours: str = ""  # part of this project: the module that runs it, which may not be there yet
    off_policy: str = ""  # what makes several updates follow one batch of completions; nothing to say: not a trainer
    notes: tuple[str, ...] = ()
