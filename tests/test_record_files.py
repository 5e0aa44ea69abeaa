"""Atomic writes, appended lines, and JSON read from torn, hostile and oddly encoded files."""

from __future__ import annotations

import gzip
import json
import math
import threading

import numpy as np
import pytest

from equipoise import files
from equipoise.errors import UsageError
from equipoise.files import (
    append_line,
    append_lines,
    atomic_create,
    atomic_write,
    plain,
    read_json,
    read_json_array,
    read_json_lines,
)
from equipoise.rollouts.run import Warnings


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a" / "b.txt"
    with atomic_write(path, "w") as handle:
        handle.write("old")
    writing = atomic_write(path, "w")
    writing.__enter__().write("half")
    assert writing.__exit__(RuntimeError, RuntimeError(), None) is False
    assert path.read_text() == "old"
    assert names_in(path.parent) == ["b.txt"]


def test_nothing_is_visible_under_its_name_before_it_is_complete(tmp_path):
    with atomic_write(tmp_path / "x", "w") as handle:
        handle.write("data")
        handle.flush()
        assert not (tmp_path / "x").exists()
        assert all(name.startswith(".") for name in names_in(tmp_path))


def test_a_new_file_takes_the_first_free_name_and_overwrites_none(tmp_path):
    for content in ("one", "two"):
        with atomic_create((tmp_path / f"part-{n}" for n in range(9)), "w") as handle:
            handle.write(content)
    assert [(tmp_path / f"part-{n}").read_text() for n in range(2)] == ["one", "two"]
    with pytest.raises(FileExistsError), atomic_create([tmp_path / "part-0"], "w") as handle:
        handle.write("three")
    assert names_in(tmp_path) == ["part-0", "part-1"]


