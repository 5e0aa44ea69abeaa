"""`Run`: what every reader gives. Metadata at once; rollouts, metrics and choices as streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from equipoise.errors import unknown_name
from equipoise.rollouts.batch import Rollouts
from equipoise.rollouts.columns import BY_NAME


@dataclass(slots=True)
class Warnings:
    """What a reader met and went on from. One entry per kind, with its first message and a count.

    `parts` are the warnings of runs that this one is joined from, by path.
    """

    entries: dict[str, tuple[str, int]] = field(default_factory=dict)
    parts: Mapping[str, Warnings] = field(default_factory=dict)

    def __call__(self, kind: str, message: str) -> None:
        first, count = self.entries.get(kind, (message, 0))
        self.entries[kind] = (first, count + 1)

    def one_pass(self) -> Callable[[str, str], None]:
        """A sink for one reading of the source: reading it again does not count the same warnings twice."""
        counts: dict[str, int] = {}

        def warn(kind: str, message: str) -> None:
            counts[kind] = counts.get(kind, 0) + 1
            first, most = self.entries.get(kind, (message, 0))
            self.entries[kind] = (first, max(most, counts[kind]))

        return warn

    def lines(self) -> list[str]:
        own = [
            f"{kind}: {message}" + (f" (and {count - 1} more like it)" if count > 1 else "")
            for kind, (message, count) in self.entries.items()
        ]
        return own + [f"{path}: {line}" for path, part in self.parts.items() for line in part.lines()]


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The contents of run.json. `provenance` says, per column, how the source made it: for entropies the estimator,
    temperature, aggregation and mask; for log-probs raw or processed."""

    source: str  # tool that wrote the rollouts
    source_version: str | None = None
    run_id: str | None = None
    model: str | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)


def _nothing() -> Iterator[dict[str, Any]]:
    return iter(())


@dataclass(frozen=True, slots=True)
class Run:
    """A run as a reader found it. Streams may be started many times; each starts anew and reads only what is asked.

    `stream(columns)` yields batches that hold a subset of `columns`, those that the source has.
    """

    path: Path
    info: RunInfo
    stream: Callable[[Sequence[str] | None], Iterator[Rollouts]] = lambda columns: iter(())
    read_metrics: Callable[[], Iterator[dict[str, Any]]] = _nothing
    read_choices: Callable[[], Iterator[dict[str, Any]]] = _nothing
    read_vocab: Callable[[], Mapping[int, str] | None] = lambda: None
    warnings: Warnings = field(default_factory=Warnings)

    def rollouts(self, columns: Sequence[str] | None = None) -> Iterator[Rollouts]:
        """Batches of rows with the named columns, or with all."""
        for name in columns or ():
            if name not in BY_NAME:
                raise unknown_name("column of the record", name, BY_NAME)
        return self.stream(columns)

    def metrics(self) -> Iterator[dict[str, Any]]:
        """One dict per optimiser step: `step`, and the source's own keys beside our names (`entropy`, `reward_mean`, …)."""
        return self.read_metrics()

    def choices(self) -> Iterator[dict[str, Any]]:
        return self.read_choices()

    def vocab(self) -> Mapping[int, str] | None:
        """The strings of the token ids seen, where the source keeps them."""
        return self.read_vocab()

    def to_dict(self) -> dict[str, Any]:
        from dataclasses import asdict

        return {"path": str(self.path), "info": asdict(self.info), "warnings": self.warnings.lines()}

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, source={self.info.source!r})"
