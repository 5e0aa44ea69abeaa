"""A run folder written by another process is the one that `RunWriter` writes, and whatever ends that process is told in one line."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import time

import pyarrow as pa
import pytest

from equipoise.errors import UsageError
from equipoise.rollouts.batch import Rollouts
from equipoise.rollouts.folder import open_folder
from equipoise.rollouts.run import RunInfo
from equipoise.rollouts.writer import RunWriter
from equipoise.rollouts.writer_process import WriterProcess, serve

INFO = RunInfo("test", run_id="run-1", settings={"lr": 0.1})


def batch(step, n=3):
    rows = ({"step": step, "prompt_id": f"p{i}", "reward": float(i), "token_ids": [i, i + 1]} for i in range(n))
    return Rollouts.of_rows(rows)


def use(writer):
    """Everything that a writer is asked during a run."""
    assert writer.write_batches([batch(1), batch(2, 2)]) == 5
    writer.vocab({0: "a", 1: "\ud800", 2: "ü"})
    writer.log(1, {"loss": float("nan"), "reward": 0.5})
    writer.log(2, {"loss": 0.25})
    writer.rewind(1)
    assert writer.write_batches([batch(2, 4)]) == 4


def files_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def writer(tmp_path):
    made = WriterProcess(tmp_path / "run", INFO)
    yield made
    made.close()


def test_the_folder_is_byte_by_byte_that_of_a_run_writer(writer, tmp_path):
    use(writer)
    use(RunWriter(tmp_path / "own", INFO))
    files = files_of(tmp_path / "run")
    assert files == files_of(tmp_path / "own")
    assert {"run.json", "vocab.json", "metrics.jsonl"} < files.keys()
    assert writer.info == INFO


def test_what_a_run_writer_refuses_is_refused_in_the_same_words(writer, tmp_path):
    own = RunWriter(tmp_path / "own", INFO)
    words = []
    for each in (writer, own):
        each.vocab({7: "seven"})
        with pytest.raises(UsageError, match="two tokenizers in one run") as refused:
            each.vocab({7: "eight"})
        words.append(str(refused.value).replace(str(each.folder), "FOLDER"))
    assert words[0] == words[1]
    with pytest.raises(UsageError, match="holds the run 'run-1', not 'other'"):
        WriterProcess(tmp_path / "run", RunInfo("test", run_id="other"))


def test_a_disk_that_fails_is_told_with_its_errno_and_the_next_request_is_answered(writer, tmp_path):
    (tmp_path / "run" / "rollouts").write_text("a file where a folder has to be")
    with pytest.raises(OSError, match="what was written before is intact") as failed:
        writer.write_batches([batch(1)])
    assert failed.value.errno in (errno.ENOTDIR, errno.EEXIST)
    (tmp_path / "run" / "rollouts").unlink()
    assert writer.write_batches([batch(1)]) == 3


def test_a_process_that_was_killed_is_named_and_a_later_request_starts_another(writer):
    assert writer.write_batches([batch(1)]) == 3
    os.kill(writer._process.pid, signal.SIGKILL)
    with pytest.raises(OSError, match=r"the process that writes .* is gone \(signal 9\): what was written before is"):
        writer.write_batches([batch(2)])
    assert writer.write_batches([batch(2)]) == 3
    assert len(list(open_folder(writer.folder).rollouts())) == 2
    os.kill(writer._process.pid, signal.SIGKILL)
    writer.close()  # nothing was under way: nothing is lost


def test_it_ends_when_told_though_a_fork_of_ours_holds_its_pipe(writer):
    writer.log(1, {"loss": 1.0})
    process = writer._process
    assert os.getpgid(process.pid) != os.getpgid(0)  # Ctrl-C at a terminal goes to our group
    fork = os.fork()
    if not fork:
        time.sleep(60)
        os._exit(0)
    try:
        writer.close()
        assert process.returncode == 0
    finally:
        os.kill(fork, signal.SIGKILL)
        os.waitpid(fork, 0)
    writer.log(2, {"loss": 0.5})
    assert len((writer.folder / "metrics.jsonl").read_text().splitlines()) == 2


def test_a_request_that_breaks_off_is_not_written(tmp_path):
    RunWriter(tmp_path, INFO)
    made = io.BytesIO()
    with pa.ipc.new_stream(made, batch(1).batch.schema) as stream:
        stream.write_batch(batch(1).batch)
    whole, replies = made.getvalue(), io.BytesIO()
    head = json.dumps({"do": "rows", "bytes": len(whole)}).encode() + b"\n"
    serve(tmp_path, io.BytesIO(head + whole + head + whole[:-1]), replies)
    assert replies.getvalue() == b'{"value": 3}\n'
    assert len(list(open_folder(tmp_path).rollouts())) == 1
