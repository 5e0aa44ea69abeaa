"""Can samples at inference buy back what training lost? 1 to 256 of them at equal tokens, for base, collapsed and preserved policies.

    python -m benchmarks.findings.buy_back make --direct     trains studies/buy-back.toml and buy-back-recipe.toml and draws, two cores
    python -m benchmarks.findings.buy_back make --search     the same of studies/two-loops.toml, whose runs it shares, an H200
    python -m benchmarks.findings.buy_back make --trips      the same of studies/where-trips.toml, whose runs it shares, two cores
    python -m benchmarks.findings.buy_back                   the tables, from the draws.parquet in their results

Direct answers are of four-number Countdown (0.34 M parameters), search traces of three-number Countdown (0.45 M), trips of nine cities
(0.45 M): a policy is compared with the base model of its own kind only. A policy that took more tokens for a sample gets fewer samples, on straight lines between the
numbers of samples that were counted. Every policy is drawn at six temperatures; the tables take each at the one that is best for
pass@1 on the tuning split, and at 1. Vote gain, maj@64 − pass@1, is set against the answer entropy over all policies and temperatures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path

import numpy as np
from scipy import stats

from benchmarks.findings.drawing import Drawer
from benchmarks.findings.outcomes import Cells, arms_of, count_batch, told
from benchmarks.findings.policies import (
    Asking,
    Policy,
    Row,
    ask_all,
    asked,
    load_study,
    policies_made,
    policies_of,
    read_rows,
    run_study,
    say,
)
from benchmarks.findings.studied import Floats, table
from equipoise.errors import UsageError
from equipoise.lab.study_config import BASE, StudyConfig
from equipoise.lab.study_numbers import difference

STUDIES = {"direct": ("buy-back", "buy-back-recipe"), "search": ("two-loops",), "trips": ("where-trips",)}
FILE = "draws.parquet"
KS = (1, 2, 4, 8, 16, 32, 64, 128, 256)  # votes that are counted
KEY = ("arm", "temperature", "split")
SHARES = (1, 4, 16, 64, 256)  # tokens, in samples of the base model at that temperature
VOTES = 64


@dataclass(frozen=True, slots=True)
class Drawing(Asking):
    samples: int = 256


def draw(policy: Policy, how: Drawing) -> list[Row]:
    """Counts of every problem at every temperature, votes of as many as were drawn; on the tuning split 16 samples."""
    drawer = Drawer(policy)
    found: list[Row] = []
    for split, n, samples in (("tune", how.tune, min(16, how.samples)), ("test", how.problems, how.samples)):
        posed = drawer.task.problems("findings", n, split=split)
        votes = [k for k in KS if k <= samples] if split == "test" else [1]
        for temperature in how.temperatures:
            at = {"temperature": temperature, "split": split}
            for batch in drawer.batches(posed, samples=samples, temperature=temperature, seed=("findings", split)):
                found += [at | row for row in count_batch(batch, votes=votes)]
    return found


def tuned(cells: Cells, arm: str) -> float:
    """The temperature with the best pass@1 on the tuning split, seeds averaged."""
    keys = [key for key in cells if key[0] == arm and key[2] == "tune"]
    return float(str(max(keys, key=lambda key: cells.mean(key, "pass@1"))[1]))


def at_samples(cells: Cells, key: tuple[object, ...], name: str, k: float) -> Floats:
    """pass@k or maj@k (S, P) for a k between those that were counted: on straight lines in log k."""
    below = max(each for each in KS if each <= k)
    above = min((each for each in KS if each >= k), default=below)
    share = 0.0 if above == below else log(k / below) / log(above / below)
    low, high = (cells.values(key, f"{name}@{each}") for each in (below, above))
    return np.asarray((1 - share) * low + share * high)


def curve(rows: Sequence[Row], kind: str, at: float | None) -> list[tuple[str, ...]]:
    """pass@k and maj@k of every arm minus the base model's at equal tokens; `at`: a temperature, None: each arm's tuned one."""
    cells, arms = Cells(rows, KEY), arms_of(rows)
    most = int(max(row["drawn"] for row in rows if row["split"] == "test"))
    keys = {arm: (arm, tuned(cells, arm) if at is None else at, "test") for arm in arms}
    each = {arm: cells.mean(keys[arm], "tokens") for arm in arms}
    found = []
    for share in (share for share in SHARES if share <= most):
        for arm in arms:
            k = min(max(1.0, share * each[BASE] / each[arm]), most)  # one at least, and no more than were drawn
            numbers = []
            for name in ("pass", "maj"):
                mine, base = at_samples(cells, keys[arm], name, k), at_samples(cells, keys[BASE], name, share)
                numbers += [f"{mine.mean():.3f}", "" if arm == BASE else told(difference(mine, base))]
            found.append((kind, f"{k * each[arm]:.0f}", f"{arm} at {keys[arm][1]:g}", f"{k:.3g}", *numbers))
    return found


def gains(rows: Sequence[Row]) -> tuple[list[float], list[float]]:
    """Answer entropy and maj@n − pass@1 of every policy and temperature, a pair for each seed."""
    cells = Cells([row for row in rows if row["split"] == "test"], KEY)
    n = min(VOTES, int(max(row["drawn"] for row in rows)))
    entropy, gain = [], []
    for key in cells:
        entropy += cells.values(key, "entropy").mean(axis=1).tolist()
        gain += (cells.values(key, f"maj@{n}") - cells.values(key, "pass@1")).mean(axis=1).tolist()
    return entropy, gain


def gain_row(kind: str, rows: Sequence[Row]) -> tuple[str, ...]:
    entropy, gain = gains(rows)
    found = stats.spearmanr(entropy, gain) if len(entropy) > 2 else None
    best = int(np.argmax(gain))
    rank = "–" if found is None else f"{found.statistic:+.2f}"
    return (
        kind,
        str(len(gain)),
        rank,
        f"{max(gain):+.3f} at {entropy[best]:.2f}",
        f"{gain[int(np.argmin(entropy))]:+.3f}",
    )


def tables(by_kind: dict[str, list[Row]]) -> str:
    heads = ("model", "tokens", "policy", "samples", "pass@k", "Δ to base", "maj@k", "Δ to base")
    out = []
    for words, at in (("T = 1", 1.0), ("each at the temperature that is best for pass@1 on the tuning split", None)):
        out += [words, "", table(heads, [row for kind, rows in by_kind.items() for row in curve(rows, kind, at)]), ""]
    of_gain = (
        "model",
        "policies × temperatures",
        "rank correlation of gain and answer entropy",
        "largest gain, at entropy",
        "gain at the lowest entropy",
    )
    return "\n".join([*out, table(of_gain, [gain_row(kind, rows) for kind, rows in by_kind.items()])])


def drawn_of(config: StudyConfig) -> list[Policy]:
    """What a study makes of its arms' weights, where it does: its base model is that of another. Otherwise all that it trains."""
    return policies_made(config) or policies_of(config)


