"""`equipoise solve QUESTION --model MODEL`: one strategy on a question, or on the problems of a task, under a token budget."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from equipoise.cli.options import (
    MODELS,
    Device,
    Edt,
    MinP,
    Problems,
    Repel,
    Served,
    Split,
    Temperature,
    TopNSigma,
    TopP,
    decoding_of,
)

if TYPE_CHECKING:
    from equipoise.base import Choice


def solve(
    question: Annotated[str | None, typer.Argument(help="a question in words; or leave it out and give --task")] = None,
    model: Annotated[str, typer.Option(help=MODELS)] = "packaged",
    task: Annotated[
        str | None, typer.Option(help="problems to solve: a task, e.g. countdown:numbers=4, or a problem file")
    ] = None,
    strategy: Annotated[
        str, typer.Option(help="how the tokens are spent, e.g. majority:n=8; equipoise methods lists them")
    ] = "majority",
    budget: Annotated[
        int | None, typer.Option(help="tokens that may be generated for one question; default: no limit", min=1)
    ] = None,
    run_budget: Annotated[
        int | None, typer.Option(help="tokens that may be generated for all questions together", min=1)
    ] = None,
    problems: Problems = None,
    split: Split = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="of one completion; default: the run's own, else 20 (others: 256)", min=1)
    ] = None,
    temperature: Temperature = 1.0,
    top_p: TopP = 1.0,
    min_p: MinP = None,
    top_n_sigma: TopNSigma = None,
    edt: Edt = None,
    repel: Repel = None,
    seed: Annotated[int, typer.Option(help="seed of problems, completions and ties", min=0)] = 0,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--text", help="prompts as a user's message or as text; default: as the model was made for"
        ),
    ] = None,
    served: Served = None,
    device: Device = "cpu",
    at_once: Annotated[int, typer.Option(help="questions under way together", min=1)] = 8,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="new run folder for choices.jsonl and all that was drawn")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print only JSON on stdout")] = False,
) -> None:
    """Answer a question, or the problems of a task, with a strategy under a hard token budget.

    Every generated token counts, those of cancelled completions too. Ctrl-C answers with what was found so far.

    Example: equipoise solve --task countdown --strategy majority:n=16 --budget 400

    Example: equipoise solve "What is 17*23?" --model http://localhost:8000/v1 --strategy majority:n=8 --budget 20000
    """
    from equipoise.base import Sampling
    from equipoise.cli.show import print_json
    from equipoise.cli.tables import lay_out, room
    from equipoise.errors import UsageError
    from equipoise.lab.open_model import LONGER
    from equipoise.lab.solve import solve as run
    from equipoise.lab.solve import solve_task
    from equipoise.lab.solve_record import HEADS
    from equipoise.tasks.task import AtMost
    from equipoise.text.display import safe_text

    if (question is None) == (task is None):
        raise UsageError("give a question, or --task with a task or a problem file: one of the two")

    decoding = decoding_of(min_p=min_p, top_n_sigma=top_n_sigma, edt=edt, repel=repel)
    common: dict[str, Any] = {
        "strategy": strategy,
        "budget": budget,
        "seed": seed,
        "out": out,
        "served": served,
        "device": device,
        "chat": chat,
    }
    if question is not None:
        how = None
        if (max_tokens, temperature, top_p, decoding) != (None, 1.0, 1.0, {}):
            how = Sampling(max_tokens=max_tokens or LONGER, temperature=temperature, top_p=top_p, extra=decoding)
        choice = run(question, model, how=how, **common)
        if as_json:
            print_json(choice.to_dict())
        else:
            for line in _card(choice):
                typer.echo(safe_text(line, 1000))
        return
    assert task is not None
    found = solve_task(
        task,
        model,
        problems=problems or AtMost(20),
        split=split,
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        decoding=decoding,
        run_budget=run_budget,
        at_once=at_once,
        say=lambda line: typer.echo(safe_text(line, 1000), err=True),
        **common,
    )
    if as_json:
        print_json(found.to_dict())
        return
    rows = [[safe_text(cell, 60) for cell in row] for row in found.rows()]
    typer.echo("\n".join(lay_out(HEADS, rows, width=room())))
    typer.echo(safe_text(("stopped early. " if found.interrupted else "") + found.about(), 1000))
    if found.folder is not None:
        typer.echo(safe_text(f"wrote {found.folder}", 1000))


def _card(choice: Choice) -> list[str]:
    from equipoise.text.display import many

    spent = choice.spent
    lines = [
        "no answer" if choice.answer is None else choice.answer.text,
        f"stopped by {choice.stopped_by}: {many(len(choice.drawn), 'completion')}, {many(spent.generated, 'token')} "
        f"({spent.cancelled:,} of them cancelled), {spent.seconds:.1f} s",
    ]
    if choice.ballots:
        best = sorted(choice.ballots.items(), key=lambda item: -item[1])[:5]
        more = len(choice.ballots) - len(best)
        listed = ", ".join(f"{answer} {votes:g}" for answer, votes in best) + (f" and {more} more" if more else "")
        lines.append(f"votes: {listed}; {choice.abstained} abstained")
    return lines + [f"note: {note}" for note in choice.notes]
