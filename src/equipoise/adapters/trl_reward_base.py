"""What reward functions of ours share: TRL's arguments as texts, groups and ranks. Axes: P groups, G completions, B rows here.

TRL hands every reward function `log_metric`, a method of the trainer: through it a function knows the size of the groups, the
other ranks' rows and whether this is an evaluation. Called by something else, it takes its rows for whole groups of `group_size`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha1
from typing import Any

import numpy as np

from equipoise.adapters.trl_step import gather_lists, own_rows
from equipoise.errors import UsageError

RewardFunction = Callable[..., list[float | None]]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a reward function."""

    prompts: Sequence[Any]
    completions: Sequence[Any]
    columns: Mapping[str, Any]  # everything else that TRL passes
    group_size: int | None = None  # where TRL does not say

    @property
    def trainer(self) -> Any:
        """TRL's trainer, or None where something else calls."""
        return getattr(self.columns.get("log_metric"), "__self__", None)

    @property
    def training(self) -> bool:
        return self.trainer is None or bool(self.trainer.model.training)

    @property
    def size(self) -> int:
        """Completions of one prompt."""
        if self.trainer is None:
            if self.group_size is None:
                raise UsageError("a reward that compares a group's completions needs their number: give group_size=…")
            return self.group_size
        return int(self.trainer.num_generations if self.training else self.trainer.num_generations_eval)

    def ask(self, function: RewardFunction) -> list[float | None]:
        """Another reward function's word on the same rows."""
        return list(function(prompts=self.prompts, completions=self.completions, **self.columns))

    def everyone(self, values: Sequence[Any]) -> list[Any]:
        """The rows of all ranks: a group may lie on two."""
        return list(values) if self.trainer is None else gather_lists(self.trainer, values)

    def own(self, values_PG: np.ndarray) -> list[float | None]:
        """This rank's rows, None where there is no number."""
        flat = np.asarray(values_PG, dtype=np.float64).reshape(-1)
        here = flat if self.trainer is None else own_rows(self.trainer, flat, len(self.prompts))
        return [None if np.isnan(value) else float(value) for value in here]

    def grouped(self, values: Sequence[Any], *, dtype: Any = np.float64) -> np.ndarray:
        """(P, G) of everyone's rows."""
        rows = self.everyone(values)
        if len(rows) % self.size:
            raise UsageError(f"{len(rows)} completions are no whole groups of {self.size}")
        return np.array(rows, dtype=dtype).reshape(-1, self.size)


def text_of(message: Any) -> str:
    """A prompt or completion as text: what TRL passes as chat messages is joined."""
    if isinstance(message, str):
        return message
    return "\n".join(str(part.get("content") or "") for part in message)


def prompt_name(prompt: Any) -> str:
    """A problem's name, the same in every step."""
    return sha1(text_of(prompt).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def numbers(values: Sequence[float | None]) -> list[float]:
    return [np.nan if value is None else float(value) for value in values]
