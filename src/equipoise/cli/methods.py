"""`equipoise methods [NAME]`: the catalogue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from equipoise.catalogue.base import Loop, Method

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
    name: Annotated[str | None, typer.Argument(help="one method; default: all")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print only JSON on stdout")] = False,
) -> None:
    """All controls of training and all strategies of inference: equation, settings, hosts, paper and traps.

    Example: equipoise methods clip_cov
    """
    from dataclasses import asdict

    from equipoise.catalogue.paste import pastes
    from equipoise.catalogue.table import find_method
    from equipoise.catalogue.table import methods as all_methods
    from equipoise.cli.show import console, print_json
    from equipoise.cli.tables import room

    chosen = all_methods() if name is None else (find_method(name),)
    if as_json:
        rows = [
            asdict(method)
            | {"paste": {found.host: {"needs": found.needs, "lines": found.lines} for found in pastes(method)}}
            for method in chosen
        ]
        print_json({"schema": "equipoise.methods/1", "methods": rows})
        return
    out = console()
    for line in _overview(chosen, room()) if name is None else _page(chosen[0]):
        out.print(line, markup=False)


def _overview(chosen: tuple[Method, ...], width: int | None) -> list[str]:
    """A row for each under its loop; what a terminal has no room for goes on below, in the same column."""
    from equipoise.catalogue.paste import pastes
    from equipoise.cli.tables import NARROWEST, fold

    hosts = [", ".join(f"{found.host}{'*' if found.needs else ''}" for found in pastes(method)) for method in chosen]
    names_width, hosts_width = max(len(method.name) for method in chosen), max(map(len, hosts))
    lines: list[str] = []
    loop = None
    for method, where in zip(chosen, hosts, strict=True):
        if method.loop != loop:
            lines += ["", f"{method.loop}:"] if lines else [f"{method.loop}:"]
            loop = method.loop
        before = f"{method.name:<{names_width}}  {where or '–':<{hosts_width}}  "
        lines += fold(before + method.about, width and max(width, len(before) + NARROWEST), indent=" " * len(before))
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
    for found in pastes(method):
        if found.needs:
            lines.append(f"  {found.host:<9} with equipoise ({found.needs}):")
        lines += [f"  {found.host:<9} {line}" for line in found.lines]
    if method.lacking:
        lines.append(f"  train     not in equipoise train: it would need {method.lacking}")
    lines += [f"  acts only {what.replace('_', '-')}" for what in method.acts_only]
    lines += [f"  trap      {trap}" for trap in method.traps]
    where = f" ({', '.join(method.results)})" if method.results else ""
    return [*lines, f"  status    {STATUS[method.loop][method.status]}{where}"]
