"""Tables of a notebook's HTML, read by an XML parser: it refuses a tag that was not closed or a text that was not escaped."""

from __future__ import annotations

from xml.etree import ElementTree

import pandas as pd


def read_tables(html: str) -> list[pd.DataFrame]:
    """Each table with its first row as column names and its first column as index; all cells are texts."""
    found = []
    for table in ElementTree.fromstring(f"<div>{html}</div>").iter("table"):
        heads, *rows = [[cell.text or "" for cell in row] for row in table.iter("tr")]
        found.append(pd.DataFrame(rows, columns=heads).set_index(heads[0]))
    return found
