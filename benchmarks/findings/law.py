"""How well R = −a·exp(H) + b, a straight line in H and a saturating curve describe and forecast the runs of the committed studies.

    python -m benchmarks.findings.law

A forecast is made from the first steps of a run alone, at the entropy that the run ends with; its error is against the mean reward of
the last steps. What a forecast has to beat: the error of guessing the mean end of all runs, which nobody knows beforehand.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.findings.studied import Studied, studies, table

# Problems of a small pool come again and again there, as they do in most training runs.
RECURRING = ("history", "history-trips")
CURVES = {"law": "r2", "line": "r2_line", "saturating": "r2_saturating"}


def described(study: Studied) -> tuple[str, ...]:
    runs = study.results["law"]
    fits = sum(run["state"] == "fit" for run in runs)
    spans = [
        f"{np.median(r2):.2f} ({min(r2):.2f} to {max(r2):.2f})"
        for r2 in ([run[key] for run in runs] for key in CURVES.values())
    ]
    return study.name, str(len(runs)), str(fits), *spans


def forecast(study: Studied, share: float) -> tuple[str, ...]:
    looks = [look for run in study.results["law"] for look in run["backtest"] if look["share"] == share]
    ends = np.array([look["truth"] for look in looks])
    errors = [np.mean(np.abs(np.array([value(look, curve) for look in looks]) - ends)) for curve in CURVES]
    bounds = [(look["at_final_entropy"]["low"], look["truth"], look["at_final_entropy"]["high"]) for look in looks]
    known = [(low, truth, high) for low, truth, high in bounds if low is not None]
    inside = f"{sum(low <= truth <= high for low, truth, high in known)} of {len(known)}" if known else "no interval"
    return (
        study.name,
        f"{share:.0%}",
        *(f"{error:.3f}" for error in errors),
        f"{np.abs(ends - ends.mean()).mean():.3f}",
        inside,
    )


def value(look: dict[str, Any], curve: str) -> float:
    return float(look["at_final_entropy"]["value"] if curve == "law" else look[curve])


def tables() -> str:
    found = [*studies(), *studies(RECURRING)]
    heads = ("study", "runs", "fits", "R² law", "R² line", "R² saturating")
    described_as = table(heads, [described(study) for study in found])
    heads = (
        "study",
        "steps seen",
        "error law",
        "line",
        "saturating",
        "guessing their mean",
        "truth inside the law's interval",
    )
    shares = [look["share"] for look in found[0].results["law"][0]["backtest"]]
    return f"{described_as}\n\n{table(heads, [forecast(study, share) for study in found for share in shares])}"


def main() -> None:
    print(tables())


if __name__ == "__main__":
    main()
