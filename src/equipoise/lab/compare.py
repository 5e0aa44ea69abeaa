"""Strategies compared on one pool: the same questions and, in every repeat, the same samples in the same order for each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Any, cast

from equipoise.base import Estimate
from equipoise.errors import UsageError
from equipoise.infer.vote import Majority
from equipoise.lab.compare_numbers import Arm, Outcomes, arm_of, exact_majority, outcomes_of, whole_outcomes
from equipoise.lab.compare_run import (
    Live,
    Pool,
    Ran,
    Strategy,
    Tick,
    Whole,
    read_whole,
    repeat_seeds,
    run_strategy,
)
from equipoise.lab.interrupting import run_to_end
from equipoise.lab.solve import find_strategy
from equipoise.measures.html import html_line, html_table, number_cell
from equipoise.rollouts.readers.table import open_source
from equipoise.rollouts.run import Run
from equipoise.samplers.recorded import RecordedPool
from equipoise.samplers.recorded_rows import Count
from equipoise.text.display import many

REPEATS = 20  # shuffles of a recorded pool


@dataclass(frozen=True, slots=True)
class Compared:
    """A row for every strategy, and all that each answered."""

    pool: str
    arms: tuple[Arm, ...]
    ran: tuple[Ran, ...]
    reference: str
    agreement_with: str
    n_problems: int
    samples: tuple[int, int] | None  # recorded of a problem, the fewest and the most; None: drawn from a model
    repeats: int
    seed: int
    budget: int | None
    count: Count
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": "equipoise.compare/1",
            "pool": self.pool,
            "problems": self.n_problems,
            "recorded": None if self.samples is None else list(self.samples),
            "repeats": self.repeats,
            "seed": self.seed,
            "budget": self.budget,
            "count": self.count,
            "reference": self.reference,
            "agreement_with": self.agreement_with,
            "results": [arm.to_dict() for arm in self.arms],
            "warnings": list(self.warnings),
        }

    def find(self, strategy: str) -> Arm:
        return next(arm for arm in self.arms if arm.strategy == strategy)

    def rows(self) -> list[list[str]]:
        """The table as texts, under `heads`."""
        return [
            [
                arm.strategy,
                _cell(arm.accuracy),
                "(reference)" if arm.strategy == self.reference else _cell(arm.difference, signed=True),
                f"{arm.tokens.value:,.1f}",
                "–" if arm.tokens_share.value is None else f"{arm.tokens_share.value:.1%}",
                f"{arm.samples.value:.2f}",
                _cell(arm.agreement),
                "–" if arm.abstained is None else f"{arm.abstained:.1%}",
                f"{arm.tied:.1%}",
            ]
            for arm in self.arms
        ]

    def heads(self) -> list[str]:
        return [
            "strategy",
            "accuracy",
            "difference",
            self.count,
            f"{self.count} share",
            "drawn",
            "agreement",
            "abstained",
            "tied",
        ]

    def about(self) -> str:
        recorded = "" if self.samples is None else f" × {_samples(self.samples)}"
        budget = "" if self.budget is None else f", at most {self.budget:,} {self.count} a question"
        repeats = (
            many(self.repeats, "draw") if self.samples is None else f"{many(self.repeats, 'order')} of the samples"
        )
        return (
            f"{many(self.n_problems, 'problem')}{recorded}{budget}; mean over {repeats}, [95% interval] over problems; "
            f"agreement with {self.agreement_with}"
        )

    def without_interval(self) -> list[str]:
        """Why a number of the table has none, with all that it is true of; and where those of the costs are."""
        told: dict[str, list[str]] = {}
        for arm in self.arms:
            shown = {"accuracy": arm.accuracy, "difference": arm.difference, "agreement": arm.agreement}
            if arm.strategy == self.reference:
                del shown["difference"]
            for name, number in shown.items():
                if number.value is not None and number.low is None:
                    why = number.how.partition("no interval: ")[2].partition(";")[0]
                    told.setdefault(why or number.how, []).append(f"{name} of {arm.strategy}")
        return [f"no interval: {why} ({', '.join(where)})" for why, where in told.items()] + [
            f"{self.count}, {self.count} share and drawn have their intervals in the JSON; abstained and tied are counted"
        ]

    def _repr_html_(self) -> str:
        table = html_table(self.heads(), self.rows(), title=f"{self.pool}: {self.about()}")
        return table + "".join(map(html_line, self.without_interval()))


def compare(
    pool: Pool | Run | Path | str | Sequence[Path | str],
    strategies: Sequence[str | Strategy],
    *,
    repeats: int | None = None,
    seed: int = 0,
    budget: int | None = None,
    reference: str | Strategy | None = None,
    count: Count = "tokens",
    resample: bool = False,
    where: Mapping[str, Any] | None = None,
    columns: Mapping[str, str] | None = None,
    at_once: int = 8,
    tick: Tick | None = None,
) -> Compared:
    """Every strategy on every question of a pool, with accuracy, tokens and the agreement with the vote over the whole pool.

    `pool`: recorded samples (a path or run that any reader takes, or a `RecordedPool`), or a `Live` model. In each of `repeats`
    the samples come in another order, the same for every strategy. An accuracy is the mean over repeats within a problem, then
    over problems, and problems are the units of its interval and of the paired difference to the `reference`: by default the
    majority over all recorded samples, for a live model the first strategy. `budget`: tokens that a strategy may generate for
    one question. `count`, `resample`, `where`, `columns`: how a path or run is opened, as in `RecordedPool.of`; with
    `count="samples"` every sample counts as one token, for pools that do not tell lengths. `at_once`: questions under way together.
    """
    if repeats is not None and repeats < 1:
        raise UsageError(f"a comparison of {repeats} repeats was asked for: use 1 or more")
    if isinstance(pool, Run | str | Path | list | tuple):
        run = open_source(pool, columns=columns)
        held: Pool = RecordedPool.of(run, count=count, resample=resample, where=where)
        warnings = run.warnings.lines()
    else:
        held, warnings = cast(Pool, pool), []
    if isinstance(held, RecordedPool):
        warnings = [*warnings, *held.rows.notes]
    arms = _named_strategies(strategies if reference is None else [*strategies, reference])
    name = None if reference is None else label_of(reference)
    seeds = repeat_seeds(seed, repeats or (REPEATS if isinstance(held, RecordedPool) else 1))
    rounds = _Rounds(held, arms, seeds, budget=budget, at_once=at_once, tick=tick)
    run_to_end(rounds.run, stop=rounds.stop)
    if not rounds.done:
        raise KeyboardInterrupt
    if rounds.done < len(seeds):
        warnings = [*warnings, f"stopped after {rounds.done} of {many(len(seeds), 'repeat')}"]
    return _numbers(rounds, name, pool=_name_of(pool), seed=seed, count=count, warnings=warnings)


class _Rounds:
    """Every strategy on every question, repeat by repeat. After Ctrl-C the repeats that are whole are kept."""

    def __init__(
        self,
        pool: Pool,
        strategies: Mapping[str, Strategy],
        seeds: Sequence[int],
        *,
        budget: int | None,
        at_once: int,
        tick: Tick | None,
    ) -> None:
        self.pool, self.strategies, self.seeds = pool, strategies, seeds
        self.budget, self.at_once, self.tick = budget, at_once, tick
        self.ids: list[str] = []
        self.wholes: list[Whole] | None = None
        self.ran: dict[str, list[Ran]] = {name: [] for name in strategies}
        self.done = 0  # repeats
        self._work: asyncio.Future[None] | None = None
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True
        if self._work is not None:
            self._work.cancel()

    async def run(self) -> None:
        self._work = asyncio.ensure_future(self._run())
        try:
            await self._work
        except asyncio.CancelledError:
            if not self._stopped:
                raise
        finally:
            close = getattr(getattr(self.pool, "sampler", None), "close", None)  # a server's connections
            if close is not None:
                await close()

    async def _run(self) -> None:
        first = self.pool.questions(seed=self.seeds[0])
        self.ids = [question.id for question in first]
        if not first:
            raise UsageError("the pool has no questions: record samples first, for example with equipoise sample")
        if isinstance(self.pool, RecordedPool):
            self.wholes = [await read_whole(self.pool, q, self.pool.size(q.id)) for q in first]
        for repeat, seed in enumerate(self.seeds):
            questions = first if repeat == 0 else self.pool.questions(seed=seed)
            found: dict[str, list[Ran]] = {}
            for place, (name, strategy) in enumerate(self.strategies.items()):
                found[name] = await run_strategy(
                    name, strategy, self.pool, questions, repeat=repeat, budget=self.budget, at_once=self.at_once
                )
                if self.tick is not None:
                    rounds = len(self.seeds) * len(self.strategies)
                    self.tick((repeat * len(self.strategies) + place + 1) * len(first), rounds * len(first))
            for name, runs in found.items():
                self.ran[name] += runs
            self.done = repeat + 1


def _numbers(
    rounds: _Rounds, reference: str | None, *, pool: str, seed: int, count: Count, warnings: Sequence[str]
) -> Compared:
    wholes = rounds.wholes
    measure = _whole_vote(rounds.ids, wholes) if wholes is not None else _first_arm(rounds.ran, reference)
    outcomes = {name: outcomes_of(runs, rounds.ids, rounds.done, measure.agrees) for name, runs in rounds.ran.items()}
    if reference is None:
        reference = measure.name
        outcomes = {**measure.outcomes, **outcomes}
    rows = [
        arm_of(
            name,
            mine,
            outcomes[reference],
            agreement_with=measure.words,
            unit=count,
            exact=_exact(name, rounds),
        )
        for name, mine in outcomes.items()
    ]
    return Compared(
        pool=pool,
        arms=tuple(replace(row, on_frontier=_on_frontier(row, rows)) for row in rows),
        ran=tuple(one for runs in rounds.ran.values() for one in runs),
        reference=reference,
        agreement_with=measure.words,
        n_problems=len(rounds.ids),
        samples=None if wholes is None else _extent(wholes),
        repeats=rounds.done,
        seed=seed,
        budget=rounds.budget,
        count=count,
        warnings=tuple(warnings),
    )


@dataclass(frozen=True, slots=True)
class _Yardstick:
    """What answers are held against."""

    name: str
    words: str
    agrees: Callable[[Ran], bool]
    outcomes: Mapping[str, Outcomes] = field(default_factory=dict)  # its own, where it is none of the strategies


def _whole_vote(ids: Sequence[str], wholes: Sequence[Whole]) -> _Yardstick:
    """The vote over all recorded samples. Where it is tied, any of its leaders agrees with it."""
    all_of = f"all {_range(_extent(wholes))}"
    leaders = {id_: whole.leaders or {None} for id_, whole in zip(ids, wholes, strict=True)}
    name = f"majority of {all_of}"
    return _Yardstick(
        name,
        f"the vote over all {_samples(_extent(wholes))}",
        lambda one: one.answer in leaders[one.question],
        {name: whole_outcomes(wholes)},
    )


def _first_arm(ran: Mapping[str, Sequence[Ran]], reference: str | None) -> _Yardstick:
    """A live model has no whole: answers are held against the reference's in the same repeat."""
    name = reference or next(iter(ran))
    said = {(one.question, one.repeat): one.answer for one in ran[name]}
    return _Yardstick(name, name, lambda one: one.answer == said[one.question, one.repeat])


