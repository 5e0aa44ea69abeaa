"""Which of the linter's findings are worth a line before a run."""

from __future__ import annotations

from equipoise.catalogue.lint import Lint
from equipoise.training.recipe import Method, TrainConfig


def chosen_warnings(config: TrainConfig) -> list[Lint]:
    """What the linter says of the methods that somebody chose.

    With one update per step the default surrogate's clip has nothing to clip: true of every default run, and no mistake in any.
    `config.warnings()` has that too.
    """
    default = Method().surrogate
    idle = config.method.surrogate == default
    return [found for found in config.warnings() if not (idle and (found.method, found.verdict) == (default, "inert"))]
