"""Expressions: the normal form against an enumeration of all of them as functions, and the parser against hostile texts."""

from __future__ import annotations

from fractions import Fraction
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.tasks.countdown_solver import solve
from equipoise.tasks.expressions import MAX_CHARS, parse_expression

PRIME = 2**61 - 1


def trees(leaves):
    """Every binary tree over these leaves in this order, as nested (sign, left, right)."""
    if len(leaves) == 1:
        yield leaves[0]
        return
    for cut in range(1, len(leaves)):
        for left in trees(leaves[:cut]):
            for right in trees(leaves[cut:]):
                for sign in "+-*/":
                    yield (sign, left, right)


def written(tree):
    return str(tree) if isinstance(tree, int) else f"({written(tree[1])}{tree[0]}{written(tree[2])})"


def computed(tree):
    """The exact value, None where it divides by 0."""
    if isinstance(tree, int):
        return Fraction(tree)
    left, right = computed(tree[1]), computed(tree[2])
    if left is None or right is None or (tree[0] == "/" and right == 0):
        return None
    return {"+": left + right, "-": left - right, "*": left * right, "/": left / (right or 1)}[tree[0]]


def fingerprint(tree, at):
    """The expression as a function of its numbers, taken modulo a prime at values that have nothing to do with them."""
    if isinstance(tree, int):
        return at[tree]
    left, right = fingerprint(tree[1], at), fingerprint(tree[2], at)
    inverse = pow(right, PRIME - 2, PRIME)
    return {"+": left + right, "-": left - right, "*": left * right, "/": left * inverse}[tree[0]] % PRIME


@pytest.mark.parametrize(("numbers", "count"), [((2,), 1), ((2, 3), 6), ((2, 3, 5), 68), ((4, 6, 7, 9), 1170)])
def test_equal_forms_are_exactly_the_equal_functions(numbers, count):
    # 1, 6, 68, 1170: inequivalent expressions of n operands, https://oeis.org/A140606
    at = dict(zip(numbers, (123456789123, 987654321987, 5555555577777, 31415926535897), strict=False))
    form_of, function_of = {}, {}
    for order in permutations(numbers):
        for tree in trees(order):
            form = parse_expression(written(tree)).form
            function = fingerprint(tree, at)
            assert form_of.setdefault(function, form) == form
            assert function_of.setdefault(form, function) == function
    assert len(form_of) == count


def test_values_are_exact_and_forms_keep_them():
    for order in permutations((3, 3, 8, 8)):
        for tree in list(trees(order))[::7]:
            made = parse_expression(written(tree))
            again = parse_expression(made.form)
            assert made.value == again.value == computed(tree)
            assert again.form == made.form
            assert again.numbers == made.numbers == (3, 3, 8, 8)


@pytest.mark.parametrize(
    ("numbers", "target"),
    [((3, 3, 8, 8), 24), ((1, 5, 5, 5), 24), ((4, 7, 8, 8), 24), ((2, 3, 7, 9), 24), ((6, 6, 6, 6), 1)],
)
def test_the_solver_finds_what_enumeration_finds(numbers, target):
    found = {
        parse_expression(written(tree)).form
        for order in set(permutations(numbers))
        for tree in trees(order)
        if computed(tree) == target
    }
    assert solve(numbers, target) == found
    assert found


def test_the_solver_keeps_to_the_operators():
    assert solve((3, 3, 8, 8), 24, "+-*") == frozenset()
    assert solve((2, 3, 7, 9), 24, "+-*") == {"9+3*(7-2)", "2*(3*7-9)"}
    assert solve((5,), 5) == {"5"}


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("2+1", "1+2"),
        ("10-(4-3)", "3+10-4"),
        ("(3-7)*(2-8)", "(7-3)*(8-2)"),
        ("10+4*(3-5)", "10-4*(5-3)"),
        ("12/(3/4)", "4*12/3"),
        ("-3+5", "5-3"),
        ("3*-2", "-2*3"),
        (" ( 07 ) ", "7"),
        ("(5-5)*3", "3*(5-5)"),
        ("-(5-5)", "5-5"),
        ("3-5", "3-5"),
    ],
)
def test_forms_by_hand(text, form):
    assert parse_expression(text).form == form


