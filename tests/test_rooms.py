"""Every import is held to the room table in CONTRIBUTING.md."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "equipoise"


def room_table() -> dict[str, set[str]]:
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|$", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.M)
    return {room: {word.strip() for word in allowed.split(",")} for room, allowed in rows}


def imports_of(path: Path) -> set[str]:
    """Rooms of ours and top-level packages of others that a file imports anywhere, type-checking blocks included."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [
                f"{node.module}.{alias.name}" if node.module == "equipoise" else node.module for alias in node.names
            ]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            found.add(parts[1] if parts[0] == "equipoise" and len(parts) > 1 else parts[0])
    return found


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_file_imports_only_what_its_room_may(path: Path) -> None:
    table = room_table()
    room = room_of(path)
    assert room in table, f"{room} has no row in CONTRIBUTING.md"
    allowed = table[room]
    if "everything" in allowed:
        return
    foreign = imports_of(path) - set(sys.stdlib_module_names) - {"base", "errors", room}
    assert foreign <= allowed, f"{path.name} may not import {sorted(foreign - allowed)}"


def test_nobody_imports_the_command_line() -> None:
    assert not [path for path in FILES if room_of(path) != "cli" and "cli" in imports_of(path)]


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("__init__.py")), ids=lambda p: p.parent.name)
def test_a_room_imports_nothing_by_itself(path: Path) -> None:
    outside = imports_of(path) - set(sys.stdlib_module_names)
    # The package's own names are resolved on first use; its imports are for type checkers only.
    assert not outside or path == PACKAGE / "__init__.py"


@pytest.mark.parametrize("start", ["import equipoise", "import equipoise.cli.main"])
def test_starting_loads_neither_pyarrow_nor_torch(start: str) -> None:
    heavy = ["pyarrow", "torch", "scipy", "numpy", "pandas"]
    code = f"{start}; import sys; print([name for name in {heavy} if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
