"""Writes results.json and README.md beside this file from what `make_thinker` wrote: `python -m benchmarks.thinker.report FOLDER`"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.packaged_model.report import shown, table

HERE = Path(__file__).parent
Row = Mapping[str, Any]

HEAD = """# The packaged model that thinks

`packaged:thinker` is a small GPT that tries expressions for three-number Countdown, says what each comes to, and answers when one
comes to the target: `4,13,2=7>[4+13-2=15,13-4*2=5,13-2-4=7]13-2-4`. How long it thinks decides how often it is right, so
strategies that spend a token budget have something to spend it on, on a CPU.

Question: does more thinking help, does it stop helping, and would the same tokens do more in parallel?
"""
HOW = """*Capped*: thinking ends by itself or at the budget, where the end mark is forced and the answer drawn. *Forced*: the model's own end
is passed over (another attempt is begun in its place, as budget forcing does with "Wait") until the budget is spent. Each
budget answers from the beginning of one and the same thought. *Had it*: a right expression stood in the thinking. *Answer
entropy*: nats, of the answers of a problem's samples. *Vote of n*: share of right majority votes. Tokens: thinking, both marks,
answer and its end. 95 % intervals over problems; differences are paired on the problems."""


def rows_of(rows: list[Row]) -> str:
    head = ["budget", "accuracy", "had it", "answer entropy", "tokens", "vote of 4", "vote of 16"]
    return table(
        head,
        [
            [
                str(row["budget"]),
                shown(row["accuracy"]),
                f"{row['had_it']:.3f}",
                shown(row["answer_entropy"], 2),
                f"{row['tokens']:.1f}",
                f"{row['vote']['4']:.3f}",
                f"{row['vote']['16']:.3f}",
            ]
            for row in rows
        ],
    )


def parallel(rows: list[Row]) -> str:
    """For each long budget its strongest rival of no more tokens."""
    best: dict[int, Row] = {}
    for row in rows:
        if row["budget"] not in best or row["vote"] > best[row["budget"]]["vote"]:
            best[row["budget"]] = row
    return table(
        ["one thought of up to", "tokens", "strongest vote within them", "its tokens", "its accuracy", "one − vote"],
        [
            [
                str(budget),
                f"{row['tokens']:.1f}",
                f"{row['of']} × {row['of_budget']}",
                f"{row['of_tokens']:.1f}",
                f"{row['vote']:.3f}",
                shown(row["one_minus_vote"]),
            ]
            for budget, row in best.items()
        ],
    )


def verdict(measured: Row) -> str:
    fall, last = measured["fall"], measured["fall"]["last_minus_best"]
    if last["high"] is not None and last["high"] < 0:
        said = "**Accuracy falls past an optimum**"
    elif fall["best_budget"] == fall["last_budget"]:
        said = "**Accuracy does not fall**: the largest budget is the best"
    else:
        said = "**No fall that the interval tells from none**"
    return (
        f"{said}. Forced to think on, the best budget is {fall['best_budget']} (chosen on every other problem); on the other problems "
        f"{fall['last_budget']} differs from it by {shown(last)}."
    )


def write(results: Row) -> None:
    measured, recipe, machine = results["measured"], results["recipe"], results["machine"]
    text = [
        HEAD,
        "## Forced past its own end\n",
        verdict(measured) + "\n",
        rows_of(measured["forced"]) + "\n",
        "## Capped\n",
        f"It ends its thinking by itself in {measured['ends_by_itself']:.1%} of the thoughts.\n",
        rows_of(measured["capped"]) + "\n",
        "## One long thought, or several short ones\n",
        parallel(measured["against_parallel"]) + "\n",
        "## How\n",
        HOW + "\n",
        f'{measured["problems"]} problems of the split "test" × {measured["samples"]} samples at temperature 1, seed {measured["seed"]}.\n',
        f"Made by `python -m equipoise.lab.make_thinker --out FOLDER` and `python -m benchmarks.thinker.report FOLDER`: task "
        f"`{recipe['task']}`, {results['parameters']:,} parameters ({recipe['layers']} layers, width {recipe['width']}, {recipe['heads']} heads), "
        f"{results['bytes']:,} bytes; {recipe['traces']:,} demonstrations, {recipe['steps']:,} steps of {recipe['batch_tokens']:,} tokens, AdamW, "
        f"learning rate {recipe['lr']:g}, last loss {results['loss'][-1]['loss']:.3f} nats; {machine['core_seconds_training']:,} seconds of one core, "
        f"torch {machine['torch']}, python {machine['python']}.",
    ]
    (HERE / "README.md").write_text("\n".join(text) + "\n")
    (HERE / "results.json").write_text(json.dumps(results, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    write(json.loads((Path(sys.argv[1]) / "countdown-thinker.json").read_text()))
