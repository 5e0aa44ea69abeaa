"""What the committed results say of each method: the status of its row in the catalogue.

    python -m benchmarks.statuses    # the tables in docs/infer.md and docs/control.md

A comparison is a difference on the same problems between a method and its baseline, better above 0. A strategy's baseline gets as many
tokens (or, for an early stop, keeps as much of the whole vote: then the tokens are compared). A training method's is the arm that
differs in nothing else and draws as many rollouts, in pass@1 and in pass@k for the largest k at the study's temperature; a study of
fewer than three seeds is a trial and does not count. It tells where its 95 % interval leaves out 0; one without an interval does not
tell. The rule, over all comparisons of a method:

    untested   there is none
    neutral    none is above 0
    proven     above 0 on two families of tasks or more, and below 0 nowhere
    mixed      above 0 somewhere, and not proven

Each interval is read by itself: of twenty comparisons of things that do not differ, one stands out. So one family is not enough to be
proven, and a single loss is enough not to be. What has no comparison here keeps "untested": baselines (`single`, `majority`,
`best_of_n`), what was run without a baseline of as many tokens (`deepconf_online`), and `agent`, whose benchmark replays a stop by
learned values that the strategy does not use. Of a controller and the term whose coefficient it moves, the controller is compared.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from benchmarks.findings.arms import read_arms
from benchmarks.findings.studied import Floats
from equipoise.catalogue.base import Loop
from equipoise.catalogue.table import methods
from equipoise.lab.study_numbers import difference
from equipoise.measures.intervals import paired_difference

HERE = Path(__file__).parent
CURVE = "pass@64 to the curve at equal pass@1"
# Game of 24 is Countdown with one target: another pool and model, not another family.
LEAST_SEEDS = 3
FAMILY = {"trips": "trips", "countdown": "Countdown", "game24": "Countdown", "math-rm8": "MATH", "cruxeval": "CRUXEval"}
STOPS = {"settled": "settled", "anytime": "anytime", "adaptive consistency": "adaptive_consistency", "ESC": "esc"}

Status = Literal["untested", "neutral", "proven", "mixed"]


@dataclass(frozen=True, slots=True)
class Comparison:
    method: str
    baseline: str
    results: str  # the folder whose results.json holds it
    family: str
    pool: str
    at: str  # the setting or budget
    low: float | None  # of what it gains on the baseline; None: too few problems differ for an interval
    high: float | None

    @property
    def above(self) -> bool:
        return self.low is not None and self.low > 0

    @property
    def below(self) -> bool:
        return self.high is not None and self.high < 0


def status_of(comparisons: Sequence[Comparison]) -> Status:
    """The rule at the head of this file."""
    if not comparisons:
        return "untested"
    families = {each.family for each in comparisons if each.above}
    if not families:
        return "neutral"
    return "proven" if len(families) >= 2 and not any(each.below for each in comparisons) else "mixed"


def read_comparisons() -> list[Comparison]:
    """All that the committed results hold, by file."""
    return [*_stops(), *_steps(), *_evolution(), *_decoding(), *_proxy(), *_thinker(), *_studies()]


def compared(loop: Loop) -> dict[str, list[Comparison]]:
    """Those of one loop by the name of the method."""
    known = {method.name for method in methods() if method.loop == loop}
    found: dict[str, list[Comparison]] = {}
    for each in read_comparisons():
        if each.method in known:
            found.setdefault(each.method, []).append(each)
    return found


def write_table(loop: Loop) -> str:
    lines = [
        f"| {'strategy' if loop == 'inference' else 'method'} | status | better | no telling | worse | than | on | results |",
        "| --- | --- | ---: | ---: | ---: | --- | --- | --- |",
    ]
    for name, mine in compared(loop).items():
        better, worse = sum(each.above for each in mine), sum(each.below for each in mine)
        counts = f"{better} | {len(mine) - better - worse} | {worse}"
        baselines = ", ".join(dict.fromkeys(each.baseline for each in mine))
        families = ", ".join(dict.fromkeys(each.family for each in mine))
        folders = ", ".join(
            f"[{Path(each).name}](../{each}/README.md)" for each in dict.fromkeys(c.results for c in mine)
        )
        lines.append(f"| `{name}` | {status_of(mine)} | {counts} | {baselines} | {families} | {folders} |")
    return "\n".join(lines)


# --- one reader for each benchmark


def _stops() -> Iterator[Comparison]:
    """Tokens saved against a vote of fewer samples that keeps as much, as a share of the whole vote's.

    On file are the paired differences of both to one peer. The interval here goes from the worst to the best that the two allow
    together, which is wider than the paired one: sd(a − b) ≤ sd(a) + sd(b).
    """
    for pool in _read("infer")["pools"]:
        fewer = {(row["by"], row["most"]): row for row in pool["tuned"] if row["rule"] == "majority of fewer"}
        for row in pool["tuned"]:
            if row["rule"] not in STOPS:
                continue
            mine, plain = _to_peer(row), _to_peer(fewer[row["by"], row["most"]])
            known = None not in (*mine, *plain)
            yield Comparison(
                STOPS[row["rule"]],
                "a vote of fewer samples",
                "benchmarks/infer",
                FAMILY[pool["pool"]],
                pool["pool"],
                f"{row['by']} ≤ {row['most']}",
                plain[0] - mine[1] if known else None,
                plain[1] - mine[0] if known else None,
            )


def _to_peer(row: dict[str, Any]) -> tuple[Any, Any]:
    """The interval of its tokens less the best peer's; its own difference to itself is 0."""
    told = row["to_best_peer"]
    return (0.0, 0.0) if told is None else (told["low"], told["high"])


