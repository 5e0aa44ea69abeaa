"""All figures, in the order of the report, and the one function that draws any of them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from equipoise.errors import UsageError
from equipoise.views.figure import Figure, Numbers

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as Plot

    from equipoise.measures.table import Measured

# By file under views/figures: only what is drawn is imported.
FIGURES: tuple[str, ...] = (
    "entropy_and_reward",
    "exchange",
    "forecast",
    "entropy_distribution",
    "positions",
    "forking_tokens",
    "passk",
    "transitions",
    "group_health",
    "diversity",
    "sweep",
    "votes",
    "calibration",
    "risk_coverage",
    "lengths",
    "mismatch",
)
STUDY_FIGURES = ("frontier", "paired_arms")  # of a study's results, see `study_numbers.read_study`


def find_figure(name: str) -> Figure:
    names = (*FIGURES, *STUDY_FIGURES)
    if name not in names:
        raise UsageError(f"there is no figure '{name}': use one of {', '.join(names)}")
    found: Figure = import_module(f"equipoise.views.figures.{name}").FIGURE
    return found


def figure(name: str, measured: Measured | Numbers) -> Plot:
    """A Plotly figure of what was measured; what it needs and lacks is an error that names it."""
    wanted = find_figure(name)
    numbers = measured if isinstance(measured, Mapping) else measured.estimates
    absent = [need for need in wanted.needs if need not in numbers]
    if absent:
        raise UsageError(f"figure '{name}' needs the measures {', '.join(wanted.needs)}, found no {', '.join(absent)}")
    if not wanted.drawable(numbers):
        raise UsageError(f"figure '{name}' has nothing to draw: {wanted.lacking(numbers)}")
    return wanted.draw(wanted.shown(numbers))
