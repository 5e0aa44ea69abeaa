"""Which releases are supported: of a host those that the catalogue was checked with, of other packages those that this one requires."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version

from equipoise.catalogue.hosts import HOSTS
from equipoise.errors import UsageError

_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*(?:\[[^]]*\])?\s*\(?([<>=!~0-9.,*\s]*)\)?")
_ORDER = (">=", "==", ">", "<", "<=", "!=")


def installed(package: str) -> str | None:
    """Its version, None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def supported(package: str) -> str | None:
    """The range of a package, say `>=0.9,<0.10`; None where any will do. A host's is every patch of the minor releases read."""
    if package in HOSTS and " to " in HOSTS[package].versions:
        oldest, newest = (list(_numbers(end))[:2] for end in HOSTS[package].versions.split(" to "))
        return f">={oldest[0]}.{oldest[1]},<{newest[0]}.{newest[1] + 1}"
    for line in requires("equipoise") or ():
        found = _REQUIREMENT.match(line)
        if found and found[1].lower() == package.lower() and found[2].strip():
            return ",".join(
                sorted(found[2].replace(" ", "").split(","), key=lambda part: _ORDER.index(_split(part)[0]))
            )
    return None


def fits(found: str, wanted: str) -> bool:
    """Whether a version lies in a range of `>=`, `>`, `<`, `<=`, `==` and `!=`, the last two also with `.*`."""
    return all(_holds(found, *_split(part)) for part in wanted.split(","))


def check_version(package: str) -> str:
    """The installed version; refused in one line where it is missing or outside the range."""
    found, wanted = installed(package), supported(package)
    ask = f"pip install '{package}{wanted or ''}'"
    if found is None:
        raise UsageError(f"{package} is not installed: {ask}")
    if wanted is not None and not fits(found, wanted):
        raise UsageError(f"{package} {found} is installed and {package} {wanted} is supported: {ask}")
    return found


def _split(part: str) -> tuple[str, str]:
    operator = part[: 2 if part[1:2] == "=" else 1]
    return operator, part[len(operator) :]


def _holds(found: str, operator: str, bound: str) -> bool:
    if bound.endswith(".*"):
        stem = tuple(_numbers(bound[:-2]))
        return (tuple(_numbers(found))[: len(stem)] == stem) == (operator == "==")
    here, there = list(_numbers(found)), list(_numbers(bound))
    width = max(len(here), len(there))
    here, there = here + [0] * (width - len(here)), there + [0] * (width - len(there))
    return {
        ">=": here >= there, ">": here > there, "<": here < there,
        "<=": here <= there, "==": here == there, "!=": here != there,
    }[operator]  # fmt: skip


def _numbers(text: str) -> Iterator[int]:
    """The leading numbers of a release: `2.13.0+cpu` is 2, 13, 0 and `0.10.0.dev1` is 0, 10, 0."""
    for part in re.split(r"[.+-]", text):
        digits = re.match(r"\d+", part)
        if digits is None:
            return
        yield int(digits[0])
        if digits[0] != part:
            return
