"""What is new in run folders since the last look. Nothing that a folder holds, lacks or loses is fatal: it is said."""

from __future__ import annotations

import codecs
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from equipoise.files import MAX_LINE, parse_json
from equipoise.rollouts.folder import Part, step_folders, step_parts
from equipoise.rollouts.run import Warnings

LOG = "metrics.jsonl"
DEPTH = 3  # folders below the one that was named in which runs are looked for
MOST_RUNS = 200
MOST_FOLDERS = 5_000  # looked into for runs
INSIDE = {"rollouts", "checkpoints", "superseded", "trackers"}  # parts of a run, not runs
NEWEST = 4  # step folders that are looked at every time
SETTLED = 2.0  # seconds after which a folder's time of change surely differs from that of a later change
FINGERPRINT = 256  # bytes before the place read last
FULL = 30  # looks between two at all step folders


def is_run(folder: Path) -> bool:
    try:
        return (folder / LOG).is_file() or (folder / "run.json").is_file() or (folder / "rollouts").is_dir()
    except OSError:  # closed to us
        return False


def find_runs(root: Path) -> tuple[dict[str, Path], str | None]:
    """Run folders by their path below `root`, in order; and what was left out, if anything. Links are not followed."""
    if is_run(root):
        return {root.resolve().name: root}, None
    found: dict[str, Path] = {}
    level, looked = [root], 0
    for _ in range(DEPTH):
        inner = [folder for parent in level for folder in _folders(parent)]
        looked += len(inner)
        if looked > MOST_FOLDERS:
            return found, f"more than {MOST_FOLDERS:,} folders: name one that holds only runs"
        level = []
        for folder in inner:
            if not is_run(folder):
                level.append(folder)
            elif len(found) == MOST_RUNS:
                return found, f"more than {MOST_RUNS} runs: only these are followed"
            else:
                found[folder.relative_to(root).as_posix()] = folder
    return found, None


def _folders(parent: Path) -> list[Path]:
    try:
        with os.scandir(parent) as entries:
            names = sorted(
                entry.name
                for entry in entries
                if entry.is_dir(follow_symlinks=False) and entry.name[0] != "." and entry.name not in INSIDE
            )
    except OSError:  # gone or closed to us between two looks: the next look sees it again
        return []
    return [parent / name for name in names]


@dataclass(frozen=True, slots=True)
class News:
    """What a look found. `lines` and `parts` are told once; after `again` or `lost`, those told before no longer count."""

    lines: tuple[dict[str, Any], ...] = ()
    again: bool = False  # the log was cut, replaced or removed
    parts: tuple[Part, ...] = ()
    lost: bool = False  # a part that was told is no longer there
    gone: bool = False  # the folder is
    problems: tuple[str, ...] = ()  # of this look; those of lines that were passed over are in `Follower.warnings`
    written: float | None = None  # time of the last change of the log, or of the newest rollouts


