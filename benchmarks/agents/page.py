"""The README of `run.py`, out of its results."""

from __future__ import annotations

from typing import Any

ABOUT = """# What a call is worth to an agent

Question: how much do further calls of a tool add for real agents, and would an agent that stops when a call is not worth its cost lose
less than one with a fixed number of calls?

Answer: {answer}

Five models wrote SQL for 690 tasks of InterCode-SQL, up to 10 calls each, and saw what the database replied ([source](SOURCE.md)); the
benchmark's checker ended an episode when it was solved. So a stop can only save calls on tasks that would not have been solved, and lose those
that would. Tokens were not recorded: a call is the unit of cost.

## Solved, by calls

| model | {heads} | ceiling | half-life, calls | calls made |
| --- | {lines} | ---: | ---: | ---: |
{curves}

The share of tasks solved after so many calls; ceiling and half-life are those of R(t) = c − d·exp(−t/τ) (`measures.search_steps`). The first two
calls of the stronger models look around, and pay only from the third or fourth on: a rule that asks what the *next* call brings would stop
them at once, so gains are learned over any number of further calls.

## What the next call brings, by what was seen last

Share of calls that solve the task, where the call before left it unsolved (number of calls).

| model | {states} |
| --- | {state_lines} |
{rates}

## Stopping by value per cost

Go on while the learned gain per call is at least the *price* (`infer.call_value`): by the number of calls and what was seen last, by the same
with a price that rises as calls run out (× 10 / calls left), or by the number of calls alone. Learned on one half of the tasks, used on the other.
*Against a cap*: the same model with a fixed number of calls that makes as many on average (a mixture of two neighbouring ones). 95 % intervals over
tasks, paired; none is shown where too few tasks differ to cover 95 %.

{tables}

## How

`python -m benchmarks.agents.run`, {seconds} on one core. `turns.parquet` is made by `python -m benchmarks.agents.make_table TURNS.parquet` and holds no
texts. What was seen: an error, a query made before, no rows, a listing of tables or columns, rows.
"""


def write_page(results: dict[str, Any]) -> str:
    models = results["models"]
    single = {name: facts for name, facts in models.items() if "curve" in facts}
    calls = range(1, 11)
    states = list(next(iter(single.values()))["states"])
    curves = [_curve(name, facts["curve"]) for name, facts in single.items()]
    rates = [
        f"| {name} | {' | '.join(_rate(facts['states'][state]) for state in states)} |"
        for name, facts in single.items()
    ]
    tables = [_table(name, models[name]["rules"]) for name in ("all five", "gpt-4", "gpt-3.5")]
    return ABOUT.format(
        answer=_answer(models["all five"]["rules"]),
        heads=" | ".join(map(str, calls)),
        lines=" | ".join("---:" for _ in calls),
        curves="\n".join(curves),
        states=" | ".join(states),
        state_lines=" | ".join("---:" for _ in states),
        rates="\n".join(rates),
        tables="\n\n".join(tables),
        seconds="a few seconds",
    )


def _curve(name: str, curve: dict[str, Any]) -> str:
    points = " | ".join(f"{point['value']:.3f}" for point in curve["solved"])
    return (
        f"| {name} | {points} | {_number(curve['ceiling'])} | {_shown(curve['half_life'], 1)} | {curve['calls']:.1f} |"
    )


def _answer(rules: list[dict[str, Any]]) -> str:
    cheap, dear = (_find(rules, price=price, scarcity=False, states=True) for price in (0.005, 0.03))
    blind = _find(rules, price=0.03, scarcity=False, states=False)
    return (
        f"over all five, stopping where a call is learned to be worth less than 0.005 solved tasks takes {cheap['calls']['value']:.1f} calls "
        f"instead of {cheap['calls_full']:.1f} at {_points(cheap['lost'])} points; a fixed cap with as many calls does as well (difference "
        f"{_points(cheap['minus_cap'])}). The dearer a call, the more the rule gains: {_points(dear['minus_cap'])} points at a price of 0.03 "
        f"({dear['calls']['value']:.1f} calls). What was seen last makes the difference: by the number of calls alone the rule is another cap "
        f"({_points(blind['minus_cap'])}). Most of the saving is that of the weaker models, which repeat themselves to the last call; for gpt-4 "
        f"little can be saved for nothing."
    )


def _find(rules: list[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
    return next(row for row in rules if all(row[key] == value for key, value in wanted.items()))


KINDS = {(False, True): "by what was seen", (True, True): "the same, rising price", (False, False): "by calls alone"}


def _table(name: str, rules: list[dict[str, Any]]) -> str:
    full = rules[0]["calls_full"]
    head = (
        f"### {name} ({full:.2f} calls without a stop)\n\n"
        "| price | rule | calls | solved | points against no stop | points against a cap |\n| ---: | --- | ---: | ---: | ---: | ---: |\n"
    )
    rows = [
        f"| {row['price']:g} | {KINDS[row['scarcity'], row['states']]} | {_shown(row['calls'], 2)} | {_shown(row['solved'], 3)} | "
        f"{_points(row['lost'])} | {_points(row['minus_cap'])} |"
        for row in rules
    ]
    return head + "\n".join(rows)


def _rate(found: dict[str, Any]) -> str:
    return (
        "–" if found["next_solves"] is None else f"{found['next_solves']:.1%} ({found['calls']:,})".replace("%", " %")
    )


def _points(found: dict[str, Any]) -> str:
    inside = "" if found["low"] is None else f" [{100 * found['low']:+.1f}, {100 * found['high']:+.1f}]"
    return f"{100 * found['value']:+.1f}{inside}"


def _shown(found: dict[str, Any] | None, digits: int) -> str:
    if found is None:
        return "–"
    inside = "" if found["low"] is None else f" [{found['low']:.{digits}f}, {found['high']:.{digits}f}]"
    return f"{found['value']:.{digits}f}{inside}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
