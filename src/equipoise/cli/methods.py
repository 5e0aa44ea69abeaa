"""`equipoise methods [NAME]`: the catalogue."""

from __future__ import annotations

from typing import Annotated

import typer


def methods(
    name: Annotated[str | None, typer.Argument(help="one method; default: all")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print only JSON on stdout")] = False,
) -> None:
    """The methods that a prescription can name: loop, paper, settings, and the hosts that have them.

    Example: equipoise methods clip-cov
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
    for method in chosen:
        hosts = ", ".join(method.hosts) or "none yet"
        out.print(f"{method.name:<22} {method.loop:<10} {method.status:<9} hosts: {hosts}", markup=False)
        if name is not None:
            out.print(f"  paper     {method.paper or '–'}\n  settings  {dict(method.settings)}", markup=False)
            for trap in method.traps:
                out.print(f"  trap      {trap}", markup=False)
