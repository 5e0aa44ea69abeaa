"""Figures of the training loop: what is drawn equals the estimates exactly, the sentence tells them, and no text is read as markup."""

from __future__ import annotations

import json
from typing import Any

import pytest
from token_runs import run_of, stepped_rows

from equipoise.base import Estimate
from equipoise.errors import UsageError
from equipoise.measures.table import measure_run
from equipoise.views import style
from equipoise.views.figure import Figure
from equipoise.views.plain_text import plotly_text, token_name, token_text
from equipoise.views.table import FIGURES, figure, find_figure

pytest.importorskip("plotly")

MINE = ("entropy_and_reward", "exchange", "forecast", "entropy_distribution", "positions", "forking_tokens", "mismatch")
HOSTILE = "<b>bold</b> <a href='javascript:alert(1)'>x</a> &lt;i&gt; $\\frac{1}{2}$ %{y}"


def number(name: str, value: float | None, low: float | None = None, high: float | None = None, **at: Any) -> Estimate:
    n = at.pop("n", 7)
    return Estimate(name, value, low, high, n, at, "by hand")


def drawn(plot: Any) -> list[dict[str, Any]]:
    """The traces as the page gets them."""
    traces: list[dict[str, Any]] = json.loads(plot.to_json())["data"]
    return traces


def floats(traces: list[dict[str, Any]]) -> set[float]:
    """Every number along the axes and in the cells."""
    found: set[float] = set()

    def walk(value: Any) -> None:
        if isinstance(value, list):
            for each in value:
                walk(each)
        elif isinstance(value, int | float):
            found.add(float(value))

    for trace in traces:
        for key in ("x", "y", "z"):
            walk(trace.get(key, []))
    return found


def curve(traces: list[dict[str, Any]], name: str, **with_: Any) -> dict[str, Any]:
    """The one trace of this name that can be hovered over."""
    (found,) = (
        t
        for t in traces
        if t.get("name") == name and t.get("hoverinfo") == "text" and all(t.get(k) == v for k, v in with_.items())
    )
    return found


def course() -> list[Estimate]:
    train = {"split": "train", "source": "rollouts"}
    return [
        number("entropy_at_step", 0.5123, 0.45, 0.6, step=0, **train),
        number("entropy_at_step_p5", 0.21, step=0, **train),
        number("entropy_at_step_p95", 0.91, step=0, **train),
        number("entropy_at_step", 0.2087, 0.15, 0.3, step=[10, 20], **train),
        number("entropy_at_step_p5", 0.11, step=[10, 20], **train),
        number("entropy_at_step_p95", 0.41, step=[10, 20], **train),
        number("reward_at_step", 0.3004, 0.2, 0.42, step=0, **train),
        number("reward_at_step", 0.3551, 0.25, 0.5, step=[10, 20], **train),
        number("setting_at_step", 0.001, step=0, setting="entropy_bonus.coef", source="log"),
        number("setting_at_step", 0.004, step=20, setting="entropy_bonus.coef", source="log"),
    ]


def exchange() -> dict[str, list[Estimate]]:
    log = {"source": "log"}
    points = [(0, 1.6543, 0.1021), (1, 1.4321, 0.3042), (2, 1.2109, 0.5063)]
    return {
        "exchange": [
            *(number("exchange_exp_entropy", x, step=s, n=1, **log) for s, x, _ in points),
            *(number("exchange_reward", y, step=s, n=1, **log) for s, _, y in points),
            number("exchange_fit", 0.7311, 0.61, 0.84, exp_entropy=1.0, n=30, **log),
            number("exchange_fit", 0.1234, 0.05, 0.21, exp_entropy=1.6543, n=30, **log),
            number("exchange_truth", 0.5063, n=3, **log),
            number("exchange_rival", 0.4711, share=0.5, model="line in H", n=15, **log),
        ],
        "law": [
            number("law_ceiling", 0.7311, 0.61, 0.84, n=30, **log),
            number("law_r2", 0.93, model="law", n=30, **log),
            number("law_r2", 0.95, model="line in H", n=30, **log),
            number("law_forecast", 0.4402, 0.31, 0.49, share=0.3, state="no fit", truth=0.5063, n=9, **log),
            number("law_forecast", 0.5501, 0.42, 0.66, share=0.5, state="fit", truth=0.5063, n=15, **log),
        ],
    }


