"""`equipoise probe`: what more thinking does to a model's answers, and the setting to use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from equipoise.cli.options import Split

if TYPE_CHECKING:
    from equipoise.lab.probe_pool import Probed


def probe(
    model: Annotated[
        str | None,
        typer.Option(help="packaged, smollm2, a run folder, a .safetensors or .gguf file, or what transformers loads"),
    ] = None,
    upstream: Annotated[str | None, typer.Option(metavar="URL", help="a server instead of a model")] = None,
    pool: Annotated[
        list[Path] | None,
        typer.Option(
            help="a sweep that is recorded already (columns budget, prompt_id, answer, correct); may be repeated"
        ),
    ] = None,
    task: Annotated[
        str, typer.Option(help="a task with its settings, e.g. countdown:numbers=4, or a problem file")
    ] = "countdown",
    budgets: Annotated[
        str | None, typer.Option(help="limits on the tokens of a completion, three or more: 64,128,256,512")
    ] = None,
    answer_tokens: Annotated[
        int | None,
        typer.Option(help="budgets limit the thinking (0: none), and so many tokens more are for the answer", min=1),
    ] = None,
    thinking_field: Annotated[
        str | None,
        typer.Option(help="the server's request field for a thinking budget; default: the limit is held from outside"),
    ] = None,
    end: Annotated[str, typer.Option(help="what ends the thinking, where the limit is held from outside")] = "</think>",
    cue: Annotated[str | None, typer.Option(help="said after a forced end of thinking, as 'Final Answer:'")] = None,
    samples: Annotated[int, typer.Option("-n", "--samples", help="completions of each problem and budget", min=1)] = 8,
    problems: Annotated[
        int | None, typer.Option(help="problems; default: 50, or all of a file that holds fewer", min=1)
    ] = None,
    spend: Annotated[
        float | None,
        typer.Option(
            help="tokens a question that the setting to use may take; default: one of the largest budget", min=1
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="run folder for what is drawn; one that is there is gone on with")
    ] = None,
    temperature: Annotated[float, typer.Option(help="of sampling; 0 is greedy", min=0)] = 1.0,
    split: Split = None,
    seed: Annotated[int, typer.Option(help="seed of problems, completions and resampling", min=0)] = 0,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--text", help="prompts as a user's message or as text; default: as the model was made for"
        ),
    ] = None,
    served: Annotated[str | None, typer.Option(help="which of a server's models; default: the one it has")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    at_once: Annotated[int, typer.Option(help="problems asked of a server at once", min=1)] = 16,
    column: Annotated[
        list[str] | None,
        typer.Option(metavar="OURS=THEIRS", help="names of a pool's columns, e.g. prompt_id=puzzle_idx"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print only JSON on stdout")] = False,
) -> None:
    """Draw the same problems at several budgets: does more thinking cost accuracy, and how should the tokens be spent?

    For every budget: accuracy, spread of the answers, verdicts that flip, tokens really spent, and a vote over shorter completions at
    the same tokens. What is drawn is recorded, and equipoise diagnose reads it. Ctrl-C keeps what was found.

    Example: equipoise probe --model packaged --task countdown:numbers=4 --budgets 8,12,16,20 -o runs/probe
    """
    from equipoise.cli.columns import parse_columns
    from equipoise.cli.show import print_json, print_warnings
    from equipoise.errors import UsageError
    from equipoise.lab.probe import probe as run
    from equipoise.lab.probe_pool import probe_pool
    from equipoise.tasks.task import AtMost
    from equipoise.text.display import safe_text

    sources = {"--model": model, "--upstream": upstream, "--pool": pool}
    given = [name for name, value in sources.items() if value]
    if len(given) != 1:
        found = " and ".join(given) or "none"
        raise UsageError(f"a probe reads one of --model, --upstream and --pool, found {found}: give one of them")
    if pool:
        probed = probe_pool(pool, spend=spend, answer_tokens=answer_tokens, columns=parse_columns(column), seed=seed)
    else:
        if out is None:
            raise UsageError("what a probe draws is recorded: name a run folder with --out, for example -o runs/probe")
        probed = run(
            model or upstream or "",
            task,
            out,
            budgets=_numbers(budgets),
            samples=samples,
            problems=problems or AtMost(50),
            answer_tokens=answer_tokens,
            thinking_field=thinking_field,
            markers=("<think>", end),
            cue=cue,
            spend=spend,
            temperature=temperature,
            split=split,
            seed=seed,
            chat=chat,
            served=served,
            device=device,
            at_once=at_once,
            say=lambda line: typer.echo(safe_text(line, 1000), err=True),
        )
    print_warnings(probed.warnings)
    if as_json:
        print_json(probed.to_dict())
        return
    for line in _page(probed):
        typer.echo(line)


def _page(probed: Probed) -> list[str]:
    from equipoise.cli.tables import lay_out, room
    from equipoise.text.display import many, safe_text

    tokens = "" if probed.tokens is None else f", {many(probed.tokens, 'token')}"
    ended = "stopped early: start it again to go on. " if probed.interrupted else ""
    title = f"{ended}{probed.source}: {many(probed.problems, 'problem')} at every budget, {many(probed.rollouts, 'completion')}{tokens}"
    lines = (title, *probed.about())
    return [
        safe_text(lines[0], 1000),
        *lay_out(probed.heads(), probed.rows(), width=room()),
        *(safe_text(line, 1000) for line in lines[1:]),
    ]


def _numbers(text: str | None) -> list[int]:
    from equipoise.errors import UsageError

    try:
        return [int(part) for part in (text or "").split(",") if part.strip()]
    except ValueError:
        raise UsageError(
            f"--budgets takes whole numbers with commas in between, as 64,128,256; found '{text}'"
        ) from None
