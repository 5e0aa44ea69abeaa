"""A ready verl config for each method: what to set, in the form that Hydra composes over verl's own.

    python -m verl.trainer.main_ppo --config-path $PWD/examples/verl --config-name gppo data.train_files=…

`fragment` writes one from the catalogue: critic-free, 16 completions per prompt, and otherwise verl's own values. A method that verl has itself is set by verl's own options; a loss or advantage of ours by
its `equipoise_` name; a bonus or reward by our reward manager. Settings without a key in verl travel in EQUIPOISE_VERL.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from equipoise.catalogue.base import Method
from equipoise.catalogue.hosts import VERL
from equipoise.catalogue.settings import settings_for
from equipoise.catalogue.table import find_method, methods
from equipoise.catalogue.verl_keys import added_keys
from equipoise.errors import UsageError
from equipoise.files import atomic_write, make_folder

GROUP = 16  # completions per prompt: verl's own default of 1 has nothing to compare


def offered() -> tuple[str, ...]:
    """The methods that have a fragment, in the catalogue's order."""
    return tuple(row.name for row in methods() if row.loop == "training" and _keys(row))


def fragment(name: str) -> str:
    """The method's config as YAML, with what it is and when it acts as comments."""
    row = find_method(name)
    keys = _keys(row)
    if not keys:
        raise UsageError(
            f"verl cannot run {row.name}: it has no option for it, and hands no seam what it needs ({', '.join(row.inputs)})"
        )
    run = (
        f"python -m verl.trainer.main_ppo --config-path $PWD/examples/verl --config-name {row.name} data.train_files=…"
    )
    head = [f"{row.name}: {row.about}", row.link, f"verl {VERL.versions}: {run}"]
    if "off_policy" in row.acts_only:
        head.append(f"acts off-policy only; verl is {VERL.off_policy}")
    if row.kind == "bonus":
        head.append(
            "needs extra_info.split in the dataset; verl adds the term to the reward, so no division by the group's std"
        )
    lines = [
        *(f"# {line}" for line in head),
        "hydra:",
        "  searchpath: [pkg://verl.trainer.config]",
        "defaults: [ppo_trainer, _self_]",
    ]
    return "\n".join([*lines, *_yaml(_nested(keys))]) + "\n"


def write_fragments(folder: Path) -> list[Path]:
    """Every method's fragment as `NAME.yaml`."""
    make_folder(folder)
    written = []
    for name in offered():
        path = folder / f"{name}.yaml"
        with atomic_write(path, "w") as handle:
            handle.write(fragment(name))
        written.append(path)
    return written


def _keys(row: Method) -> dict[str, Any]:
    """verl's keys with their values; none where verl cannot run the method."""
    own = {key.removeprefix("+"): value for key, value in settings_for(row, "verl").items()}
    base: dict[str, Any] = {"algorithm.adv_estimator": "grpo", "actor_rollout_ref.rollout.n": GROUP}
    if own:
        longest = {"data.max_response_length": row.settings["limit"]} if "limit" in row.settings else {}
        return base | longest | own
    added = added_keys(row, row.settings)
    return base | added if added else {}


def _nested(keys: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in keys.items():
        *path, last = key.split(".")
        into = tree
        for part in path:
            into = into.setdefault(part, {})
        into[last] = value
    return tree


def _yaml(tree: Mapping[str, Any], depth: int = 0) -> list[str]:
    """Nested mappings with JSON values, which YAML reads as they are."""
    lines = []
    for key, value in tree.items():
        indent = "  " * depth
        if isinstance(value, dict):
            lines += [f"{indent}{key}:", *_yaml(value, depth + 1)]
        else:
            lines.append(f"{indent}{key}: {_scalar(value)}")
    return lines


def _scalar(value: Any) -> str:
    # YAML 1.1 reads 1e-06 as a text: a float needs its point.
    text = json.dumps(value)
    mantissa, e, exponent = text.partition("e")
    return f"{mantissa}.0e{exponent}" if isinstance(value, float) and e and "." not in mantissa else text
