"""The killable child: limits of time and memory, crashes, restarts, and what a call may not do."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from equipoise.child import Child, Reply, shared_child

HERE = __name__  # the functions below run in the child


def double(number):
    return 2 * number


def echo(*values):
    return list(values)


def noisy():
    print("a line that is no reply", flush=True)
    os.write(1, b'{"value": "forged"}\n')
    return "mine"


def spin():
    while True:
        pass


def spin_in_c():
    return 7 ** (10**8)  # one C call that no Python signal handler could interrupt


def sleep():
    time.sleep(3600)


def nap():
    time.sleep(1)
    return "late"


def bomb():
    kept = []
    while True:
        kept.append(bytearray(10**7))


def deep():
    return deep()


def leave():
    os._exit(7)


def leave_politely():
    sys.exit("enough")


def fail():
    raise LookupError("no such thing")


def own_pid():
    return os.getpid()


def environment():
    return dict(os.environ)


def unsayable():
    return {1, 2}


def not_a_number():
    return float("nan")


def flood():
    return "x" * (17 * 2**20)


def write(path):
    Path(path).write_text("here")


def remove(path):
    os.remove(path)


def shell():
    return os.system("true")


def connect():
    import socket

    return socket.create_connection(("127.0.0.1", 9), timeout=1)


def call_c():
    import ctypes

    return ctypes.CDLL(None).getpid()


def try_twice(path):
    for _ in range(2):
        try:
            write(path)
        except PermissionError:
            continue
        return "written"
    return "refused twice"


HELD = []


def fill(megabytes):
    HELD.append(bytearray(megabytes * 2**20))
    return megabytes


@pytest.fixture(scope="module")
def child():
    with Child(seconds=0.4, memory_mb=600) as worker:
        yield worker


def test_a_call_returns_the_value_and_the_child_is_reused(child):
    assert child.call(f"{HERE}:double", 21) == Reply(42)
    pid = child.call(f"{HERE}:own_pid").value
    assert pid == child.pid != os.getpid()
    assert child.call(f"{HERE}:own_pid").value == pid


def test_texts_travel_as_they_are(child):
    values = ["", "né\n\u2028\x00", "\ud800 half a character", None, 1.5, {"a": [1, 2]}, "x" * 3_000_000]
    assert child.call(f"{HERE}:echo", *values).value == values


def test_what_a_function_prints_is_no_reply(child):
    assert child.call(f"{HERE}:noisy").value == "mine"
    assert child.call(f"{HERE}:double", 1).value == 2


@pytest.mark.parametrize(
    ("name", "words"), [("spin", "used up its time"), ("spin_in_c", "used up its time"), ("sleep", "no answer after")]
)
def test_a_call_that_hangs_is_killed_and_the_next_one_works(child, name, words):
    child.call(f"{HERE}:double", 1)
    before = child.pid
    reply = child.call(f"{HERE}:{name}")
    assert (reply.value, reply.failure) == (None, "timeout")
    assert words in reply.message  # CPU time, or the wall clock for a call that does nothing
    with pytest.raises(ProcessLookupError):
        os.kill(before, 0)
    assert child.call(f"{HERE}:double", 4).value == 8


def test_a_memory_bomb_is_an_error_and_the_next_call_works():
    with Child(seconds=60, memory_mb=300) as worker:
        reply = worker.call(f"{HERE}:bomb")
        assert reply.failure == "error"
        assert "memory" in reply.message
        assert worker.call(f"{HERE}:double", 4).value == 8


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("leave", "exit status 7"),
        ("leave_politely", "SystemExit: enough"),
        ("fail", "LookupError: no such thing"),
        ("deep", "RecursionError"),
        ("unsayable", "TypeError"),
        ("not_a_number", "ValueError"),
        ("flood", "too long"),
        ("missing", "AttributeError"),
    ],
)
def test_a_call_that_fails_says_how_and_the_next_one_works(child, name, words):
    reply = child.call(f"{HERE}:{name}")
    assert reply.failure == "error"
    assert words in reply.message
    assert child.call(f"{HERE}:double", 5).value == 10


def test_a_missing_module_is_an_error(child):
    assert "no_such_module" in child.call("no_such_module:f").message


def test_a_child_killed_from_outside_is_replaced(child):
    child.call(f"{HERE}:double", 1)
    os.kill(child.pid, signal.SIGKILL)
    while child.pid is not None:
        time.sleep(0.01)
    assert child.call(f"{HERE}:double", 3).value == 6


def test_memory_that_earlier_calls_hold_does_not_decide():
    with Child(seconds=60, memory_mb=300) as worker:
        replies = [worker.call(f"{HERE}:fill", 100) for _ in range(4)]  # together more than the limit
    assert [reply.value for reply in replies] == [100] * 4


def test_the_child_has_no_secrets_of_ours(child, monkeypatch):
    child.close()
    monkeypatch.setenv("SOME_API_KEY", "secret")
    assert "secret" not in str(child.call(f"{HERE}:environment").value)


@pytest.mark.parametrize("name", ["write", "remove", "shell", "connect", "call_c"])
def test_a_call_may_not_write_run_or_connect(child, name, tmp_path):
    kept = tmp_path / "kept"
    kept.write_text("mine")
    path = kept if name == "remove" else tmp_path / "new"
    reply = child.call(f"{HERE}:{name}", *([str(path)] if name in ("write", "remove") else []))
    assert reply.failure == "error"
    assert "not allowed" in reply.message
    assert [entry.name for entry in tmp_path.iterdir()] == ["kept"]


def test_a_refusal_does_not_open_the_way_for_a_second_try(child, tmp_path):
    assert child.call(f"{HERE}:try_twice", str(tmp_path / "new")).value == "refused twice"


def test_threads_take_turns(child):
    values = {}

    def ask(number):
        values[number] = child.call(f"{HERE}:double", number).value

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values == {number: 2 * number for number in range(12)}


def test_arguments_that_are_no_json_leave_no_child_out_of_step(child):
    with pytest.raises(TypeError):
        child.call(f"{HERE}:echo", {1, 2})
    assert child.call(f"{HERE}:double", 6).value == 12


def test_an_interrupted_call_does_not_answer_the_next_one(child):
    def interrupt(*_):
        raise KeyboardInterrupt

    child.call(f"{HERE}:double", 1)
    before = signal.signal(signal.SIGUSR1, interrupt)
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            child.call(f"{HERE}:nap")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert child.call(f"{HERE}:double", 7).value == 14


def test_a_closed_child_is_gone_and_a_new_call_starts_another():
    worker = Child(seconds=1, memory_mb=600)
    assert worker.pid is None
    first = worker.call(f"{HERE}:own_pid").value
    worker.close()
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)
    assert worker.call(f"{HERE}:own_pid").value != first
    worker.close()


def test_a_dropped_child_does_not_stay_behind():
    worker = Child(seconds=1, memory_mb=600)
    pid = worker.call(f"{HERE}:own_pid").value
    del worker
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def _lives(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_fork_gets_a_child_of_its_own(child):
    ours = child.call(f"{HERE}:own_pid").value
    reading, writing = os.pipe()
    forked = os.fork()
    if forked == 0:
        own = child.call(f"{HERE}:own_pid").value
        child.close()
        os.write(writing, str(0 if _lives(own) else own).encode())
        os._exit(0)
    os.waitpid(forked, 0)
    theirs = int(os.read(reading, 20))
    os.close(reading), os.close(writing)
    assert theirs not in (0, ours)  # 0: it had one of its own, which outlived its closing
    assert child.call(f"{HERE}:own_pid").value == ours


def test_one_child_is_shared_per_limit():
    assert shared_child(seconds=1.0, memory_mb=600) is shared_child(seconds=1.0, memory_mb=600)
    assert shared_child(seconds=1.0, memory_mb=600) is not shared_child(seconds=2.0, memory_mb=600)
