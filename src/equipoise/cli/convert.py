"""`equipoise convert SRC DST`: a foreign log as our run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def convert(
    source: Annotated[Path, typer.Argument(help="rollouts or metrics of any known format")],
    target: Annotated[Path, typer.Argument(help="run folder to create; must not exist or be empty")],
    column: Annotated[
        list[str] | None,
        typer.Option(
            help="OURS=THEIRS: which column of the file to take, prompt_id=puzzle_idx; which reward of TRL or "
            "verifiers is the verdict, correct=accuracy_reward"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print only JSON on stdout")] = False,
) -> None:
    """Turn a foreign log into a run folder (Parquet + JSON) that any tool can read. The source is not changed.

    Example: equipoise convert out/completions runs/grpo
    """
    from equipoise.cli.columns import parse_columns
    from equipoise.cli.show import print_json, print_warnings
    from equipoise.rollouts.convert import convert_run
    from equipoise.rollouts.readers.table import read_run
    from equipoise.text.display import safe_text

    run = read_run(source, columns=parse_columns(column))
    counts = convert_run(run, target)
    print_warnings(run.warnings.lines())
    if as_json:
        print_json({"schema": "equipoise.convert/1", "source": run.info.source, "target": str(target), **counts})
    else:
        written = ", ".join(f"{count:,} {what.replace('n_', '')}" for what, count in counts.items())
        typer.echo(safe_text(f"{target}: {written}, read as {run.info.source}", 1000))