def label_of(strategy: str | Strategy) -> str:
    """A spec as it was written, or the class of an object with the settings that it has."""
    if isinstance(strategy, str):
        return strategy
    settings: dict[str, Any] = asdict(strategy) if is_dataclass(strategy) and not isinstance(strategy, type) else {}
    name = getattr(strategy, "__name__", type(strategy).__name__)
    return ":".join(filter(None, (name, ",".join(f"{key}={value}" for key, value in settings.items()))))


def split_specs(text: str) -> list[str]:
    """Specs with commas between them. A part `setting=value` belongs to the spec before it: `esc:window=5,cap=40,single`."""
    specs: list[str] = []
    for part in text.split(","):
        head, equals, _ = part.partition("=")
        if not equals or ":" in head:
            specs.append(part.strip())
        elif specs and ":" in specs[-1]:
            specs[-1] += f",{part.strip()}"
        else:
            raise UsageError(f"'{part}' in '{text}' follows no strategy with settings: write name:setting=value,name,…")
    if not all(specs):
        raise UsageError(f"'{text}' names an empty strategy: write majority:n=8,single")
    return specs


def _named_strategies(strategies: Sequence[str | Strategy]) -> dict[str, Strategy]:
    if not strategies:
        raise UsageError("no strategy was named: for example majority:n=8; equipoise methods lists them")
    named: dict[str, Strategy] = {}
    for one in strategies:
        named[label_of(one)] = find_strategy(one) if isinstance(one, str) else one
    return named


