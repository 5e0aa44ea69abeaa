"""What completions are drawn from, by its name: a model in this process, or a server's address."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from equipoise.base import Sampler
from equipoise.errors import MissingExtra, UsageError
from equipoise.models.packaged import MAX_TOKENS

LONGER = 256  # tokens of a completion, for a model of which nothing else is known


@dataclass(frozen=True, slots=True)
class Opened:
    """A sampler with what is known of it. `loaded`: the model itself, where it is in this process."""

    name: str
    sampler: Sampler
    chat: bool  # whether its prompts are chat messages
    max_tokens: int = LONGER
    loaded: Any = None  # models.loaders.Loaded
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the run that trained it


def open_sampler(model: str | Path | Sampler, *, served: str | None = None, device: str = "cpu") -> Opened:
    """`packaged` or `packaged:thinker`, `smollm2`, a run folder (its newest checkpoint), a `.safetensors` or `.gguf` file, what transformers loads, a
    server's URL (`served`: which of its models), or a sampler."""
    if not isinstance(model, str | Path):
        tokens = getattr(model, "tokens", None)
        return Opened(getattr(model, "name", type(model).__name__), model, chat=tokens is None or _chats(tokens))
    name = str(model)
    if name.startswith(("http://", "https://")):
        from equipoise.samplers.http import connect  # inside: aiohttp is an extra

        return Opened(name if served is None else f"{name} ({served})", connect(name, model=served), chat=True)
    if served is not None:
        raise UsageError(
            f"'{served}' is a model of a server, and {name} is none: give the server's URL, as http://localhost:8000/v1"
        )
    return _in_process(name, device)


def _in_process(name: str, device: str) -> Opened:
    try:
        import torch

        from equipoise.models.gpt import GPT
        from equipoise.models.thinking import marks_of
        from equipoise.samplers.in_process import InProcess
        from equipoise.training.opening import open_model
    except ModuleNotFoundError as missing:
        if missing.name != "torch":
            raise
        raise MissingExtra("train", needed_for=f"the model {name}") from missing
    # A CPU computes in float32 faster than in half precision, and two batches then agree to 1e-6.
    narrow = device != "cpu" and not name.startswith("packaged") and not name.endswith(".safetensors")
    opened = open_model(name, dtype=None if narrow else torch.float32, device=device)
    loaded, settings = opened.loaded, opened.settings
    loaded.model.train(False)
    small = isinstance(loaded.model, GPT)
    sampling = settings.get("sampling")
    longest = sampling.get("max_tokens") if isinstance(sampling, dict) else None
    if not isinstance(longest, int):
        thinks = marks_of(loaded.tokens) is not None
        longest = MAX_TOKENS if small and not thinks else LONGER
    return Opened(name, InProcess(loaded), _chats(loaded.tokens), longest, loaded, settings)


def _chats(tokens: Any) -> bool:
    return bool(getattr(getattr(tokens, "inner", None), "chat_template", None))
