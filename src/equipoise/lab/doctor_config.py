"""A training config of somebody's, as flat settings, and whose it is: TRL's, verl's or ours."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from equipoise.errors import UsageError
from equipoise.files import parse_json

HostName = Literal["trl", "verl", "equipoise"]
MAX_BYTES = 4 << 20
VERL_SECTIONS = ("actor_rollout_ref", "algorithm", "reward", "trainer", "data", "ray_kwargs")
OUR_SECTIONS = ("method", "sampling", "learning", "sft", "evaluation")
# Keys that only TRL's GRPOConfig has among the three; Hugging Face's own (learning_rate, …) prove nothing.
TRL_KEYS = (
    *("num_generations", "epsilon", "epsilon_high", "beta", "loss_type", "scale_rewards", "max_completion_length"),
    *("entropy_coef", "use_adaptive_entropy", "top_entropy_quantile", "num_iterations", "steps_per_generation"),
    *("importance_sampling_level", "mask_truncated_completions", "reward_weights", "exploration"),
)


@dataclass(frozen=True, slots=True)
class HostConfig:
    """What a file sets. Keys are flat, `actor_rollout_ref.actor.clip_ratio_high`; Hydra's plus is gone."""

    host: HostName
    path: Path
    settings: Mapping[str, Any]


def read_host_config(path: Path) -> HostConfig:
    """A TOML, JSON or YAML file, its host told by its keys."""
    tree = _read(path)
    if not isinstance(tree, dict):
        raise UsageError(f"{path} holds a {type(tree).__name__}, not settings: give a config with keys and values")
    flat = {key.replace("+", ""): value for key, value in _flat(tree)}
    tops = {key.partition(".")[0] for key in flat}
    if tops & {"actor_rollout_ref", "algorithm"} or "reward.reward_manager.name" in flat:
        return HostConfig(
            "verl", path, {key: value for key, value in flat.items() if key.partition(".")[0] in VERL_SECTIONS}
        )
    if tops & set(OUR_SECTIONS) and path.suffix == ".toml":
        return HostConfig("equipoise", path, flat)
    if tops & set(TRL_KEYS):
        return HostConfig("trl", path, tree)
    raise UsageError(
        f"{path} is no config of TRL, verl or equipoise: it sets {', '.join(sorted(tops)[:8]) or 'nothing'}; a GRPOConfig as "
        "TOML, JSON or YAML, a verl Hydra config or a file for equipoise train would do"
    )


def _read(path: Path) -> Any:
    try:
        data = path.read_bytes()
    except OSError as problem:
        raise UsageError(
            f"cannot read {path}: {problem.strerror or problem}; give a TOML, JSON or YAML file"
        ) from problem
    if len(data) > MAX_BYTES:
        raise UsageError(f"{path} is over {MAX_BYTES >> 20} MB: no config is that long")
    readers = {".toml": _toml, ".json": parse_json, ".yaml": _yaml, ".yml": _yaml}
    if path.suffix not in readers:
        raise UsageError(f"{path} is neither .toml, .json, .yaml nor .yml: name it as what it is")
    try:
        return readers[path.suffix](data)
    except ValueError as problem:
        if isinstance(problem, UsageError):
            raise
        raise UsageError(f"{path} is not {path.suffix[1:].upper()}: {' '.join(str(problem).split())}") from problem


def _toml(data: bytes) -> Any:
    return tomllib.loads(data.decode())


def _yaml(data: bytes) -> Any:
    try:
        import yaml  # type: ignore[import-untyped]
    except ModuleNotFoundError as problem:
        raise UsageError("reading YAML needs PyYAML, which TRL and verl bring along: pip install pyyaml") from problem
    try:
        return yaml.safe_load(data.decode())
    except yaml.YAMLError as problem:
        raise ValueError(str(problem)) from problem


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
