"""`equipoise demo`: collapse and its cure from the packaged model; or one verdict card per bundled example run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from equipoise.base import Estimate
    from equipoise.lab.demo import Demo
    from equipoise.training.evaluate import Evaluated

NEXT = (
    "These runs are synthetic. For yours: equipoise diagnose PATH --baseline BASE, where PATH is a folder or file that a trainer "
    "or evaluator wrote and BASE holds the base model's rollouts of the same problems (equipoise diagnose --help)."
)


def demo(
    out: Annotated[Path, typer.Option("-o", "--out", help="folder for the two runs; must not hold any yet")] = Path(
        "demo-runs"
    ),
    steps: Annotated[int, typer.Option(help="training steps of each arm")] = 100,
    cards: Annotated[bool, typer.Option("--cards", help="only diagnose one bundled example run per verdict")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print only JSON on stdout")] = False,
) -> None:
    """Train the packaged model twice, see its exploration collapse and be kept, diagnose both, spend tokens with both, draw a report.

    Takes about three minutes on two cores and needs the extra train; --cards takes seconds and does not.

    Example: equipoise demo
    """
    if cards:
        _show_cards(as_json)
        return
    from equipoise.cli.show import print_json
    from equipoise.lab.demo import run_demo

    found = run_demo(out, steps=steps, say=lambda line: typer.echo(line, err=True))
    page = _write_report(found, out)
    if as_json:
        print_json(found.to_dict() | {"report": None if page is None else str(page)})
        return
    _show(found)
    typer.echo("")
    if page is None:
        typer.echo(
            f"For a page with figures and token heat maps: pip install 'equipoise[report]', then equipoise report {out}/*"
        )
    else:
        typer.echo(f"report: {page}")


def _write_report(found: Demo, out: Path) -> Path | None:
    """Both arms on one page, beside their folders; None where what draws it is not installed."""
    from equipoise.errors import MissingExtra
    from equipoise.views.report import report

    typer.echo("drawing the report", err=True)
    page = out / "report.html"
    try:
        report([arm.trained.folder for arm in found.arms], out=page)
    except MissingExtra:
        return None
    return page


def _show(found: Demo) -> None:
    from equipoise.cli.card import print_card
    from equipoise.cli.tables import lay_out
    from equipoise.lab.demo import KEPT, PLAIN, TITLES
    from equipoise.lab.demo_spending import WAYS

    for arm in found.arms:
        print_card(arm.diagnosis, title=f"{TITLES[arm.name]}  ({arm.trained.folder})")
        typer.echo("")
    policies = [("base model", found.base, found.base_spending)]
    policies += [(TITLES[arm.name], arm.trained.after[0], arm.spending) for arm in found.arms]
    heads = ("", "pass@1", "pass@64", "distinct answers where none is right", "entropy")
    evaluated = [(title, *_numbers(found)) for title, found, _ in policies]
    spent = [(title, *(f"{spending.accuracy[way].value:.3f}" for way in WAYS)) for title, _, spending in policies]
    right = ("right answers, by how tokens are spent", *WAYS.values())
    typer.echo("\n".join([*lay_out(heads, evaluated), "", *lay_out(right, spent)]))
    typer.echo("")
    for arm in found.arms:
        typer.echo(f"{TITLES[arm.name]} against the base model: {_differences(arm.changes)}.")
    typer.echo(f"{TITLES[KEPT]} against {TITLES[PLAIN]}: {_differences(found.kept_minus_plain)}.")


def _numbers(found: Evaluated) -> tuple[str, ...]:
    digits = {"pass@1": 3, "pass@64": 3, "distinct_unsolved": 1, "entropy": 3}
    values = {name: found.value(name) for name in digits}
    return tuple("–" if value is None else f"{value:.{digits[name]}f}" for name, value in values.items())


def _differences(estimates: tuple[Estimate, ...]) -> str:
    said = []
    for e in estimates:
        between = "no interval" if e.low is None or e.high is None else f"{e.low:+.3f} to {e.high:+.3f}"
        said.append(f"{e.name} {e.value:+.3f} ({between})")
    return ", ".join(said) + f", 95 % over {estimates[0].n} problems"


def _show_cards(as_json: bool) -> None:
    from equipoise.cli.card import print_card
    from equipoise.cli.show import print_json
    from equipoise.lab.verdict_examples import EXAMPLES, diagnose_examples

    found = list(zip(EXAMPLES, diagnose_examples(), strict=True))
    if as_json:
        runs = [
            {"title": title, "synthetic": True, "command": example.command(), "diagnosis": diagnosis.to_dict()}
            for example, (title, diagnosis) in found
        ]
        print_json({"schema": "equipoise.demo.cards/1", "runs": runs})
        return
    for example, (title, diagnosis) in found:
        print_card(diagnosis, title=title)
        typer.echo(f"  $ {example.command()}\n")
    typer.echo(NEXT)
