"""Numbers as written, as exact rationals, and back in one form."""

from __future__ import annotations

import re
from fractions import Fraction

MAX_NUMERAL = 400  # characters of one number; a longer one stays text
MAX_EXPONENT = 30  # of ten, either way: 1.5e999999999 stays text
MAX_PLACES = 6  # a terminating decimal of more places is shown as a fraction

_MAYBE = re.compile(r"[-+]?(?:\.?[0-9]|\\frac)")  # how a number begins
_PLAIN = re.compile(r"0|-?[1-9][0-9]{0,17}")
_INTEGER = r"(?:0|[1-9][0-9]*)"
_DECIMAL = rf"(?:{_INTEGER}(?:\.[0-9]*)?|\.[0-9]+)"
_NUMERAL = re.compile(
    rf"(?P<sign>[-+]?)(?:(?P<whole>{_INTEGER})(?: ?(?=\\frac)| (?=[0-9]+/)))?"
    rf"(?:(?P<top>{_DECIMAL})(?:/(?P<bottom>{_DECIMAL}))?|\\frac\{{(?P<over>-?{_DECIMAL})\}}\{{(?P<under>{_DECIMAL})\}})"
    r"(?:\*10\^\{?(?P<power>-?[0-9]{1,4})\}?|[eE](?P<exponent>[-+]?[0-9]{1,4}))?"
)
_WITH_UNIT = re.compile(r"(.*[0-9}]) ?(%|°|[Dd]ollars?)")


def is_plain(text: str) -> bool:
    """Whether this is a short integer in the form `show_number` gives it: by far the commonest answer."""
    return _PLAIN.fullmatch(text) is not None


def parse_number(text: str) -> Fraction | None:
    """The exact value of a plain number: integer, decimal, fraction, mixed number, or a decimal with a power of ten."""
    match = _NUMERAL.fullmatch(text) if len(text) <= MAX_NUMERAL else None
    if match is None:
        return None
    part = match.groupdict()
    top, bottom = part["top"] or part["over"], part["bottom"] or part["under"]
    power, exponent = part["power"] or "0", part["exponent"]
    if exponent:
        # Hexadecimal 1e5 is no power of ten: only 1.5e5 and 1e+5 surely are.
        if "." not in top and exponent[0] not in "+-":
            return None
        power = exponent
    if abs(int(power)) > MAX_EXPONENT or (bottom and not bottom.strip("0.")):
        return None
    if part["whole"] and ("." in top or bottom is None or "." in bottom or top[0] == "-"):
        return None
    value = Fraction(top)
    if bottom:
        value /= Fraction(bottom)
    if power != "0":
        value *= Fraction(10) ** int(power)
    if part["whole"]:
        value += int(part["whole"])
    return -value if part["sign"] == "-" else value


def show_number(value: Fraction) -> str:
    """Whole numbers and short decimals as written by hand, everything else as p/q in lowest terms."""
    if value.denominator == 1:
        return str(value.numerator)
    for places in range(1, MAX_PLACES + 1):
        if 10**places % value.denominator == 0:
            digits = str(abs(value.numerator) * (10**places // value.denominator)).rjust(places + 1, "0")
            return f"{'-' if value < 0 else ''}{digits[:-places]}.{digits[-places:]}"
    return f"{value.numerator}/{value.denominator}"


def same_number(text: str) -> str | None:
    """A number in its one form, with a percent sign kept and a degree sign or dollars dropped; None: not a number."""
    if is_plain(text):
        return text
    if _MAYBE.match(text) is None or len(text) > MAX_NUMERAL:
        return None
    value = parse_number(text)
    if value is not None:
        return show_number(value)
    unit = _WITH_UNIT.fullmatch(text)
    if unit is None or (value := parse_number(unit[1])) is None:
        return None
    return show_number(value) + ("%" if unit[2] == "%" else "")
