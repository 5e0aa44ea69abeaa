"""verl 0.9.1: the dumps of `trainer.rollout_data_dir` and `trainer.validation_data_dir`, and the `file` logger's metrics.

A dump is a folder of `<step>.jsonl`. Given its parent, both dumps and any metrics file below it are read.

| verl | here |
| --- | --- |
| `input`, `output` (decoded without special tokens) | prompt, completion |
| `gts` | reference_answer |
| `step`, or the file name | step |
| `uid` = prompt_session_output (v1 trainer) | group_id, sample_index; the last output of a session is the row |
| no `uid` (legacy trainer) | group_id = the prompt: two groups of one question in one step become one |
| `reward` (validation), else `score` | reward; with the DAPO manager's keys, `score` + `overlong_reward`, which is what it trains on |
| `acc` where it is a verdict | correct |
| `pred` | answer; `[INVALID]` is none |
| numeric extras | rewards |
| `{"step", "data"}` lines | metrics |

The legacy trainer moves rows between groups (`balance_batch`), so position says nothing. A reward function that returns a
dict overwrites `score` with its own; one that returns a float leaves it as `acc` too, so a numeric `acc` counts as a
verdict only in a file where every value is 0 or 1. Token ids, log-probs, entropies, lengths and truncation are in no dump.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from equipoise.files import plain
from equipoise.rollouts.readers.curves import metrics_of_rows
from equipoise.rollouts.readers.foreign import (
    files_in,
    first_object,
    has_keys,
    leftovers,
    lines_of,
    natural,
    number,
    number_in,
    numbers_among,
    recognised,
    require,
    streaming,
    wanted,
    zero_or_one,
)
from equipoise.rollouts.readers.mapping import ColumnMap, check_map, mapped
from equipoise.rollouts.rows import Warn, stable_id
from equipoise.rollouts.run import Run, RunInfo, Warnings

DUMP = re.compile(r"\d+\.jsonl(\.gz)?")
UID = re.compile(r"(.+)_(\d{1,9})_(\d{1,9})")
MAPPED = ("input", "output", "gts", "score", "reward", "step", "uid", "acc", "pred")


def claims(path: Path) -> bool:
    return bool(_dumps(path, limit=1))


def open(path: Path, *, columns: Mapping[str, str] | None = None) -> Run:
    warnings = Warnings()
    named = check_map(columns)
    files = require(_dumps(path), path, what="verl dump (<step>.jsonl with input, output, gts, score)")
    logs = _metric_files(path)
    logged = (line for log in logs for line in lines_of(log, warnings))
    curves = metrics_of_rows(logged, warn=warnings, tool="verl")

    def rows(asked: Sequence[str] | None, warn: Warn) -> Iterator[dict[str, Any]]:
        for file in files:
            below = file.relative_to(path).parts if path.is_dir() else ()
            run = below[0] if len(below) == 3 else None  # a folder of runs, each with its dumps
            for row in _rows(file, named, warn, with_extra=wanted(asked, "extra")):
                yield {"run_id": run} | row

    info = RunInfo(
        source="verl",
        run_id=logs[0].stem if logs else (path if path.is_dir() else path.parent).name,
        provenance=curves.provenance
        | {
            "reward": "as logged: reward (validation) or score; score + overlong_reward under the DAPO reward manager",
            "correct": "acc, where it is true/false or 0/1 throughout the file",
        },
    )
    return Run(
        path,
        info,
        streaming(path, rows, named, warnings),
        read_metrics=lambda: map(dict, curves.steps),
        warnings=warnings,
    )


def _dumps(path: Path, *, limit: int | None = None) -> list[Path]:
    """Dump files at this path, in it, or one and two folders below."""
    if path.is_file():
        return recognised([path], _is_dump) if DUMP.fullmatch(path.name) else []
    if not path.is_dir():
        return []
    found: list[Path] = []
    for pattern in ("", "*/", "*/*/"):  # a dump, the two dumps of a run, runs
        files = [p for p in files_in(path, f"{pattern}*.jsonl*") if DUMP.fullmatch(p.name)]
        for folder in dict.fromkeys(p.parent for p in files):
            found += recognised([p for p in files if p.parent == folder], _is_dump)
        if limit and found:
            break
    return sorted(found, key=natural)[:limit]


def _is_dump(line: Mapping[str, Any] | None) -> bool:
    return has_keys(line, "input", "output", "gts", "score")


def _metric_files(path: Path) -> list[Path]:
    """The file logger's output in or below the folder. Several experiments would be several runs: none is taken then."""
    if not path.is_dir():
        return []
    listed = [*files_in(path, "*.jsonl"), *files_in(path, "*/*.jsonl"), *files_in(path, "*/*/*.jsonl")]
    files = [p for p in listed if not DUMP.fullmatch(p.name)][:64]  # a folder of anything is not searched for long
    found = [p for p in files if _is_metrics(first_object(p))]
    return found if len(found) == 1 else []


