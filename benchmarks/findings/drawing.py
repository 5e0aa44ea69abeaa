"""Completions of a policy for given problems, a batch at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.findings.policies import Policy
from equipoise.base import Problem
from equipoise.models.graphs import StepGraphs
from equipoise.tasks.table import find_task
from equipoise.training.collect import Batch, collect
from equipoise.training.opening import open_model

ROWS = 8192  # completions sampled at once; changes memory, not the result


class Drawer:
    """A policy that is opened once and asked many times. Equal seeds draw equal completions of a problem."""

    def __init__(self, policy: Policy) -> None:
        self._policy, self.task = policy, find_task(policy.task)
        self._loaded = open_model(policy.model, device=policy.device).loaded
        self._graphs = StepGraphs() if policy.device.startswith("cuda") else None

    def batches(
        self, problems: Sequence[Problem], *, samples: int, temperature: float, seed: tuple[int | str, ...]
    ) -> Iterator[Batch]:
        each = max(1, ROWS // samples)
        for first in range(0, len(problems), each):
            yield collect(
                self._loaded.model,
                self._loaded.tokens,
                self.task,
                list(problems[first : first + each]),
                seed=seed,
                samples=samples,
                temperature=temperature,
                max_tokens=self._policy.max_tokens,
                graphs=self._graphs,
            )
