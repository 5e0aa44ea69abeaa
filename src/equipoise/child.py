"""A killable child process: run a named function on untrusted text under limits of time and memory.

Requests and replies are JSON lines over pipes, never pickles. The child is reused from call to call; one that hangs, dies
or runs out of memory is replaced, and what happened is the outcome of that one call. POSIX only.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Literal

MAX_REPLY = 16 * 1024 * 1024  # bytes; a longer reply counts as an error
MAX_MESSAGE = 500  # characters of an error's text
PATIENCE = (
    6.0  # wall seconds per second of CPU time that a call has: a busy machine must not turn answers into timeouts
)

# All that the child gets of the environment: a text that tricks a library into running code finds no keys there.
_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

Failure = Literal["timeout", "error"]


@dataclass(frozen=True, slots=True)
class Reply:
    """What a call came to: a value, or how it failed and in which words."""

    value: Any = None
    failure: Failure | None = None
    message: str | None = None


class Child:
    """A worker process for `call`. It starts on first use and stops with this object; calls from threads take turns."""

    def __init__(self, *, seconds: float = 5.0, memory_mb: int = 1024, start_seconds: float = 120.0) -> None:
        self.seconds, self.memory_mb, self.start_seconds = seconds, memory_mb, start_seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._stop: Callable[[], None] = _nothing
        self._owner = os.getpid()
        self._loaded: set[str] = set()
        self._served = 0

    def call(self, target: str, *args: Any) -> Reply:
        """`module:function(*args)` in the child; arguments and result are JSON values.

        `seconds` of the constructor is CPU time of the function alone (importing its module has `start_seconds`), so that a
        busy machine changes no outcome; one that sleeps is killed after `PATIENCE` times as long.
        """
        with self._lock:
            reply, out_of_memory = self._attempt(target, args)
            if out_of_memory and self._served:
                # What earlier calls left behind must not decide: once more, in a fresh child.
                reply, _ = self._attempt(target, args)
            return reply

    def close(self) -> None:
        with self._lock:
            self._kill()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """Of the process now at work, None where there is none."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def _attempt(self, target: str, args: tuple[Any, ...]) -> tuple[Reply, bool]:
        try:
            if self._started() or target not in self._loaded:
                answer = self._exchange({"load": target}, wall=self.start_seconds)
                if "error" in answer:
                    return Reply(failure="error", message=answer["error"]), False
                self._loaded.add(target)
            wall = self.seconds * PATIENCE
            answer = self._exchange(
                {"call": target, "args": args, "seconds": self.seconds, "wall": wall + 1}, wall=wall
            )
        except _Gone as gone:
            self._kill()
            return Reply(failure=gone.failure, message=str(gone)), False
        except BaseException:  # Ctrl-C, or arguments that are no JSON: a late reply must not answer the next call
            self._kill()
            raise
        if "error" not in answer:
            self._served += 1
            return Reply(answer.get("value")), False
        if answer.get("memory"):
            self._kill()  # a heap that was full once is not to be trusted
            return Reply(failure="error", message=f"out of memory ({self.memory_mb} MB)"), True
        self._served += 1
        return Reply(failure="error", message=answer["error"]), False

    def _started(self) -> bool:
        """Make sure that a child runs. True: a new one."""
        if self._owner != os.getpid():  # we are a fork: the child and its pipes belong to our parent
            self._process, self._owner = None, os.getpid()
        if self._process is not None and self._process.poll() is None:
            return False
        self._kill()
        self._loaded, self._served = set(), 0
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "equipoise.child", str(self.memory_mb)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_environment(),
            start_new_session=True,  # Ctrl-C is for us; and the whole group can be killed
            bufsize=0,
        )
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
        self._stop = weakref.finalize(self, _end, self._process, self._owner)
        return True

    def _kill(self) -> None:
        self._stop()
        self._process, self._stop = None, _nothing

    def _exchange(self, message: Mapping[str, Any], *, wall: float) -> dict[str, Any]:
        """Send one line, wait for one line. A child that does not answer in time, or at all, is `_Gone`."""
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise _Gone("error", "the child did not start")
        unsent = memoryview(json.dumps(message, allow_nan=False).encode() + b"\n")
        got = bytearray()
        deadline = time.monotonic() + wall
        with selectors.DefaultSelector() as ready:
            ready.register(process.stdin, selectors.EVENT_WRITE)
            ready.register(process.stdout, selectors.EVENT_READ)
            while not got.endswith(b"\n"):
                events = ready.select(max(0.0, deadline - time.monotonic()))
                if not events and time.monotonic() >= deadline:
                    raise _Gone("timeout", f"no answer after {wall:g} s")
                for key, _ in events:
                    if key.fileobj is process.stdout:
                        piece = os.read(key.fd, 1 << 16)
                        got += piece
                        if not piece:
                            raise _end_of(process)
                        if len(got) > MAX_REPLY:
                            raise _Gone("error", f"the reply is too long: over {MAX_REPLY} bytes")
                    else:
                        try:
                            unsent = unsent[os.write(key.fd, unsent) :]
                        except BrokenPipeError:
                            unsent = unsent[:0]  # it is dying: the end of its output says so
                        if not unsent:
                            ready.unregister(process.stdin)
        try:
            answer = json.loads(got)
        except (ValueError, RecursionError):
            raise _Gone("error", "the child sent no JSON") from None
        return answer if isinstance(answer, dict) else {"error": "the child sent no reply"}


