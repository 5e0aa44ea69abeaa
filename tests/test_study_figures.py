"""Figures of a study: whatever is drawn is read back from the pixels and the ticks, and is the number that went in."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from equipoise.lab.study_figures import draw_entropy, draw_frontier, find_far
from equipoise.lab.svg import COLOURS, Plot, Style, style_of, ticks

RED = Style("#ff0000")
NS = "{http://www.w3.org/2000/svg}"


class Drawn:
    """An SVG as a reader has it: marks by colour, in the units that the tick labels give the axes."""

    def __init__(self, text: str) -> None:
        self.root = ElementTree.fromstring(text)
        texts = [
            node
            for node in self.root.iter(f"{NS}text")
            if node.get("fill") == "#444444" and "stroke" not in node.attrib
        ]
        self.x = self._scale([(float(n.get("x")), float(n.text)) for n in texts if n.get("text-anchor") == "middle"])
        self.y = self._scale([(float(n.get("y")) - 4, float(n.text)) for n in texts if n.get("text-anchor") == "end"])

    @staticmethod
    def _scale(pairs: list[tuple[float, float]]):
        (a, low), (b, high) = pairs[0], pairs[-1]
        return lambda pixel: low + (pixel - a) / (b - a) * (high - low)

    def texts(self) -> list[str]:
        return [node.text for node in self.root.iter(f"{NS}text")]

    def paths(self, **wanted: str) -> list[list[tuple[float, float]]]:
        """Curves and outlines inside the plot, in data units."""
        found = []
        for node in self.root.iter(f"{NS}path"):
            if all(node.get(key.replace("_", "-")) == value for key, value in wanted.items()) and "L" in node.get("d"):
                pairs = [pair.split() for pair in node.get("d").strip("MZ").split("L")]
                found.append([(self.x(float(x)), self.y(float(y))) for x, y in pairs])
        return found

    def circles(self, colour: str) -> list[tuple[float, float]]:
        nodes = [n for n in self.root.iter(f"{NS}circle") if n.get("fill") == colour and float(n.get("cx")) < 620]
        return [(self.x(float(n.get("cx"))), self.y(float(n.get("cy")))) for n in nodes]

    def bars(self, colour: str) -> tuple[list[float], list[float]]:
        """Ends of the horizontal and the vertical error bar."""
        lines = [
            n.get("d") for n in self.root.iter(f"{NS}path") if n.get("stroke") == colour and n.get("stroke-opacity")
        ]
        (flat,) = [re.fullmatch(r"M(\S+) \S+H(\S+)", d) for d in lines if "H" in d]
        (tall,) = [re.fullmatch(r"M\S+ (\S+)V(\S+)", d) for d in lines if "V" in d]
        return [self.x(float(v)) for v in flat.groups()], [self.y(float(v)) for v in tall.groups()]


def near(points):
    return [pytest.approx(point, abs=2e-3) for point in points]


# --- the writer


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 100, [0, 20, 40, 60, 80, 100]),  # 16.7 a step: 20 gives 5 of them, 10 gives 10
        (0.12, 0.38, [0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4]),
        (-3, 4, [-3, -2, -1, 0, 1, 2, 3, 4]),
        (0.3, 0.3, [0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45]),
        (0, 0, [-0.6, -0.4, -0.2, 0, 0.2, 0.4, 0.6]),
    ],
)
def test_ticks_are_round_numbers_around_the_data(low, high, expected):
    assert ticks(low, high) == pytest.approx(expected)


def test_points_stand_where_their_numbers_say():
    # The plot is 620 by 420 with margins 64, 16, 40 and 52: x runs from 64 to 604, y from 368 up to 40.
    plot = Plot("title", "x", "y")
    plot.curve([(0, 0), (5, 50), (10, 100)], RED)
    assert 'd="M64.0 368.0L334.0 204.0L604.0 40.0"' in plot.draw()


def test_an_axis_can_start_at_a_value_of_its_own():
    for y_from, first in ((None, "30"), (0.0, "0")):
        plot = Plot("title", "x", "y", y_from=y_from)
        plot.curve([(0, 30), (10, 90)], RED)
        labels = [
            n.text for n in ElementTree.fromstring(plot.draw()).iter(f"{NS}text") if n.get("text-anchor") == "end"
        ]
        assert labels[0] == first


def test_text_is_escaped_and_what_xml_cannot_hold_is_replaced():
    bad = '</text><script>alert(1)</script>&\x00\ud800"'
    plot = Plot(bad, bad, bad)
    plot.point((1, 2), RED, label=bad, note=bad)
    root = ElementTree.fromstring(plot.draw().encode())  # a lone surrogate could not be encoded
    assert {node.tag.removeprefix(NS) for node in root.iter()} <= {"svg", "title", "rect", "text", "path", "circle"}
    told = '</text><script>alert(1)</script>&\ufffd\ufffd"'
    assert [node.text for node in root.iter()].count(told) == 6  # title twice, both axes, note, legend


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(ValueError, match="cannot show nan or infinity"):
        Plot("t", "x", "y").point((1, 2), RED, y_interval=(0, value))


def test_styles_of_many_arms_differ():
    assert len({(style_of(n).colour, style_of(n).shape) for n in range(28)}) == 28
    assert len({(style_of(n).colour, style_of(n).dash) for n in range(21)}) == 21


# --- the figures


def number(value: float, half: float | None = None) -> dict:
    return {
        "value": value,
        "low": None if half is None else value - half,
        "high": None if half is None else value + half,
    }


def row(arm: str, *points: tuple[float, float, float], half: float | None = 0.02) -> dict:
    told = [{"temperature": t, "pass@1": number(x, half), "pass@8": number(y, half and 2 * half)} for t, x, y in points]
    return {"arm": arm, "points": told}


BASE = row("base", (0.5, 0.30, 0.60), (1.0, 0.20, 0.80), (1.6, 0.10, 0.70))
RESULTS = {
    "k_max": 8,
    "headline": 1.0,
    "frontier": [
        BASE,
        row("grpo", (0.5, 0.9, 0.9), (1.0, 0.35, 0.50), (1.6, 0.9, 0.9)),
        row("kl", (0.5, 0.9, 0.9), (1.0, 0.25, 0.75), (1.6, 0.9, 0.9), half=None),
    ],
}


def test_the_frontier_has_the_base_curve_and_every_arm_at_the_headline_temperature():
    drawn = Drawn(draw_frontier(RESULTS))
    (curve,) = drawn.paths(stroke="#777777")
    assert curve == near([(0.30, 0.60), (0.20, 0.80), (0.10, 0.70)])
    assert drawn.circles("#777777") == curve
    assert drawn.circles(COLOURS[0]) == near([(0.35, 0.50)])
    flat, tall = drawn.bars(COLOURS[0])
    assert flat == pytest.approx([0.33, 0.37], abs=2e-3)
    assert tall == pytest.approx([0.46, 0.54], abs=2e-3)
    (square,) = [path for path in drawn.paths(fill=COLOURS[1]) if path[0][0] < 0.4]  # the other is the legend's
    assert [sum(axis) / 4 for axis in zip(*square, strict=True)] == pytest.approx([0.25, 0.75], abs=2e-3)
    assert f'stroke="{COLOURS[1]}" stroke-opacity' not in draw_frontier(RESULTS)  # no interval, no bar
    assert {"pass@1", "pass@8", "T = 0.5", "T = 1", "T = 1.6", "grpo", "kl"} <= set(drawn.texts())


CROWD = {f"arm{n}": (0.20 + 0.01 * n, 0.50 + 0.02 * n) for n in range(8)}  # up to (0.27, 0.64)


def test_few_arms_beyond_a_wide_gap_are_far_and_many_are_not():
    base = [(0.10, 0.70), (0.30, 0.60)]
    lost = {"lost": (0.15, 0.05)}  # 0.05 to 0.50 is a gap of 0.45 in 0.65
    assert find_far(CROWD | lost, base) == {"lost"}
    assert find_far(CROWD | {"lost": (0.15, 0.40)}, base) == set()  # 0.10 in 0.30
    assert find_far({"arm0": (0.2, 0.5), **lost}, base) == set()  # one of two is no exception
    assert find_far(CROWD | lost | {"other": (0.15, 0.06)}, base) == set()  # two of ten are more than an eighth
    assert find_far(CROWD | lost, [*base, (0.15, 0.05)]) == set()  # where the base model is, the axes go
    assert find_far(CROWD | {"lucky": (0.90, 0.55)}, base) == {"lucky"}  # 0.30 to 0.90 on the other axis
    twice = {f"arm{n}": (0.2, 0.50 + 0.01 * n) for n in range(16)}
    assert find_far(twice | {"lost": (0.2, 0.05), "lower": (0.2, -9.0)}, base) == {
        "lost",
        "lower",
    }  # one gap behind another
    assert find_far({}, base[:1]) == set()


def test_an_arm_far_from_all_others_stands_at_the_margin_with_its_numbers():
    crowd = [row(arm, (1.0, *at), half=0.01) for arm, at in CROWD.items()]
    lost = {"arm": "lost", "points": [{"temperature": 1.0, "pass@1": number(0.15, 0.02), "pass@8": number(0.05)}]}
    text = draw_frontier({**RESULTS, "frontier": [BASE, *crowd, lost]})
    drawn = Drawn(text)
    ticks_y = [
        n.text for n in drawn.root.iter(f"{NS}text") if n.get("text-anchor") == "end" and "stroke" not in n.attrib
    ]
    assert min(map(float, ticks_y)) == pytest.approx(0.45)  # 0.48 is the lowest end of a bar
    assert {"lost: pass@1 0.150 [0.130, 0.170]", "pass@8 0.050", "lost"} <= set(drawn.texts())
    style = style_of(8)
    marks = [path for path in drawn.root.iter(f"{NS}path") if path.get("stroke") == style.colour]
    (arrow,) = [path.get("d") for path in marks if not path.get("stroke-opacity")]
    # It stands 20 pixels above the bottom, at its own pass@1, and points straight down for 17 of them.
    x, y, tip_x, tip_y = map(float, re.match(r"M(\S+) (\S+)L(\S+) (\S+)M", arrow).groups())
    assert (x, y, tip_y - y) == (tip_x, 420 - 52 - 20, pytest.approx(17))
    assert drawn.x(x) == pytest.approx(0.15, abs=2e-3)
    kept = draw_frontier({**RESULTS, "frontier": [BASE, *crowd, lost], "plain": "lost"})
    assert "lost: pass@1" not in kept  # what the others are held against is on the axes


def test_notes_of_points_outside_do_not_cover_each_other_nor_leave_the_plot():
    plot = Plot("title", "x", "y")
    plot.curve([(0, 0), (10, 100)], RED)
    plot.outside((20, 200), RED, ["a", "b"], label="far")
    plot.outside((20, 210), RED, ["c", "d"])
    plot.outside((5, 50), RED, ["inside"])
    root = ElementTree.fromstring(plot.draw())
    at = {n.text: (n.get("text-anchor"), float(n.get("x")), float(n.get("y"))) for n in root.iter(f"{NS}text")}
    # The upper right corner is (604, 40): points are 20 from it, notes 12 to their left and 14 apart.
    assert [at[note] for note in "abcd"] == [("end", 572.0, 64.0 + 14 * line) for line in range(4)]
    assert plot.draw().count('fill="none" stroke="#ff0000" stroke-width="1.6"/>') == 2  # what lies inside has no arrow
    with pytest.raises(ValueError, match="cannot show nan"):
        plot.outside((math.nan, 0), RED, [])


def log(*entropies: float | None) -> list[dict]:
    return [{"step": step, "entropy": value} for step, value in enumerate(entropies, start=1)]


def test_entropy_is_the_mean_over_seeds_in_a_band_from_the_lowest_to_the_highest():
    logs = {
        ("grpo", 0): log(0.8, 0.6, 0.2, 0.1),
        ("grpo", 1): log(0.8, 0.4, 0.4, 0.1),
        ("kl", 0): log(0.8, None, 0.7, 0.6),
    }
    drawn = Drawn(draw_entropy(RESULTS, logs))
    (mean,) = drawn.paths(stroke=COLOURS[0])
    assert mean == near([(1, 0.8), (2, 0.5), (3, 0.3), (4, 0.1)])
    (band,) = drawn.paths(fill=COLOURS[0])
    assert band == near([(1, 0.8), (2, 0.4), (3, 0.2), (4, 0.1), (4, 0.1), (3, 0.4), (2, 0.6), (1, 0.8)])
    (other,) = drawn.paths(stroke=COLOURS[1])
    assert other == near([(1, 0.8), (3, 0.7), (4, 0.6)])  # what was not measured is no 0
    assert drawn.paths(fill=COLOURS[1]) == []  # one seed has no band
    assert min(tick for tick in map(float, [t for t in drawn.texts() if re.fullmatch(r"[\d.]+", t)])) == 0


def test_without_a_training_step_there_is_no_entropy_figure():
    assert draw_entropy(RESULTS, {("grpo", 0): [], ("kl", 0): []}) is None
    (once,) = Drawn(draw_entropy(RESULTS, {("grpo", 0): log(0.5)})).paths(stroke=COLOURS[0])
    assert once == near([(1, 0.5), (1, 0.5)])
