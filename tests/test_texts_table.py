"""The text table: one pass or merged parts, the same rows; each row what `read_facts` says of its text."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from equipoise.measures.texts import TextCounter, TextTable
from equipoise.rollouts.batch import Rollouts
from equipoise.text.degenerate import FLAGS
from equipoise.text.formats import FORMATS
from equipoise.text.reading import read_facts

TEXTS = [
    r"<think>First, let me try 3 + 4. Wait, let me check that.</think> The answer is \boxed{7}.",
    "The answer is 7. The answer is 7. The answer is 7. The answer is 7.",
    "again and again and again and " * 40,
    None,
    "",
    "```python\nprint(7)\n```",
    "Alternatively, we could count. Let me verify: 2 + 5 = 7, so 7.",
    "好" * 200,
]
ROWS = [{"prompt_id": "p", "completion": text, "step": [None, 1, 2][i % 3]} for i, text in enumerate(TEXTS * 3)]


def count(*batches) -> TextTable:
    counter = TextCounter()
    for rows in batches:
        counter.add(Rollouts.of_rows(rows))
    return counter.table()


def assert_equal(a: TextTable, b: TextTable) -> None:
    np.testing.assert_array_equal(a.known_R, b.known_R)
    np.testing.assert_array_equal(a.format_R, b.format_R)
    np.testing.assert_array_equal(a.flags_R, b.flags_R)
    np.testing.assert_array_equal(a.signatures_R32, b.signatures_R32)
    assert a.numbers.keys() == b.numbers.keys()
    for name, values in a.numbers.items():
        np.testing.assert_array_equal(values, b.numbers[name])
    assert a.grams == b.grams


def test_every_row_is_what_one_reading_of_its_text_says():
    table = count(ROWS[:5], ROWS[5:])
    assert len(table) == len(ROWS)
    for i, row in enumerate(ROWS):
        text = row["completion"]
        assert table.known_R[i] == (text is not None)
        if text is None:
            assert table.format_R[i] == -1
            assert table.flags_R[i] == 0
            assert all(np.isnan(values[i]) for values in table.numbers.values())
            continue
        fact = read_facts(text)
        assert FORMATS[table.format_R[i]] == fact.format
        assert {flag for flag in FLAGS if table.flagged(flag)[i]} == set(fact.flags)
        for name, values in table.numbers.items():
            expected = getattr(fact, name)
            assert np.isnan(values[i]) if expected is None else values[i] == pytest.approx(float(expected))


def test_grams_are_counted_by_step():
    table = count(ROWS)
    expected: dict[float, Counter] = {}
    for row in ROWS:
        if row["completion"] is not None:
            step = -1 if row["step"] is None else row["step"]
            expected.setdefault(step, Counter()).update(read_facts(row["completion"]).grams)
    assert table.grams == {step: grams for step, grams in expected.items() if grams}
    assert table.grams


@pytest.mark.parametrize("cuts", [(0,), (1, 2, 3), (7, 7, 20), range(1, len(ROWS))])
def test_parts_merged_are_all_counted_together(cuts):
    whole = count(ROWS)
    edges = [0, *cuts, len(ROWS)]
    parts = [ROWS[a:b] for a, b in pairwise(edges)]
    assert_equal(count(*parts), whole)
    merged = TextTable()
    for part in parts:
        merged = merged + count(part)
    assert_equal(merged, whole)


def test_merging_leaves_its_parts_alone():
    left, right = count(ROWS[:4]), count(ROWS[4:])
    before = {step: Counter(grams) for step, grams in left.grams.items()}
    _ = left + right
    assert left.grams == before
    assert len(left) == 4


def test_rollouts_without_a_completion_column_are_unknown():
    table = count([{"prompt_id": "p"}, {"prompt_id": "q"}])
    assert table.known_R.tolist() == [False, False]
    assert table.grams == {}
    assert len(count()) == 0
