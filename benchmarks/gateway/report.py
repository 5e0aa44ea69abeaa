"""The benchmark's page, from its results. Medians over rounds with 95% intervals by bootstrap of the rounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

RESAMPLES = 10_000


def write(results: dict[str, Any], soak: Path) -> str:
    return _PAGE.format(
        answer=_answer(results),
        burst=_burst(results),
        hundred=_hundred(results),
        whole=_whole(results),
        vote=_vote(results),
        fleet=_fleet(results),
        lacks=_lacks(results),
        soak=_soak(soak),
        rounds=1 + max(row["round"] for row in results["rows"]),
        command=results["command"],
        machine=_machine(results),
    )


# --- figures


def _rounds(results: dict[str, Any], scenario: str, arm: str, field: str) -> dict[int, float]:
    """By round; those in which the arm did not end in time or had no answer are missing."""
    rows = [row for row in results["rows"] if row["scenario"] == scenario and row["arm"] == arm]
    return {row["round"]: row[field] for row in rows if row.get(field) is not None}


def _values(results: dict[str, Any], scenario: str, arm: str, field: str) -> list[float]:
    return list(_rounds(results, scenario, arm, field).values())


def _over(results: dict[str, Any], scenario: str, arm: str, field: str) -> list[float]:
    """By round, what an arm takes beyond going direct."""
    mine, direct = _rounds(results, scenario, arm, field), _rounds(results, scenario, "direct", field)
    return [mine[number] - direct[number] for number in sorted(mine.keys() & direct.keys())]


def _share(results: dict[str, Any], scenario: str, arm: str) -> list[float]:
    field = "tokens_per_second"
    mine, direct = _rounds(results, scenario, arm, field), _rounds(results, scenario, "direct", field)
    return [100 * mine[number] / direct[number] for number in sorted(mine.keys() & direct.keys())]


def median(values: list[float]) -> tuple[float, float, float]:
    found = np.asarray(values)
    picks = np.random.default_rng(0).integers(len(found), size=(RESAMPLES, len(found)))
    low, high = np.quantile(np.median(found[picks], axis=1), [0.025, 0.975])
    return float(np.median(found)), float(low), float(high)


def _cell(values: list[float], scale: float = 1.0, digits: int = 1) -> str:
    if not values:
        return "–"
    middle, low, high = (f"{scale * value:.{digits}f}" for value in median(values))
    return f"{middle} ({low} to {high})"


def _arms(results: dict[str, Any], *, direct: bool = False) -> list[str]:
    return [arm["name"] for arm in results["arms"] if direct or arm["name"] != "direct"]


def _streams(results: dict[str, Any], arm: str) -> str:
    reads = _values(results, "burst", arm, "reads_per_token")
    return "yes" if median(reads)[0] > 0.5 else "no"


def _table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _failed(results: dict[str, Any], scenario: str, arm: str) -> str:
    return str(int(sum(_values(results, scenario, arm, "failed"))))


# --- tables


def _burst(results: dict[str, Any]) -> str:
    heads = ["gateway", "first token, p50 ms", "p95 ms", "whole, p50 ms", "p95 ms", "CPU µs per chunk", "a real stream"]
    rows = []
    for arm in _arms(results):
        real = _streams(results, arm) == "yes"
        first = [_cell(_over(results, "burst", arm, field), 1e3, 0) for field in ("first_p50", "first_p95")]
        whole = [_cell(_over(results, "burst", arm, field), 1e3, 0) for field in ("whole_p50", "whole_p95")]
        chunk = _cell(_values(results, "burst", arm, "cpu_per_1000"), 1e3, 1) if real else "no chunks"
        rows.append([arm, *first, *whole, chunk, "yes" if real else "no"])
    return _table(heads, rows)


def _hundred(results: dict[str, Any]) -> str:
    heads = ["gateway", "tokens per second", "% of direct", "CPU ms per 1,000 tokens", "most at the upstream"]
    heads += ["a real stream", "failed", "MB"]
    rows = []
    for arm in _arms(results, direct=True):
        direct = arm == "direct"
        rows.append(
            [
                arm,
                _cell(_values(results, "hundred", arm, "tokens_per_second"), digits=0),
                "100" if direct else _cell(_share(results, "hundred", arm)),
                "–" if direct else _cell(_values(results, "hundred", arm, "cpu_per_1000"), 1e3),
                f"{max(_values(results, 'hundred', arm, 'upstream_most_at_once')):g}",
                _streams(results, arm),
                _failed(results, "hundred", arm),
                "–" if direct else f"{median(_values(results, 'hundred', arm, 'memory_mb'))[0]:.0f}",
            ]
        )
    return _table(heads, rows)


def _whole(results: dict[str, Any]) -> str:
    heads = ["gateway", "CPU ms per 1,000 tokens", "CPU ms per request", "beyond direct, p50 ms", "failed"]
    rows = [
        [
            arm,
            _cell(_values(results, "whole", arm, "cpu_per_1000"), 1e3, 2),
            _cell(_values(results, "whole", arm, "cpu_per_request"), 1e3, 2),
            _cell(_over(results, "whole", arm, "whole_p50"), 1e3, 0),
            _failed(results, "whole", arm),
        ]
        for arm in _arms(results)
    ]
    return _table(heads, rows)


def _vote(results: dict[str, Any]) -> str:
    heads = [
        "gateway",
        "one at a time, p50 ms",
        "ten at a time, p50 ms",
        "CPU ms per vote",
        "at the upstream",
        "failed",
    ]
    rows = []
    for arm in _arms(results, direct=True):
        one = _values(results, "vote", arm, "whole_p50")
        if not one:
            rows.append([arm, "–", "–", "–", "no voting", "–"])
            continue
        made = median(_values(results, "vote", arm, "upstream_tokens"))[0]
        streams = median(_values(results, "vote", arm, "upstream_most_at_once"))[0]
        how = (
            "one completion"
            if arm == "direct"
            else f"{made / 4 / 50:g} completions in {streams:g} request{'s' * (streams > 1)}"
        )
        rows.append(
            [
                arm,
                _cell(one, 1e3, 0),
                _cell(_values(results, "votes", arm, "whole_p50"), 1e3, 0),
                "–" if arm == "direct" else _cell(_values(results, "votes", arm, "cpu_per_request"), 1e3),
                how,
                _failed(results, "votes", arm),
            ]
        )
    return _table(heads, rows)


def _fleet(results: dict[str, Any]) -> str:
    heads = ["replicas", "tokens per second", "× one replica", "most beyond an even share", "failed"]
    found = results["fleet"]
    single = median([row["tokens_per_second"] for row in found if row["replicas"] == 1])[0]
    rows = []
    for replicas in sorted({row["replicas"] for row in found}):
        mine = [row for row in found if row["replicas"] == replicas]
        speeds = [row["tokens_per_second"] for row in mine]
        worst = max(row["imbalance"] for row in mine)
        failed = sum(row["failed"] for row in mine)
        rows.append([str(replicas), _cell(speeds, digits=0), _cell(speeds, 1 / single, 2), f"{worst:.1%}", str(failed)])
    return _table(heads, rows)


# --- words


def _answer(results: dict[str, Any]) -> str:
    share = _cell(_share(results, "hundred", "equipoise"), digits=0)
    streaming = [arm for arm in _arms(results) if _streams(results, arm) == "yes"]
    lines = [
        f"- At 100 streams the gateway delivers **{share} %** of what the upstream does by itself.",
        f"- CPU per 1,000 tokens in 100 real streams: {_ranked(results, 'hundred', streaming)}.",
        f"- CPU per 1,000 tokens in whole replies: {_ranked(results, 'whole', _arms(results))}.",
    ]
    fake = [arm for arm in _arms(results) if arm not in streaming]
    if fake:
        lines.append(
            "- Gateways that ask for the whole reply and send it as one event do not do the work of streaming, and nothing "
            f"comes before the end: {_ranked(results, 'hundred', fake)} per 1,000 tokens of a “stream”."
        )
    return "\n".join(lines)


def _ranked(results: dict[str, Any], scenario: str, arms: list[str]) -> str:
    """Costs, the least first, and those that were not above it in every round."""
    found = {arm: _rounds(results, scenario, arm, "cpu_per_1000") for arm in arms}
    order = sorted(found, key=lambda arm: median(list(found[arm].values()))[0])
    told = ", ".join(f"{arm} {1e3 * median(list(found[arm].values()))[0]:.1f} ms" for arm in order)
    least = found[order[0]]
    close = [arm for arm in order[1:] if any(found[arm][i] <= least[i] for i in least.keys() & found[arm].keys())]
    return told + (f"; {order[0]} was not below {' and '.join(close)} in every round" if close else "")


def _lacks(results: dict[str, Any]) -> str:
    lines = [
        f"- **{arm['name']}** {arm['version']}: {'; '.join(arm['lacks'])}." for arm in results["arms"] if arm["lacks"]
    ]
    missing = [name for name in ("optillm", "its_hub") if name not in _arms(results)]
    return "\n".join([*lines, *(f"- **{name}**: not installed for this run." for name in missing)])


def _machine(results: dict[str, Any]) -> str:
    machine = results["machine"]
    versions = ", ".join(f"{arm['name']} {arm['version']}" for arm in results["arms"] if arm["version"])
    return (
        f"Python {machine['python']}, {machine['cpus']} cores ({machine['system']})\nthat other work shared "
        f"(load {machine['load'][1]:.0f} at the end), seed {results['seed']};\n{versions}"
    )


def _soak(path: Path) -> str:
    if not path.exists():
        return "Not run yet: `EQUIPOISE_SOAK_WRITE=benchmarks/gateway/soak.json make test-soak`."
    told = json.loads(path.read_text())
    kinds: dict[str, list[str]] = {}
    for name, count in told["replies"].items():
        kind, _, reply = name.partition(" ")
        kinds.setdefault(kind, []).append(f"{count:,} {reply}")
    before, after, rss = told["before"], told["after"], [mb for _, mb in told["rss"]]
    lines = [
        f"{told['requests']:,} requests in {told['seconds'] / 60:.1f} minutes: "
        + "; ".join(f"{kind}: {', '.join(found)}" for kind, found in kinds.items()),
        f"{len(told['wrong'])} replies that were not what their kind must get, 5xx among them",
        f"tokens in the ledger {told['ledger']:,}, made by the upstreams by their own count {told['upstream']:,}",
        f"memory: {rss[0]:.0f} MB at the start, {rss[-1]:.0f} MB at the end; "
        f"{told['growth_mb']:+.1f} MB after the first fifth by the line of least squares",
        f"left at the end: {told['inflight']:g} requests, {told['load']:g} permits, {told['connections']} connections; "
        f"tasks {before['tasks']:g} before and {after['tasks']:g} after, open files {before['files']} and {after['files']}",
    ]
    about = (
        "A real gateway process before two scripted servers: streams, whole replies, searches (a majority of four), clients that "
        "leave in a stream (cancel) or in a search (leave), a server that refuses the first try (retry), breaks off (broken) or "
        "fails always (dead, so 502 is right), and bursts of 48 at a limit of 32 (overload).\n\n"
    )
    command = "\n\n    EQUIPOISE_SOAK_WRITE=benchmarks/gateway/soak.json make test-soak"
    return about + "\n".join(f"- {line}" for line in lines) + command


_PAGE = """# What the gateway costs

