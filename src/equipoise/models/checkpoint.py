"""The small GPT on disk: one safetensors file that holds weights, config and alphabet, written at once or not at all."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from equipoise.errors import MissingExtra, UsageError
from equipoise.files import atomic_write, parse_json
from equipoise.models.characters import Characters
from equipoise.models.gpt import GPT, GPTConfig

try:
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import save
except ModuleNotFoundError as missing:
    raise MissingExtra("train", needed_for="a model file") from missing

FORMAT = "equipoise.gpt/1"


def save_gpt(path: Path, model: GPT, tokens: Characters) -> None:
    """Weights as they are, in their dtype; config and alphabet as JSON in the file's metadata."""
    if tokens.size != model.config.vocabulary:
        raise UsageError(
            f"the model has {model.config.vocabulary} tokens, its alphabet gives {tokens.size}: they must agree"
        )
    about = {"format": FORMAT, "config": asdict(model.config), "alphabet": tokens.alphabet}
    if tokens.thinking is not None:
        about["thinking"] = list(tokens.thinking)
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    with atomic_write(path) as handle:
        handle.write(save(weights, {"equipoise": json.dumps(about)}))


def load_gpt(path: Path) -> tuple[GPT, Characters]:
    """The model on the CPU, in the dtype it was saved in, and its tokenizer."""
    about, weights = _read(path)
    config = _config(path, about.get("config"))
    tokens = Characters(str(about.get("alphabet", "")), _thinking(path, about.get("thinking")))
    if tokens.size != config.vocabulary:
        raise UsageError(
            f"{path}: the config has {config.vocabulary} tokens, the alphabet gives {tokens.size}: save it again"
        )
    model = GPT(config)
    _compare(path, weights, model.state_dict())
    model.to(next(iter(weights.values())).dtype)
    model.load_state_dict(weights)
    return model, tokens


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            about = parse_json((file.metadata() or {}).get("equipoise", "{}"))
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except OSError as problem:
        raise UsageError(f"cannot read {path}: {problem.strerror or problem}") from problem
    except SafetensorError as problem:
        raise UsageError(f"{path} is not a complete safetensors file ({problem}): save or copy it again") from problem
    except ValueError as problem:
        raise UsageError(f"{path}: its description is not JSON ({problem}): save it again") from problem
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        found = about.get("format") if isinstance(about, dict) else about
        raise UsageError(
            f"{path} is not a {FORMAT} checkpoint, its format is {found!r}: give a file that save_gpt wrote"
        )
    return about, weights


def _config(path: Path, found: Any) -> GPTConfig:
    known = GPTConfig.__dataclass_fields__
    if (
        not isinstance(found, dict)
        or set(found) != set(known)
        or not all(type(value) is int for value in found.values())
    ):
        raise UsageError(f"{path}: the config must be whole numbers named {', '.join(known)}, found {found}")
    return GPTConfig(**found)


def _thinking(path: Path, found: Any) -> tuple[str, str] | None:
    if found is None:
        return None
    if not isinstance(found, list) or len(found) != 2 or not all(isinstance(mark, str) for mark in found):
        raise UsageError(f"{path}: thinking is opened and closed by two characters, found {found}: save it again")
    return found[0], found[1]


def _compare(path: Path, found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Refuse weights that are unknown, missing, or of another shape or kind, all named at once."""
    unknown, missing = sorted(set(found) - set(expected)), sorted(set(expected) - set(found))
    odd = [
        f"{name} {tuple(found[name].shape)} for {tuple(expected[name].shape)}"
        for name in expected
        if name in found and found[name].shape != expected[name].shape
    ]
    kinds = {tensor.dtype for tensor in found.values()}
    faults = {"unknown": unknown, "missing": missing, "of another shape": odd}
    if len(kinds) > 1 or not all(kind.is_floating_point for kind in kinds):
        faults["of several kinds, or not floats"] = sorted(map(str, kinds))
    said = [f"{what}: {', '.join(names)}" for what, names in faults.items() if names]
    if said:
        raise UsageError(
            f"{path}: these weights do not fit its config ({'; '.join(said)}): give a file that save_gpt wrote"
        )
