"""`equipoise diagnose PATH…`: the verdict card."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

UNHEALTHY = 3


def diagnose(
    path: Annotated[
        list[Path],
        typer.Argument(help="run folder, rollout or metrics files of any known format; several are read as one run"),
    ],
    baseline: Annotated[Path | None, typer.Option(help="rollouts of the base model on the same problems")] = None,
    use: Annotated[
        str, typer.Option(help="what the model is for: answer (one sample), vote (majority of k) or search (any of k)")
    ] = "search",
    k: Annotated[
        int | None, typer.Option("-k", help="samples per problem in that use; default: half of those drawn")
    ] = None,
    solved_at: Annotated[
        float | None, typer.Option(help="a rollout is right from this reward on, where no verdict is recorded")
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            help="OURS=THEIRS: which column of the file to take, prompt_id=puzzle_idx; which reward of TRL or "
            "verifiers is the verdict, correct=accuracy_reward"
        ),
    ] = None,
    fail_on: Annotated[
        list[str] | None,
        typer.Option(
            help="exit with 3 on this verdict: collapse, inflation, both, no-data, any (unhealthy), or its full name"
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="seed of resampling", min=0)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="print only JSON on stdout")] = False,
) -> None:
    """Say which loop fails, how sure that is, and the exact setting to change.

    Example: equipoise diagnose out/completions --baseline base.jsonl --use search -k 64
    """
    from equipoise.cli.card import print_card
    from equipoise.cli.columns import parse_columns
    from equipoise.cli.show import counting, print_json, print_warnings
    from equipoise.diagnosis.verdict import diagnose as diagnose_run
    from equipoise.diagnosis.verdict import verdicts_named

    columns = parse_columns(column)
    failing = {verdict for name in fail_on or () for verdict in verdicts_named(name)}
    with counting("reading", quiet=as_json) as progress:
        found = diagnose_run(
            path,
            baseline=baseline,
            use=use,
            k=k,
            solved_at=solved_at,
            columns=columns,
            seed=seed,
            progress=progress,
        )
    print_warnings(found.warnings)
    if as_json:
        print_json(found.to_dict())
    else:
        print_card(found)
    if found.verdict in failing:
        raise typer.Exit(UNHEALTHY)