def read_drawn(kind: str, folders: Sequence[Path]) -> list[Row]:
    """What there is of a kind, asked of the same problems."""
    rows = [row for folder in folders if (folder / FILE).exists() for row in read_rows(folder / FILE)]
    asked_of = {(row["arm"], row["seed"]): [] for row in rows}
    for row in rows:
        asked_of[row["arm"], row["seed"]].append((row["temperature"], row["split"], row["problem"], row["drawn"]))
    if len({tuple(each) for each in asked_of.values()}) > 1:
        raise UsageError(f"{kind}: its policies were not asked the same; draw them again with the same settings")
    return rows


def main() -> None:
    given = asked(__doc__ or "", flags=tuple(STUDIES))
    configs = {kind: [load_study(name, given.settings) for name in names] for kind, names in STUDIES.items()}
    named = [kind for kind in STUDIES if getattr(given, kind)] or list(STUDIES)
    if given.verb == "make":
        for config in (config for kind in named for config in configs[kind]):
            say(config.out.name)
            run_study(config, jobs=given.jobs)
            ask_all(draw, drawn_of(config), Drawing.asked(given), config.out / FILE, jobs=given.jobs)
    drawn = {kind: read_drawn(kind, [config.out for config in configs[kind]]) for kind in named}
    print(tables({kind: rows for kind, rows in drawn.items() if rows}))


if __name__ == "__main__":
    main()
