"""`equipoise doctor`: what is installed, whether plug-ins load, and which controls of a config act."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from equipoise.lab.doctor import Examination
    from equipoise.lab.doctor_asked import Control


def doctor(
    config: Annotated[
        Path | None,
        typer.Option(help="a GRPOConfig (TOML, JSON, YAML), a verl Hydra config, or a file for equipoise train"),
    ] = None,
    in_ray: Annotated[bool, typer.Option("--ray", help="look for the verl plug-in inside a Ray worker too")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print only JSON on stdout")] = False,
) -> None:
    """Say what is installed, whether the plug-ins load, and which controls are live, inert or overridden.

    Exits with 1 where something installed does not work. Example: equipoise doctor --config examples/verl/gppo.yaml
    """
    from equipoise.cli.show import console, print_json
    from equipoise.lab.doctor import examine

    found = examine(config, in_ray=in_ray)
    if as_json:
        print_json(found.to_dict())
    else:
        out = console()
        for line in _lines(found):
            out.print(line, markup=False)
    if found.broken:
        raise typer.Exit(1)


def _lines(found: Examination) -> list[str]:
    lines = ["installed"]
    for one in found.packages:
        state = "–" if one.version is None else "unsupported" if one.ok is False else "ok" if one.ok else "not checked"
        note = f"  ({one.note})" if one.note else ""
        lines.append(f"  {one.name:<13} {one.version or 'not installed':<15} {one.supported:<26} {state}{note}")
    lines.append("plug-ins")
    lines += [
        f"  {one.host:<13} {one.where:<15} {'ok' if one.ok else 'BROKEN':<7} {one.found}" for one in found.plugins
    ]
    if not found.plugins:
        lines.append("  none: neither TRL nor verl is installed")
    if found.host is not None:
        lines.append(f"controls in this {found.host} config")
        lines += [line for one in found.controls for line in _control(one)] or ["  none asked for"]
    return lines


def _control(one: Control) -> list[str]:
    lines = [f"  {one.name:<22} {one.state}"]
    if one.why:
        lines.append(f"      why  {one.why}")
    if one.fix:
        lines.append(f"      fix  {one.fix}")
    return [*lines, *(f"      not checked: {each}" for each in one.unchecked)]