How much slower is a request through the gateway, how much CPU does a token take, and how many does it deliver when 100 callers
stream at once? Next to optillm, its_hub and a proxy of 30 lines, on the same upstream in one run.

{answer}

## A burst of 50 streams, handed through

Beyond what the same requests take direct, in the same round.

{burst}

## 100 streams at once

{hundred}

The upstream sends a token of every stream each 20 ms, as an engine does that makes 5,000 tokens a second; direct is what it
delivers without a gateway. Upstream, gateway and load share the cores, and the slower a gateway reads, the more tokens it finds
waiting at a time, which makes each cheaper: CPU per chunk is dearest in the burst above, where most come alone. CPU time is each
gateway's own, children included. The gateway here parses, counts and books what the proxies only copy.

## Whole replies

{whole}

## A majority of eight

{vote}

Direct is one plain completion, which a vote cannot be faster than. The gateway here streams all eight, since it counts every
token as it is made and stops at the budget; the others ask for whole replies and learn the count at the end. That is what its CPU
per vote buys.

## Replicas

{fleet}

Scripted servers with 8 slots each behind one gateway, twice as many callers as slots; a request goes to the server with the
fewest under way.

## What the others leave out

{lacks}

## Soak

{soak}

## How

Medians of {rounds} rounds with 95% intervals (bootstrap of the rounds; with so few it is nearly their range); all arms take turns
in an order drawn anew for every scenario. One that does not end within 90 s counts all its requests as failed, and the gateway
is started again. {machine}. Every figure is in `results.json`.

    {command}
"""
