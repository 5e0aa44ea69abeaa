"""Writes README.md beside this file from results.json: `python -m benchmarks.decoding.report`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from equipoise.measures.intervals import paired_difference

HERE = Path(__file__).parent
Row = Mapping[str, Any]
CURVE = "pass@64 to the curve at equal pass@1"

HEAD = """# Ways of decoding against plain temperature

Does min-p, top-nσ, an entropy-adaptive temperature, repulsion between siblings, or a question in several wordings find more than plain
temperature does with as many samples? The page with the answer: [decoding](../../docs/findings/decoding.md).

Four-number Countdown, the packaged GPT with 0.33 M parameters, and the same after 100 steps of plain GRPO (seed 0, the settings of the demo's plain arm).
{tune} problems of the split "tune" × {samples} samples for every setting; then the setting of each family that stood farthest above the
curve of plain temperatures, on {test} problems of "test" × {samples} samples. All share problems and random numbers; 95 % intervals over
problems. *To the curve*: pass@64 minus that of plain temperature where it has the same pass@1, on straight lines between T =
{temperatures}; problems resampled. *To the same T*: pass@64 minus that of plain sampling at the same temperature, paired. *Distinct*: different canonical answers among {samples}.
"""

FOOT = """## Again

```
equipoise train model=packaged:small out=runs/small-grpo task=countdown sampling.prompts=32 sampling.samples=16 learning.steps=100 learning.lr=2e-4
python -m benchmarks.decoding.run --collapsed runs/small-grpo --tune {tune} --test {test}
python -m benchmarks.decoding.report
```

What every problem gave, for the rows of "test": `problems.parquet`. torch {torch}, CPU, float32.
"""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"| {' | '.join(['---'] + ['---:'] * (len(head) - 1))} |"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def shown(number: Row, digits: int = 3, *, signed: bool = False) -> str:
    if number["value"] is None:
        return "–"
    sign = "+" if signed else ""
    value = f"{number['value']:{sign}.{digits}f}"
    if number.get("low") is None:
        return f"{value} (no interval)"
    return f"{value} [{number['low']:{sign}.{digits}f}, {number['high']:{sign}.{digits}f}]"


def to_same_temperature(policy: str, arm: str, counts: Mapping[str, np.ndarray]) -> Row:
    """Of all 64 completions one is right, or none is: pass@64 of a problem is 1 or 0."""
    at = re.sub(r".*T0?=", "T=", arm)
    found = paired_difference(counts[f"{policy}: {arm}"] > 0, counts[f"{policy}: {at}"] > 0)
    return {"value": found.value, "low": found.low, "high": found.high}


def right_by_arm() -> dict[str, np.ndarray]:
    """Right completions of every problem."""
    table = pq.read_table(HERE / "problems.parquet", columns=["arm", "correct"])
    arms, right = np.array(table["arm"].to_pylist()), table["correct"].to_numpy()
    return {arm: right[arms == arm] for arm in dict.fromkeys(arms.tolist())}


def of_test(policy: str, rows: Sequence[Row]) -> str:
    counts = right_by_arm()
    cells = []
    for row in rows:
        plain = row["family"] == "temperature"
        cells.append(
            [
                row["arm"] if plain else f"{row['family']}: {row['arm']}",
                shown(row["pass@1"]),
                shown(row["pass@64"]),
                shown(row["distinct"], 1),
                f"{row['tokens']:.1f}",
                "" if plain else shown(row[CURVE], signed=True),
                "" if plain else shown(to_same_temperature(policy, row["arm"], counts), signed=True),
            ]
        )
    heads = ["way", "pass@1", "pass@64", "distinct", "tokens of one", "pass@64 to the curve", "to the same T"]
    return table(heads, cells)


def of_tune(rows: Sequence[Row]) -> str:
    cells = [
        [
            row["arm"] if row["family"] == "temperature" else f"{row['family']}: {row['arm']}",
            f"{row['pass@1']['value']:.3f}",
            f"{row['pass@64']['value']:.3f}",
            f"{row['distinct']['value']:.1f}",
            "" if row["family"] == "temperature" else shown(row[CURVE], signed=True),
        ]
        for row in rows
    ]
    return table(["way", "pass@1", "pass@64", "distinct", "pass@64 to the curve"], cells)


def main() -> None:
    found = json.loads((HERE / "results.json").read_text())
    test, tune = found["base"]["test"], found["base"]["tune"]
    temperatures = ", ".join(row["arm"][2:] for row in test["rows"] if row["family"] == "temperature")
    numbers = {"tune": tune["problems"], "test": test["problems"], "samples": test["samples"]}
    parts = [HEAD.format(**numbers, temperatures=temperatures)]
    for name, title in (("base", "The packaged model"), ("collapsed", "After plain GRPO")):
        parts += [f"## {title}: the chosen settings, test", of_test(name, found[name]["test"]["rows"])]
    for name, title in (("base", "The packaged model"), ("collapsed", "After plain GRPO")):
        parts += [f"## {title}: all settings, tune", of_tune(found[name]["tune"]["rows"])]
    parts.append(FOOT.format(**numbers, torch=found["versions"]["torch"]))
    (HERE / "README.md").write_text("\n\n".join(part.strip("\n") for part in parts) + "\n")


if __name__ == "__main__":
    main()
