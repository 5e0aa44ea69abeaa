"""Finding a method, recipe or host by name, and whether the code that a method names is there."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

from equipoise.catalogue.advantages import ADVANTAGES
from equipoise.catalogue.base import Host, Method, Recipe
from equipoise.catalogue.controllers import CONTROLLERS
from equipoise.catalogue.hosts import HOSTS
from equipoise.catalogue.inference import INFERENCE
from equipoise.catalogue.rewards import REWARDS
from equipoise.catalogue.training import RECIPES, TRAINING
from equipoise.errors import unknown_name

Row = TypeVar("Row")


def methods() -> tuple[Method, ...]:
    return TRAINING + ADVANTAGES + REWARDS + CONTROLLERS + INFERENCE


def recipes() -> tuple[Recipe, ...]:
    return RECIPES


def find_method(name: str) -> Method:
    """By name; `clip-cov` is `clip_cov`."""
    return _find("method", name.replace("-", "_"), {method.name: method for method in methods()})


def find_recipe(name: str) -> Recipe:
    return _find("recipe", name, {recipe.name: recipe for recipe in recipes()})


def find_host(name: str) -> Host:
    return _find("host", name, HOSTS)


def _find(what: str, name: str, rows: Mapping[str, Row]) -> Row:
    if name not in rows:
        raise unknown_name(what, name, rows)
    return rows[name]


def is_built(method: Method) -> bool:
    """Whether the method's target exists in this installation. Its module is parsed, not imported: it may need torch."""
    module, _, name = method.target.partition(":")
    return name in _names(module)


def hosts_of(method: Method) -> tuple[str, ...]:
    """Where the method can be set today: hosts that have it themselves, and our own once both are built and it lacks nothing."""
    own = "equipoise" if method.loop == "training" else "gateway"
    ready = find_spec(HOSTS[own].ours) is not None and is_built(method) and not method.lacking
    return tuple(host for host in HOSTS if host in method.hosts or (host == own and ready))


@cache
def _names(module: str) -> frozenset[str]:
    """The names that a module defines at its top level; none where it is missing."""
    try:
        spec = find_spec(module)
    except ModuleNotFoundError:  # a parent package is missing
        return frozenset()
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return frozenset()
    found: set[str] = set()
    for node in ast.parse(Path(spec.origin).read_bytes()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found.update(target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return frozenset(found)
