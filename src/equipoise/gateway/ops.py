"""The operator's port: metrics, and a small page of what is under way. No request's text is on it but answers and model names."""

from __future__ import annotations

import asyncio
import time
from html import escape

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from equipoise.gateway.answering import Gateway
from equipoise.gateway.board import SHOWN, Entry, margin
from equipoise.gateway.guard import Guard
from equipoise.gateway.metrics import Labels
from equipoise.text.display import many

HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
STYLE = (
    "body{font:14px/1.5 system-ui,sans-serif;margin:2rem;max-width:70rem}table{border-collapse:collapse;margin:0 0 1.5rem}"
    "td,th{padding:.2rem .8rem .2rem 0;text-align:left;border-bottom:1px solid #ddd}"
    "@media(prefers-color-scheme:dark){body{background:#111;color:#ddd}td,th{border-color:#333}}"
)
MOST = 200  # requests on the page


def make_ops(gateway: Gateway) -> Guard:
    async def metrics(request: Request) -> Response:
        return PlainTextResponse(gateway.metrics.write(_gauges(gateway)), media_type="text/plain; version=0.0.4")

    async def page(request: Request) -> Response:
        return HTMLResponse(write_page(gateway), headers=HEADERS)

    app = Starlette(routes=[Route("/", page), Route("/metrics", metrics)])
    app.router.redirect_slashes = False
    return Guard(app, gateway.keys_for_ops, ping=gateway.settings.ping, open_paths=frozenset())


def _gauges(gateway: Gateway) -> dict[str, dict[Labels, float]]:
    each, cache = gateway.fleet.upstreams, gateway.cache
    kept = {} if cache is None else {"entries": len(cache), "bytes": cache.size}
    return {
        **{f"equipoise_cache_{name}": {(): float(value)} for name, value in kept.items()},
        "equipoise_inflight": {(): gateway.running},
        "equipoise_tasks": {(): len(asyncio.all_tasks())},
        "equipoise_upstream_load": {(("upstream", up.name),): up.load for up in each},
        "equipoise_upstream_up": {(("upstream", up.name),): float(up.resting() <= 0) for up in each},
        "equipoise_upstream_faults": {(("upstream", up.name),): up.faults for up in each},
    }


def write_page(gateway: Gateway) -> str:
    now = time.monotonic()
    entries = list(gateway.entries.values())
    heads = ["request", "caller", "model", "strategy", "seconds", "samples", "leading", "margin", "tokens", "budget"]
    requests = [_request(entry, now) for entry in entries[:MOST]]
    upstreams = [
        [
            up.name,
            "up" if up.resting() <= 0 else "down",
            str(up.load),
            str(up.served),
            str(up.faults),
            ", ".join(up.models or ("?",)),
        ]
        for up in gateway.fleet.upstreams
    ]
    callers = [
        [caller.name, str(caller.running), f"{caller.ledger.spent.generated:,}", _number(caller.rule.tokens_per_day)]
        for caller in gateway.keys.callers
    ]
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><meta http-equiv=refresh content=2><title>equipoise serve</title>"
        f"<style>{STYLE}</style><h1>equipoise serve</h1>"
        f"<h2>{many(len(entries), 'request')} under way{', stopping' if gateway.draining else ''}</h2>{_table(heads, requests)}"
        f"<h2>Upstreams</h2>{_table(['upstream', '', 'under way', 'served', 'faults', 'models'], upstreams)}"
        f"<h2>Callers</h2>{_table(['caller', 'under way', 'tokens today', 'of'], callers)}</html>"
    )


def _request(entry: Entry, now: float) -> list[str]:
    votes = entry.votes
    leader = votes.most_common(1)[0] if votes else None
    ahead = margin(votes)
    return [
        entry.id,
        entry.caller,
        entry.order.model,
        entry.order.spec,
        f"{now - entry.began:.1f}",
        f"{entry.finished} of {entry.order.width * entry.order.n}" if entry.order.strategy is not None else "–",
        "–" if leader is None else f"{leader[0][:SHOWN]} ({leader[1]})",
        "–" if ahead is None else str(ahead),
        f"{entry.ledger.spent.generated:,}",
        _number(entry.order.budget),
    ]


def _number(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def _table(heads: list[str], rows: list[list[str]]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"
