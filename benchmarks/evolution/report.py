"""The page of the comparison, from its results.json: `python -m benchmarks.evolution.report`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def cell(number: dict[str, Any] | None, *, signed: bool = False) -> str:
    if number is None or number["value"] is None:
        return "–"
    sign = "+" if signed else ""
    if number["low"] is None:
        return f"{number['value']:{sign}.3f}"
    return f"{number['value']:{sign}.3f} [{number['low']:{sign}.3f}, {number['high']:{sign}.3f}]"


def tables(results: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    for policy, tasks in results["policies"].items():
        for task, arms in tasks.items():
            lines += [f"## {policy.capitalize()} policy, {task}", "", *of_arms(arms, results["budgets"])]
    return lines


def of_arms(arms: dict[str, Any], budgets: list[int]) -> list[str]:
    def head(words: str) -> list[str]:
        return [f"| {words} | " + " | ".join(f"{b:,}" for b in budgets) + " |", "| --- |" + " ---: |" * len(budgets)]

    def row(name: str, cells: dict[str, Any], *, signed: bool) -> str:
        return f"| {name} | " + " | ".join(cell(cells[str(b)], signed=signed) for b in budgets) + " |"

    lines = head("solved within … generated tokens")
    lines += [row(name, arm["solved"], signed=False) for name, arm in arms.items()]
    names = list(arms)
    for place, other in enumerate(names):
        later = {name: arms[name]["differences"] for name in names[place + 1 :]}
        compared = {name: cells[other] for name, cells in later.items() if other in cells}
        if compared:
            lines += ["", *head(f"difference to {other}, paired")]
            lines += [row(name, cells, signed=True) for name, cells in compared.items()]
    lines += ["", "| up to the first right plan, or all | tokens generated | prompt tokens | plans | different plans |"]
    lines += ["| --- | ---: | ---: | ---: | ---: |"]
    for name, arm in arms.items():
        costs = f"{arm['tokens']:,.0f} | {arm['prompt_tokens']:,.0f} | {arm['plans']:,.0f} | {arm['distinct']:.0%}"
        lines.append(f"| {name} | {costs} |")
    return [*lines, ""]


def of_policies(results: dict[str, Any]) -> list[str]:
    """What the policies are on their first tries, and what collapse costs each strategy."""
    lines = [
        "## The two policies",
        "",
        "| first tries | pass@1 | pass@16 | pass@64 | different plans of 64 | entropy, nats |",
    ]
    lines += ["| --- | ---: | ---: | ---: | ---: | ---: |"]
    for policy, tasks in results["first tries"].items():
        for task, told in tasks.items():
            passed = " | ".join(cell(told[f"pass@{k}"]) for k in (1, 16, 64))
            lines.append(f"| {policy}, {task} | {passed} | {told['distinct']:.1f} | {told['entropy']:.3f} |")
    for task, arms in results.get("between policies", {}).items():
        budgets = results["budgets"]
        lines += ["", f"| collapsed − preserved, {task}, paired | " + " | ".join(f"{b:,}" for b in budgets) + " |"]
        lines += ["| --- |" + " ---: |" * len(budgets)]
        for name, cells in arms.items():
            lines.append(f"| {name} | " + " | ".join(cell(cells[str(b)], signed=True) for b in budgets) + " |")
    return [*lines, ""]


def write_readme(results: dict[str, Any], path: Path) -> None:
    head = [
        "# Mind Evolution against best-of-N and revision, at equal tokens",
        "",
        f"{results['problems']} held-out problems, seed {results['seed']}; the task's checker is the evaluator of every strategy. 95 % intervals "
        "over problems, differences paired on them; without one where too few problems differ. What it says: "
        "[finding](../../docs/findings/evolution.md).",
        "",
    ]
    arms = next(iter(next(iter(results["policies"].values())).values()))
    foot = [
        "## How",
        "",
        *(f"- {name}: `{arm['spec']}`" for name, arm in arms.items()),
        *(f"- {name}: `{spec}`" for name, spec in results["tasks"].items()),
        "",
        "Tokens are all that a strategy generated up to its first right plan, in the order of its plans, or to the end of its budget. "
        "Prompt tokens are not in the budget and stand beside it. The planner has 0.44 million parameters: `python -m "
        "equipoise.lab.make_planner --out benchmarks/evolution/planner.safetensors`, its numbers in `planner.json`. The collapsed one: "
        "`equipoise train benchmarks/evolution/collapse.toml`, its last checkpoint in half precision (`python -m benchmarks.evolution.shrink runs/evolution-collapse`).",
        "",
        f"`python -m benchmarks.evolution.run`, run in parts by `--policies` and `--tasks` and joined; {', '.join(f'{k} {v}' for k, v in results['machine'].items())}.",
    ]
    path.write_text("\n".join([*head, *tables(results), *of_policies(results), *foot]) + "\n")


if __name__ == "__main__":
    write_readme(json.loads((HERE / "results.json").read_text()), HERE / "README.md")
