"""Degenerate patterns, each with a text that has it and one that does not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.text.degenerate import FLAGS, GRAM_WORDS, count_operations, find_degenerate, measure_loop

SOUND = (
    "Janet's ducks lay 16 eggs a day. She eats 3 for breakfast and bakes with 4, so 16 - 3 - 4 = 9 eggs are left to sell. "
    "At 2 dollars each that makes 9 * 2 = 18 dollars every day at the market. The answer is 18."
)


def test_a_sound_text_raises_no_flag():
    found = find_degenerate(SOUND, answer="18")
    assert found.flags == ()
    assert (found.repeated_answers, found.answers_before_work, found.n_operations, found.gibberish) == (
        1,
        False,
        3,
        False,
    )
    assert found.loop_ratio < 0.1


def test_a_loop_by_its_period():
    # 34 characters, then six turns of 21 without the last space: 159. The space before the first turn is part of the period
    # too. Thirteen words are too few for n-grams.
    text = "one two three four five six seven " + "supercalifragilistic " * 6
    assert measure_loop(text) == pytest.approx(126 / 159)
    assert (
        measure_loop(
            "one two three four five six seven " + "supercalifragilistic " * 2 + "and the rest of it is different " * 1
        )
        == 0
    )


def test_twice_is_no_period():
    # 100 different characters and two turns of 60: of 197 runs of 24, 97 lie in the turns and 60 of those differ.
    different = "".join(chr(0x4E00 + i) for i in range(160))
    assert measure_loop(different[:100] + different[100:] * 2) == pytest.approx(37 / 197)


def test_a_loop_raises_its_flag():
    start = "".join(f"{i * i} differs. " for i in range(400))
    turn = "Try this: (49 - 41) + (33 - 7). Still not it.\n"
    assert find_degenerate(start + turn * 60, answer=None).flags == ("loop",)
    assert find_degenerate(start + turn * 2, answer=None).flags == ()


def test_a_loop_that_varies_or_has_ended_is_seen_by_its_n_grams():
    varied = "".join(f"We check the next number now and see that it is not prime: {i}. " for i in range(40))
    assert measure_loop(varied) > 0.5
    ended = "the cat sat on the mat again and " * 30 + "then it finally stopped and went away."
    assert measure_loop(ended) > 0.5


def test_n_gram_share_by_hand():
    # 40 different words, then the first 20 of them again: 60 - 5 = 55 runs of six words; the last 15 of them stood before.
    words = [f"word{i}x" for i in range(40)]
    assert GRAM_WORDS == 6
    assert measure_loop(" ".join(words + words[:20])) == pytest.approx(15 / 55)


@pytest.mark.parametrize("text", ["", "no no no no no", "word " * 5, SOUND, " ".join(str(i) for i in range(500))])
def test_no_loop(text):
    assert measure_loop(text) < 0.1


def test_loops_without_spaces():
    assert measure_loop("循环往复没有尽头" * 100) == 1.0
    different = "".join(chr(0x4E00 + i) for i in range(800))
    assert measure_loop(different) == 0.0
    # The last 1024 characters: 624 different ones and 50 turns of 8. Of 1001 runs of 24, 377 lie in the loop and 8 of them differ.
    assert measure_loop(different + "循环往复没有尽头"[::-1] * 50) == pytest.approx(369 / 1001)


def test_a_board_as_the_answer_is_no_loop():
    rows = ["_ _ Q _ _ _ _ _", "_ _ _ _ _ Q _ _", "_ Q _ _ _ _ _ _", "_ _ _ _ _ _ Q _"] * 2
    found = find_degenerate("<answer>" + "\n".join(rows) + "</answer>", answer=None)
    assert "loop" not in found.flags
    assert not found.gibberish


def test_hammering_one_answer_counts_statements_not_digits():
    text = "We get 5 + 5 = 10 and 10 - 5 = 5, so 5 it is, and 5 again. The answer is 5. Answer: 5.0. So <answer>\\boxed{5}</answer>"
    assert find_degenerate(text, answer="5").repeated_answers == 3
    assert "repeated-answer" in find_degenerate(text, answer="5").flags
    assert find_degenerate(text, answer="6").repeated_answers == 0
    assert find_degenerate(SOUND, answer="18").repeated_answers == 1
    assert find_degenerate(text, answer=None).repeated_answers is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\boxed{18}", True),
        ("The answer is 18. Indeed 16 - 3 - 4 = 9 and 9 * 2 = 18.", True),
        ("9 * 2 = 18, so the answer is 18.", False),
        (
            "Alice says that Bob lies, and if Bob told the truth then Alice would lie, which she does not. <answer>Bob</answer>",
            False,
        ),
        ("no answer here, 2 + 2 = 4", None),
    ],
)
def test_an_answer_before_any_work(text, expected):
    found = find_degenerate(text, answer=None)
    assert found.answers_before_work is expected
    assert ("answer-first" in found.flags) is (expected is True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1+2+3", 2),
        ("(6 - 4) * 5 = 10", 2),
        ("16 − 3 × 2 ÷ 4", 3),
        (r"$3 \times 4 \cdot 5$ and \frac{1}{2}", 3),
        ("**12** - **4** = 8", 1),
        ("$5 + $6", 1),
        ("- 3\n- 4\n* 5\n+ 6", 0),
        ("x + y, -5, 3 = 3, well-known", 0),
        ("2^10", 1),
        ("", 0),
    ],
)
def test_operations_between_numbers(text, expected):
    assert count_operations(text) == expected


def test_gibberish():
    assert find_degenerate("So we add " + "!" * 200, answer=None).gibberish
    assert "gibberish" in find_degenerate("! " * 200, answer=None).flags
    assert not find_degenerate("!!!!", answer=None).gibberish
    assert not find_degenerate(SOUND, answer=None).gibberish


@given(st.text(max_size=200) | st.text("ab! \n", max_size=400), st.none() | st.text(max_size=5))
def test_any_text_gives_values_in_range(text, answer):
    found = find_degenerate(text, answer=answer)
    assert 0 <= found.loop_ratio <= 1
    assert set(found.flags) <= set(FLAGS)
    assert found.n_operations >= 0
