"""`equipoise plan PILOT --budget TOKENS`: one budget split over many questions."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Goal(StrEnum):
    vote = "vote"
    verified = "verified"


class Count(StrEnum):
    tokens = "tokens"
    samples = "samples"


def plan(
    pilot: Annotated[
        list[Path],
        typer.Argument(help="recorded samples: a run folder, or files with prompt_id, answer, correct and n_tokens"),
    ],
    budget: Annotated[int, typer.Option(help="tokens of all questions together, the pilot's included", min=1)],
    goal: Annotated[
        Goal,
        typer.Option(
            help="vote: the majority of a question's samples answers; verified: a checker finds the right one"
        ),
    ] = Goal.vote,
    first: Annotated[
        int | None,
        typer.Option(help="samples that every question gets first; default 4, or half of those recorded", min=1),
    ] = None,
    most: Annotated[
        int | None, typer.Option(help="samples of a question at most; for a vote, no more than were recorded", min=2)
    ] = None,
    cap: Annotated[
        int | None, typer.Option(help="of several recorded budgets, that of the first samples; default the smallest")
    ] = None,
    repeats: Annotated[int, typer.Option(help="orders of the samples to learn from and to try it on", min=2)] = 20,
    seed: Annotated[int, typer.Option(help="seed of those orders", min=0)] = 0,
    count: Annotated[
        Count, typer.Option(help="what costs: tokens, or samples where the pool tells no n_tokens")
    ] = Count.tokens,
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN=VALUE", help="only rows with this value, e.g. run_id=base; may be repeated"),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(metavar="OURS=THEIRS", help="names of the pool's columns, e.g. prompt_id=puzzle_idx"),
    ] = None,
    out: Annotated[Path, typer.Option("-o", "--out", help="where the plan is written")] = Path("plan.json"),
    as_json: Annotated[bool, typer.Option("--json", help="print only JSON on stdout")] = False,
) -> None:
    """Spend more samples on the questions where they change the answer, fewer where the first few agree.

    Learns from recorded samples what a further one is worth, by how far the first few of a question agree; splits the budget so
    that the last token buys as much everywhere; and says, on questions it has not learnt from, whether that beats equal spending.

    Example: equipoise plan runs/pool --budget 200000
    """
    from equipoise.cli.columns import parse_columns, parse_where
    from equipoise.cli.show import print_json, print_warnings
    from equipoise.cli.tables import lay_out, room
    from equipoise.lab.plan import plan as run
    from equipoise.lab.plan import write_plan
    from equipoise.text.display import safe_text

    planned = run(
        pilot[0] if len(pilot) == 1 else pilot,
        budget=budget,
        goal=goal.value,
        first=first,
        most=most,
        cap=cap,
        repeats=repeats,
        seed=seed,
        count=count.value,
        where=parse_where(where),
        columns=parse_columns(column),
    )
    write_plan(planned, out)
    print_warnings(planned.notes)
    if as_json:
        print_json(planned.to_dict())
        return
    for line in lay_out(planned.heads(), planned.rows(), width=room()):
        typer.echo(line)
    for line in (*planned.about(), f"wrote {out}"):
        typer.echo(safe_text(line, 1000))
