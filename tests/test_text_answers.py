"""Answers: one form for equal ones, and the one a text states."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.text.answers import canonical, canonical_expression, read_answer, read_confidence, read_expression
from equipoise.text.forms import MAX_CHARS
from equipoise.text.numerals import parse_number, show_number

SAME = [
    (
        "0.5",
        "1/2",
        ".5",
        "0.50",
        r"\frac12",
        r"\frac{1}{2}",
        r"$\dfrac{1}{2}$",
        r"\(\tfrac{2}{4}\)",
        "½",
        r"\boxed{1/2}",
    ),
    ("1234", "1,234", "1{,}234", "$1,234", r"\$1,234.00", "1234.", "**1234**", "１２３４", "1234 dollars", r"1,\!234"),
    ("70", "21+49=70", "21 + 49 = 70", "x = 70", r"$x=70$", "2*35 = 70 = 70", r"7 \times 10 = 70", "+70"),
    ("12.6", r"12\frac{3}{5}", "12 3/5", "63/5"),
    ("-3", "−3", "- 3", r"$-3$", "-3.0"),
    ("B", "(B)", "B.", "B)", r"\text{(B)}", "(b)", "(B) Paris", r"\textbf{B}", "option B", "Choice (B)"),
    ("45", r"45^\circ", "45°", r"45^{\circ}"),
    ("50%", r"50\%", "50 %", "50.0%"),
    ("yes", "Yes", "YES", "Yes.", '"Yes"', r"\text{Yes}"),
    ("cannot be determined", "Cannot be  determined."),
    ("1.5", "1½", "1 1/2", r"1\frac12", "3/2"),
    ("(1, 234)", "(1,234)", "( 1 , 234 )"),
    ("(1, 2)", "(1,2)", r"\left( 1, 2 \right)", "(1.0, 2)"),
    ("{0.5, 3}", r"\{\frac{1}{2}, 3\}"),
    ("(-1/3, x/2)", r"\left(-\frac{1}{3}, x/2\right)"),
    ("1, 2", "1,2"),
    ("(6-4)*5", "(6 - 4) * 5", "(6 − 4) × 5", r"(6 - 4) \cdot 5"),
    ("3π/2", r"\frac{3\pi}{2}", r"3\pi/2", r"$\dfrac{3 \pi}{2}$"),
    (r"\sqrt{3}/2", r"\frac{\sqrt{3}}{2}", r"\frac{\sqrt3}{2}", "√3/2"),
    ("x^2+1", "x² + 1", "x^{2}+1", "x**2 + 1"),
    ("1500", r"1.5 \times 10^{3}", "1.5e3", "1.5E+3"),
    ("5 cm", r"5\text{ cm}", r"5\,\text{cm}", r"5 \mathrm{cm}"),
]
DIFFERENT = [
    ("1, 2", "12"),
    ("1, 234", "1234"),
    ("(1,234)", "1234"),
    ("50%", "0.5"),
    ("50%", "50"),
    ("0.333", "1/3"),
    ("0.333...", "0.333"),
    ("5 cm", "5"),
    ("007", "7"),
    ("1e5", "100000"),  # hexadecimal, for all we know
    ("'12'", "12"),
    ("x", "X"),
    ("(1, 2)", "(2, 1)"),
    ("(1, 2)", "[1, 2]"),
    ("2**3", "23"),
    ("(A) and (C)", "A"),
    ("(A) + (B)", "A"),
    ("5!", "5"),
    ("y=2x+3", "x=2x+3"),
    ("12/5", "1 2/5"),
]


@pytest.mark.parametrize("group", SAME, ids=lambda group: group[0])
def test_equal_answers_become_the_first_string(group):
    assert [canonical(spelling) for spelling in group] == [group[0]] * len(group)


@pytest.mark.parametrize("pair", DIFFERENT, ids=str)
def test_different_answers_stay_apart(pair):
    left, right = map(canonical, pair)
    assert left is not None
    assert right is not None
    assert left != right


@pytest.mark.parametrize("nothing", ["", "  \n", "$$", "**", r"\boxed{}", "\u200b", "x" * (MAX_CHARS + 1)])
def test_no_answer_is_none(nothing):
    assert canonical(nothing) is None


@pytest.mark.parametrize("huge", ["1.5e999999999", "9" * 5000, "1/" + "7" * 5000, "10^999999999", "-1.0e-9999"])
def test_huge_numbers_stay_text(huge):
    assert canonical(huge) == huge


@pytest.mark.parametrize("text", ["1/0", r"\frac{1}{0}", "1/0.00"])
def test_division_by_zero_is_text(text):
    assert canonical(text) == text


@given(st.fractions(max_denominator=10**6))
def test_a_rational_survives_every_spelling(value):
    # Fraction's own reading of strings is the independent check.
    form = canonical(f"{value.numerator}/{value.denominator}")
    assert form is not None
    assert Fraction(form) == value
    sign, top = ("-" if value < 0 else ""), abs(value.numerator)
    assert canonical(rf"${sign}\frac{{{top}}}{{{value.denominator}}}$") == form
    assert canonical(f"{2 * value.numerator}/{2 * value.denominator}") == form


@given(st.decimals(allow_nan=False, allow_infinity=False, places=4, min_value=-(10**9), max_value=10**9))
def test_a_decimal_and_its_thousands_separators(value):
    assert canonical(f"{value:,}") == canonical(f"{value}")
    assert Fraction(str(canonical(f"{value}"))) == Fraction(value)


@given(st.fractions())
def test_numbers_read_back_exactly(value):
    assert parse_number(show_number(value)) == value


# Pieces from which answers are made, so that a random string hits the rules.
PIECES = (
    *(
        "1",
        "0",
        "12",
        "1,234",
        ",",
        ", ",
        " ",
        ".",
        "-",
        "+",
        "*",
        "/",
        "=",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        "^",
        "_",
        "%",
        "$",
    ),
    *(
        r"\frac",
        r"\dfrac",
        r"\text{",
        r"\boxed{",
        r"\sqrt",
        r"\$",
        r"^\circ",
        "°",
        r"\left(",
        r"\right)",
        "\\\\",
        "\\",
        r"\,",
    ),
    *(
        "x",
        "A",
        "b",
        "Yes",
        "NO",
        "and",
        "Alice",
        " dollars",
        "½",
        "²",
        "⁻",
        "×",
        "−",
        "'",
        '"',
        "`",
        "**",
        "e",
        "E+3",
        "*10^",
    ),
    *(
        "\n",
        "\u200b",
        "İ",
        "ﬁ",
        "１",
        "٣",
        "(B)",
        "√",
        "π",
        ";",
        "..",
        "{,}",
        r"\{",
        r"\}",
        "℃",
        "①",
        "\ud800",
        "\u0301",
        "中",
    ),
)
made = st.lists(st.sampled_from(PIECES), max_size=12).map("".join) | st.text(max_size=40)


@given(made)
def test_forms_are_idempotent(text):
    for form in (canonical, canonical_expression):
        once = form(text)
        if once is not None:
            assert once
            assert form(once) == once


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("(6 − 4) × 5 = 10", "(6-4)*5"),
        ("$(6-4)*5$", "(6-4)*5"),
        ("12 / 2", "12/2"),  # no value: the numbers used are the answer
        ("(1*6)*(6/6) = 6*1 = 24", "(1*6)*(6/6)"),
        ("Not possible.", "not possible"),
        ("= 24", "=24"),
        (" ", None),
    ],
)
def test_expressions_keep_their_left_side(raw, expected):
    assert canonical_expression(raw) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"so \boxed{\frac{1}{2}}.", "0.5"),
        (r"first \boxed{3}, no: \boxed{4}", "4"),
        (r"\boxed{\left\{x : x > \{2\}\right.}", "{x:x>{2}"),  # an escaped brace closes nothing
        (r"\boxed{5} and I would write \boxed{} here", "5"),
        (r"\boxed 7$ it is", "7"),
        (r"cut off: \boxed{12", None),
        ("<answer> 63 - 46 </answer>", "63-46"),
        ("<ANSWER>Yes</ANSWER>", "yes"),
        ("stop string gone <answer>12", "12"),
        ("<answer>12</answer> <answer> is given as told", "12"),
        ("work\n#### 18", "18"),
        ("#### 1. Set up\n3 + 4 = 7\n#### Conclusion\nunclear", None),
        ("#### 1,234\nthat is all", "1234"),
        ("The answer is 42.", "42"),
        ("The answer is 42 because 6 * 7 = 42.", "42"),
        ("the answer is $x=5$. It is 7 elsewhere", "5"),
        ("The answer is $18 since she sells 9 eggs for $2.", "18"),
        ("**Final Answer:** 3.5", "3.5"),
        ("**Answer**: (B)", "B"),
        ("Final answer\n\n17", "17"),
        ("### Final Answer:\n1 2\n2 1\n\nDone.", "1 2 2 1"),
        ("Final Answer:\n42\nHope it helps", "42"),
        ('{"reasoning": "6*7", "answer": "42"}', "42"),
        ('{"answer": 42}', "42"),
        (r'{"final_answer": "\\frac{1}{2}"}', "0.5"),
        ("The answer is not 5.", None),
        ("The answer is correct.", None),
        ("I do not know.", None),
        ("", None),
    ],
)
def test_the_stated_answer(text, expected):
    answer = read_answer(text)
    assert (answer and answer.text) == expected


def test_a_marked_answer_goes_before_a_sentence_and_the_visible_before_the_thinking():
    text = r"<think>the answer is 1, or \boxed{2}</think> The answer is 3. \boxed{4} So the answer is 5."
    assert read_answer(text).text == "4"
    assert read_answer(r"<think>\boxed{2}</think> The answer is 3.").text == "3"
    assert read_answer(r"<think>\boxed{2}</think> Done.").text == "2"
    assert read_answer("<think>maybe the answer is 1") is None


def test_the_span_is_where_the_answer_stood():
    text = "so <answer> 1,234 </answer>."
    answer = read_answer(text)
    assert (answer.text, text[slice(*answer.span)]) == ("1234", " 1,234 ")


# Excerpts of real rollouts: princeton-nlp/tree-of-thought-llm, QwenLM/Qwen2.5-Math and beibeizzz/countdown_post_train (all MIT),
# open-thought/reasoning-gym-eval (Apache-2.0). Expected values are the answers published with them.
REAL = [
    (read_expression, "Steps:\n6 - 4 = 2 (left: 2 5 10)\nAnswer: ((6 - 4) * 5) * (10 - 10) = 24", "((6-4)*5)*(10-10)"),
    (read_expression, "7 - 4 = 3 (left: 3 3)\n3 * 3 = 9 (left: 9)\nAnswer: Not possible", "not possible"),
    (read_expression, "36 / 5 = 7.2 (left: 7.2)\nIt is not possible to obtain 24 with these numbers.", None),
    (read_expression, "= **100**\n\nThis works!\n\n### Final Answer:\n<answer>80 + (53 - 33)</answer>", "80+(53-33)"),
    (read_expression, "**Final Answer:** <answer> 81 - 54 + 6 </answer>", "81-54+6"),
    (read_answer, "to the nearest whole number is \\(\\boxed{420}\\).", "420"),
    (read_answer, "Thus, the value of \\( c \\) is \\(\\boxed{4085}\\).", "4085"),
    (read_answer, "The final answer is: $\\boxed{\\dfrac{259}{442}}$", "259/442"),
    (read_answer, "The final answer is: \nA=9,H=1,I=8,J=0,M=2", "A=9, H=1, I=8, J=0, M=2"),
    (
        read_answer,
        "<answer>Cannot be determined from the given information</answer>",
        "cannot be determined from the given information",
    ),
]


@pytest.mark.parametrize(("read", "text", "expected"), REAL)
def test_real_rollouts(read, text, expected):
    answer = read(text)
    assert (answer and answer.text) == expected


@given(made)
def test_reading_never_raises_and_spans_lie_inside(text):
    for wrapped in (
        text,
        rf"\boxed{{{text}}}",
        f"<answer>{text}",
        f"the answer is {text}",
        f"#### {text}",
        f'"answer": "{text}"',
    ):
        answer = read_answer(wrapped)
        if answer is not None:
            start, end = answer.span
            assert 0 <= start <= end <= len(wrapped)
            assert canonical(answer.text) == answer.text
        assert read_confidence(wrapped) is None or 0 <= read_confidence(wrapped) <= 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<confidence>0.8</confidence>", 0.8),
        ("Confidence: 80%", 0.8),
        ("**Confidence:** 80 %", 0.8),
        ("confidence score is 8/10", 0.8),
        ('{"confidence": 0.25}', 0.25),
        ("I am 90% confident in this.", 0.9),
        ("Confidence: 0.3 ... Confidence: 0.6", 0.6),
        ("Confidence: 20%. Later I was 70% confident.", 0.7),
        ("I am 70% confident. Confidence: 20%", 0.2),
        ("Confidence: 1", 1.0),
        ("Confidence: 85", None),  # 85 of what?
        ("Confidence: 120%", None),
        ("Confidence: -0.2", None),
        ("Confidence: 0.9, no: confidence: 7", None),
        ("Confidence: 5/0", None),
        ("Confidence: high", None),
        ("a 95% confidence interval", None),
        ("", None),
    ],
)
def test_stated_confidence(text, expected):
    assert read_confidence(text) == (None if expected is None else pytest.approx(expected))
