"""How long a run will still take, by the step times in its log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from equipoise.base import Estimate
from equipoise.text.display import many

RECENT = 20  # steps whose times are averaged
# One key holds a step's whole time; or ours, which tell its parts.
WHOLE = (
    "step_time",
    "train/step_time",
    "timing_s/step",
    "timing/train/total_step_time",
    "time/total",
    "perf/time_per_step",
)
PARTS = "seconds/"
SUPPLY = "a time for every step in the log (seconds/…, step_time or timing_s/step) and the planned number of steps in run.json"


def estimate_time_left(steps: Sequence[Mapping[str, float]], *, last: int | None, planned: int | None) -> Estimate:
    """Seconds left: mean logged time of the last steps × steps to go.

    `steps` are the logged numbers of the latest steps. No interval: lengths drift as a policy learns, and the times with them.
    """
    times = [seconds for step in steps[-RECENT:] if (seconds := _seconds(step)) is not None]
    if last is None or planned is None or not times:
        return Estimate("seconds_left", None, missing=SUPPLY)
    value = sum(times) / len(times) * max(0, planned - last)
    how = f"mean of the last {many(len(times), 'logged step time')} × {many(max(0, planned - last), 'step')}; no interval: step times drift"
    return Estimate("seconds_left", value, n=len(times), at={"step": last, "planned": planned}, how=how)


def _seconds(step: Mapping[str, float]) -> float | None:
    for key in WHOLE:
        if key in step:
            return step[key]
    parts = [value for key, value in step.items() if key.startswith(PARTS)]
    return sum(parts) if parts else None
