"""results.json of a study as estimates, so that its figures draw them like any other numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from equipoise.base import Estimate
from equipoise.errors import UsageError
from equipoise.files import read_json

RESULTS, SCHEMA = "results.json", "equipoise.study/1"
Numbers = dict[str, list[Estimate]]


def is_study(path: Path) -> bool:
    """A folder that `equipoise study` wrote results into, or the file itself."""
    return (path / RESULTS).is_file() or (path.name == RESULTS and path.is_file())


def read_study(path: Path) -> Numbers:
    """`frontier`: pass@1 and pass@k of every arm at every temperature; `paired`: arms against each other and the cooled base."""
    file = path / RESULTS if path.is_dir() else path
    if not file.is_file():
        raise UsageError(f"{path} has no {RESULTS}: give a folder that equipoise study wrote")
    results = read_json(file)
    found = results.get("schema") if isinstance(results, Mapping) else None
    if found != SCHEMA:
        raise UsageError(f"{file} is no study's result: its schema is {found!r}, {SCHEMA} would do")
    try:
        return study_numbers(results)
    except (KeyError, TypeError) as error:
        raise UsageError(f"{file} lacks {error}: run equipoise study again, which keeps the finished runs") from None


def study_numbers(results: Mapping[str, Any]) -> Numbers:
    return {"frontier": list(_frontier(results)), "paired": list(_paired(results))}


def _frontier(results: Mapping[str, Any]) -> Iterator[Estimate]:
    headline = results["headline"]
    for row in results["frontier"]:
        for point in row["points"]:
            at = {"arm": row["arm"], "temperature": point["temperature"]}
            for k in (1, results["k_max"]):
                yield _estimate(
                    point[f"pass@{k}"], f"pass@{k}", {**at, "k": k, "headline": at["temperature"] == headline}
                )


def _paired(results: Mapping[str, Any]) -> Iterator[Estimate]:
    """Every arm against the one that its recipe names, at the headline temperature, and against the base at equal pass@1."""
    k, headline, recipes = results["k_max"], results["headline"], results["recipes"]
    for row in results["differences"]:
        named = recipes.get(row["arm"], {}).get("against")
        wanted = row["against"] == (named if named != row["arm"] else "base")
        if wanted and row["temperature"] == headline and row["name"] in ("pass@1", f"pass@{k}"):
            at = {"arm": row["arm"], "against": row["against"], "temperature": headline}
            yield _estimate(row, f"{row['name']}_difference", at)
    for row in results["matched"]:
        if row["against"] == "base" and row["by"] == "pass@1" and row["name"] == f"pass@{k}":
            at = {"arm": row["arm"], "against": "base", "by": "pass@1", "temperature": headline}
            yield _estimate(row, f"pass@{k}_at_equal_pass@1", at)


def _estimate(row: Mapping[str, Any], name: str, at: Mapping[str, Any]) -> Estimate:
    return Estimate(name, row["value"], row["low"], row["high"], row["n"], at, row["how"], row["missing"])
