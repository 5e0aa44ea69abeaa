"""What completions are drawn from, by its name: a model in this process, or a server's address."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equipoise.base import Sampler, Sampling
from equipoise.errors import MissingExtra, UsageError, unknown_name
from equipoise.lab.interrupting import run_to_end
from equipoise.models.packaged import MAX_TOKENS
from equipoise.specs import read_spec

if TYPE_CHECKING:
    from equipoise.samplers.http import HttpSampler

REACH = 10.0  # seconds for a server's list of models
TOO_MANY = 429
LONGER = 256  # tokens of a completion, for a model of which nothing else is known
PROXY = "proxy"
PARTS = ("base", "expert", "anti")


@dataclass(frozen=True, slots=True)
class Opened:
    """A sampler with what is known of it. `loaded`: the model itself, where it is in this process."""

    name: str
    sampler: Sampler
    chat: bool  # whether its prompts are chat messages
    max_tokens: int = LONGER
    loaded: Any = None  # models.loaders.Loaded
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the run that trained it
    passes: int = 1  # forward passes for a token; tokens are counted once whatever they are
    small: bool = False  # whether a cache of thousands of completions is no matter

    @property
    def title(self) -> str:
        """The name, with what a token costs where that is more than a pass of one model."""
        return self.name if self.passes == 1 else f"{self.name} ({self.passes} forward passes a token)"

    def describe_sampling(self, how: Sampling, *, max_tokens: int | None) -> dict[str, Any]:
        """For the record of a run."""
        told = {"temperature": how.temperature, "top_p": how.top_p, "max_tokens": max_tokens, **how.extra}
        return told if self.passes == 1 else told | {"forward_passes": self.passes}


def open_sampler(model: str | Path | Sampler, *, served: str | None = None, device: str = "cpu") -> Opened:
    """`packaged` or `packaged:thinker`, `smollm2`, a run folder (its newest checkpoint), a `.safetensors` or `.gguf` file, what transformers loads, a
    server's URL (`served`: which of its models), or a sampler. `proxy:base=MODEL,expert=MODEL,anti=MODEL,alpha=1` steers a model in this
    process by the difference of two others (`models.proxy`)."""
    if not isinstance(model, str | Path):
        tokens = getattr(model, "tokens", None)
        return Opened(getattr(model, "name", type(model).__name__), model, chat=tokens is None or _chats(tokens))
    name = str(model)
    if name.startswith(("http://", "https://")):
        from equipoise.samplers.http import connect  # inside: aiohttp is an extra

        sampler = connect(name, model=served)
        _reach(sampler)
        return Opened(name if served is None else f"{name} ({served})", sampler, chat=True)
    if served is not None:
        raise UsageError(
            f"'{served}' is a model of a server, and {name} is none: give the server's URL, as http://localhost:8000/v1"
        )
    return _in_process(name, device)


def _reach(sampler: HttpSampler) -> None:
    """Refuse an address at which nothing answers, before problems are drawn: no completion of it would ever come."""
    from equipoise.samplers.http_draw import Fault

    async def look() -> None:
        try:
            async with asyncio.timeout(REACH):
                await sampler.list_models()
        finally:
            await sampler.close()

    try:
        run_to_end(look, stop=lambda: None)
    except TimeoutError:
        return  # busy, it may be; requests have patience of their own
    except Fault as problem:
        if problem.status != TOO_MANY:
            raise UsageError(f"{sampler.url} cannot be used: {problem}") from problem


def _in_process(name: str, device: str) -> Opened:
    try:
        import torch

        from equipoise.models.gpt import GPT
        from equipoise.models.proxy import proxy_of
        from equipoise.models.thinking import marks_of
        from equipoise.samplers.in_process import InProcess
        from equipoise.training.opening import open_model
    except ModuleNotFoundError as missing:
        if missing.name != "torch":
            raise
        raise MissingExtra("train", needed_for=f"the model {name}") from missing
    parts, alpha = proxy_parts(name)
    # A CPU computes in float32 faster than in half precision, and two batches then agree to 1e-6.
    wide = any(part.startswith("packaged") or part.endswith(".safetensors") for part in parts)
    dtype = torch.float32 if device == "cpu" or wide else None
    opened = [open_model(part, dtype=dtype, device=device) for part in parts]
    small = all(isinstance(one.loaded.model, GPT) for one in opened)
    settings = opened[0].settings
    loaded = opened[0].loaded if alpha is None else proxy_of(*(one.loaded for one in opened), alpha=alpha)
    loaded.model.train(False)
    sampling = settings.get("sampling")
    longest = sampling.get("max_tokens") if isinstance(sampling, dict) else None
    if not isinstance(longest, int):
        thinks = marks_of(loaded.tokens) is not None
        longest = MAX_TOKENS if small and not thinks else LONGER
    return Opened(
        name, InProcess(loaded), _chats(loaded.tokens), longest, loaded, settings, passes=len(parts), small=small
    )


def proxy_parts(name: str) -> tuple[list[str], float | None]:
    """The models that a name stands for, and the alpha of proxy-tuning; None: one model, which is none."""
    if not name.startswith(f"{PROXY}:"):
        return [name], None
    given = read_spec(name, known=(PROXY,), what="model")[1]
    for key in given:
        if key not in (*PARTS, "alpha"):
            raise unknown_name("part of a proxy-tuned model", key, (*PARTS, "alpha"))
    lacking = [part for part in PARTS if part not in given]
    alpha = given.get("alpha", 1.0)
    if lacking or not isinstance(alpha, int | float):
        wrong = f"has no {', '.join(lacking)}" if lacking else f"has alpha={alpha}, which is no number"
        raise UsageError(f"'{name}' {wrong}: write proxy:base=MODEL,expert=MODEL,anti=MODEL,alpha=1")
    return [str(given[part]) for part in PARTS], float(alpha)


def _chats(tokens: Any) -> bool:
    return bool(getattr(getattr(tokens, "inner", None), "chat_template", None))
