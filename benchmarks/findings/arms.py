"""The arms of a finished study against its plain arm and the base model: `python -m benchmarks.findings.arms STUDY [STUDY…]`.

From the study's problems.parquet. At equal pass@1, or equal KL to the base: minus the base model, at the temperature at which that has as much.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.findings.outcomes import told
from benchmarks.findings.studied import RESULTS, Floats, table
from equipoise.files import read_json
from equipoise.lab.study_config import BASE
from equipoise.lab.study_numbers import Compared, Policies, difference, matched, mean_over
from equipoise.lab.study_outcomes import COUNTS, Outcomes


def read_arms(folder: Path) -> dict[str, Policies]:
    """Every arm of a study by its name, the base model too."""
    rows = pq.read_table(folder / "problems.parquet")
    found = {}
    for arm in dict.fromkeys(rows["arm"].to_pylist()):
        mine = rows.filter(pc.equal(rows["arm"], arm))
        seeds = tuple(dict.fromkeys(mine["seed"].to_pylist()))
        outcomes = tuple(
            _outcomes(mine if seed is None else mine.filter(pc.equal(mine["seed"], seed))) for seed in seeds
        )
        found[arm] = Policies(arm, seeds, outcomes)
    return found


def _outcomes(rows: object) -> Outcomes:
    """Rows stand by temperature, then by problem."""
    columns = rows.to_pydict()  # type: ignore[attr-defined]
    temperatures = tuple(dict.fromkeys(columns["temperature"]))
    n = len(columns["problem"]) // len(temperatures)
    values = {name: np.array(columns[name], dtype=float).reshape(len(temperatures), n) for name in COUNTS}
    return Outcomes(temperatures, tuple(columns["problem"][:n]), values)


def row(arms: dict[str, Policies], arm: str, plain: str, headline: float) -> tuple[str, ...]:
    mine, base = arms[arm], arms[BASE]
    at, k = mine.temperatures.index(headline), base.ks[-1]

    def passes(name: str, k: int) -> Floats:
        return np.asarray(arms[name].passes(k)[:, at])

    cells = [arm, *(told(mean_over(passes(arm, of), bounded=True), signed=False) for of in (1, k))]
    if arm == BASE:
        return (*cells, *[""] * 6, f"{mine.values('distinct')[:, at].mean():.1f}")
    cells += ["" if arm == plain else told(difference(passes(arm, of), passes(plain, of))) for of in (1, k)]
    matches = [("pass@1", k), ("kl_to_base", 1), ("kl_to_base", k)]
    cells += [on_curve(matched(mine, base, by=by, k=of, at=at)) for by, of in matches]
    cells.append(f"{kl(mine, at):.3f}")
    return (*cells, f"{mine.values('distinct')[:, at].mean():.1f}")


def on_curve(found: Compared) -> str:
    """In words where the base model has so much at no temperature, or so little."""
    return told(found) if found.value is not None else "beyond it" if " above " in (found.missing or "") else "below it"


def kl(arm: Policies, at: int) -> float:
    """Per token to the base model, seeds averaged."""
    return float((arm.values("kl_sum")[:, at].sum(axis=1) / arm.values("kl_tokens")[:, at].sum(axis=1)).mean())


def arms_table(folder: Path) -> str:
    results = read_json(folder / "results.json")
    arms, plain, headline = read_arms(folder), str(results["plain"]), float(results["headline"])
    k = arms[BASE].ks[-1]
    heads = (
        "arm",
        "pass@1",
        f"pass@{k}",
        f"Δ pass@1 to {plain}",
        f"Δ pass@{k} to {plain}",
        f"pass@{k} at equal pass@1, to the base",
        "pass@1 at equal KL, to the base",
        f"pass@{k} at equal KL, to the base",
        "KL to base",
        "different answers",
    )
    return table(heads, [row(arms, arm, plain, headline) for arm in arms])


def ends_table(folder: Path) -> str:
    """What every arm is rewarded with in the last tenth of its training, which is what a forecast of the law has to meet."""
    ends: dict[str, list[float]] = {}
    for run in read_json(folder / "results.json")["law"]:
        if run["backtest"]:  # fewer steps than a forecast takes have none
            ends.setdefault(run["arm"], []).append(run["backtest"][0]["truth"])
    heads = ("arm", "reward at the end of training", "of every seed")
    return table(
        heads, [(arm, f"{np.mean(each):.3f}", ", ".join(f"{end:.3f}" for end in each)) for arm, each in ends.items()]
    )


def main() -> None:
    for name in sys.argv[1:]:
        folder = Path(name) if Path(name).is_dir() else RESULTS / name
        print(f"{folder.name}\n\n{arms_table(folder)}\n\n{ends_table(folder)}\n")


if __name__ == "__main__":
    main()
