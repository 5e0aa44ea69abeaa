"""A recorded sweep over budgets, read: what more tokens do to accuracy, and the setting to use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from equipoise.base import Estimate, Finding
from equipoise.catalogue.settings import as_lines
from equipoise.diagnosis.judge import State, judge
from equipoise.errors import UsageError
from equipoise.infer.capped import Capped
from equipoise.lab.probe_numbers import Advice, advise, compare_arms, find_number
from equipoise.measures.answers import AnswerTable
from equipoise.measures.budget import estimate_budget, without_budget
from equipoise.measures.evidence import Options, collect
from equipoise.measures.html import html_line, html_table, number_cell
from equipoise.measures.prompts import late_rows
from equipoise.measures.sweeps import Sweep, sweep_budgets
from equipoise.rollouts.readers.table import Source, open_source
from equipoise.rollouts.run import Run
from equipoise.text.display import many

RULE = "longer thinking costs accuracy"


@dataclass(frozen=True, slots=True)
class Probed:
    """Estimates of every budget, the state of the inference loop, and the setting to use; None where too little was recorded."""

    source: str
    budgets: tuple[int, ...]
    problems: int
    rollouts: int
    tokens: int | None  # of all completions, really made; None: not recorded
    estimates: tuple[Estimate, ...]
    state: State  # of the inference loop, by the rules of diagnosis
    finding: Finding | None
    advice: Advice | None
    interrupted: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def inflated(self) -> bool | None:
        return {"failing": True, "ok": False, "unknown": None}[self.state]

    def says(self) -> str:
        """One sentence: whether variance inflation is present."""
        if self.finding is None:
            return (
                f"Not enough data to tell whether variance inflation is present: {many(self.problems, 'problem')} tried at all of "
                f"{many(len(self.budgets), 'budget')}, and it takes 10 problems and three budgets or more."
            )
        words = self.finding.reading + (
            "" if self.finding.interval is None else f" (95% interval {self.finding.interval})"
        )
        if self.state == "failing":
            return f"Variance inflation is present: {words}."
        if self.state == "ok":
            return f"No variance inflation: {words}."
        return f"Not enough data to tell whether variance inflation is present: {words}, n = {self.finding.estimate.n}."

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": "equipoise.probe/1",
            "source": self.source,
            "budgets": list(self.budgets),
            "problems": self.problems,
            "n": self.rollouts,
            "tokens": self.tokens,
            "inflated": self.inflated,
            "says": self.says(),
            "best_budget": _plain(self._only("best_budget")),
            "use": None if self.advice is None else self.advice.to_dict(),
            "estimates": [number.to_dict() for number in self.estimates],
            "interrupted": self.interrupted,
            "warnings": list(self.warnings),
        }

    def _only(self, name: str) -> Estimate | None:
        return next((number for number in self.estimates if number.name == name), None)

    def heads(self) -> list[str]:
        return [
            "budget", "tokens", "accuracy", "entropy", "right→wrong", "wrong→right", "samples", "parallel", "gain",
        ]  # fmt: skip

    def rows(self) -> list[list[str]]:
        """A row for each budget. Flips are from the budget above it; parallel is a vote over so many samples at the same tokens."""
        return [self._row(float(budget)) for budget in self.budgets]

    def _row(self, budget: float) -> list[str]:
        cells = {name: find_number(self.estimates, name, budget) for name in _NAMES}
        accuracy, entropy, parallel = (cells[name] for name in ("accuracy", "answer_entropy", "parallel_accuracy"))
        return [
            f"{budget:,.0f}",
            "–" if accuracy is None else f"{accuracy.at['tokens']:,.1f}",
            number_cell(accuracy),
            "–" if entropy is None or entropy.value is None else f"{entropy.value:.2f}",
            _short(cells["right_to_wrong"]),
            _short(cells["wrong_to_right"]),
            "–" if parallel is None else str(parallel.at["samples"]),
            number_cell(parallel),
            number_cell(cells["parallel_minus_sequential"], signed=True),
        ]

    def about(self) -> list[str]:
        """What to take from it, a line each."""
        lines = [self.says()]
        best = self._only("best_budget")
        if best is not None and best.value is not None:
            span = "" if best.low is None else f" (95% interval {best.low:,.0f} to {best.high:,.0f})"
            lines.append(f"Accuracy of one completion is highest at a budget of {best.value:,.0f}{span}.")
        if self.advice is not None:
            lines += _use(self.advice)
        return lines

    def _repr_html_(self) -> str:
        return html_table(self.heads(), self.rows(), title=self.source) + "".join(map(html_line, self.about()))


_NAMES = (
    "accuracy",
    "answer_entropy",
    "right_to_wrong",
    "wrong_to_right",
    "parallel_accuracy",
    "parallel_minus_sequential",
)


def probe_pool(
    source: Source | Sequence[Source],
    *,
    spend: float | None = None,
    answer_tokens: int | None = None,
    native: bool = False,
    columns: Mapping[str, str] | None = None,
    seed: int = 0,
) -> Probed:
    """Read a recorded sweep: any files with the columns budget, prompt_id, answer and correct.

    `spend`: tokens a question that the setting to use may take; default what one completion of the largest budget takes.
    `answer_tokens`: the budgets limited the thinking, and so many tokens were for the answer; default what the run says of itself.
    """
    run = open_source(source, columns=columns)
    evidence = collect(run, ("answers",), options=Options(seed=seed))
    table = evidence.answers
    if not table.has("budget") and len(table):
        raise UsageError(
            f"{run.path} names no budgets, so there is nothing to compare: record with several --budget, or name the column"
        )
    swept = table.take(np.isfinite(table.numbers["budget"]))
    late = swept.take(late_rows(swept))
    parts = without_budget(late)
    if len(parts) > 1:
        told = "; ".join(", ".join(f"{name}={value}" for name, value in at.items()) for at, _ in parts[:3])
        raise UsageError(f"{run.path} holds {len(parts)} kinds of rollouts ({told} …): probe one of them at a time")
    estimates = estimate_budget(evidence, baseline=None, options=Options(seed=seed))
    sweep = sweep_budgets(late)
    answer, notes = _answer_tokens(run, late, answer_tokens)
    estimates += compare_arms(sweep, {}, seed=seed)
    found = judge({"budget": estimates}, use="vote", k=1)
    reads = {read.rule.name: read.finding for read in found.reads}
    return Probed(
        source=str(run.path),
        budgets=tuple(int(budget) for budget in sweep.budgets_B),
        problems=len(sweep.prompt_P),
        rollouts=len(late),
        tokens=_total(late),
        estimates=tuple(estimates),
        state=found.states["inference"],
        finding=reads.get(RULE),
        advice=advise(sweep, {}, spend=spend, answer=answer, native=native, seed=seed)
        if _can_vote(sweep, late)
        else None,
        warnings=(*run.warnings.lines(), *evidence.notes(), *notes),
    )


def _can_vote(sweep: Sweep, table: AnswerTable) -> bool:
    return len(sweep.prompt_P) > 1 and table.has("answer")


def _answer_tokens(run: Run, table: AnswerTable, asked: int | None) -> tuple[int | None, list[str]]:
    """As asked, or as the run was sampled; a run that does not say, but has longer completions than budgets, limits the thinking."""
    if asked is not None or "answer_tokens" in run.info.settings:
        given = run.info.settings.get("answer_tokens")
        return asked if asked is not None else given if isinstance(given, int) else None, []
    if not (table.numbers["n_tokens"] > table.numbers["budget"]).any():
        return None, []
    usual = Capped().answer
    note = f"completions are longer than their budgets: taken as limits on the thinking, with {usual} tokens more for the answer"
    return usual, [note]


def _total(table: AnswerTable) -> int | None:
    tokens = table.numbers["n_tokens"]
    return int(tokens.sum()) if len(tokens) and np.isfinite(tokens).all() else None


def _use(advice: Advice) -> list[str]:
    more = (
        "; the vote has all samples that were drawn, so more may do better"
        if advice.most_samples and advice.setting.n > 1
        else ""
    )
    return [
        f"For {advice.spend:,.0f} tokens a question use {advice.setting.spec}: accuracy {number_cell(advice.accuracy)}, "
        f"{number_cell(advice.gain, signed=True)} against one completion of the largest budget, {advice.tokens:,.0f} tokens{more}.",
        f"As a request: {as_lines('openai', advice.setting.openai)[0]}"
        + (" and a majority vote over the replies." if advice.setting.n > 1 else ""),
    ]


def _short(number: Estimate | None) -> str:
    return "–" if number is None or number.value is None else f"{number.value:.1%}"


def _plain(number: Estimate | None) -> dict[str, Any] | None:
    return None if number is None else number.to_dict()
