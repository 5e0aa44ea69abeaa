"""The measures by name. A measure is a function of the evidence; what one pass must gather for it is data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import import_module
from typing import Any

from equipoise.base import Estimate
from equipoise.errors import unknown_name
from equipoise.measures.evidence import Evidence, Options, collect
from equipoise.rollouts.readers.table import Source, open_source
from equipoise.rollouts.run import Run

Estimator = Callable[..., list[Estimate]]


@dataclass(frozen=True, slots=True)
class Measure:
    name: str
    about: str
    needs: tuple[str, ...]  # what one pass must gather besides the rollouts' scalars: see `evidence.collect`
    target: str  # module:function(evidence, *, baseline, options) -> list[Estimate]

    def load(self) -> Estimator:
        module, function = self.target.split(":")
        estimator: Estimator = getattr(import_module(module), function)
        return estimator


def _measure(name: str, about: str, needs: tuple[str, ...], module: str) -> Measure:
    return Measure(name, about, needs, f"equipoise.measures.{module}:estimate_{name}")


MEASURES: tuple[Measure, ...] = (
    _measure("passk", "unbiased pass@k and pass^k, and the crossing point against a baseline", (), "passk"),
    _measure("majk", "exact maj@k: how often a majority of k answers is right", ("answers",), "majk"),
    _measure(
        "diversity",
        "distinct answers, collision, Vendi score and trajectory clusters",
        ("answers", "texts"),
        "diversity",
    ),
    _measure(
        "transfer", "training seen as sampling, against k = n·t samples of the base model", ("answers",), "transfer"
    ),
    _measure(
        "entropy",
        "token entropy: mean, quantiles, by position, planning against execution",
        ("tokens", "metrics"),
        "entropy",
    ),
    _measure(
        "forks",
        "forking tokens: their share of the entropy, which they are, and how they change",
        ("tokens",),
        "forks",
    ),
    _measure("drift", "KL to the reference model along the samples (k1, k3)", ("tokens",), "drift"),
    _measure("mismatch", "log-probs of the sampler against those of the trainer", ("tokens",), "mismatch"),
    _measure("law", "R = −a·exp(H) + b: fit, ceiling and backtested forecast", ("tokens", "metrics"), "law"),
    _measure("budget", "accuracy, answer entropy and flips against the thinking budget", ("answers",), "budget"),
    _measure(
        "calibration",
        "stated confidence against correctness: ECE, Brier, AUROC, risk–coverage",
        (),
        "calibration",
    ),
    _measure(
        "health",
        "groups without a gradient, effective samples, truncated and degenerate rollouts",
        ("texts", "metrics"),
        "health",
    ),
    _measure("format", "shares of answer formats over the steps", ("texts",), "format"),
    _measure("profile", "breadth-first against depth-first search in the texts", ("texts",), "profile"),
    _measure("transitions", "solve rates before against after: problems won and lost", (), "transitions"),
    _measure("health_steps", "dead groups and truncated rollouts at every step", ("metrics",), "health_steps"),
    _measure(
        "votes",
        "how often the top answer is right by its share of the votes; answer entropy by solve rate",
        ("answers",),
        "vote_profile",
    ),
    _measure(
        "confidence",
        "stated confidence, agreement and token confidence: reliability and risk–coverage",
        ("answers", "tokens"),
        "confidence",
    ),
    _measure("lengths", "tokens of right and wrong rollouts, and what the length limit cuts off", (), "lengths"),
    _measure(
        "course",
        "entropy, reward and the settings that a controller moved, step by step",
        ("tokens", "metrics"),
        "course",
    ),
    _measure(
        "exchange",
        "reward against exp(H): the run, the law's line with its band, and the rivals' forecasts",
        ("tokens", "metrics"),
        "exchange",
    ),
    _measure("distribution", "how token entropies are distributed at stages of the run", ("tokens",), "distribution"),
    _measure("positions", "token entropy by step and by tenth of the completion", ("tokens",), "positions"),
    _measure(
        "mismatch_course",
        "log-probs of the sampler against those of the trainer, step by step",
        ("tokens", "metrics"),
        "mismatch_course",
    ),
)
BY_NAME = {measure.name: measure for measure in MEASURES}


def find_measure(name: str) -> Measure:
    if name not in BY_NAME:
        raise unknown_name("measure", name, BY_NAME)
    return BY_NAME[name]


def estimate(
    names: Iterable[str], evidence: Evidence, *, baseline: Evidence | None = None, options: Options = Options()
) -> dict[str, list[Estimate]]:
    """Each named measure's estimates, from evidence already gathered."""
    return {name: find_measure(name).load()(evidence, baseline=baseline, options=options) for name in names}


@dataclass(frozen=True, slots=True)
class Measured:
    """Estimates by measure, with what they were taken from."""

    estimates: Mapping[str, list[Estimate]]
    n_prompts: int
    n_rollouts: int
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The versioned JSON form; with several measures, `results` holds all of them in order."""
        return {
            "schema": "equipoise.measure/1",
            "measure": ",".join(self.estimates),
            "n_prompts": self.n_prompts,
            "n_rollouts": self.n_rollouts,
            "results": [number.to_dict() for numbers in self.estimates.values() for number in numbers],
            "warnings": list(self.warnings),
        }

    def __getitem__(self, name: str) -> list[Estimate]:
        return self.estimates[name]

    def _repr_html_(self) -> str:
        rows = [n for numbers in self.estimates.values() for n in numbers]
        cells = "".join(
            f"<tr><td>{escape(n.name)}</td><td>{escape(', '.join(f'{a} {b}' for a, b in n.at.items()))}</td>"
            f"<td>{'–' if n.value is None else f'{n.value:.4g}'}</td>"
            f"<td>{'' if n.low is None or n.high is None else f'[{n.low:.4g}, {n.high:.4g}]'}</td><td>{n.n or ''}</td></tr>"
            for n in rows
        )
        head = "<tr><th>measure</th><th>at</th><th>value</th><th>95% interval</th><th>n</th></tr>"
        return f"<table>{head}{cells}</table>"


def measure_run(
    names: Sequence[str],
    run: Run,
    *,
    baseline: Run | None = None,
    options: Options = Options(),
    progress: Callable[[int], None] | None = None,
) -> Measured:
    """Measure a run: one pass over it, one over its baseline."""
    needs = {table for name in names for table in find_measure(name).needs}
    evidence = collect(run, needs, options=options, progress=progress)
    against = None if baseline is None else collect(baseline, needs, options=options)
    numbers = estimate(names, evidence, baseline=against, options=options)
    warnings = [*run.warnings.lines(), *evidence.notes()]
    if baseline is not None and against is not None:
        warnings += [f"baseline: {line}" for line in (*baseline.warnings.lines(), *against.notes())]
    return Measured(numbers, evidence.n_prompts, len(evidence.answers), tuple(warnings))


def measure(
    source: Source | Sequence[Source],
    names: Sequence[str] | str,
    *,
    baseline: Source | Sequence[Source] | None = None,
    options: Options | None = None,
    columns: Mapping[str, str] | None = None,
    progress: Callable[[int], None] | None = None,
    **choices: Any,
) -> Measured:
    """Measures by name, of a run, a path or several paths read as one run.

    `choices` are fields of `Options`: `measure("rollouts.jsonl", "passk", k=(1, 8))`.
    """
    names = [names] if isinstance(names, str) else list(names)
    return measure_run(
        names,
        open_source(source, columns=columns),
        baseline=None if baseline is None else open_source(baseline, columns=columns, baseline=True),
        options=options or Options(**choices),
        progress=progress,
    )
