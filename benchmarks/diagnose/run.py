"""How long a pass over a run takes, and how much memory, against a bare scan of the same columns.

    python benchmarks/diagnose/run.py --scales 1,2,4,8

Every measurement is a process of its own on a run folder under the system's temporary folder, which is deleted at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
TOKEN_COLUMNS = ["token_ids", "entropies", "logprobs_rollout", "logprobs_train"]
STEP_ROLLOUTS = 500
PARTS = {
    "scan": "bare pyarrow scan of the token columns",
    "tokens": "the token pass over the same columns",
    "scan_all": "bare pyarrow scan of the token columns and the completions",
    "collect": "collect(run, needs=('tokens',)): the token pass with planning tokens told apart, and the answer table",
    "diagnose": "equipoise diagnose --json, start to end",
}
SCAN_OF = {"tokens": "scan", "collect": "scan_all", "diagnose": "scan_all"}  # the scan that a part is compared with


# --- in a child process: only this part loads numpy and pyarrow, so the parent's memory is not counted as the child's ----------


def child(name: str, folder: Path, first: int, last: int, steps: int, tokens: int) -> dict[str, Any]:
    if name == "make":
        sys.path.insert(0, str(HERE))
        from make_run import make_steps

        make_steps(folder, first, last, steps=steps, tokens=tokens)
        return {}
    import pyarrow.parquet as pq

    from equipoise.measures.evidence import collect
    from equipoise.measures.tokens import TokenCounter
    from equipoise.rollouts.folder import open_folder

    run = open_folder(folder)
    started, busy = time.perf_counter(), time.process_time()
    counted = 0
    if name in ("scan", "scan_all"):
        columns = TOKEN_COLUMNS if name == "scan" else [*TOKEN_COLUMNS, "completion"]
        for path in sorted((folder / "rollouts").glob("*/*.parquet")):
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(columns=columns):
                    counted += len(batch.column("token_ids").flatten())
    elif name == "collect":
        table = collect(run, ("tokens",)).tokens
        counted = 0 if table is None else int(table.rows["tokens"].sum())
    else:
        counter = TokenCounter()
        for batch in run.rollouts(counter.columns):
            counter.add(batch)
        counted = int(counter.table().rows["tokens"].sum())
    return {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - busy, "tokens": counted}


# --- in the parent ----------------------------------------------------------------------------------------------------------------


def measure(command: list[str]) -> tuple[dict[str, float], str]:
    """What one process took from start to end, in time and memory, and what it printed."""
    with tempfile.TemporaryFile("w+") as out:
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=out)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
        out.seek(0)
        text = out.read()
    if os.waitstatus_to_exitcode(status) != 0:
        raise SystemExit(f"{' '.join(command)} failed")
    peak = usage.ru_maxrss / (1024 if sys.platform == "linux" else 1024**2)
    return {"seconds": seconds, "cpu_seconds": usage.ru_utime + usage.ru_stime, "peak_mb": round(peak)}, text


def run_child(name: str, folder: Path, args: argparse.Namespace, first: int = 0, last: int = 0) -> dict[str, Any]:
    numbers = [str(n) for n in (first, last, args.steps, args.tokens)]
    taken, text = measure([sys.executable, str(HERE / "run.py"), "--child", name, str(folder), *numbers])
    return taken | json.loads(text)  # the child's own times leave out Python's start


def run_diagnose(folder: Path) -> dict[str, Any]:
    command = [str(Path(sys.executable).with_name("equipoise")), "diagnose", str(folder), "--json"]
    return measure(command)[0]


def measure_scale(scale: int, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Every part in turn, `repeats` times over, so that a busy minute of the machine touches all alike; medians."""
    found: dict[str, list[dict[str, Any]]] = {part: [] for part in args.parts}
    run_child("scan_all", folder, args)  # the files are in the page cache from here on
    for _ in range(args.repeats):
        for part in args.parts:
            found[part].append(run_diagnose(folder) if part == "diagnose" else run_child(part, folder, args))
    size = sum(path.stat().st_size for path in folder.rglob("*.parquet"))
    result: dict[str, Any] = {"scale": scale, "rollouts": scale * args.rollouts, "megabytes": round(size / 1e6)}
    for part, runs in found.items():
        result[part] = {
            "seconds": round(median(run["seconds"] for run in runs), 3),
            "all_seconds": [round(run["seconds"], 3) for run in runs],
            "cpu_seconds": round(median(run["cpu_seconds"] for run in runs), 3),
            "peak_mb": max(run["peak_mb"] for run in runs),
        }
        if "tokens" in runs[0]:
            result["tokens_read"] = runs[0]["tokens"]
        bare = found.get(SCAN_OF.get(part, ""))
        if bare:
            ratios = [run["seconds"] / scan["seconds"] for run, scan in zip(runs, bare, strict=True)]
            result[part]["times_scan"] = round(median(ratios), 2)
    return result