@cache
def shared_child(*, seconds: float, memory_mb: int) -> Child:
    """The one child of this process with these limits."""
    return Child(seconds=seconds, memory_mb=memory_mb)


class _Gone(Exception):
    def __init__(self, failure: Failure, message: str) -> None:
        super().__init__(message)
        self.failure: Failure = failure


def _nothing() -> None:
    pass


def _end_of(process: subprocess.Popen[bytes]) -> _Gone:
    """How a child ended whose output stopped."""
    try:
        code = process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        return _Gone("error", "the child closed its output")
    if code in (-signal.SIGPROF, -signal.SIGALRM):
        return _Gone("timeout", "the child used up its time")
    return _Gone("error", "the child died with " + (f"signal {-code}" if code < 0 else f"exit status {code}"))


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    if owner != os.getpid():
        return
    if process.poll() is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def _environment() -> dict[str, str]:
    own = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    own |= dict.fromkeys(_ONE_THREAD, "1")
    own["PYTHONPATH"] = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    own["PYTHONHASHSEED"] = "0"  # a library that draws from a set must draw the same in the next child
    own["PYTHONDONTWRITEBYTECODE"] = "1"
    return own


# --- in the child


def serve(memory_mb: int) -> None:
    """Answer requests until the pipe closes."""
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (memory_mb * 2**20, memory_mb * 2**20))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)  # what a library prints must not land between our lines
    guard = _Guard()
    sys.addaudithook(guard)
    for line in requests:
        request = json.loads(line)
        replies.write(json.dumps(_load(request["load"]) if "load" in request else _answer(request, guard)).encode())
        replies.write(b"\n")
        replies.flush()


class _Guard:
    """Refuses, during a call, what no checker has to do: writing files, starting programs, the network, native code.

    Some libraries hand the text that they check to Python's `eval`. This hook stops the plain ways from there to harm; it is
    a second line, not a sandbox.
    """

    on = False

    def __call__(self, event: str, details: tuple[Any, ...]) -> None:
        if self.on and (event.startswith(self.REFUSED) or (event == "open" and _writes(*details[1:3]))):
            raise PermissionError(f"{event} is not allowed here")

    # fmt: off
    REFUSED = ("os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.remove", "os.rename", "os.rmdir", "os.mkdir",
               "os.link", "os.symlink", "os.truncate", "os.chmod", "os.chown", "os.kill", "os.putenv", "subprocess.", "socket.",
               "shutil.", "ctypes.", "pty.", "ftplib.", "smtplib.", "urllib.", "http.", "webbrowser.", "signal.pthread_kill")
    # fmt: on


def _writes(mode: str | None, flags: int | None) -> bool:
    if isinstance(mode, str) and set(mode) & set("wax+"):
        return True
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC))


def _load(target: str) -> dict[str, Any]:
    try:
        _function(target)
    except (ImportError, AttributeError, MemoryError) as problem:
        return {"error": _told(problem)}
    return {"value": None}


def _function(target: str) -> Callable[..., Any]:
    module, _, name = target.partition(":")
    function: Callable[..., Any] = getattr(import_module(module), name)
    return function


def _answer(request: Mapping[str, Any], guard: _Guard) -> dict[str, Any]:
    """Call the function. The default action of both timers' signals ends this process, however deep in C the work is."""
    function = _function(request["call"])
    signal.setitimer(signal.ITIMER_REAL, request["wall"])
    signal.setitimer(signal.ITIMER_PROF, request["seconds"])
    guard.on = True
    try:
        value = function(*request["args"])
        json.dumps(value, allow_nan=False)
    except MemoryError:
        return {"error": "out of memory", "memory": True}
    except BaseException as problem:  # whatever the function raises, SystemExit included, is the outcome of this call
        return {"error": _told(problem)}
    finally:
        guard.on = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
    return {"value": value}


def _told(problem: BaseException) -> str:
    return f"{type(problem).__name__}: {problem}"[:MAX_MESSAGE]


if __name__ == "__main__":
    serve(int(sys.argv[1]))
