"""Several processes behind one port: what each may do, and that they come and go together."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from gateway_process import Served, answers, read, served, upstream, wait_until
from gateway_world import saying

from equipoise.errors import UsageError
from equipoise.gateway.settings import Settings
from equipoise.gateway.workers import share_caps

KEY = "a" * 64


def settings(workers, **more):
    return Settings.model_validate({"workers": workers, **more})


def test_the_parts_of_a_cap_are_never_more_than_the_cap():
    keys = {"a": {"sha256": KEY, "tokens_per_day": 1000, "requests_per_minute": 11, "at_once": 3, "budget": 70}}
    shared = share_caps(settings(3, keys=keys, limits={"at_once": 100, "width": 5}))
    mine = shared.keys["a"]
    assert (mine.tokens_per_day, mine.requests_per_minute, mine.at_once) == (333, 3, 1)
    assert shared.limits.at_once == 33
    assert (mine.budget, shared.limits.width) == (70, 5)  # of one request, which one worker answers


def test_one_worker_has_all_of_it():
    alone = settings(1, limits={"at_once": 1})
    assert share_caps(alone) is alone


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"limits": {"at_once": 3}}, r"limits.at_once=3 cannot be divided among 4 workers: use 3 workers or fewer"),
        ({"keys": {"a": {"sha256": KEY, "at_once": 1}}}, r"keys.a.at_once=1 cannot be divided"),
        ({"record": "somewhere"}, "cannot write one run folder"),
    ],
)
def test_what_cannot_be_shared_is_refused(more, said):
    with pytest.raises(UsageError, match=said):
        share_caps(settings(4, **more))


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for children in /proc")
def test_a_worker_that_dies_is_replaced_and_all_end_with_the_first_process():
    with upstream(saying("a|b")) as server:
        with served(server.url, "--workers", "2") as there:
            first = children(there.child.pid)
            assert len(first) == 2
            assert "equipoise_inflight 0" in read(f"{there.ops}/metrics")
            os.kill(first[0], signal.SIGKILL)
            wait_until(lambda: len(set(children(there.child.pid)) - set(first)) == 1)
            wait_until(lambda: answers(f"{there.root}/health/ready"))
            last = children(there.child.pid)
        assert not any(Path(f"/proc/{pid}").exists() for pid in last)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for children in /proc")
def test_workers_do_not_outlive_a_first_process_that_was_killed():
    with upstream(saying("a|b")) as server:
        there = Served(server.url, "--workers", "2")
        mine = children(there.child.pid)
        there.child.kill()
        there.child.communicate()
        wait_until(lambda: not any(is_running(pid) for pid in mine))


def is_running(pid: int) -> bool:
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(found.strip()) and not found.startswith("Z")
