"""`equipoise methods [NAME]`: the catalogue, methods and recipes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from equipoise.catalogue.base import Loop, Method, Recipe
    from equipoise.catalogue.paste import Paste

STATUS: Mapping[Loop, Mapping[str, str]] = {
    "training": {
        "untested": "not yet compared in a study of ours",
        "proven": "better than the plain arm of our studies on two families of tasks or more, and worse nowhere",
        "mixed": "better than the plain arm of a study of ours in pass@1 or pass@k, on one family of tasks only or with a loss elsewhere",
        "neutral": "compared in a study of ours, where it did not help",
    },
    "inference": {
        "untested": "not yet compared at equal tokens in a benchmark of ours",
        "proven": "better than its baseline at equal tokens on two families of tasks or more, and worse nowhere",
        "mixed": "compared at equal tokens: better than its baseline in some cases, not in others or on one family of tasks only",
        "neutral": "compared at equal tokens, where it did not help",
    },
}


def methods(
    name: Annotated[str | None, typer.Argument(help="one method or recipe; default: all")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print only JSON on stdout")] = False,
) -> None:
    """All controls of training, recipes of them and all strategies of inference: equation, settings, hosts, paper and traps.

    Example: equipoise methods clip_cov
    """
    from equipoise.catalogue.table import methods as all_methods
    from equipoise.catalogue.table import recipes as all_recipes
    from equipoise.cli.show import console, print_json
    from equipoise.cli.tables import room
    from equipoise.errors import unknown_name

    asked = None if name is None else name.replace("-", "_")
    chosen = [method for method in all_methods() if asked in (None, method.name)]
    recipes = [recipe for recipe in all_recipes() if asked in (None, recipe.name)]
    if not chosen and not recipes:
        known = [method.name for method in all_methods()] + [recipe.name for recipe in all_recipes()]
        raise unknown_name("method", str(name), known)
    if as_json:
        print_json(_as_json(chosen, recipes))
        return
    lines = _overview(chosen, recipes, room())
    if asked is not None:
        lines = [line for method in chosen for line in _page(method)]
        lines += [line for recipe in recipes for line in _recipe_page(recipe)]
    out = console()
    for line in lines:
        out.print(line, markup=False)


def _as_json(chosen: Sequence[Method], recipes: Sequence[Recipe]) -> dict[str, Any]:
    from dataclasses import asdict

    from equipoise.catalogue.paste import pastes, recipe_pastes

    def told(row: Method | Recipe, found: Sequence[Paste]) -> dict[str, Any]:
        return asdict(row) | {"paste": {each.host: {"needs": each.needs, "lines": each.lines} for each in found}}

    return {
        "schema": "equipoise.methods/1",
        "methods": [told(method, pastes(method)) for method in chosen],
        "recipes": [told(recipe, recipe_pastes(recipe)) for recipe in recipes],
    }


def _overview(chosen: Sequence[Method], recipes: Sequence[Recipe], width: int | None) -> list[str]:
    """A row for each under its loop; what a terminal has no room for goes on below, in the same column."""
    from equipoise.catalogue.paste import pastes, recipe_pastes
    from equipoise.cli.tables import NARROWEST, fold

    def where(found: Sequence[Paste]) -> str:
        return ", ".join(f"{each.host}{'*' if each.needs else ''}" for each in found) or "–"

    rows = {f"{loop}:": [(m.name, where(pastes(m)), m.about) for m in chosen if m.loop == loop] for loop in STATUS}
    whole = [(recipe.name, where(recipe_pastes(recipe)), recipe.about) for recipe in recipes]
    parts = {"training:": rows["training:"], "recipes of training:": whole, "inference:": rows["inference:"]}
    names_width, hosts_width = (max(len(row[at]) for part in parts.values() for row in part) for at in (0, 1))
    lines: list[str] = []
    for title, part in parts.items():
        lines += ["", title] if lines else [title]
        for name, hosts, about in part:
            before = f"{name:<{names_width}}  {hosts:<{hosts_width}}  "
            lines += fold(before + about, width and max(width, len(before) + NARROWEST), indent=" " * len(before))
    installed = "* with equipoise installed beside the trainer: pip install 'equipoise[trl]' or 'equipoise[verl]'"
    return [*lines, "", *fold(installed, width)]


def _page(method: Method) -> list[str]:
    """What it does, where that comes from, what to paste, and what to look out for."""
    from equipoise.catalogue.paste import pastes

    lines = [f"{method.name}: {method.about}", f"  loop      {method.loop}", f"  paper     {method.link}"]
    if method.equation:
        lines.append(f"  equation  {method.equation}")
    if method.inputs:
        lines.append(f"  inputs    {', '.join(method.inputs)}")
    lines.append(f"  settings  {', '.join(f'{key} = {value}' for key, value in method.settings.items()) or 'none'}")
    lines += _pasted(pastes(method))
    if method.lacking:
        lines.append(f"  train     not in equipoise train: it would need {method.lacking}")
    lines += [f"  acts only {what.replace('_', '-')}" for what in method.acts_only]
    lines += [f"  trap      {trap}" for trap in method.traps]
    where = f" ({', '.join(method.results)})" if method.results else ""
    return [*lines, f"  status    {STATUS[method.loop][method.status]}{where}"]


def _recipe_page(recipe: Recipe) -> list[str]:
    """What it is made of, the batch that it was reported with, and what runs it whole."""
    from equipoise.catalogue.paste import recipe_pastes

    batch = f"{recipe.prompts_per_step} problems × {recipe.completions_per_prompt} completions a step, updates: {recipe.updates_per_step}"
    lines = [f"{recipe.name}: {recipe.about}", f"  paper     {recipe.link}"]
    lines += [f"  method    {spec}" for spec in recipe.specs]
    if recipe.temperature is not None:
        lines.append(f"  sampling  at temperature {recipe.temperature:g}, and so with the policy that learns and a KL")
    if recipe.ema is not None:
        lines.append(
            f"  average   of the weights over the steps: w̄ ← {recipe.ema:g} w̄ + {1 - recipe.ema:g} w, which is handed over"
        )
    return [*lines, f"  batch     {batch}", *_pasted(recipe_pastes(recipe))]


def _pasted(found: Sequence[Paste]) -> list[str]:
    lines: list[str] = []
    for each in found:
        if each.needs:
            lines.append(f"  {each.host:<9} with equipoise ({each.needs}):")
        lines += [f"  {each.host:<9} {line}" for line in each.lines]
    return lines