class Follower:
    """One run folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.warnings = Warnings()
        self._tail = LogTail(folder / LOG, self.warnings)
        self._parts = PartList(folder)

    @property
    def parts(self) -> list[Part]:
        """All parts that were there at the last look, by step."""
        return self._parts.told()

    def look(self) -> News:
        if not self.folder.is_dir():
            return News(gone=True, problems=("the folder is gone",))
        problems = []
        lines: list[dict[str, Any]] = []
        again = lost = False
        parts: list[Part] = []
        try:
            lines, again = self._tail.read()
        except OSError as problem:
            problems.append(f"{LOG} cannot be read: {problem.strerror or problem}")
        try:
            parts, lost = self._parts.look()
        except OSError as problem:
            problems.append(f"rollouts cannot be listed: {problem.strerror or problem}")
        times = [time for time in (self._tail.changed, self._parts.changed) if time is not None]
        return News(tuple(lines), again, tuple(parts), lost, problems=tuple(problems), written=max(times, default=None))


class LogTail:
    """Lines of a growing JSON-lines file, each read once. What is not a whole line yet waits for its end."""

    def __init__(self, path: Path, warnings: Warnings) -> None:
        self._path, self._warn = path, warnings
        self.changed: float | None = None
        self._reset()

    def _reset(self) -> None:
        self._offset = 0
        self._before = b""  # the last bytes that were read: a log that was cut, replaced or rewritten has others there

    def read(self) -> tuple[list[dict[str, Any]], bool]:
        """The new objects, and whether the file begins anew."""
        try:
            # A pipe under this name would block a plain open for ever.
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK)
        except FileNotFoundError:
            again = self._offset > 0
            self._reset()
            return [], again
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(f"{self._path.name} is not a file")
            again = os.pread(descriptor, len(self._before), self._offset - len(self._before)) != self._before
            if again:
                self._reset()
            self.changed = found.st_mtime
            data = os.pread(descriptor, MAX_LINE, self._offset) if found.st_size > self._offset else b""
        finally:
            os.close(descriptor)
        return list(self._objects(data)), again

    def _objects(self, data: bytes) -> Iterator[dict[str, Any]]:
        end = data.rfind(b"\n") + 1
        if len(data) == MAX_LINE and not end:
            self._warn("long-line", f"{LOG}: a line is longer than {MAX_LINE // 2**20} MB and was skipped")
            end = len(data)
        elif data[end:].rstrip().endswith(b"}") and _is_object(data[end:]):
            end = len(data)  # whole, though its line is not ended: only an object's last brace makes it readable
        taken = data[:end]
        first = self._offset == 0
        self._offset += end
        self._before = (self._before + taken[-FINGERPRINT:])[-FINGERPRINT:]
        for line in (taken.removeprefix(codecs.BOM_UTF8) if first else taken).split(b"\n"):
            if not line.strip():
                continue
            try:
                value = parse_json(line)
            except ValueError as problem:
                self._warn("bad-line", f"{LOG}: a line is not JSON ({problem}) and was skipped")
                continue
            if isinstance(value, dict):
                yield value
            else:
                self._warn("bad-line", f"{LOG}: a line holds a {type(value).__name__}, not an object, and was skipped")


def _is_object(data: bytes) -> bool:
    try:
        return isinstance(parse_json(data), dict)
    except ValueError:
        return False


@dataclass(slots=True)
class _Home:
    """A step's folder as it was last listed."""

    changed: float
    settled: bool
    parts: frozenset[Part] = frozenset()


@dataclass(slots=True)
class PartList:
    """Complete parts, each told once. Old step folders are looked at only now and then: a long run has thousands."""

    folder: Path
    changed: float | None = None
    _homes: dict[Path, _Home] = field(default_factory=dict)
    _rollouts: tuple[float, bool] | None = None
    _steps: list[Path] = field(default_factory=list)
    _looks: int = 0

    def look(self) -> tuple[list[Part], bool]:
        """The new parts by step, and whether one that was told is gone; then all that are there are told again."""
        before = self._told()
        full = self._looks % FULL == 0
        self._looks += 1
        listed = self._list_steps()
        steps = self._steps if full or listed else self._steps[-NEWEST:]
        for path in steps:
            self._list_parts(path)
        for path in self._homes.keys() - set(self._steps):
            del self._homes[path]
        now = self._told()
        self.changed = max((home.changed for home in self._homes.values()), default=None)
        lost = not before <= now
        return sorted(now if lost else now - before, key=_order), lost

    def told(self) -> list[Part]:
        return sorted(self._told(), key=_order)

    def _told(self) -> set[Part]:
        return {part for home in list(self._homes.values()) for part in home.parts}

    def _list_steps(self) -> bool:
        """Whether the list of step folders may have changed and was read again."""
        try:
            found = os.stat(self.folder / "rollouts")
        except FileNotFoundError:
            self._steps, self._rollouts = [], None
            return True
        if self._rollouts == (found.st_mtime, True):
            return False
        self._rollouts = (found.st_mtime, _age(found) > SETTLED)
        self._steps = [path for _, path in step_folders(self.folder)]
        return True

    def _list_parts(self, path: Path) -> None:
        try:
            found = os.stat(path)
            held = self._homes.get(path)
            if held is None or not held.settled or held.changed != found.st_mtime:
                self._homes[path] = _Home(found.st_mtime, _age(found) > SETTLED, frozenset(step_parts(path)))
        except FileNotFoundError:  # renamed since it was listed: a run that goes on from an earlier step
            self._homes.pop(path, None)


def _age(found: os.stat_result) -> float:
    return time.time() - found.st_mtime


def _order(part: Part) -> tuple[bool, int, int, str]:
    return part.step is None, part.step or 0, len(part.path.name), part.path.name
