"""How much of what tuning does to a larger model its tuned smaller sibling can lend it at decoding.

    for size in small medium; do
        equipoise train model=packaged:$size out=runs/$size-grpo task=countdown sampling.prompts=32 sampling.samples=16 \\
            learning.steps=100 learning.lr=2e-4
    done
    python -m benchmarks.proxy.run runs --problems 256

The base is `packaged:medium`, the anti-expert `packaged:small`, the expert that one after a treatment, and the target the base after the
same treatment. Writes results.json and problems.parquet beside this file; `python -m benchmarks.proxy.report` makes README.md of them.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.decoding.draws import SAMPLES, Way, count, curve_of, draw_problems
from benchmarks.decoding.ways import numbers_of
from equipoise.lab.study_numbers import Policies, difference
from equipoise.lab.study_outcomes import write_tables
from equipoise.measures.intervals import cluster_bootstrap
from equipoise.models.decoding import Decoding
from equipoise.models.loaders import Loaded
from equipoise.models.proxy import proxy_of
from equipoise.training.opening import open_model

HERE = Path(__file__).parent
ALPHAS = (0.5, 1.0, 1.5)
TEMPERATURES = (0.1, 0.3, 0.6, 0.8, 1.0)  # of the base alone
TREATMENTS = {"GRPO, 100 steps": "grpo"}  # what it is called, and its part of the runs' names


def gap_closed(proxy: Policies, base: Policies, target: Policies, k: int) -> dict[str, Any]:
    """(proxy − base) / (target − base) in pass@k, problems resampled; no interval where the target is often no different."""
    gained_P = proxy.passes(k)[0, 0] - base.passes(k)[0, 0]
    asked_P = target.passes(k)[0, 0] - base.passes(k)[0, 0]

    def share(weights_P: np.ndarray) -> float:
        asked = float(weights_P @ asked_P)
        # A gap that changes its sign has no share: the ratio would jump from −∞ to ∞.
        return float(weights_P @ gained_P) / asked if asked * asked_P.sum() > 0 else float("nan")

    if asked_P.sum() == 0:
        return {"value": None, "low": None, "high": None, "n": len(asked_P), "how": "the target is the base here"}
    found = cluster_bootstrap(share, np.arange(len(asked_P)), seed=0)
    return {"value": found.value, "low": found.low, "high": found.high, "n": found.n, "how": found.how}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="folder of the runs")
    parser.add_argument("--problems", type=int, default=512)
    given = parser.parse_args()
    torch.set_num_threads(1)
    task, problems = draw_problems(given.problems, "test")
    counted: dict[str, Policies] = {}
    seconds: dict[str, float] = {}

    def look(name: str, loaded: Loaded, temperature: float = 1.0) -> Policies:
        started = time.perf_counter()
        loaded.model.train(False)
        counted[name] = count(loaded, task, problems, Way("", name, Decoding(temperature=temperature)))
        seconds[name] = time.perf_counter() - started
        own = counted[name]
        print(f"{name}: {own.passes(1).mean():.3f} {own.passes(64).mean():.3f}, {seconds[name]:.0f} s", flush=True)
        return own

    medium, small = (open_model(f"packaged:{size}").loaded for size in ("medium", "small"))
    plain = tuple(Way("", f"base at T={t:g}", Decoding(temperature=t)) for t in TEMPERATURES)
    curve = curve_of(plain, [look(way.name, medium, way.decoding.temperature) for way in plain])
    base = counted["base at T=1"]
    look("anti-expert", small)
    results: dict[str, Any] = {"versions": {"torch": torch.__version__}, "problems": given.problems, "samples": SAMPLES}
    results["base"] = [numbers_of(each, curve, at_one=base) for each in counted.values()]
    for treatment, short in TREATMENTS.items():
        expert, target = (open_model(given.runs / f"{size}-{short}").loaded for size in ("small", "medium"))
        arms = [look(f"{short}: expert alone", expert), look(f"{short}: target, tuned directly", target)]
        rows = [numbers_of(arm, curve, at_one=base) for arm in arms]
        for alpha in ALPHAS:
            proxy = look(f"{short}: proxy, alpha={alpha:g}", proxy_of(medium, expert, small, alpha=alpha))
            row = numbers_of(proxy, curve, at_one=base)
            for k in (1, 64):
                row[f"share of the gap in pass@{k}"] = gap_closed(proxy, base, arms[1], k)
                for name, other in (("target", arms[1]), ("expert", arms[0])):
                    found = difference(proxy.passes(k)[:, 0], other.passes(k)[:, 0])
                    row[f"pass@{k} to the {name}"] = {"value": found.value, "low": found.low, "high": found.high}
            rows.append(row)
        results[treatment] = rows
    results["seconds"] = seconds
    (HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    write_tables([each.outcomes[0].table(name, 0) for name, each in counted.items()], HERE / "problems.parquet")


if __name__ == "__main__":
    main()
