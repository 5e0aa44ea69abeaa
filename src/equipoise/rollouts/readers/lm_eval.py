"""lm-evaluation-harness 0.4.13 (`--log_samples`): `samples_<task>_<time>.jsonl`, with `results_<time>.json` beside it.

| lm-eval | here |
| --- | --- |
| the task in the file name | env; with `doc_id`, prompt_id and group_id |
| `arguments.gen_args_0.arg_0` | prompt |
| `resps[0]`, one text a repeat | one row each: completion, sample_index |
| `target` | reference_answer |
| `filtered_resps[0]`; `[invalid]` is none | answer, where it is this repeat's own |
| `exact_match`, `acc`, `pass@1`… being 0 or 1 | correct, where it is this repeat's own |
| numeric metrics | rewards, and the first of them reward, where they are this repeat's own |
| the time in the file name | run_id: a later run adds files, it replaces none |

The file has every document once per filter. One filter is read: the one named by `columns={"answer": NAME}`, else the
first that does not vote. A filter gives one answer for all repeats and the metric judges only that: with repeats, it
belongs to the first where the filter takes the first and to none where it votes, and the others stay ungraded.
Multiple choice is no sampling: such lines hold log-likelihoods of given texts and are skipped. Token ids, log-probs,
lengths and finish reasons are in no file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.errors import UsageError
from equipoise.files import read_json
from equipoise.rollouts.readers.foreign import (
    as_list,
    as_object,
    files_in,
    first_object,
    has_keys,
    leftovers,
    lines_of,
    natural,
    number,
    require,
    streaming,
    wanted,
    zero_or_one,
)
from equipoise.rollouts.readers.mapping import ColumnMap, check_map, mapped
from equipoise.rollouts.rows import Warn
from equipoise.rollouts.run import Run, RunInfo, Warnings

NAME = re.compile(r"samples_(?P<task>.+)_(?P<time>\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d(?:\.\d+)?)\.jsonl(?:\.gz)?")
VERDICTS = ("exact_match", "acc", "pass@1", "pass_at_1", "em", "math_verify")
INVALID = "[invalid]"
MAPPED = (
    "doc_id",
    "target",
    "arguments",
    "resps",
    "filtered_resps",
    "filter",
    "metrics",
    "doc_hash",
    "prompt_hash",
    "target_hash",
)


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    task: str
    time: str | None


def claims(path: Path) -> bool:
    return bool(_files(path))


def open(path: Path, *, columns: Mapping[str, str] | None = None) -> Run:
    warnings = Warnings()
    named = check_map(columns)
    asked_filter = named.pop("answer", None)
    files = require(_files(path), path, what="lm-eval samples (samples_<task>_<time>.jsonl)")
    results = {file.path: _results(file, warnings) for file in files}

    def rows(asked: Sequence[str] | None, warn: Warn) -> Iterator[dict[str, Any]]:
        configs = [as_object(as_object(results[file.path].get("configs")).get(file.task)) for file in files]
        filters = [_filters(file, config) for file, config in zip(files, configs, strict=True)]
        known_filter = named.for_another or any(asked_filter in names for names in filters)
        if asked_filter is not None and not known_filter:
            known = ", ".join(dict.fromkeys(str(name) for names in filters for name in names))
            raise UsageError(f"{path} has no filter '{asked_filter}': it has {known}")
        for file, config, names in zip(files, configs, filters, strict=True):
            keep = _choose_filter(file, names, config, asked_filter, warn)
            for line in lines_of(file.path, warn):
                if line.get("filter") == keep:
                    yield from _rows(line, file, config, named, warn, with_extra=wanted(asked, "extra"))

    first = results[files[0].path]
    config = as_object(first.get("config"))
    models = {r.get("model_name") for r in results.values() if r}
    info = RunInfo(
        source="lm-eval",
        source_version=first.get("lm_eval_version"),
        run_id=files[0].time if len({file.time for file in files}) == 1 else path.name,
        model=models.pop() if len(models) == 1 else None,
        sampling=as_object(as_object(as_object(first.get("configs")).get(files[0].task)).get("generation_kwargs"))
        | as_object(config.get("gen_kwargs")),
        settings={"tasks": sorted({file.task for file in files})},
        seed=config.get("random_seed"),
        provenance={
            "answer": "the chosen filter's, where it took this repeat",
            "correct": "the task's metric, where it judges this repeat",
            "reward": "the task's first metric",
        },
    )
    return Run(path, info, streaming(path, rows, named, warnings), warnings=warnings)


def _files(path: Path) -> list[_File]:
    if path.is_dir():
        paths = sorted([*files_in(path, "samples_*.jsonl*"), *files_in(path, "*/samples_*.jsonl*")], key=natural)
    else:
        paths = [path] if path.is_file() else []
    found = []
    for p in paths:
        name = NAME.fullmatch(p.name)
        if name or (p.suffix == ".jsonl" and has_keys(first_object(p), "doc_id", "resps", "filtered_resps", "filter")):
            found.append(
                _File(p, name["task"] if name else p.stem.removeprefix("samples_"), name["time"] if name else None)
            )
    return found


def _results(file: _File, warn: Warn) -> dict[str, Any]:
    """The results of the same run: same folder, same time."""
    beside = file.path.with_name(f"results_{file.time}.json")
    if file.time is None or not beside.is_file():
        warn(
            "no-results",
            f"{file.path.name}: no results file of the same time beside it, so model and sampling settings are unknown",
        )
        return {}
    try:
        return as_object(read_json(beside))
    except UsageError as problem:
        warn("bad-results", f"{problem}; model and sampling settings are unknown")
        return {}


def _filters(file: _File, config: Mapping[str, Any]) -> list[Any]:
    """The file's filters in order: as the results file lists them, else as the lines do."""
    listed = [entry.get("name") for entry in as_list(config.get("filter_list")) if isinstance(entry, Mapping)]
    return listed or list(dict.fromkeys(line.get("filter") for line in lines_of(file.path)))


