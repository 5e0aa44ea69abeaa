"""The report without a browser: its structure, that no text gets out, and that its numbers are the measures' own."""

from __future__ import annotations

import base64
import builtins
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hostile import PAYLOADS, hostile_run
from making import run_of

pytest.importorskip("plotly", reason="needs the extra report: pip install 'equipoise[report]'")

import equipoise as eq
from equipoise.errors import UsageError
from equipoise.measures.evidence import Options, collect
from equipoise.rollouts.run import Run, RunInfo
from equipoise.views.page import plotly_script
from equipoise.views.report import Report, report
from equipoise.views.table import FIGURES, find_figure

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "src" / "equipoise" / "lab" / "examples"
ASSETS = ROOT / "src" / "equipoise" / "views" / "assets"


class Parsed(HTMLParser):
    """Tags with attributes, and the text of every script."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.texts: list[str] = []
        self._script: tuple[dict[str, str | None], list[str]] | None = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self._script = (dict(attrs), [])

    def handle_endtag(self, tag):
        if tag == "script" and self._script is not None:
            self.scripts.append((self._script[0], "".join(self._script[1])))
            self._script = None

    def handle_data(self, data):
        (self.texts if self._script is None else self._script[1]).append(data)

    def data(self, name: str):
        return next(json.loads(text) for attributes, text in self.scripts if attributes.get("id") == name)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Report, Path]:
    page = tmp_path_factory.mktemp("report") / "report.html"
    return report(EXAMPLES / "both.parquet", EXAMPLES / "base.parquet", page), page


@pytest.fixture(scope="module")
def parsed(made) -> Parsed:
    return Parsed(made[1].read_text("utf-8"))


@pytest.fixture(scope="module")
def twin(made) -> dict:
    return json.loads(made[1].with_suffix(".json").read_text("utf-8"))


# --- structure


def test_the_policy_names_every_script_that_runs_and_allows_nothing_else(parsed) -> None:
    (policy,) = [a["content"] for tag, a in parsed.tags if a.get("http-equiv") == "Content-Security-Policy"]
    rules = {rule.split()[0]: rule.split()[1:] for rule in policy.split(";")}
    assert rules["default-src"] == ["'none'"]
    assert set(rules) == {"default-src", "script-src", "style-src", "img-src", "base-uri", "form-action"}
    run = [text for attributes, text in parsed.scripts if "type" not in attributes]
    run += [text for attributes, text in parsed.scripts if attributes.get("id") == "plotly"]
    assert len(run) == 3
    hashes = [f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in run]
    assert sorted(rules["script-src"]) == sorted(hashes)


def test_nothing_is_loaded_and_no_attribute_runs(parsed) -> None:
    for tag, attributes in parsed.tags:
        assert not [name for name in attributes if name.startswith("on")], tag
        assert "src" not in attributes
        assert tag not in ("iframe", "object", "embed", "form", "base", "img")
        if "href" in attributes:
            assert attributes["href"].startswith(("#", "data:,"))


def test_the_card_comes_before_figures_and_data(made, parsed) -> None:
    text = made[1].read_text("utf-8")
    assert text.index('class="verdict') < text.index("<figure") < text.index('id="report"') < text.index('id="plotly"')
    assert len(re.findall(r"<h1>", text)) == 1
    ids = [a["id"] for _, a in parsed.tags if "id" in a]
    assert len(ids) == len(set(ids))


def test_every_figure_is_drawn_or_says_what_would_supply_it(parsed, twin) -> None:
    (run,) = twin["runs"]
    assert [figure["name"] for figure in run["figures"]] == list(FIGURES)
    drawn = {a["data-figure"] for tag, a in parsed.tags if tag == "figure"}
    text = " ".join(" ".join(parsed.texts).split())
    for figure in run["figures"]:
        assert (figure["name"] in drawn) == (figure["missing"] is None) == bool(figure["estimates"])
        assert figure["title"] in text
        assert figure["question"] in text
        assert " ".join((figure["reading"] or figure["missing"]).split())[:200] in text
        assert bool(figure["how"]) == bool(figure["estimates"])
    assert len(drawn) >= 12


def test_scripts_are_small_write_text_only_and_evaluate_nothing() -> None:
    size = 0
    for path in ASSETS.glob("r*.js"):
        text = path.read_text("utf-8")
        size += len(text)
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "srcdoc", "fetch(", "XMLHttpRequest", "localStorage", "</script", "<!--"):  # fmt: skip
            assert word not in text, (path.name, word)
    assert size < 60_000


def luminance(colour: str) -> float:
    digits = colour.lstrip("#")
    digits = "".join(2 * d for d in digits) if len(digits) == 3 else digits
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_text_has_a_contrast_of_four_and_a_half_on_all_colours_light_and_dark() -> None:
    text = (ASSETS / "report.css").read_text("utf-8")
    blocks = [dict(re.findall(r"--(\w+): (#\w+)", block)) for block in re.findall(r":root[^{]*\{([^}]*)\}", text)]
    light, dark, preferred = blocks
    assert dark == preferred
    for theme in (light, dark):
        for bucket in range(16):
            assert contrast(theme[f"h{bucket}"], theme[f"i{bucket}"]) >= 4.5
        for ink in ("ink", "soft", "link", "failing", "watch", "ok"):
            for ground in ("page", "card", "wash"):
                assert contrast(theme[ink], theme[ground]) >= 4.5, (ink, ground)
        # From low to high entropy the colours go one way in lightness, so that no eye confuses two ends.
        steps = np.diff([luminance(theme[f"h{bucket}"]) for bucket in range(16)])
        assert (steps < 0).all() or (steps > 0).all()


# --- numbers


def test_the_data_in_the_page_is_its_twin(parsed, twin) -> None:
    held = parsed.data("report")
    for run in twin["runs"]:
        run = {name: value for name, value in run.items() if name != "rollouts"}
        assert run in held["runs"]
    rows = twin["runs"][0]["rollouts"]["rows"]
    packed = parsed.data("rollouts-run-0")
    for row, told in zip(rows, packed["rows"], strict=True):
        for name, value in row.items():
            if name == "prompt":
                assert value == (None if "prompt" not in told else packed["prompts"][told["prompt"]])
            elif name in ("ids", "entropies", "logprobs") and value is not None:
                back = np.frombuffer(base64.b64decode(told[name]["data"]), dtype=f"<{told[name]['kind']}")
                assert back.tolist() == value
            else:
                assert told.get(name) == value


def test_numbers_are_those_of_the_measures(twin) -> None:
    needs = list(dict.fromkeys(need for name in FIGURES for need in find_figure(name).needs))
    measured = eq.measure(EXAMPLES / "both.parquet", needs, baseline=EXAMPLES / "base.parquet")
    known = {}
    for numbers in measured.estimates.values():
        for number in numbers:
            known[number.name, json.dumps(number.to_dict()["at"], sort_keys=True)] = number
    compared = 0
    for figure in twin["runs"][0]["figures"]:
        for told in figure["estimates"]:
            number = known[told["name"], json.dumps(told["at"], sort_keys=True)]
            for key in ("value", "low", "high", "n"):
                expected = getattr(number, key)
                assert told[key] == (expected if expected is None else pytest.approx(expected, rel=1e-9, abs=1e-9))
                compared += 1
    assert compared > 1000


def test_the_verdict_is_the_one_that_diagnose_gives_and_the_card_holds_its_exact_numbers(parsed, twin) -> None:
    diagnosis = eq.diagnose(EXAMPLES / "both.parquet", baseline=EXAMPLES / "base.parquet").to_dict()
    told = twin["runs"][0]["diagnosis"]
    assert told == json.loads(json.dumps(diagnosis))
    by_name = {}
    for finding in told["findings"]:
        by_name.setdefault(finding["name"], []).append(finding)
    shown = [a for tag, a in parsed.tags if tag == "li" and "data-name" in a]
    assert len(shown) >= 6
    for attributes in shown:
        held = {key: attributes.get(f"data-{key}") for key in ("value", "low", "high", "n")}
        numbers = {key: None if value is None else float(value) for key, value in held.items()}
        assert numbers in [{key: f[key] for key in numbers} for f in by_name[attributes["data-name"]]]
    assert f'value="{told["confidence"]!r}"' in "".join(
        f'value="{a["value"]}"' for tag, a in parsed.tags if tag == "data"
    )


def test_what_is_plotted_comes_from_the_estimates(parsed, twin) -> None:
    """A curve's numbers along one axis are all those of estimates of that figure: only places and guides may be others."""
    plots = parsed.data("plots-run-0")
    for figure in twin["runs"][0]["figures"]:
        if figure["missing"] is not None:
            assert figure["name"] not in plots
            continue
        values = np.array(
            [n[key] for n in figure["estimates"] for key in ("value", "low", "high") if n[key] is not None]
        )
        curves = [t for t in plots[figure["name"]]["data"] if t.get("hovertext") and t["type"] == "scatter"]
        for curve in curves:
            axes = [[n for n in curve[axis] if n is not None] for axis in "xy"]
            numbers = [axis for axis in axes if all(isinstance(n, int | float) for n in axis)]
            known = [all(np.isclose(values, n, rtol=1e-9, atol=1e-9).any() for n in axis) for axis in numbers]
            assert any(known), (figure["name"], curve["name"])


