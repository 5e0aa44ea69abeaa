"""The README of `run.py`, out of its `results.json`.

python -m benchmarks.steps.report
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent

ABOUT = """# Steps searched, or replies drawn

Question: does a search over the steps of a reply (beam, diverse trees, particles) do more with a token budget than a vote or best-of-N?

Answer: {answer}

A baseline gets, problem by problem, as many independent replies as fit into the tokens that the search spent there, all of them counted: steps that were
pruned, and roll-outs. *Cooled*: replies drawn at temperature 0.3 instead of 1. *Best-of-N* is a vote weighted by the same scorer, applied to whole replies. 95 % intervals over problems; differences are
paired, and have no interval where too few problems differ to cover 95 %. A reply that no longer fits is left out, so a baseline spends half a reply less on average:
3 % of its tokens in the first table, a sixth or more in the second where two or three replies fit.

{tables}

## How

*Checker*: Countdown's own. For the beginning of an expression it says whether a solution can still come of it, for a whole one whether it is right, for thinking
whether one of the attempts was; with *noise* so many of its verdicts are turned round, the same ones whenever a text comes again, as an imperfect reward
model would. A real reward model is not so good: nobody else can look all solutions up. *Confidence*: the geometric mean of the step's token probabilities. *Roll-outs*: the share of right ones among 4 replies drawn to their end from
each step, judged by the checker.

{facts}
"""


def write_page(results: dict[str, Any]) -> str:
    return ABOUT.format(
        answer=_answer(results["worlds"]),
        tables="\n\n".join(_table(world) for world in results["worlds"]),
        facts=(
            f'Temperature 1, seed {results["seed"]}, problems of the split "test". `python -m benchmarks.steps.run`, then '
            f"`python -m benchmarks.steps.report`: {results['seconds'] / 60:.0f} minutes of a shared core, torch {results['torch']}, python "
            f"{results['python']}."
        ),
    )


def _answer(worlds: list[dict[str, Any]]) -> str:
    short = worlds[0]
    perfect, noisy = (_of(short, "particles", "checker", noise) for noise in (0.0, 0.3))
    beam, sure = _of(short, "beam", "checker", 0.3), _of(short, "beam", "confidence", None)
    rolled = _of(short, "beam", "rollouts", None)
    told = (
        f"with a checker of beginnings that is never wrong, yes: particles {_points(perfect['minus_best_of_n'])} points over best-of-N with the same "
        f"checker at {perfect['tokens']:.0f} tokens. When 30 % of its verdicts are wrong they are at {_points(noisy['minus_best_of_n'])} points and a beam, "
        f"which prunes by single verdicts, at {_points(beam['minus_best_of_n'])}; by confidence a beam gains {_points(sure['minus_majority'])} points on a plain "
        f"vote and {_points(sure['minus_cooled'])} on one of cooled replies, and roll-outs cost more than they tell ({_points(rolled['minus_best_of_n'])} against best-of-N at {rolled['tokens']:.0f} tokens)."
    )
    if len(worlds) > 1:
        told += (
            f" On a model that thinks before it answers, {worlds[1]['problems']} problems are too few to tell the searches from best-of-N, and by confidence from a "
            f"vote."
        )
    return told


def _of(world: dict[str, Any], arm: str, scorer: str, noise: float | None) -> dict[str, Any]:
    return next(row for row in world["arms"] if (row["arm"], row["scorer"], row["noise"]) == (arm, scorer, noise))


def _table(world: dict[str, Any]) -> str:
    head = (
        f"## `{world['model']}` on `{world['task']}`\n\n{world['problems']} problems; a single reply is right on {_share(world['single'])} with "
        f"{world['single_tokens']:.1f} tokens.\n\n"
        "| scorer | search | n | accuracy | tokens | replies in these | − majority, points | − cooled majority | − best-of-N |\n"
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n"
    )
    return head + "\n".join(_row(row) for row in world["arms"])


def _row(row: dict[str, Any]) -> str:
    noise = f", {row['noise']:.0%} noise".replace("%", " %") if row["noise"] else ""
    return (
        f"| {row['scorer']}{noise} | {row['arm']} | {row['settings']['n']} | {_share(row['accuracy'])} | {row['tokens']:.0f} | "
        f"{row['replies_at_equal_tokens']:.1f} | {_points(row['minus_majority'])} | {_points(row['minus_cooled'])} | "
        f"{_points(row['minus_best_of_n'])} |"
    )


def _share(found: dict[str, Any]) -> str:
    inside = "" if found["low"] is None else f" [{found['low']:.3f}, {found['high']:.3f}]"
    return f"{found['value']:.3f}{inside}"


def _points(found: dict[str, Any]) -> str:
    inside = "" if found["low"] is None else f" [{100 * found['low']:+.1f}, {100 * found['high']:+.1f}]"
    return f"{100 * found['value']:+.1f}{inside}"


if __name__ == "__main__":
    (HERE / "README.md").write_text(write_page(json.loads((HERE / "results.json").read_text())))
