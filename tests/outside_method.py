"""A method as a user would write one, outside the package."""

from __future__ import annotations

from dataclasses import dataclass

NOT_CALLABLE = 3


def scaled(adv_BT, mask_BT, *, scale=1.0):
    return adv_BT * scale * mask_BT


@dataclass(frozen=True)
class Keeper:
    n: int = 1
    rate: float = 0.5
