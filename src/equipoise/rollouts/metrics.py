"""Lines of metrics as one dict per step, for runs that were resumed and for runs that were joined."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from equipoise.rollouts.rows import Warn


def merge_lines(name: str, lines: Iterable[tuple[int, Mapping[str, Any]]], warn: Warn) -> Iterator[dict[str, Any]]:
    """One dict per step, by step, of numbered lines. A key that a resumed run logged again has its later value.

    A line {"rewind": s} is left by `RunWriter.rewind`: what was logged before it for steps after s no longer counts.
    """
    steps: dict[int, dict[str, Any]] = {}
    for number, line in lines:
        rewind = line.get("rewind")
        if isinstance(rewind, int):
            steps = {step: values for step, values in steps.items() if step <= rewind}
            continue
        step = line.get("step")
        if isinstance(step, float) and step.is_integer():
            step = int(step)
        if not isinstance(step, int):
            warn("no-step", f"{name}: line {number} has no step and was skipped")
            continue
        if update(steps.setdefault(step, {"step": step}), {**line, "step": step}):
            warn("duplicate-step", f"{name}: step {step} is logged more than once; the last values are used")
    return iter([steps[step] for step in sorted(steps)])


def join_lines(sources: Iterable[Iterable[Mapping[str, Any]]], warn: Warn) -> Iterator[dict[str, Any]]:
    """One dict per step, by step, of several sources. Where two have one key at one step, the first given wins."""
    steps: dict[Any, dict[str, Any]] = {}
    for lines in sources:
        for line in lines:
            step = line.get("step")
            joined = dict(line)
            known = {key: value for key, value in steps.get(step, {}).items() if value is not None}
            for key in update(joined, known):
                warn("mixed-metrics", f"{key} at step {step} differs between the sources; the first is used")
            steps[step] = joined
    return iter([steps[step] for step in sorted(steps, key=lambda step: (step is None, step or 0))])


def update(held: dict[str, Any], later: Mapping[str, Any]) -> list[str]:
    """Put `later` into `held`, objects inside them likewise; the keys whose known value changed."""
    changed = []
    for key, value in later.items():
        before = held.get(key)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            inner = dict(before)
            changed += [f"{key}.{name}" for name in update(inner, value)]
            held[key] = inner
        else:
            if before is not None and before != value:
                changed.append(key)
            held[key] = value
    return changed
