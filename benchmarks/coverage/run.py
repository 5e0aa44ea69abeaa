"""Count how often our 95 % intervals hold the truth.

    python -m benchmarks.coverage.run [--family NAME] [--sims 1000] [--jobs 2]

A family is a file beside this one with a list `CASES` of `Case(name, simulate)`; to add one, write the file. For every size
(prompts, samples) `simulate(rng, prompts, samples)` is called `--sims` times; each call draws one run from `worlds` and yields
(name of the estimate, low, high, truth) for every interval that we would show, with None for bounds that we would not. The truth
is that of the population of prompts, not of the prompts drawn. Simulation i of a case has its own seed, so results do not depend
on `--jobs`.

`results.json` keeps the rows of all families; a run replaces those of the families it ran. `README.md` is made from it.
"""

from __future__ import annotations

import argparse
import ast
import json
import pkgutil
import sys
import time
import zlib
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binomtest

from benchmarks.coverage.case import Case

HERE = Path(__file__).parent
LEAST, MOST = 0.92, 0.98
CHANCE = 0.05  # a share beyond 92 to 98 % that the simulations' own error makes as often as this is not held against it
SELDOM = 0.2  # an interval shown in fewer simulations than this is one that we do not show
SEED = 20260101
CHUNK = 50
_HELPERS = ("run", "case", "worlds")


@dataclass(frozen=True, slots=True)
class Row:
    """One estimate of one case at one size. `covered`: share of the shown intervals that hold the truth."""

    family: str
    case: str
    estimate: str
    prompts: int
    samples: int
    sims: int
    shown: int
    covered: float | None
    truth_below: int  # intervals that lie wholly above the truth
    truth_above: int
    width: float | None  # median
    verdict: str
    seed: int
    command: str


def families() -> list[str]:
    names = sorted(module.name for module in pkgutil.iter_modules([str(HERE)]) if module.name not in _HELPERS)
    return [name for name in names if hasattr(import_module(f"benchmarks.coverage.{name}"), "CASES")]


def cases_of(family: str) -> list[Case]:
    cases: list[Case] = import_module(f"benchmarks.coverage.{family}").CASES
    return cases


def simulate(family: str, case: str, prompts: int, samples: int, first: int, last: int) -> dict[str, list[list[float]]]:
    """Simulations first … last − 1 of a case: per estimate a list of [low, high, truth], nan for bounds not shown."""
    (chosen,) = [each for each in cases_of(family) if each.name == case]
    found: dict[str, list[list[float]]] = {}
    for i in range(first, last):
        rng = np.random.default_rng([SEED, zlib.crc32(f"{family}/{case}".encode()), prompts, samples, i])
        for name, low, high, truth in chosen.simulate(rng, prompts, samples):
            hidden = low is None or high is None
            found.setdefault(name, []).append([np.nan, np.nan, truth] if hidden else [float(low), float(high), truth])  # type: ignore[arg-type]
    return found


def judge(shown: int, sims: int, covered: float | None, name: str, limits: int) -> str:
    if name.startswith("rejected:"):
        return "not used"
    if covered is None or shown < SELDOM * sims:
        return "not shown"
    if (limits > shown / 2 or name.startswith("at least:")) and covered >= LEAST:
        return "at least"
    for word, beyond, edge, tail in (
        ("narrow", covered < LEAST, LEAST, "less"),
        ("wide", covered > MOST, MOST, "greater"),
    ):
        if beyond:
            chance = binomtest(round(covered * shown), shown, edge, alternative=tail).pvalue
            return f"too {word}" if chance < CHANCE else "inside or nearly"
    return "inside"


def summarise(
    family: str, case: str, size: tuple[int, int], name: str, found: list[list[float]], sims: int, command: str
) -> Row:
    low, high, truth = np.asarray(found).T
    known = np.isfinite(low) & np.isfinite(high)
    below, above = int((truth[known] < low[known]).sum()), int((truth[known] > high[known]).sum())
    shown = int(known.sum())
    covered = 1 - (below + above) / shown if shown else None
    width = float(np.median((high - low)[known])) if shown else None
    # Wilson's interval starts or ends at the edge itself only where no prompt, or every prompt, has the property.
    limits = int(((low[known] == 0) | (high[known] == 1)).sum())
    verdict = judge(shown, sims, covered, name, limits)
    return Row(family, case, name, *size, sims, shown, covered, below, above, width, verdict, SEED, command)


