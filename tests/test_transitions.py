"""Problems won and lost, against a plain loop over problems and over subsets."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from making import evidence_of, find

from equipoise.measures.evidence import Options
from equipoise.measures.transitions import BEFORE, CLASSES, estimate_transitions, solve_class


def tries(prompt, verdicts, **cells):
    return [{"prompt_id": prompt, "correct": bool(v), **cells} for v in verdicts]


def transitions(rows, baseline=None):
    other = None if baseline is None else evidence_of(baseline)
    return estimate_transitions(evidence_of(rows), baseline=other, options=Options())


@pytest.mark.parametrize(
    ("right", "of", "name"),
    [
        (0, 8, "0"),
        (1, 8, "(0, 0.25]"),
        (2, 8, "(0, 0.25]"),
        (3, 8, "(0.25, 0.5]"),
        (4, 8, "(0.25, 0.5]"),
        (6, 8, "(0.5, 0.75]"),
        (7, 8, "(0.75, 1)"),
        (8, 8, "1"),
        (1, 1, "1"),
        (63, 64, "(0.75, 1)"),
        (1, 64, "(0, 0.25]"),
    ],
)
def test_classes_of_solve_rates(right, of, name):
    assert CLASSES[solve_class(np.array([right]), np.array([of]))[0]] == name


def test_each_problem_is_in_one_cell_and_the_cells_are_shares():
    before = tries("a", [0, 0]) + tries("b", [1, 1]) + tries("c", [1, 0]) + tries("d", [1, 1]) + tries("only", [1, 1])
    after = tries("a", [0, 1]) + tries("b", [0, 0]) + tries("c", [1, 0]) + tries("d", [1, 1])
    numbers = [n for n in transitions(after, before) if n.name == "transition"]
    assert len(numbers) == len(CLASSES) ** 2
    held = {(n.at["before"], n.at["after"]): (n.value, n.at["count"], n.n) for n in numbers if n.value}
    assert held == {
        ("0", "(0.25, 0.5]"): (0.25, 1, 4),
        ("1", "0"): (0.25, 1, 4),
        ("(0.25, 0.5]", "(0.25, 0.5]"): (0.25, 1, 4),
        ("1", "1"): (0.25, 1, 4),
    }
    assert sum(n.value for n in numbers) == pytest.approx(1)


def test_lost_and_won_are_the_average_over_all_subsets():
    rng = np.random.default_rng(3)
    before = {f"p{i}": (rng.random(5) < rng.random()).tolist() for i in range(12)}
    after = {f"p{i}": (rng.random(3) < rng.random()).tolist() for i in range(12)}

    def solved(verdicts, k):
        subsets = list(combinations(verdicts, k))
        return sum(map(any, subsets)) / len(subsets)

    lost = np.mean([solved(before[p], 3) * (1 - solved(after[p], 3)) for p in before])
    won = np.mean([(1 - solved(before[p], 3)) * solved(after[p], 3) for p in before])
    numbers = transitions(
        [r for p, v in after.items() for r in tries(p, v)], [r for p, v in before.items() for r in tries(p, v)]
    )
    assert find(numbers, "lost@3").value == pytest.approx(lost, abs=1e-12)
    assert find(numbers, "won@3").value == pytest.approx(won, abs=1e-12)
    assert find(numbers, "lost@3").at["against"] == "baseline"


def test_without_a_baseline_the_first_steps_are_before():
    rows = [r for p in "abcd" for s in range(2) for r in tries(p, [s == 0, False], step=s)]
    numbers = transitions(rows)
    lost = find(numbers, "lost@2")
    assert (lost.value, lost.at["against"], lost.at["step"]) == (1.0, "first steps", [0, 1])
    assert find(numbers, "transition", before="(0.25, 0.5]", after="0").value == 1.0


def test_a_problem_with_fewer_samples_is_left_out_of_lost_and_said_so():
    before = [r for i in range(10) for r in tries(f"p{i}", [1, 0, 0, 0])]
    after = [r for i in range(9) for r in tries(f"p{i}", [0, 0, 0, 0])] + tries("p9", [1])
    lost = find(transitions(after, before), "lost@4")
    assert (lost.value, lost.n) == (1.0, 9)
    assert "left out: 1 of 10 problems" in lost.how


def test_what_is_missing_is_named():
    (alone,) = transitions(tries("a", [0, 1]) + tries("b", [1, 1]))
    assert (alone.value, alone.missing) == (None, BEFORE)
    (unjudged,) = transitions([{"prompt_id": "a", "completion": "x"}])
    assert "verdicts" in unjudged.missing
    (other,) = transitions(tries("a", [0, 1]), tries("z", [0, 1]))
    assert "none of 1 problem is in it" in other.missing
