"""One step of RL (sample, grade, update): the embedded trainer against TRL's GRPOTrainer, in turns on one machine.

    python -m benchmarks.train.run --model small
    python -m benchmarks.train.run --model smollm2 --prompts 2 --samples 4 --tokens 32 --rows 8 --json benchmarks/train/results.json

Both train the same weights in float32 on the same prompts, every completion has exactly --tokens tokens, and one update goes over
all of them in passes of --rows. Tokens sampled, tokens trained, passes and updates are counted on both sides and must be equal.
Without TRL only our side runs. `python -m benchmarks.train.report` writes README.md from results.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.train.case import Case, save_model
from benchmarks.train.turns import PARTS

ROOT = Path(__file__).resolve().parents[2]
SIDES = {"equipoise": "benchmarks.train.ours", "trl": "benchmarks.train.peer_trl"}
NEEDED_BY_TRL = ("trl", "accelerate", "datasets")
Step = dict[str, Any]


class Side:
    """A trainer in a process of its own."""

    def __init__(self, name: str, arguments: Sequence[str], log: Path) -> None:
        self.name, self._log = name, log
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        with log.open("w") as handle:
            self._process = subprocess.Popen(
                [sys.executable, "-m", SIDES[name], *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=handle,
                text=True,
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1"},
            )

    def first_step(self) -> Step:
        return self._read()

    def step(self) -> Step:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return self._read()

    def stop(self) -> None:
        self._process.communicate()  # closing its input ends it

    def _read(self) -> Step:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} failed:\n{self._log.read_text()[-3000:]}")
        found: Step = json.loads(line)
        return found


def run_case(case: Case, *, names: Sequence[str], settings: Mapping[str, Any]) -> dict[str, list[Step]]:
    """Every counted step of every side, the sides in an order drawn anew each round."""
    found: dict[str, list[Step]] = {name: [] for name in names}
    sides: list[Side] = []
    with tempfile.TemporaryDirectory(prefix="equipoise-benchmark-") as home:
        folder = Path(home) / "model"
        save_model(case.model, folder)
        try:
            for name in names:
                more = [json.dumps(settings)] if name == "trl" else []
                arguments = [json.dumps(case.to_dict()), str(folder), str(Path(home) / name), *more]
                sides.append(Side(name, arguments, Path(home) / f"{name}.log"))
                sides[-1].first_step()  # alone, so that loading one does not slow down the other
            for count in range(1, case.warmup + case.repeats):
                for side in Random(count).sample(sides, len(sides)):
                    step = side.step()
                    if count >= case.warmup:
                        found[side.name].append(step)
                print(f"round {count} of {case.warmup + case.repeats - 1}: {told(found)}", file=sys.stderr)
        finally:
            for side in sides:
                side.stop()
    return found


def told(found: Mapping[str, list[Step]]) -> str:
    return ", ".join(f"{name} {total(steps[-1]):.2f} s" for name, steps in found.items() if steps) or "warm-up"


def total(step: Step, clock: str = "seconds") -> float:
    return float(sum(step[clock].values()))


def check_work(case: Case, found: Mapping[str, list[Step]]) -> dict[str, int]:
    """Refuse to compare unequal work. Returns what one step is: the median of its prompt tokens, and the counts that never change."""
    rows = case.prompts * case.samples
    expected = {
        "generated": rows * case.tokens,
        "trained": rows * case.tokens,
        "passes": rows // case.rows,
        "updates": 1,
    }
    for name, steps in found.items():
        for step in steps:
            counts = {key: step["counts"].get(key) for key in expected}
            if counts != expected:
                raise SystemExit(f"{name} did {counts} in a step, and {expected} were asked for: nothing to compare")
    prompts = {tuple(step["counts"]["prompt_tokens"] for step in steps) for steps in found.values()}
    if len(prompts) > 1:
        raise SystemExit(f"the two read prompts of different lengths: {prompts}")
    return {"prompt_tokens": round(median(next(iter(prompts)))), **expected}


def summarise(case: Case, found: Mapping[str, list[Step]]) -> dict[str, Any]:
    return {
        "case": case.to_dict(),
        "work": check_work(case, found),
        "sides": {name: summarise_side(found[name]) if name in found else None for name in SIDES},
        "times_trl": times_trl(found, "seconds"),
        "times_trl_cpu": times_trl(found, "cpu_seconds"),
    }


def summarise_side(steps: Sequence[Step]) -> dict[str, Any]:
    """Medians over the steps, in all and by part. CPU seconds are those of all threads, and hardly feel what else the machine does."""
    clocks = ("seconds", "cpu_seconds")
    return {
        **{clock: round(median(total(step, clock) for step in steps), 4) for clock in clocks},
        **{
            f"{clock}_of": {part: round(median(step[clock][part] for step in steps), 4) for part in PARTS}
            for clock in clocks
        },
        **{f"all_{clock}": [round(total(step, clock), 4) for step in steps] for clock in clocks},
        "entropy": round(median(step["entropy"] for step in steps), 3),
        "peak_mb": max(step["peak_mb"] for step in steps),
    }


def times_trl(found: Mapping[str, list[Step]], clock: str) -> dict[str, Any] | None:
    """What TRL took over what ours took, by round: median, its 95 % bootstrap interval over rounds (seed 0), and the extremes."""
    if len(found) < 2:
        return None
    pairs = zip(found["trl"], found["equipoise"], strict=True)
    ratios = np.array([total(theirs, clock) / total(ours, clock) for theirs, ours in pairs])
    drawn = np.random.default_rng(0).choice(ratios, size=(10_000, len(ratios)))
    low, high = np.quantile(np.median(drawn, axis=1), [0.025, 0.975])
    numbers = {"median": np.median(ratios), "low": low, "high": high, "least": ratios.min(), "most": ratios.max()}
    return {name: round(float(value), 3) for name, value in numbers.items()} | {"n": len(ratios)}


# --- around it ---------------------------------------------------------------------------------------------------------------


def machine(device: str) -> dict[str, Any]:
    about: dict[str, Any] = {"device": f"{os.cpu_count()} CPU cores", "torch_threads": torch.get_num_threads()}
    if device.startswith("cuda"):
        about["device"] = torch.cuda.get_device_name(device)
    elif (cpu := Path("/proc/cpuinfo")).exists():
        names = [
            line.partition(":")[2].strip() for line in cpu.read_text().splitlines() if line.startswith("model name")
        ]
        about["device"] = f"{os.cpu_count()} cores of {names[0]}" if names else about["device"]
    about["float32_matmul"] = torch.get_float32_matmul_precision()  # highest: no TF32
    about["load_average"] = round(os.getloadavg()[0], 1)  # just after the run, which itself adds about torch_threads
    return (
        about
        | {"python": platform.python_version()}
        | {name: version_of(name) for name in ("torch", "transformers", "trl")}
    )


def command_line(module: str, arguments: Sequence[str]) -> str:
    threads = os.environ.get("OMP_NUM_THREADS")
    return (
        f"OMP_NUM_THREADS={threads} " if threads else ""
    ) + f"python -m benchmarks.train.{module} {shlex.join(arguments)}"


def version_of(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def add_result(path: Path, result: dict[str, Any]) -> None:
    """Into the list of the file, in place of the result of the same case on the same device."""

    def key(one: Mapping[str, Any]) -> Any:
        return one["case"] | {"warmup": 0, "repeats": 0}, one["machine"]["device"], one["trl_settings"]

    before = json.loads(path.read_text())["results"] if path.exists() else []
    kept = [one for one in before if key(one) != key(result)]
    path.write_text(json.dumps({"results": [*kept, result]}, indent=1) + "\n")


def read_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """`key=value`, the value as JSON where it is JSON."""
    found: dict[str, Any] = {}
    for pair in pairs:
        key, _, text = pair.partition("=")
        try:
            found[key] = json.loads(text)
        except json.JSONDecodeError:
            found[key] = text
    return found


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", default="small", help="small (a random Llama, 5 million parameters), smollm2, or a folder"
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda; on cuda our sampler replays CUDA graphs")
    parser.add_argument("--prompts", type=int, default=8, help="prompts of a step")
    parser.add_argument("--samples", type=int, default=8, help="completions of each")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of every completion")
    parser.add_argument("--rows", type=int, default=16, help="completions of a forward and backward pass")
    parser.add_argument("--kl", type=float, default=0.0, help="coefficient of a KL to the reference; 0: no reference")
    parser.add_argument("--warmup", type=int, default=2, help="steps of each that are not counted")
    parser.add_argument("--repeats", type=int, default=10, help="steps that are")
    parser.add_argument("--trl", action="append", default=[], metavar="KEY=VALUE", help="another setting of GRPOConfig")
    parser.add_argument("--only", choices=list(SIDES), help="one side alone")
    parser.add_argument("--json", type=Path, help="file that the result is added to")
    args = parser.parse_args(arguments)
    rows = args.prompts * args.samples
    if args.warmup < 1 or args.repeats < 1 or rows % args.rows:
        parser.error(f"warmup and repeats are 1 or more, and rows divides the {rows} completions of a step")
    names = [name for name in SIDES if args.only in (None, name)]
    missing = [name for name in NEEDED_BY_TRL if find_spec(name) is None]
    if missing and "trl" in names:
        print(f"without {', '.join(missing)} only our side runs: pip install trl==1.16.0", file=sys.stderr)
        names.remove("trl")
    chosen = ("model", "device", "prompts", "samples", "tokens", "rows", "kl", "warmup", "repeats")
    case = Case(**{name: getattr(args, name) for name in chosen})
    settings = read_settings(args.trl)
    found = run_case(case, names=names, settings=settings)
    result = summarise(case, found) | {"trl_settings": settings, "machine": machine(case.device)}
    result["command"] = command_line("run", sys.argv[1:] if arguments is None else arguments)
    if args.json is not None:
        add_result(args.json, result)
    print(json.dumps(result))
    return result


if __name__ == "__main__":
    main()
