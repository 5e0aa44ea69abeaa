"""A model by its name: what a config, or a command, calls `model`."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import torch

from equipoise.errors import UsageError
from equipoise.models.checkpoint import load_gpt
from equipoise.models.language_model import LanguageModel, Tokens
from equipoise.models.packaged import packaged_model

OURS = ("packaged", "smollm2")


@dataclass(frozen=True, slots=True)
class Loaded:
    model: LanguageModel
    tokens: Tokens


def load_model(name: str | Path, *, dtype: torch.dtype | None = torch.float32, device: str = "cpu") -> Loaded:
    """`packaged` or `packaged:medium`, a small GPT's `FILE.safetensors`, `smollm2`, a `.gguf` file, or any folder or hub name
    that transformers knows. `dtype` None: as it is stored."""
    kind, _, size = str(name).partition(":")
    if kind == "packaged":
        name = packaged_model(size or "small")
    if str(name).endswith(".safetensors"):
        model, tokens = load_gpt(Path(name))
        return Loaded(model.to(device=device, dtype=dtype), tokens)
    _refuse_missing(str(name))
    # Inside: transformers takes seconds to import, and the small GPT does not need it.
    from equipoise.models import pretrained

    source = pretrained.find_smollm2() if str(name) == "smollm2" else name
    return Loaded(*pretrained.load_transformers(source, dtype=dtype, device=device))


def _refuse_missing(name: str) -> None:
    """A path that is not there, or a misspelt name of ours, is no hub name: asking the hub for it takes a minute of retries."""
    path = Path(name).expanduser()
    if name in OURS or path.exists():
        return
    if close := get_close_matches(name, OURS, n=1, cutoff=0.8):
        raise UsageError(f"there is no model '{name}': did you mean '{close[0]}'?")
    # A hub name is owner/name or name, so that whatever begins in a folder that is here was meant as a path.
    if name.startswith((".", "~")) or path.is_absolute() or len(path.parts) > 2 or _in_a_folder(path):
        raise UsageError(
            f"{name} does not exist: give a run folder, a model's folder or file, {' or '.join(OURS)}, or a hub name"
        )


def _in_a_folder(path: Path) -> bool:
    return len(path.parts) > 1 and Path(path.parts[0]).is_dir()
