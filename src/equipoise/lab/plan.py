"""One token budget split over many questions by what a pilot showed of each, held against equal spending."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from equipoise.errors import UsageError, unknown_name
from equipoise.files import atomic_write, plain
from equipoise.infer.policy import GOALS, Bin, Goal, Option, Policy
from equipoise.lab.plan_backtest import Backtest, backtest, uniform_value
from equipoise.lab.plan_orders import Ordered, order_samples
from equipoise.lab.plan_policy import Assigned, assign, learn_policy
from equipoise.measures.html import html_line, html_table, number_cell
from equipoise.rollouts.readers.table import Source
from equipoise.samplers.recorded import RecordedPool
from equipoise.samplers.recorded_rows import Count
from equipoise.text.display import many

FIRST = 4  # samples of a pilot, where the pool has twice as many
REPEATS = 20


@dataclass(frozen=True, slots=True)
class Share:
    """What one question gets. `samples` in total, the pilot's among them unless `cap` is another than theirs."""

    question: str
    state: int  # votes of its pilot's leader, or how many of the pilot are right
    samples: int
    cap: int | None
    tokens: float  # expected, the pilot's included
    strategy: str


@dataclass(frozen=True, slots=True)
class Planned:
    """`expected` and `expected_uniform` are of the questions that were learnt from; `backtest` is of questions that were not."""

    goal: Goal
    budget: float
    tokens: float  # planned, the pilots included
    pilot_tokens: float
    policy: Policy
    shares: tuple[Share, ...]
    expected: float
    expected_uniform: float
    backtest: Backtest
    judged: bool
    count: Count
    notes: tuple[str, ...] = ()

    @property
    def helps(self) -> bool:
        """Whether the whole interval of the backtest is above equal spending."""
        return self.backtest.difference.low is not None and self.backtest.difference.low > 0

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": "equipoise.plan/1",
            "goal": self.goal,
            "count": self.count,
            "budget": self.budget,
            "tokens": self.tokens,
            "pilot": {"samples": self.policy.pilot, "cap": self.policy.cap, "tokens": self.pilot_tokens},
            "price": self.policy.price,
            "expected": {
                "plan": self.expected,
                "uniform": self.expected_uniform,
                "how": "on the questions learnt from, so too good: see backtest",
            },
            "value": "accuracy" if self.judged else "agreement with the vote over all recorded samples",
            "helps": self.helps,
            "says": self.says(),
            "backtest": self.backtest.to_dict(),
            "policy": self.policy.to_dict(),
            "questions": [asdict(share) for share in self.shares],
            "notes": list(self.notes),
        }

    def says(self) -> str:
        """One sentence: whether planning helps on this pool."""
        number, equal = self.backtest.difference, self.backtest.samples
        cell = f"{number_cell(number, signed=True)} against {equal:.1f} samples for every question"
        if number.low is None or number.high is None:
            return f"Whether planning helps is not known ({number.how}): {cell}."
        if self.helps:
            return f"Planning helps on questions it has not seen: {cell} at the same {self.count}."
        if number.high < 0:
            return f"Planning does worse than equal spending: {cell} at the same {self.count}. Spend equally."
        return f"Planning shows no gain on this pool: {cell} at the same {self.count}. Equal spending does as well."

    def heads(self) -> list[str]:
        state = "leader's votes" if self.goal == "vote" else "right in pilot"
        return [f"{state} of {self.policy.pilot}", "questions", "samples", "cap", f"{self.count} more", "value", "gain"]

    def rows(self) -> list[list[str]]:
        """A row for each bin of difficulty: what a question of mean length gets at the price."""
        return [self._row(each, self.policy.choose(each.low)) for each in self.policy.bins]

    def _row(self, each: Bin, option: Option) -> list[str]:
        stop = next(one for one in each.options if one.cap == self.policy.cap and one.samples == self.policy.pilot)
        return [
            f"{each.low}" if each.low == each.high else f"{each.low}–{each.high}",
            f"{each.share:.0%}",
            str(option.samples),
            "–" if option.cap is None else f"{option.cap:,}",
            f"{option.tokens:,.1f}",
            f"{option.value:.3f}",
            f"{option.value - stop.value:+.3f}",
        ]

    def about(self) -> list[str]:
        n = len(self.shares)
        cap = "" if self.policy.cap is None else f" of at most {self.policy.cap:,} tokens"
        return [
            f"{n} questions, {self.budget:,.0f} {self.count} ({self.budget / n:,.1f} a question); a pilot of {many(self.policy.pilot, 'sample')}"
            f"{cap} each takes {self.pilot_tokens:,.0f} of them",
            f"price: 1,000 {self.count} more would bring {1000 * self.policy.price:.3g} right answers; planned are "
            f"{self.tokens:,.0f} {self.count}",
            f"backtest, {self.backtest.repeats} orders, learnt on one half of the questions and tried on the other: plan "
            f"{number_cell(self.backtest.plan)}, equal spending {number_cell(self.backtest.uniform)}",
            self.says(),
        ]

    def _repr_html_(self) -> str:
        return html_table(self.heads(), self.rows()) + "".join(map(html_line, self.about()))


