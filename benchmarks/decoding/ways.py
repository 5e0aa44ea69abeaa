"""The ways of decoding that are compared, and the numbers that are reported of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.decoding.draws import Way
from equipoise.lab.study_numbers import Policies, difference, matched, mean_over
from equipoise.models.decoding import Decoding

TEMPERATURES = (0.1, 0.3, 0.6, 0.8, 1.0, 1.3, 1.6)
PLAIN = tuple(Way("temperature", f"T={t:g}", Decoding(temperature=t)) for t in TEMPERATURES)

GRID: tuple[Way, ...] = (
    *(Way("top-p", f"top_p={p:g}, T={t:g}", Decoding(temperature=t, top_p=p)) for p, t in ((0.9, 1.0), (0.9, 1.6))),
    *(
        Way("min-p", f"min_p={p:g}, T={t:g}", Decoding(temperature=t, min_p=p))
        for p, t in ((0.1, 1.0), (0.1, 1.6), (0.2, 1.6))
    ),
    *(
        Way("top-nσ", f"top_n_sigma={n:g}, T={t:g}", Decoding(temperature=t, top_n_sigma=n))
        for n, t in ((1.0, 1.0), (0.7, 1.6), (1.0, 1.6))
    ),
    *(
        Way("EDT", f"edt={e:g}, T0={t:g}", Decoding(temperature=t, edt=e))
        for e, t in ((1.0, 1.0), (0.3, 1.6), (1.0, 1.6))
    ),
    *(
        Way("sibling repulsion", f"repel={r:g}, T={t:g}", Decoding(temperature=t, repel=r))
        for r, t in ((0.1, 0.3), (0.3, 0.3), (1.0, 0.3), (0.1, 0.6), (0.3, 0.6), (0.1, 1.0))
    ),
    *(Way("diverse prompts", f"8 orders of the numbers, T={t:g}", Decoding(temperature=t), 8) for t in (0.3, 0.6, 1.0)),
)


def numbers_of(arm: Policies, curve: Policies, *, at_one: Policies) -> dict[str, Any]:
    """An arm's own numbers, its paired differences to T = 1, and its distance to the curve of plain temperatures."""
    told: dict[str, Any] = {"arm": arm.arm}
    for k in (1, 64):
        told[f"pass@{k}"] = _shown(mean_over(arm.passes(k)[:, 0], bounded=True))
        told[f"pass@{k} to T=1"] = _shown(difference(arm.passes(k)[:, 0], at_one.passes(k)[:, 0]))
    told["distinct"] = _shown(mean_over(arm.values("distinct")[:, 0], bounded=False))
    told["tokens"] = float(arm.values("tokens")[:, 0].mean() / arm.values("drawn")[:, 0].mean())
    gap = matched(arm, curve, by="pass@1", k=64, at=0)
    told["pass@64 to the curve at equal pass@1"] = _shown(gap) | {"missing": gap.missing}
    return told


def best_of_families(rows: Sequence[dict[str, Any]], ways: Sequence[Way]) -> dict[str, Way]:
    """For each family the setting that is farthest above the curve. One beyond the curve cannot be told, and is passed over."""
    found: dict[str, tuple[float, Way]] = {}
    for row, way in zip(rows, ways, strict=True):
        gap = row["pass@64 to the curve at equal pass@1"]["value"]
        if gap is not None and (way.family not in found or gap > found[way.family][0]):
            found[way.family] = (gap, way)
    return {family: way for family, (_, way) in found.items()}


def _shown(number: Any) -> dict[str, Any]:
    return {"value": number.value, "low": number.low, "high": number.high, "n": number.n}