def test_writers_that_race_for_one_name_each_get_their_own(tmp_path):
    ready = threading.Barrier(8)

    def write(content):
        with atomic_create((tmp_path / f"part-{n}" for n in range(20)), "w") as handle:
            handle.write(content)
            ready.wait()

    threads = [threading.Thread(target=write, args=(str(n),)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(path.read_text() for path in tmp_path.iterdir()) == [str(n) for n in range(8)]


def test_a_disk_without_hard_links_still_overwrites_nothing(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "no hard links here")

    monkeypatch.setattr(files.os, "link", refuse)
    for content in ("one", "two"):
        with atomic_create((tmp_path / f"part-{n}" for n in range(9)), "w") as handle:
            handle.write(content)
    assert [(tmp_path / f"part-{n}").read_text() for n in range(2)] == ["one", "two"]


def test_an_appended_line_closes_one_that_a_crash_left_open(tmp_path):
    path = tmp_path / "metrics.jsonl"
    append_line(path, {"a": 1})
    with open(path, "a") as handle:
        handle.write('{"a": 2')
    append_lines(path, [{"a": math.nan}, {"a": np.float32(0.5), "b": np.arange(2)}])
    warnings = Warnings()
    assert [row for _, row in read_json_lines(path, warn=warnings)] == [{"a": 1}, {"a": None}, {"a": 0.5, "b": [0, 1]}]
    assert list(warnings.entries) == ["bad-line"]


def test_plain_leaves_no_nan_at_any_depth():
    assert plain({"a": [math.inf, (1, math.nan)], 2: np.bool_(True)}) == {"a": [None, [1, None]], "2": True}


@pytest.mark.parametrize(
    ("data", "rows", "kinds"),
    [
        (b'{"a": 1}\n{"a": 2}', [1, 2], []),
        (b'\xef\xbb\xbf{"a": 1}\r\n\r\n{"a": 2}\r\n', [1, 2], []),
        ('{"a": 1}\n{"a": 2}\n'.encode("utf-16"), [1, 2], []),
        (b'{"a": 1}\n{"a": ', [1], ["truncated"]),
        (b'{"a": 1}\nnot json\n[1]\n{"a": 2}\n', [1, 2], ["bad-line"]),
        (b'{"a": 1}\n{"a": "\xff\xfe"}\n', [1, "\ufffd\ufffd"], ["encoding"]),
        (b'{"a": 1}\n' + b'{"a":' * 70 + b"1" + b"}" * 70 + b"\n", [1], ["bad-line"]),
        (b'{"a": 1}\n' + b"[" * 100_000 + b"\n", [1], ["bad-line"]),
        (b'{"a": 1}\n{"a": ' + b"1" * 5000 + b"}\n", [1], ["bad-line"]),
        (b"", [], []),
    ],
    ids=["plain", "bom and windows", "utf-16", "torn", "other lines", "bytes", "depth", "stack", "digits", "empty"],
)
def test_json_lines_keep_what_can_be_used_and_name_the_rest(tmp_path, data, rows, kinds):
    for name, content in (("x.jsonl", data), ("x.jsonl.gz", gzip.compress(data))):
        path, warnings = tmp_path / name, Warnings()
        path.write_bytes(content)
        assert [row["a"] for _, row in read_json_lines(path, warn=warnings)] == rows
        assert list(warnings.entries) == kinds
        assert path.read_bytes() == content


def test_a_gzip_stream_cut_short_gives_the_lines_before_the_cut(tmp_path):
    lines = [json.dumps({"a": n, "noise": str(np.random.default_rng(n).random(40).tolist())}) for n in range(400)]
    data = gzip.compress("\n".join(lines).encode())
    path, warnings = tmp_path / "x.jsonl.gz", Warnings()
    path.write_bytes(data[: len(data) // 2])
    found = [row["a"] for _, row in read_json_lines(path, warn=warnings)]
    assert found == list(range(len(found)))
    assert 100 < len(found) < 300
    assert list(warnings.entries) == ["truncated"]


def test_a_line_over_the_limit_is_one_clear_error(tmp_path):
    path = tmp_path / "x.jsonl"
    with open(path, "wb") as handle:
        handle.write(b'{"a": 1}\n{"a": "')
        handle.seek(65 * 2**20)  # a hole: the disk holds nothing of it
        handle.write(b'"}\n')
    rows = read_json_lines(path, warn=Warnings())
    assert next(rows)[1] == {"a": 1}
    with pytest.raises(UsageError, match="line 2 is longer than 64 MB"):
        next(rows)


ROWS = [{"a": n, "text": "],[{" * (n % 7), "deep": {"x": [n, {"y": None}]}} for n in range(3000)]


@pytest.mark.parametrize("indent", [None, 1])
def test_a_json_array_is_read_an_element_at_a_time(tmp_path, indent):
    path, warnings = tmp_path / "x.json", Warnings()
    path.write_text(json.dumps(ROWS, indent=indent))
    assert [row for _, row in read_json_array(path, warn=warnings)] == ROWS
    assert not warnings.entries


@pytest.mark.parametrize(
    ("data", "rows", "kinds"),
    [
        ('[{"a": 1}, {"a": 2}', [1, 2], ["truncated"]),
        ('[{"a": 1}, {"a": "x', [1], ["truncated"]),
        ('[{"a": 1}, {"a" 2}, {"a": 3}' + " " * 300_000 + "]", [1], ["truncated"]),
        ('[{"a": 1}, 5, [], {"a": 2}]', [1, 2], ["bad-line"]),
        ('[{"a": 1}, {"a":' + "[" * 70 + "]" * 70 + '}, {"a": 2}]', [1, 2], ["bad-line"]),
        ("[]", [], []),
    ],
    ids=["open", "torn string", "broken", "not objects", "depth", "empty"],
)
def test_a_damaged_array_keeps_the_elements_before_the_damage(tmp_path, data, rows, kinds):
    path, warnings = tmp_path / "x.json", Warnings()
    path.write_text(data)
    assert [row["a"] for _, row in read_json_array(path, warn=warnings)] == rows
    assert list(warnings.entries) == kinds


def test_a_deep_or_huge_element_is_one_clear_error(tmp_path):
    path = tmp_path / "x.json"
    path.write_text("[" * 200_000)
    with pytest.raises(UsageError, match="nested deeper than 64"):
        list(read_json_array(path, warn=Warnings()))
    with open(path, "wb") as handle:
        handle.write(b'[{"a": "' + b"x" * (65 * 2**20) + b'"}]')
    with pytest.raises(UsageError, match="longer than 64 MB"):
        list(read_json_array(path, warn=Warnings()))


def test_a_document_is_capped_and_said_to_be_no_json(tmp_path):
    path = tmp_path / "x.json"
    path.write_bytes(b"{")
    with pytest.raises(UsageError, match="is not JSON"):
        read_json(path)
    with open(path, "wb") as handle:
        handle.seek(files.MAX_DOCUMENT + 1)
        handle.write(b"]")
    with pytest.raises(UsageError, match="over 256 MB"):
        read_json(path)
    path.write_bytes(gzip.compress(b"{}" * 1000)[:-10])
    with pytest.raises(UsageError, match="ends early"):
        read_json(path)
    with pytest.raises(UsageError, match="cannot read"):
        read_json(tmp_path)
