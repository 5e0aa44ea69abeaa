"""`equipoise sample MODEL TASK -o OUT`: record a pool of completions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from equipoise.cli.options import (
    MODELS,
    Device,
    Edt,
    MinP,
    Repel,
    Served,
    Split,
    Temperature,
    TopNSigma,
    TopP,
    decoding_of,
)


def sample(
    model: Annotated[str, typer.Argument(help=MODELS)],
    task: Annotated[
        str,
        typer.Argument(
            help="a task with its settings, e.g. countdown:numbers=4, or a problem file (JSON lines, Parquet)"
        ),
    ],
    out: Annotated[Path, typer.Option("-o", "--out", help="run folder; one that is there is gone on with")],
    samples: Annotated[int, typer.Option("-n", "--samples", help="completions of each problem", min=1)] = 16,
    problems: Annotated[
        int | None, typer.Option(help="problems; default: 100, or all of a file that holds fewer", min=1)
    ] = None,
    budget: Annotated[
        list[int] | None,
        typer.Option(
            help="limit on the tokens of a completion; may be repeated, all problems are drawn with each", min=0
        ),
    ] = None,
    answer_tokens: Annotated[
        int | None,
        typer.Option(
            help="budgets limit the thinking, and so many tokens more are for the answer (thinkers, servers that can)",
            min=1,
        ),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(help="of a completion, without --budget; default: the run's own, else 20 (others: 256)", min=1),
    ] = None,
    temperature: Temperature = 1.0,
    top_p: TopP = 1.0,
    min_p: MinP = None,
    top_n_sigma: TopNSigma = None,
    edt: Edt = None,
    repel: Repel = None,
    split: Split = None,
    seed: Annotated[int, typer.Option(help="seed of problems and completions", min=0)] = 0,
    tokens: Annotated[
        float, typer.Option(help="share of the problems whose token lists are recorded", min=0, max=1)
    ] = 1.0,
    top_logprobs: Annotated[int, typer.Option(help="k of the token confidences; 0: ask for no log-probs", min=0)] = 20,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--text", help="prompts as a user's message or as text; default: as the model was made for"
        ),
    ] = None,
    served: Served = None,
    device: Device = "cpu",
    rows: Annotated[
        int | None, typer.Option(help="completions sampled at once in this process: fewer need less memory", min=1)
    ] = None,
    at_once: Annotated[int, typer.Option(help="problems asked of a server at once", min=1)] = 16,
    as_json: Annotated[bool, typer.Option("--json", help="print only JSON on stdout")] = False,
) -> None:
    """Record completions of many problems once, to compare strategies on them as often as you like.

    Started again, it keeps what is recorded and draws what is missing. Ctrl-C keeps what was found.

    Example: equipoise sample packaged countdown -o runs/pool -n 64 --problems 500
    """
    from equipoise.cli.numbers import print_estimates
    from equipoise.cli.show import print_json, print_warnings
    from equipoise.lab.sample import sample as run
    from equipoise.tasks.task import AtMost
    from equipoise.text.display import safe_text

    found = run(
        model,
        task,
        out,
        problems=problems or AtMost(100),
        samples=samples,
        budgets=budget or (),
        answer_tokens=answer_tokens,
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        decoding=decoding_of(min_p=min_p, top_n_sigma=top_n_sigma, edt=edt, repel=repel),
        split=split,
        seed=seed,
        tokens=tokens,
        top_logprobs=top_logprobs or None,
        chat=chat,
        served=served,
        device=device,
        rows=rows,
        at_once=at_once,
        say=lambda line: typer.echo(safe_text(line, 1000), err=True),
    )
    if as_json:
        print_json(found.to_dict())
        return
    print_warnings(found.warnings)
    print_estimates(found.estimates)
    ended = "stopped early: start it again to go on. " if found.interrupted else ""
    typer.echo(
        safe_text(
            f"{ended}{found.rollouts:,} completions of {found.problems:,} problems, {found.tokens:,} tokens, "
            f"{found.drawn:,} drawn in {found.seconds:,.0f} s: {found.folder}",
            1000,
        )
    )
