"""A writer that is killed, runs out of disk or may not write: whatever a reader then sees is whole."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import pyarrow.parquet as pq
import pytest

from equipoise.errors import UsageError
from equipoise.rollouts.convert import convert_run
from equipoise.rollouts.folder import list_parts, open_folder
from equipoise.rollouts.run import RunInfo
from equipoise.rollouts.writer import RunWriter

ROWS = 24

ROW = '{"prompt_id": "p", "sample_index": i, "token_ids": tokens}'
NOUN = """Rollout(
    "run", "train", None, "g", i, Problem("p", None, "q"), Completion("", token_ids=tokens), Grade(None, "wrong", 0.0)
)"""

# Writes steps for ever, each with the same number of rows whose tokens all equal the step.
ENDLESS = f"""
import sys
from itertools import count
import numpy as np
from equipoise.base import Completion, Grade, Problem, Rollout
from equipoise.rollouts.run import RunInfo
from equipoise.rollouts.writer import RunWriter
writer = RunWriter(sys.argv[1], RunInfo("test", run_id="run"))
for step in count(int(sys.argv[2])):
    tokens = np.full(2000, step, dtype=np.int32)
    writer.write([GIVEN for i in range({ROWS})], step=step)
    writer.log(step, {{"entropy": step / 2, "pad": "x" * 500}})
    writer.vocab({{step: str(step)}})
    print("ready", flush=True)
"""


def start(script, *arguments):
    child = subprocess.Popen([sys.executable, "-c", script, *map(str, arguments)], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n"
    return child


@pytest.mark.parametrize("given", [ROW, NOUN], ids=["rows", "rollouts"])
def test_a_killed_writer_leaves_whole_parts_and_the_run_goes_on(given, tmp_path):
    rng = random.Random(7)
    for kill in range(6):
        child = start(ENDLESS.replace("GIVEN", given), tmp_path, kill * 10_000)
        time.sleep(rng.uniform(0.0, 0.2))
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        run = open_folder(tmp_path)
        counts = {}
        for batch in run.rollouts(["step", "token_ids"]):
            for row in batch.rows():
                assert row["token_ids"] == [row["step"]] * 2000
                counts[row["step"]] = counts.get(row["step"], 0) + 1
        assert set(counts.values()) <= {ROWS}
        for part in list_parts(tmp_path):
            assert pq.read_metadata(part.path).num_rows == ROWS
        metrics = list(run.metrics())
        assert all(line["entropy"] == line["step"] / 2 for line in metrics)
        assert {line["step"] for line in metrics} <= set(counts)  # a step is logged after its rollouts
        assert set(run.warnings.entries) <= {"truncated", "bad-line"}
        run.vocab()
    assert len(counts) > 6


# Writes a small part, then one beyond the largest size that this process may give a file.
FULL = """
import resource, signal, sys
import numpy as np
from equipoise.rollouts.run import RunInfo
from equipoise.rollouts.writer import RunWriter
writer = RunWriter(sys.argv[1], RunInfo("test"))
writer.write([{"prompt_id": "p", "reward": 1.0}], step=1)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
noise = np.random.default_rng(0).random(200_000)
try:
    writer.write([{"prompt_id": "p", "logprobs_rollout": -noise}], step=2)
except OSError as problem:
    print(problem)
try:
    writer.log(1, {"note": "x" * 200_000})
except OSError as problem:
    print(problem)
writer.write([{"prompt_id": "p", "reward": 2.0}], step=3)
"""


def test_a_full_disk_is_one_line_and_no_torn_part_is_left(tmp_path):
    done = subprocess.run([sys.executable, "-c", FULL, tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    part, line = done.stdout.splitlines()
    assert "cannot write" in part
    assert "step=000002" in part
    assert "File too large" in part
    assert "metrics.jsonl" in line
    rows = [row for batch in open_folder(tmp_path).rollouts(["step", "reward"]) for row in batch.rows()]
    assert rows == [{"reward": 1.0, "step": 1}, {"reward": 2.0, "step": 3}]
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith(".tmp")]


# As an ordinary user, whom a folder's permissions bind.
READ_ONLY = """
import os, sys
from importlib import import_module
from equipoise.errors import UsageError
from equipoise.rollouts.run import RunInfo, Run
from equipoise.rollouts.writer import RunWriter
from equipoise.rollouts.convert import convert_run
from equipoise.rollouts.readers.table import read_run
from pathlib import Path
from equipoise.rollouts.readers.table import READERS
for module, _ in READERS:
    import_module(module)
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
closed = Path(sys.argv[1])
for attempt in (
    lambda: RunWriter(closed / "run", RunInfo("test")),
    lambda: convert_run(Run(closed, RunInfo("test")), closed / "run"),
    lambda: read_run(closed / "secret.jsonl"),
    lambda: read_run(closed / "hidden"),
):
    try:
        attempt()
        print("no error")
    except UsageError as problem:
        print(problem)
"""


def test_a_folder_without_permission_is_one_line(tmp_path):
    closed = tmp_path / "closed"
    (closed / "hidden").mkdir(parents=True)
    (closed / "secret.jsonl").write_text('{"prompt": "q", "reward": 1}\n')
    (closed / "secret.jsonl").chmod(0o000)
    (closed / "hidden").chmod(0o000)
    for folder in (tmp_path, *tmp_path.parents):
        if os.getuid() == 0 and len(folder.parts) > 2:  # the child is somebody else then
            folder.chmod(folder.stat().st_mode | 0o055)
    closed.chmod(0o555)
    try:
        done = subprocess.run([sys.executable, "-c", READ_ONLY, closed], capture_output=True, text=True)
    finally:
        closed.chmod(0o755)
        (closed / "hidden").chmod(0o755)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 4
    assert all("ermission denied" in line for line in lines), lines
    assert sorted(path.name for path in closed.iterdir()) == ["hidden", "secret.jsonl"]


def test_a_file_where_a_folder_should_be_is_one_line(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="cannot write a run into"):
        RunWriter(tmp_path / "file" / "run", RunInfo("test"))
    run = RunWriter(tmp_path / "source", RunInfo("test"))
    run.write([{"prompt_id": "p", "reward": 1}])
    for target in ("file", "file/run", "source"):
        with pytest.raises(UsageError, match=r"exists and is not an empty folder|cannot make"):
            convert_run(open_folder(tmp_path / "source"), tmp_path / target)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "source"]
