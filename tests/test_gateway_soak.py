"""Twenty minutes and 20,000 requests of every kind: nothing grows, nothing leaks, every token is booked.

EQUIPOISE_SOAK_SECONDS and EQUIPOISE_SOAK_REQUESTS give another length, EQUIPOISE_SOAK_WRITE a file for the figures.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from gateway_process import Served
from soak_world import AT_ONCE, Upstream, growth, soak

GROWTH = 20.0  # megabytes


def run_soak(*, seconds: float, requests: int) -> dict:
    async def go() -> dict:
        async with Upstream() as one, Upstream() as two:
            second = f'upstreams=[{{url="{one.url}"}}, {{url="{two.url}"}}]'
            settings = [second, f"limits.at_once={AT_ONCE}", "retries=2", "check=30"]
            words = [word for setting in settings for word in ("--set", setting)]
            served = await asyncio.to_thread(Served, one.url, *words)
            try:
                url, ops, pid = served.url, served.ops, served.child.pid
                return await soak(url, ops, pid, [one, two], seconds=seconds, requests=requests)
            finally:
                code, errors = await asyncio.to_thread(served.end)
                assert (code, errors) == (0, "")

    return asyncio.run(go())


def check(found: dict, *, most: float) -> None:
    assert found["wrong"] == []
    assert found["ledger"] == found["upstream"] > 0
    assert (found["inflight"], found["load"], found["connections"]) == (0, 0, 0)
    assert found["after"]["tasks"] <= found["before"]["tasks"]
    assert found["after"]["files"] <= found["before"]["files"]
    assert growth(found["rss"]) <= most


@pytest.mark.integration
def test_a_minute_of_mixed_load_leaves_nothing_behind():
    check(run_soak(seconds=60, requests=1000), most=GROWTH)


@pytest.mark.soak
def test_twenty_minutes_of_mixed_load_leave_nothing_behind():
    seconds = float(os.environ.get("EQUIPOISE_SOAK_SECONDS", "1200"))
    requests = int(os.environ.get("EQUIPOISE_SOAK_REQUESTS", "20000"))
    found = run_soak(seconds=seconds, requests=requests)
    found["growth_mb"] = growth(found["rss"])
    if (path := os.environ.get("EQUIPOISE_SOAK_WRITE")) is not None:
        Path(path).write_text(json.dumps(found, indent=1) + "\n")
    check(found, most=GROWTH)
