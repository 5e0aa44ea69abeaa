"""`equipoise`: the list of commands, and how errors leave the program.

Exit codes: 0 ok, 1 failure, 2 usage, 3 a verdict that `--fail-on` named. A command's module is imported only when the
command runs, so `--help` needs neither pyarrow nor torch.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated

import typer

from equipoise.cli import (
    blend,
    compare,
    convert,
    dash,
    demo,
    diagnose,
    doctor,
    measure,
    methods,
    plan,
    probe,
    report,
    sample,
    serve,
    solve,
    study,
    train,
    watch,
)
from equipoise.errors import UsageError, UsageErrors

app = typer.Typer(
    name="equipoise",
    help="Keep a reasoning model exploring: measure, diagnose and control both loops.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo")(demo.demo)
app.command("diagnose")(diagnose.diagnose)
app.command("measure")(measure.measure)
app.command("convert")(convert.convert)
app.command("methods")(methods.methods)
app.command("train")(train.train)
app.command("study")(study.study)
app.command("blend")(blend.blend)
app.command("sample")(sample.sample)
app.command("solve")(solve.solve)
app.command("compare")(compare.compare)
app.command("probe")(probe.probe)
app.command("plan")(plan.plan)
app.command("serve")(serve.serve)
app.command("report")(report.report)
app.command("doctor")(doctor.doctor)
app.command("dash")(dash.dash)
app.command("watch")(watch.watch)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"equipoise {version('equipoise')}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version and leave")
    ] = False,
) -> None:
    """Keep a reasoning model exploring: measure, diagnose and control both loops."""


def run() -> None:
    """Entry point: a UsageError is one line on stderr, or one a problem; so is any other failure, unless EQUIPOISE_DEBUG asks for more."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a stream that cannot encode "–" prints "?" instead of failing
    # Before torch is loaded: on a busy machine its threads would otherwise spin while they wait for each other.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        app()
    except UsageErrors as problem:
        _leave(2, *problem.lines)
    except UsageError as problem:
        _leave(2, str(problem))
    except BrokenPipeError:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # the reader has gone: nothing is left to flush to
        sys.exit(1)
    except (OSError, MemoryError) as problem:
        _leave(1, f"{type(problem).__name__}: {problem}")
    except Exception as problem:
        if os.environ.get("EQUIPOISE_DEBUG"):
            raise
        _leave(1, f"internal error, {type(problem).__name__}: {problem} (EQUIPOISE_DEBUG=1 shows where)")


def _leave(code: int, *lines: str) -> None:
    from equipoise.text.display import safe_text

    for line in lines:
        print(f"equipoise: {safe_text(line, 2000)}", file=sys.stderr)
    sys.exit(code)
