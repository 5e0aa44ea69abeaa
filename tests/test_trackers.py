"""Trackers that work get every metric; trackers that raise, hang, crash or lag cost one warning and nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from equipoise.errors import UsageError
from equipoise.rollouts.tfevents import read_scalars
from equipoise.training import trackers
from equipoise.training.trackers import Kind, Trackers

# Each notes what it was told in the run folder, and its process, then does as its name says.
FAKES = """
import ctypes, json, os, signal, sys, time
from pathlib import Path


class Works:
    def __init__(self, **known):
        self.folder = Path(known["folder"])
        self.note("pid", os.getpid())
        self.note("known", known)

    def note(self, file, value):
        with open(self.folder / f"{type(self).__name__}.{file}", "a") as handle:
            handle.write(json.dumps(value) + "\\n")

    def log(self, step, metrics):
        self.note("log", [step, metrics])

    def close(self):
        self.note("log", "closed")


class Chatty(Works):
    def log(self, step, metrics):
        print("chatter" * 100_000, flush=True)
        os.write(2, b"chatter")
        super().log(step, metrics)


class Asks(Works):
    def __init__(self, **known):
        super().__init__(**known)
        self.note("log", [sys.stdin.readline(), os.readlink("/proc/self/fd/0")])


class RaisesAtStart(Works):
    def __init__(self, **known):
        raise ConnectionError("no network")


class RaisesInLog(Works):
    def log(self, step, metrics):
        raise ConnectionError("no network")


class RaisesAtClose(Works):
    def close(self):
        raise ConnectionError("no network")


class Leaves(Works):
    def log(self, step, metrics):
        print("no network", flush=True)
        os._exit(3)


class Crashes(Works):
    def log(self, step, metrics):
        print("no network", flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)


def hang():
    while True:
        time.sleep(60)


class HangsAtStart(Works):
    def __init__(self, **known):
        super().__init__(**known)
        hang()


class HangsInLog(Works):
    def log(self, step, metrics):
        hang()


class HangsWithTheInterpreter(Works):
    def log(self, step, metrics):
        ctypes.PyDLL(None).sleep(1000)  # holds the interpreter's lock


class HangsAtClose(Works):
    def close(self):
        hang()


class HangsAtExit(Works):
    def close(self):
        import atexit
        atexit.register(hang)


class IgnoresSignals(Works):
    def log(self, step, metrics):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        hang()


class Slow(Works):
    def log(self, step, metrics):
        time.sleep(0.05)
        super().log(step, metrics)


class Orphan(HangsInLog):
    def __init__(self, **known):
        super().__init__(**known)
        sys.modules["__main__"].ORPHAN_SECONDS = 0.0
