"""From a method's name to its code, with settings bound: `build("clip_cov:share=0.0002,low=1")`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from inspect import Parameter, isclass, signature
from typing import Any

from equipoise import specs
from equipoise.catalogue.table import find_method, is_built, methods
from equipoise.errors import MissingExtra, UsageError, unknown_name

_EXTRAS = {"torch": "train"}  # a package that a room needs → the extra that brings it


def build(spec: str, **settings: Any) -> Any:
    """The method that a spec names: a function with its settings bound, or an instance of a class.

    `"name"`, `"name:setting=value,…"`, or `"module:name"` and `"module:name:setting=value,…"` for code outside the
    catalogue. Settings are the row's own, then the spec's, then the keywords'. A function comes back as a
    `functools.partial` named as its row, so that the settings stay data: `.keywords` has them, and a call may override
    them.
    """
    name, given = read_spec(spec)
    given = {**given, **settings}
    if ":" in name:
        return _bound(name.rpartition(":")[2], _load(name, asked=spec), {}, given)
    method = find_method(name)
    if not is_built(method):
        raise UsageError(f"{method.name} is in the catalogue, but not in this release: {method.target} is not there")
    return _bound(method.name, _load(method.target, asked=spec), method.settings, given)


def read_spec(spec: str) -> tuple[str, dict[str, Any]]:
    """A method's name, or `module:name`, and the settings that a spec gives it."""
    names = {method.name for method in methods()}
    return specs.read_spec(spec, known=names | {name.replace("_", "-") for name in names}, what="method")


def _load(target: str, *, asked: str) -> Callable[..., Any]:
    module, _, name = target.rpartition(":")
    try:
        found = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name in _EXTRAS:
            raise MissingExtra(_EXTRAS[error.name], needed_for=asked) from error
        if not (error.name and module.startswith(error.name)):  # the module is there, and one that it imports is not
            raise
        raise UsageError(f"'{asked}' names the module '{module}', which is not installed here") from error
    except AttributeError as error:
        raise UsageError(f"'{asked}' names '{name}', which the module {module} does not have") from error
    if not callable(found):
        raise UsageError(f"'{asked}' names a {type(found).__name__}, not a function or class")
    return found  # type: ignore[no-any-return]


def _bound(name: str, target: Callable[..., Any], own: Mapping[str, Any], given: Mapping[str, Any]) -> Any:
    parameters = signature(target).parameters.values()
    allowed = [p.name for p in parameters if p.kind is Parameter.KEYWORD_ONLY or (isclass(target) and p.name != "self")]
    for key, value in given.items():
        if key not in allowed and not any(p.kind is Parameter.VAR_KEYWORD for p in parameters):
            raise unknown_name(f"setting of {name}", key, allowed)
        if isinstance(value, str) and isinstance(own.get(key), int | float):
            raise UsageError(f"{key} of {name} takes a value such as {own[key]}, found '{value}'")
    if isclass(target):
        return target(**{**own, **given})
    method = partial(target, **{**own, **given})
    method.__name__ = name  # type: ignore[attr-defined]
    return method
