"""Where completions of a group meet: terms and counts against hand calculations, in whatever order and from whatever worker."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest

from equipoise.adapters import outcome_board
from equipoise.adapters.outcome_board import OutcomeBoard, scored, workers_needed
from equipoise.errors import UsageError


def row(answer, *, correct=False, step=1, prompt="p", n_tokens=10, confidence=None):
    return scored(prompt_id=prompt, answer=answer, correct=correct, confidence=confidence, n_tokens=n_tokens, step=step)


def fill(board, group, answers, **how):
    """Post a group from one worker per completion; its terms in the order of the answers."""
    for member, answer in enumerate(answers):
        board.post(f"w{member}", group, member, len(answers), row(answer, **how))
    return [board.collect(f"w{member}")[group, member] for member in range(len(answers))]


def test_batch_exploration_by_hand_in_every_order_of_arrival():
    # Of four: "7" twice costs each 0.2 · 1/4, "8" once nothing, an unreadable answer nothing.
    answers = ["7", "8", "7", None]
    expected = {("g", 0): -0.05, ("g", 1): 0.0, ("g", 2): -0.05, ("g", 3): 0.0}
    for order in itertools.permutations(range(4)):
        board, terms = OutcomeBoard(["batch_exploration:weight=0.2"]), {}
        for member in order:
            assert not any(board.collect(f"w{other}") for other in range(4)), "no term before the group is complete"
            board.post(f"w{member}", "g", member, 4, row(answers[member]))
        for member in range(4):
            terms |= board.collect(f"w{member}")
        assert terms == pytest.approx(expected)


def test_rarity_reads_the_counts_of_earlier_steps_only():
    board = OutcomeBoard(["ucb_naive:weight=1,unless_all_right=false"])
    assert fill(board, "a", ["7", "7", "7", "7"], step=1) == [1, 1, 1, 1]
    # The same problem twice in one step: the second group does not see the first one's answers.
    assert fill(board, "b", ["7", "7", "8", "8"], step=1) == [1, 1, 1, 1]
    # Six times "7" and twice "8" before step 2.
    assert fill(board, "c", ["7", "8", "9", "7"], step=2) == pytest.approx(
        [1 / math.sqrt(6), 1 / math.sqrt(2), 1, 1 / math.sqrt(6)]
    )
    # Another problem has its own counts.
    assert fill(board, "d", ["7", "8"], step=2, prompt="q") == [1, 1]
    assert board.state()["counts"] == {"p": {"7": 8, "8": 3, "9": 1}, "q": {"7": 1, "8": 1}}


def test_terms_add_up_and_a_group_that_is_all_right_is_left_alone():
    board = OutcomeBoard(["batch_exploration:weight=0.2", "soft_overlong:limit=20,buffer=10,penalty=1"])
    # 15 tokens are half way into the buffer of 10 before 20: −0.5 each.
    assert fill(board, "right", ["7", "7"], correct=True, n_tokens=15) == pytest.approx([-0.5, -0.5])
    assert fill(board, "wrong", ["7", "7"], correct=False, n_tokens=15) == pytest.approx([-0.6, -0.6])


def test_brier_by_hand_and_a_completion_without_a_verdict_keeps_its_score():
    board = OutcomeBoard(["brier"])
    board.post("w", "g", 0, 3, row("7", correct=True, confidence=0.8))
    board.post("w", "g", 1, 3, row("8", correct=False, confidence=0.6))
    board.post("w", "g", 2, 3, row("9", correct=None, confidence=0.6))
    # 1 − 0.2² and 0 − 0.6²
    assert board.collect("w") == {("g", 0): pytest.approx(0.96), ("g", 1): pytest.approx(-0.36), ("g", 2): 0.0}


def test_a_group_that_never_fills_is_closed_as_it_is(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(outcome_board.time, "monotonic", lambda: now[0])
    board = OutcomeBoard(["batch_exploration:weight=0.3"], wait=60)
    board.post("w", "g", 0, 3, row("7"))
    board.post("w", "g", 1, 3, row("7"))
    now[0] = 59.0
    assert board.collect("w") == {}
    now[0] = 61.0
    # One of the other of two: 0.3 · 1/2. What comes later gets nothing, and nobody waits for it.
    assert board.collect("w") == {("g", 0): pytest.approx(-0.15), ("g", 1): pytest.approx(-0.15)}
    board.post("late", "g", 2, 3, row("7"))
    assert board.collect("late") == {("g", 2): 0.0}
    assert board.incomplete() == 1


def test_counts_are_kept_with_checkpoints_and_taken_up_by_the_run_that_goes_on(tmp_path):
    folder, terms = str(tmp_path / "equipoise"), ["ucb_naive:weight=1,unless_all_right=false"]
    board = OutcomeBoard(terms, folder=folder, save_every=2)
    for step in range(1, 6):
        fill(board, f"g{step}", ["7", str(step)], step=step)
    assert sorted(path.name for path in (tmp_path / "equipoise").iterdir()) == [
        "outcomes-00000002.json",
        "outcomes-00000004.json",
    ]
    # Resumed from the checkpoint of step 2, its third step sees "7" twice, and nothing of the steps that were thrown away.
    again = OutcomeBoard(terms, folder=folder, save_every=2)
    assert fill(again, "x", ["7", "4"], step=3) == pytest.approx([1 / math.sqrt(2), 1])
    # A run that starts afresh in the same folder begins with no counts.
    assert fill(OutcomeBoard(terms, folder=folder, save_every=2), "y", ["7", "1"], step=1) == [1, 1]


def test_a_member_that_is_posted_again_counts_once():
    board = OutcomeBoard(["batch_exploration:weight=0.2"])
    for answer in ("1", "2"):
        board.post("w", "g", 0, 2, row(answer))
    assert board.collect("w") == {}
    board.post("w", "g", 1, 2, row("2"))
    assert board.collect("w") == {("g", 0): pytest.approx(-0.1), ("g", 1): pytest.approx(-0.1)}
    assert Counter(board.state()["counts"]["p"]) == {"2": 2}


def test_a_row_that_two_workers_score_is_counted_once_and_both_hear_of_it():
    board = OutcomeBoard(["batch_exploration:weight=0.2"])
    for worker in ("a", "b"):
        board.post(worker, "g", 0, 2, row("7"))
    board.post("a", "g", 1, 2, row("7"))
    board.post("c", "g", 1, 2, row("7"))  # after the group was closed
    half = pytest.approx(-0.1)
    assert board.collect("a") == {("g", 0): half, ("g", 1): half}
    assert (board.collect("b"), board.collect("c")) == ({("g", 0): half}, {("g", 1): half})
    assert board.state()["counts"] == {"p": {"7": 2}}


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("clip_higher", "clip_higher is a ratio_clip"),
        ("reference_likelihood", "reference_likelihood needs logp_PGJ"),
        ("brier:malformed=unscored", "malformed=worst"),
        ("batch_explorations", "did you mean 'batch_exploration'"),
    ],
)
def test_what_cannot_be_a_term_is_refused(spec, says):
    with pytest.raises(UsageError, match=says):
        OutcomeBoard([spec])


def test_missing_verdicts_are_told_to_everyone_who_waits():
    board = OutcomeBoard(["batch_exploration"])
    board.post("w0", "g", 0, 2, row("7", correct=None))
    with pytest.raises(UsageError, match="return acc"):
        board.post("w1", "g", 1, 2, row("7", correct=None))
    with pytest.raises(UsageError, match="return acc"):
        board.collect("w0")


def test_workers_that_hold_a_step():
    assert (workers_needed(800), workers_needed(801), workers_needed(16384)) == (1, 2, 21)
