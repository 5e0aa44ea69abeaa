"""Which TRL this adapter was read with, and what it cannot work beside. Imports neither TRL nor torch."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version

from equipoise.catalogue.table import find_host
from equipoise.errors import MissingExtra, UsageError

OLDEST, NEWEST = find_host("trl").versions.split(" to ")


def check_trl(found: str | None = None) -> str:
    """The installed version of TRL; refused outside the range whose private methods this adapter was tested with."""
    if found is None:
        try:
            found = version("trl")
        except PackageNotFoundError as missing:
            raise MissingExtra("trl", needed_for="equipoise.adapters.trl") from missing
    if not _minor(OLDEST) <= _minor(found) <= _minor(NEWEST):
        newest = f"{NEWEST.split('.')[0]}.{_minor(NEWEST)[1] + 1}"
        raise UsageError(
            f"equipoise.adapters.trl supports TRL {OLDEST} to {NEWEST}, found {found}: pip install 'trl>={OLDEST},<{newest}'"
        )
    return found


def refuse_unsloth(trainer: type) -> None:
    """Unsloth replaces `compute_loss` when it is imported, so that what is built on `_compute_loss` would never run."""
    names = (f"{kind.__module__}.{kind.__qualname__}" for kind in trainer.__mro__)
    if "unsloth" in sys.modules or any("unsloth" in name.lower() for name in names):
        raise UsageError(
            "Unsloth replaces GRPOTrainer's loss, so that a mixin would do nothing: use reward functions, probe_reward and SteeringCallback, "
            "or train without Unsloth"
        )


def _minor(text: str) -> tuple[int, int]:
    parts = text.split(".")
    try:
        return int(parts[0]), int(parts[1])
    except (IndexError, ValueError):
        raise UsageError(
            f"'{text}' is no version of TRL: equipoise.adapters.trl supports {OLDEST} to {NEWEST}"
        ) from None
