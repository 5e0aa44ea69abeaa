"""Every solution of a Countdown problem, up to the normal form of `expressions`."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache

from equipoise.errors import UsageError
from equipoise.tasks.expressions import Form, Value, combine, number_form

MAX_NUMBERS = 6  # all solutions of six numbers take some ten seconds, of five some tenths, of four a few milliseconds
CACHED = 256  # problems

ByValue = dict[Value, dict[str, Form]]


@lru_cache(maxsize=CACHED)
def solve(numbers: tuple[int, ...], target: int, operators: str = "+-*/") -> frozenset[str]:
    """Normal forms of all expressions that use every number exactly once and come to `target`, which is above 0.

    Parts are made bottom-up for every subset of the numbers; for the last operation only the matching partner is looked up.
    """
    if not 1 <= len(numbers) <= MAX_NUMBERS or target < 1:
        raise UsageError(
            f"all solutions are found for 1 to {MAX_NUMBERS} numbers and a target of at least 1, "
            f"found {len(numbers)} numbers and target {target}"
        )
    count = len(numbers)
    whole = (1 << count) - 1
    parts: dict[int, ByValue] = {}
    for bits in sorted(range(1, whole + 1), key=int.bit_count):
        if bits.bit_count() == 1:
            number = numbers[bits.bit_length() - 1]
            parts[bits] = {number: {str(number): number_form(number)}}
        elif bits != whole:
            parts[bits] = _all_of(bits, parts, operators)
    if count == 1:
        return frozenset(parts[whole].get(target, ()))
    return frozenset(
        str(form)
        for left, right in _halves(whole, parts)
        for operator in operators
        for a, forms in left.items()
        for b in _partners(operator, a, target)
        for first in forms.values()
        for second in right.get(b, {}).values()
        if (form := combine(operator, first, second)).value == target
    )


def _halves(bits: int, parts: dict[int, ByValue]) -> Iterator[tuple[ByValue, ByValue]]:
    """Every way to share out the numbers, in both orders."""
    some = (bits - 1) & bits
    while some:
        yield parts[some], parts[bits ^ some]
        some = (some - 1) & bits


def _all_of(bits: int, parts: dict[int, ByValue], operators: str) -> ByValue:
    found: ByValue = {}
    for left, right in _halves(bits, parts):
        for operator in operators:
            for a in left.values():
                for b in right.values():
                    for first in a.values():
                        for second in b.values():
                            form = combine(operator, first, second)
                            if form.value is not None:
                                found.setdefault(form.value, {})[str(form)] = form
    return found


def _partners(operator: str, a: Value, target: int) -> tuple[Value, ...]:
    """The values b with `a operator b = target`."""
    if a is None:
        return ()
    if operator == "+":
        return (target - a,)
    if operator == "-":
        return (a - target,)
    if operator == "*":
        return (_whole(Fraction(target) / a),) if a else ()
    return (_whole(Fraction(a) / target),)


def _whole(value: Fraction) -> Value:
    return value.numerator if value.denominator == 1 else value
