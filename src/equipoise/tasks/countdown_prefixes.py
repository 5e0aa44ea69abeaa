"""Every way to write a solution of a Countdown problem: whether the beginning of an expression can still become one."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

MOST_NUMBERS = 4  # four numbers have some thousand texts, five more than a hundred thousand
CACHED = 512  # problems


class _Text(NamedTuple):
    text: str
    level: int  # 3 a number, 2 a product, 1 a sum
    value: Fraction

    def within(self, level: int) -> str:
        return self.text if self.level >= level else f"({self.text})"


@lru_cache(maxsize=CACHED)
def solution_texts(numbers: tuple[int, ...], target: int, operators: str) -> tuple[str, ...]:
    """All solutions in all orders, with no more parentheses than they need, sorted."""
    whole = (1 << len(numbers)) - 1
    parts: dict[int, list[_Text]] = {}
    for bits in sorted(range(1, whole + 1), key=int.bit_count):
        if bits.bit_count() == 1:
            number = numbers[bits.bit_length() - 1]
            parts[bits] = [_Text(str(number), 3, Fraction(number))]
        else:
            found = {part.text: part for part in _joined(bits, parts, operators)}
            parts[bits] = list(found.values())
    return tuple(sorted(part.text for part in parts[whole] if part.value == target))


def can_become(prefix: str, texts: tuple[str, ...]) -> bool:
    """Whether one of these sorted texts begins so."""
    at = bisect_left(texts, prefix)
    return at < len(texts) and texts[at].startswith(prefix)


def _joined(bits: int, parts: dict[int, list[_Text]], operators: str) -> Iterator[_Text]:
    some = (bits - 1) & bits
    while some:
        for left in parts[some]:
            for right in parts[bits ^ some]:
                for sign in operators:
                    if sign == "+":
                        yield _Text(f"{left.text}+{right.text}", 1, left.value + right.value)
                    elif sign == "-":
                        yield _Text(f"{left.text}-{right.within(2)}", 1, left.value - right.value)
                    elif sign == "*":
                        yield _Text(f"{left.within(2)}*{right.within(2)}", 2, left.value * right.value)
                    elif right.value:
                        yield _Text(f"{left.within(2)}/{right.within(3)}", 2, left.value / right.value)
        some = (some - 1) & bits
