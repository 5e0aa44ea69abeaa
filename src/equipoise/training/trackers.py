"""Metrics for trackio, W&B and TensorBoard, which can neither stop nor slow the training that feeds them.

Each tracker lives in a process of its own: there it may hang, hold its interpreter, wait for a network at exit or crash.
Here a thread feeds it from a bounded queue. A full queue drops metrics, a dead process ends that tracker, `close` waits a
few seconds and then kills; each with one warning. What a tracker prints goes to `trackers/NAME.log` in the run folder.
"""

from __future__ import annotations

import json
import os
import queue
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, Protocol

from equipoise.errors import UsageError, unknown_name
from equipoise.files import atomic_write, plain

WAITING = 1000  # steps that a tracker may lag behind; its pipe holds some more
CLOSE_SECONDS = 5.0  # for all trackers together
ORPHAN_SECONDS = 30.0  # that a tracker has left when the training process is gone

Warn = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Kind:
    """A tracker that can be asked for: the package it needs, and the `Tracker` that speaks to it."""

    package: str
    target: str  # module:class


TRACKERS = {
    name: Kind(name, f"equipoise.training.trackers:{target}")
    for name, target in (("trackio", "Trackio"), ("wandb", "Wandb"), ("tensorboard", "TensorBoard"))
}


def check_trackers(names: Sequence[str]) -> None:
    """Refuse a name that is no tracker, and one whose package is not installed."""
    for name in names:
        if name not in TRACKERS:
            raise unknown_name("tracker", name, TRACKERS)
        package = TRACKERS[name].package
        spec = find_spec(package)
        if spec is None or spec.origin is None:  # no origin: a mere folder of that name, as W&B leaves one behind
            raise UsageError(f"tracker '{name}' needs the package {package}: pip install {package}")


