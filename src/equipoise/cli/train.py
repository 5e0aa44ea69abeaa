"""`equipoise train [CONFIG] [key=value…]`: one training run of the embedded trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def train(
    config: Annotated[str | None, typer.Argument(help="a TOML file of settings", show_default=False)] = None,
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="settings that replace those of the file: learning.lr=1e-4, trackers=\\[tensorboard]",
            show_default=False,
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="go on from the newest complete checkpoint of the folder")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print only JSON on stdout")] = False,
) -> None:
    """Train a model by reinforcement learning, and evaluate it before and after.

    Example: equipoise train grpo.toml out=runs/high method.surrogate=clip_higher

    Example: equipoise train out=runs/broad recipe=preserve
    """
    from importlib.util import find_spec

    from equipoise.cli.numbers import print_estimates
    from equipoise.cli.show import print_json
    from equipoise.config import load_config
    from equipoise.errors import MissingExtra
    from equipoise.text.display import many, safe_text
    from equipoise.training.recipe import TrainConfig

    path, overrides = _split([*([config] if config else []), *(settings or [])])
    chosen = load_config(TrainConfig, path=path, overrides=overrides)
    if find_spec("torch") is None:
        raise MissingExtra("train", needed_for="equipoise train")
    from equipoise.training.loop import train as run  # after the settings are known to be good: torch takes seconds

    def say(line: str) -> None:
        typer.echo(safe_text(line, 1000), err=True)  # stdout is for the result

    trained = run(chosen, resume=resume, say=say)
    if as_json:
        print_json(trained.to_dict())
        return
    for when, evaluated in (("before", trained.before), ("after", trained.after)):
        if evaluated:
            typer.echo(f"{when} training, held-out problems")
            print_estimates([number for one in evaluated for number in one.estimates])
            typer.echo()
    typer.echo(safe_text(f"{many(trained.steps, 'step')}, {trained.seconds:,.0f} s: {trained.folder}", 1000))
    if (share := chosen.learning.blend) is not None:
        what = "the weights" if chosen.learning.ema is None else f"the average of the weights ({chosen.learning.ema:g})"
        typer.echo(f"handed over: {what if share == 1 else f'{share:g} of the way from the base to {what}'}")


def _split(words: list[str]) -> tuple[Path | None, list[str]]:
    """The file, where the first word names one, and the settings."""
    if words and ("=" not in words[0] or words[0].endswith(".toml")):
        return Path(words[0]), words[1:]
    return None, words