def bins() -> list[Estimate]:
    shares = {0: (0.2, 0.5, 0.3), 9: (0.7, 0.25, 0.05)}
    edges = ((0.0, 0.001), (0.001, 0.1), (0.1, None))
    return [
        number("entropy_bin", v, v - 0.01, v + 0.02, step=s, **{"from": low, "to": high})
        for s, values in shares.items()
        for v, (low, high) in zip(values, edges, strict=True)
    ]


def forks() -> list[Estimate]:
    rows = [(0, "<b>x</b>", 1.21, 0.41, -0.92), (1, " the", 1.02, 0.22, -0.13), (2, 17, 0.54, 0.07, 0.04)]
    found = [
        number("fork_entropy_change_rel", -0.31, -0.4, -0.2, window="change"),
        number("routine_entropy_change_rel", 0.02, -0.05, 0.1, window="change"),
    ]
    for token, text, mean, share, change in rows:
        at = {"token": text, "id": token, "count": 120, "n": 120}
        found += [number("fork_token", mean, **at), number("fork_token_share", share, **at)]
        found.append(number("fork_token_change", change, window="change", **at))
    return found


def positions() -> list[Estimate]:
    values = {0: (0.9, 0.4), 5: (0.5, 0.35), 9: (0.3, 0.2)}
    return [
        number("entropy_at_position", v, v - 0.05, v + 0.05, step=s, position=p)
        for s, pair in values.items()
        for p, v in zip((0, 9), pair, strict=True)
    ]


def mismatch() -> list[Estimate]:
    at = {"source": "rollouts"}
    return [
        each
        for step, mean, most, tail in ((1, 0.0111, 0.71, 0.001), (2, 0.0252, 1.93, 0.032))
        for each in (
            number("mismatch_abs_at_step", mean, mean - 0.002, mean + 0.003, step=step, **at),
            number("mismatch_tail_at_step", tail, tail / 2, 2 * tail, step=step, **at),
            number("mismatch_max_at_step", most, step=step, **at),
        )
    ]


def numbers_of(name: str) -> dict[str, list[Estimate]]:
    return {
        "entropy_and_reward": {"course": course()},
        "exchange": exchange(),
        "forecast": exchange(),
        "entropy_distribution": {"distribution": bins(), "forks": forks()},
        "positions": {"positions": positions()},
        "forking_tokens": {"forks": forks()},
        "mismatch": {"mismatch_course": mismatch()},
    }[name]


# --- every figure -----------------------------------------------------------------------------------------------------------

# Told by the sentence only: in no trace.
SPOKEN = {"exchange_truth", "law_r2", "law_ceiling", "fork_entropy_change_rel", "routine_entropy_change_rel"}


@pytest.mark.parametrize("name", MINE)
def test_every_shown_number_is_drawn_exactly_and_no_other(name):
    found = find_figure(name)
    shown = found.shown(numbers_of(name))
    traces = drawn(found.draw(shown))
    values = {n.value for n in shown if n.name not in SPOKEN}
    bounds = {bound for n in shown for bound in (n.low, n.high) if bound is not None and n.name not in SPOKEN}
    assert values <= floats(traces)
    if name == "positions":  # a cell has no room for its interval: the hover text has it
        told = json.dumps([trace["hovertext"] for trace in traces])
        assert all(f"[{style.digits(n.low)}, {style.digits(n.high)}]" in told for n in shown)
    else:
        assert bounds <= floats(traces)
    for trace in traces:
        if trace["type"] == "scatter" and trace.get("fill") is None and trace.get("hoverinfo") == "text":
            assert {y for y in trace["y"] if y is not None} <= values


@pytest.mark.parametrize("name", MINE)
def test_a_missing_figure_names_what_would_supply_it(name):
    found = find_figure(name)
    assert not found.drawable({need: [] for need in found.needs})
    assert found.lacking({}) == found.supply
    told = {need: [Estimate("x", None, missing=f"the column of {need}")] for need in found.needs}
    assert found.lacking(told) == "; ".join(f"the column of {need}" for need in found.needs)
    with pytest.raises(UsageError, match=f"figure '{name}' has nothing to draw: the column of"):
        figure(name, told)
    with pytest.raises(UsageError, match=f"figure '{name}' needs the measures"):
        figure(name, {})


