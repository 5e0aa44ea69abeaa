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
    """The methods that a prescription can name: loop, paper, settings, and the hosts that have them.

    Example: equipoise methods clip_cov
    """
    from dataclasses import asdict

    from equipoise.catalogue.table import find_method
    from equipoise.catalogue.table import methods as all_methods
    from equipoise.cli.show import console, print_json

    chosen = all_methods() if name is None else (find_method(name),)
    if as_json:
        print_json({"schema": "equipoise.methods/1", "methods": [asdict(method) for method in chosen]})
        return
    out = console()
    for line in _overview(chosen) if name is None else _page(chosen[0]):
        out.print(line, markup=False)


def _overview(chosen: tuple[Method, ...]) -> list[str]:
    from equipoise.catalogue.table import hosts_of

    width = max(len(method.name) for method in chosen)
    return [
        f"{method.name:<{width}}  {method.loop:<9}  {', '.join(hosts_of(method)) or '–':<10}  {method.about}"
        for method in chosen
    ]


def _page(method: Method) -> list[str]:
    """What it does, where that comes from, what to paste, and what to look out for."""
    from equipoise.catalogue.settings import as_lines, settings_for
    from equipoise.catalogue.table import hosts_of

    lines = [f"{method.name}: {method.about}", f"  loop      {method.loop}", f"  paper     {method.link}"]
    if method.equation:
        lines.append(f"  equation  {method.equation}")
    if method.inputs:
        lines.append(f"  inputs    {', '.join(method.inputs)}")
    lines.append(f"  settings  {', '.join(f'{key} = {value}' for key, value in method.settings.items()) or 'none'}")
    for host in hosts_of(method):
        lines += [f"  {host:<8}  {line}" for line in as_lines(host, settings_for(method, host))]
    if method.lacking:
        lines.append(f"  train     not in equipoise train: it would need {method.lacking}")
    lines += [f"  acts only {what.replace('_', '-')}" for what in method.acts_only]
    lines += [f"  trap      {trap}" for trap in method.traps]
    where = f" ({', '.join(method.results)})" if method.results else ""
    return [*lines, f"  status    {STATUS[method.loop][method.status]}{where}"]
