"""What a mixin cannot work beside. Imports neither TRL nor torch."""

from __future__ import annotations

import sys

from equipoise.errors import UsageError


def refuse_unsloth(trainer: type) -> None:
    """Unsloth replaces `compute_loss` when it is imported, so that what is built on `_compute_loss` would never run."""
    names = (f"{kind.__module__}.{kind.__qualname__}" for kind in trainer.__mro__)
    if "unsloth" in sys.modules or any("unsloth" in name.lower() for name in names):
        raise UsageError(
            "Unsloth replaces GRPOTrainer's loss, so that a mixin would do nothing: use reward functions, probe_reward and SteeringCallback, "
            "or train without Unsloth"
        )
