"""The diagnosis of a run as far as it was recorded, brought up to date with the parts that are new."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.base import Diagnosis, Estimate, Finding
from equipoise.diagnosis.judge import preference
from equipoise.diagnosis.verdict import diagnose_evidence
from equipoise.errors import UsageError
from equipoise.measures.evidence import Evidence, Options
from equipoise.measures.growing import Growing
from equipoise.measures.health_steps import estimate_health_steps
from equipoise.measures.passk import estimate_passk
from equipoise.rollouts.folder import Part, open_folder, stream_parts
from equipoise.rollouts.readers import curves
from equipoise.rollouts.run import Run, Warnings
from equipoise.views.live.follow import LOG

ALERTS = ("failing", "watch")
GROUPS = ("dead_groups",)  # drawn over the steps


@dataclass(frozen=True, slots=True)
class Judged:
    """A diagnosis with the estimates that the live views draw."""

    diagnosis: Diagnosis
    step: int | None  # of the newest rollouts that were read
    groups: tuple[Estimate, ...]  # dead groups, one for each recorded step or stretch of steps
    frontier: tuple[Estimate, ...]  # pass@k of the last evaluation, for each k that is measured or logged

    @property
    def alerts(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.diagnosis.findings if finding.severity in ALERTS)

    def to_dict(self) -> dict[str, Any]:
        found = self.diagnosis
        return {
            "verdict": found.verdict,
            "confidence": found.confidence,
            "use": found.use,
            "step": self.step,
            "n_prompts": found.n_prompts,
            "n_rollouts": found.n_rollouts,
            "findings": [finding.to_dict() | {"interval": finding.interval} for finding in found.findings],
            "missing": list(found.missing),
            "next": found.prescription.why,
            "groups": [_point(number) for number in self.groups],
            "groups_how": self.groups[0].how if self.groups else None,
            "frontier": [number.to_dict() for number in self.frontier],
        }


def _point(number: Estimate) -> list[Any]:
    """First and last step, value, low, high, n."""
    step = number.at["step"]
    first, last = step if isinstance(step, list | tuple) else (step, step)
    return [first, last, number.value, number.low, number.high, number.n]


class Judge:
    """Reads every part of a run folder once. `use` and `k` as in `diagnose`."""

    def __init__(self, folder: Path, *, use: str = "search", k: int | None = None) -> None:
        self._folder, self._use, self._k = folder, use, k
        self._forget()

    def _forget(self) -> None:
        self._growing, self._warnings = Growing(), Warnings()

    def read(self, parts: Sequence[Part], *, lost: bool = False) -> None:
        """Count new parts. `lost`: those read before no longer count, and `parts` are all that there are."""
        if lost:
            self._forget()
        for part in parts:
            try:
                # All of a part or nothing: one that is damaged may show it only at its end.
                batches = list(stream_parts([part], self._growing.columns, self._warnings))
            except UsageError as problem:
                self._warnings("damaged-part", f"{part.path.parent.name}/{part.path.name} was left out: {problem}")
            else:
                self._growing.add(batches)

    def notes(self) -> list[str]:
        """What could not be read of the parts."""
        return self._warnings.lines()

    def judge(self, ks: Sequence[int] = ()) -> Judged:
        """The diagnosis of all that was read. `ks`: of each pass@k that the log has, to measure the same."""
        evidence = self._growing.evidence(self._open())
        diagnosis = diagnose_evidence(evidence, use=self._use, k=self._k)
        return Judged(
            diagnosis,
            _last_step(evidence),
            _groups(evidence),
            _frontier(evidence, ks),
        )

    def _open(self) -> Run:
        """The run's metadata and log; a folder with nothing but another trainer's log is read as such."""
        if (self._folder / "run.json").is_file() or (self._folder / "rollouts").is_dir():
            return open_folder(self._folder)
        return curves.open(self._folder / LOG)


def _last_step(evidence: Evidence) -> int | None:
    steps = evidence.answers.numbers["step"]
    known = steps[steps == steps]
    return int(known.max()) if len(known) else None


def _groups(evidence: Evidence) -> tuple[Estimate, ...]:
    """Dead groups of the training rollouts, measured; what the log says is drawn as logged."""
    found = estimate_health_steps(evidence, baseline=None, options=Options())
    return tuple(
        number
        for number in found
        if number.name in GROUPS
        and number.value is not None
        and number.at.get("source") != "log"
        and number.at.get("split") in (None, "train")
    )


def _frontier(evidence: Evidence, ks: Sequence[int]) -> tuple[Estimate, ...]:
    """pass@k in the last steps of the split that was evaluated; of the training rollouts where there is no other."""
    found = estimate_passk(evidence, baseline=None, options=Options(k=tuple(sorted({1, *ks})) if ks else ()))
    found = [
        number
        for number in found
        if number.name.startswith("pass@")
        and number.value is not None
        and number.at.get("window") in (None, "late")
        and number.at.get("against") is None
    ]
    first = min(found, key=preference, default=None)
    return tuple(number for number in found if first is not None and _same(number, first))


def _same(one: Estimate, other: Estimate) -> bool:
    return {**one.at, "k": None} == {**other.at, "k": None}
