"""The README of the benchmark, made from its results: nothing in it is typed by hand but the words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scipy.stats import binomtest

FAILURES = ("training-time entropy collapse", "inference-time variance inflation", "both")
NO_DATA = "not enough data"

Row = Mapping[str, Any]


def share(count: int, n: int) -> str:
    """A share with its Wilson interval."""
    found = binomtest(count, n).proportion_ci(method="wilson")
    return f"{count / n:.0%} [{found.low:.0%}, {found.high:.0%}]"


def count(row: Row, *verdicts: str) -> int:
    return sum(row["verdicts"].get(verdict, 0) for verdict in verdicts)


def false_alarms(row: Row) -> int:
    """Verdicts that name a loop which is sound in this world."""
    named = {"training-time entropy collapse": {"t"}, "inference-time variance inflation": {"i"}, "both": {"t", "i"}}
    sick = named.get(row["label"], set())
    if row["label"] == NO_DATA and row["world"]["collapse"]:
        sick = {"t", "i"}
    return sum(n for verdict, n in row["verdicts"].items() if named.get(verdict, set()) - sick)


def missed(row: Row) -> int:
    """A loop that fails was called healthy, or only one of two was named."""
    if row["label"] == "both":
        return count(row, "healthy", FAILURES[0], FAILURES[1])
    return count(row, "healthy") if row["label"] in FAILURES else 0


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"| {' | '.join('---' for _ in head)} |"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def classes(rows: Sequence[Row], name: str, size: str | None = None) -> str:
    body = []
    for row in rows:
        if row["table"] != name or size not in (None, row["size"]) or row["use"] != "search":
            continue
        n = row["runs"]
        body.append(
            (
                row["case"],
                "yes" if row["baseline"] else "no",
                share(count(row, row["label"]), n),
                share(false_alarms(row), n),
                share(missed(row), n),
                f"{count(row, NO_DATA) / n:.0%}",
            )
        )
    return table(("class", "baseline", "right verdict", "false alarm", "failure missed", NO_DATA), body)


def uses(rows: Sequence[Row]) -> str:
    body = []
    for row in rows:
        if row["table"] == "classes" and row["baseline"] and row["case"] in ("healthy: learns", "collapse"):
            n, truth = row["runs"], row["truth"]
            body.append(
                (
                    row["case"],
                    row["size"],
                    row["use"],
                    f"{truth['pass_1']:+.1%}",
                    share(count(row, "healthy"), n),
                    share(count(row, *FAILURES), n),
                    f"{count(row, NO_DATA) / n:.0%}",
                )
            )
    return table(("class", "size", "use", "true change of pass@1", "healthy", "an alarm", NO_DATA), body)


def goal(rows: Sequence[Row]) -> str:
    """Whether every healthy class keeps to 5 % of false alarms, and which comes nearest to it."""
    healthy = [row for row in rows if row["label"] == "healthy" and row["use"] == "search"]
    worst = max(healthy, key=lambda row: false_alarms(row) / row["runs"])
    kept = "met" if false_alarms(worst) <= 0.05 * worst["runs"] else "not met"
    with_base = "with" if worst["baseline"] else "without"
    return f"{kept}; the most is {share(false_alarms(worst), worst['runs'])}, {worst['case']}, {worst['size']}, {with_base} a baseline"


def power(rows: Sequence[Row], size: str, case: str) -> str:
    body = []
    for row in rows:
        if row["table"] != "power" or row["size"] != size or row["case"] != case:
            continue
        n, truth = row["runs"], row["truth"]
        if case == "collapse":
            what = (
                f"{truth['pass_k']:+.1%} at k = {truth['k']}",
                f"{truth['distinct_k_rel']:+.0%}",
                "yes" if row["baseline"] else "no",
            )
        else:
            what = (f"{truth['overthinking']:+.1%}",)
        body.append(
            (
                f"{row['effect']:g}",
                *what,
                share(count(row, row["label"]), n),
                share(count(row, "healthy"), n),
                f"{count(row, NO_DATA) / n:.0%}",
            )
        )
    if case == "collapse":
        head = (
            "effect",
            "true change of pass@k",
            "of distinct answers, unsolved",
            "baseline",
            "detected",
            "called healthy",
            NO_DATA,
        )
    else:
        head = ("effect", "true loss at 16k tokens", "detected", "called healthy", NO_DATA)
    return table(head, body)


def rules(rows: Sequence[Row]) -> str:
    """Which outcome rules raised the false alarms."""
    total: dict[str, int] = {}
    for row in rows:
        if row["label"] == "healthy" and row["use"] == "search":
            for name, n in row["failing_rules"].items():
                total[name] = total.get(name, 0) + n
    runs = sum(row["runs"] for row in rows if row["label"] == "healthy" and row["use"] == "search")
    body = [(name, str(n)) for name, n in sorted(total.items(), key=lambda item: -item[1])]
    return f"Over {runs} diagnoses of healthy runs:\n\n" + table(("rule past its limit", "times"), body)


def answer(rows: Sequence[Row]) -> str:
    """The answer in one sentence, from the larger size with a baseline."""
    main = [
        row
        for row in rows
        if row["table"] == "classes" and row["size"] == "100 × 16" and row["baseline"] and row["use"] == "search"
    ]
    healthy = [row for row in main if row["label"] == "healthy"]
    failing = [row for row in main if row["label"] in FAILURES]
    n = sum(row["runs"] for row in healthy)
    alarms = sum(false_alarms(row) for row in healthy)
    least = min(failing, key=lambda row: count(row, row["label"]) / row["runs"])
    return (
        f"With 100 problems, 16 samples each and a baseline, {alarms} of {n} healthy runs raise a false alarm, and a "
        f"severe failure is named in at least {count(least, least['label']) / least['runs']:.0%} of the runs of every class "
        f"(lowest: {least['case']})."
    )


TEXT = """# How often is the verdict right?

