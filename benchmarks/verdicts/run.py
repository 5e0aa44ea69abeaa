"""How often the verdict is right, on made-up runs whose truth is known. Writes results.json and README.md beside this file.

OMP_NUM_THREADS=1 python -m benchmarks.verdicts.run [--runs 100] [--jobs 2]
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.verdicts.cases import Case, cases, truth_of
from benchmarks.verdicts.report import write_readme
from equipoise.diagnosis.verdict import diagnose
from equipoise.lab.synthetic_run import make_baseline, make_run

HERE = Path(__file__).parent
SEEDS = 1000  # of each class: class i has the seeds from 1000 i on, so that classes are independent of each other


def try_once(case: Case, seed: int) -> list[dict[str, Any]]:
    """One made-up run, diagnosed in every way the case asks for."""
    run, base = make_run(case.world, seed=seed), make_baseline(case.world, seed=seed)
    tries = []
    for with_base in case.baseline:
        for use in case.uses if with_base else ("search",):
            found = diagnose(run, baseline=base if with_base else None, use=use)
            failing = [f.name for f in found.findings if f.severity == "failing"]
            tries.append(
                {"baseline": with_base, "use": use, "verdict": found.verdict, "failing": failing, "k": found.use}
            )
    return tries


def run_case(case: Case, first: int, *, runs: int, pool: ProcessPoolExecutor) -> list[dict[str, Any]]:
    """The verdicts counted, one row per way of diagnosing."""
    tried = list(pool.map(partial(try_once, case), range(first, first + runs), chunksize=5))
    rows = []
    for way in zip(*tried, strict=True):
        depth = Counter(t["k"] for t in way).most_common(1)[0][0].rpartition("= ")[2]
        rows.append(
            {
                "case": case.name,
                "table": case.table,
                "size": f"{case.world.problems} × {case.world.samples}",
                "effect": case.effect,
                "label": case.label,
                "baseline": way[0]["baseline"],
                "use": way[0]["use"],
                "k": int(depth) if depth.isdigit() else None,
                "runs": runs,
                "seeds": [first, first + runs - 1],
                "verdicts": dict(Counter(t["verdict"] for t in way)),
                "failing_rules": dict(Counter(name for t in way for name in t["failing"])),
                "truth": asdict(truth_of(case.world, int(depth) if depth.isdigit() else 8)),
                "world": asdict(case.world),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100, choices=range(1, SEEDS + 1), metavar="N")
    parser.add_argument("--jobs", type=int, default=2)
    chosen = parser.parse_args()
    started, rows = time.perf_counter(), []
    with ProcessPoolExecutor(chosen.jobs) as pool:
        for number, case in enumerate(cases(), start=1):
            rows += run_case(case, number * SEEDS, runs=chosen.runs, pool=pool)
            print(
                f"{time.perf_counter() - started:5.0f} s  {rows[-1]['size']:9} {case.name} {case.effect or ''}",
                flush=True,
            )
            for row in rows[-len(case.baseline) - len(case.uses) + 1 :]:
                print(f"          baseline {row['baseline']!s:5} {row['use']:6} {row['verdicts']}", flush=True)
    results = {
        "schema": "equipoise.benchmark.verdicts/1",
        "command": f"OMP_NUM_THREADS=1 python -m benchmarks.verdicts.run --runs {chosen.runs}",
        "versions": {name: version(name) for name in ("numpy", "scipy", "pyarrow")}
        | {"python": platform.python_version()},
        "jobs": chosen.jobs,
        "seconds": round(time.perf_counter() - started),
        "rows": rows,
    }
    (HERE / "results.json").write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    write_readme(results, HERE / "README.md")


if __name__ == "__main__":
    main()
