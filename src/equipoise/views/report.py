"""`equipoise.report`: runs measured, diagnosed, drawn and written as one HTML file with a JSON twin of every number in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import Any

from equipoise.base import Diagnosis, Estimate
from equipoise.diagnosis.verdict import diagnose_evidence
from equipoise.errors import UsageError
from equipoise.files import atomic_write, plain
from equipoise.measures.evidence import Evidence, Options, collect
from equipoise.measures.table import estimate
from equipoise.rollouts.readers.table import Source, open_source
from equipoise.rollouts.run import Run
from equipoise.text.display import many
from equipoise.views.browse import MAX_BYTES, SHOWN, Browsed, browse
from equipoise.views.figure import Figure, Numbers
from equipoise.views.study_facts import read_study_facts
from equipoise.views.study_numbers import is_study
from equipoise.views.table import FIGURES, STUDY_FIGURES, find_figure

SCHEMA = "equipoise.report/1"
_OPENING = f'{{"schema": "{SCHEMA}"'.encode()
MOST_RUNS = 12  # each has its card, figures and rollouts on the page


@dataclass(frozen=True, slots=True)
class Drawn:
    """A figure with the estimates it shows; without any, what would supply them."""

    figure: Figure
    estimates: tuple[Estimate, ...]
    reading: str | None
    missing: str | None
    plot: Mapping[str, Any] | None  # Plotly's JSON

    @classmethod
    def of(cls, figure: Figure, numbers: Numbers) -> Drawn:
        if not figure.drawable(numbers):
            return cls(figure, (), None, figure.lacking(numbers), None)
        shown = figure.shown(numbers)
        plot = figure.draw(shown).to_plotly_json()
        return cls(figure, tuple(shown), figure.reading(shown), None, plot)

    @property
    def counts(self) -> tuple[int, int] | None:
        """The fewest and the most independent units behind a number shown."""
        known = [number.n for number in self.estimates if number.n is not None and number.value is not None]
        return (min(known), max(known)) if known else None

    @property
    def methods(self) -> tuple[str, ...]:
        """How values and intervals are made, each said once."""
        return tuple(dict.fromkeys(n.how for n in self.estimates if n.how and n.value is not None))

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.figure.name,
            "title": self.figure.title,
            "question": self.figure.question,
            "reading": self.reading,
            "missing": self.missing,
            "n": None if self.counts is None else list(self.counts),
            "how": list(self.methods),
            "estimates": [number.to_dict() for number in self.estimates],
        }


@dataclass(frozen=True, slots=True)
class RunPage:
    name: str
    path: str
    source: str
    model: str | None
    baseline: str | None
    diagnosis: Diagnosis
    figures: tuple[Drawn, ...]
    rollouts: Browsed

    def to_dict(self, *, rollouts: bool = True) -> dict[str, Any]:
        return {
            "name": self.name,
            "path": self.path,
            "source": self.source,
            "model": self.model,
            "baseline": self.baseline,
            "diagnosis": self.diagnosis.to_dict(),
            "figures": [drawn.to_dict() for drawn in self.figures],
        } | ({"rollouts": self.rollouts.to_dict()} if rollouts else {})


@dataclass(frozen=True, slots=True)
class StudyPage:
    name: str
    path: str
    about: str
    facts: tuple[tuple[str, str], ...]
    figures: tuple[Drawn, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "path": self.path,
            "about": self.about,
            "facts": dict(self.facts),
            "figures": [drawn.to_dict() for drawn in self.figures],
        }


@dataclass(frozen=True, slots=True)
class Report:
    """Runs and studies with all that their page shows."""

    title: str
    runs: tuple[RunPage, ...]
    studies: tuple[StudyPage, ...]
    version: str

    def to_dict(self, *, rollouts: bool = True) -> dict[str, Any]:
        """The twin of the page: every number that it shows."""
        return {
            "schema": SCHEMA,
            "version": self.version,
            "title": self.title,
            "runs": [run.to_dict(rollouts=rollouts) for run in self.runs],
            "studies": [study.to_dict() for study in self.studies],
        }

    def compared(self) -> list[str]:
        """The numbers, by name, that stand side by side where several runs are shown."""
        names = (f.name for run in self.runs for f in run.diagnosis.findings if f.severity == "info")
        return list(dict.fromkeys(names))

    def to_html(self) -> str:
        from equipoise.views.page import page

        return page(self)

    def write(self, out: Path | str) -> tuple[Path, Path]:
        """Write the page and, beside it, its twin with the ending .json."""
        html, twin = _targets(Path(out))
        text = self.to_html()
        with atomic_write(html) as handle:
            handle.write(text.encode("utf-8", "replace"))
        with atomic_write(twin) as handle:
            handle.write(json.dumps(plain(self.to_dict()), ensure_ascii=True, allow_nan=False).encode())
        return html, twin

    def _repr_html_(self) -> str:
        """The page for a notebook, in a frame that may run its own scripts and reach nothing of the notebook."""
        return (
            '<iframe sandbox="allow-scripts allow-downloads" style="width: 100%; height: 80vh; border: 0" title="Equipoise report" '
            f'srcdoc="{escape(self.to_html(), quote=True)}"></iframe>'
        )


def _targets(out: Path) -> tuple[Path, Path]:
    """The page and its twin; refused where the twin would replace a file that is no report, such as a study's results."""
    if out.suffix.lower() not in (".html", ".htm"):
        found = f"a report is written as an .html file with a .json file beside it; found '{out}'"
        raise UsageError(f"{found}: try {out.with_suffix('.html')}")
    twin = out.with_suffix(".json")
    for path in (out, twin):
        if path.is_dir():
            raise UsageError(f"{path} is a folder; name another file: {out.parent / 'report.html'}")
    if twin.is_file():
        with open(twin, "rb") as handle:
            if not handle.read(len(_OPENING)) == _OPENING:
                raise UsageError(
                    f"{twin} is there and is no report, so it stays; give the page another name than {out}"
                )
    return out, twin


