"""Pages of docs/findings beside the tables that their commands print."""

from __future__ import annotations

import re
from pathlib import Path

FINDINGS = Path(__file__).parents[1] / "docs" / "findings"


def read_page(name: str) -> str:
    return (FINDINGS / f"{name}.md").read_text()


def as_written(cell: str) -> str:
    """A printed cell in a page's typography: .5 and −.5 for 0.5 and -0.5."""
    return cell if " of " in cell else re.sub(r"(?<![\d.])0\.", ".", cell).replace("-", "−")


def rows_of(page: str) -> list[list[str]]:
    """The cells of every row of a page's tables, but for the first, its name."""
    lines = (line for line in page.splitlines() if line.startswith("|"))
    return [[cell.strip() for cell in line.strip("|").split("|")[1:]] for line in lines]