def test_two_reports_of_one_run_are_the_same_bytes(made, tmp_path) -> None:
    again = tmp_path / "again.html"
    report(EXAMPLES / "both.parquet", EXAMPLES / "base.parquet", again)
    assert again.read_bytes() == made[1].read_bytes()


# --- texts that want to get out


def test_no_payload_becomes_markup(tmp_path) -> None:
    page = tmp_path / "report.html"
    report(hostile_run(tmp_path / "run <svg onload=alert(1)>"), out=page, shown=500)
    parsed = Parsed(page.read_text("utf-8"))
    tame = Parsed(report(EXAMPLES / "healthy.parquet").to_html())
    assert {tag for tag, _ in parsed.tags} <= {tag for tag, _ in tame.tags} | {"pre", "code"}
    assert len([1 for a, _ in parsed.scripts if "type" not in a]) == 2
    for _, attributes in parsed.tags:
        assert not [name for name in attributes if name.startswith("on")]
    rows = parsed.data("rollouts-run-0")
    held = {rows["prompts"][row["prompt"]] for row in rows["rows"]}
    assert held == {payload.encode("utf-8", "replace").decode() for payload in PAYLOADS}
    assert set(parsed.data("report")["runs"][0]["diagnosis"]) >= {"verdict", "findings"}