def _steps() -> Iterator[Comparison]:
    for world in _read("steps")["worlds"]:
        for arm in world["arms"]:
            noise = f", {arm['noise']:.0%} noise" if arm["noise"] else ""
            pool = f"{world['model']} on {world['task']}"
            family = FAMILY[world["task"].partition(":")[0]]
            yield _compare(
                arm["arm"],
                "best-of-N by the same scorer",
                "benchmarks/steps",
                family,
                pool,
                arm["scorer"] + noise,
                arm["minus_best_of_n"],
            )


def _evolution() -> Iterator[Comparison]:
    for policy, tasks in _read("evolution")["policies"].items():
        for task, arms in tasks.items():
            for name, arm in arms.items():
                if name == "best of N":
                    continue
                for budget, gain in arm["differences"]["best of N"].items():
                    strategy = arm["spec"].partition(":")[0]
                    pool, at = f"{policy} policy, {task}", f"{name}, {budget} tokens"
                    yield _compare(strategy, "best of N", "benchmarks/evolution", FAMILY["trips"], pool, at, gain)


def _decoding() -> Iterator[Comparison]:
    """Only the settings that were chosen on other problems."""
    found = _read("decoding")
    for model in ("base", "collapsed"):
        for row in found[model]["test"]["rows"]:
            if row["family"] != "temperature":
                strategy = "diverse_prompts" if row["family"] == "diverse prompts" else "decoded"
                yield _to_curve(strategy, "benchmarks/decoding", f"{model} model", row)


def _proxy() -> Iterator[Comparison]:
    for row in _read("proxy")["GRPO, 100 steps"]:
        if "proxy" in row["arm"]:
            yield _to_curve("decoded", "benchmarks/proxy", "medium model", row)


def _to_curve(strategy: str, folder: str, pool: str, row: dict[str, Any]) -> Comparison:
    curve = "plain temperatures, pass@64 at equal pass@1"
    return _compare(strategy, curve, folder, "Countdown", pool, row["arm"], row[CURVE])


def _thinker() -> Iterator[Comparison]:
    """Forced: another attempt in place of the model's own end, which is what Wait asks of a model that has words."""
    measured, pool = _read("thinker")["measured"], "thinker on countdown:numbers=3"
    longer, own = "one longer thought", "one thought that ends by itself"
    for row in measured["against_parallel"]:
        gain = {"low": -row["one_minus_vote"]["high"], "high": -row["one_minus_vote"]["low"]}
        at = f"{row['of']} × {row['of_budget']} in {row['budget']}"
        yield _compare("parallel", longer, "benchmarks/thinker", "Countdown", pool, at, gain)
    own_end = measured["capped"][-1]
    for row in measured["forced"]:
        if row["tokens"] >= own_end["tokens"]:  # it is given as many tokens, or more
            shares = [[right / measured["samples"] for right in each["right_P"]] for each in (row, own_end)]
            gap = paired_difference(*shares)
            at = f"forced to {row['budget']}"
            gain = {"low": gap.low, "high": gap.high}
            yield _compare("budget_forcing", own, "benchmarks/thinker", "Countdown", pool, at, gain)


