"""A model by its name: what a config, or a command, calls `model`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from equipoise.models.checkpoint import load_gpt
from equipoise.models.language_model import LanguageModel, Tokens
from equipoise.models.packaged import packaged_model


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
    # Inside: transformers takes seconds to import, and the small GPT does not need it.
    from equipoise.models import pretrained

    source = pretrained.find_smollm2() if str(name) == "smollm2" else name
    return Loaded(*pretrained.load_transformers(source, dtype=dtype, device=device))
