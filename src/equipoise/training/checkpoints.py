"""Checkpoints that are whole or not there: weights and optimiser as safetensors, the rest as JSON, a marker last.

    checkpoints/step=000050/  model.safetensors  optimiser.safetensors  [ema.safetensors  blend.safetensors]  state.json  complete

A folder without its marker is what a crash left behind; it is passed over, and replaced when the run gets there again.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from equipoise.errors import UsageError
from equipoise.files import atomic_write, make_folder, read_json

MARKER = "complete"
_NAME = re.compile(r"step=(\d{6,})")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    step: int
    model: dict[str, Tensor]
    optimiser: dict[str, Tensor]
    state: dict[str, Any]
    ema: dict[str, Tensor] | None = None  # the moving average of the weights, where the run keeps one


def save_checkpoint(
    run: Path,
    step: int,
    *,
    model: Mapping[str, Tensor],
    optimiser: Mapping[str, Tensor],
    state: Mapping[str, Any],
    ema: Mapping[str, Tensor] | None = None,
    blend: Mapping[str, Tensor] | None = None,
    keep: int = 2,
) -> Path:
    """Write one, then remove all but the newest `keep` and that of step 0. Every file is synced before the marker is written.

    Step 0 is what supervised training left: the reference of every step after it, so it stays as long as the run.
    `blend`: what the run hands over, where that is not the model it trains; it is made anew, so resuming does not read it.
    """
    folder = run / "checkpoints" / f"step={step:06d}"
    try:
        _remove(folder)
        make_folder(folder)
        for name, tensors in {"model": model, "optimiser": optimiser, "ema": ema, "blend": blend}.items():
            if tensors is None:
                continue
            with atomic_write(folder / f"{name}.safetensors") as handle:
                # Copies: tied weights share their memory, which the format refuses.
                handle.write(save({key: t.detach().to("cpu", copy=True).contiguous() for key, t in tensors.items()}))
        for name, text in (("state.json", json.dumps(dict(state))), (MARKER, f"{step}\n")):
            with atomic_write(folder / name) as handle:
                handle.write(text.encode())
    except OSError as problem:
        raise OSError(
            problem.errno,
            f"cannot write the checkpoint {folder}: {problem.strerror or problem}; those written before are intact",
        ) from problem
    complete = complete_checkpoints(run)
    kept = {folder for _, folder in complete[-keep:]} | {folder for step, folder in complete if step == 0}
    for other in (run / "checkpoints").glob("step=*"):
        if other not in kept:  # older, or what a crash left
            _remove(other)
    return folder


def _remove(folder: Path) -> None:
    (folder / MARKER).unlink(missing_ok=True)  # first: a checkpoint that is half gone must not look whole
    if folder.exists():
        shutil.rmtree(folder)


def complete_checkpoints(run: Path) -> list[tuple[int, Path]]:
    """(step, folder) of those with a marker, oldest first."""
    found = []
    for folder in (run / "checkpoints").glob("step=*"):
        match = _NAME.fullmatch(folder.name)
        if match and (folder / MARKER).is_file():
            found.append((int(match[1]), folder))
    return sorted(found)


def load_checkpoint(run: Path) -> Checkpoint | None:
    """The newest complete one; None: there is none."""
    found = complete_checkpoints(run)
    if not found:
        return None
    step, folder = found[-1]
    with _damage_told(folder):
        ema = _tensors(folder, "ema") if (folder / "ema.safetensors").exists() else None
        model, optimiser = _tensors(folder, "model"), _tensors(folder, "optimiser")
        return Checkpoint(step, model, optimiser, read_json(folder / "state.json"), ema)


def load_weights(run: Path, step: int | None = None, *, ema: bool = False) -> tuple[int, dict[str, Tensor]] | None:
    """Step and model of the newest complete one, or of the one at `step`; None: there is none. `ema`: its moving average."""
    found = [each for each in complete_checkpoints(run) if step in (None, each[0])]
    if not found:
        return None
    at, folder = found[-1]
    with _damage_told(folder):
        return at, _tensors(folder, "ema" if ema else "model")


def load_handed(run: Path) -> tuple[int, dict[str, Tensor]] | None:
    """Step and weights of the newest complete one as the run hands them over: the blend, where it makes one, else the model."""
    found = complete_checkpoints(run)
    if not found:
        return None
    at, folder = found[-1]
    with _damage_told(folder):
        return at, _tensors(folder, "blend" if (folder / "blend.safetensors").exists() else "model")


def _tensors(folder: Path, name: str) -> dict[str, Tensor]:
    return load((folder / f"{name}.safetensors").read_bytes())


@contextmanager
def _damage_told(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError, ValueError) as problem:
        raise UsageError(
            f"the checkpoint {folder} is damaged ({problem}): remove that folder to go on from the one before it"
        ) from problem