@pytest.mark.parametrize("name", MINE)
def test_the_seam_is_kept(name):
    found = find_figure(name)
    assert isinstance(found, Figure)
    assert found.name == name
    assert name in FIGURES
    sentence = found.reading(found.shown(numbers_of(name)))
    assert sentence.endswith(".")
    assert "\n" not in sentence
    plot = found.draw(found.shown(numbers_of(name)))
    assert plot.layout.paper_bgcolor == plot.layout.plot_bgcolor == "rgba(0, 0, 0, 0)"
    axes = [axis for axis in plot.layout if axis.startswith(("xaxis", "yaxis"))]
    assert all(plot.layout[axis].title.text for axis in axes)
    assert all(trace["hoverinfo"] == "skip" or trace["hovertext"] for trace in drawn(plot) if trace.get("x", [0]) != [])


def test_figures_stand_in_the_order_of_the_report():
    outcomes = ("passk", "transitions", "group_health", "diversity", "sweep", "votes", "calibration", "risk_coverage")
    order = (*MINE[:-1], *outcomes, "lengths", "mismatch")
    assert [name for name in FIGURES if name in order] == [name for name in order if name in FIGURES]


def test_an_unknown_figure_is_one_line():
    with pytest.raises(UsageError, match="there is no figure 'passkk': use one of entropy_and_reward"):
        find_figure("passkk")


def test_a_measured_run_draws_every_figure():
    rows = stepped_rows(5, steps=30, prompts=20, samples=1, length=12, fork=0.4, routine=0.5)
    rewards = [row | {"reward": (row["step"] + i % 7) / 40, "split": "train"} for i, row in enumerate(rows)]
    log = [{"step": s, "mismatch": 0.01, "coef": 0.1 * s} for s in range(30)]
    needs = sorted({need for name in MINE for need in find_figure(name).needs})
    measured = measure_run(needs, run_of(rewards, metrics=log, vocab={0: HOSTILE}))
    for name in MINE:
        found = find_figure(name)
        assert found.drawable(measured.estimates), name
        text = json.dumps(json.loads(figure(name, measured).to_json()), ensure_ascii=False)
        assert "<" not in text.replace("<extra>", "")
        assert found.reading(found.shown(measured.estimates))


# --- one by one -------------------------------------------------------------------------------------------------------------


def test_entropy_and_reward_over_steps():
    plot = figure("entropy_and_reward", numbers_of("entropy_and_reward"))
    traces = drawn(plot)
    entropy = curve(traces, "train", yaxis="y")
    assert (entropy["x"], entropy["y"]) == ([0, 15], [0.5123, 0.2087])  # a stretch stands at its middle
    assert entropy["hovertext"][1] == "train, step 10–20: 0.209 nats [0.150, 0.300], n = 7"
    assert curve(traces, "train", yaxis="y2")["y"] == [0.3004, 0.3551]
    assert curve(traces, "entropy_bonus.coef", yaxis="y3")["y"] == [0.001, 0.004]
    spread, interval = (t for t in traces if t.get("fill") == "toself" and t["yaxis"] == "y")
    assert (spread["x"], spread["y"]) == ([0, 15, 15, 0], [0.21, 0.11, 0.41, 0.91])
    assert spread["name"] == "train: 5–95 &#37; of problems"
    assert interval["y"] == [0.45, 0.15, 0.3, 0.6]
    assert [t["name"] for t in traces if t.get("showlegend") is not False].count("train") == 1
    assert find_figure("entropy_and_reward").reading(course()) == (
        "From step 0 to 10–20 (train): entropy fell from 0.512 to 0.209 nats per token, the mean reward rose from 0.300 to "
        "0.355 (their intervals overlap), entropy_bonus.coef rose from 0.001 to 0.004."
    )
    without = {"course": [n for n in course() if n.name != "setting_at_step"]}
    assert "yaxis3" not in json.loads(figure("entropy_and_reward", without).to_json())["layout"]


def test_single_points_are_left_out_where_there_are_curves():
    lone = number("entropy_at_step", 0.7, 0.6, 0.8, step=3, split="test", source="rollouts")
    found = find_figure("entropy_and_reward")
    assert lone not in found.shown({"course": [*course(), lone]})
    assert found.shown({"course": [lone]}) == [lone]
    assert found.reading([lone]) == "At step 3 (test): entropy was 0.700 nats per token."


