"""README.md from results.json: draws numbers and computes no estimate.

python -m benchmarks.infer.report writes it again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ABOUT = {
    "game24": "GPT-4 on Game of 24; tokens are pieces of the text",
    "math-rm8": "a Qwen2.5-Math model on MATH; tokens are pieces of the text",
    "cruxeval": "CodeLlama-7B on CRUXEval; a sample counts as one token",
    "countdown": "the packaged small model on four-number Countdown, T = 0.3; its own tokens",
}
EQUAL = ("disagreement", 0.01)
SHOWN = {("disagreement", 0.01), ("accuracy", 0.005)}  # the others are in results.json
TRIED = """## Tried for `settled`

The form of its bets was chosen with countdown and game24 in view, so these two pools are not untouched by the choice; math-rm8 and cruxeval
had no part in it. Tokens of all at 1 % disagreement, 2 orders, tuned and measured on the same problems:

| form | countdown | game24 |
| --- | ---: | ---: |
| Adaptive-Consistency, for comparison | 55.7 % | 64.1 % |
| a bound for every answer, alpha shared out by the order of first sight, as in `anytime` | 55.9 % | 78.4 % |
| bets on the leader from its first vote | 57.0 % | 79.9 % |
| bets on the leader from its second vote: what `settled` does | 54.5 % | 71.9 % |
| bets on the leader from its third vote | 53.0 % | 73.1 % |

Without any correction for the number of answers the tokens on countdown would be 52.4 %; no proof of the bound is known for that.
Alpha shared out by the order of first sight, the second row, took 26.9 % on math-rm8 and 44.3 % on cruxeval, tuned as above: less than now."""
TITLES = {
    "disagreement": "at most {most:.1%} of the questions answered otherwise than by all samples",
    "accuracy": "at most {points:g} points of accuracy below the vote over all samples",
}


def write_readme(results: Mapping[str, Any], path: Path) -> None:
    path.write_text(page(results))


def page(results: Mapping[str, Any]) -> str:
    parts = [
        "# Tokens that a vote needs",
        "Question: how many of the tokens of a vote over all samples does an early stop need at equal accuracy, which rule needs the "
        "fewest, and what does it cost that a stop's stated error really holds?",
        _answer(results),
        *(_pool(pool) for pool in results["pools"]),
        _deepconf(results),
        TRIED,
        _how(results),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _answer(results: Mapping[str, Any]) -> str:
    """In sentences made from the numbers: every pool at equal disagreement, the goal, and the price of a stated error."""
    same, shares, dearer = [], [], []
    for pool in results["pools"]:
        name, rows = pool["pool"], {row["rule"]: row for row in pool["tuned"] if (row["by"], row["most"]) == EQUAL}
        ours, best = rows["settled"], rows[rows["settled"]["best_peer"]]
        same.append(
            f"{name} {_percent(ours['tokens_share'])} against {_percent(best['tokens_share'])} of {best['rule']}, "
            f"difference {_percent(ours['to_best_peer'], signed=True)}"
        )
        by_accuracy = {row["rule"]: row for row in pool["tuned"] if (row["by"], row["most"]) == ("accuracy", 0.005)}
        shares.append(f"{name} {_percent(by_accuracy['settled']['tokens_share'])}")
        dearer.append((name, {row["rule"]: row for row in pool["shipped"]}))
    name, shipped = dearer[0]
    priced = [
        f"{rule} at {shipped[rule]['setting']:g} takes {_percent(shipped[rule]['tokens_share'])} and answers "
        f"{_percent(shipped[rule]['disagreement'], 2)} of the questions otherwise"
        for rule in ("adaptive consistency", "settled", "anytime")
    ]
    hub = shipped["its_hub beta, all at once"]
    lines = [
        "Answer: on the pool with 64 samples of a problem `settled`, whose error bound holds, needs the fewest tokens at equal disagreement "
        "with the vote over all samples, and less than half of all tokens at equal accuracy; with 8 samples (math-rm8), or dozens of different answers to a problem "
        "(game24), Adaptive-Consistency, which has no such bound, needs fewer.",
        "",
        f"- Tokens of all, with at most {EQUAL[1]:.0%} of the questions answered otherwise than by all samples: {'; '.join(same)}.",
        f"- Tokens of all for `settled`, with at most 0.5 points of accuracy lost: {'; '.join(shares)}. The goal was at most 50 %, and no more than "
        "the best peer.",
        f"- The price of a stated error that holds, on {name}: {'; '.join(priced)}.",
        f"- its_hub's Beta rule as it is shipped, with all calls in flight, spends {_percent(hub['tokens_share'])} of all tokens on {name}; its own "
        f"count says {hub['own_count_share']:.0%}.",
    ]
    return "\n".join(lines)


def _pool(pool: Mapping[str, Any]) -> str:
    lines = [
        f"## {pool['pool']}: {ABOUT[pool['pool']]}",
        "",
        f"{pool['problems']} problems × {pool['samples']} samples, pass@1 {pool['pass@1']:.3f}; the vote over all samples: accuracy "
        f"{_number(pool['accuracy_of_all'], 3)}, {pool['tokens']:,.0f} tokens a question.",
        "",
    ]
    cases = list(dict.fromkeys((row["by"], row["most"]) for row in pool["tuned"] if (row["by"], row["most"]) in SHOWN))
    for by, most in cases:
        rows = [row for row in pool["tuned"] if (row["by"], row["most"]) == (by, most)]
        rows.sort(key=lambda row: row["tokens_share"]["value"])
        lines += [
            f"Tuned: {TITLES[by].format(most=most, points=100 * most)}.",
            "",
            "| rule | tokens, of all | to the best peer | disagreement | accuracy lost, points | samples |",
            "| --- | ---: | ---: | ---: | ---: | ---: |",
        ]
        lines += [
            f"| {_bold(row['rule'])} | {_percent(row['tokens_share'])} | "
            f"{'the best peer' if row['to_best_peer'] is None else _percent(row['to_best_peer'], signed=True)} | "
            f"{_percent(row['disagreement'], 2)} | {_points(row['accuracy_difference'])} | {row['samples']:.1f} |"
            for row in rows
        ]
        lines.append("")
    lines += [
        "As shipped:",
        "",
        "| rule | setting | tokens, of all | disagreement | accuracy lost, points | samples | tokens by its own count |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in sorted(pool["shipped"], key=lambda row: row["tokens_share"]["value"]):
        own = f"{row['own_count_share']:.1%}" if "own_count_share" in row else "the same"
        lines.append(
            f"| {_bold(row['rule'])} | {row['setting']:g} | {_percent(row['tokens_share'])} | {_percent(row['disagreement'], 2)} | "
            f"{_points(row['accuracy_difference'])} | {row['samples']:.1f} | {own} |"
        )
    return "\n".join(lines)


def _deepconf(results: Mapping[str, Any]) -> str:
    if not results["deepconf"]:
        return ""
    lines = [
        "## DeepConf, on the countdown pool, not tuned",
        "",
        "| strategy | tokens, of all | disagreement | accuracy lost, points | samples |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for row in results["deepconf"]:
        share = {
            side: row[f"tokens_share{suffix}"] for side, suffix in (("value", ""), ("low", "_low"), ("high", "_high"))
        }
        lost = {
            side: row[f"difference{suffix}"] for side, suffix in (("value", ""), ("low", "_low"), ("high", "_high"))
        }
        lines.append(
            f"| {row['strategy']} | {_percent(share)} | {1 - row['agreement']:.2%} | {_points(lost)} | {row['samples_mean']:.1f} |"
        )
    return "\n".join(lines)


def _how(results: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in results["versions"].items())
    hub = next((pool["its_hub"] for pool in results["pools"] if pool["its_hub"]), None)
    checked = sum(pool["checked"] for pool in results["pools"])
    return f"""## How

