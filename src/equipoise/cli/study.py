"""`equipoise study CONFIG [key=value…]`: arms × seeds on the same problems with equal rollouts."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer


def study(
    config: Annotated[Path, typer.Argument(help="a TOML file: the base run, its arms, seeds and evaluation")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="settings that replace those of the file: out=results seeds=\\[0,1]",
            show_default=False,
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="runs side by side, each in a process of its own")] = 1,
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="training stops after so many; the results are of the seeds that all arms have finished, and the same command goes on",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print only JSON on stdout")] = False,
) -> None:
    """Compare training methods: arms × seeds on the same problems with equal rollouts.

    Started again, it keeps the runs that are finished and goes on with the others.

    Example: equipoise study studies/quick.toml out=/tmp/quick
    """
    from importlib.util import find_spec

    from equipoise.cli.show import print_json
    from equipoise.config import load_config
    from equipoise.errors import MissingExtra
    from equipoise.lab.study_config import StudyConfig
    from equipoise.text.display import safe_text

    overrides = settings or []
    chosen = load_config(StudyConfig, path=config, overrides=overrides)
    if find_spec("torch") is None:
        raise MissingExtra("train", needed_for="equipoise study")
    from equipoise.lab.study import study as run  # after the settings are known to be good: torch takes seconds

    command = shlex.join(["equipoise", "study", str(config), *overrides, *(["--jobs", str(jobs)] if jobs > 1 else [])])
    with _progress() as (say, tick):
        studied = run(chosen, jobs=jobs, minutes=minutes, command=command, say=say, tick=tick)
    if as_json:
        print_json(studied.to_dict())
        return
    typer.echo((Path(studied.folder) / "README.md").read_text())
    typer.echo(safe_text(f"results: {studied.folder}", 1000))


@contextmanager
def _progress() -> Iterator[tuple[Callable[[str], None], Callable[[str], None]]]:
    """Finished runs as lines on stderr; on a terminal also the running step, in a line that is written over."""
    from equipoise.cli.show import console
    from equipoise.text.display import safe_text

    def say(line: str) -> None:
        typer.echo(safe_text(line, 1000), err=True)

    if not sys.stderr.isatty():
        yield say, lambda line: None
        return
    from rich.text import Text

    out = console(stderr=True)
    with out.status("starting") as status:
        yield (
            lambda line: out.print(Text(safe_text(line, 1000))),
            lambda line: status.update(Text(safe_text(line, 200))),
        )