def test_exchange_with_and_without_a_fit():
    numbers = numbers_of("exchange")
    plot = figure("exchange", numbers)
    run = curve(drawn(plot), "the run, step by step")
    assert (run["x"], run["y"]) == ([1.6543, 1.4321, 1.2109], [0.1021, 0.3042, 0.5063])
    assert run["hovertext"][2] == "step 2: exp(H) 1.21, reward 0.506"
    fit = curve(drawn(plot), "R = −a·exp(H) + b")
    assert (fit["x"], fit["y"]) == ([1.0, 1.6543], [0.7311, 0.1234])
    (ceiling,) = plot.layout.shapes
    assert ceiling.y0 == ceiling.y1 == 0.7311
    assert ceiling.label.text == "ceiling b − a: 0.731 [0.610, 0.840], n = 30"
    found = find_figure("exchange")
    assert found.reading(found.shown(numbers)) == (
        "The mean reward was 0.506 over the last tenth of the run; with all entropy spent the law puts it at "
        "0.731 [0.610, 0.840], n = 30 rows (R² 0.930; a straight line in H has 0.950) (trainer's log)."
    )
    refused = Estimate(
        "law_ceiling", None, at={"source": "log"}, missing="a run that the law fits: R² is 0.10, it needs 0.5"
    )
    points = [n for n in numbers["exchange"] if n.name != "exchange_fit"]
    unfitted = {"exchange": points, "law": [refused]}
    assert not figure("exchange", unfitted).layout.shapes
    assert found.reading(found.shown(unfitted)).endswith(
        "no ceiling is drawn, it needs a run that the law fits: R² is 0.10, it needs 0.5 (trainer's log)."
    )


def test_exchange_shows_one_arm_and_its_own_law():
    numbers = numbers_of("exchange")
    other = [
        number("exchange_exp_entropy", 1.9, step=0, source="rollouts"),
        number("exchange_reward", 0.9, step=0, source="rollouts"),
    ]
    stray = number("law_ceiling", 0.99, source="rollouts")
    shown = find_figure("exchange").shown({"exchange": [*other, *numbers["exchange"]], "law": [stray, *numbers["law"]]})
    assert not {1.9, 0.9, 0.99} & {n.value for n in shown}


def test_forecast_says_how_many_intervals_hold_what_came():
    plot = figure("forecast", numbers_of("forecast"))
    traces = drawn(plot)
    assert curve(traces, "the law")["y"] == [0.5501]
    assert curve(traces, "the law, where it would refuse to fit")["y"] == [0.4402]
    assert curve(traces, "line in H")["y"] == [0.4711]
    assert plot.layout.shapes[0].y0 == 0.5063
    found = find_figure("forecast")
    # 0.5063 is not in [0.31, 0.49] and is in [0.42, 0.66].
    assert found.reading(found.shown(numbers_of("forecast"))) == (
        "What came was 0.506; 1 of 2 forecasts with an interval hold it; "
        "from 50% of the run the law said 0.550 [0.420, 0.660], n = 15 rows (trainer's log)."
    )
    assert found.shown({"exchange": exchange()["exchange"], "law": []}) == []


def test_distribution_of_entropies():
    traces = drawn(figure("entropy_distribution", numbers_of("entropy_distribution")))
    first, last = (curve(traces, f"step {s}", type="scatter") for s in (0, 9))
    assert (first["y"], last["y"]) == ([0.5, 0.3], [0.25, 0.05])
    assert first["x"] == pytest.approx([0.01, 0.1 * 1.5**0.5])  # the middle of 0.001 to 0.1 on a log axis is 0.01
    assert [t["y"] for t in traces if t["type"] == "bar"] == [[0.2], [0.7]]
    assert first["hovertext"][0] == "step 0, 0.001 to 0.100 nats: 0.500 [0.490, 0.520], n = 7"
    found = find_figure("entropy_distribution")
    assert found.reading(found.shown(numbers_of("entropy_distribution"))) == (
        "From the first to the last steps the entropy of the forks, the top fifth, changed by -31% [-40%, -20%] and that of "
        "the other tokens by 2.0% [-5.0%, 10%]: the tail of forks shrank and the routine tokens did not clearly; "
        "70% of the tokens lie below 0.001 nats at step 9."
    )
    assert found.reading(bins()) == "70% of the tokens lie below 0.001 nats at step 9."


