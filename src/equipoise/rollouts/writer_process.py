"""A `RunWriter` in a process of its own: packing, compressing and waiting for the disk take nothing from the one that trains.

A request is a line of JSON and, for rows, an Arrow stream after it; the answer is a line of JSON. The process starts with the first
request and ends with its pipe. Ctrl-C does not reach it: what it was handed it writes, whatever becomes of the one who trains.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from equipoise.errors import UsageError
from equipoise.files import plain
from equipoise.rollouts.batch import Rollouts
from equipoise.rollouts.run import RunInfo
from equipoise.rollouts.writer import RunWriter


class WriterProcess:
    """Writes a run folder as `RunWriter` does, elsewhere. Every call returns, or raises, when the disk has answered."""

    def __init__(self, folder: Path | str, info: RunInfo) -> None:
        self.folder = Path(folder).absolute()
        self.info = RunWriter(folder, info).info  # the folder is made, or refused, here
        self._taking_turns = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def write_batches(self, batches: Iterable[Rollouts]) -> int:
        """Store rows that are columns already; how many."""
        return sum(int(self._ask({"do": "rows"}, _stream(rollouts.batch))) for rollouts in batches)

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """One line of metrics.jsonl."""
        self._ask({"do": "log", "step": step, "metrics": plain(dict(metrics))})

    def vocab(self, texts: Mapping[int, str]) -> None:
        """Add the strings of token ids to vocab.json."""
        self._ask({"do": "vocab", "ids": list(texts), "texts": list(texts.values())})

    def rewind(self, step: int) -> None:
        """Go on from `step`: rollouts and metrics of later steps no longer count."""
        self._ask({"do": "rewind", "step": step})

    def close(self) -> None:
        """End the process, which has answered all that it was asked. The next request starts another."""
        with self._taking_turns:
            process, self._process = self._process, None
            if process is not None:
                # The end of the pipe may not reach it: a data loader's worker can hold it open.
                _exchange(process, {"do": "end"}, None)
                process.communicate()

    def _ask(self, request: Mapping[str, Any], data: pa.Buffer | None = None) -> Any:
        with self._taking_turns:
            if self._process is None:
                self._process = _start(self.folder)
            line = _exchange(self._process, {**request, "bytes": 0 if data is None else data.size}, data)
            if not line:
                gone, self._process = self._process, None
                raise OSError(
                    f"the process that writes {self.folder} is gone ({_how(gone)}): what was written before is intact; "
                    "resume from the last checkpoint"
                )
        reply = json.loads(line)
        if "refused" in reply:
            raise UsageError(reply["refused"])
        if "failed" in reply:
            raise OSError(*reply["failed"])
        return reply["value"]


def _start(folder: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path)}
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "equipoise.rollouts.writer_process", str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment | {"OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )


def _exchange(process: subprocess.Popen[bytes], request: Mapping[str, Any], data: pa.Buffer | None) -> bytes:
    """The line that answers; empty where the process is gone."""
    asked, answers = process.stdin, process.stdout
    assert asked is not None
    assert answers is not None
    try:
        asked.write(json.dumps(request).encode() + b"\n")
        if data is not None:
            asked.write(data)
        asked.flush()
        return answers.readline()
    except BrokenPipeError:
        return b""


def _stream(batch: pa.RecordBatch) -> pa.Buffer:
    made = pa.BufferOutputStream()
    with pa.ipc.new_stream(made, batch.schema) as stream:
        stream.write_batch(batch)
    return made.getvalue()


def _how(process: subprocess.Popen[bytes]) -> str:
    try:
        code = process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        return "it closed its pipe"
    return f"signal {-code}" if code < 0 else f"exit status {code}"


# --- in the process


def serve(folder: Path, requests: IO[bytes], replies: IO[bytes]) -> None:
    """Answer requests until the pipe closes."""
    writer = RunWriter(folder, RunInfo("unknown"))  # run.json is there and says what the run is
    for line in requests:
        request = json.loads(line)
        if request["do"] == "end":
            replies.write(b'{"value": null}\n')
            return
        data = requests.read(request["bytes"])
        if len(data) < request["bytes"]:
            return  # the one who asked died in the middle
        reply: dict[str, Any]
        try:
            reply = {"value": _answer(writer, request, data)}
        except UsageError as problem:
            reply = {"refused": str(problem)}
        except OSError as problem:
            reply = {"failed": [problem.errno, problem.strerror] if problem.strerror else [str(problem)]}
        except Exception as problem:
            reply = {"failed": [f"{type(problem).__name__}: {problem}"]}
        replies.write(json.dumps(reply).encode() + b"\n")
        replies.flush()


def _answer(writer: RunWriter, request: Mapping[str, Any], data: bytes) -> int | None:
    if request["do"] == "rows":
        with pa.ipc.open_stream(data) as stream:
            return writer.write_batches(Rollouts(batch) for batch in stream)
    if request["do"] == "log":
        writer.log(request["step"], request["metrics"])
    elif request["do"] == "vocab":
        writer.vocab(dict(zip(request["ids"], request["texts"], strict=True)))
    else:
        writer.rewind(request["step"])
    return None


if __name__ == "__main__":
    serve(Path(sys.argv[1]), sys.stdin.buffer, sys.stdout.buffer)
