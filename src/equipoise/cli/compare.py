"""`equipoise compare --pool POOL --strategies …`: strategies on the same recorded samples, with accuracy and tokens."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from equipoise.cli.options import (
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
    from equipoise.lab.compare import Compared


class Count(StrEnum):
    tokens = "tokens"
    samples = "samples"


def compare(
    strategies: Annotated[
        list[str],
        typer.Option(
            "--strategies",
            "--strategy",
            help="specs with commas between them; setting=value belongs to the spec before it: "
            "single,majority:n=8,esc:window=5,cap=40; may be repeated",
        ),
    ],
    pool: Annotated[
        list[Path] | None,
        typer.Option(
            "--pool",
            help="recorded samples: a run folder, or a file with prompt_id, answer, correct and n_tokens; may be repeated",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="instead of --pool, with --task: packaged, smollm2, a run folder, a model file, proxy:…, or a server's URL"
        ),
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="problems for the model, e.g. countdown:numbers=4, or a file")
    ] = None,
    budget: Annotated[
        int | None, typer.Option(help="tokens that a strategy may generate for one question; default: no limit", min=0)
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(help="strategy that differences are taken to; default: the majority over all recorded samples"),
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(help="orders of the samples to average over; default 20, of a model 1 draw", min=1)
    ] = None,
    seed: Annotated[int, typer.Option(help="seed of those orders, of ties, and of a model's problems", min=0)] = 0,
    count: Annotated[
        Count, typer.Option(help="what costs: tokens, or samples where the pool tells no n_tokens")
    ] = Count.tokens,
    resample: Annotated[
        bool, typer.Option("--resample", help="draw with replacement: a strategy may ask for more than were recorded")
    ] = False,
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN=VALUE", help="only rows with this value, e.g. run_id=base; may be repeated"),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(metavar="OURS=THEIRS", help="names of the pool's columns, e.g. prompt_id=puzzle_idx"),
    ] = None,
    problems: Problems = None,
    split: Split = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(help="of one completion of the model; default: the run's own, else 20 (others: 256)", min=1),
    ] = None,
    temperature: Temperature = 1.0,
    top_p: TopP = 1.0,
    min_p: MinP = None,
    top_n_sigma: TopNSigma = None,
    edt: Edt = None,
    repel: Repel = None,
    served: Served = None,
    device: Device = "cpu",
    at_once: Annotated[int, typer.Option(help="questions under way together", min=1)] = 8,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="folder for compare.json, choices.jsonl and frontier.svg")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print only JSON on stdout")] = False,
) -> None:
    """Compare inference strategies on samples that were recorded once, or on a model.

    Every strategy gets the same samples in the same order. Tokens are all that it generated, cancelled ones included. A sample
    without an answer abstains. Problems are the units of every interval. Ctrl-C keeps the repeats that are whole.

    Example: equipoise compare --pool runs/pool --strategies single,majority:n=8,anytime:alpha=0.05
    """
    from equipoise.cli.columns import parse_columns, parse_where
    from equipoise.cli.show import print_json, print_warnings
    from equipoise.cli.tables import room
    from equipoise.errors import UsageError
    from equipoise.lab.compare import compare as run
    from equipoise.lab.compare import split_specs
    from equipoise.lab.compare_files import write_compared
    from equipoise.lab.compare_run import live_pool
    from equipoise.tasks.task import AtMost
    from equipoise.text.display import safe_text

    specs = [spec for text in strategies for spec in split_specs(text)]
    if bool(pool) == (model is not None) or (model is None) != (task is None):
        raise UsageError(
            "a comparison needs recorded samples (--pool POOL), or a model with problems (--model and --task)"
        )
    with _progress() as tick:
        compared = run(
            (pool if len(pool) > 1 else pool[0])
            if pool
            else live_pool(
                task or "",
                model or "",
                problems=problems or AtMost(20),
                split=split,
                max_tokens=max_tokens,
                temperature=temperature,
                top_p=top_p,
                decoding=decoding_of(min_p=min_p, top_n_sigma=top_n_sigma, edt=edt, repel=repel),
                seed=seed,
                served=served,
                device=device,
            ),
            specs,
            repeats=repeats,
            seed=seed,
            budget=budget,
            reference=reference,
            count=count.value,
            resample=resample,
            where=parse_where(where),
            columns=parse_columns(column),
            at_once=at_once,
            tick=tick,
        )
    print_warnings(compared.warnings)
    written = [] if out is None else write_compared(compared, out)
    if as_json:
        print_json(compared.to_dict())
        return
    for line in _page(compared, room()):
        typer.echo(line)
    for path in written:
        typer.echo(safe_text(f"wrote {path}", 1000))


def _page(compared: Compared, width: int | None) -> list[str]:
    from equipoise.cli.tables import fold, lay_out
    from equipoise.text.display import safe_text

    exact = [f"{arm.strategy} {arm.exact:.4f}" for arm in compared.arms if arm.exact is not None]
    after = compared.without_interval()
    after += [f"exact, over every subset of the samples: {', '.join(exact)}"] if exact else []
    after += [f"note, {arm.strategy}: {note}" for arm in compared.arms for note in arm.notes]
    return [
        *fold(safe_text(f"{compared.pool}: {compared.about()}", 1000), width),
        *lay_out(compared.heads(), compared.rows(), width=width),
        *(line for said in after for line in fold(safe_text(said, 1000), width)),
    ]


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None] | None]:
    """Questions answered and the time left, on a terminal's stderr; nothing when piped."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from equipoise.cli.show import console

    with Progress(
        TextColumn("comparing"), BarColumn(), MofNCompleteColumn(), TextColumn("questions"), TimeRemainingColumn(),
        console=console(stderr=True), transient=True,
    ) as bar:  # fmt: skip
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