@pytest.mark.parametrize(
    ("fork", "routine", "verdict"),
    [
        ((-0.3, -0.4, -0.2), (-0.3, -0.4, -0.2), "both the forks and the routine tokens shrank"),
        ((-0.1, -0.3, 0.1), (-0.3, -0.4, -0.2), "the routine tokens sharpened and the forks did not clearly lose"),
        ((-0.1, -0.3, 0.1), (0.2, -0.1, 0.4), "neither clearly shrank"),
        ((-0.3, -0.4, -0.2), (-1.0, None, None), "both the forks and the routine tokens shrank"),  # all of it is gone
        ((-0.3, None, None), (-0.3, None, None), "neither clearly shrank"),  # no interval: nothing is clear
    ],
)
def test_distribution_tells_narrowing_from_collapse(fork, routine, verdict):
    changes = [number("fork_entropy_change_rel", *fork), number("routine_entropy_change_rel", *routine)]
    assert f": {verdict};" in find_figure("entropy_distribution").reading([*bins(), *changes])


def test_place_by_step():
    (heat,) = drawn(figure("positions", numbers_of("positions")))
    assert heat["y"] == ["0", "5", "9"]
    assert [row[0] for row in heat["z"]] == [0.9, 0.5, 0.3]
    assert [row[9] for row in heat["z"]] == [0.4, 0.35, 0.2]
    assert all(row[d] is None for row in heat["z"] for d in range(1, 9))
    assert heat["hovertext"][0][0] == "step 0, 0–10 &#37;: 0.900 nats [0.850, 0.950], n = 7"
    assert find_figure("positions").reading(positions()) == (
        "From step 0 to 9 entropy fell most at 0–10 % of the completion, from 0.900 to 0.300 nats, "
        "and fell least at 90–100 % of the completion, from 0.400 to 0.200 nats."
    )
    assert find_figure("positions").reading(positions()[:2]) == (
        "Entropy is highest at 0–10 % of the completion: 0.900 nats [0.850, 0.950], n = 7 problems."
    )


def test_forking_tokens_keep_their_rows_and_say_nothing_in_markup():
    plot = figure("forking_tokens", numbers_of("forking_tokens"))
    mean, share, change = drawn(plot)
    assert (mean["x"], mean["y"]) == ([1.21, 1.02, 0.54], [0, 1, 2])
    assert (share["x"], change["x"]) == ([0.41, 0.22, 0.07], [-0.92, -0.13, 0.04])
    assert list(plot.layout.yaxis.ticktext) == ["&lt;b&gt;x&lt;/b&gt;", "␣the", "id 17"]
    assert mean["hovertext"][0] == "&lt;b&gt;x&lt;/b&gt;: mean entropy (nats) 1.21, 120 tokens"
    found = find_figure("forking_tokens")
    assert found.reading(found.shown(numbers_of("forking_tokens"))) == (
        "The highest mean entropy, 1.21 nats over 120 tokens, is that of “<b>x</b>”, with 41% of all entropy; 2 of 3 of the "
        "tokens shown lost entropy since the first steps, “<b>x</b>” most (-0.920 nats)."
    )
    only = [n for n in forks() if n.name != "fork_token_change"]
    assert figure("forking_tokens", {"forks": only}).layout.xaxis3.title.text == "change (nats): one step only"


def test_mismatch_over_steps_and_as_logged():
    traces = drawn(figure("mismatch", numbers_of("mismatch")))
    assert curve(traces, "rollouts", yaxis="y")["y"] == [0.0111, 0.0252]
    assert curve(traces, "rollouts", yaxis="y2")["y"] == [0.71, 1.93]
    assert curve(traces, "rollouts", yaxis="y3")["y"] == [0.001, 0.032]
    found = find_figure("mismatch")
    assert found.reading(mismatch()) == (
        "At step 2 the log-probs differ by 0.025 nats a token on average and 1.93 at most; 3.2% of the tokens have a ratio "
        "past a factor of two; at step 1 the mean was 0.011."
    )
    logged = [number("mismatch_logged_at_step", v, step=s, source="log") for s, v in ((1, 3.1e-7), (8, 0.02))]
    assert found.reading(logged) == (
        "The trainer logged a mismatch of 3.1e-07 at step 1 and 0.020 at step 8; 0 is none."
    )
    assert drawn(figure("mismatch", {"mismatch_course": logged}))[0]["y"] == [3.1e-7, 0.02]