@pytest.mark.parametrize(
    ("left", "right"), [("2*3", "2+3"), ("6-2", "2-6"), ("6/2", "2/6"), ("6*1", "6/1"), ("2*(3+4)", "2*3+4")]
)
def test_different_expressions_have_different_forms(left, right):
    assert parse_expression(left).form != parse_expression(right).form


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "3+",
        "+3",
        "3 4",
        "3(4)",
        "(3)(4)",
        "()",
        "(3",
        "3)",
        "3**2",
        "2^3",
        "3.5",
        "x",
        "3,4",
        "٣+٤",
        "３+４",
        "3//2",
        "1e3",
        "3_0",
        "0x3",
        "9**9**9**9",
        "1234567890",
        "(" * 100_000 + "1" + ")" * 100_000,
        "9" * 10_000_000,
        "1+" * 1_000_000 + "1",
        "-" * 100_000 + "1",
    ],
)
def test_everything_else_is_refused(text):
    assert parse_expression(text) is None


def test_the_longest_text_is_parsed_however_deep():
    half = (MAX_CHARS - 1) // 2
    assert parse_expression("(" * half + "7" + ")" * half).value == 7
    assert parse_expression("-" * (MAX_CHARS - 2) + "7").value == 7
    assert parse_expression("*".join(["999999999"] * 40)).value == 999999999**40


def test_division_by_zero_has_a_form_and_no_value():
    made = parse_expression("1/(2-2)")
    assert (made.form, made.value) == ("1/(2-2)", None)
    assert parse_expression("3-1/(2-2)").form == "3-1/(2-2)"


expressions = st.recursive(
    st.integers(0, 30), lambda inner: st.tuples(st.sampled_from("+-*/"), inner, inner), max_leaves=8
)


def shuffled(tree, random):
    """The same expression by the rules of commutativity, associativity and signs."""
    if isinstance(tree, int):
        return str(tree)
    sign, left, right = tree
    if sign in "-/" and not isinstance(right, int) and right[0] == sign and random.random() < 0.5:
        other = {"-": "+", "/": "*"}[sign]  # a-(b-c) = (a+c)-b
        return shuffled((sign, (other, left, right[2]), right[1]), random)
    a, b = shuffled(left, random), shuffled(right, random)
    if sign in "+*":
        if not isinstance(left, int) and left[0] == sign and random.random() < 0.5:
            return shuffled((sign, left[1], (sign, left[2], right)), random)
        return f"({b}{sign}{a})" if random.random() < 0.5 else f"({a}{sign}{b})"
    if sign == "-" and random.random() < 0.5:
        return f"(-{b}+{a})" if isinstance(right, int) else f"(-({b})+{a})"
    return f"({a}{sign}{b})"


@settings(max_examples=300, deadline=None)
@given(expressions, st.randoms(use_true_random=False))
def test_rewriting_by_the_rules_changes_no_form(tree, random):
    made = parse_expression(written(tree))
    other = parse_expression(shuffled(tree, random))
    if made is not None and other is not None and made.value is not None and other.value is not None:
        assert made.value == computed(tree)
        if 0 not in made.numbers and not _has_zero(tree):
            assert other.form == made.form
    if made is not None:
        assert parse_expression(made.form).form == made.form


def _has_zero(tree):
    """A part that is 0 has no sign, so that the rules of signs do not bring it to one form."""
    return computed(tree) == 0 or (not isinstance(tree, int) and (_has_zero(tree[1]) or _has_zero(tree[2])))


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="0123456789+-*/() ", max_size=30))
def test_any_text_is_parsed_or_refused(text):
    made = parse_expression(text)
    if made is not None:
        assert parse_expression(made.form).form == made.form
        assert parse_expression(made.form).numbers == made.numbers
