"""Counters in Prometheus's text format. Every label has a bounded set of values: none comes from a request."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from equipoise.base import Spend

SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
KINDS = ("prompt", "thinking", "answer", "probe", "judge", "retry", "cancelled")

Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Histogram:
    counts: list[int] = field(default_factory=lambda: [0] * (len(SECONDS) + 1))
    sum: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(SECONDS, seconds)] += 1
        self.sum += seconds


@dataclass(slots=True)
class Metrics:
    requests: Counter[Labels] = field(default_factory=Counter)
    seconds: defaultdict[Labels, Histogram] = field(default_factory=lambda: defaultdict(Histogram))
    first: defaultdict[Labels, Histogram] = field(default_factory=lambda: defaultdict(Histogram))
    tokens: Counter[Labels] = field(default_factory=Counter)
    stops: Counter[Labels] = field(default_factory=Counter)
    cache: Counter[Labels] = field(default_factory=Counter)
    gone: int = 0  # clients that left before their reply was there

    def spend(self, spent: Spend) -> None:
        for kind in KINDS:
            self.tokens[(("kind", kind),)] += getattr(spent, kind) or 0

    def write(self, gauges: dict[str, dict[Labels, float]]) -> str:
        lines: list[str] = []
        lines += _counter("equipoise_requests_total", "requests by route, strategy and status", self.requests)
        lines += _histogram("equipoise_request_seconds", "from the request to the end of its reply", self.seconds)
        lines += _histogram(
            "equipoise_first_byte_seconds", "from the request to the first byte of its reply", self.first
        )
        lines += _counter("equipoise_tokens_total", "tokens by what they were for", self.tokens)
        lines += _counter("equipoise_stops_total", "searches by what ended them", self.stops)
        lines += _counter(
            "equipoise_cache_total", "requests that a reply may be kept for, by whether one was", self.cache
        )
        lines += _counter("equipoise_clients_gone_total", "clients that left before their reply", {(): self.gone})
        for name, values in gauges.items():
            lines += [
                f"# TYPE {name} gauge",
                *(f"{name}{_labels(labels)} {value:g}" for labels, value in values.items()),
            ]
        return "\n".join(lines) + "\n"


def _counter(name: str, about: str, values: dict[Labels, int]) -> Iterator[str]:
    yield f"# HELP {name} {about}"
    yield f"# TYPE {name} counter"
    for labels, value in values.items():
        yield f"{name}{_labels(labels)} {value}"


def _histogram(name: str, about: str, values: dict[Labels, Histogram]) -> Iterator[str]:
    yield f"# HELP {name} {about}"
    yield f"# TYPE {name} histogram"
    for labels, each in values.items():
        total = 0
        for edge, count in zip([*(f"{edge:g}" for edge in SECONDS), "+Inf"], each.counts, strict=True):
            total += count
            yield f"{name}_bucket{_labels((*labels, ('le', edge)))} {total}"
        yield f"{name}_sum{_labels(labels)} {each.sum:.6f}"
        yield f"{name}_count{_labels(labels)} {total}"


def _labels(labels: Labels) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels) + "}" if labels else ""
