"""A trainer's side of the benchmark: it waits for its turn, takes one step, and tells how long each part of it took.

Each trainer runs in a process of its own, through its own training loop; the parent gives them turns over a pipe.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

PARTS = ("sampling", "scoring", "update", "rest")


class Turns:
    """Time goes to the innermost part that is open; counts are sums over the step."""

    def __init__(self, device: str) -> None:
        self._cuda = device.startswith("cuda")
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # what a library prints must not end up between the answers
        self._open = ["rest"]
        self._start()
        register_optimizer_step_pre_hook(lambda *_: self._enter("update"))
        register_optimizer_step_post_hook(lambda *_: self._updated())

    def step_ended(self) -> None:
        """Tell of this step, then wait for the next turn. The first step needs none: it counts all that came before it too."""
        self._charge()
        told = {"seconds": self.seconds, "cpu_seconds": self.cpu_seconds, "counts": self.counts}
        print(json.dumps(told | {"entropy": self.entropy, "peak_mb": self._peak_mb()}), file=self._out, flush=True)
        self._wait()

    def count(self, **amounts: int) -> None:
        for name, amount in amounts.items():
            self.counts[name] = self.counts.get(name, 0) + amount

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        self._enter(name)
        try:
            yield
        finally:
            self._leave()

    def within(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, its time charged to a part."""

        @wraps(call)
        def timed(*args: Any, **settings: Any) -> Any:
            with self.part(name):
                return call(*args, **settings)

        return timed

    def _wait(self) -> None:
        if sys.stdin.readline().strip() != "go":
            os._exit(0)  # the parent has what it wanted; neither loop needs to come to its end
        self._start()

    def _start(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.cpu_seconds = dict.fromkeys(PARTS, 0.0)
        self.counts: dict[str, int] = {}
        self.entropy: float | None = None  # mean of the sampled tokens, nats
        self._mark = self._now()

    def _enter(self, name: str) -> None:
        self._charge()
        self._open.append(name)

    def _leave(self) -> None:
        self._charge()
        self._open.pop()

    def _updated(self) -> None:
        self._leave()
        self.count(updates=1)

    def _charge(self) -> None:
        now, part = self._now(), self._open[-1]
        self.seconds[part] += now[0] - self._mark[0]
        self.cpu_seconds[part] += now[1] - self._mark[1]
        self._mark = now

    def _now(self) -> tuple[float, float]:
        if self._cuda:
            torch.cuda.synchronize()
        return time.perf_counter(), time.process_time()

    def _peak_mb(self) -> int:
        """Of the GPU's memory, what torch gave out; on a CPU, the whole process."""
        if self._cuda:
            return round(torch.cuda.max_memory_allocated() / 1e6)
        return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6)
