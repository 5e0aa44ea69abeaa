"""What a gateway costs, against others on the same upstream: latency, CPU, throughput at 100 streams, and a majority of eight.

    python benchmarks/gateway/run.py --optillm-python O/bin/python --its-hub-python I/bin/python
    python benchmarks/gateway/run.py --rounds 1 --write /tmp/look     # a quick look, without peers

with O and I virtual environments of their own, which the peers need:

    python -m venv O && O/bin/pip install optillm==0.4.0         # several GB: torch, spaCy and others
    python -m venv I && I/bin/pip install 'its_hub[iaas]==1.2.0'

Writes results.json and README.md; --page only the latter, with soak.json of `make test-soak`. Every round runs all scenarios
on all arms, in an order drawn anew; upstream, gateway and load
are three processes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import statistics
import sys
from functools import partial
from pathlib import Path
from typing import Any

import arms
import report

HERE = Path(__file__).parent
# What the upstream does, and what is asked of the gateway.
SCENARIOS: dict[str, dict[str, Any]] = {
    "burst": {"script": {"tokens": 100, "gap": 0.02}, "load": {"at_once": 50, "requests": 100, "stream": True}},
    "hundred": {"script": {"tokens": 200, "gap": 0.02}, "load": {"at_once": 100, "requests": 200, "stream": True}},
    "whole": {"script": {"tokens": 200, "gap": 0.002}, "load": {"at_once": 50, "requests": 200}},
    "vote": {"script": {"tokens": 50, "gap": 0.02}, "load": {"at_once": 1, "requests": 4}},
    "votes": {"script": {"tokens": 50, "gap": 0.02}, "load": {"at_once": 10, "requests": 30}},
}
SLOTS = 8  # streams that a replica of the fleet serves at a time


def measure(arm: arms.Arm, name: str, script: Any) -> dict[str, Any] | None:
    """One scenario on one arm. Direct, a vote is a plain completion: what it takes at least."""
    scenario = SCENARIOS[name]
    asked = dict(scenario["load"])
    if name in ("vote", "votes") and arm.name != "direct":
        if arm.vote is None:
            return None
        asked |= arm.vote
    script(**scenario["script"])
    before = arm.cpu()
    found = arms.load(arm, **asked)
    if found is None:
        return {"failed": scenario["load"]["requests"]}
    cpu, sent = arm.cpu() - before, script()
    requests = found["requests"]
    tokens = sum(each["tokens"] for each in requests)
    return {
        "seconds": found["seconds"],
        "failed": sum(not each["good"] for each in requests),
        "tokens": tokens,
        "upstream_tokens": sent["tokens"],
        "upstream_most_at_once": sent["most"],
        "reads_per_token": sum(each["reads"] for each in requests) / max(1, tokens),
        "tokens_per_second": tokens / found["seconds"],
        "first_p50": _quantile([each["first"] for each in requests], 0.5),
        "first_p95": _quantile([each["first"] for each in requests], 0.95),
        "whole_p50": _quantile([each["whole"] for each in requests], 0.5),
        "whole_p95": _quantile([each["whole"] for each in requests], 0.95),
        "cpu_per_1000": 1000 * cpu / tokens if tokens else None,
        "cpu_per_request": cpu / len(requests),
        "memory_mb": arm.memory(),
    }


def measure_fleet(replicas: int) -> dict[str, Any]:
    """Throughput of so many replicas with few slots each, and how evenly their work was spread."""
    with contextlib.ExitStack() as several:
        found = [several.enter_context(arms.upstream()) for _ in range(replicas)]
        urls, scripts = [url for url, _ in found], [script for _, script in found]
        for script in scripts:
            script(tokens=50, gap=0.01, slots=SLOTS)
        arm = arms.start_ours(urls)
        try:
            told = arms.load(arm, at_once=2 * SLOTS * replicas, requests=10 * SLOTS * replicas, stream=True)
        finally:
            arm.end()
        assert told is not None
        shares = [script()["requests"] for script in scripts]
    return {
        "replicas": replicas,
        "tokens_per_second": sum(each["tokens"] for each in told["requests"]) / told["seconds"],
        "failed": sum(not each["good"] for each in told["requests"]),
        "requests": shares,
        "imbalance": max(shares) / statistics.mean(shares) - 1,
    }


def _quantile(values: list[float | None], q: float) -> float | None:
    known = sorted(value for value in values if value is not None)
    return known[min(len(known) - 1, int(q * len(known)))] if known else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--optillm-python", help="of an environment with optillm 0.4")
    parser.add_argument("--its-hub-python", help="of an environment with its_hub[iaas] 1.2")
    parser.add_argument("--write", type=Path, default=HERE)
    parser.add_argument(
        "--page", action="store_true", help="only write README.md again, from results.json and soak.json"
    )
    given = parser.parse_args()
    if given.page:
        write_page(given.write)
        return
    order = random.Random(given.seed)
    rows: list[dict[str, Any]] = []
    with arms.upstream() as (url, script):
        running = [arms.Arm("direct", url, None)]
        try:
            starts = [
                partial(arms.start_ours, [url]),
                partial(arms.start_plain, url, uvloop=False),
                partial(arms.start_plain, url, uvloop=True),
            ]
            if given.optillm_python:
                starts.append(partial(arms.start_optillm, url, given.optillm_python))
            if given.its_hub_python:
                starts.append(partial(arms.start_its_hub, url, given.its_hub_python))
            for start in starts:
                running.append(start())
                running[-1].start = start
            for arm in running:  # what is loaded at a first request is no part of the figures
                script(tokens=5, gap=0.005)
                arms.load(arm, at_once=5, requests=10, stream=True)
            for number in range(given.rounds):
                for name in SCENARIOS:
                    for place in order.sample(range(len(running)), len(running)):
                        arm = running[place]
                        found = measure(arm, name, script)
                        if found is not None and "seconds" not in found and arm.start is not None:
                            arm.end()
                            running[place] = arm.start()
                        if found is not None:
                            rows.append({"round": number, "scenario": name, "arm": arm.name, **found})
                            print(number, name, arm.name, json.dumps(found), file=sys.stderr, flush=True)
        finally:
            for arm in running:
                arm.end()
    fleet = [{"round": number, **measure_fleet(n)} for number in range(min(3, given.rounds)) for n in (1, 2, 4)]
    results = {
        "command": "python benchmarks/gateway/run.py " + " ".join(_shown(sys.argv[1:])),
        "machine": {
            "cpus": os.cpu_count(),
            "system": f"{platform.system()} {platform.machine()}",
            "python": platform.python_version(),
            "load": os.getloadavg(),
        },
        "arms": [{"name": arm.name, "version": arm.version, "lacks": arm.lacks} for arm in running],
        "scenarios": SCENARIOS,
        "slots": SLOTS,
        "rows": rows,
        "fleet": fleet,
        "seed": given.seed,
    }
    given.write.mkdir(parents=True, exist_ok=True)
    (given.write / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    write_page(given.write)


def write_page(folder: Path) -> None:
    results = json.loads((folder / "results.json").read_text())
    (folder / "README.md").write_text(report.write(results, HERE / "soak.json"))


def _shown(words: list[str]) -> list[str]:
    """Without paths of this machine."""
    names = {"--optillm-python": "O/bin/python", "--its-hub-python": "I/bin/python", "--write": "FOLDER"}
    return [names.get(words[i - 1], word) if i else word for i, word in enumerate(words)]


if __name__ == "__main__":
    main()
