"""What a figure is: a question, the measures that answer it, a drawing of their estimates and a sentence that reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from equipoise.base import Estimate

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as Plot

Numbers = Mapping[str, Sequence[Estimate]]  # by measure, as `Measured.estimates`


@dataclass(frozen=True, slots=True)
class Figure:
    """`shown` picks, in the order of the drawing, the estimates that `draw` shows and `reading` tells: all its numbers and no other.

    A figure without any shown value is not drawn: the report says instead what would supply it (`lacking`).
    """

    name: str  # as in `equipoise.figure("passk", …)`
    title: str
    question: str  # what it answers, for a person
    needs: tuple[str, ...]  # measures
    shown: Callable[[Numbers], list[Estimate]]
    draw: Callable[[Sequence[Estimate]], Plot]
    reading: Callable[[Sequence[Estimate]], str]  # one sentence
    supply: str  # what to record or pass where nothing is shown and no estimate says it

    def drawable(self, numbers: Numbers) -> bool:
        return any(number.value is not None for number in self.shown(numbers))

    def lacking(self, numbers: Numbers) -> str:
        """What would supply the data, in the measures' own words where they say so."""
        told = [n.missing for name in self.needs for n in numbers.get(name, ()) if n.missing]
        return "; ".join(dict.fromkeys(told)) or self.supply