- Every problem's samples are put into {results["repeats"]} random orders (its_hub: the first {results["peer_repeats"]} of them), the same for every rule; each rule
  sees one sample after the other and stops where it has enough. All rules may draw the whole pool. Brackets are 95 % intervals with problems as units.
- *Tuned*: a rule's setting is chosen on one half of the problems and measured on the other, and the halves change places (seed {results["seed"]}). Two settings,
  one sample and all samples among them, may be mixed at random, so that the limit is met exactly on the half that chooses, and no rule gains
  by its grid; on the other half the realised value differs. Other limits are in results.json.
  *To the best peer*: tokens less those of the cheapest rule that is not ours, as a share of all tokens, paired by problem.
- *Disagreement*: the answer is not a leader of the vote over all samples. Tokens are all that were generated, those of cancelled calls included.
- Our rules are `settled` (certifies the result of the vote over all samples) and `anytime` (certifies the model's most likely answer). `alpha` in
  them is an error bound; the thresholds of the others are not.
- Rules are those of `equipoise.infer.stopping` and `equipoise.infer.settled`; on {checked:,} questions the strategies themselves were run beside them and drew the same samples.
- its_hub {hub} is run as it is, on a language model that replays the order. A text without an answer is an empty answer to it. `BetaSelfConsistency` sends
  all calls at once: *all at once* is a server that works on all of them together, a token each at a time; *one at a time* is its best case.

Made by `{results["command"]}` in {results["seconds"] / 60:.0f} minutes on {results["machine"]}, shared with other work; {versions}.
`python benchmarks/infer/check_game24.py` recomputes the comparison of majority votes on Game of 24 from the rows, without this package."""


def _bold(rule: str) -> str:
    return f"**{rule}**" if rule in ("settled", "anytime") else rule


def _number(number: Mapping[str, Any], digits: int) -> str:
    if number["low"] is None:
        return f"{number['value']:.{digits}f}"
    return f"{number['value']:.{digits}f} [{number['low']:.{digits}f}, {number['high']:.{digits}f}]"


def _percent(number: Mapping[str, Any], digits: int = 1, *, signed: bool = False) -> str:
    form = f"{'+' if signed else ''}.{digits}f"
    if number["low"] is None:
        return f"{100 * number['value']:{form}} %"
    return f"{100 * number['value']:{form}} % [{100 * number['low']:{form}}, {100 * number['high']:{form}}]"


def _points(number: Mapping[str, Any]) -> str:
    """A difference of accuracy as points lost."""
    if number["low"] is None:
        return f"{-100 * number['value'] + 0.0:.2f}"
    return f"{-100 * number['value'] + 0.0:.2f} [{-100 * number['high']:.2f}, {-100 * number['low']:.2f}]"


if __name__ == "__main__":
    write_readme(json.loads((HERE / "results.json").read_text()), HERE / "README.md")
