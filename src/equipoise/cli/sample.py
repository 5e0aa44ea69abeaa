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
    TopNSigma,
    decoding_of,
)


def sample(
    model: Annotated[str, typer.Argument(help=MODELS)],
    task: Annotated[
        str,
        typer.Argument(
            help="a task with its settings, e.g. countdown:numbers=4, a problem file (JSON lines, Parquet), or the folder of a "
            "recorded run, whose prompts are asked again under its ids"
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
        typer.Option(
            help="of a completion, without --budget; default: that of the recorded run, or of the model's own, else 20 (others: 256)",
            min=1,
        ),
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="of sampling; 0 is greedy; default: 1, or as a recorded run has it", min=0)
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(help="share of the probability that is sampled from; default: 1, or as a recorded run has it"),
    ] = None,
    min_p: MinP = None,
    top_n_sigma: TopNSigma = None,
    edt: Edt = None,
    repel: Repel = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="of the task: train, tune, test or all; default: all of a file or of a recorded run, else test"
        ),
    ] = None,
    grader: Annotated[
        str | None,
        typer.Option(
            help="with a recorded run: the task that judges, math or gsm8k (by recorded reference answers), countdown, module:Class"
        ),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(help="with a recorded run, OURS=THEIRS: which column of its files to take, reference_answer=gold"),
    ] = None,
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

    A baseline for a recorded run: equipoise sample BASE-MODEL runs/a -o runs/base --grader math
    """
    from equipoise.cli.columns import parse_columns
    from equipoise.cli.numbers import print_estimates
    from equipoise.cli.show import print_json, print_warnings
    from equipoise.lab.sample import sample as run
    from equipoise.tasks.task import AtMost
    from equipoise.text.display import many, safe_text

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
        grader=grader,
        columns=parse_columns(column),
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
            f"{ended}{many(found.rollouts, 'completion')} of {many(found.problems, 'problem')}, {many(found.tokens, 'token')}, "
            f"{found.drawn:,} drawn in {found.seconds:,.0f} s: {found.folder}",
            1000,
        )
    )