def test_a_notebook_gets_a_sandboxed_frame_with_the_whole_page() -> None:
    made = report(run_of([{"prompt_id": "p", "correct": True, "answer": "1"}]))
    (frame,) = Parsed(made._repr_html_()).tags
    assert frame[0] == "iframe"
    assert frame[1]["sandbox"] == "allow-scripts allow-downloads"
    assert frame[1]["srcdoc"] == made.to_html()


# --- runs of all kinds


TOKENS = {"token_ids": [1, 2, 3], "entropies": [0.1, 1.0, 0.0], "logprobs_rollout": [-0.1, -1.0, -0.2]}


def thin(prompts: int = 1, samples: int = 1, steps=(None,), **cells):
    return [
        {"prompt_id": f"p{p}", "group_id": f"p{p}", "sample_index": s, "step": step}
        | {name: cell(p, s) if callable(cell) else cell for name, cell in cells.items()}
        for step in steps
        for p in range(prompts)
        for s in range(samples)
    ]


MIXED = {"correct": lambda p, s: (p + s) % 2 == 0, "answer": lambda p, s: str(s % 3), "reward": lambda p, s: 1.0 * s}
THIN = {
    "one rollout": thin(correct=True, answer="1"),
    "one reward": thin(reward=0.3),
    "one text": thin(completion="hello"),
    "tokens alone": thin(3, 2, (0, 1), **TOKENS),
    "two steps": thin(1, 1, (0, 1), correct=True, reward=1.0),
    "all right": thin(4, 4, (0, 1, 2), correct=True, answer="1", reward=1.0, **TOKENS),
    "all wrong": thin(4, 4, (0, 1, 2), correct=False, answer="1", reward=0.0, **TOKENS),
    "no answers": thin(4, 4, (0, 1), correct=False, reward=0.0),
    "no entropy": thin(3, 3, (0, 1), correct=True, token_ids=[1, 2], entropies=[0.0, 0.0]),
    "mixed": thin(4, 4, (0, 1), **MIXED, confidence=lambda p, s: s / 4, n_tokens=lambda p, s: 5 + s, **TOKENS),
    "two budgets": thin(3, 2, **MIXED, budget=lambda p, s: 100 * (s + 1)),
    "four budgets": [row for budget in (1, 2, 3, 4) for row in thin(3, 3, **MIXED, budget=budget)],
    "temperatures": [row for t in (0.5, 1.0, 1.5) for row in thin(3, 3, **MIXED, temperature=t)],
}


