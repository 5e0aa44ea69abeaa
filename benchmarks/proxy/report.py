"""Writes README.md beside this file from results.json: `python -m benchmarks.proxy.report`."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.decoding.report import CURVE, Row, shown, table

HERE = Path(__file__).parent

HEAD = """# Proxy-tuning: the share of the gap that a tuned small model closes over a larger one

`packaged:medium` (1.8 M parameters) is steered at decoding by what a treatment did to `packaged:small` (0.33 M):
logits = medium + alpha · (small after − small before), and held against the medium model after the same treatment. {problems} problems of
the split "test" × {samples} samples of four-number Countdown at temperature 1; same problems and random numbers in all rows, 95 % intervals
over problems, one training seed. *Share of the gap*: (proxy − base) / (target − base), problems resampled. *To the curve*: pass@64 minus that of
the base at the temperature where it has the same pass@1.
"""

READING = """GRPO raises pass@1 of the medium model and lowers its pass@64; a share is of that rise, or of that fall. With the paper's alpha = 1 the
proxy takes over all of the fall and about half of the rise (anything from none to all of it). With alpha = 0.5 it is ahead of the model that was tuned directly in both, which is
possible since the small expert alone is, too: at this learning rate GRPO serves the small model better. (Three values of alpha were looked at, on the
problems that are reported.) No proxy, and no tuned model, reaches the base's own temperature curve: cooled to T = 0.6, with one
forward pass a token, the base has the pass@1 of the best proxy and a higher pass@64.
"""


def of_treatment(rows: list[Row]) -> str:
    cells = [
        [
            str(row["arm"]).partition(": ")[2],
            shown(row["pass@1"]),
            shown(row["pass@64"]),
            *(
                shown(row[f"share of the gap in pass@{k}"], 2) if f"share of the gap in pass@{k}" in row else ""
                for k in (1, 64)
            ),
            shown(row[CURVE], signed=True),
        ]
        for row in rows
    ]
    return table(["", "pass@1", "pass@64", "share, pass@1", "share, pass@64", "pass@64 to the curve"], cells)


def of_differences(rows: list[Row]) -> str:
    cells = [
        [
            str(row["arm"]).partition(": ")[2],
            *(
                shown(row[f"pass@{k} to {other}"], signed=True)
                for k in (1, 64)
                for other in ("T=1", "the target", "the expert")
            ),
        ]
        for row in rows
        if "pass@1 to the target" in row
    ]
    heads = [f"pass@{k} − {other}" for k in (1, 64) for other in ("base", "target", "expert")]
    return table(["", *heads], cells)


def answer(treatment: str, rows: list[Row]) -> str:
    """The row of alpha = 1 in words."""
    proxy = next(row for row in rows if str(row["arm"]).endswith("alpha=1"))
    shares = " and ".join(
        f"{shown(proxy[f'share of the gap in pass@{k}'], 2)} of the target's change in pass@{k}" for k in (1, 64)
    )
    return (
        f"**{treatment}, alpha = 1**: the proxy makes {shares}. To the target it differs by "
        f"{shown(proxy['pass@1 to the target'], signed=True)} in pass@1 and {shown(proxy['pass@64 to the target'], signed=True)} in "
        f"pass@64, to the expert alone by {shown(proxy['pass@1 to the expert'], signed=True)} and "
        f"{shown(proxy['pass@64 to the expert'], signed=True)}, and to the base cooled to its pass@1 by {shown(proxy[CURVE], signed=True)} in pass@64."
    )


def main() -> None:
    found = json.loads((HERE / "results.json").read_text())
    parts = [HEAD.format(**found)]
    treatments = [name for name, rows in found.items() if isinstance(rows, list) and name != "base"]
    parts += [answer(name, found[name]) for name in treatments]
    parts.append(READING)
    own = [[row["arm"], shown(row["pass@1"]), shown(row["pass@64"])] for row in found["base"]]
    parts += ["## Before any treatment", table(["", "pass@1", "pass@64"], own)]
    for treatment in treatments:
        parts += [f"## {treatment}", of_treatment(found[treatment]), of_differences(found[treatment])]
    seconds = found["seconds"]
    proxy = next(s for name, s in seconds.items() if "alpha=1" in name and "alpha=1." not in name)
    parts += [
        "## Cost",
        f"A token of a proxy is three forward passes and is counted once. Here it took {proxy / seconds['base at T=1']:.1f} times "
        "the seconds of the base alone, on a busy CPU.",
        "## Again",
        "The commands are at the head of `run.py`; `python -m benchmarks.proxy.report` makes this page. What every problem gave: "
        f"`problems.parquet`. torch {found['versions']['torch']}, CPU, float32.",
    ]
    (HERE / "README.md").write_text("\n\n".join(part.strip("\n") for part in parts) + "\n")


if __name__ == "__main__":
    main()