"""


class Ran:
    def __init__(self, folder: Path) -> None:
        self.folder, self.warnings = folder, []

    def notes(self, name: str, file: str = "log") -> list:
        path = self.folder / f"{name}.{file}"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def start(self, *names: str, **config) -> Trackers:
        return Trackers.start(names, run_name="run", folder=self.folder, config=config, warn=self.warnings.append)


@pytest.fixture
def ran(tmp_path, monkeypatch) -> Ran:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "fakes.py").write_text(FAKES)
    monkeypatch.syspath_prepend(tmp_path / "code")
    names = [line.split()[1].split("(")[0].rstrip(":") for line in FAKES.splitlines() if line.startswith("class ")]
    for name in names:
        monkeypatch.setitem(trackers.TRACKERS, name, Kind("pytest", f"fakes:{name}"))
    monkeypatch.setattr(trackers, "CLOSE_SECONDS", 60.0)  # on a busy machine, too, what can finish does
    (tmp_path / "run").mkdir()
    return Ran(tmp_path / "run")


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_every_step_arrives_without_what_was_not_measured(ran):
    with ran.start("Works", "Works", lr=1e-4, nested={"k": [1, None]}, where=Path("x")) as tracking:
        for step in range(3):
            tracking.log(step, {"entropy": step / 2, "pass@1": None, "kl": 0})
        tracking.log(3, {"pass@1": None})
    assert ran.notes("Works") == [[step, {"entropy": step / 2, "kl": 0.0}] for step in range(3)] + ["closed"]
    (known,) = ran.notes("Works", "known")
    assert known["run_name"] == "run"
    assert known["folder"] == str(ran.folder)
    assert known["config"] == {"lr": 1e-4, "nested": {"k": [1, None]}, "where": "x"}
    assert ran.warnings == []


def test_a_resumed_run_has_the_same_key_and_another_run_another(ran, tmp_path):
    for _ in range(2):
        ran.start("Works").close()
    (tmp_path / "other").mkdir()
    other = Ran(tmp_path / "other")
    other.start("Works").close()
    first, second = (known["key"] for known in ran.notes("Works", "known"))
    assert first == second != other.notes("Works", "known")[0]["key"]


def test_what_a_tracker_prints_or_asks_stays_apart_from_ours(ran, capfd):
    with ran.start("Chatty", "Asks") as tracking:
        tracking.log(1, {"x": 1.0})
    assert capfd.readouterr() == ("", "")
    assert ran.notes("Chatty") == [[1, {"x": 1.0}], "closed"]
    assert ran.notes("Asks") == [["", "/dev/null"], [1, {"x": 1.0}], "closed"]  # nobody is there to answer
    assert b"chatter" in (ran.folder / "trackers" / "Chatty.log").read_bytes()


@pytest.mark.parametrize("name", ["RaisesAtStart", "RaisesInLog", "RaisesAtClose", "Leaves", "Crashes"])
def test_a_tracker_that_fails_costs_one_warning_and_the_others_get_everything(ran, name):
    with ran.start(name, "Works") as tracking:
        for step in range(50):
            tracking.log(step, {"x": 1.0})
    (line,) = ran.warnings
    assert line.startswith(f"tracker {name} failed and gets no more metrics: ")
    assert "no network (" in line
    assert line.endswith(f"{name}.log); training goes on")
    assert ran.notes("Works") == [[step, {"x": 1.0}] for step in range(50)] + ["closed"]


def test_trackers_that_hang_are_stopped_when_the_run_ends(ran, monkeypatch):
    names = ["HangsAtStart", "HangsInLog", "HangsWithTheInterpreter", "HangsAtClose", "HangsAtExit", "IgnoresSignals"]
    with ran.start(*names) as tracking:
        tracking.log(1, {"x": 1.0})
        while not all(ran.notes(name, "pid") for name in names):
            time.sleep(0.05)
        monkeypatch.setattr(trackers, "CLOSE_SECONDS", 1.0)
    assert ran.warnings == [
        f"tracker {name} did not finish in 1 s and was stopped: its last metrics may be missing; training goes on"
        for name in names
    ]
    assert not [name for name in names if is_running(ran.notes(name, "pid")[0])]


def test_a_queue_that_is_full_drops_with_one_warning_and_does_not_wait(ran, monkeypatch):
    monkeypatch.setattr(trackers, "CLOSE_SECONDS", 1.0)
    monkeypatch.setattr(trackers, "WAITING", 10)
    metrics = {f"metric/{i}": 1.0 for i in range(1000)}  # some 20 KB, of which a pipe holds 64
    with ran.start("HangsInLog") as tracking:
        for step in range(200):  # would never end if it waited
            tracking.log(step, metrics)
    assert ran.warnings == ["tracker HangsInLog hangs or is too slow: metrics are dropped; training goes on"]


def test_a_slow_tracker_gets_what_it_can_in_order(ran, monkeypatch):
    monkeypatch.setattr(trackers, "WAITING", 4)
    metrics = {f"metric/{i}": 1.0 for i in range(1000)}
    with ran.start("Slow", "Works") as tracking:
        for step in range(200):
            tracking.log(step, metrics)
    steps = [entry[0] for entry in ran.notes("Slow") if entry != "closed"]
    assert steps == sorted(set(steps))
    assert 0 < len(steps) < 200
    assert [line for line in ran.warnings if "Slow" in line] == [
        "tracker Slow hangs or is too slow: metrics are dropped; training goes on"
    ]


def test_a_tracker_does_not_outlive_a_training_process_that_was_killed(ran):
    code = (
        "import sys, time; from pathlib import Path; from equipoise.training import trackers as t\n"
        "t.TRACKERS['Orphan'] = t.Kind('pytest', 'fakes:Orphan')\n"
        f"t.Trackers.start(['Orphan'], run_name='run', folder=Path({str(ran.folder)!r}), config={{}}).log(1, {{'x': 1.0}})\n"
        "time.sleep(600)"
    )
    training = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    )
    while not ran.notes("Orphan", "pid"):
        time.sleep(0.05)
    (pid,) = ran.notes("Orphan", "pid")
    training.send_signal(signal.SIGKILL)
    training.wait()
    while is_running(pid):
        time.sleep(0.05)


def test_a_program_that_never_closes_ends_all_the_same(ran):
    code = (
        "from pathlib import Path; from equipoise.training import trackers as t\n"
        "t.TRACKERS['Orphan'] = t.Kind('pytest', 'fakes:Orphan')\n"
        f"tracking = t.Trackers.start(['Orphan'], run_name='run', folder=Path({str(ran.folder)!r}), config={{}})\n"
        "for step in range(100): tracking.log(step, {str(i): 1.0 for i in range(1000)})"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ended = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert ended.stderr == ""
    while any(map(is_running, ran.notes("Orphan", "pid"))):
        time.sleep(0.05)


def test_a_folder_that_cannot_be_written_costs_one_warning(tmp_path, ran):
    (tmp_path / "file").write_text("")
    lines: list[str] = []
    with Trackers.start(["Works"], run_name="r", folder=tmp_path / "file", config={}, warn=lines.append) as tracking:
        tracking.log(1, {"x": 1.0})
    (line,) = lines
    assert line.startswith("tracker Works did not start and gets no metrics: ")


def test_no_tracker_writes_nothing(tmp_path):
    with Trackers.start([], run_name="r", folder=tmp_path / "new", config={}) as tracking:
        tracking.log(1, {"x": 1.0})
    assert list(tmp_path.iterdir()) == []


def test_warnings_go_to_stderr_by_default(ran, capfd):
    Trackers.start(["RaisesAtStart"], run_name="r", folder=ran.folder, config={}).close()
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("warning: tracker RaisesAtStart failed")
    assert err.count("\n") == 1


def test_names_and_packages_are_checked_before_anything_starts(tmp_path, monkeypatch):
    start = {"run_name": "r", "folder": tmp_path / "run", "config": {}}
    with pytest.raises(UsageError) as raised:
        Trackers.start(["tensorbord"], **start)
    assert str(raised.value) == (
        "unknown tracker 'tensorbord': did you mean 'tensorboard'? known are tensorboard, trackio, wandb"
    )
    (tmp_path / "absent_package").mkdir()  # W&B leaves a folder "wandb" where a program ran
    monkeypatch.syspath_prepend(tmp_path)
    for package in ("no_such_package", "absent_package"):
        monkeypatch.setitem(trackers.TRACKERS, "gone", Kind(package, "fakes:Works"))
        with pytest.raises(UsageError) as raised:
            Trackers.start(["gone"], **start)
        assert str(raised.value) == f"tracker 'gone' needs the package {package}: pip install {package}"
    assert not (tmp_path / "run").exists()


def test_the_real_tensorboard_writes_scalars_that_our_reader_reads(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard", reason="needs tensorboard: pip install tensorboard")
    monkeypatch.setattr(trackers, "CLOSE_SECONDS", 60.0)  # it imports torch
    lines: list[str] = []
    with Trackers.start(
        ["tensorboard"], run_name="r", folder=tmp_path, config={"lr": 0.1}, warn=lines.append
    ) as tracking:
        tracking.log(1, {"entropy": 0.5, "pass@1": None})
        tracking.log(2, {"entropy": 0.25, "pass@1": 0.75})
    assert lines == []
    (path,) = (tmp_path / "tensorboard").iterdir()
    found = [(scalar.tag, scalar.step, scalar.value) for scalar in read_scalars(path, warn=lambda *_: None)]
    assert found == [("entropy", 1, 0.5), ("entropy", 2, 0.25), ("pass@1", 2, 0.75)]
