"""The figures of docs/trl.md that come from a study are those of its committed results."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean

ROOT = Path(__file__).parents[1]


def test_the_gap_between_exact_and_sampled_kl_is_that_of_the_study():
    results = json.loads((ROOT / "studies" / "results" / "kl-estimators" / "results.json").read_text())
    page = " ".join((ROOT / "docs" / "trl.md").read_text().split())

    def mean_of(name: str, arm: str) -> str:
        return f"{mean(row[name] for row in results['arms'] if row['arm'] == arm):.3f}"

    def gap(name: str) -> str:
        (one,) = (
            each
            for each in results["differences"]
            if (each["arm"], each["against"], each["name"]) == ("kl_corrected", "kl_exact", name)
        )
        return "{value:+.3f} {low:+.3f} {high:+.3f}".format(**one).replace("-", "−")

    def pair(name: str) -> tuple[str, str]:
        return mean_of(name, "kl_corrected"), mean_of(name, "kl_exact")

    told = "pass@1 {} with the estimate and {} with the exact KL, difference {} (95 % interval {} to {})"
    assert told.format(*pair("pass@1"), *gap("pass@1").split()) in page
    assert "pass@16 {} and {}, {} ({} to {})".format(*pair("pass@16"), *gap("pass@16").split()) in page
    assert "entropy {} and {}".format(*pair("entropy_end")) in page
    assert (
        "KL to the base {} and {}, against {} of plain GRPO".format(*pair("kl_to_base"), mean_of("kl_to_base", "grpo"))
        in page
    )
    assert f"the KL was {mean_of('kl_to_base', 'kl_k3')}" in page
