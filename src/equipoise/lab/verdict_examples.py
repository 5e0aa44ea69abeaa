"""Made-up runs, one per verdict, shipped with the package, and their diagnoses.

`make_examples` writes the files again, byte for byte the same rollouts: `python -m equipoise.lab.make_examples`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from equipoise.base import Diagnosis, Verdict
from equipoise.lab.synthetic import World

FOLDER = Path(__file__).parent / "examples"
BASE = "base"  # the base model's rollouts: all examples were made from this model
SEED = 1

_WORLD = World(problems=100, samples=16, passes=4, budget_samples=6, tokens=8, prompts=True)
BASE_SAMPLES = 32


@dataclass(frozen=True, slots=True)
class Example:
    """A made-up run. `label` is the verdict that its making implies."""

    name: str
    title: str
    world: World
    label: Verdict
    baseline: bool = True

    @property
    def path(self) -> Path:
        return example_path(self.name)

    def command(self) -> str:
        """The line that prints this example's card."""
        against = f" --baseline {example_path(BASE)}" if self.baseline else ""
        return f"equipoise diagnose {self.path}{against}"


def example_path(name: str) -> Path:
    return FOLDER / f"{name}.parquet"


EXAMPLES: tuple[Example, ...] = (
    Example(
        "healthy",
        "Synthetic run 1: it learns; routine tokens lose their entropy, forks and answers keep their breadth",
        replace(_WORLD, learning=1.0, narrowing=1.0),
        "healthy",
    ),
    Example(
        "collapse",
        "Synthetic run 2: every problem is drawn to its likeliest answer, solved or not",
        replace(_WORLD, learning=0.2, collapse=1.0),
        "training-time entropy collapse",
    ),
    Example(
        "inflation",
        "Synthetic run 3: it learns, but thinking past the best budget scatters its answers",
        replace(_WORLD, learning=0.5, narrowing=0.2, inflation=1.0),
        "inference-time variance inflation",
    ),
    Example(
        "both",
        "Synthetic run 4: collapsed in training, and long thinking scatters what is left",
        replace(_WORLD, learning=0.2, collapse=1.0, inflation=1.0),
        "both",
    ),
    Example(
        "too-little",
        "Synthetic run 5: eight problems, one pass over them, no baseline",
        replace(_WORLD, problems=8, samples=4, passes=1, budgets=()),
        "not enough data",
        baseline=False,
    ),
)


def diagnose_examples() -> list[tuple[str, Diagnosis]]:
    """Every bundled example's title and diagnosis."""
    from equipoise.diagnosis.verdict import diagnose

    base = example_path(BASE)
    return [(each.title, diagnose(each.path, baseline=base if each.baseline else None)) for each in EXAMPLES]
