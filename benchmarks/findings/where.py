"""Where entropy collapses: forks against routine tokens, the kinds of tokens, places, two phases; and what trains which.

    python -m benchmarks.findings.where make            trains studies/where.toml, half an hour on two cores, and reads its rollouts
    python -m benchmarks.findings.where make --trips    the same of studies/where-trips.toml
    python -m benchmarks.findings.where                 the tables, from studies/results/{where,where-trips,two-loops}/tokens.parquet
    python -m benchmarks.findings.where read            reads the rollouts of these studies where they are on this machine

Before and after: the same test problems at T = 1 before the first step and after the last. A fork is a token of the fifth with the highest
entropy of its own step; a routine token is any other. In the model that thinks, *plan* is the expression of an attempt, *work out* what
follows its equals sign, *answer* all after the thinking. Intervals resample problems and add the spread of the seeds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.findings.arms import arms_table
from benchmarks.findings.outcomes import resampled, told
from benchmarks.findings.policies import Row, asked, load_study, read_rows, run_study, say, write_rows
from benchmarks.findings.studied import Floats, table
from equipoise.lab.study_config import StudyConfig
from equipoise.lab.study_run import steps_logged
from equipoise.objectives.stepwide import StepWide
from equipoise.objectives.weights import top_entropy
from equipoise.rollouts.folder import open_folder

STUDIES = ("where", "where-trips", "two-loops")  # the last is trained by findings of its own
FILE, LOG = "tokens.parquet", "entropies.parquet"
SHARE = 0.2
KINDS = {"number": "0123456789", "sign": "+-*/", "parenthesis": "()"}
COLUMNS = ("split", "step", "group_id", "token_ids", "entropies", "temperature")
_THOUGHT = re.compile(r"\[([^\]]*)(\]?)")


def low_entropy(entropy_BT: Tensor, mask_BT: Tensor, *, share: float) -> Tensor:
    """(B, T) bool: the real tokens that are not among the `share` of highest entropy."""
    return mask_BT & ~top_entropy(entropy_BT, mask_BT, share=share)


def routine(entropy_BT: Tensor, mask_BT: Tensor, chosen_BT: Tensor | None = None, *, share: float) -> Tensor:
    """Weight 1 on all but the `share` of tokens with the highest entropy, 0 on those: what 80/20 leaves out."""
    chosen_BT = low_entropy(entropy_BT, mask_BT, share=share) if chosen_BT is None else chosen_BT
    return torch.where(chosen_BT & mask_BT, 1.0, 0.0).to(entropy_BT.dtype)


routine_step = StepWide(low_entropy, routine)


def kinds_of(text: str) -> list[str]:
    """What every character of a completion is, one token each; the token that ends it has no character."""
    kinds = [next((kind for kind, signs in KINDS.items() if char in signs), "other") for char in text]
    thought = _THOUGHT.match(text)
    if thought is None:
        return kinds
    inside, at = thought[1], 1
    kinds = ["mark"] * len(text)
    for attempt in re.split("(,)", inside):
        expression = attempt.partition("=")[0]
        for place in range(len(attempt)):
            kinds[at + place] = "mark" if attempt == "," else "plan" if place < len(expression) else "work out"
        at += len(attempt)
    for place in range(thought.end(), len(text)):
        kinds[place] = "answer"
    return kinds


def read_tokens(folder: Path) -> Iterator[Row]:
    """A row per evaluation, problem and class of tokens: how many there are and the sum of their entropies."""
    run = open_folder(folder)
    vocab = run.vocab() or {}
    windows: dict[tuple[str, int], list[tuple[str, str, Floats]]] = {}
    for batch in run.rollouts(COLUMNS):
        for row in batch.rows():
            if row["split"] == "train" or row.get("entropies") is None or (row.get("temperature") or 1.0) != 1.0:
                continue  # problems of training come once: only those of the test split are seen before and after
            # A character for each token, so that places in the text are places in the list.
            text = "".join(vocab.get(token, "")[:1] or "\0" for token in row["token_ids"])
            entropies = np.array(row["entropies"], dtype=float)
            windows.setdefault((row["split"], row["step"]), []).append((row["group_id"], text, entropies))
    for (split, step), rollouts in windows.items():
        cut = float(np.quantile(np.concatenate([entropies for *_, entropies in rollouts]), 1 - SHARE))
        sums: dict[tuple[str, str], Floats] = {}
        for problem, text, entropies in rollouts:
            for kind, chosen in classes(text, entropies, cut).items():
                if not chosen.any():
                    continue
                cell = sums.setdefault((problem, kind), np.zeros(2))
                cell += [chosen.sum(), entropies[chosen].sum()]
        for (problem, kind), (n, total) in sums.items():
            yield {"split": split, "step": step, "problem": problem, "kind": kind, "tokens": n, "entropy": total}


def classes(text: str, entropies: Floats, cut: float) -> dict[str, np.ndarray]:
    """Which tokens of a completion are of which class; classes overlap."""
    kinds, n = np.array(kinds_of(text)), len(entropies)
    third = np.minimum(3 * np.arange(n) // n, 2)
    found = {"all": np.ones(n, dtype=bool), "fork": entropies >= cut, "routine": entropies < cut}
    found |= {words: third == place for place, words in enumerate(("first third", "middle third", "last third"))}
    return found | {str(kind): kinds == kind for kind in np.unique(kinds) if kind not in ("mark", "other")}


def collect_rows(config: StudyConfig) -> tuple[list[Row], list[Row]]:
    """Tokens of every run, and the entropy that each logged at every step."""
    tokens: list[Row] = []
    logged: list[Row] = []
    for arm in config.arms:
        for seed in config.seeds:
            folder = config.out / "runs" / f"{arm}-{seed}"
            say(f"reading {folder}")
            who = {"arm": arm, "seed": seed}
            tokens += [who | row for row in read_tokens(folder)]
            logged += [who | {"step": line["step"], "entropy": line["entropy"]} for line in steps_logged(folder)]
    return tokens, logged


def ends_of(rows: Sequence[Row], arm: str) -> tuple[int, int]:
    """The steps before and after."""
    steps = [row["step"] for row in rows if row["arm"] == arm]
    return min(steps), max(steps)


def kinds_in_both(rows: Sequence[Row], arm: str) -> list[str]:
    """The classes that every seed's completions have before and after: of the others no share is lost or kept."""
    seen: dict[str, set[tuple[int, int]]] = {}
    for row in rows:
        if row["arm"] == arm:
            seen.setdefault(row["kind"], set()).add((row["seed"], row["step"]))
    wanted = {
        (seed, step) for seed in {row["seed"] for row in rows if row["arm"] == arm} for step in ends_of(rows, arm)
    }
    return [kind for kind, found in seen.items() if wanted <= found]