# --- text and style -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("<b>x</b>", "&lt;b&gt;x&lt;/b&gt;"),
        ('<a href="javascript:alert(1)">x</a>', '&lt;a href="javascript:alert(1)"&gt;x&lt;/a&gt;'),
        ("&lt;b&gt;", "&amp;lt;b&amp;gt;"),
        ("$\\alpha$ and $$", "&#36;\\alpha&#36; and &#36;&#36;"),
        ("%{x} 5%", "&#37;{x} 5&#37;"),
        ("a\nb\x1b[31mc\u202ed\u200b", "a bcd"),
        ("x" * 80, "x" * 59 + "…"),
    ],
)
def test_plotly_shows_text_literally(raw, shown):
    assert plotly_text(raw) == shown


def test_what_plotly_decodes_is_what_was_given():
    """Plotly turns entities back into characters after it has looked for tags (its `convertEntities`): as html.unescape does."""
    from html import unescape

    for text in (HOSTILE, "a & b", "&#60;b&#62;", "100 % of <k>"):
        assert unescape(plotly_text(text, limit=200)) == text
        assert not set("<>$%") & set(plotly_text(text, limit=200))


def test_tokens_that_show_nothing_are_told():
    assert [token_name(t) for t in (" the", "\n\n", "\t", "", "\u200b", 5)] == [
        "␣the",
        "↵↵",
        "⇥",
        "(empty)",
        "U+200B",
        "id 5",
    ]
    assert token_text("<br>") == "&lt;br&gt;"
    assert len(token_name("x" * 1_000_000)) <= 24


@pytest.mark.parametrize("name", ["entropy_and_reward", "mismatch", "entropy_distribution", "forecast"])
def test_names_of_arms_settings_and_models_are_escaped(name):
    def dirty(each: Estimate) -> Estimate:
        at = dict(each.at) | {"run_id": HOSTILE}
        at |= {key: HOSTILE for key in ("setting", "model") if key in at}
        return Estimate(each.name, each.value, each.low, each.high, each.n, at, each.how)

    numbers = {measure: [dirty(n) for n in held] for measure, held in numbers_of(name).items()}
    text = json.dumps(json.loads(figure(name, numbers).to_json()), ensure_ascii=False)
    assert not set("<$") & set(text)
    assert "%{" not in text


def test_a_band_has_pieces_where_a_bound_is_unknown():
    trace = style.band([0, 1, 2, 3, 4], [1, 2, None, 4, 5], [9, 8, None, 6, None], colour=style.BLUE)
    assert trace["x"] == [0, 1, 1, 0, None, 3, 3]
    assert trace["y"] == [1, 2, 8, 9, None, 4, 6]


def test_strokes_keep_their_own_bounds():
    trace = style.whiskers([0, 1], [0.1, None], [0.3, 0.4], colour=style.BLUE)
    assert (trace["x"], trace["y"]) == ([0, 0, None], [0.1, 0.3, None])
    along = style.whiskers([0], [0.1], [0.3], colour=style.BLUE, upright=False)
    assert (along["x"], along["y"]) == ([0.1, 0.3, None], [0, 0, None])


def contrast(one: str, other: str) -> float:
    """WCAG 2.2's ratio of two colours."""

    def light(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((light(one), light(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("page", ["#ffffff", "#14171c"])
def test_the_first_colours_and_the_ink_can_be_seen_on_a_light_and_a_dark_page(page):
    assert min(contrast(look.colour, page) for look in (*style.SERIES[:4], *style.LOOKS.values())) >= 2.95
    assert contrast(style.INK, page) >= 3.8


def test_no_two_arms_look_alike():
    looks = [style.series(i) for i in range(24)]
    assert len(set(looks)) == 24
    assert len({(look.dash, look.symbol) for look in looks[:6]}) == 6


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (float("nan"), "–"), (0.0, "0.000"), (0.01234, "0.012"), (0.000977, "0.00098"), (1.234, "1.23"),
     (45.67, "45.7"), (12345.0, "12,345"), (3.1e-7, "3.1e-07"), (-0.5, "-0.500"), (2e7, "2e+07")],
)  # fmt: skip
def test_digits(value, text):
    assert style.digits(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "–"), (0.0, "0%"), (0.4167, "42%"), (0.0312, "3.1%"), (1e-4, "<0.1%"), (-0.31, "-31%")]
)
def test_percent(value, text):
    assert style.percent(value) == text