Question: how often does `equipoise diagnose` raise a false alarm on a healthy run, how small an effect does it find, and
does it say "not enough data" rather than something wrong?

Answer: {answer}

Goal, at most 5 % false alarms in every healthy class: {goal}.

Made by `{command}` in {minutes} minutes on {jobs} cores; class i has the seeds from 1000 i on. {versions}.
{runs} runs per row; brackets are 95 % Wilson intervals. Raw counts, seeds, every world's knobs and true effects: `results.json`.

The runs are synthetic (`equipoise.lab.synthetic`): answers are drawn from known distributions, so what is true is known
exactly. They are made from the mechanisms described in the literature; the limits in `diagnosis/rules.py` were committed before
this generator was written and were not moved after it.

A false alarm names a loop that is sound in that world. A failure is missed when a failing loop is called healthy, or one
of two is left out. What remains is "not enough data".

## 100 problems, 16 samples each, 8 samples at each of 7 budgets

{large}

## 50 problems, 8 samples each, 4 samples at each of 7 budgets

{small}

## Too little data

{too_little}

## What the model is for decides

The collapse raises pass@1: a user who draws one answer gains by it, a user who searches loses. For a vote the loss of
entropy at forking tokens decides where maj@k is unclear. All with a baseline:

{uses}

## How small a collapse is found

Effect 1 sharpens every problem's answers with an exponent of 5, effect e with 5^e. True changes are of the final model against the base,
over 4,000 problems; limits are −5 % of the problems for pass@k and −25 % for distinct answers on unsolved problems.

100 problems, 16 samples each:

{collapse_large}

50 problems, 8 samples each:

{collapse_small}

## How small an inflation is found

The limit is a loss of 4 % of the samples. 100 problems, 8 samples per budget, untrained model, with a baseline:

{inflation_large}

50 problems, 4 samples per budget:

{inflation_small}

## Which rules raise false alarms

{rules}

{weaker}
"""

WEAKER = """## What is weaker

- Answers of a problem are independent draws. Real samples of one prompt are too, but real checkers err and real answers have
  forms that a parser may split or merge; neither is simulated.
- One family of worlds: Beta(½, ½) success rates, Zipf wrong answers, 15 % of the problems out of reach. A set of problems that
  are all easy has hardly any unsolved ones, and the rule that finds collapse most often, fewer distinct answers on unsolved
  problems, then has nothing to read.
- Collapse is a common exponent with a spread of a half over problems; a collapse of the format or of one topic only is not simulated.
- Without a baseline a run is compared with its own first fifth: what was lost before that is not seen.
"""


def write_readme(results: Mapping[str, Any], path: Path) -> None:
    rows = results["rows"]
    path.write_text(
        TEXT.format(
            answer=answer(rows),
            command=results["command"],
            minutes=round(results["seconds"] / 60),
            jobs=results["jobs"],
            versions=", ".join(f"{name} {number}" for name, number in results["versions"].items()),
            runs=rows[0]["runs"],
            large=classes(rows, "classes", "100 × 16"),
            small=classes(rows, "classes", "50 × 8"),
            too_little=classes(rows, "too little"),
            uses=uses(rows),
            goal=goal(rows),
            collapse_large=power(rows, "100 × 16", "collapse"),
            collapse_small=power(rows, "50 × 8", "collapse"),
            inflation_large=power(rows, "100 × 16", "inflation"),
            inflation_small=power(rows, "50 × 8", "inflation"),
            rules=rules(rows),
            weaker=WEAKER,
        ).rstrip()
        + "\n"
    )