class Trackers:
    """The trackers of one run. A context manager; `log` and `close` neither raise nor wait for a tracker's work."""

    def __init__(self, feeds: Sequence[_Feed]) -> None:
        self._feeds = feeds

    @classmethod
    def start(
        cls, names: Sequence[str], *, run_name: str, folder: Path, config: Mapping[str, Any], warn: Warn | None = None
    ) -> Trackers:
        """Start each named tracker. A run that is resumed in its folder goes on under its old entry."""
        check_trackers(names)
        known = {"run_name": run_name, "folder": str(folder.resolve()), "config": plain(dict(config))}
        feeds = []
        for name in dict.fromkeys(names):
            try:
                feeds.append(_Feed(name, folder / "trackers", known, warn or _print_warning))
            except OSError as problem:
                (warn or _print_warning)(f"tracker {name} did not start and gets no metrics: {problem}")
        return cls(feeds)

    def log(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Hand over one step's metrics. What was not measured (None) is left out."""
        measured = {name: float(value) for name, value in metrics.items() if value is not None}
        if self._feeds and measured:
            line = json.dumps({"step": step, "metrics": measured}).encode() + b"\n"
            for feed in self._feeds:
                feed.put(line)

    def close(self) -> None:
        """Let the trackers finish, for at most `CLOSE_SECONDS`; then kill."""
        deadline = time.monotonic() + CLOSE_SECONDS
        for feed in self._feeds:
            feed.end()
        for feed in self._feeds:
            feed.leave(deadline)
        self._feeds = ()

    def __enter__(self) -> Trackers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Feed:
    """One tracker's process, and the queue and thread that feed it."""

    def __init__(self, name: str, folder: Path, known: Mapping[str, Any], warn: Warn) -> None:
        self._name, self._log, self._warn = name, folder / f"{name}.log", warn
        self._unwarned = threading.Lock()
        self._lines: queue.Queue[bytes | None] = queue.Queue(WAITING)
        first = json.dumps({**known, "key": _run_key(folder / "key")}, default=str).encode() + b"\n"
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "equipoise.training.trackers", TRACKERS[name].target, str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path)},
                start_new_session=True,  # Ctrl-C is for the training; and the whole group can be killed
                bufsize=0,  # a buffer whose lock a hanging write holds would crash the interpreter at its exit
            )
        self._thread = threading.Thread(target=self._feed, args=(first,), name=f"tracker-{name}", daemon=True)
        self._thread.start()

    def put(self, line: bytes) -> None:
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            if self._thread.is_alive():
                self._warn_once("hangs or is too slow: metrics are dropped")

    def end(self) -> None:
        """Let the thread stop after the lines that wait; where there is no room to say so, the oldest go."""
        while self._thread.is_alive():
            with suppress(queue.Full):
                self._lines.put_nowait(None)
                return
            with suppress(queue.Empty):
                self._lines.get_nowait()

    def leave(self, deadline: float) -> None:
        self._thread.join(max(0.0, deadline - time.monotonic()))
        try:
            if self._process.wait(max(0.05, deadline - time.monotonic())):
                self._warn_once(self._failure())
        except subprocess.TimeoutExpired:
            self._warn_once(f"did not finish in {CLOSE_SECONDS:g} s and was stopped: its last metrics may be missing")
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._thread.join(1.0)

    def _feed(self, first: bytes) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        with pipe:
            try:
                line: bytes | None = first
                while line is not None:
                    _write(pipe, line)
                    line = self._lines.get()
                _write(pipe, b"null\n")  # the end of the file may not reach it: another child can hold the pipe open
            except BrokenPipeError:
                self._warn_once(self._failure())

    def _failure(self) -> str:
        try:
            with open(self._log, "rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - 4096))
                lines = log.read().decode(errors="replace").split("\n")
        except OSError:
            lines = []
        last = next((line.strip() for line in reversed(lines) if line.strip()), "no message")
        return f"failed and gets no more metrics: {last[:300]} ({self._log})"

    def _warn_once(self, what: str) -> None:
        if self._unwarned.acquire(blocking=False):  # whoever comes first, of two threads
            self._warn(f"tracker {self._name} {what}; training goes on")


def _write(pipe: IO[bytes], line: bytes) -> None:
    unsent = memoryview(line)
    while unsent:
        unsent = unsent[pipe.write(unsent) :]


def _run_key(path: Path) -> str:
    """The name of this run's entry in every tracker: a resumed run finds the one that it had."""
    with suppress(FileNotFoundError):
        found = path.read_text(errors="replace").strip()
        if re.fullmatch(r"[0-9a-f]{16}", found):
            return found
    key = secrets.token_hex(8)
    with atomic_write(path, "w") as handle:
        handle.write(key + "\n")
    return key


def _print_warning(line: str) -> None:
    with suppress(OSError, ValueError):  # a closed stream
        print(f"warning: {line}", file=sys.stderr)


# --- in the tracker's process


class Tracker(Protocol):
    """Made with `run_name`, `folder`, `config` and `key`, which a resumed run has from its first part."""

    def log(self, step: int, metrics: dict[str, float]) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Event files in `tensorboard/` of the run folder."""

    def __init__(self, *, folder: str, config: dict[str, Any], **_: Any) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(Path(folder) / "tensorboard"), flush_secs=10)
        self._writer.add_text("config", f"```\n{json.dumps(config, indent=2)}\n```")

    def log(self, step: int, metrics: dict[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class Wandb:
    """A W&B run, in the project that WANDB_PROJECT names. W&B's own variables hold: WANDB_MODE=offline needs no network."""

    def __init__(self, *, run_name: str, folder: str, config: dict[str, Any], key: str, **_: Any) -> None:
        import wandb

        project = os.environ.get("WANDB_PROJECT", "equipoise")
        self._run: Any = wandb.init(project=project, name=run_name, id=key, resume="allow", dir=folder, config=config)

    def log(self, step: int, metrics: dict[str, float]) -> None:
        self._run.log(metrics, step=step)

    def close(self) -> None:
        self._run.finish()


class Trackio:
    """A trackio run, in the project that TRACKIO_PROJECT names. Names tell its runs apart, so this one has a part of the key."""

    def __init__(self, *, run_name: str, config: dict[str, Any], key: str, **_: Any) -> None:
        import trackio

        project = os.environ.get("TRACKIO_PROJECT", "equipoise")
        self._run: Any = trackio.init(project, name=f"{run_name}-{key[:6]}", config=config, resume="allow")

    def log(self, step: int, metrics: dict[str, float]) -> None:
        self._run.log(metrics, step=step)

    def close(self) -> None:
        self._run.finish()


def serve(target: str, parent: int) -> None:
    """Pass the lines of stdin to a tracker until `null` or their end."""
    os.nice(5)  # training first
    lines = os.fdopen(os.dup(0), "rb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # a login prompt must not read metrics
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()
    module, _, name = target.partition(":")
    tracker: Tracker = getattr(import_module(module), name)(**json.loads(lines.readline()))
    for line in lines:
        entry = json.loads(line)
        if entry is None:
            break
        tracker.log(entry["step"], entry["metrics"])
    tracker.close()


def _leave_with(parent: int) -> None:
    """End this process after the training process, whose number it was told: asked for here, it may be another's by now."""
    while os.getppid() == parent:
        time.sleep(1.0)
    time.sleep(ORPHAN_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
