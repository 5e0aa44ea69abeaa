"""Free-form against multiple-choice supervised training: how widely each base model explores, and how fast that collapses under RL.

    python -m benchmarks.findings.choices prepare    the model and the demonstrations, in studies/models: minutes of a CPU
    python -m benchmarks.findings.choices make       that where it is not there; trains studies/choices-*.toml and asks, half an hour on two cores
    python -m benchmarks.findings.choices            the tables, from studies/results/choices-*

One model, `packaged` with five more characters, learns from as many demonstrations: *free* expressions alone; *choice* four in five as
four options and a letter, the rest expressions. Then GRPO, for both on expressions, and for *choice* also on letters. All are asked for
expressions, of the same problems. Breadth here is what a direct answer shows of it: different answers, and the entropy of the first third of
an answer, where all is open, against that of the last.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from benchmarks.findings.buy_back import Drawing, draw
from benchmarks.findings.outcomes import Cells, told
from benchmarks.findings.policies import (
    STUDIES,
    Row,
    ask_all,
    asked,
    load_study,
    policies_of,
    read_rows,
    run_study,
    write_rows,
)
from benchmarks.findings.studied import table
from benchmarks.findings.where import FILE as TOKENS
from benchmarks.findings.where import LOG, collect_rows, phases, row_of
from benchmarks.findings.widened import widen
from equipoise.files import atomic_write, make_folder
from equipoise.lab.study_config import BASE, StudyConfig
from equipoise.lab.study_numbers import difference
from equipoise.models.checkpoint import save_gpt
from equipoise.models.packaged import packaged_model
from equipoise.tasks.table import find_task
from equipoise.training.sft import make_pairs

FORMATS = ("choices-free", "choices-choice", "choices-letters")  # the last two have one base model
MODEL = STUDIES / "models" / "choices.safetensors"
MORE, CONTEXT = "|ABCD", 128
PAIRS, FREE_SHARE = 12_000, 0.2
FREE, CHOICE = "countdown", "countdown:options=4"
DRAWS = "draws.parquet"


def write_model(path: Path) -> None:
    """`packaged` with more characters and a longer context."""
    model, wide = widen(packaged_model("small"), MORE, context=CONTEXT)
    make_folder(path.parent)
    with torch.no_grad():
        save_gpt(path, model, wide)


def write_pairs(config: StudyConfig, free: float, *, n: int) -> None:
    """Demonstrations, a share of them free-form."""
    assert config.sft is not None
    assert config.sft.file is not None
    n_free = round(free * n)
    pairs = make_pairs(find_task(FREE), seed=("choices", "free"), n=n_free)
    if n_free < n:
        pairs += make_pairs(find_task(CHOICE), seed=("choices", "letters"), n=n - n_free)
    make_folder(config.sft.file.parent)
    with atomic_write(config.sft.file) as handle:
        for prompt, completion in pairs:
            handle.write((json.dumps({"prompt": prompt, "completion": completion}) + "\n").encode())


def profile(config: StudyConfig) -> list[tuple[str, ...]]:
    """Expressions at T = 1, of the base model and after training: pass@1, pass@k, different answers, answer entropy."""
    rows = read_rows(config.out / DRAWS)
    cells = Cells([row for row in rows if row["split"] == "test"], ("arm", "temperature"))
    k = int(max(row["drawn"] for row in rows))
    found = []
    for arm in (BASE, *config.arms):
        told_of = []
        for name, digits in (("pass@1", 3), (f"pass@{k}", 3), ("distinct", 1), ("entropy", 2)):
            mine, base = (cells.values((who, 1.0), name) for who in (arm, BASE))
            change = "" if arm == BASE else f" ({told(difference(mine, base), digits)})"
            told_of.append(f"{mine.mean():.{digits}f}{change}")
        found.append((config.out.name, arm, *told_of))
    return found


def collapse(config: StudyConfig) -> list[tuple[str, ...]]:
    """Of the training's own task: entropy lost, early and late in an answer, and how soon."""
    tokens, logged = read_rows(config.out / TOKENS), read_rows(config.out / LOG)
    return [
        (config.out.name, kind, *row_of(tokens, arm, kind)[2:], *phases(logged, arm)[1:])
        for arm in config.arms
        for kind in ("all", "first third", "last third")
        if any(row["kind"] == kind for row in tokens)  # a letter has no last third
    ]


def lost_by_seed(config: StudyConfig) -> list[float]:
    """Share of the token entropy that training took, a value per seed; the first and last twentieth of the steps."""
    logged: Sequence[Row] = read_rows(config.out / LOG)
    found = []
    for seed in config.seeds:
        course = np.array([row["entropy"] for row in logged if row["seed"] == seed])
        width = max(1, len(course) // 20)
        found.append(float(1 - course[-width:].mean() / course[:width].mean()))
    return found


def tables(configs: Sequence[StudyConfig]) -> str:
    k = int(max(row["drawn"] for row in read_rows(configs[0].out / DRAWS)))
    heads = ("study", "policy", "pass@1 (Δ to base)", f"pass@{k}", "different answers", "answer entropy")
    of_rate = (
        "study",
        "tokens",
        "mean entropy: before → after",
        "share lost",
        "of all entropy",
        *(f"of the fall by {share} of the steps" for share in ("10 %", "25 %", "50 %", "75 %")),
    )
    per_seed: list[tuple[str, ...]] = [
        (
            config.out.name,
            ", ".join(f"{lost:.2f}" for lost in lost_by_seed(config)),
            f"{np.mean(lost_by_seed(config)):.2f}",
        )
        for config in configs
    ]
    return "\n\n".join(
        [
            table(heads, [row for config in configs for row in profile(config)]),
            table(of_rate, [row for config in configs for row in collapse(config)]),
            table(("study", "share of token entropy lost, by seed", "mean"), per_seed),
        ]
    )


def prepare(configs: Sequence[StudyConfig], *, pairs: int) -> None:
    """The model and what it learns from, where they are not there yet."""
    if not MODEL.exists():
        write_model(MODEL)
    for config, free in zip(configs, (1.0, FREE_SHARE, FREE_SHARE), strict=True):
        if config.sft is not None and config.sft.file is not None and not config.sft.file.exists():
            write_pairs(config, free, n=pairs)


def main() -> None:
    given = asked(__doc__ or "", verbs=("make", "prepare"), numbers={"pairs": PAIRS})
    configs = [load_study(name, given.settings) for name in FORMATS]
    if given.verb is not None:
        prepare(configs, pairs=given.pairs)
    if given.verb == "prepare":
        return
    for config in configs if given.verb == "make" else ():
        run_study(config, jobs=given.jobs)
        tokens, logged = collect_rows(config)
        write_rows(config.out / TOKENS, tokens)
        write_rows(config.out / LOG, logged)
        how = replace(Drawing.asked(given), samples=given.samples or 64)
        asked_free = [replace(policy, task=FREE, max_tokens=20) for policy in policies_of(config)]
        ask_all(draw, asked_free, how, config.out / DRAWS, jobs=given.jobs)
    print(tables(configs))


if __name__ == "__main__":
    main()
