"""`equipoise measure NAME PATH`: one measure, with its intervals."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def measure(
    name: Annotated[
        str,
        typer.Argument(
            help="passk, majk, entropy, forks, diversity, transfer, law, budget, calibration, health, format, profile, drift "
            "or mismatch; what figures draw: course, exchange, distribution, positions, mismatch_course, transitions, "
            "health_steps, votes, confidence, lengths"
        ),
    ],
    path: Annotated[
        list[Path], typer.Argument(help="run folder or rollout file of any known format; several are read as one run")
    ],
    baseline: Annotated[Path | None, typer.Option(help="rollouts of the base model on the same problems")] = None,
    k: Annotated[
        list[int] | None, typer.Option("-k", help="one or more k; default: powers of two up to the samples per problem")
    ] = None,
    solved_at: Annotated[
        float | None, typer.Option(help="a rollout is right from this reward on, where no verdict is recorded")
    ] = None,
    bins: Annotated[int, typer.Option(help="bins of the calibration error")] = 10,
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
    """One measure with its 95% intervals.

    Example: equipoise measure passk rollouts.jsonl --baseline base.jsonl -k 1 -k 64
    """
    from equipoise.cli.columns import parse_columns
    from equipoise.cli.numbers import print_estimates
    from equipoise.cli.show import counting, print_json, print_warnings
    from equipoise.measures.evidence import Options
    from equipoise.measures.table import find_measure
    from equipoise.measures.table import measure as measure_paths
    from equipoise.text.display import many

    find_measure(name)
    options = Options(k=tuple(k or ()), solved_at=solved_at, seed=seed, bins=bins)
    with counting("reading", quiet=as_json) as progress:
        measured = measure_paths(
            path, [name], baseline=baseline, options=options, columns=parse_columns(column), progress=progress
        )
    print_warnings(measured.warnings)
    if as_json:
        print_json(measured.to_dict())
    else:
        counted = f"{many(measured.n_prompts, 'problem')}, {many(measured.n_rollouts, 'rollout')}"
        typer.echo(f"{name}: {counted if measured.n_rollouts else 'a log without rollouts'}")
        print_estimates(measured.estimates[name])