@pytest.mark.parametrize("name", THIN)
@pytest.mark.parametrize("baseline", [None, "mixed", "one rollout"])
def test_a_thin_run_gets_its_page(name: str, baseline: str | None) -> None:
    made = report(run_of(THIN[name]), None if baseline is None else run_of(THIN[baseline]))
    (run,) = made.runs
    assert [drawn.figure.name for drawn in run.figures] == list(FIGURES)
    assert all(bool(drawn.reading) != bool(drawn.missing) for drawn in run.figures)
    assert len(run.rollouts.rows) == len(THIN[name])


def test_a_run_of_metrics_alone_draws_what_was_logged() -> None:
    logged = [{"step": s, "entropy": 1 / (1 + s), "reward_mean": 1 - 1 / (1 + s)} for s in range(40)]
    made = report(Run(Path("log"), RunInfo("test"), read_metrics=lambda: iter(logged)))
    assert made.runs[0].figures[0].reading
    assert made.runs[0].rollouts.choice == "log holds no rollouts; its figures come from what was logged."
    assert 'id="rollouts-run-0"' in made.to_html()


def test_several_runs_stand_side_by_side_and_are_told_apart(tmp_path) -> None:
    made = report([EXAMPLES / "healthy.parquet", EXAMPLES / "collapse.parquet"], EXAMPLES / "base.parquet")
    assert [run.name for run in made.runs] == ["healthy", "collapse"]
    parsed = Parsed(made.to_html())
    assert [a["data-tab"] for tag, a in parsed.tags if tag == "a" and "data-tab" in a][:2] == ["run-0", "run-1"]
    cells = [a for tag, a in parsed.tags if tag == "td" and "data-value" in a]
    values = {
        repr(finding.estimate.value)
        for run in made.runs
        for finding in run.diagnosis.findings
        if finding.severity == "info"
    }
    assert len(cells) >= 8
    assert {cell["data-value"] for cell in cells} <= values
    same = report([EXAMPLES / "healthy.parquet", str(EXAMPLES / "healthy.parquet")])
    assert [run.name for run in same.runs] == [str(EXAMPLES / "healthy.parquet")] * 2


def test_a_run_judged_at_another_k_is_not_called_unmeasured() -> None:
    made = report([EXAMPLES / "too-little.parquet", EXAMPLES / "collapse.parquet"])
    assert [run.diagnosis.use for run in made.runs] == ["search, k = 2", "search, k = 8"]
    table = made.to_html().partition('id="overview-title"')[2].partition("</section>")[0]
    row = table.partition(">pass@2<")[2].partition("</tr>")[0]
    assert "no interval, n = 4</span>" in row
    assert row.endswith("<td>judged for search, k = 8; -k sets one k for all</td>")
    assert "not measured" not in row


def test_a_study_gets_its_frontier_and_paired_arms() -> None:
    folder = ROOT / "studies" / "results" / "collapse-cpu"
    made = report(folder)
    (study,) = made.studies
    results = json.loads((folder / "results.json").read_text())
    assert (made.title, made.runs, study.about) == ("collapse-cpu", (), results["about"])
    assert [drawn.figure.name for drawn in study.figures] == ["frontier", "paired_arms"]
    told = {(n.at["arm"], n.at["temperature"], n.name): n.value for n in study.figures[0].estimates}
    for row in results["frontier"]:
        for point in row["points"]:
            key = (row["arm"], point["temperature"], "pass@1")
            if key in told:
                assert told[key] == pytest.approx(point["pass@1"]["value"], abs=1e-9)
    assert len(told) > 8
    parsed = Parsed(made.to_html())
    assert set(parsed.data("plots-study-0")) == {"frontier", "paired_arms"}


def test_the_page_of_long_rollouts_stays_below_fifteen_megabytes(tmp_path) -> None:
    rng = np.random.default_rng(0)
    rows = [
        {
            "prompt_id": f"p{p}", "group_id": f"p{p}", "sample_index": s, "step": step, "correct": bool(s % 2), "answer": str(s),
            "completion": "<b> & ünïcode " * 400, "token_ids": rng.integers(0, 50_000, 2000).astype(np.int32),
            "entropies": rng.exponential(0.3, 2000).astype(np.float16), "logprobs_rollout": -rng.exponential(0.3, 2000).astype(np.float32),
        }
        for step in range(5) for p in range(10) for s in range(8)
    ]  # fmt: skip
    page = tmp_path / "report.html"
    made = report(run_of(rows), out=page)
    assert len(made.runs[0].rollouts.rows) == 200
    assert page.stat().st_size < 15_000_000


