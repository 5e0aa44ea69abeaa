"""Equipoise keeps a reasoning model exploring: measure, diagnose, control training, control inference.

Names are resolved on first use, so `import equipoise` loads neither pyarrow nor torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from equipoise.base import Question as Question
    from equipoise.base import Rollout as Rollout
    from equipoise.catalogue.build import build as build
    from equipoise.catalogue.lint import lint as lint
    from equipoise.catalogue.setup import Setup as Setup
    from equipoise.catalogue.table import methods as methods
    from equipoise.diagnosis.verdict import diagnose as diagnose
    from equipoise.errors import UsageError as UsageError
    from equipoise.infer.ledger import Ledger as Ledger
    from equipoise.lab.blend import blend as blend
    from equipoise.lab.compare import compare as compare
    from equipoise.lab.plan import plan as plan
    from equipoise.lab.probe import probe as probe
    from equipoise.lab.sample import sample as sample
    from equipoise.lab.solve import solve as solve
    from equipoise.lab.study import study as study
    from equipoise.measures.table import measure as measure
    from equipoise.rollouts.convert import convert as convert
    from equipoise.rollouts.readers.table import open_source as read
    from equipoise.rollouts.run import Run as Run
    from equipoise.samplers.http import connect as connect
    from equipoise.tasks.table import find_task as task
    from equipoise.training.loop import train as train
    from equipoise.training.recipe import recipe as recipe
    from equipoise.views.report import report as report
    from equipoise.views.table import figure as figure

_PUBLIC = {
    "read": "equipoise.rollouts.readers.table:open_source",
    "convert": "equipoise.rollouts.convert:convert",
    "measure": "equipoise.measures.table:measure",
    "diagnose": "equipoise.diagnosis.verdict:diagnose",
    "report": "equipoise.views.report:report",
    "figure": "equipoise.views.table:figure",
    "methods": "equipoise.catalogue.table:methods",
    "build": "equipoise.catalogue.build:build",
    "lint": "equipoise.catalogue.lint:lint",
    "recipe": "equipoise.training.recipe:recipe",
    "task": "equipoise.tasks.table:find_task",
    "connect": "equipoise.samplers.http:connect",
    "sample": "equipoise.lab.sample:sample",
    "solve": "equipoise.lab.solve:solve",
    "compare": "equipoise.lab.compare:compare",
    "probe": "equipoise.lab.probe:probe",
    "plan": "equipoise.lab.plan:plan",
    "train": "equipoise.training.loop:train",
    "blend": "equipoise.lab.blend:blend",
    "study": "equipoise.lab.study:study",
    "Run": "equipoise.rollouts.run:Run",
    "Rollout": "equipoise.base:Rollout",
    "Question": "equipoise.base:Question",
    "Ledger": "equipoise.infer.ledger:Ledger",
    "Setup": "equipoise.catalogue.setup:Setup",
    "UsageError": "equipoise.errors:UsageError",
}

__all__ = [
    "Ledger",
    "Question",
    "Rollout",
    "Run",
    "Setup",
    "UsageError",
    "blend",
    "build",
    "compare",
    "connect",
    "convert",
    "diagnose",
    "figure",
    "lint",
    "measure",
    "methods",
    "plan",
    "probe",
    "read",
    "recipe",
    "report",
    "sample",
    "solve",
    "study",
    "task",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'equipoise' has no attribute '{name}'")
    module, attribute = _PUBLIC[name].split(":")
    value = getattr(import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