def machine() -> dict[str, Any]:
    names = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "cpu": names[0] if names else platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "pyarrow": version("pyarrow"),
    }


def write_results(results: list[dict[str, Any]], args: argparse.Namespace) -> None:
    command = f"python benchmarks/diagnose/run.py --rollouts {args.rollouts} --scales {','.join(map(str, args.scales))} --parts {','.join(args.parts)} --repeats {args.repeats}"
    (HERE / "results.json").write_text(
        json.dumps({"command": command, "machine": machine(), "results": results}, indent=1) + "\n"
    )
    lines = [
        "# How fast a run is read and diagnosed",
        "",
        f"A made run of {args.rollouts:,} rollouts (scale 1) of about {args.tokens:,} tokens, with token ids, entropies, the log-probs of",
        "sampler and trainer, and texts of about 7 kB (`make_run.py`). Each number is the median of "
        f"{args.repeats} processes on warm files;",
        "× is the median ratio to the bare scan of the same columns made just before.",
        "",
        *(f"- **{part}**: {PARTS[part]}" for part in args.parts),
        "",
        "| scale | rollouts | tokens | MB on disk | part | seconds | × scan | CPU seconds | peak MB |",
        "| ---: | ---: | ---: | ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    for row in results:
        for part in args.parts:
            times = row[part].get("times_scan", "")
            lines.append(
                f"| {row['scale']} | {row['rollouts']:,} | {row.get('tokens_read', 0):,} | {row['megabytes']:,} | {part} "
                f"| {row[part]['seconds']:.2f} | {times} | {row[part]['cpu_seconds']:.2f} | {row[part]['peak_mb']:,} |"
            )
    about = machine()
    lines += [
        "",
        f"Machine: {about['cores']} cores of {about['cpu']}; Python {about['python']}, numpy {about['numpy']}, pyarrow {about['pyarrow']}.",
    ]
    lines += ["", "```", command, "```"]
    (HERE / "README.md").write_text("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=20_000, help="rollouts at scale 1, in steps of 500")
    parser.add_argument("--tokens", type=int, default=1_900, help="tokens of a rollout, on average")
    parser.add_argument("--scales", type=lambda text: [int(n) for n in text.split(",")], default=[1, 2, 4, 8])
    parser.add_argument("--parts", type=lambda text: text.split(","), default=list(PARTS), help=", ".join(PARTS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--child", nargs=6, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        name, folder, *numbers = args.child
        print(json.dumps(child(name, Path(folder), *map(int, numbers))))
        return
    unknown = set(args.parts) - set(PARTS)
    if unknown:
        parser.error(f"unknown parts {', '.join(sorted(unknown))}; known are {', '.join(PARTS)}")
    per_scale = max(1, args.rollouts // STEP_ROLLOUTS)
    args.steps = per_scale * max(args.scales)
    folder = Path(tempfile.mkdtemp(prefix="equipoise-benchmark-"))
    results, made = [], 0
    try:
        for scale in sorted(args.scales):
            run_child("make", folder, args, made, scale * per_scale)
            made = scale * per_scale
            results.append(measure_scale(scale, folder, args))
            print(json.dumps(results[-1]), file=sys.stderr)
            write_results(results, args)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
