"""`equipoise watch RUN`: one run in a terminal while it is written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from equipoise.views.live.state import Live
    from equipoise.views.live.summary import Summary
    from equipoise.views.live.watched import Watched


def watch(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="a run folder")],
    once: Annotated[bool, typer.Option("--once", help="look once, print and leave")] = False,
    every: Annotated[float, typer.Option(min=0.2, help="seconds between two looks")] = 2.0,
    use: Annotated[str, typer.Option(help="what the model is for: answer, vote or search")] = "search",
    k: Annotated[int | None, typer.Option("-k", min=1, help="samples per problem in that use")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="print only JSON on stdout: one object, or without --once one a line")
    ] = False,
) -> None:
    """Follow a run: curves, entropy, reward, dead groups, alerts and the time left.

    On a terminal the screen is kept up to date; piped, a line is printed whenever there is something new.

    Example: equipoise watch runs/grpo
    """
    import sys
    import time

    from equipoise.cli.show import print_json
    from equipoise.diagnosis.rules import USES
    from equipoise.errors import unknown_name
    from equipoise.files import plain
    from equipoise.views.live.state import Live
    from equipoise.views.live.summary import summarise_run

    if use not in USES:
        raise unknown_name("use", use, USES)
    live = Live(path.parent if path.is_file() else path, use=use, k=k)
    run = _only_run(live, path)
    if once:
        live.judge(run)
        found = summarise_run(run, now=time.time())
        if as_json:
            print_json(found.to_dict())
        else:
            _print_screen(found)
        return
    try:
        if not as_json and sys.stdout.isatty():
            _keep_screen(live, run, every)
            return
        import json

        from equipoise.cli.watch_screen import one_line

        for _ in _changes(live, run, every):
            found = summarise_run(run, now=time.time())
            text = json.dumps(plain(found.to_dict()), allow_nan=False) if as_json else one_line(found)
            print(text, flush=True)
    except KeyboardInterrupt:
        raise typer.Exit from None


def _only_run(live: Live, path: Path) -> Watched:
    from equipoise.errors import UsageError

    live.refresh()
    runs = list(live.runs.values())
    if len(runs) != 1:
        found = f"holds {len(runs)} runs: name one of them, or use equipoise dash" if runs else "holds no run"
        raise UsageError(f"{path} {found} (a run folder has metrics.jsonl, run.json or rollouts/)")
    return runs[0]


def _changes(live: Live, run: Watched, every: float) -> Iterator[None]:
    """At once, and then whenever the run has changed or was judged."""
    import time

    new = True
    while True:
        if live.due() is run:
            live.judge(run)
            new = True
        if new:
            yield
        time.sleep(every)
        new = live.refresh()


def _keep_screen(live: Live, run: Watched, every: float) -> None:
    import time

    from rich.live import Live as Screen

    from equipoise.cli.show import console
    from equipoise.cli.watch_screen import screen
    from equipoise.views.live.summary import summarise_run

    with Screen(
        screen(summarise_run(run, now=time.time())), console=console(), auto_refresh=False, vertical_overflow="ellipsis"
    ) as shown:
        for _ in _changes(live, run, every):
            shown.update(screen(summarise_run(run, now=time.time())), refresh=True)


def _print_screen(found: Summary) -> None:
    from equipoise.cli.show import console
    from equipoise.cli.watch_screen import screen

    console().print(screen(found))