class Windows:
    """Sums of one arm and class, (S, P), on the test problems before and after."""

    def __init__(self, rows: Sequence[Row], arm: str, kind: str) -> None:
        mine = [row for row in rows if row["arm"] == arm and row["kind"] == kind]
        self.seeds = sorted({row["seed"] for row in mine})
        self.problems = sorted({row["problem"] for row in mine})
        self.first, self.last = ends_of(rows, arm)
        places = {problem: place for place, problem in enumerate(self.problems)}
        self._sums = {
            (name, step): np.zeros((len(self.seeds), len(places)))
            for name in ("tokens", "entropy")
            for step in (self.first, self.last)
        }
        for row in mine:
            at = self.seeds.index(row["seed"]), places[row["problem"]]
            for name in ("tokens", "entropy"):
                self._sums[name, row["step"]][at] += row[name]

    def mean(self, step: int, weights_DP: Floats) -> Floats:
        """Mean entropy of the class, (S, D)."""
        entropy, tokens = (self._sums[name, step] @ weights_DP.T for name in ("entropy", "tokens"))
        return np.asarray(entropy / tokens)

    def lost(self, weights_DP: Floats) -> Floats:
        """Share of its mean entropy that the class has lost, (S, D)."""
        return np.asarray(1 - self.mean(self.last, weights_DP) / self.mean(self.first, weights_DP))


def row_of(rows: Sequence[Row], arm: str, kind: str) -> tuple[str, ...]:
    found, whole = Windows(rows, arm, kind), Windows(rows, arm, "all")
    ones = np.ones((1, len(found.problems)))
    before, after = (float(found.mean(step, ones).mean()) for step in (found.first, found.last))
    shares = [
        float(found._sums["entropy", step].sum() / whole._sums["entropy", step].sum())
        for step in (found.first, found.last)
    ]
    lost = resampled(found.lost, len(found.problems))
    return arm, kind, f"{before:.3f} → {after:.3f}", told(lost, signed=False), f"{shares[0]:.2f} → {shares[1]:.2f}"


def phases(logged: Sequence[Row], arm: str) -> tuple[str, ...]:
    """By which share of the steps how much of the fall in entropy is done; ends are means over a twentieth of the steps."""
    told_of = []
    for share in (0.1, 0.25, 0.5, 0.75):
        done = []
        for seed in sorted({row["seed"] for row in logged if row["arm"] == arm}):
            course = np.array([row["entropy"] for row in logged if (row["arm"], row["seed"]) == (arm, seed)])
            width = max(1, len(course) // 20)
            start, end = course[:width].mean(), course[-width:].mean()
            at = max(1, round(share * len(course)))
            fall = float(start - end)
            done.append(float(start - course[max(0, at - width) : at].mean()) / fall if fall else float("nan"))
        told_of.append(f"{np.mean(done):.2f} ({min(done):.2f} to {max(done):.2f})")
    return arm, *told_of


def tables(tokens: Sequence[Row], logged: Sequence[Row]) -> str:
    arms = list(dict.fromkeys(row["arm"] for row in tokens))
    heads = ("arm", "tokens", "mean entropy: before → after", "share lost", "of all entropy: before → after")
    of_course = ("arm", "of the fall, by 10 % of the steps", "25 %", "50 %", "75 %")
    body = [row_of(tokens, arm, kind) for arm in arms for kind in kinds_in_both(tokens, arm)]
    return f"{table(heads, body)}\n\n{table(of_course, [phases(logged, arm) for arm in arms])}"


def main() -> None:
    given = asked(__doc__ or "", verbs=("make", "read"), flags=("trips",))
    trained = "where-trips" if given.trips else "where"
    for name in STUDIES:
        config = load_study(name, given.settings)
        if given.verb == "make" and name == trained:
            run_study(config, jobs=given.jobs)
        if given.verb is not None and (config.out / "runs").is_dir():
            tokens, logged = collect_rows(config)
            write_rows(config.out / FILE, tokens)
            write_rows(config.out / LOG, logged)
        if (config.out / FILE).exists():
            print(f"{name}\n\n{tables(read_rows(config.out / FILE), read_rows(config.out / LOG))}\n")
            print(f"{arms_table(config.out)}\n")


if __name__ == "__main__":
    main()
