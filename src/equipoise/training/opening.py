"""A model by its name, or as a run left it: the one place where training, sampling, blending and studies open what they work on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equipoise.errors import UsageError
from equipoise.models.loaders import Loaded, load_model
from equipoise.rollouts.folder import info_of
from equipoise.rollouts.run import RunInfo
from equipoise.training.checkpoints import load_handed


@dataclass(frozen=True, slots=True)
class OpenModel:
    """`settings`: of the run that trained it, {} where none is known."""

    name: str
    loaded: Loaded
    settings: Mapping[str, Any]
    step: int | None = None  # of the run's checkpoint


def open_model(name: str | Path, *, dtype: torch.dtype | None = torch.float32, device: str = "cpu") -> OpenModel:
    """What `load_model` loads, or a run folder: what its newest complete checkpoint hands over. `dtype` None: as stored."""
    folder = Path(name)
    if not is_run(folder):
        return OpenModel(str(name), load_model(name, dtype=dtype, device=device), {})
    info, origin = _first_model(folder)
    found = load_handed(folder)
    if found is None:
        raise UsageError(f"{folder} is a run folder without a complete checkpoint: give a model, or a run that has one")
    try:
        loaded = load_model(origin)
    except UsageError as problem:
        raise UsageError(f"{folder} was trained from '{origin}', which cannot be loaded: {problem}") from problem
    step, weights = found
    _fill(folder, loaded.model, weights)
    loaded.model.to(device=device, dtype=dtype)  # type: ignore[attr-defined]
    return OpenModel(str(name), loaded, info.settings, step)


def is_run(folder: Path) -> bool:
    return (folder / "run.json").is_file()


def _first_model(folder: Path) -> tuple[RunInfo, str]:
    """What is known of a run, and the model that the first of the runs before it began with: it gives all but the weights."""
    info = info_of(folder / "run.json")
    seen, last = {folder.resolve()}, info
    while last.model is not None and is_run(before := Path(last.model)):
        if before.resolve() in seen:
            raise UsageError(f"{folder} was trained from itself, by its run.json: give a run that began with a model")
        seen.add(before.resolve())
        last = info_of(before / "run.json")
    if last.model is None:
        raise UsageError(f"{folder} does not say in its run.json which model it was trained from: give a run of ours")
    return info, last.model


@torch.no_grad()
def _fill(folder: Path, model: Any, stored: Mapping[str, Tensor]) -> None:
    """A checkpoint's weights; of a tied weight it may hold any one name."""
    names: dict[int, list[str]] = {}
    state = model.state_dict(keep_vars=True)
    for name, tensor in state.items():
        names.setdefault(id(tensor), []).append(name)
    for same in names.values():
        name = next((name for name in same if name in stored), None)
        if name is None or stored[name].shape != state[same[0]].shape:
            found = "is missing" if name is None else f"has shape {tuple(stored[name].shape)}"
            raise UsageError(f"the checkpoint of {folder} does not fit its model: {same[0]} {found}")
        state[same[0]].copy_(stored[name])
