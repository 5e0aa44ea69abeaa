"""The documentation is run: commands print what the pages show, links lead somewhere, tables name what the code has.

In a page, a ```console block that starts with `$ equipoise` holds one command and what it prints on stdout, and a
```python block followed by a ```text block a program and what it prints. Both are run from the repository root. A line
that is only `…` stands for lines left out.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from equipoise.cli.main import app
from equipoise.diagnosis.rules import RULES
from equipoise.measures.table import MEASURES

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])

INSIDE = r"((?:(?!```).*\n)*)"
CONSOLE = re.compile(rf"^```console\n\$ equipoise (.*)\n{INSIDE}```$", re.M)
PYTHON = re.compile(rf"^```python\n{INSIDE}```\n\n```text\n{INSIDE}```$", re.M)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```$", re.M | re.S)


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    source: str
    shown: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(pattern: re.Pattern[str]) -> list[Block]:
    found = []
    for page in PAGES:
        text = page.read_text()
        for block in pattern.finditer(text):
            found.append(Block(name_of(page), text.count("\n", 0, block.start()) + 1, block[1], block[2]))
    return found


def plain(text: str) -> list[str]:
    """Lines without spaces at their ends, and long numbers to nine digits: the last ones depend on the machine."""
    long = re.compile(r"-?\d+\.\d{9,}(e-?\d+)?")
    return [long.sub(lambda number: f"{float(number[0]):.9g}", line.rstrip()) for line in text.splitlines()]


def check(block: Block, printed: str) -> None:
    wanted, lines = plain(block.shown), "".join(f"{line}\n" for line in plain(printed))
    pattern = "".join("(?:.*\n)*?" if line.strip() == "…" else re.escape(line) + "\n" for line in wanted)
    same = re.fullmatch(pattern, lines)
    assert same, f"{block}: {block.source}\nprints\n{lines}"


def test_an_ellipsis_stands_for_any_number_of_lines_and_nothing_else_is_overlooked():
    shown = Block("page", 1, "command", "a\n…\nd  \n")
    for printed in ("a\nd\n", "a\nb\nc\nd\n", "a  \nb\nd\n"):
        check(shown, printed)
    for printed in ("a\nb\n", "b\na\nd\n", "a\nd\ne\n", ""):
        with pytest.raises(AssertionError, match="page:1"):
            check(shown, printed)


@pytest.mark.parametrize("block", blocks(CONSOLE), ids=str)
def test_commands_print_what_the_pages_show(block: Block, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    words = shlex.split(block.source)
    found = CliRunner().invoke(app, words)
    assert found.exit_code == (3 if "--fail-on" in words else 0), found.exception
    check(block, found.stdout)


@pytest.mark.parametrize("block", blocks(PYTHON), ids=str)
def test_programs_print_what_the_pages_show(block: Block):
    found = subprocess.run([sys.executable, "-c", block.source], cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    check(block, found.stdout)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_files_and_headings(page: Path):
    for link in LINK.findall(FENCED.sub("", page.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{name_of(page)} links to {link}"
        assert not anchor or anchor in headings(target), f"{name_of(page)} links to {link}: no such heading"


def headings(page: Path) -> set[str]:
    """Anchors as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", FENCED.sub("", page.read_text()), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_page_is_in_the_index():
    index = (ROOT / "docs" / "README.md").read_text()
    assert set(LINK.findall(index)) >= {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"}


def test_every_measure_has_its_section_in_the_order_of_the_table():
    titles = re.findall(r"^## (.*)$", (ROOT / "docs" / "measures.md").read_text(), re.M)
    names = [measure.name for measure in MEASURES]
    assert [title for title in titles if title in names] == names


def test_the_rules_in_the_page_are_those_of_the_code():
    page = (ROOT / "docs" / "diagnose.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("|")]
    shown = {row[0]: row[1:] for row in rows if row[0] in {rule.name for rule in RULES}}
    for rule in RULES:
        loop, weight, uses, estimates, limit = shown[rule.name]
        assert (loop, weight, uses) == (rule.loop, rule.weight, ", ".join(rule.uses))
        assert re.findall(r"`(.*?)`", estimates) == [name.replace("{k}", "k") for name in rule.estimates]
        assert ("unsolved" in estimates) == (rule.problems == "unsolved")
        assert float(limit.replace("−", "-").removesuffix(" %")) == pytest.approx(100 * rule.limit)
