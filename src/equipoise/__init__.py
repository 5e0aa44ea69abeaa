"""Equipoise keeps a reasoning model exploring: measure, diagnose, control training, control inference.

Names are resolved on first use, so `import equipoise` loads neither pyarrow nor torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from equipoise.base import Rollout as Rollout
    from equipoise.catalogue.build import build as build
    from equipoise.catalogue.lint import lint as lint
    from equipoise.catalogue.setup import Setup as Setup
    from equipoise.catalogue.table import methods as methods
    from equipoise.diagnosis.verdict import diagnose as diagnose
    from equipoise.errors import UsageError as UsageError
    from equipoise.measures.table import measure as measure
    from equipoise.rollouts.convert import convert as convert
    from equipoise.rollouts.readers.table import open_source as read
    from equipoise.rollouts.run import Run as Run

_PUBLIC = {
    "read": "equipoise.rollouts.readers.table:open_source",
    "convert": "equipoise.rollouts.convert:convert",
    "measure": "equipoise.measures.table:measure",
    "diagnose": "equipoise.diagnosis.verdict:diagnose",
    "methods": "equipoise.catalogue.table:methods",
    "build": "equipoise.catalogue.build:build",
    "lint": "equipoise.catalogue.lint:lint",
    "Run": "equipoise.rollouts.run:Run",
    "Rollout": "equipoise.base:Rollout",
    "Setup": "equipoise.catalogue.setup:Setup",
    "UsageError": "equipoise.errors:UsageError",
}

__all__ = [
    "Rollout",
    "Run",
    "Setup",
    "UsageError",
    "build",
    "convert",
    "diagnose",
    "lint",
    "measure",
    "methods",
    "read",
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
