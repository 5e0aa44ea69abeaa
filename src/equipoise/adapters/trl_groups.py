"""Advantages, bonuses and filters of ours on TRL's groups. Axes: N completions of all ranks, P groups of G, N = P · G.

TRL's rows are groups one after the other, over all ranks: row n is completion n % G of group n // G. Every rank holds all rows
and comes to the same numbers, so that nothing is sent back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import numpy as np

from equipoise.adapters.trl_plan import Exploration
from equipoise.catalogue.build import build
from equipoise.errors import UsageError
from equipoise.shaping.counter import OutcomeCounter
from equipoise.text.degenerate import find_degenerate

VISITS = "visits_PG"
MEASURED = (
    *("keep_PG", "reward_PG", "correct_PG", "answer_PG", "n_tokens_PG", "truncated_PG", "degenerate_PG"),
    VISITS,
)
_TEXTUAL = {"answer_PG", VISITS, "degenerate_PG"}


@dataclass(frozen=True, slots=True)
class Rows:
    """What is known of the completions of one generation batch."""

    group_size: int
    reward_N: np.ndarray  # nan: unscored
    n_tokens_N: np.ndarray
    truncated_N: np.ndarray
    correct_N: np.ndarray | None = None  # None: no reward function was named that says so
    texts: Sequence[str] | None = None  # None: nothing reads them
    answers: Sequence[str | None] | None = None
    prompt_ids: Sequence[str] | None = None  # one per row


@dataclass(frozen=True, slots=True)
class Shaped:
    """None: TRL's own, or nothing."""

    adv_N: np.ndarray | None
    bonus_N: np.ndarray | None
    keep_N: np.ndarray | None
    dropped: Mapping[str, int]  # reason → completions


class GroupShaper:
    """The advantage, filters and bonuses of a run; keeps the outcome counter."""

    def __init__(self, ours: Exploration) -> None:
        self._advantage = None if ours.advantage is None else _built(ours.advantage)
        self._filters = [_built(spec) for spec in ours.filters]
        self._bonuses = [_built(spec) for spec in ours.bonuses]
        self.bonus_on_answer = ours.bonus_on_answer
        calls = [*self._filters, *self._bonuses, *([self._advantage] if self._advantage else [])]
        self._asked = set().union(*map(_inputs, calls)) if calls else set()
        self.counter = OutcomeCounter() if VISITS in self._asked else None

    @property
    def acts(self) -> bool:
        return bool(self._asked)

    @property
    def reads_texts(self) -> bool:
        return bool(self._asked & _TEXTUAL) or self.needs_answer_tokens

    @property
    def needs_answer_tokens(self) -> bool:
        """Whether the tokens of the final answer must be known, to keep a bonus off them."""
        return bool(self._bonuses) and not self.bonus_on_answer

    @property
    def needs_verdicts(self) -> bool:
        """Whether something cannot do without knowing which completions are right."""
        required = [*self._filters, *([self._advantage] if self._advantage else [])]
        guarded = any(
            call.keywords.get("unless_all_right", True) for call in self._bonuses if "correct_PG" in _inputs(call)
        )
        return guarded or any("correct_PG" in _inputs(call) for call in required)

    def shape(self, rows: Rows, *, training: bool) -> Shaped:
        """Evaluation reads the counts and adds nothing to them."""
        given = self._given(rows, training=training)
        keep_PG: np.ndarray = given["keep_PG"]
        dropped: dict[str, int] = {}
        for call in self._filters:
            kept = _run(call, {**given, "keep_PG": keep_PG})
            keep_PG = kept.keep_PG
            dropped |= kept.counts
        adv_PG = None if self._advantage is None else np.where(keep_PG, _run(self._advantage, given), 0.0)
        bonus_PG = None
        if self._bonuses:
            bonus_PG = np.where(keep_PG, sum(_run(call, given) for call in self._bonuses), 0.0)
        return Shaped(_flat(adv_PG), _flat(bonus_PG), _flat(keep_PG) if self._filters else None, dropped)

    def _given(self, rows: Rows, *, training: bool) -> dict[str, Any]:
        """All that methods may ask for, by group."""

        def grouped(values: Any) -> np.ndarray:
            return np.asarray(values, dtype=np.float64).reshape(-1, rows.group_size)

        reward_PG = grouped(rows.reward_N)
        # TRL leaves a completion that no function scored out of its group's mean, and gives it an advantage of 0.
        keep_PG = ~np.isnan(reward_PG)
        given: dict[str, Any] = {"reward_PG": reward_PG, "keep_PG": keep_PG}
        given |= {"n_tokens_PG": grouped(rows.n_tokens_N), "truncated_PG": grouped(rows.truncated_N)}
        given["correct_PG"] = None if rows.correct_N is None else grouped(rows.correct_N)
        if rows.answers is not None:
            code_of: dict[str, int] = {}
            codes = [-1 if text is None else code_of.setdefault(text, len(code_of)) for text in rows.answers]
            given["answer_PG"] = np.array(codes).reshape(keep_PG.shape)
        if "degenerate_PG" in self._asked and rows.texts is not None:
            pairs = zip(rows.texts, rows.answers or [None] * len(rows.texts), strict=True)
            given["degenerate_PG"] = grouped(
                [bool(find_degenerate(text, answer=answer).flags) for text, answer in pairs]
            )
        if self.counter is not None and rows.answers is not None and rows.prompt_ids is not None:
            answers_PG = np.array(rows.answers, dtype=object).reshape(keep_PG.shape)
            prompts_P = list(rows.prompt_ids)[:: rows.group_size]
            given[VISITS] = self.counter.count(prompts_P, answers_PG)
            if training:
                self.counter.observe(prompts_P, answers_PG)
        return given


def _flat(values_PG: np.ndarray | None) -> np.ndarray | None:
    return None if values_PG is None else np.asarray(values_PG).reshape(-1)


def _built(spec: str) -> Any:
    """The method of a spec; refused where it cannot do without something that TRL does not give."""
    call = build(spec)
    parameters = signature(call).parameters.values()
    lacking = [p.name for p in parameters if p.default is p.empty and p.name not in MEASURED]
    if lacking:
        raise UsageError(f"{spec} needs {', '.join(lacking)}: a TRL run has {', '.join(MEASURED)}")
    return call


def _inputs(call: Callable[..., Any]) -> set[str]:
    return {name for name in signature(call).parameters if name in MEASURED}


def _run(call: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    """Filled by parameter name, as objectives are."""
    return call(**{name: given[name] for name in _inputs(call) if name in given})