def _is_metrics(line: Mapping[str, Any] | None) -> bool:
    return line is not None and set(line) == {"step", "data"} and isinstance(line["data"], dict)


def _rows(file: Path, named: ColumnMap, warn: Warn, *, with_extra: bool) -> Iterator[dict[str, Any]]:
    step_of_file = number_in(file.name.removesuffix(".gz"))
    verdicts: bool | None = None
    seen: Counter[str] = Counter()
    for source, earlier in _sessions(file, warn):
        if not {"input", "output"} <= source.keys():
            warn("mixed-schema", f"{file.name}: lines without input and output were skipped")
            continue
        if verdicts is None and isinstance(source.get("acc"), int | float):
            verdicts = isinstance(source["acc"], bool) or _all_verdicts(file, warn)
            if not verdicts:
                warn("acc-is-a-score", f"{file.name}: acc is not 0 or 1 in every row, so correct is left unknown")
        row = _row(source, verdicts=verdicts is True)
        row["step"] = source.get("step", step_of_file)
        if row["group_id"] is None:
            seen[stable_id(str(source["input"]))] += 1  # the group is filled in from the prompt
        if with_extra:
            kept = source | {"earlier_outputs": earlier or None}
            row["extra"] = leftovers(kept, {*MAPPED, *(row["rewards"] or ())})
        yield row | mapped(source, named, warn)
    if seen:
        warn("no-uid", f"{file.name}: no uid, as the legacy trainer writes; completions are grouped by prompt text")
        usual = min(seen.values())
        merged = [n for n in seen.values() if n > usual and n % usual == 0]
        if merged:
            warn(
                "merged-groups",
                f"{file.name}: {len(merged)} prompts have a multiple of {usual} rows: groups of one question that cannot be told apart",
            )


def _sessions(file: Path, warn: Warn) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """(last line, earlier outputs) of each session. Lines of a session are neighbours: verl sorts by uid."""
    held: dict[str, Any] | None = None
    key: str | None = None
    earlier: list[str] = []
    for line in lines_of(file, warn):
        found = UID.fullmatch(line["uid"]) if isinstance(line.get("uid"), str) else None
        session = f"{found[1]}_{found[2]}" if found else None
        if held is not None and session is not None and session == key:
            earlier.append(str(plain(held.get("output"))))
            warn("several-outputs", f"{file.name}: sessions with several outputs count once, by their last output")
        elif held is not None:
            yield held, earlier
            earlier = []
        held, key = line, session
    if held is not None:
        yield held, earlier


def _all_verdicts(file: Path, warn: Warn) -> bool:
    values = (line.get("acc") for line in lines_of(file))
    return all(value is None or zero_or_one(value) is not None for value in values)


def _row(source: Mapping[str, Any], *, verdicts: bool) -> dict[str, Any]:
    found = UID.fullmatch(source["uid"]) if isinstance(source.get("uid"), str) else None
    pred = source.get("pred")
    parsed = None if pred in (None, "[INVALID]") else pred
    correct = zero_or_one(source.get("acc")) if verdicts else None
    outcome = None
    if correct is not None:
        outcome = "right" if correct else "unparsable" if pred == "[INVALID]" else "wrong"
    gts = source.get("gts")
    return {
        "split": "eval" if "reward" in source else "train",
        "group_id": found[1] if found else None,
        "sample_index": int(found[2]) if found else None,
        "prompt": source["input"],
        "completion": source["output"],
        "reference_answer": json.dumps(plain(gts), ensure_ascii=False) if isinstance(gts, dict | list) else gts,
        "answer": parsed,
        "outcome": outcome,
        "correct": correct,
        "reward": _total(source),
        "rewards": numbers_among(source, skip=("step", "reward", "acc")) or None,
    }


def _total(source: Mapping[str, Any]) -> float | None:
    if "reward" in source:
        return number(source["reward"])
    score, penalty = number(source.get("score")), number(source.get("overlong_reward"))
    # Both keys together are the DAPO manager's; its extras overwrite the summed score with the function's own.
    return score + penalty if score is not None and penalty is not None and "overlong" in source else score
