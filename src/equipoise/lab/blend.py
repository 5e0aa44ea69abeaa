"""Repair of a collapsed checkpoint: a sweep between base and trained weights, and the point of it that suits a stated use.

Axes: L points of the sweep, P problems.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.base import Estimate
from equipoise.errors import UsageError, unknown_name
from equipoise.files import atomic_write, make_folder, plain
from equipoise.lab.blend_pick import USES, Pick, choose_point, goals, rule_of
from equipoise.lab.interpolation import Line
from equipoise.measures.html import html_table, number_cell
from equipoise.measures.intervals import mean_of_prompts, paired_difference
from equipoise.measures.passk import pass_at_k_of
from equipoise.models.gpt import GPT
from equipoise.models.graphs import StepGraphs
from equipoise.models.packaged import MAX_TOKENS
from equipoise.tasks.table import find_task
from equipoise.training.evaluate import Evaluated, evaluate
from equipoise.training.opening import OpenModel, open_model
from equipoise.training.recipe import Evaluation

POINTS = tuple(i / 10 for i in range(11))
LONGER = 256  # tokens of a completion, for a transformers model that no run of ours trained

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Measured:
    """One point of the line on one split."""

    point: float
    estimates: tuple[Estimate, ...]  # pass@1, 2, 4, … and pass@k, distinct answers, entropy
    correct_P: np.ndarray
    judged_P: np.ndarray

    def find(self, name: str) -> Estimate:
        return next(number for number in self.estimates if number.name == name)

    def passes(self, k: int) -> np.ndarray:
        """(P,) pass@k, nan where fewer than k completions were judged."""
        return pass_at_k_of(self.correct_P, self.judged_P, k)


@dataclass(frozen=True, slots=True)
class Blended:
    """The sweep, the point picked from it, and what other problems say of that point. `model`: what loads it, None: not written."""

    base: str
    trained: str
    settings: Mapping[str, Any]
    k: int
    sweep: tuple[Measured, ...]
    pick: Pick
    test: tuple[Measured, ...]  # BASE, the pick, TRAINED, each once
    against: tuple[Estimate, ...]  # pick − end, on the test problems
    model: str | None = None

    @property
    def goal(self) -> str:
        return f"pass@{goals(self.settings['use'], self.k)[0]}"

    @property
    def rule(self) -> str:
        return rule_of(self.settings["use"], self.k)

    def to_dict(self) -> dict[str, Any]:
        def told(found: tuple[Measured, ...]) -> list[dict[str, Any]]:
            return [{"point": one.point, "estimates": [e.to_dict() for e in one.estimates]} for one in found]

        return {
            "schema": "equipoise.blend/1",
            "equipoise": version("equipoise"),
            "base": self.base,
            "trained": self.trained,
            "settings": dict(self.settings),
            "goal": self.goal,
            "rule": self.rule,
            "pick": {"point": self.pick.point, "best": self.pick.best, "tied": list(self.pick.tied), "n": self.pick.n},
            "sweep": told(self.sweep),
            "test": told(self.test),
            "test_differences": [number.to_dict() for number in self.against],
            "model": self.model,
        }

    def _repr_html_(self) -> str:
        names = list(dict.fromkeys(("pass@1", f"pass@{self.k}", "distinct_unsolved", "entropy")))

        def rows(found: tuple[Measured, ...]) -> list[list[str]]:
            return [
                [f"{one.point:g}", *(number_cell(one.find(name)) for name in names), self._role(one.point)]
                for one in found
            ]

        sweep = f"{self.base} (λ 0) to {self.trained} (λ 1), for {self.settings['use']}: λ = {self.pick.point:g} is {self.rule}"
        return html_table(["λ", *names, ""], rows(self.sweep), title=sweep) + html_table(
            ["λ", *names, ""], rows(self.test), title="On test problems, which had no part in the choice:"
        )

    def _role(self, point: float) -> str:
        return "pick" if point == self.pick.point else "tied" if point in self.pick.tied else ""


def blend(
    base: str | Path,
    trained: str | Path,
    *,
    task: str | None = None,
    use: str = "answer",
    k: int | None = None,
    points: Sequence[float] = POINTS,
    samples: int = 64,
    problems: int = 256,
    temperature: float = 1.0,
    max_tokens: int | None = None,
    seed: int = 0,
    device: str = "cpu",
    rows: int = 8192,
    out: str | Path | None = None,
    say: Say = lambda line: None,
) -> Blended:
    """Sweep θ_base + λ (θ_trained − θ_base), pick λ for a use on one split, confirm it on another, write that model.

    `base`, `trained`: a small GPT file, a run folder (its newest checkpoint), or what transformers loads.
    `use`: "answer" goes by pass@1 and "search" by pass@k, and each lets the other decide between points that are not told
    apart, see `blend_pick`; `k`: default all samples. Every point answers the same problems of the split "tune" with the same seeds;
    0 and 1 are always among the points. The pick is then compared with both ends on problems of the split "test", which had
    no part in choosing it.
    `task`, `max_tokens`: default those of the run that trained `trained`, else Countdown.
    `rows`: completions sampled at once; changes memory, not the result. `out`: a new folder for the model and `blend.json`.
    """
    shares, k = _points(points), samples if k is None else k
    if use not in USES:
        raise unknown_name("use", use, USES)
    if not 1 <= k <= samples:
        raise UsageError(f"pass@{k} from {samples} samples of a problem: use 1 <= k <= {samples}, or draw more samples")
    if problems < 2 or not 0 < temperature <= 10:
        raise UsageError(
            f"a sweep needs 2 problems or more and 0 < temperature <= 10, found {problems} and {temperature:g}"
        )
    folder = None if out is None else _free(Path(out))
    first, last = (open_model(name, dtype=None) for name in (base, trained))
    spec = task or str(last.settings.get("task") or first.settings.get("task") or "countdown")
    asked, longest = find_task(spec), _longest(first, last) if max_tokens is None else max_tokens
    line = Line(first, last, device=device)
    graphs = StepGraphs() if device.startswith("cuda") else None
    clock = time.perf_counter()

    def look(point: float, split: str) -> Measured:
        how = Evaluation(problems=problems, samples=samples, temperatures=(temperature,), split=split, rows=rows)
        (found,) = evaluate(
            line.at(point), line.tokens, asked, how, max_tokens=longest, graphs=graphs, seed=f"blend {seed}"
        )
        return _measured(point, found, split, k)

    sweep: list[Measured] = []
    for point in shares:
        sweep.append(look(point, "tune"))
        left = (time.perf_counter() - clock) / len(sweep) * (len(shares) + 3 - len(sweep))
        say(f"λ {point:g}  {_line(sweep[-1], k)}  {left:.0f} s left")
    pick = choose_point(shares, *(np.stack([one.passes(each) for one in sweep]) for each in goals(use, k)))
    test = tuple(look(point, "test") for point in sorted({0.0, pick.point, 1.0}))
    say(f"picked λ {pick.point:g}; test: {_line(next(one for one in test if one.point == pick.point), k)}")
    settings = {
        "task": spec, "use": use, "k": k, "points": list(shares), "samples": samples, "problems": problems,
        "temperature": temperature, "max_tokens": longest, "seed": seed, "device": device,
        "base_step": first.step, "trained_step": last.step,
    }  # fmt: skip
    found = Blended(first.name, last.name, settings, k, tuple(sweep), pick, test, _against(test, pick.point, k))
    return found if folder is None else _write(found, line, folder)


def blend_at(base: str | Path, trained: str | Path, point: float, *, out: str | Path) -> str:
    """Write θ_base + point (θ_trained − θ_base) into a new folder and measure nothing: where the point is known, or no task here asks
    what the model is for. Returns what loads it."""
    _check(point)
    folder = _free(Path(out))
    line = Line(*(open_model(name, dtype=None) for name in (base, trained)))
    line.at(point)
    model = str(line.save(folder))
    told = {
        "schema": "equipoise.blend_at/1",
        "base": str(base),
        "trained": str(trained),
        "point": point,
        "model": model,
    }
    with atomic_write(folder / "blend.json") as handle:
        handle.write((json.dumps(told, ensure_ascii=False) + "\n").encode())
    return model


def _measured(point: float, found: Evaluated, split: str, k: int) -> Measured:
    one = Measured(point, found.estimates, found.batch.right_P, found.batch.drawn_P)
    extra = [_pass_at(one, each) for each in dict.fromkeys((1, k)) if found.value(f"pass@{each}") is None]
    at = {"temperature": found.temperature, "split": split, "point": point}
    return replace(one, estimates=tuple(replace(e, at={**e.at, **at}) for e in (*found.estimates, *extra)))


def _pass_at(one: Measured, k: int) -> Estimate:
    """For a k that is no power of two, or that some problems have too few judged completions for: over the others."""
    values_P = one.passes(k)
    values_P = values_P[np.isfinite(values_P)]
    if not len(values_P):
        return Estimate(f"pass@{k}", None, n=0, at={"k": k}, missing=f"{k} judged completions of a problem")
    return mean_of_prompts(values_P, bounds=(0, 1)).named(f"pass@{k}", {"k": k})


def _against(test: Sequence[Measured], point: float, k: int) -> tuple[Estimate, ...]:
    """The pick minus each end, over the same problems."""
    picked = next(one for one in test if one.point == point)
    found = []
    for end, name in ((test[0], "base"), (test[-1], "trained")):
        for each in dict.fromkeys((1, k)):
            ours_P, theirs_P = picked.passes(each), end.passes(each)
            known_P = np.isfinite(ours_P) & np.isfinite(theirs_P)
            at = {"k": each, "against": name, "point": point, "split": "test"}
            if end is not picked and known_P.any():
                paired = paired_difference(ours_P[known_P], theirs_P[known_P])
                found.append(paired.named(f"pass@{each}_vs_{name}", at))
    return tuple(found)


def _check(point: float) -> None:
    if not 0 <= point <= 1:
        raise UsageError(f"a point is a share from 0 (BASE) to 1 (TRAINED), found {point:g}")


def _points(points: Sequence[float]) -> list[float]:
    for point in points:
        _check(point)
    return sorted({0.0, *map(float, points), 1.0})


def _longest(first: OpenModel, last: OpenModel) -> int:
    for end in (last, first):
        told = end.settings.get("sampling")
        if isinstance(told, dict) and isinstance(told.get("max_tokens"), int):
            return int(told["max_tokens"])
    return MAX_TOKENS if isinstance(last.loaded.model, GPT) else LONGER


def _free(folder: Path) -> Path:
    """Found out before the sweep, which takes minutes."""
    if folder.exists():
        raise UsageError(f"{folder} exists: give a folder that does not")
    make_folder(folder.parent)
    if not os.access(folder.parent, os.W_OK):
        raise UsageError(f"cannot write into {folder.parent}: give a folder elsewhere")
    return folder


def _write(found: Blended, line: Line, folder: Path) -> Blended:
    line.at(found.pick.point)
    written = replace(found, model=str(line.save(folder)))
    # With the counts behind every number: each can be computed again from this file.
    counts = {
        split: [{"point": one.point, "correct": one.correct_P, "judged": one.judged_P} for one in part]
        for split, part in (("tune", found.sweep), ("test", found.test))
    }
    with atomic_write(folder / "blend.json") as handle:
        handle.write((json.dumps(plain({**written.to_dict(), "counts": counts}), ensure_ascii=False) + "\n").encode())
    return written


def _line(one: Measured, k: int) -> str:
    numbers = [one.find(name) for name in dict.fromkeys(("pass@1", f"pass@{k}", "entropy"))]
    return "  ".join(f"{number.name} {'–' if number.value is None else f'{number.value:.3f}'}" for number in numbers)
