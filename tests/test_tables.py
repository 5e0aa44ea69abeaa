"""Tables on a terminal: laid out by hand, then what the commands print on one of 100 and of 120 columns."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from making import pool

from equipoise.cli.tables import NARROWEST, fold, lay_out

HEADS = ["name", "right", "tied"]
ROWS = [["esc:window=5,cap=40,rest=1234", "0.5 [0.4, 0.6]", "3%"], ["single", "0.4", "0%"]]


def test_piped_a_table_is_as_wide_as_it_must_be():
    assert lay_out(HEADS, ROWS) == [
        "name                           right           tied",
        "esc:window=5,cap=40,rest=1234  0.5 [0.4, 0.6]  3%",
        "single                         0.4             0%",
    ]
    assert lay_out(HEADS, ROWS, width=51) == lay_out(HEADS, ROWS)  # 29 + 2 + 14 + 2 + 4


def test_a_first_column_is_folded_where_a_spec_may_be_before_a_column_is_left_out():
    assert lay_out(HEADS, ROWS, width=50) == [
        "name                          right           tied",
        "esc:window=5,cap=40,          0.5 [0.4, 0.6]  3%",
        "rest=1234",
        "single                        0.4             0%",
    ]
    assert NARROWEST == 20
    assert lay_out(HEADS, ROWS, width=41) == [  # 20 + 2 + 14 fit, 20 + 2 + 14 + 2 + 4 do not
        "name                       right",
        "esc:window=5,cap=40,       0.5 [0.4, 0.6]",
        "rest=1234",
        "single                     0.4",
        "no room for: tied (--json has them)",
    ]


def test_the_first_two_columns_stay_however_narrow_it_is():
    assert lay_out(["name", "right"], [["a" * 25, "0.5"]], width=5) == [
        "name                  right",
        "aaaaaaaaaaaaaaaaaaaa  0.5",
        "aaaaa",
    ]


def test_a_sentence_is_folded_between_words():
    assert fold("one two three", 9) == ["one two", "  three"]
    assert fold("one two three", None) == ["one two three"]
    assert fold("", 9) == [""]


def on_terminal(columns: int, *words: str) -> list[str]:
    """What a command prints on a terminal this wide."""
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    program = "from equipoise.cli.main import run; run()"
    child = subprocess.Popen(
        [sys.executable, "-c", program, *words], stdout=theirs, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env=os.environ | {"COLUMNS": str(columns), "TERM": "dumb"},
    )  # fmt: skip
    os.close(theirs)
    printed = bytearray()
    try:
        while piece := os.read(ours, 1 << 16):
            printed += piece
    except OSError:  # Linux: the other end is closed
        pass
    os.close(ours)
    assert child.wait() == 0
    return printed.decode().splitlines()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    file = tmp_path_factory.mktemp("pool") / "pool.jsonl"
    rows = [row for p in range(4) for row in pool(f"p{p}", ["a", "a", "a", "b"], ["a"], n_tokens=1000)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


@pytest.mark.parametrize("columns", [100, 120])
def test_methods_fit_a_terminal_and_leave_no_word_out(columns, equipoise):
    shown = on_terminal(columns, "methods")
    assert max(map(len, shown)) <= columns
    assert " ".join(" ".join(shown).split()) == " ".join(equipoise("methods").out.split())


@pytest.mark.parametrize("columns", [100, 120])
def test_a_comparison_fits_a_terminal(columns, recorded):
    specs = "single,majority:n=3,adaptive_consistency:threshold=0.95,cap=4"
    shown = on_terminal(columns, "compare", "--pool", recorded, "--strategies", specs, "--repeats", "2")
    at = next(line for line, text in enumerate(shown) if text.startswith("strategy "))
    assert max(map(len, shown[at:])) <= columns
    assert any(line.startswith("no room for: ") and "tied (--json has them)" in line for line in shown)
    assert shown[at].split()[:4] == ["strategy", "accuracy", "difference", "tokens"]
    wide = on_terminal(200, "compare", "--pool", recorded, "--strategies", specs, "--repeats", "2")
    assert not any(line.startswith("no room for: ") for line in wide)
