"""TensorBoard event files through torch's SummaryWriter (the writer verl and the HF Trainer use), and two metric CSVs.

    # the environment of make_trl.py, then
    /tmp/golden-trl/bin/pip install tensorboard "torch==2.13.0"
    /tmp/golden-trl/bin/python tests/golden/make/make_metrics.py

The CSVs are written by hand: W&B's web export needs an account. Their layout follows its export (quoted header, `Step` first, then
`<run> - <key>`, `<run> - <key>__MIN`, `<run> - <key>__MAX` for every run and key).
"""

import csv
import math
import shutil
from pathlib import Path

import torch
from torch.utils.tensorboard import SummaryWriter

GOLDEN = Path(__file__).resolve().parent.parent
STEPS = range(1, 7)


def entropy(step: int) -> float:
    return 1.2 * math.exp(-0.3 * step)


def accuracy(step: int) -> float:
    return 0.5 + 0.05 * step


def write_tensorboard() -> None:
    folder = GOLDEN / "tensorboard"
    shutil.rmtree(folder, ignore_errors=True)
    tags = {
        "verl": {
            "actor/entropy": entropy,
            "critic/score/mean": accuracy,
            "response_length/mean": lambda s: 100.0 + s,
            "response_length/clip_ratio": lambda s: 0.01 * s,
            "actor/pg_clipfrac": lambda s: math.nan if s == 4 else 0.001 * s,
        },
        # The HF callback puts `train/` or `eval/` before each key.
        "trl": {
            "train/entropy": entropy,
            "train/reward": accuracy,
            "train/frac_reward_zero_std": lambda s: 0.1 * s,
            "train/completions/mean_length": lambda s: 100.0 + s,
            "train/clip_ratio/high_mean": lambda s: 0.001 * s,
        },
    }
    for run, curves in tags.items():
        writer = SummaryWriter(str(folder / run))
        for step in STEPS:
            for tag, curve in curves.items():
                writer.add_scalar(tag, curve(step), step, walltime=1_767_225_600 + step)
        if run == "verl":
            writer.add_scalar("val-core/math_dapo/acc/mean@4", 0.5, 5, walltime=1_767_225_605)
            writer.add_histogram("lengths", torch.arange(10.0), 6, walltime=1_767_225_606)
            writer.add_text("note", "not a scalar", 6, walltime=1_767_225_606)
        else:
            writer.add_scalar("eval/reward", 0.7, 3, walltime=1_767_225_603)
            # A run resumed from step 4 writes steps 5 and 6 a second time.
            for step in (5, 6):
                writer.add_scalar("train/entropy", entropy(step) + 0.01, step, walltime=1_767_225_700 + step)
        writer.close()
        for file in (folder / run).iterdir():  # the name ends in host and process
            file.rename(file.with_name("events.out.tfevents.1767225600.host.1.0"))


def write_csv() -> None:
    folder = GOLDEN / "csv"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    keys = {"actor/entropy": entropy, "critic/score/mean": accuracy}
    header = ["Step"]
    for key in keys:
        for run in ("grpo-seed1", "grpo - seed2"):
            header += [f"{run} - {key}", f"{run} - {key}__MIN", f"{run} - {key}__MAX"]
    with (folder / "wandb_export.csv").open("w", newline="") as file:
        rows = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n")
        rows.writerow(header)
        for step in STEPS:
            row: list[object] = [step]
            for curve in keys.values():
                row += [curve(step)] * 3
                row += [""] * 3 if step > 4 else [curve(step) + 0.1] * 3  # the second run stopped early
            rows.writerow(row)
    with (folder / "plain.csv").open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["step", "entropy", "reward", "note"])
        for step in STEPS:
            rows.writerow([step, entropy(step), "NaN" if step == 3 else accuracy(step), "resumed" if step == 4 else ""])


if __name__ == "__main__":
    write_tensorboard()
    write_csv()
