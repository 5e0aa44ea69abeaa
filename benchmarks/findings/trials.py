"""Every arm that was tried for the frontier, with its settings, in one table.

    python -m benchmarks.findings.trials > studies/frontier-arms.md

From studies/results/NAME/results.json of the studies below. A setting stands with an arm where it is neither the trainer's default nor the
same in the whole study.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.findings.outcomes import told
from benchmarks.findings.studied import RESULTS, table
from equipoise.files import read_json
from equipoise.lab.study_config import BASE
from equipoise.training.recipe import TrainConfig, as_settings

CHOSE = (  # their problems and seeds chose settings
    "frontier-cooler-trials",
    "frontier-cooler-rivals-trials",
    "frontier-cooler-medium-trials",
    "frontier-options",
    "frontier-options-more",
    "frontier-medium-options",
)
ASKED = (  # and theirs did not
    "frontier",
    "frontier-confirmed",
    "frontier-confirmed-more",
    "frontier-cooler-medium",
    "frontier-cooler-medium-rivals",
    "frontier-small",
    "frontier-small-confirmed",
    "frontier-cooler",
    "frontier-cooler-rivals",
    "frontier-cooler-longer",
    "held-out-trips",
    "held-out-trips-cooler",
    "held-out-trips-cooler-rivals",
    "held-out-trips-again",
    "frontier-smollm2",
)
IDLE = ("warmup", "rows", "max_tokens")  # not what the arms are about
Settings = dict[str, str]


def changed(settings: Mapping[str, Any]) -> Settings:
    """Of the method, the sampling and the learning: what is not the trainer's default."""
    usual = as_settings(TrainConfig(out=Path()))
    return {
        name if part == "method" else f"{part}.{name}": _written(value)
        for part in ("method", "sampling", "learning")
        for name, value in settings[part].items()
        if name not in IDLE and value != usual[part][name]
    }


def _written(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(str, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def said(settings: Settings) -> str:
    return "; ".join(f"{name}={value}" for name, value in settings.items()) or "–"


def shared(results: Mapping[str, Any]) -> Settings:
    """What all arms of a study have."""
    first, *others = (changed(recipe["settings"]) for recipe in results["recipes"].values())
    return {name: value for name, value in first.items() if all(each.get(name) == value for each in others)}


def of_arm(recipe: Mapping[str, Any], study: Settings) -> str:
    """An arm that looks at another's weights: whose, and what is done with them. Of any other what it does not share."""
    if made := recipe["made_of"]:
        how = {"ema": "true"} if made["ema"] else {}
        how |= {} if made["blend"] == 1 else {"blend": f"{made['blend']:g}"}
        return said({"of": made["arm"]} | how)
    return said({name: value for name, value in changed(recipe["settings"]).items() if name not in study})


def study_row(name: str, results: Mapping[str, Any]) -> tuple[str, ...]:
    recipe, look = next(iter(results["recipes"].values()))["settings"], results["evaluation"]
    return (
        name,
        f"{recipe['task'].partition(':')[0]}, {Path(recipe['model']).stem}",
        said(shared(results)),
        f"{results['rollouts_per_run']:,}",
        ", ".join(map(str, results["seeds"])),
        f"{look['problems']} × {look['samples']}",
        ", ".join(f"{each:g}" for each in look["temperatures"]),
    )


def arm_rows(name: str, results: Mapping[str, Any]) -> list[tuple[str, ...]]:
    study, k, rows = shared(results), results["k_max"], []
    for row in results["volumes"]:
        arm = row["arm"]
        to_base = next((each for each in row["differences"] if each["against"] == BASE), None)
        best = (f"{row[each]:.3f}" for each in ("best_pass@1", f"best_pass@{k}"))
        settings = "the model that all begin with" if arm == BASE else of_arm(results["recipes"][arm], study)
        area = f"{row['volume']['value']:.3f}"
        rows.append((name, arm, settings, " / ".join(best), area, told(to_base) if to_base else ""))
    return rows


def page() -> str:
    found = {name: read_json(RESULTS / name / "results.json") for name in (*CHOSE, *ASKED)}
    heads = ("study", "task, model", "all arms", "rollouts of a run", "seeds", "problems × samples", "temperatures")
    of_studies = table(heads, [study_row(name, results) for name, results in found.items()], texts=3)
    heads = ("study", "arm", "settings", "best pass@1 / pass@k", "area", "Δ area to the base")
    rows = [row for name, results in found.items() for row in arm_rows(name, results)]
    return f"""\
# Every arm that was tried for the frontier

{len(rows)} rows from {len(found)} studies, for [the frontier](../docs/findings/frontier.md), which says what they mean. The first {len(CHOSE)} studies chose
settings; the seeds and problems of the others chose nothing. Still earlier, one seed each: [first trials](frontier-trials.md). A setting stands
here where it is not the trainer's default: what all arms of a study share in the first table, the rest in the second. *of*: the arm looks at that
arm's weights, at their moving average (*ema*) or at a *blend* with the base model's.

{of_studies}

*best*: the highest at any temperature, each for itself; k is 64, with SmolLM2 32. *area*: of the union of [0, pass@1] × [0, pass@k] over the temperatures.
95 % intervals, paired on problems and seeds; areas of different studies do not compare, their problems differ.

{table(heads, rows, texts=3)}

Made by `python -m benchmarks.findings.trials > studies/frontier-arms.md`.
"""


def main() -> None:
    print(page(), end="")


if __name__ == "__main__":
    main()
