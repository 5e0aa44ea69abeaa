"""Several processes behind one port. They share nothing but the socket: what is counted over time is counted in each.

So that a cap holds for all of them together, each gets its part of it. Metrics and the status page are each worker's own, on
ports that follow one another.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType

from equipoise.errors import UsageError
from equipoise.gateway.settings import KeyRule, Settings

log = logging.getLogger("equipoise.gateway")
SIGNALS = (signal.SIGINT, signal.SIGTERM)
AGAIN = 1.0  # seconds before a worker that ended by itself is started again


def share_caps(settings: Settings) -> Settings:
    """The settings of one worker: of every cap that counts over time or requests its part, rounded down."""
    workers = settings.workers
    if workers == 1:
        return settings
    if not hasattr(os, "fork"):
        raise UsageError(f"{workers} workers need a system that can fork, and this one cannot: use one")
    if settings.record is not None:
        raise UsageError(f"{workers} workers cannot write one run folder: record with one, or leave record out")
    limits = settings.limits.model_copy(update={"at_once": _part("limits.at_once", settings.limits.at_once, workers)})
    keys = {name: _share(name, rule, workers) for name, rule in settings.keys.items()}
    return settings.model_copy(update={"limits": limits, "keys": keys})


def run_workers(workers: int, work: Callable[[int, int], None]) -> None:
    """`work` in so many processes, each told its number and a file that ends with this process. Until a signal; then they drain."""
    ends, mine = os.pipe()
    children: dict[int, int] = {}
    stopping = False

    def start(number: int) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # one that comes meanwhile finds the child in the list
        pid = -1 if stopping else os.fork()
        if pid:
            if pid > 0:
                children[pid] = number
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            return
        code = 1
        try:
            for each in SIGNALS:
                signal.signal(each, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            os.close(mine)
            os.setpgrp()  # a Ctrl-C is the parent's, who tells us once
            work(number, ends)
            code = 0
        except UsageError as problem:
            print(problem, file=sys.stderr)
        except BaseException:
            log.exception("worker %d broke", number)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    before = {each: signal.signal(each, stop) for each in SIGNALS}
    try:
        for number in range(workers):
            start(number)
        while children:
            pid, status = os.wait()
            number = children.pop(pid)
            if not stopping:
                log.error("worker %d ended (%d) and is started again", number, os.waitstatus_to_exitcode(status))
                time.sleep(AGAIN)
                start(number)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        os.close(mine)
        os.close(ends)


def _share(name: str, rule: KeyRule, workers: int) -> KeyRule:
    caps = ("tokens_per_day", "requests_per_minute", "at_once")
    found = {cap: value for cap in caps if (value := getattr(rule, cap)) is not None}
    return rule.model_copy(update={cap: _part(f"keys.{name}.{cap}", value, workers) for cap, value in found.items()})


def _part(name: str, cap: int, workers: int) -> int:
    if cap < workers:
        raise UsageError(f"{name}={cap} cannot be divided among {workers} workers: use {cap} workers or fewer")
    return cap // workers
