"""`equipoise report RUN…`: the verdict, the figures and the rollouts in one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[
        list[Path],
        typer.Argument(
            help="run folders, rollout files of any known format, or a study's folder; each gets its own part"
        ),
    ],
    baseline: Annotated[Path | None, typer.Option(help="rollouts of the base model on the same problems")] = None,
    out: Annotated[Path, typer.Option("-o", "--out", help="the page; its numbers go beside it as .json")] = Path(
        "report.html"
    ),
    use: Annotated[
        str, typer.Option(help="what the model is for: answer (one sample), vote (majority of k) or search (any of k)")
    ] = "search",
    k: Annotated[
        int | None, typer.Option("-k", help="samples per problem in that use; default: half of those drawn")
    ] = None,
    solved_at: Annotated[
        float | None, typer.Option(help="a rollout is right from this reward on, where no verdict is recorded")
    ] = None,
    rollouts: Annotated[int, typer.Option(min=0, help="rollouts of each run in the page")] = 200,
    column: Annotated[
        list[str] | None,
        typer.Option(
            help="OURS=THEIRS: which column of the file to take, prompt_id=puzzle_idx; which reward of TRL or "
            "verifiers is the verdict, correct=accuracy_reward"
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="seed of resampling", min=0)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="print only JSON on stdout")] = False,
) -> None:
    """Write one HTML file that works without a network: verdict, figures with intervals, rollouts as token heat maps.

    Example: equipoise report out/plain out/kept --baseline base.jsonl -o report.html
    """
    from equipoise.cli.columns import parse_columns
    from equipoise.cli.show import print_json, print_warnings
    from equipoise.text.display import safe_text
    from equipoise.views.report import report as make_report

    made = make_report(
        run,
        baseline=baseline,
        out=out,
        use=use,
        k=k,
        solved_at=solved_at,
        shown=rollouts,
        columns=parse_columns(column),
        seed=seed,
        say=lambda line: typer.echo(safe_text(line, 1000), err=True),
    )
    print_warnings(dict.fromkeys(line for part in made.runs for line in part.diagnosis.warnings))
    if as_json:
        print_json(made.to_dict(rollouts=False) | {"html": str(out), "twin": str(out.with_suffix(".json"))})
        return
    for part in made.runs:
        typer.echo(safe_text(f"{part.name}: {part.diagnosis.verdict}", 300))
    typer.echo(safe_text(f"report: {out}", 1000))
