"""Ways of decoding against plain temperature, at equal samples, for the packaged model and for one that has collapsed.

    equipoise train model=packaged:small out=runs/small-grpo task=countdown sampling.prompts=32 sampling.samples=16 \\
        learning.steps=100 learning.lr=2e-4
    python -m benchmarks.decoding.run --collapsed runs/small-grpo

Every setting of `ways.GRID` is measured on problems of the split "tune"; the one of each family that stands farthest above the
curve of plain temperatures is measured again, with that curve, on problems of "test". Writes results.json and problems.parquet
beside this file; `python -m benchmarks.decoding.report` makes README.md of them.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from benchmarks.decoding.draws import SAMPLES, Way, count, curve_of, draw_problems
from benchmarks.decoding.ways import GRID, PLAIN, best_of_families, numbers_of
from equipoise.lab.study_numbers import Policies
from equipoise.lab.study_outcomes import write_tables
from equipoise.models.loaders import Loaded
from equipoise.training.opening import open_model

HERE = Path(__file__).parent


def look(loaded: Loaded, ways: tuple[Way, ...], *, problems: int, split: str) -> tuple[dict[str, Any], list[Policies]]:
    """Plain temperatures and these ways on the same problems, with the same seeds."""
    task, posed = draw_problems(problems, split)
    counted = []
    for way in (*PLAIN, *ways):
        started = time.perf_counter()
        counted.append(count(loaded, task, posed, way))
        own = counted[-1]
        print(
            f"{split} {way.name}: {own.passes(1).mean():.3f} {own.passes(64).mean():.3f}, "
            f"{time.perf_counter() - started:.0f} s",
            flush=True,
        )
    plain = counted[: len(PLAIN)]
    curve = curve_of(PLAIN, plain)
    at_one = next(each for each, way in zip(plain, PLAIN, strict=True) if way.decoding.temperature == 1)
    rows = [
        numbers_of(each, curve, at_one=at_one) | {"family": way.family}
        for each, way in zip(counted, (*PLAIN, *ways), strict=True)
    ]
    return {"split": split, "problems": problems, "samples": SAMPLES, "rows": rows}, counted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collapsed", required=True, help="run folder of a policy trained with plain GRPO")
    parser.add_argument("--tune", type=int, default=256, help="problems on which settings are chosen")
    parser.add_argument("--test", type=int, default=512, help="problems on which the chosen ones are reported")
    given = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, Any] = {"versions": {"torch": torch.__version__}}
    tables: list[pa.Table] = []
    for name, model in (("base", "packaged:small"), ("collapsed", given.collapsed)):
        loaded = open_model(model).loaded
        loaded.model.train(False)
        tuned, _ = look(loaded, GRID, problems=given.tune, split="tune")
        chosen = best_of_families(tuned["rows"][len(PLAIN) :], GRID)
        tested, counted = look(loaded, tuple(chosen.values()), problems=given.test, split="test")
        results[name] = {"tune": tuned, "test": tested}
        tables += [each.outcomes[0].table(f"{name}: {each.arm}", 0) for each in counted]
    (HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    write_tables(tables, HERE / "problems.parquet")


if __name__ == "__main__":
    main()
