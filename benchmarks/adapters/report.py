"""README.md from results.json: python -m benchmarks.adapters.report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
LAST = 10  # steps over which the end of a run is averaged


def by_arm(result: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    arms: dict[str, list[dict[str, Any]]] = {}
    for found in result["arms"]:
        arms.setdefault(found["name"], []).append(found)
    return arms


def table(result: dict[str, Any]) -> list[str]:
    """One line an arm: entropy at the first, a middle and the last steps, each seed's, and the rewards of the last."""
    lines = [
        "| arm | what is added | entropy at step 1 | half-way | last steps | right, last steps |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, seeds in by_arm(result).items():
        n = len(seeds[0]["entropy"])

        def each(key: str, at: slice, seeds: list[dict[str, Any]] = seeds) -> str:
            return " / ".join(f"{np.mean(found[key][at]):.2f}" for found in seeds)

        half = slice(n // 2 - LAST // 2, n // 2 + LAST // 2)
        added = ", ".join(f"`{spec}`" for spec in seeds[0]["exploration"]) or "nothing"
        cells = [
            each("entropy", slice(0, 1)),
            each("entropy", half),
            each("entropy", slice(-LAST, None)),
            each("reward", slice(-LAST, None)),
        ]
        lines.append(f"| {name} | {added} | {' | '.join(cells)} |")
    return lines


def page(result: dict[str, Any]) -> str:
    arms = by_arm(result)
    first = next(iter(arms.values()))
    versions = ", ".join(f"{package} {number}" for package, number in result["versions"].items())
    entropy = max(found["record_minus_log"]["entropy"] for found in result["arms"])
    reward = max(found["record_minus_log"]["reward"] for found in result["arms"])
    lines = [
        "# Controls inside TRL",
        "",
        "Does a control of the catalogue, added to TRL's `GRPOTrainer` by the adapter, hold the entropy that plain GRPO loses?",
        "",
        f"{result['model']} learns Countdown with two numbers for {len(first[0]['entropy'])} steps of "
        f"{first[0]['prompts']} × {first[0]['samples']} completions, learning rate {first[0]['lr']:g}, {len(first)} seeds "
        f"(values are given per seed, the last {LAST} steps averaged). {result['device']}, {versions}.",
        "",
        *table(result),
        "",
        f"The record's figures against those that TRL logged, largest difference over all steps and arms: entropy {entropy:.4f} nats "
        f"(the record keeps entropies in half precision), reward {reward:.1g}.",
    ]
    if "overhead" in result:
        found = result["overhead"]
        low, high = found["overhead_95"]
        lines += [
            "",
            f"The capture costs {found['overhead']:+.1%} of a step (95 % {low:+.1%} to {high:+.1%}, bootstrap over {found['steps_on']} steps with and "
            f"{found['steps_off']} without it, in blocks of one run; {found['completions']} completions of {found['tokens']} tokens, median "
            f"{found['median_seconds_off']:.2f} s a step). {found['training_thread_share']:.2%} of a step is spent by the training thread itself.",
        ]
    command = f"PYTHONPATH=src:. python -m benchmarks.adapters.trl_run {' '.join(result['arguments'])}"
    return "\n".join([*lines, "", "Made by", "", f"    {command}", "    python -m benchmarks.adapters.report", ""])


if __name__ == "__main__":
    (HERE / "README.md").write_text(page(json.loads((HERE / "results.json").read_text())))
