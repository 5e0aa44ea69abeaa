"""Arithmetic expressions in one normal form, parsed without `eval`: equal expressions are equal strings.

Two expressions are equal if commutativity, associativity and the rules of signs make one of the other: `1+2` and `2+1`,
`a-(b-c)` and `c+a-b`, `a/(b/c)` and `c*a/b`, `(a-b)*(c-d)` and `(d-c)*(b-a)`. That is all there is: where the numbers are
all different, expressions with different normal forms are different functions of those numbers.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

Value = int | Fraction | None  # None: somewhere it divides by 0

MAX_CHARS = 400
MAX_DIGITS = 9
CACHED = 8192  # expressions whose form is remembered: samples of one policy repeat themselves

_TOKEN = re.compile(r"\s*(?:([0-9]+)|([-+*/()]))")
_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2, "negate": 3}


@dataclass(frozen=True, slots=True)
class Form:
    """A number, or a sum or product with its members in order. `negative`: minus what `up` and `down` say.

    A sum is `up` minus `down`, turned so that its value is not below 0: the minus sign then stands outside, where the sum or
    product around it can take it in. A product is `up` over `down`.
    """

    kind: str  # "n", "+" or "*"
    up: tuple[str, ...]
    down: tuple[str, ...]
    negative: bool
    value: Value

    def __str__(self) -> str:
        if self.kind == "+":
            return _as_sum(*self.terms())
        return ("-" if self.negative else "") + _as_product(self.up, self.down)

    def terms(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """As members of a sum: those added, those taken away."""
        if self.kind == "+":
            return (self.down, self.up) if self.negative else (self.up, self.down)
        own = (_as_product(self.up, self.down),)
        return ((), own) if self.negative else (own, ())

    def factors(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """As members of a product, but for the sign: those above the line, those below it."""
        return ((f"({_as_sum(self.up, self.down)})",), ()) if self.kind == "+" else (self.up, self.down)


def _as_sum(up: tuple[str, ...], down: tuple[str, ...]) -> str:
    return "+".join(up) + "".join(f"-{term}" for term in down)


def _as_product(up: tuple[str, ...], down: tuple[str, ...]) -> str:
    return "*".join(up) + "".join(f"/{factor}" for factor in down)


def _ordered(members: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(members, key=lambda text: (len(text), text)))  # numbers by size, then what is longer


def number_form(number: int) -> Form:
    return Form("n", (str(number),), (), False, number)


def negate(form: Form) -> Form:
    return Form(form.kind, form.up, form.down, not form.negative, None if form.value is None else -form.value)


def combine(operator: str, left: Form, right: Form) -> Form:
    """The normal form of `left operator right`."""
    if operator == "-":
        return combine("+", left, negate(right))
    value = _compute(operator, left.value, right.value)
    if operator == "+":
        (up, down), (more_up, more_down) = left.terms(), right.terms()
        return _turned(_ordered(up + more_up), _ordered(down + more_down), value)
    (up, down), (more_up, more_down) = left.factors(), right.factors()
    if operator == "/":
        more_up, more_down = more_down, more_up
    return Form("*", _ordered(up + more_up), _ordered(down + more_down), left.negative != right.negative, value)


def _turned(up: tuple[str, ...], down: tuple[str, ...], value: Value) -> Form:
    # A sum without a sign of its own, being 0 or undefined, is turned by how it is written.
    negative = value < 0 if value else (len(up), up) < (len(down), down)
    return Form("+", down, up, True, value) if negative else Form("+", up, down, False, value)


def _compute(operator: str, left: Value, right: Value) -> Value:
    if left is None or right is None:
        return None
    if operator == "+":
        return left + right
    if operator == "*":
        return left * right
    if right == 0:
        return None
    if isinstance(left, int) and isinstance(right, int) and left % right == 0:
        return left // right  # whole numbers stay int, which is ten times faster
    quotient = Fraction(left) / right
    return quotient.numerator if quotient.denominator == 1 else quotient


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression as it was written: its normal form, its value, and what it is made of."""

    form: str
    value: Value
    numbers: tuple[int, ...]  # sorted
    operators: frozenset[str]


@lru_cache(maxsize=CACHED)
def parse_expression(text: str) -> Expression | None:
    """Whole numbers with + - * / and parentheses, or None for anything else. `3*-2` is one, `3(2+1)` and `2^3` are none."""
    if len(text) > MAX_CHARS:
        return None
    forms: list[Form] = []
    waiting: list[str] = []  # operators and opening parentheses
    used: Counter[str] = Counter()
    numbers: list[int] = []
    at, ends_operand = 0, False
    text = text.strip()
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            return None
        at = token.end()
        digits, sign = token.groups()
        if digits:
            if ends_operand or len(digits) > MAX_DIGITS:
                return None
            numbers.append(int(digits))
            forms.append(number_form(numbers[-1]))
            ends_operand = True
        elif sign == "(":
            if ends_operand:
                return None
            waiting.append(sign)
        elif sign == ")":
            if not ends_operand:
                return None
            _settle(forms, waiting, 0)
            if not waiting or waiting.pop() != "(":
                return None
        elif ends_operand:
            used[sign] += 1
            _settle(forms, waiting, _PRECEDENCE[sign])
            waiting.append(sign)
            ends_operand = False
        elif sign == "-":
            used[sign] += 1
            waiting.append("negate")
        else:
            return None
    if not ends_operand:
        return None
    _settle(forms, waiting, 0)
    if waiting:
        return None
    return Expression(str(forms[0]), forms[0].value, tuple(sorted(numbers)), frozenset(used))


def _settle(forms: list[Form], waiting: list[str], precedence: int) -> None:
    """Apply the operators on top that bind at least as tightly."""
    while waiting and waiting[-1] != "(" and _PRECEDENCE[waiting[-1]] >= precedence:
        operator = waiting.pop()
        right = forms.pop()
        forms.append(negate(right) if operator == "negate" else combine(operator, forms.pop(), right))
