"""README.md from results.json, overhead.json and capture_cost.json: python -m benchmarks.adapters.report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
AIM = 0.02  # what the capture may cost a step
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


def answer(result: dict[str, Any]) -> str:
    """The entropy that plain GRPO and every control end with, and whether a control that aims at a band left it."""
    ends = {
        name: [float(np.mean(found["entropy"][-LAST:])) for found in seeds] for name, seeds in by_arm(result).items()
    }
    right = {
        name: [float(np.mean(found["reward"][-LAST:])) for found in seeds] for name, seeds in by_arm(result).items()
    }
    begins = float(np.mean([found["entropy"][0] for found in result["arms"]]))
    plain = max(ends["plain"])
    kept = [name for name in ends if min(ends[name]) > 10 * plain and min(right[name]) >= 0.9 * min(right["plain"])]
    lost = [name for name in ends if name != "plain" and name not in kept]
    words = [f"Plain GRPO falls from {begins:.2f} to {plain:.2f} nats or less."]
    words += [f"`{name}` ends at {min(ends[name]):.2f} to {max(ends[name]):.2f}, as often right." for name in kept]
    words += [
        f"`{name}`, with the settings below, does not help: it ends at {min(ends[name]):.2f} to {max(ends[name]):.2f}, right in "
        f"{min(right[name]):.2f} to {max(right[name]):.2f}."
        for name in lost
    ]
    return " ".join(words)


def overhead_of(found: dict[str, Any]) -> list[str]:
    """What steps with the capture take more, from overhead.json."""
    low, high = found["overhead_95"]
    kept = "within" if high <= AIM else "not shown to be within" if low <= AIM else "more than"
    steps = f"{found['completions']:,} completions of {found['tokens']} tokens, learnt in {found['passes']} passes"
    return [
        "",
        f"The time of steps with the capture differs by {found['overhead']:+.1%} from those without (95 % {low:+.1%} to {high:+.1%}, bootstrap over {found['pairs']} pairs of "
        f"neighbouring steps, of one run that had the machine to itself; {steps}, median {found['median_seconds_off']:.2f} s): {kept} the {AIM:.0%} that it may cost. "
        f"{found['training_thread_share']:.2%} of a step is spent by the training thread in it. Another thread makes rows, in {found['thread_cpu_seconds'] * 1000:.0f} ms of CPU time, "
        f"and another process writes them, before the step ends in all but {found['unfinished']} of {sum(found['captured'])} steps. "
        "Not measured: steps of a second and less, which small operations and the CPU bound.",
    ]


def cost_of(found: dict[str, Any]) -> list[str]:
    """What the thread costs a step, from capture_cost.json."""

    def told(name: str) -> str:
        each = found[name]
        return f"{each['median']:.1f} ms ({each['q10']:.1f} to {each['q90']:.1f})"

    return [
        "",
        f"That thread needs {told('thread_cpu_ms')} of CPU time for a step's {found['prompts']} × {found['samples']} completions of {found['tokens']} "
        f"tokens, and holds a thread that launches small operations all along up by {told('held_up_ms')}; handing over takes the training "
        f"thread {told('handing_over_ms')}. Median and 10 to 90 % of {found['steps']} steps without a trainer, one core of a shared {found['device']}.",
    ]


def page(result: dict[str, Any], timed: dict[str, Any], cost: dict[str, Any]) -> str:
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
        answer(result),
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
    lines += overhead_of(timed["overhead"]) + cost_of(cost)
    commands = [
        *(
            f"PYTHONPATH=src:. python -m benchmarks.adapters.trl_run {' '.join(run['arguments'])}"
            for run in (result, timed)
        ),
        "PYTHONPATH=src:. python -m benchmarks.adapters.capture_cost --json benchmarks/adapters/capture_cost.json",
        "python -m benchmarks.adapters.report",
    ]
    return "\n".join([*lines, "", "Made by", "", *(f"    {command}" for command in commands), ""])


if __name__ == "__main__":
    made = ("results.json", "overhead.json", "capture_cost.json")
    (HERE / "README.md").write_text(page(*(json.loads((HERE / name).read_text()) for name in made)))
