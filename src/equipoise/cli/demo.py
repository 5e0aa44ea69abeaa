"""`equipoise demo`: one verdict card per bundled example run."""

from __future__ import annotations

from typing import Annotated

import typer

NEXT = (
    "These runs are synthetic. For yours: equipoise diagnose PATH --baseline BASE, where PATH is a folder or file that a trainer "
    "or evaluator wrote and BASE holds the base model's rollouts of the same problems (equipoise diagnose --help)."
)


def demo(as_json: Annotated[bool, typer.Option("--json", help="print only JSON on stdout")] = False) -> None:
    """Diagnose one bundled example run per verdict.

    Example: equipoise demo
    """
    from equipoise.cli.card import print_card
    from equipoise.cli.show import print_json
    from equipoise.lab.demo import EXAMPLES, run_demo

    found = list(zip(EXAMPLES, run_demo(), strict=True))
    if as_json:
        runs = [
            {"title": title, "synthetic": True, "command": example.command(), "diagnosis": diagnosis.to_dict()}
            for example, (title, diagnosis) in found
        ]
        print_json({"schema": "equipoise.demo/1", "runs": runs})
        return
    for example, (title, diagnosis) in found:
        print_card(diagnosis, title=title)
        typer.echo(f"  $ {example.command()}\n")
    typer.echo(NEXT)
