"""`equipoise serve --upstream URL`: any OpenAI client, any server, a strategy and a token budget in between."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def serve(
    config: Annotated[Path | None, typer.Argument(help="a TOML file: upstreams, presets, limits, keys")] = None,
    upstream: Annotated[
        list[str] | None, typer.Option(help="a server, e.g. http://localhost:8000/v1; several for several replicas")
    ] = None,
    strategy: Annotated[
        str | None, typer.Option(help="where a request names none, e.g. majority:n=8; auto needs --plan")
    ] = None,
    budget: Annotated[int | None, typer.Option(help="tokens that may be generated for one request", min=1)] = None,
    plan: Annotated[Path | None, typer.Option(help="of equipoise plan, for the strategy auto")] = None,
    host: Annotated[str | None, typer.Option(help="address to listen on; any but loopback needs keys")] = None,
    port: Annotated[int | None, typer.Option(help="0: any free port; default 8080", min=0, max=65535)] = None,
    ops_port: Annotated[
        int | None, typer.Option(help="metrics and the status page; default 9090", min=0, max=65535)
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="processes; each has a part of every cap, and an ops port of its own", min=1)
    ] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="any setting, e.g. limits.width=16; see the documentation")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="print one JSON line with the addresses instead of sentences")
    ] = False,
) -> None:
    """Serve the OpenAI API in front of one or more servers, and search before answering.

    Callers choose with the model's name (MODEL@majority:n=8), with extra_body={"equipoise": {...}}, or not at all. Keys of callers
    are in EQUIPOISE_GATEWAY_KEYS or in the config, the upstream's own is in EQUIPOISE_API_KEY.

    Example: equipoise serve --upstream http://localhost:8000/v1 --strategy majority:n=8 --budget 20000
    """
    import json
    from importlib.util import find_spec

    from equipoise.config import load_config
    from equipoise.errors import MissingExtra

    if any(find_spec(name) is None for name in ("starlette", "uvicorn", "httptools", "aiohttp")):
        raise MissingExtra("serve", needed_for="equipoise serve")
    from equipoise.gateway.answering import Gateway
    from equipoise.gateway.serving import serve as run
    from equipoise.gateway.settings import Settings
    from equipoise.gateway.workers import share_caps

    given = {
        "strategy": strategy,
        "budget": budget,
        "host": host,
        "port": port,
        "ops_port": ops_port,
        "workers": workers,
    }
    words = [f"{name}={json.dumps(value)}" for name, value in given.items() if value is not None]
    if plan is not None:
        words.append(f"plan={json.dumps(str(plan))}")
    if upstream:
        words.append("upstreams=[" + ", ".join(f"{{url = {json.dumps(url)}}}" for url in upstream) + "]")
    gateway = Gateway(share_caps(load_config(Settings, path=config, overrides=[*(setting or ()), *words])))

    def say(address: str, ops: list[str]) -> None:
        if as_json:
            told = {"schema": "equipoise.serve/1", "address": f"{address}/v1", "ops": ops[0], "workers": ops}
            typer.echo(json.dumps(told))
        else:
            pages = "\n".join(f"{each}/  status page, {each}/metrics" for each in ops)
            typer.echo(f"{address}/v1  base URL for any OpenAI client\n{pages}\nleave with Ctrl-C")

    run(gateway, say)