def run(chosen: Sequence[str], *, sims: int, jobs: int, command: str) -> list[Row]:
    tasks = [
        (family, case.name, *size, first, min(first + CHUNK, sims))
        for family in chosen
        for case in cases_of(family)
        for size in case.sizes
        for first in range(0, sims, CHUNK)
    ]
    merged: dict[tuple[str, str, int, int], dict[str, list[list[float]]]] = {}
    start = time.monotonic()
    with ProcessPoolExecutor(jobs) as pool:
        for done, (task, part) in enumerate(zip(tasks, pool.map(simulate, *zip(*tasks, strict=True)), strict=True), 1):
            family, case, prompts, samples, *_ = task
            for name, found in part.items():
                merged.setdefault((family, case, prompts, samples), {}).setdefault(name, []).extend(found)
            if sys.stderr.isatty():
                left = (time.monotonic() - start) / done * (len(tasks) - done)
                print(f"\r{done}/{len(tasks)} parts, {left:.0f} s left ", end="", file=sys.stderr)
    return [
        summarise(family, case, (prompts, samples), name, found, sims, command)
        for (family, case, prompts, samples), by_name in merged.items()
        for name, found in by_name.items()
    ]


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    lines = [
        "| case | estimate | prompts | samples | n | shown | covered | truth below / above | median width | verdict |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        covered = "–" if row["covered"] is None else f"{100 * row['covered']:.1f} %"
        width = "–" if row["width"] is None else f"{row['width']:.3g}"
        sides = f"{row['truth_below']} / {row['truth_above']}"
        cells = (row["case"], row["estimate"], row["prompts"], row["samples"], row["sims"], row["shown"], covered)
        lines.append(f"| {' | '.join(map(str, cells))} | {sides} | {width} | {row['verdict']} |")
    return lines


def readme(rows: Sequence[dict[str, Any]]) -> str:
    used = [row for row in rows if row["verdict"] != "not used"]
    count = Counter(row["verdict"] for row in used)
    outside = count["too narrow"] + count["too wide"]
    stress = sum(row["verdict"].startswith("too") and row["case"].startswith("stress") for row in used)
    lines = [
        "# Coverage of the 95 % intervals",
        "",
        "Do our intervals hold the truth as often as they say? Each row simulates runs whose truth is known and counts.",
        f"Asked for: {LEAST:.0%} to {MOST:.0%} of the intervals that are shown. Of {len(used)} rows",
        "",
        f"- {count['inside']} are inside, {count['inside or nearly']} beyond by no more than the error of the count (binomial test, {CHANCE:.0%});",
        f"- {count['not shown']} are not shown (shown in fewer than {SELDOM:.0%} of the simulations: the value stands alone);",
        f"- {count['at least']} can only be asked to cover at least {LEAST:.0%}: a limit on one side, where no problem or every problem has the",
        "  property, or a choice from a few numbers, as the best budget;",
        f'- {outside} are outside, {stress} of them in cases named "stress", which go beyond what the intervals are made for.',
        "",
    ]
    for family in sorted({row["family"] for row in rows}):
        mine = [row for row in rows if row["family"] == family]
        about = ast.get_docstring(ast.parse((HERE / f"{family}.py").read_text())) or ""
        lines += [f"## {family}", "", about, ""]
        lines += [f"`{mine[0]['command']}`, seed {mine[0]['seed']}", ""]
        lines += [*table([row for row in mine if row["verdict"] != "not used"]), ""]
        rejected = [row for row in mine if row["verdict"] == "not used"]
        if rejected:
            lines += ["Tried and not used:", "", *table(rejected), ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--family", action="append", choices=families(), help="one family; may be repeated; default all"
    )
    parser.add_argument("--sims", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    chosen = asked.family or families()
    by_family = {
        family: run(
            [family],
            sims=asked.sims,
            jobs=asked.jobs,
            command=f"python -m benchmarks.coverage.run --family {family} --sims {asked.sims}",
        )
        for family in chosen
    }
    path = HERE / "results.json"
    kept = json.loads(path.read_text()) if path.exists() else []
    rows = [row for row in kept if row["family"] not in by_family]
    rows += [asdict(row) for found in by_family.values() for row in found]
    rows.sort(key=lambda row: row["family"])
    path.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    (HERE / "README.md").write_text(readme(rows))
    for row in rows:
        if row["family"] in by_family and row["verdict"] in ("too narrow", "too wide"):
            print(
                f"{row['verdict']}: {row['case']}, {row['estimate']}, {row['prompts']} × {row['samples']}: {row['covered']:.3f}"
            )


if __name__ == "__main__":
    main()
