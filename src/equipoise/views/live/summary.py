"""One run in few words, for a terminal: what was logged last, what the rollouts say, and how long it will take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from equipoise.base import Estimate, Finding
from equipoise.text.display import safe_text
from equipoise.views.live.curves import ROLES
from equipoise.views.live.watched import NAME, Watched

RECENT = 400  # values of a curve that are handed on for a sparkline
HEALTH = ("dead_groups", "truncated", "degenerate")


@dataclass(frozen=True, slots=True)
class Logged:
    """A curve of the log: its last value, the key it stands under there, and the values that led to it."""

    name: str
    key: str
    step: int
    value: float
    recent: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Summary:
    """`logged` are values as a trainer wrote them; everything in `findings` and `left` is an `Estimate`."""

    name: str
    step: int | None
    planned: int | None
    age: float | None  # seconds since something was written
    logged: tuple[Logged, ...]
    verdict: str | None  # None: not judged yet
    confidence: float | None
    use: str | None
    judged_step: int | None  # of the newest rollouts behind the verdict
    findings: tuple[Finding, ...]
    left: Estimate
    notes: tuple[str, ...]
    gone: bool

    @property
    def alerts(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity in ("failing", "watch"))

    @property
    def health(self) -> tuple[Finding, ...]:
        """Headlines of group health, one of each: of the training rollouts where they are recorded."""
        found: dict[str, Finding] = {}
        for finding in sorted(self.findings, key=lambda finding: finding.estimate.at.get("split") != "train"):
            if finding.severity == "info" and finding.name in HEALTH:
                found.setdefault(finding.name, finding)
        return tuple(found[name] for name in HEALTH if name in found)

    @property
    def silent(self) -> bool:
        """Nothing was written for twenty steps' time: when it will end cannot be told."""
        if self.age is None or self.left.value is None or self.step is None or self.planned is None:
            return self.age is not None and self.age > 600
        return self.age > max(120.0, 20 * self.left.value / max(1, self.planned - self.step))

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": "equipoise.watch/1",
            "run": self.name,
            "step": self.step,
            "planned": self.planned,
            "age": self.age,
            "silent": self.silent,
            "gone": self.gone,
            "logged": {
                one.name: {"key": one.key, "step": one.step, "value": one.value, "recent": list(one.recent[-20:])}
                for one in self.logged
            },
            "verdict": self.verdict,
            "confidence": self.confidence,
            "use": self.use,
            "judged_step": self.judged_step,
            "findings": [finding.to_dict() for finding in self.findings],
            "left": self.left.to_dict(),
            "notes": list(self.notes),
        }


def summarise_run(run: Watched, *, now: float) -> Summary:
    judged = run.judged
    return Summary(
        run.name,
        run.curves.last,
        run.planned,
        None if run.written is None else max(0.0, now - run.written),
        tuple(_logged(run)),
        None if judged is None else judged.diagnosis.verdict,
        None if judged is None else judged.diagnosis.confidence,
        None if judged is None else judged.diagnosis.use,
        None if judged is None else judged.step,
        () if judged is None else judged.diagnosis.findings,
        run.left,
        tuple(run.notes),
        run.gone,
    )


def _logged(run: Watched) -> list[Logged]:
    """The roles that are logged, and of the passes the first and the deepest."""
    ks = run.curves.passes()
    roles = [*ROLES, *(f"pass@{k}" for k in dict.fromkeys((*ks[:1], *ks[-1:])))]
    found = []
    for role in roles:
        steps, values = run.curves.of_role(role)
        by_step = dict(sorted(zip(steps, values, strict=True), key=lambda point: point[0]))  # stable: the last counts
        if by_step:
            key = safe_text(run.curves.sources[role].key, NAME)
            recent = tuple(by_step.values())[-RECENT:]
            found.append(Logged(role, key, next(reversed(by_step)), recent[-1], recent))
    return found