def _studies() -> Iterator[Comparison]:
    """Arms that differ by one method from the one that the study compares them with, or that have one more than any other."""
    for path in sorted((HERE.parent / "studies" / "results").glob("*/results.json")):
        study = json.loads(path.read_text())
        if len(study["seeds"]) < LEAST_SEEDS:
            continue
        trained = {arm: recipe for arm, recipe in study["recipes"].items() if not recipe.get("made_of")}
        for arm, against in itertools.permutations(trained, 2):
            mine, other = trained[arm], trained[against]
            named = against == (mine.get("against") or study["plain"])
            if not (named and _trains_alike(mine, other)) and not _has_more(mine, other):
                continue
            if (name := _one_method(mine["settings"]["method"], other["settings"]["method"])) is None:
                continue
            family, folder = FAMILY[_task_of(mine)], f"studies/results/{path.parent.name}"
            for k in (1, study["k_max"]):
                gain = _paired(study, path.parent, arm, against, k)
                yield _compare(name, f"`{against}`", folder, family, arm, f"pass@{k}", gain)


def _trains_alike(mine: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two arms differ in their methods alone."""
    return _beside(mine, mine["settings"]["method"]) == _beside(other, other["settings"]["method"])


def _has_more(mine: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether one arm has all that another has, and methods beside it."""
    chosen, known = (each["settings"]["method"] for each in (mine, other))
    open_slots = [slot for slot, specs in known.items() if specs is None or isinstance(specs, list)]
    adds = all(set(_specs(known[slot])) <= set(_specs(chosen[slot])) for slot in open_slots)
    return adds and _beside(mine, open_slots) == _beside(other, open_slots)


def _beside(recipe: dict[str, Any], slots: Sequence[str]) -> dict[str, Any]:
    """All settings but those methods, where a bonus goes, and what follows from them for equal rollouts.

    That is the steps, fewer where something is drawn before the first one, and a step's problems, of which scouting poses more
    and dynamic sampling draws others.
    """
    settings = dict(recipe["settings"])
    free = {
        "method": (*slots, "bonus_on_answer"),
        "learning": ("steps",),
        "sampling": ("prompts", "refills", "most_prompts"),
    }
    for part, names in free.items():
        settings[part] = {name: value for name, value in settings[part].items() if name not in names}
    return settings


def _paired(study: dict[str, Any], folder: Path, arm: str, against: str, k: int) -> dict[str, Any]:
    """The difference at the study's temperature: as the study has it, or from what both did on every problem."""
    for row in study["differences"]:
        if (row["arm"], row["against"], row["temperature"], row["name"]) == (
            arm,
            against,
            study["headline"],
            f"pass@{k}",
        ):
            return dict(row)
    found = difference(*(_passed(folder, each, study["headline"], k) for each in (arm, against)))
    return {"low": found.low, "high": found.high}


def _passed(folder: Path, arm: str, temperature: float, k: int) -> Floats:
    """pass@k (S, P) of every seed on every problem."""
    policies = _arms(folder)[arm]
    return np.asarray(policies.passes(k)[:, policies.temperatures.index(temperature)])


_arms = cache(read_arms)


def _one_method(mine: dict[str, Any], other: dict[str, Any]) -> str | None:
    """The method that one recipe has more than another, or in place of one in the same slot.

    None where that is not one or is of a module of its own, and where the other has one elsewhere that this one lacks.
    """
    more = {}
    for slot, chosen in mine.items():
        if isinstance(chosen, bool):
            continue
        here, there = ({spec.partition(":")[0] for spec in _specs(each)} for each in (chosen, other[slot]))
        if there - here and not here - there:
            return None
        more[slot] = here - there
    names = more["controllers"] or set().union(*more.values())
    name = names.pop() if len(names) == 1 else None
    return None if name is None or "." in name else name


def _specs(chosen: str | list[str] | None) -> list[str]:
    return [chosen] if isinstance(chosen, str) else chosen or []


def _task_of(recipe: dict[str, Any]) -> str:
    return str(recipe["settings"]["task"]).partition(":")[0]


def _compare(
    method: str, baseline: str, results: str, family: str, pool: str, at: str, gain: dict[str, Any]
) -> Comparison:
    return Comparison(method, baseline, results, family, pool, at, gain["low"], gain["high"])


def _read(name: str) -> Any:
    return json.loads((HERE / name / "results.json").read_text())


if __name__ == "__main__":
    for each in ("inference", "training"):
        print(write_table(each), end="\n\n")
