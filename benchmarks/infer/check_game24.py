"""Majority votes on the Game-of-24 pool, computed again from the rows: plain Python, no equipoise, no numpy.

    equipoise compare --pool game24.jsonl --strategies majority:n=1,majority:n=8,majority:n=32,majority:n=100 --json > compare.json
    python benchmarks/infer/check_game24.py game24.jsonl compare.json

game24.jsonl (`python -m benchmarks.infer.pools DATA FOLDER` writes it): prompt_id, answer, correct and n_tokens of each sample.
The expected accuracy of a vote of n is the mean over all subsets of n, counted here one number of votes at a time for each
answer, in whole numbers. `compare` averages over random orders instead, so its accuracy may differ by a few of its shuffle
errors; its exact column, tokens, samples and the vote over all samples must be equal. Exits with 1 where something is not.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections import Counter, defaultdict
from fractions import Fraction


def read_pool(path):
    problems = defaultdict(list)
    with open(path) as handle:
        for line in handle:
            row = json.loads(line)
            problems[str(row["prompt_id"])].append(row)
    return dict(problems)


def expected_right(rows, n):
    """P(the vote of n of these rows is right). For the winner t with j votes: the others have at most j, and s of them tie."""
    counts = Counter(row["answer"] for row in rows if row["answer"] is not None)
    abstained = sum(row["answer"] is None for row in rows)
    right = {a: Fraction(sum(r["correct"] for r in rows if r["answer"] == a), c) for a, c in counts.items()}
    total = Fraction(0)
    for target, size in counts.items():
        if not right[target]:
            continue
        others = [c for answer, c in counts.items() if answer != target]
        for j in range(1, min(size, n) + 1):
            # ways[(rows used, ties)] over the other answers
            ways = {(0, 0): 1}
            for c in others:
                after = defaultdict(int)
                for (used, ties), number in ways.items():
                    for votes in range(min(c, j, n - j - used) + 1):
                        after[used + votes, ties + (votes == j)] += number * math.comb(c, votes)
                ways = after
            for (used, ties), number in ways.items():
                silent = n - j - used
                if silent <= abstained:
                    total += right[target] * math.comb(size, j) * number * math.comb(abstained, silent) / (1 + ties)
    return total / math.comb(len(rows), n)


def whole_vote(rows):
    """How often the vote over all rows is right, over the ways to break a tie."""
    counts = Counter(row["answer"] for row in rows if row["answer"] is not None)
    leaders = [answer for answer, count in counts.items() if count == max(counts.values())]
    shares = [Fraction(sum(r["correct"] for r in rows if r["answer"] == a), counts[a]) for a in leaders]
    return sum(shares, Fraction(0)) / len(shares) if shares else Fraction(0)


def check(problems, compared):
    """Lines of what was compared, and whether all of it fits."""
    fine, lines = True, []

    def line(name, what, ours, theirs, allowed):
        nonlocal fine
        good = abs(ours - theirs) <= allowed
        fine &= good
        lines.append(f"{name:28} {what:10} {ours:12.6f} {theirs:12.6f} {'ok' if good else 'DIFFERS'}")

    pools = list(problems.values())
    tokens = sum(row["n_tokens"] for rows in pools for row in rows) / sum(map(len, pools))  # of one sample
    for row in compared["results"]:
        if row["strategy"].startswith("majority of all"):
            accuracy = sum(map(whole_vote, pools)) / len(pools)
            line(row["strategy"], "accuracy", float(accuracy), row["accuracy"], 1e-9)
            line(
                row["strategy"],
                "tokens",
                sum(r["n_tokens"] for rows in pools for r in rows) / len(pools),
                row["tokens_mean"],
                1e-6,
            )
            continue
        n = int(re.fullmatch(r"majority:n=(\d+)", row["strategy"])[1])
        exact = float(sum(expected_right(rows, n) for rows in pools) / len(pools))
        line(row["strategy"], "exact", exact, row["exact"], 1e-9)
        # With all samples an order changes only how ties are broken and which sample stands for the answer.
        line(row["strategy"], "accuracy", exact, row["accuracy"], 4 * row["shuffle_error"] + 1e-9)
        line(row["strategy"], "samples", n, row["samples_mean"], 1e-9)
        if all(len(rows) == n for rows in pools):
            line(row["strategy"], "tokens", n * tokens, row["tokens_mean"], 1e-6)
        else:  # lengths differ from sample to sample: of the mean over random orders 5 % at most are chance
            line(row["strategy"], "tokens", n * tokens, row["tokens_mean"], 0.05 * n * tokens)
    return fine, lines


if __name__ == "__main__":
    with open(sys.argv[2]) as handle:
        fine, lines = check(read_pool(sys.argv[1]), json.load(handle))
    print(f"{'strategy':28} {'number':10} {'here':>12} {'compare':>12}")
    print("\n".join(lines))
    sys.exit(0 if fine else 1)