# --- errors, and the command line


@pytest.mark.parametrize(
    ("runs", "settings", "said"),
    [
        (["nowhere"], {}, "nowhere does not exist"),
        ([], {}, "1 to 12 runs; 0 were given"),
        ([EXAMPLES / "healthy.parquet"] * 13, {}, "1 to 12 runs; 13 were given"),
        (EXAMPLES / "healthy.parquet", {"out": "report.pdf"}, "try report.html"),
        (EXAMPLES / "healthy.parquet", {"shown": -1}, "-1 was asked"),
        (EXAMPLES / "healthy.parquet", {"use": "serch"}, "did you mean 'search'"),
    ],
)
def test_bad_input_is_one_line(runs, settings, said) -> None:
    with pytest.raises(UsageError) as problem:
        report(runs, **settings)
    assert said in str(problem.value)
    assert "\n" not in str(problem.value)


def test_a_folder_as_the_page_is_refused_before_anything_is_read(tmp_path) -> None:
    (tmp_path / "a.html").mkdir()
    with pytest.raises(UsageError, match=r"a\.html is a folder"):
        report("nowhere", out=tmp_path / "a.html")


def test_a_twin_replaces_reports_and_nothing_else(tmp_path) -> None:
    run = run_of([{"prompt_id": "p", "correct": True, "answer": "1"}])
    (tmp_path / "results.json").write_text('{"schema": "equipoise.study/1"}')
    with pytest.raises(UsageError, match=r"results\.json is there and is no report"):
        report(run, out=tmp_path / "results.html")
    assert (tmp_path / "results.json").read_text() == '{"schema": "equipoise.study/1"}'
    for _ in range(2):
        report(run, out=tmp_path / "page.html")


def test_without_plotly_the_pip_line_is_told(monkeypatch) -> None:
    found = builtins.__import__

    def refuse(name, *rest, **more):
        if name.startswith("plotly"):
            raise ModuleNotFoundError(name)
        return found(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(UsageError, match=r"pip install 'equipoise\[report\]'"):
        plotly_script()


def test_the_command_writes_the_page_and_its_twin(equipoise, tmp_path) -> None:
    page = tmp_path / "out" / "page.html"
    printed = equipoise("report", EXAMPLES / "collapse.parquet", "--baseline", EXAMPLES / "base.parquet", "-o", page, "--rollouts", 40)  # fmt: skip
    assert printed.code == 0
    assert printed.out.splitlines() == ["collapse: training-time entropy collapse", f"report: {page}"]
    twin = json.loads(page.with_suffix(".json").read_text())
    assert twin["schema"] == "equipoise.report/1"
    assert 0 < len(twin["runs"][0]["rollouts"]["rows"]) <= 40
    assert page.read_text("utf-8").startswith("<!DOCTYPE html>")


def test_the_command_prints_only_json_when_asked(equipoise, tmp_path) -> None:
    printed = equipoise("report", EXAMPLES / "too-little.parquet", "-o", tmp_path / "r.html", "--json")
    assert printed.code == 0
    assert printed.json["runs"][0]["diagnosis"]["verdict"] == "not enough data"
    assert printed.json["html"] == str(tmp_path / "r.html")


def test_the_command_tells_a_bad_run_in_one_line(equipoise, tmp_path) -> None:
    printed = equipoise("report", tmp_path / "nowhere", "-o", tmp_path / "r.html")
    assert printed.code == 2
    assert len(printed.err.splitlines()) == 1 + printed.err.count("reading")
    assert not (tmp_path / "r.html").exists()


def test_evidence_gathered_once_gives_the_same_diagnosis() -> None:
    from equipoise.diagnosis.verdict import diagnose_evidence

    run, base = eq.read(EXAMPLES / "collapse.parquet"), eq.read(EXAMPLES / "base.parquet")
    found = diagnose_evidence(collect(run), collect(base), k=4, options=Options(seed=3))
    assert found == eq.diagnose(run, baseline=base, k=4, seed=3)
    assert found.use == "search, k = 4"
    assert any("pass@4 changed" in finding.reading for finding in found.findings)