def _name_of(pool: object) -> str:
    if isinstance(pool, list | tuple):
        return ", ".join(map(str, pool))
    if isinstance(pool, Run):
        return str(pool.path)
    return pool.name if isinstance(pool, Live) else str(pool) if isinstance(pool, str | Path) else type(pool).__name__


def _exact(name: str, rounds: _Rounds) -> float | None:
    """Only for a vote that nothing cuts short, over samples that come once each."""
    strategy, pool = rounds.strategies.get(name), rounds.pool
    if not isinstance(strategy, Majority) or not isinstance(pool, RecordedPool) or rounds.wholes is None:
        return None
    return None if pool.resample or rounds.budget is not None else exact_majority(rounds.wholes, strategy.n)


def _cell(number: Estimate, *, signed: bool = False) -> str:
    lacks = number.value is not None and number.low is None
    return number_cell(number, signed=signed) + (" (no interval)" if lacks else "")


def _on_frontier(arm: Arm, arms: Sequence[Arm]) -> bool:
    def point(one: Arm) -> tuple[float, float] | None:
        if one.accuracy.value is None or one.tokens.value is None:
            return None
        return one.tokens.value, -one.accuracy.value

    mine = point(arm)
    others = [point(one) for one in arms]
    return mine is not None and not any(
        other is not None and other != mine and other[0] <= mine[0] and other[1] <= mine[1] for other in others
    )


def _extent(wholes: Sequence[Whole]) -> tuple[int, int]:
    sizes = [whole.samples for whole in wholes]
    return min(sizes), max(sizes)


def _samples(extent: tuple[int, int]) -> str:
    return many(extent[0], "sample") if extent[0] == extent[1] else f"{_range(extent)} samples"


def _range(extent: tuple[int, int]) -> str:
    return f"{extent[0]}" if extent[0] == extent[1] else f"{extent[0]}–{extent[1]}"
