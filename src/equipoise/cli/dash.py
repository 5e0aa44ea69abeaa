"""`equipoise dash DIR`: a live page over runs that are being written."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def dash(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="a run folder, or a folder that holds runs")],
    host: Annotated[
        str, typer.Option(help="address to listen on; any but loopback needs the token that is printed")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port")] = 8765,
    name: Annotated[
        list[str] | None, typer.Option(help="a further host name under which the page may be opened")
    ] = None,
    every: Annotated[float, typer.Option(min=0.2, help="seconds between two looks at the folders")] = 1.0,
    use: Annotated[str, typer.Option(help="what the model is for: answer, vote or search")] = "search",
    k: Annotated[int | None, typer.Option("-k", min=1, help="samples per problem in that use")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="print one JSON line with the address instead of a sentence")
    ] = False,
) -> None:
    """Show curves, group health, the frontier and alerts while training runs.

    On loopback no token is asked for unless EQUIPOISE_DASH_TOKEN sets one; from your own machine use a tunnel (ssh -L 8765:localhost:8765).

    Example: equipoise dash runs/
    """
    import json
    import socket

    from equipoise.diagnosis.rules import USES
    from equipoise.errors import UsageError, unknown_name
    from equipoise.views.live.guard import choose_token
    from equipoise.views.live.server import check_extras, listen, make_app, serve
    from equipoise.views.live.state import Live

    if use not in USES:
        raise unknown_name("use", use, USES)
    check_extras()
    live = Live(folder, use=use, k=k)
    token = choose_token(host)
    try:
        bound = listen(host, port)
    except (OSError, OverflowError) as problem:
        raise UsageError(f"cannot listen on {host}:{port}: {problem}; name another --port or --host") from problem
    shown = socket.gethostname() if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{bound.getsockname()[1]}/" + ("" if token is None else f"?token={token}")
    if as_json:
        typer.echo(json.dumps({"schema": "equipoise.dash/1", "address": address}))
    else:
        typer.echo(f"{address}\nleave with Ctrl-C")
    serve(make_app(live, bound=host, token=token, every=every, names=name or ()), bound)
