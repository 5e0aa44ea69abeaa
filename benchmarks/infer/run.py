"""Tokens that a vote needs at equal accuracy, and at equal disagreement with the vote over all samples.

    python -m benchmarks.infer.run --data DATA --work WORK --its-hub PYTHON

DATA: the folder of recorded rollouts (game24, math-rm8, cruxeval). WORK: pools are written there, and the pool of the packaged
model is drawn into it. PYTHON: an interpreter with its_hub 1.2 (without it, its rows are left out). Writes results.json and
README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import platform
import shlex
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.infer import orders as replay
from benchmarks.infer.pools import COUNTDOWN, POOLS, draw_countdown, write_pool
from benchmarks.infer.report import write_readme
from benchmarks.infer.tuned import summary, token_difference, tuned
from equipoise.lab.compare import Compared, compare
from equipoise.samplers.recorded import RecordedPool

HERE = Path(__file__).parent
ALPHAS = (0.99, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.15, 0.1, 0.05, 0.02, 0.01)
THRESHOLDS = (0.7, 0.8, 0.85, 0.9, 0.93, 0.95, 0.96, 0.97, 0.98, 0.985, 0.99, 0.995)
WINDOWS = (2, 3, 4, 5, 6, 7, 8, 10, 12)
LIMITS = {"disagreement": (0.005, 0.01, 0.02), "accuracy": (0.005,)}
OURS = ("settled", "anytime")
SHIPPED = {
    "settled": 0.05,
    "anytime": 0.05,
    "adaptive consistency": 0.95,
    "ESC": 5,
    "its_hub adaptive": 0.75,
    "its_hub beta, one at a time": 0.95,
    "its_hub beta, all at once": 0.95,
}
DEEPCONF = ("deepconf_online:keep=0.9,warmup=8,cap=64,window=4", "deepconf_online:keep=0.1,warmup=8,cap=64,window=4")
CHECKED = {  # strategies as they are served, run beside the rules on the same orders
    "settled": "equipoise.infer.settled:Settled:cap={n}",
    "anytime": "anytime:cap={n}",
    "adaptive consistency": "adaptive_consistency:cap={n}",
    "ESC": "esc:cap={n}",
}


def families(n: int) -> dict[str, tuple[replay.Rule, tuple[float, ...]]]:
    """Every rule with its grid of settings, for pools of n samples."""
    ns = tuple(sorted({k for k in (*range(1, 17), *range(20, 129, 4)) if k < n}))
    windows = tuple(w for w in WINDOWS if w <= n)
    return {
        "majority of fewer": (replay.majority(ns), ns),
        "settled": (replay.settled(ALPHAS), ALPHAS),
        "anytime": (replay.anytime(ALPHAS), ALPHAS),
        "adaptive consistency": (replay.adaptive_consistency(THRESHOLDS), THRESHOLDS),
        "ESC": (replay.esc(windows), windows),
    }


def of_rules(orders: list[list[replay.Order]], n: int) -> dict[str, tuple[np.ndarray, tuple[float, ...]]]:
    return {
        name: (replay.outcomes(orders, rule, last_window=tuple(map(int, grid)) if name == "ESC" else None), grid)
        for name, (rule, grid) in families(n).items()
    }


def of_peer(orders: list[list[replay.Order]], python: str, work: Path) -> tuple[dict[str, Any], str]:
    """its_hub on the same orders, in an interpreter of its own."""
    asked = [
        [[[a.text if a else None, t] for a, t in zip(o.answers, o.tokens, strict=True)] for o in r] for r in orders
    ]
    given, told = work / "orders.json", work / "outcomes.json"
    given.write_text(json.dumps(asked))
    subprocess.run([python, str(HERE / "peer_its_hub.py"), str(given), str(told)], check=True)
    found = json.loads(told.read_text())
    by_rule: dict[str, list[tuple[float, np.ndarray, float]]] = {}
    for arm in found["arms"]:
        rows = []
        for mine, repeats in zip(orders, arm["outcomes"], strict=True):
            cells = []
            for order, one in zip(mine, repeats, strict=True):
                right = [c for a, c in zip(order.answers, order.correct, strict=True) if a and a.text == one["answer"]]
                agrees = one["answer"] in order.leaders
                cells.append((one["generated"], agrees, right[0] if right else False, one["samples"]))
            rows.append(np.mean(np.asarray(cells, dtype=float), axis=0))
        completed = float(np.mean([one["completed"] for repeats in arm["outcomes"] for one in repeats]))
        by_rule.setdefault(arm["rule"], []).append((arm["setting"], np.asarray(rows), completed))
    rules = {
        name: (np.stack([rows for _, rows, _ in arms], axis=2).transpose(1, 0, 2), tuple(s for s, _, _ in arms))
        for name, arms in by_rule.items()
    }
    usage = {name: {setting: completed for setting, _, completed in arms} for name, arms in by_rule.items()}
    return {"rules": rules, "usage": usage}, found["version"]


def check_rules(path: Path, orders: list[list[replay.Order]], n: int, *, problems: int, seed: int) -> int:
    """The rules above are those that the strategies use: same samples and same answers, question by question."""
    subset = path.with_name(f"{path.stem}-first.jsonl")
    ids = {order[0].question.id for order in orders[:problems]}
    lines = [line for line in path.read_text().splitlines() if str(json.loads(line)["prompt_id"]) in ids]
    subset.write_text("\n".join(lines) + "\n")
    specs = {name: spec.format(n=n) for name, spec in CHECKED.items()}
    found: Compared = compare(subset, list(specs.values()), repeats=1, seed=seed)
    checked = 0
    for name, spec in specs.items():
        rule, grid = families(n)[name]
        at = grid.index(SHIPPED[name])
        said = {one.question: one for one in found.ran if one.strategy == spec}
        for repeats in orders[:problems]:
            order = repeats[0]
            stop = rule(order)[at]
            mine = said[order.question.id]
            if (mine.samples, mine.tokens) != (stop, sum(order.tokens[:stop])):
                raise RuntimeError(
                    f"{name} on {order.question.id}: {stop} samples by the rule, {mine.samples} by {spec}"
                )
            checked += 1
    return checked


def one_pool(name: str, path: Path, args: argparse.Namespace) -> dict[str, Any]:
    pool = RecordedPool.of(path)
    n = pool.size(pool.ids[0])
    orders = replay.read_orders(pool, repeats=args.repeats, seed=args.seed)
    rules = of_rules(orders, n)
    checked = check_rules(path, orders, n, problems=min(args.check, len(orders)), seed=args.seed)
    ends = replay.outcomes(orders, replay.majority((1, n)))
    single, whole = ends[:, :, 0], ends[:, :, 1]
    peer_version, usage = None, {}
    if args.its_hub:
        peer, peer_version = of_peer([repeats[: args.peer_repeats] for repeats in orders], args.its_hub, args.work)
        rules |= peer["rules"]
        usage = peer["usage"]
    result: dict[str, Any] = {
        "pool": name,
        "problems": len(orders),
        "samples": n,
        "tokens": float(whole[0].mean()),
        "accuracy_of_all": summary(whole, whole)["accuracy"],
        "pass@1": float(np.mean([np.mean(order[0].correct) for order in orders])),
        "checked": checked,
        "its_hub": peer_version,
        "shipped": [],
        "tuned": [],
        "settings": {rule: list(grid) for rule, (_, grid) in rules.items()},
    }
    for rule, (found, grid) in rules.items():
        if rule in SHIPPED and SHIPPED[rule] in grid:
            at = grid.index(SHIPPED[rule])
            row = {"rule": rule, "setting": SHIPPED[rule], **summary(found[:, :, at], whole)}
            if rule in usage:
                row["own_count_share"] = usage[rule][SHIPPED[rule]] / float(whole[0].mean())
            result["shipped"].append(row)
    for by, limits in LIMITS.items():
        for most in limits:
            per_rule = {
                rule: tuned(found, single, whole, by=by, most=most, seed=args.seed)
                for rule, (found, _) in rules.items()
            }
            peers = {rule: found for rule, (found, _) in per_rule.items() if rule not in OURS}
            best = min(peers, key=lambda rule: peers[rule][0].mean())
            for rule, (mine, weights) in per_rule.items():
                row = {"by": by, "most": most, "rule": rule, **summary(mine, whole)}
                row["chosen"] = [_told_mix(each, rules[rule][1]) for each in weights]
                row["best_peer"] = best
                row["to_best_peer"] = token_difference(mine, peers[best], whole) if rule != best else None
                result["tuned"].append(row)
    return result


def _told_mix(weights: np.ndarray, grid: tuple[float, ...]) -> dict[str, float]:
    names = [*(f"{setting:g}" for setting in grid), "one sample", "all"]
    return {names[i]: round(float(w), 3) for i, w in enumerate(weights) if w > 0}


def of_deepconf(run: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Needs confidences, so the drawn pool itself. Not tuned: two of the paper's settings, a window for short traces."""
    found = compare(run, list(DEEPCONF), repeats=1, seed=args.seed)
    return [row for row in found.to_dict()["results"] if row["strategy"] in DEEPCONF]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--its-hub", default="", help="a Python with its_hub 1.2")
    parser.add_argument("--pools", default=",".join((COUNTDOWN, *POOLS)))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peer-repeats", type=int, default=5)
    parser.add_argument("--check", type=int, default=40, help="problems on which rules are checked against strategies")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    began, results, deepconf = time.monotonic(), [], []
    for name in args.pools.split(","):
        path = args.work / f"{name}.jsonl"
        if name == COUNTDOWN:
            run = draw_countdown(args.work, path)
        else:
            write_pool(name, args.data, path)
        results.append(one_pool(name, path, args))
        if name == COUNTDOWN:
            deepconf = of_deepconf(run, args)
        print(name, f"{time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    written = {
        "schema": "equipoise.benchmarks.infer/1",
        "command": shlex.join(
            ["python", "-m", "benchmarks.infer.run", "--data", "DATA", "--work", "WORK", "--its-hub", "PYTHON"]
        ),
        "seed": args.seed,
        "repeats": args.repeats,
        "peer_repeats": args.peer_repeats,
        "seconds": round(time.monotonic() - began),
        "machine": f"{platform.machine()}, 2 cores",
        "versions": {
            "python": platform.python_version(),
            **{p: version(p) for p in ("equipoise", "numpy", "scipy", "torch")},
        },
        "pools": results,
        "deepconf": deepconf,
    }
    (HERE / "results.json").write_text(json.dumps(written, indent=1, allow_nan=False) + "\n")
    write_readme(written, HERE / "README.md")


if __name__ == "__main__":
    main()
