"""How long a whole study takes, arms × seeds × steps with evaluation, with so many runs side by side on one device.

    python -m benchmarks.train.arms studies/quick.toml --jobs 1,2
    python -m benchmarks.train.arms studies/collapse.toml base.device=cuda base.learning.steps=50 --jobs 4 --json arms.json

Runs `equipoise study` from nothing, in a temporary folder or in that of --keep, once for every number of --jobs, and times it from start to end. What is
reported is what ran: runs, steps and completions are counted in the folders that it wrote.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.train.run import ROOT, command_line, machine
from equipoise.rollouts.folder import open_folder


def time_study(study: Path, settings: Sequence[str], jobs: int, kept: Path | None = None) -> dict[str, Any]:
    """`kept`: a folder that does not exist yet, where the study stays."""
    with tempfile.TemporaryDirectory(prefix="equipoise-benchmark-") as home:
        out = kept or Path(home) / "study"
        if out.exists():
            raise SystemExit(f"{out} exists: finished runs would not be timed; name another folder")
        arguments = ["study", str(study), *settings, f"out={out}", "--jobs", str(jobs), "--json"]
        call = [sys.executable, "-c", "from equipoise.cli.main import run; run()", *arguments]
        started = time.perf_counter()
        done = subprocess.run(call, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        seconds = time.perf_counter() - started
        if done.returncode:
            raise SystemExit(f"equipoise study ended with {done.returncode}: {shlex.join(arguments)}")
        return {"jobs": jobs, "seconds": round(seconds, 1), "device": json.loads(done.stdout)["device"]} | count(out)


def count(out: Path) -> dict[str, int]:
    """What the folders of a study say was done; the base model is a run without steps."""
    runs = [folder for folder in sorted((out / "runs").iterdir()) if (folder / "finished.json").exists()]
    jobs = [json.loads((folder / "job.json").read_text()) for folder in runs]
    trained = [
        (folder, job["config"]) for folder, job in zip(runs, jobs, strict=True) if job["config"]["learning"]["steps"]
    ]
    steps = {folder: [line for line in open_folder(folder).metrics() if "loss" in line] for folder, _ in trained}
    for folder, config in trained:
        if len(steps[folder]) != config["learning"]["steps"]:
            raise SystemExit(f"{folder.name} logged {len(steps[folder])} steps of {config['learning']['steps']}")
    looks = [job["look"] for job in jobs]
    return {
        "runs": len(trained),
        "arms": len({folder.name.rpartition("-")[0] for folder, _ in trained}),
        "seeds": len({config["seed"] for _, config in trained}),
        "steps": sum(map(len, steps.values())),
        "trained_on": sum(c["sampling"]["prompts"] * c["sampling"]["samples"] * len(steps[f]) for f, c in trained),
        "evaluated": sum(look["problems"] * look["samples"] * len(look["temperatures"]) for look in looks),
    }


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path, nargs="?", default=Path("studies/quick.toml"), help="a study's TOML file")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="settings that replace those of the file")
    parser.add_argument("--jobs", type=lambda text: [int(n) for n in text.split(",")], default=[1, 2])
    parser.add_argument("--json", type=Path, help="file to write")
    parser.add_argument("--keep", type=Path, help="folder for the study, with one number of --jobs")
    args = parser.parse_intermixed_args(arguments)
    if args.keep and len(args.jobs) > 1:
        parser.error("--keep keeps one study: give one number of --jobs")
    found = []
    for jobs in args.jobs:
        found.append(time_study(args.study, args.settings, jobs, args.keep))
        print(json.dumps(found[-1]), file=sys.stderr)
    device = next((pair.partition("=")[2] for pair in args.settings if pair.startswith("base.device=")), "cpu")
    result = {
        "study": str(args.study),
        "settings": args.settings,
        "studies": found,
        "machine": machine(device),
        "command": command_line("arms", sys.argv[1:] if arguments is None else arguments),
    }
    if args.json is not None:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))
    return result


if __name__ == "__main__":
    main()