def _choose_filter(file: _File, filters: list[Any], config: Mapping[str, Any], asked: str | None, warn: Warn) -> Any:
    """The filter to read: the one asked for, else the first that does not vote."""
    single = [name for name in filters if not _votes(name, config)]
    keep = asked if asked in filters else next(iter([*single, *filters]), None)
    if len(filters) > 1:
        left = ", ".join(str(name) for name in filters if name != keep)
        warn("one-filter", f"{file.path.name} has each document once per filter: '{keep}' is read, {left} left out")
    return keep


def _steps(name: Any, config: Mapping[str, Any]) -> list[str] | None:
    """The filter's functions as the results file lists them; None where it does not."""
    for entry in as_list(config.get("filter_list")):
        if isinstance(entry, Mapping) and entry.get("name") == name and isinstance(entry.get("filter"), list):
            return [str(as_object(step).get("function")) for step in entry["filter"]]
    return None


def _votes(name: Any, config: Mapping[str, Any]) -> bool:
    steps = _steps(name, config)
    return str(name).startswith("maj") if steps is None else "majority_vote" in steps


def _rows(
    line: Mapping[str, Any],
    file: _File,
    config: Mapping[str, Any],
    named: ColumnMap,
    warn: Warn,
    *,
    with_extra: bool,
) -> Iterator[dict[str, Any]]:
    resps = line.get("resps")
    texts = resps[0] if isinstance(resps, list) and len(resps) == 1 and isinstance(resps[0], list) else None
    if not texts or not all(isinstance(text, str) for text in texts):
        warn(
            "not-sampled",
            f"{file.path.name}: lines without sampled texts (log-likelihoods, multiple choice) were skipped",
        )
        return
    request = as_object(as_object(line.get("arguments")).get("gen_args_0"))
    settings = as_object(request.get("arg_1"))
    metrics = {m: line.get(m) for m in as_list(line.get("metrics")) if isinstance(m, str)}
    filtered = line.get("filtered_resps")
    answers = filtered[0] if isinstance(filtered, list) and filtered else None
    if len(texts) > 1:
        warn(
            "repeats-ungraded",
            f"{file.path.name}: {len(texts)} repeats a document, but lm-eval grades one answer for all of them; the others have no verdict",
        )
    identity = f"{file.task}/{line.get('doc_id')}"
    extra = leftovers(line, {*MAPPED, *metrics}) if with_extra else None
    for index, text in enumerate(texts):
        row: dict[str, Any] = {
            "run_id": file.time,
            "split": "eval",
            "env": file.task,
            "prompt_id": identity,
            "group_id": identity,
            "sample_index": index,
            "prompt": request.get("arg_0"),
            "completion": text,
            "reference_answer": line.get("target"),
            "temperature": settings.get("temperature"),
            "budget": settings.get("max_gen_toks"),
            "extra": extra,
        }
        own = len(texts) == 1 or (index == 0 and not _votes(line.get("filter"), config))
        if isinstance(answers, list):  # a filter that keeps every repeat
            row["answer"] = answers[index] if index < len(answers) else None
            own = len(texts) == 1
        elif own:
            row["answer"] = answers
        if row.get("answer") == INVALID:
            row["answer"] = None
        if own:
            row |= _graded(metrics, parsed=answers != INVALID)
        yield row | mapped(line, named, warn)


def _graded(metrics: Mapping[str, Any], *, parsed: bool) -> dict[str, Any]:
    parts = {name: value for name, value in ((m, number(v)) for m, v in metrics.items()) if value is not None}
    verdicts = (zero_or_one(metrics.get(name)) for name in VERDICTS)
    verdict = next((found for found in verdicts if found is not None), None)
    return {
        "correct": verdict,
        "outcome": None if verdict is None else "right" if verdict else "wrong" if parsed else "unparsable",
        "reward": next(iter(parts.values()), None),
        "rewards": parts or None,
    }