def plan(
    pilot: Source | Sequence[Source] | RecordedPool,
    *,
    budget: float,
    goal: Goal = "vote",
    first: int | None = None,
    most: int | None = None,
    cap: int | None = None,
    repeats: int = REPEATS,
    seed: int = 0,
    count: Count = "tokens",
    where: Mapping[str, Any] | None = None,
    columns: Mapping[str, str] | None = None,
) -> Planned:
    """How many samples each question of a pilot pool should get, and at which cap, so that all together take `budget` tokens.

    `first` samples of every question are drawn whatever they say (default 4, or half of those recorded), and count in the budget.
    What they show, without any reference answer, says how many more there will be. `goal`: "vote" answers by the majority of
    all samples, "verified" has a checker at hand and needs one right sample. `most`: samples of a question at most; for a vote no
    more than were recorded. `cap`: which of several recorded budgets the first samples have; actions are all of them.
    `count`, `where`, `columns`: how the pool is opened, as in `RecordedPool.of`. Verdicts of the pool teach what a bin of difficulty
    is worth, and are not looked at to decide for a question: the policy can be applied to questions without any.
    """
    if goal not in GOALS:
        raise unknown_name("goal", goal, GOALS)
    if repeats < 2 or budget <= 0:
        raise UsageError(
            f"a plan of budget {budget:g} over {repeats} orders was asked for: use a budget above 0 and 2 orders or more"
        )
    if isinstance(pilot, RecordedPool):
        rows = pilot.rows
    else:
        rows = RecordedPool.of(pilot, count=count, where=where, columns=columns, token_lists=False).rows
    ordered = order_samples(rows, goal=goal, repeats=repeats, seed=seed, most=most, cap=cap)
    look = _pilot_size(ordered, first)
    policy = learn_policy(ordered, goal=goal, pilot=look, most=most)
    tokens_Q = ordered.pilot.tokens_QRK[:, 0, look - 1]
    spent = float(tokens_Q.sum())
    if spent > budget:
        raise UsageError(
            f"the first {look} samples of {len(tokens_Q)} questions take {spent:,.0f} {count}, and the budget is {budget:,.0f}: "
            "raise it, or look at fewer (first=…)"
        )
    found = assign(policy, ordered.pilot.state_QRK[:, 0, look - 1], tokens_Q / look, budget=budget - spent)
    total = spent + found.allocation.spent
    return Planned(
        goal=goal,
        budget=budget,
        tokens=total,
        pilot_tokens=spent,
        policy=replace(policy, price=found.allocation.price),
        shares=_shares(ordered, found, look, goal),
        expected=found.allocation.value / len(tokens_Q),
        expected_uniform=max(uniform_value(each, total / len(tokens_Q)) for each in ordered.caps),
        backtest=backtest(ordered, goal=goal, pilot=look, budget=budget, seed=seed),
        judged=ordered.judged,
        count=count,
        notes=(*rows.notes, *ordered.notes, *_notes(ordered, policy, found, budget - total)),
    )


def write_plan(planned: Planned, path: Path) -> None:
    with atomic_write(path) as handle:
        handle.write((json.dumps(plain(planned.to_dict()), indent=2, allow_nan=False) + "\n").encode())


def _pilot_size(ordered: Ordered, first: int | None) -> int:
    recorded = ordered.pilot.size
    look = min(FIRST, max(1, recorded // 2)) if first is None else first
    if not 1 <= look < recorded:
        raise UsageError(
            f"a pilot of {many(look, 'sample')} of the {recorded} that the questions have was asked for: look at 1 or more, and leave some to plan"
        )
    return look


def _shares(ordered: Ordered, found: Assigned, look: int, goal: Goal) -> tuple[Share, ...]:
    state_Q, pilot_Q = ordered.pilot.state_QRK[:, 0, look - 1], ordered.pilot.tokens_QRK[:, 0, look - 1]
    return tuple(
        Share(
            question=name,
            state=int(state_Q[q]),
            samples=option.samples,
            cap=option.cap,
            tokens=float(pilot_Q[q] + found.cost_Q[q]),
            strategy=_spec(option, goal),
        )
        for q, (name, option) in enumerate(zip(ordered.ids, found.options, strict=True))
    )


def _spec(option: Option, goal: Goal) -> str:
    if goal == "verified":
        return f"best_of_n:n={option.samples}"
    if option.cap is None:
        return f"majority:n={option.samples}"
    return f"parallel:n={option.samples},budget={option.samples * option.cap}"


def _notes(ordered: Ordered, policy: Policy, found: Assigned, left: float) -> list[str]:
    notes = []
    if not ordered.judged:
        notes.append(
            "the pool has no verdicts: planned for agreement with the vote over all recorded samples, not for accuracy"
        )
    if policy.goal == "vote" and max(option.samples for option in found.options) == ordered.pilot.size:
        notes.append(
            f"some questions get all {ordered.pilot.size} samples that were recorded: a larger pool could show more to gain"
        )
    if found.allocation.price == 0 and left > 0:
        notes.append(f"{left:,.0f} of the budget buy nothing more: no option that was measured adds value")
    if len(policy.bins) == 1:
        notes.append("all pilots look alike: there is nothing to tell the questions apart by")
    return notes
