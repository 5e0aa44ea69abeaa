"""A small GPT with more characters and another context: positions are turned, so only embeddings are new."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from equipoise.models.characters import Characters
from equipoise.models.checkpoint import load_gpt
from equipoise.models.gpt import GPT


def widen(
    path: Path, more: str, *, context: int, thinking: tuple[str, str] | None = None, seed: int = 0
) -> tuple[GPT, Characters]:
    """What the model knew stays; embeddings of the new characters are drawn with `seed`. `thinking`: the marks of its thoughts."""
    small, tokens = load_gpt(path)
    wide = Characters(tokens.alphabet + more, thinking=thinking)
    model = GPT(replace(small.config, vocabulary=wide.size, context=context), seed=seed)
    weights = small.float().state_dict()
    embed = model.embed.weight.detach().clone()
    embed[: tokens.size] = weights["embed.weight"]
    model.load_state_dict(weights | {"embed.weight": embed})
    return model, wide
