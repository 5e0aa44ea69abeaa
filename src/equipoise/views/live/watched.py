"""One followed run: what was read of it so far, and what of that a page or a terminal shows at its head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from equipoise.base import Estimate
from equipoise.errors import UsageError
from equipoise.measures.pace import estimate_time_left
from equipoise.rollouts.folder import Part, info_of
from equipoise.text.display import safe_text
from equipoise.views.live.curves import Curves
from equipoise.views.live.follow import Follower
from equipoise.views.live.judging import Judge, Judged
from equipoise.views.plain_text import plotly_text
from equipoise.views.style import series

NAME = 120  # characters of a name that are shown


class Watched:
    """One run: what was read of it, and when it was learnt."""

    def __init__(self, number: int, name: str, folder: Path, *, use: str, k: int | None) -> None:
        self.number, self.name, self.folder = number, safe_text(name, NAME) or f"run {number}", folder
        self.follower = Follower(folder)
        self.curves = Curves(self.follower.warnings)
        self.judge = Judge(folder, use=use, k=k)
        self.judged: Judged | None = None
        self.source: str | None = None
        self.model: str | None = None
        self._planned: int | None = None
        self.gone = False
        self.written: float | None = None
        self.problems: tuple[str, ...] = ()
        self.trouble: str | None = None  # why there is no judgement
        self.unread: tuple[str, ...] = ()  # what was not counted of its parts
        self.begun = self.head_stamp = self.judged_stamp = 0
        self.waiting: list[Part] = []  # parts not read yet
        self.lost = False
        self.stale = False  # something came in since the last judgement
        self.not_before = 0.0
        self._head: dict[str, Any] = {}
        self._info_time: float | None = None

    def read_info(self) -> None:
        """run.json, again where it changed. One that cannot be read is said."""
        path = self.folder / "run.json"
        try:
            changed = path.stat().st_mtime
        except OSError:
            return
        if changed == self._info_time:
            return
        self._info_time = changed
        try:
            info = info_of(path)
        except UsageError as problem:
            self.follower.warnings("run-json", str(problem))
            return
        self.source, self.model = _word(info.source), _word(info.model)
        self._planned = _planned(info.settings)

    @property
    def planned(self) -> int | None:
        """Steps that it is to take. None where it is past them: it goes on, and its run.json does not say how far."""
        past = self._planned is not None and self.curves.last is not None and self.curves.last > self._planned
        return None if past else self._planned

    @property
    def left(self) -> Estimate:
        recent = [self.curves.latest[step] for step in sorted(self.curves.latest)]
        return estimate_time_left(recent, last=self.curves.last, planned=self.planned)

    @property
    def passes(self) -> set[int]:
        """The k of each pass@k that was logged or measured."""
        return {*self.curves.passes(), *(number.at["k"] for number in (self.judged.frontier if self.judged else ()))}

    @property
    def notes(self) -> list[str]:
        found = [*self.problems, *self.follower.warnings.lines(), *([self.trouble] if self.trouble else [])]
        found += [*self.unread, *(self.judged.diagnosis.warnings if self.judged is not None else ())]
        # A path tells where somebody keeps files; below the folder that was named it is enough.
        return [safe_text(line.replace(f"{self.folder}/", ""), 300) for line in dict.fromkeys(found)]

    def head(self) -> dict[str, Any]:
        left = self.left
        return {
            "name": self.name,
            "label": plotly_text(self.name),
            "look": asdict(series(self.number)),
            "source": self.source,
            "model": self.model,
            "step": self.curves.last,
            "planned": self.planned,
            "left": None if left.value is None else left.to_dict(),
            "written": self.written,
            "gone": self.gone,
            "reading": len(self.waiting),
            "notes": self.notes,
            "keys": {role: safe_text(source.key, NAME) for role, source in self.curves.sources.items()},
        }

    def head_changed(self) -> bool:
        """Whether the head differs from the one that was stamped last; from now on that is this one."""
        before, self._head = self._head, self.head()
        return before != self._head


def _word(value: Any) -> str | None:
    return None if value is None else safe_text(str(value), NAME)


def _planned(settings: Mapping[str, Any]) -> int | None:
    """Steps that the run is to take: the embedded trainer's setting, or TRL's."""
    learning = settings.get("learning")
    found = learning.get("steps") if isinstance(learning, Mapping) else settings.get("max_steps")
    return found if isinstance(found, int) and not isinstance(found, bool) and found > 0 else None
