"""What a study's page tells above its figures: what was compared, on how much, and the command that makes it again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.base import Estimate
from equipoise.files import read_json
from equipoise.views.study_numbers import RESULTS, read_study


@dataclass(frozen=True, slots=True)
class StudyFacts:
    about: str
    facts: tuple[tuple[str, str], ...]
    numbers: dict[str, list[Estimate]]  # as `read_study` gives them


def read_study_facts(path: Path) -> StudyFacts:
    """A study's numbers, with what its page says of how they were made; what results.json does not tell is left out."""
    numbers = read_study(path)
    results: dict[str, Any] = read_json(path / RESULTS if path.is_dir() else path)
    evaluation = results.get("evaluation") or {}
    told = {
        "arms": ", ".join(map(str, results.get("recipes") or ())),
        "seeds": _joined(results.get("seeds")),
        "rollouts per run": results.get("rollouts_per_run"),
        "problems": evaluation.get("problems"),
        "samples per problem": evaluation.get("samples"),
        "temperatures": _joined(evaluation.get("temperatures")),
        "made by": results.get("command"),
        "read from": str(path),
    }
    facts = tuple(
        (label, f"{value:,}" if isinstance(value, int) else str(value)) for label, value in told.items() if value
    )
    return StudyFacts(str(results.get("about") or "A study"), facts, numbers)


def _joined(values: Any) -> str:
    return ", ".join(map(str, values)) if isinstance(values, list) else ""
