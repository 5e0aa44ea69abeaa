"""Writes README.md beside this file from results.json, and arms.json where there is one: `python -m benchmarks.train.report`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.train.turns import PARTS

HERE = Path(__file__).parent
Row = Mapping[str, Any]

HEAD = """# One step of RL, against TRL

Question: how long does one step (sample a group of completions for every prompt, grade them, update the policy) take in the embedded
trainer, and in TRL's `GRPOTrainer` with transformers' `generate`, on the same model, batch and machine?
"""

HOW = """Both are whole training loops as their users run them (`equipoise.training.loop.train` with its log and its record of every rollout,
`GRPOTrainer.train` with its log), each in a process of its own with clocks around its parts. They take turns, one step each, in an
order drawn anew every round; warm-up steps are not counted. × is TRL over ours in the same round: median, 95 % bootstrap interval over
rounds, and in brackets the extremes. The CPU cases ran beside other work (load averages below), so their seconds are long and uneven: there
the CPU seconds of the process are the number to read. TRL with vLLM is not compared.

What differs: ours runs each prompt once for all its completions, in sampling and (on a CPU) in the update, writes the sampler's
cache in place where transformers copies it at every token, and does not copy it for every query head.

Equal on both sides, and counted in every step: prompts (Countdown questions, 40 to 50 tokens), completions, tokens sampled, tokens
trained, rows of a pass, passes, updates (1). No completion can end early: the end-of-text token has an id that the model has no logit for.
Weights, AdamW and all arithmetic in float32, no gradient checkpointing, no dropout, the clipped loss averaged over the step's tokens,
advantages scaled by their group. TRL has its own defaults otherwise (its fused head, fused AdamW); on-policy neither scores
old log-probs. *sampling*: prompts to token ids of completions; *scoring*: log-probs of the reference, with a KL; *update*: forward, backward,
clipping, optimiser; *rest*: drawing problems, decoding, grading, advantages, logging, writing.
"""


def describe(result: Row) -> str:
    case = result["case"]
    kl = f", KL {case['kl']:g} to the reference" if case["kl"] else ""
    more = "".join(f", TRL {key}={value}" for key, value in result["trl_settings"].items())
    return (
        f"{case['model']}, {case['prompts']} prompts × {case['samples']} completions × {case['tokens']} tokens, "
        f"passes of {case['rows']}{kl}{more}"
    )


def clock_of(result: Row) -> str:
    """A GPU's work is not in the CPU seconds of its process; on a shared CPU they are the steadier number."""
    return "seconds" if result["case"]["device"].startswith("cuda") else "cpu_seconds"


def ratio(found: Row | None) -> str:
    if found is None:
        return ""
    spread = f"{found['low']:.2f}, {found['high']:.2f}; [{found['least']:.2f}, {found['most']:.2f}]; n {found['n']}"
    return f"**{found['median']:.2f}** ({spread})"


def answer(results: list[Row]) -> str:
    """One sentence: the least and the most of the cases' medians, by device."""
    found: dict[tuple[str, str], list[float]] = {}
    for result in results:
        name, what = ("times_trl", "time") if clock_of(result) == "seconds" else ("times_trl_cpu", "CPU time")
        if result[name] is not None:
            found.setdefault((result["machine"]["device"], what), []).append(result[name]["median"])
    told = [f"{min(r):.2f} to {max(r):.2f} × our {what} on {device}" for (device, what), r in found.items()]
    return f"Answer: TRL takes {'; '.join(told)}." if told else "Answer: TRL was not there, only our side ran."


def step_table(results: list[Row]) -> list[str]:
    lines = [
        "| case | side | seconds | CPU seconds | × TRL / ours, seconds | × TRL / ours, CPU seconds | peak MB |",
        "| --- | --- | ---: | ---: | --- | --- | ---: |",
    ]
    for result in results:
        for name, side in result["sides"].items():
            if side is None:
                lines.append(f"| {describe(result)} | {name} | not run | | | | |")
                continue
            both = (ratio(result["times_trl"]), ratio(result["times_trl_cpu"])) if name == "equipoise" else ("", "")
            lines.append(
                f"| {describe(result)} | {name} | {side['seconds']:.2f} | {side['cpu_seconds']:.2f} "
                f"| {both[0]} | {both[1]} | {side['peak_mb']:,} |"
            )
    return lines


def part_table(results: list[Row]) -> list[str]:
    lines = [f"| case | side | clock | {' | '.join(PARTS)} |", "| --- | --- | --- |" + " ---: |" * len(PARTS)]
    for result in results:
        clock = clock_of(result)
        for name, side in result["sides"].items():
            if side is not None:
                parts = " | ".join(f"{side[f'{clock}_of'][part]:.3f}" for part in PARTS)
                lines.append(f"| {describe(result)} | {name} | {clock.replace('_', ' ')} | {parts} |")
    return lines


def machines(results: list[Row]) -> list[str]:
    lines = []
    for result in results:
        about = result["machine"]
        versions = ", ".join(
            f"{name} {about[name]}" for name in ("python", "torch", "transformers", "trl") if about[name]
        )
        lines.append(
            f"- {describe(result)}: {about['device']}, {about['torch_threads']} torch thread(s), float32 matmul precision "
            f"`{about['float32_matmul']}`, load average {about['load_average']} (this run adds about "
            f"{about['torch_threads']}); {versions}. `{result['command']}`"
        )
    return lines


def arms_table(found: Row) -> list[str]:
    lines = [
        "",
        "## Whole studies side by side",
        "",
        found.get(
            "made",
            "`equipoise study` from nothing to its results page, timed from start to end; nothing is extrapolated.",
        ),
        "",
        "| study | side by side | minutes | arms × seeds | steps in all | completions trained on | completions evaluated |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for one in found["studies"]:
        lines.append(
            f"| {found['study']} {' '.join(found['settings'])} | {one['jobs']} | {one['seconds'] / 60:.1f} "
            f"| {one['arms']} × {one['seeds']} | {one['steps']:,} | {one['trained_on']:,} | {one['evaluated']:,} |"
        )
    about = found["machine"]
    again = "In one timed call: " if "made" in found else ""
    return [*lines, "", f"{about['device']}, load average {about['load_average']}. {again}`{found['command']}`"]


def main() -> None:
    results = json.loads((HERE / "results.json").read_text())["results"]
    lines = [
        HEAD,
        answer(results),
        "",
        *step_table(results),
        "",
        HOW,
        "## Where the time goes",
        "",
        *part_table(results),
    ]
    if (HERE / "arms.json").exists():
        lines += arms_table(json.loads((HERE / "arms.json").read_text()))
    lines += ["", "## Machines, versions, commands", "", *machines(results), ""]
    (HERE / "README.md").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
