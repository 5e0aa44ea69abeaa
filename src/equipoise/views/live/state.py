"""All that is known of the runs under a folder, and what of it is new since a cursor.

Everything learnt gets the next stamp of one common counter: a logged line, a changed head, a new judgement, a run that begins anew.
A cursor is `BOOT.STAMP`; what it lacks is what was stamped later. `BOOT` names this process: after a restart all is told anew.
"""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.errors import UsageError
from equipoise.rollouts.logkeys import NAMES
from equipoise.text.display import safe_text
from equipoise.views.live.curves import shared_pass
from equipoise.views.live.follow import News, find_runs
from equipoise.views.live.judging import Judged
from equipoise.views.live.watched import NAME, Watched
from equipoise.views.plain_text import plotly_text

PAGE = 20_000  # stamps in one answer
ALSO = 4  # metrics that a page may ask for besides those it always gets
AGAIN = 5.0  # seconds between two judgements of a run, and ten times what one takes
REDISCOVER = 5  # looks between two searches for new runs
_CURSOR = re.compile(r"([0-9a-f]{8})\.(\d{1,15})")


@dataclass(frozen=True, slots=True)
class Series:
    """A metric by number: a role that the page knows, or a key of some run's log."""

    number: int
    name: str
    role: bool
    stamp: int

    def to_dict(self) -> dict[str, Any]:
        about = NAMES.get(self.name) if self.role else None
        shown = safe_text(self.name, NAME) or f"metric {self.number}"
        return {"id": self.number, "name": shown, "label": plotly_text(shown), "role": self.role, "about": about}