def report(
    runs: Source | Sequence[Source | Sequence[Source]],
    baseline: Source | Sequence[Source] | None = None,
    out: Path | str | None = None,
    *,
    use: str = "search",
    k: int | None = None,
    solved_at: float | None = None,
    shown: int = SHOWN,
    columns: Mapping[str, str] | None = None,
    seed: int = 0,
    say: Callable[[str], None] = lambda line: None,
) -> Report:
    """Measure, diagnose and draw runs, each on its own, against one baseline; write the page if `out` is given.

    A run is a path or several paths read as one; the folder of a study (`equipoise study`) gives its frontier and paired arms.
    `shown`: rollouts of each run in the page. `use`, `k`, `solved_at`, `columns`: as in `diagnose`.
    """
    if out is not None:
        _targets(Path(out))
    if shown < 0:
        raise UsageError(f"a page shows 0 or more rollouts of a run; {shown} was asked")
    asked = [runs] if isinstance(runs, Run | Path | str) else list(runs)
    if not 1 <= len(asked) <= MOST_RUNS:
        raise UsageError(f"a report shows 1 to {MOST_RUNS} runs; {len(asked)} were given: choose some, or give a folder that holds one run")  # fmt: skip
    options = Options(solved_at=solved_at, seed=seed)
    against: Evidence | None = None
    pages: list[RunPage] = []
    studies: list[StudyPage] = []
    for source in asked:
        if isinstance(source, str | Path) and is_study(Path(source)):
            studies.append(_study_page(Path(source)))
            continue
        if baseline is not None and against is None:
            say("reading the baseline")
            against = collect(open_source(baseline, columns=columns, baseline=True), options=options)
        run = open_source(source, columns=columns)
        say(f"reading {run.path}")
        evidence = collect(run, options=options)
        say(f"measuring {run.path}")
        found = diagnose_evidence(evidence, against, use=use, k=k, options=options)
        figures = draw_run(evidence, against, options)
        measured_R = None if evidence.tokens is None else evidence.tokens.rows.get("entropy_tokens")
        part = browse(run, shown=shown, max_bytes=MAX_BYTES // len(asked), measured_R=measured_R)
        pages.append(_run_page(run, against, found, figures, part))
    made = Report(_title(pages, studies), tuple(_told_apart(pages)), tuple(studies), version("equipoise"))
    if out is not None:
        made.write(out)
    return made


def draw_run(evidence: Evidence, baseline: Evidence | None, options: Options = Options()) -> tuple[Drawn, ...]:
    """All figures of one run, from one estimation of what they need."""
    figures = [find_figure(name) for name in FIGURES]
    needs = dict.fromkeys(need for figure in figures for need in figure.needs)
    numbers = estimate(needs, evidence, baseline=baseline, options=options)
    return tuple(Drawn.of(figure, numbers) for figure in figures)


def _run_page(
    run: Run, baseline: Evidence | None, found: Diagnosis, figures: tuple[Drawn, ...], rollouts: Browsed
) -> RunPage:
    name = run.info.run_id or run.path.stem or str(run.path)
    against = None if baseline is None else str(baseline.run.path)
    return RunPage(name, str(run.path), run.info.source, run.info.model, against, found, figures, rollouts)


def _told_apart(pages: Sequence[RunPage]) -> Iterable[RunPage]:
    """Runs of one name are told apart by their paths."""
    names = [page.name for page in pages]
    return [page if names.count(page.name) == 1 else replace(page, name=page.path) for page in pages]


def _study_page(path: Path) -> StudyPage:
    study = read_study_facts(path)
    drawn = tuple(Drawn.of(figure, study.numbers) for figure in map(find_figure, STUDY_FIGURES))
    folder = path if path.is_dir() else path.parent
    return StudyPage(folder.resolve().name, str(path), study.about, study.facts, drawn)


def _title(pages: Sequence[RunPage], studies: Sequence[StudyPage]) -> str:
    names = [*(page.name for page in pages), *(study.name for study in studies)]
    if len(names) == 1:
        return names[0]
    counted = [many(len(pages), "run")] if pages else []
    return " and ".join([*counted, many(len(studies), "study", plural="studies")] if studies else counted)
