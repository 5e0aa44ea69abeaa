"""The frontier of pass@1 and pass@k: the area of every arm of its studies, what each part adds, and which arm is worth averaging.

python -m benchmarks.findings.frontier     the tables, from studies/results/{frontier,frontier-confirmed,frontier-confirmed-more,
                                           frontier-cooler-medium,frontier-cooler-medium-rivals,frontier-cooler-medium-trials,
                                           held-out-trips,held-out-trips-cooler,held-out-trips-cooler-rivals,held-out-trips-again,
                                           frontier-smollm2,frontier-small,frontier-small-confirmed,frontier-cooler,
                                           frontier-cooler-rivals,frontier-cooler-longer,frontier-options,frontier-options-more,
                                           frontier-medium-options}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.findings.arms import read_arms
from benchmarks.findings.outcomes import told
from benchmarks.findings.studied import RESULTS, Floats, table
from equipoise.errors import UsageError
from equipoise.files import read_json
from equipoise.lab.study_config import BASE
from equipoise.lab.study_numbers import Policies, difference
from equipoise.lab.study_volume import volumes

SMALL = "frontier-small-confirmed"
SHOWN_WHOLE = (
    "frontier",
    "held-out-trips-again",
    "frontier-smollm2",
    "frontier-small",
    SMALL,
    "frontier-cooler-longer",
)
# Studies that share seeds, problems and samples.
CONFIRMED = (
    "frontier-confirmed",
    "frontier-confirmed-more",
    "frontier-cooler-medium",
    "frontier-cooler-medium-rivals",
)
TRIPS = ("held-out-trips", "held-out-trips-cooler", "held-out-trips-cooler-rivals")
COOLER = (SMALL, "frontier-cooler", "frontier-cooler-rivals")
TOGETHER = (CONFIRMED, TRIPS, COOLER)
# Of the average of rare replay with the KL.
OPTIONS = (("frontier-options", "frontier-options-more"), ("frontier-medium-options",))
TRIAL, CHOSEN = "frontier-cooler-medium-trials", "cool_half_rate_smallest_groups_ema"
SHOWN = (0.3, 0.6, 1.0, 1.3)  # temperatures
PLAIN, RECIPE = "grpo", "cool_kl_exact_ema"
AVERAGED, BLENDED = "replay_and_kl_ema", "replay_and_kl_ema_blend"
# Part, an arm with it, the same arm without.
PARTS = (
    ("exact KL", "kl_exact", PLAIN),
    ("rare replay", "replay_and_kl", "kl_exact"),
    ("rare replay", AVERAGED, "kl_exact_ema"),
    ("average", "kl_exact_ema", "kl_exact"),
    ("average", AVERAGED, "replay_and_kl"),
    ("blend", "kl_exact_blend", "kl_exact"),
    ("blend", "replay_and_kl_blend", "replay_and_kl"),
    ("blend", BLENDED, AVERAGED),
    ("anchor", "anchor_replay_and_kl", "replay_and_kl"),
    ("anchor", "anchor_replay_and_kl_ema_blend", BLENDED),
    ("batch exploration", "batch_exploration_and_kl", "kl_exact"),
)
Areas = dict[str, dict[str, Any]]


def read_areas(results: dict[str, Any]) -> Areas:
    """Of every arm its area, and its difference to each other arm."""
    return {
        row["arm"]: {"area": row["volume"], "to": {each["against"]: each for each in row["differences"]}}
        for row in results["volumes"]
    }


def read_together(names: Sequence[str]) -> dict[str, Policies]:
    """Arms of several studies as of one: they must have the same seeds, problems and samples."""
    arms: dict[str, Policies] = {}
    for name in names:
        arms = read_arms(RESULTS / name) | arms  # the base model once, as the first has it
    first = arms[BASE].outcomes[0]
    seeds = {arm.seeds for arm in arms.values() if arm.arm != BASE}
    if len(seeds) > 1 or any(each.problems != first.problems for arm in arms.values() for each in arm.outcomes):
        raise UsageError(f"{', '.join(names)} do not share seeds and problems: their arms cannot be paired")
    return arms


def side_by_side(names: Sequence[str]) -> dict[str, Any]:
    """Areas and points of several studies as of one."""
    arms = read_together(names)
    k = arms[BASE].ks[-1]

    def points(arm: Policies) -> list[dict[str, Any]]:
        means = {f"pass@{of}": arm.passes(of).mean(axis=(0, 2)) for of in (1, k)}
        return [
            {"temperature": temperature} | {name: {"value": float(mean_T[at])} for name, mean_T in means.items()}
            for at, temperature in enumerate(arm.temperatures)
        ]

    front = [{"arm": arm.arm, "points": points(arm)} for arm in arms.values()]
    return {"k_max": k, "volumes": volumes(list(arms.values()), k=k), "frontier": front}


def fronts(results: dict[str, Any], against: Sequence[str] = (BASE, PLAIN, RECIPE)) -> str:
    """pass@1 / pass@k at some temperatures, and the area over all of them."""
    areas, k = read_areas(results), results["k_max"]
    points = {row["arm"]: {point["temperature"]: point for point in row["points"]} for row in results["frontier"]}

    def row(arm: str) -> tuple[str, ...]:
        at = (points[arm][temperature] for temperature in SHOWN)
        to = areas[arm]["to"]
        above = sum(each["low"] is not None and each["low"] > 0 for each in to.values())
        return (
            arm,
            *(f"{point['pass@1']['value']:.3f} / {point[f'pass@{k}']['value']:.3f}" for point in at),
            told(areas[arm]["area"], signed=False),
            *(told(to[other]) if other in to else "" for other in against),
            f"{above} of {len(to)}",
        )

    heads = ("arm", *(f"T = {each:g}" for each in SHOWN), "area", *(f"Δ {other}" for other in against), "above")
    return table(heads, [row(arm) for arm in areas])


def parts(results: dict[str, Any]) -> str:
    areas = read_areas(results)
    rows: list[tuple[str, ...]] = [(part, other, told(areas[arm]["to"][other])) for part, arm, other in PARTS]
    return table(("part", "added to", "Δ area"), rows)


def averages(results: dict[str, Any], against: str = AVERAGED) -> str:
    """What averaging adds to each arm, and its average against another, that of rare replay with the KL or one that was chosen."""
    areas = read_areas(results)

    def row(arm: str) -> tuple[str, ...]:
        mean = f"{arm}_ema"
        to = areas[mean]["to"]
        return (
            arm,
            f"{areas[arm]['area']['value']:.3f}",
            f"{areas[mean]['area']['value']:.3f}",
            told(to[arm]),
            told(to[against]) if against in to else "",
        )

    heads = ("arm", "area", "averaged", "Δ of averaging", f"Δ of the average to {against}")
    return table(heads, [row(arm) for arm in areas if f"{arm}_ema" in areas])


def scouting(name: str, results: dict[str, Any]) -> str:
    """Scouting against the arm without it: pass@1 and pass@k at T = 1, and the area."""
    arms, mine, other = read_arms(RESULTS / name), "scouting_replay_and_kl", "replay_and_kl"
    at = arms[BASE].temperatures.index(1.0)

    def passes(arm: str, k: int) -> Floats:
        return np.asarray(arms[arm].passes(k)[:, at])

    rows: list[tuple[str, ...]] = [
        (f"pass@{k}", told(difference(passes(mine, k), passes(other, k)))) for k in (1, arms[BASE].ks[-1])
    ]
    rows.append(("area", told(read_areas(results)[mine]["to"][other])))
    return table((f"{mine} − {other}", "T = 1"), rows)


def along_the_front(names: Sequence[str]) -> str:
    """The recipe against the other averages, at a low temperature and at 1: where on the front each is."""
    arms = read_together(names)
    ks = (1, arms[BASE].ks[-1])

    def row(other: str, temperature: float) -> tuple[str, ...]:
        at = arms[BASE].temperatures.index(temperature)
        mine, theirs = ([np.asarray(arms[arm].passes(k)[:, at]) for k in ks] for arm in (RECIPE, other))
        return (other, f"{temperature:g}", *(told(difference(*pair)) for pair in zip(mine, theirs, strict=True)))

    others = [arm for arm in arms if arm != RECIPE and (arm.endswith("_ema") or arm == BLENDED)]
    heads = (f"{RECIPE} −", "T", *(f"pass@{k}" for k in ks))
    return table(heads, [row(other, temperature) for other in others for temperature in (0.3, 1.0)])


def main() -> None:
    shown = (*SHOWN_WHOLE, "frontier-confirmed", TRIAL)
    found = {name: read_json(RESULTS / name / "results.json") for name in shown}
    for names in TOGETHER:
        print(f"{', '.join(names)}\n\n{fronts(side_by_side(names))}\n")
    for name in SHOWN_WHOLE:
        print(f"{name}\n\n{fronts(found[name])}\n")
    print(f"what each part adds: frontier\n\n{parts(found['frontier'])}\n")
    for name in ("frontier-confirmed", "frontier-small", SMALL):
        print(f"averages: {name}\n\n{averages(found[name])}\n")
    for names in OPTIONS:
        print(f"averages: {', '.join(names)}\n\n{averages(side_by_side(names))}\n")
    print(f"averages: {TRIAL}\n\n{averages(found[TRIAL], CHOSEN)}\n")
    for names in TOGETHER:
        print(f"{', '.join(names)}\n\n{along_the_front(names)}\n")
    print(f"frontier-small\n\n{scouting('frontier-small', found['frontier-small'])}")


if __name__ == "__main__":
    main()
