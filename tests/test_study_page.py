"""The page of a study: every number has its interval, or says why it has none."""

from __future__ import annotations

from typing import Any

from equipoise.lab.study_page import page, summary_rows

FIXED = "mean over prompts; no interval: all 4 values are equal"
BEYOND = "pass@4 at the same pass@1, on straight lines; no interval: often beyond the curve"


def number(value: float | None, low: float | None = None, high: float | None = None, **told: Any) -> dict[str, Any]:
    return {"value": value, "low": low, "high": high, "how": "", "missing": None, **told}


def summary(arm: str, single: dict, many: dict) -> dict[str, Any]:
    plain = {name: {"value": 0.5, "per_seed": [0.5]} for name in ("distinct_unsolved", "entropy", "kl_to_base")}
    return {"arm": arm, "pass@1": single, "pass@4": many, **plain}


def matched(arm: str, by: str, name: str, **told: Any) -> dict[str, Any]:
    return {"arm": arm, "against": "base", "by": by, "name": name, **number(**told)}


def results(seeds: int = 1) -> dict[str, Any]:
    below, above = ("a temperature at which base has pass@1 0.9: that is " + side for side in ("below", "above"))
    arms = {"base": 0.2, "grpo": 0.3, "kl": 0.4}
    return {
        "about": "Three arms", "command": "", "k_max": 4, "plain": "grpo", "headline": 1.0, "seeds": list(range(seeds)),
        "device": ["CPU"], "rollouts_per_run": 8, "sft": None, "arms": [], "law": [],
        "evaluation": {"problems": 4, "samples": 1, "temperatures": [0.5, 1.0]},
        "recipes": {arm: {"against": "grpo", "warnings": [], "settings": {}} for arm in ("grpo", "kl")},
        "summary": [
            summary("base", number(0.25, 0.1234, 0.4), number(0.75, 0.6, 0.9)),
            summary("grpo", number(1.0, how=FIXED), number(None)),
            summary("kl", number(0.5, 0.4, 0.6), number(0.625, 0.5, 0.75, how="t interval")),
        ],
        "differences": [
            {"arm": "kl", "against": "grpo", "name": "pass@1", "temperature": 1.0, **number(-0.5, how="one; no interval: it needs 2 prompts; so")},
            {"arm": "kl", "against": "grpo", "name": "pass@4", "temperature": 1.0, **number(0.125, 0.05, 0.2)},
        ],
        "matched": [
            matched("grpo", "pass@1", "pass@4", value=None, missing=below),
            matched("kl", "pass@1", "pass@4", value=-0.0625, how=BEYOND),
            *(matched("kl", "kl_to_base", name, value=None, missing=above) for name in ("pass@1", "pass@4")),
        ],
        "frontier": [
            {"arm": arm, "points": [{"temperature": t, "pass@1": number(x), "pass@4": number(x)} for t in (0.5, 1.0)]}
            for arm, x in arms.items()
        ],
        "volumes": [
            {"arm": arm, "volume": number(x, x - 0.1, x + 0.1), "best_pass@1": x, "best_pass@4": x, "differences": []}
            for arm, x in arms.items()
        ],
        "tuned": [{"arm": "grpo", "by": "pass@1", "lr": None, "temperature": 1.0, "score": 0.5, "volume": number(0.25, 0.125, 0.5)}],
    }  # fmt: skip


def test_a_number_without_an_interval_says_why():
    heads, rows = summary_rows(results())
    assert heads[:3] == ["arm", "pass@1", "pass@4"]
    base, grpo, kl = (dict(zip(heads, row, strict=True)) for row in rows)
    assert (base["pass@1"], base["pass@4"]) == ("0.250 [0.123, 0.400]", "0.750 [0.600, 0.900]")
    assert (grpo["pass@1"], grpo["pass@4"]) == ("1.000 (no interval: all 4 values are equal)", "–")
    assert kl["pass@4"] == "0.625 [0.500, 0.750]"
    assert kl["Δ grpo pass@1"] == "-0.500 (no interval: it needs 2 prompts)"
    assert kl["Δ grpo pass@4"] == "**+0.125** [+0.050, +0.200]"
    assert kl["cooled base Δ pass@4"] == "-0.062 (no interval: often beyond the curve)"
    assert grpo["cooled base Δ pass@4"] == "below it"


def test_the_page_tells_of_every_column_without_intervals_where_they_are_or_why_there_are_none():
    told = page(results())
    assert "*unsolved*, *entropy* and *KL* are of one seed, without an interval here" in told
    assert "*unsolved*, *entropy* and *KL* are means over seeds, without an interval here" in page(results(seeds=3))
    assert "*beyond it*, *below it*: at no temperature has the base model a pass@1 so high, or so low" in told
    assert "| grpo | 0.300 [0.200, 0.400] | 0.300 | 0.300 |" in told  # area, best pass@1, best pass@4
    assert "each by itself; no interval: the best of several is high by luck too" in told
    assert "Every number with its interval: `frontier` in `results.json`.\n\n| arm | T = 0.5 | T = 1 |" in told
    assert "| grpo | – | 1 | 0.500 | 0.250 [0.125, 0.500] |" in told
    assert "on problems of their own; no interval: the best of several is high by luck too." in told
    assert "distinct answers in 1 sample on" in told


def test_a_law_that_fits_is_told_with_where_its_intervals_are():
    fits = [{"arm": "grpo", "state": "fit", "ceiling": {"value": 0.5}, "r2": 0.75, "backtest": [], "reason": ""}]
    assert "so few that they have no interval; that of every run: `law` in `results.json`" in page(
        results() | {"law": fits}
    )