class Live:
    """The runs under one folder. `refresh` and `judge` are called by threads of the caller's; `since` by any."""

    def __init__(
        self, root: Path, *, use: str = "search", k: int | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        if not root.is_dir():
            found = "is not a folder" if root.exists() else "does not exist"
            raise UsageError(f"{root} {found}: name a run folder, or one that holds runs")
        self.root, self._use, self._k, self._clock = root, use, k, clock
        self._boot = secrets.token_hex(4)
        self._lock = threading.Lock()
        self._stamp, self._looks = 0, 0
        self.runs: dict[Path, Watched] = {}
        self._series: dict[tuple[bool, str], Series] = {}
        self.left_out: str | None = None  # runs that are not followed, and why
        self.trouble: str | None = None

    # --- learning

    def refresh(self) -> bool:
        """Look at every folder; True where something is new."""
        before = self._stamp
        if self._looks % REDISCOVER == 0:
            self._discover()
        self._looks += 1
        for run in list(self.runs.values()):
            news = run.follower.look()  # reading files: outside the lock
            with self._lock:
                self._take(run, news)
        return self._stamp > before

    def _discover(self) -> None:
        found, self.left_out = find_runs(self.root)
        with self._lock:
            for name, folder in found.items():
                if folder not in self.runs:
                    self.runs[folder] = Watched(len(self.runs), name, folder, use=self._use, k=self._k)

    def _take(self, run: Watched, news: News) -> None:
        run.read_info()
        run.gone, run.problems = news.gone, news.problems
        run.written = news.written if news.written is not None else run.written
        if not news.gone:
            restart, first = news.again, self._stamp + 1
            if news.again:
                run.curves.clear()
            for line in news.lines:
                self._stamp += 1
                restart |= run.curves.add(line, self._stamp)
            self._name_series(run)
            if run.curves.assign_roles(first) | restart:
                # What a page holds of this run stands under another role, or counts no longer: it gets all anew.
                self._stamp += 1
                run.begun = self._stamp
                run.curves.restamp(self._stamp)
            self._name_roles(run)
            if news.lost:
                run.waiting, run.lost = list(news.parts), True
            else:
                run.waiting += news.parts
            run.stale |= bool(news.lines or news.parts or news.again or news.lost)
        self._stamp_head(run)

    def _stamp_head(self, run: Watched) -> None:
        if run.head_changed():
            self._stamp += 1
            run.head_stamp = self._stamp

    def _name_series(self, run: Watched) -> None:
        for key in run.curves.by_key:
            self._number(False, key)

    def _name_roles(self, run: Watched) -> None:
        for role in run.curves.sources:
            self._number(True, role)

    def _number(self, role: bool, name: str) -> None:
        if (role, name) not in self._series:
            self._stamp += 1
            self._series[role, name] = Series(len(self._series), name, role, self._stamp)

    def say(self, problem: BaseException | None) -> None:
        """What a look broke off with, for the page to tell; None: it did not."""
        self.trouble = (
            None
            if problem is None
            else safe_text(f"looking at the runs failed: {type(problem).__name__}: {problem}", 300)
        )

    # --- judging

    def due(self) -> Watched | None:
        """The run whose judgement is most wanted now: of those with news, the one written last."""
        now = self._clock()
        with self._lock:
            wanted = [run for run in self.runs.values() if run.stale and not run.gone and run.not_before <= now]
        return max(wanted, key=lambda run: run.written or 0.0, default=None)

    def judge(self, run: Watched) -> None:
        """Read the new parts of a run and judge it. What cannot be read is said on its head."""
        with self._lock:
            parts, lost = run.waiting, run.lost
            run.waiting, run.lost, run.stale = [], False, False
        started = self._clock()
        judged, trouble = run.judged, None
        try:
            run.judge.read(parts, lost=lost)
            judged = run.judge.judge(run.curves.passes())
        except (UsageError, OSError) as problem:
            trouble = f"not judged: {problem}"
        self._settle(run, judged, trouble, started)

    def fail(self, run: Watched, problem: BaseException) -> None:
        """A judgement that broke off: said, and tried again from the first part on when the run has grown."""
        with self._lock:
            run.waiting, run.lost = run.follower.parts, True
        self._settle(run, run.judged, f"not judged: {type(problem).__name__}: {problem}", self._clock())

    def _settle(self, run: Watched, judged: Judged | None, trouble: str | None, started: float) -> None:
        now = self._clock()
        with self._lock:
            run.not_before = now + max(AGAIN, 10 * (now - started))
            if judged is not run.judged:
                self._stamp += 1
                run.judged, run.judged_stamp = judged, self._stamp
            run.trouble, run.unread = trouble, tuple(run.judge.notes())
            self._stamp_head(run)

    # --- telling

    @property
    def cursor(self) -> str:
        return f"{self._boot}.{self._stamp}"

    def since(self, cursor: str | None, *, also: Sequence[int] = (), only: int | None = None) -> dict[str, Any]:
        """What is new after a cursor, at most `PAGE` stamps of it: then `more` is true and the next cursor goes on.

        Roles always come; `also` are other metrics by number; `only`: the points of this metric and nothing else. Values are
        for drawing: they travel with seven digits.
        """
        asked = self._read_cursor(cursor)
        with self._lock:
            after = min(asked, self._stamp)
            until = min(after + PAGE, self._stamp)
            known = sorted(self._series.values(), key=lambda one: one.number)
            wanted = _wanted(known, also, only)
            blocks = [self._block(run, after, until, wanted, only) for run in self.runs.values()]
            told: dict[str, Any] = {
                "cursor": f"{self._boot}.{until}",
                "more": until < self._stamp,
                "now": round(self._clock(), 1),
                "runs": [block for block in blocks if len(block) > 1],
            }
            if only is None:
                told |= {
                    "pass": shared_pass(run.passes for run in self.runs.values()),
                    "left_out": self.trouble or self.left_out,
                }
                told |= {"whole": True} if asked == 0 else {}  # whatever a page held is of another time
                new = [one.to_dict() for one in known if after < one.stamp <= until]
                told |= {"series": new} if new else {}
            return told

    def _read_cursor(self, cursor: str | None) -> int:
        if cursor is None or cursor == "":
            return 0
        match = _CURSOR.fullmatch(cursor)
        if match is None:
            raise UsageError("after= takes the cursor of an earlier answer: leave it out to get everything")
        return int(match[2]) if match[1] == self._boot else 0

    def _block(
        self, run: Watched, after: int, until: int, wanted: Iterable[Series], only: int | None
    ) -> dict[str, Any]:
        block: dict[str, Any] = {"id": run.number}
        if only is None:
            if after < run.begun <= until:
                block["again"] = True
            if after < run.head_stamp <= until or (after == 0 and run.head_stamp):
                block["head"] = run.head()
            if run.judged is not None and after < run.judged_stamp <= until:
                block["judged"] = run.judged.to_dict()
        points = []
        for one in wanted:
            if one.role:
                steps, values = run.curves.of_role(one.name, after, until)
            else:
                curve = run.curves.by_key.get(one.name)
                steps, values = ([], []) if curve is None else curve.between(after, until)
            if steps:
                points.append([one.number, steps, [float(f"{value:.7g}") for value in values]])
        if points:
            block["points"] = points
        return block


def _wanted(known: Sequence[Series], also: Sequence[int], only: int | None) -> list[Series]:
    if only is not None:
        return [one for one in known if one.number == only]
    return [one for one in known if one.role or one.number in also[:ALSO]]
