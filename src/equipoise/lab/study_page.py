"""README.md of a study: one page, a table that a person understands at a glance. Draws numbers and computes none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from equipoise.files import atomic_write
from equipoise.lab.study_figures import ENTROPY, FRONTIER
from equipoise.text.display import many

Results = Mapping[str, Any]
NO_BEST = "no interval: the best of several is high by luck too"
FORECAST = 0.4  # share of a run from which its end is forecast


def write_page(results: Results, path: Path) -> None:
    with atomic_write(path) as handle:
        handle.write(page(results).encode())


def page(results: Results) -> str:
    k, plain, headline = results["k_max"], results["plain"], results["headline"]
    n_seeds, look = len(results["seeds"]), results["evaluation"]
    parts = [
        f"# {results['about'] or 'Study'}",
        f"{many(len(results['recipes']), 'arm')} and the base model, {many(n_seeds, 'seed')}, "
        f"{_rollouts(results)}; evaluated on the same {many(look['problems'], 'problem')} with "
        f"{many(look['samples'], 'sample')} at temperature {headline:g}. Device: {', '.join(results['device'])}.",
        _supervised(results),
        _table(results),
        f"Brackets are 95 % intervals. `Δ` columns are differences, **bold** where the interval leaves out 0. *Δ {plain}*: to the plain arm, "
        f"or to the one named with an arm, paired by problem and seed. *cooled base*: pass@{k} minus that of the base model at the temperature that "
        f"gives it the same pass@1; what cooling alone would buy is not a gain. *beyond it*, *below it*: at no temperature has the base model a "
        f"pass@1 so high, or so low. *unsolved*: distinct answers in {many(look['samples'], 'sample')} on "
        f"the problems that the arm does not solve. {_seeds(n_seeds)} {_without(n_seeds)} Intervals are not corrected for the number of arms.",
        _made(results),
        _figures(results),
        _volumes(results),
        _over_temperatures(results),
        _laws(results),
        _tuned(results),
        _linted(results),
        f"Made again by `{results['command']}`, which keeps the runs that are finished." if results["command"] else "",
        "Every number with its method: `results.json`. Every policy on every problem: `problems.parquet`.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _supervised(results: Results) -> str:
    sft = results.get("sft")
    if sft is None:
        return ""
    how, losses = sft["settings"], sft["losses"]
    source = f"the {sft['pairs']:,} pairs of `{how['file']}`" if how["file"] else f"{sft['pairs']:,} solved problems"
    fell = f"{losses[0]['loss']:.3f} → {sft['loss']:.3f}" if len(losses) > 1 else f"{sft['loss']:.3f}"
    return (
        f"Every arm begins with one model: `{sft['model']}` after supervised training on {source} ({many(how['steps'], 'step')} of "
        f"{how['batch']}, learning rate {how['lr']:g}, loss {fell} nats per token, {sft['seconds']:,.0f} s). It is the row *base*, and "
        f"the KL is to it; its checkpoint is in `{sft['run']}`."
    )


def _rollouts(results: Results) -> str:
    """An arm whose steps draw as many as they need draws fewer than it might."""
    most, drawn = results["rollouts_per_run"], dict[str, list[int]]()
    for row in results["arms"]:
        if row["arm"] in results["recipes"] and row["rollouts"] < most:
            drawn.setdefault(row["arm"], []).append(row["rollouts"])
    fewer = [f"{arm} drew {round(sum(counts) / len(counts)):,}" for arm, counts in drawn.items()]
    return f"{most:,} rollouts in every run" + (f" at most ({', '.join(fewer)} on average)" if fewer else "")


def _table(results: Results) -> str:
    heads, rows = summary_rows(results)
    return "\n".join([_row(heads), f"| --- |{' ---: |' * (len(heads) - 1)}", *map(_row, rows)])


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def summary_rows(results: Results, *, sure: str = "**") -> tuple[list[str], list[list[str]]]:
    """Heads and rows of the table of arms. `sure`: what stands around a difference whose interval leaves out 0."""
    k, plain, recipes = results["k_max"], results["plain"], results["recipes"]
    heads = ["arm", "pass@1", f"pass@{k}", "unsolved", "entropy", "KL to base"]
    heads += [f"Δ {plain} pass@1", f"Δ {plain} pass@{k}", f"cooled base Δ pass@{k}"]
    rows = []
    for row in results["summary"]:
        arm = row["arm"]
        against = recipes[arm]["against"] if arm in recipes else None
        changes = [
            _find(results["differences"], arm=arm, against=against, name=name, temperature=results["headline"])
            for name in ("pass@1", f"pass@{k}")
        ]
        changes.append(_find(results["matched"], arm=arm, against="base", by="pass@1", name=f"pass@{k}"))
        rows.append(
            [
                f"{arm} (against {against})" if against not in (None, plain) else arm,
                _interval(row["pass@1"]),
                _interval(row[f"pass@{k}"]),
                _number(row["distinct_unsolved"]["value"], 1),
                _number(row["entropy"]["value"]),
                _number(row["kl_to_base"]["value"]),
                *(_change(change, sure) for change in changes),
            ]
        )
    return heads, rows


def _made(results: Results) -> str:
    """Arms that train nothing of their own, and those that train on more rows than they draw."""
    told = []
    for arm, recipe in results["recipes"].items():
        if (made := recipe.get("made_of")) is not None:
            weights = (
                f"the moving average ({recipe['settings']['learning']['ema']:g})" if made["ema"] else "the weights"
            )
            blend = (
                "" if made["blend"] == 1 else f", blended with the base: base + {made['blend']:g} · (trained − base)"
            )
            told.append(f"- {arm}: {weights} of {made['arm']}{blend}; nothing is trained for it")
    imitated = dict[str, list[int]]()
    for row in results["arms"]:
        if row.get("imitated") and (results["recipes"][row["arm"]].get("made_of") is None):
            imitated.setdefault(row["arm"], []).append(row["imitated"])
    for arm, rows in imitated.items():
        told.append(
            f"- {arm}: {round(_mean(rows)):,} more rows of training, kept completions that it imitates, and no more rollouts"
        )
    return "\n".join(told)


def _volumes(results: Results) -> str:
    """The area under every front, and what is compared at an equal KL."""
    rows = results.get("volumes")
    if not rows:
        return ""
    k, plain = results["k_max"], results["plain"]
    heads = ["arm", "area", "best pass@1", f"best pass@{k}", "Δ base", f"Δ {plain}", "above"]
    heads += [f"equal KL Δ pass@{each}" for each in dict.fromkeys((1, k))]
    lines = [
        f"## The area under (pass@1, pass@{k})\n",
        f"Area: of what an arm reaches at one of the {len(results['evaluation']['temperatures'])} temperatures, the union of [0, pass@1] × "
        f"[0, pass@{k}] (reference point (0, 0)). *best*: over temperatures, each by itself; {NO_BEST}. *above*: of how many of the other arms and the base "
        f"the area is surpassed beyond the interval. *equal KL*: at T = {results['headline']:g}, minus the base at the temperature with the same KL; *beyond it*: it has so "
        "large a KL at none. "
        "Every pair of arms: `volumes` in `results.json`.\n",
        _row(heads),
        f"| --- |{' ---: |' * (len(heads) - 1)}",
    ]
    for row in rows:
        gaps = row["differences"]
        surpassed = sum(gap["low"] is not None and gap["low"] > 0 for gap in gaps)
        cells = [
            row["arm"],
            _interval(row["volume"]),
            _number(row["best_pass@1"]),
            _number(row[f"best_pass@{k}"]),
            *(_change(_find(gaps, against=other), "**") for other in ("base", plain)),
            f"{surpassed} of {len(gaps)}",
        ]
        for each in dict.fromkeys((1, k)):
            cells.append(
                _change(
                    _find(results["matched"], arm=row["arm"], against="base", by="kl_to_base", name=f"pass@{each}"),
                    "**",
                )
            )
        lines.append(_row(cells))
    return "\n".join(lines)


def _figures(results: Results) -> str:
    """Links to what `study_figures` writes."""
    shown = [f"![pass@1 against pass@{results['k_max']}, with the base model's temperature curve]({FRONTIER})"]
    shown.append(
        "Bars are each arm's own 95 % interval. Arms share their problems: `Δ` tells two of them apart where bars overlap."
    )
    if any(row["steps"] for row in results["arms"]):
        shown.append(f"![Entropy over training steps]({ENTROPY})")
    return "\n\n".join(shown)


def _linted(results: Results) -> str:
    """What the linter says, with the arms that it says it of."""
    told: dict[str, list[str]] = {}
    for arm, recipe in results["recipes"].items():
        for words in recipe["warnings"]:
            told.setdefault(words, []).append(arm)
    lines = [f"- {words} ({', '.join(arms)})" for words, arms in told.items()]
    return "\n".join(["## From the linter\n", *lines]) if lines else ""


def _over_temperatures(results: Results) -> str:
    """pass@1 / pass@k of every arm at every temperature."""
    k, temperatures = results["k_max"], results["evaluation"]["temperatures"]
    if len(temperatures) < 2:
        return ""
    lines = [
        f"## pass@1 / pass@{k} over temperatures\n",
        "Every number with its interval: `frontier` in `results.json`.\n",
        f"| arm | {' | '.join(f'T = {t:g}' for t in temperatures)} |",
        f"| --- |{' ---: |' * len(temperatures)}",
    ]
    for row in results["frontier"]:
        cells = [f"{_number(p['pass@1']['value'])} / {_number(p[f'pass@{k}']['value'])}" for p in row["points"]]
        lines.append(f"| {row['arm']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _laws(results: Results) -> str:
    """A row per arm that the law fits in some seed, with means over those seeds."""
    fits = results["law"]
    good = [fit for fit in fits if fit["state"] == "fit"]
    if not good:
        return f"The law R = −a·exp(H) + b fits none of {many(len(fits), 'run')}: {fits[0]['reason']}." if fits else ""
    lines = [
        "## R = −a·exp(H) + b along the training log\n",
        f"It fits {len(good)} of {many(len(fits), 'run')}. Ceiling: b − a, the reward with all entropy spent. Forecast error: mean of "
        f"|forecast − what came| for the last tenth, from the first {FORECAST:.0%}. "
        "Means over the runs that it fits, so few that they have no interval; that of every run: `law` in `results.json`.\n",
        "| arm | seeds that it fits | ceiling | R² | forecast error |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for arm in dict.fromkeys(fit["arm"] for fit in good):
        mine = [fit for fit in good if fit["arm"] == arm]
        past = [f["error"] for fit in mine for f in fit["backtest"] if f["share"] == FORECAST and f["state"] == "fit"]
        errors = [abs(error) for error in past if error is not None]
        of = sum(fit["arm"] == arm for fit in fits)
        cells = [
            _number(_mean([fit["ceiling"]["value"] for fit in mine])),
            _number(_mean([fit["r2"] for fit in mine]), 2),
        ]
        error = f"{_number(_mean(errors))} ({many(len(errors), 'run')})" if errors else "–"
        lines.append(f"| {arm} | {len(mine)} of {of} | {' | '.join(cells)} | {error} |")
    return "\n".join(lines)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _tuned(results: Results) -> str:
    if not results["tuned"]:
        return ""
    rows = results["tuned"]
    lines = [
        f"## Chosen on the tuning split, by {rows[0]['by']}\n",
        f"*score*: by what was chosen, on problems of their own; {NO_BEST}.\n",
        "| arm | learning rate | temperature | score | area |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        lr = "–" if row["lr"] is None else f"{row['lr']:g}"
        area = _interval(row["volume"]) if "volume" in row else "–"
        lines.append(f"| {row['arm']} | {lr} | {row['temperature']:g} | {_number(row['score'])} | {area} |")
    return "\n".join(lines)


def _seeds(n: int) -> str:
    return "Intervals cover problems and seeds." if n >= 3 else "Intervals cover problems, not seeds: that needs 3."


def _without(n: int) -> str:
    """Why the numbers beside pass@k have no interval."""
    why = "means over seeds" if n > 1 else "of one seed"
    return f"*unsolved*, *entropy* and *KL* are {why}, without an interval here: that of every run is in `arms` of `results.json`."


def _find(rows: list[dict[str, Any]], **wanted: Any) -> dict[str, Any] | None:
    return next((row for row in rows if all(row[key] == value for key, value in wanted.items())), None)


def _number(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _interval(row: Mapping[str, Any]) -> str:
    """`0.372 [0.322, 0.422]`, or why there is none."""
    if row["value"] is None or row["low"] is None:
        return _number(row["value"]) + ("" if row["value"] is None else _reason(row))
    return f"{_number(row['value'])} [{_number(row['low'])}, {_number(row['high'])}]"


def _reason(row: Mapping[str, Any]) -> str:
    why = row["how"].partition("no interval: ")[2].partition(";")[0]
    return f" (no interval: {why})" if why else " (no interval)"


def _change(row: dict[str, Any] | None, sure: str) -> str:
    if row is None:
        return "–"
    if row["value"] is None:
        missing = row["missing"] or ""
        return "beyond it" if "above" in missing else "below it" if "below" in missing else "–"
    text = f"{row['value']:+.3f}"
    if row["low"] is None:
        return text + _reason(row)
    mark = sure if row["low"] > 0 or row["high"] < 0 else ""
    return f"{mark}{text}{mark} [{row['low']:+.3f}, {row['high']:+.3f}]"
