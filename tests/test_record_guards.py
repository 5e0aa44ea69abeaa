"""Small Parquet files that expand to gigabytes: refused in one line, or read in bounded memory.

Each bomb is read in a child process, whose growth in memory is measured.
"""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from equipoise.errors import UsageError
from equipoise.rollouts import guards
from equipoise.rollouts.guards import cut_points, row_weights
from equipoise.rollouts.parquet import stream_parquet
from equipoise.rollouts.readers.table import read_run
from equipoise.rollouts.run import Warnings

READ = """
import resource, sys
import numpy as np, pandas, pyarrow.parquet
from equipoise.errors import UsageError
from equipoise.rollouts.readers.table import read_run
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
rows = longest = 0
try:
    for batch in read_run(sys.argv[1]).rollouts(sys.argv[2].split(",")):
        rows += len(batch)
        longest = max([longest, *(len(t or "") for t in batch.texts("completion") or ())])
        if rows > 2_000:
            break
    print("read", rows, longest)
except UsageError as problem:
    print("refused", problem)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def read_in_child(path, *columns):
    done = subprocess.run(
        [sys.executable, "-c", READ, path, ",".join(columns)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    said, grown = done.stdout.splitlines()
    return said, int(grown)


def write(path, columns, **options):
    pq.write_table(pa.table(columns), path, compression="zstd", **options)
    assert path.stat().st_size < 200_000
    return path


def lists(lengths, values):
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values)


ZEROS = pa.array(np.zeros(2**26, np.int8))
ONE_TEXT = pa.array(["a" * 8_000_000])


def one_text(n):
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(n, np.int32)), ONE_TEXT)


BOMBS = {
    "one long list": (lambda: {"completion": ["x"], "token_ids": lists([2**25], ZEROS[: 2**25])}, "the limit is 16777216 a row"),
    "a long list among short ones": (
        lambda: {"completion": ["x"] * 1000, "token_ids": lists([1] * 999 + [2**26 - 999], ZEROS)},
        "packs 67108864 values into",
    ),
    "one long text": (lambda: {"completion": ["a" * 2**27]}, "bytes of text in 1 rows, the limit is 67108864"),
    "texts that shrink to nothing": (
        lambda: {"completion": pa.concat_arrays([pa.array([c * 2**22 for c in "abcdefghijklm"])] * 6)},
        "the limit is 500-fold",
    ),
    "rows of nothing": (lambda: {"completion": pa.nulls(60_000_000, pa.string())}, "60000000 rows"),
    "deep lists": (lambda: {"completion": ["x"], "token_ids": pa.nulls(1, deep(20))}, "nested 20 deep, the limit is 8"),
    "many columns": (lambda: {f"c{i}": [1] for i in range(5000)} | {"completion": ["x"]}, "5001 columns, the limit is 5000"),
}  # fmt: skip


def deep(depth):
    kind = pa.int32()
    for _ in range(depth):
        kind = pa.list_(kind)
    return kind


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_in_one_line_before_it_is_read(tmp_path, name):
    make, said = BOMBS[name]
    options = {"use_dictionary": False} if "text" in name else {}
    path = tmp_path / "bomb.parquet"
    pq.write_table(pa.table(make()), path, compression="zstd", **options)
    assert path.stat().st_size < 3_000_000
    line, grown = read_in_child(path, "completion", "token_ids")
    assert line.startswith("refused")
    assert said in line
    assert grown < 150


def test_a_long_text_that_many_rows_share_is_held_once(tmp_path):
    path = write(tmp_path / "texts.parquet", {"completion": one_text(100_000)})
    line, grown = read_in_child(path, "completion")
    assert line.split()[2] == "8000000"  # 800 GB written out
    assert grown < 300


def test_long_texts_inside_lists_are_held_once_too(tmp_path):
    messages = pa.StructArray.from_arrays([pa.array(["user"] * 20_000), one_text(20_000)], ["role", "content"])
    path = write(tmp_path / "chats.parquet", {"messages": lists([1] * 20_000, messages), "completion": ["x"] * 20_000})
    batches = stream_parquet(path, ["messages"])
    assert max(len(next(batches)) for _ in range(20)) <= 16  # of 8 MB each, once written out


def footer_of(small, big):
    """The pages of `big` under the footer of `small`: a file that lies about what it holds."""
    small, big = small.read_bytes(), big.read_bytes()
    start = small.rindex(b"PAR1") - 4 - int.from_bytes(small[-8:-4], "little")
    pages = big[4 : big.rindex(b"PAR1") - 4 - int.from_bytes(big[-8:-4], "little")]
    assert len(pages) < start - 4
    return b"PAR1" + pages.ljust(start - 4, b"\0") + small[start:]


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_a_footer_that_lies_is_found_out(tmp_path, version):
    noise = pa.array(np.random.default_rng(0).integers(-128, 127, 4000, dtype=np.int8))
    options = {"data_page_version": version, "use_dictionary": False, "write_statistics": False}
    small = write(tmp_path / "small.parquet", {"token_ids": lists([4000], noise)}, **options)
    assert sum(len(batch) for batch in stream_parquet(small)) == 1
    zeros = pa.array(np.zeros(2**24, np.int8))
    big = write(tmp_path / "big.parquet", {"token_ids": lists([2**24], zeros)}, **options, data_page_size=2**30)
    (tmp_path / "lie.parquet").write_bytes(footer_of(small, big))
    with pytest.raises(UsageError, match="its pages hold 16777216 values, its footer says 4000"):
        stream_parquet(tmp_path / "lie.parquet")


def test_a_page_that_shrank_beyond_belief_is_refused(tmp_path, monkeypatch):
    path = write(tmp_path / "x.parquet", {"completion": ["a" * 20_000]}, use_dictionary=False)
    assert sum(len(batch) for batch in stream_parquet(path)) == 1
    monkeypatch.setattr(guards, "MAX_EASY_TEXT", 10_000)
    monkeypatch.setattr("equipoise.rollouts.parquet.check_group", lambda *_: 1)
    with pytest.raises(UsageError, match=r"a page packs 200.. bytes into .., the limit is 500-fold"):
        stream_parquet(path)


def test_files_that_are_no_whole_parquet_are_one_line_each(tmp_path):
    good = write(tmp_path / "good.parquet", {"completion": ["x"], "reward": [1.0]}).read_bytes()
    length = int.from_bytes(good[-8:-4], "little")
    cases = {
        b"": "is empty",
        b"hello, this is text": "is not a Parquet file",
        good[:-30]: "cut short",
        good[:-4] + b"PARE": "encrypted",
        good[: -8 - length] + b"\xff" * length + good[-8:]: "cannot read",
        b"PAR1" + b"\xff" * (len(good) - 12 - length) + good[-8 - length :]: "damaged",
        good[:-8] + (2**31 - 1).to_bytes(4, "little") + b"PAR1": "cannot read",
    }
    path = tmp_path / "bad.parquet"
    for data, said in cases.items():
        path.write_bytes(data)
        with pytest.raises(UsageError, match=said) as caught:
            list(read_run(path).rollouts())
        assert "\n" not in str(caught.value)
        assert str(path) in str(caught.value)


def test_every_byte_of_a_small_file_may_be_wrong(tmp_path):
    path = write(tmp_path / "x.parquet", {"completion": ["x", "y"], "token_ids": [[1, 2], [3]]})
    good = path.read_bytes()
    said = []
    for at in range(4, len(good), 3):
        path.write_bytes(good[:at] + bytes([good[at] ^ 0xFF]) + good[at + 1 :])
        try:
            for batch in read_run(path).rollouts():
                batch.rows()
        except UsageError as problem:
            said.append(str(problem))
    assert len(said) > 100
    assert not [line for line in said if "\n" in line]


def test_texts_that_are_not_utf8_are_mended_with_a_warning(tmp_path):
    broken = pa.Array.from_buffers(pa.string(), 2, pa.array([b"ok", b"\xff\xfe!"]).buffers())
    path = write(tmp_path / "x.parquet", {"completion": broken})
    run = read_run(path)
    assert [row["completion"] for batch in run.rollouts() for row in batch.rows()] == ["ok", "\ufffd\ufffd!"]
    assert "encoding" in run.warnings.entries


def test_two_columns_of_one_name_are_refused(tmp_path):
    table = pa.Table.from_arrays([pa.array(["x"]), pa.array(["y"])], names=["completion", "completion"])
    pq.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(UsageError, match="2 columns named 'completion'"):
        stream_parquet(tmp_path / "x.parquet")


def test_a_name_with_a_dot_is_one_column(tmp_path):
    path = write(tmp_path / "x.parquet", {"a": [1], "a.b": [[2, 3]], "c": [{"d": 4}]})
    (batch,) = stream_parquet(path, ["a.b"], {"a.b": "token_ids"})
    assert batch.to_pydict() == {"token_ids": [[2, 3]]}
    (batch,) = stream_parquet(path, ["a", "c"])
    assert batch.to_pydict() == {"a": [1], "c": [{"d": 4}]}


def test_batches_follow_the_widest_asked_column(tmp_path, monkeypatch):
    monkeypatch.setattr(guards, "BATCH_VALUES", 1000)
    path = write(tmp_path / "x.parquet", {"token_ids": [list(range(100))] * 64, "reward": [0.5] * 64})
    assert [len(batch) for batch in stream_parquet(path, ["reward"])] == [64]
    assert [len(batch) for batch in stream_parquet(path, ["token_ids"])] == [10] * 6 + [4]


def test_a_list_longer_than_its_row_group_s_mean_is_caught_when_read(tmp_path, monkeypatch):
    monkeypatch.setattr(guards, "MAX_ROW_VALUES", 500)
    monkeypatch.setattr(guards, "BATCH_VALUES", 300)
    path = write(tmp_path / "x.parquet", {"token_ids": [[1]] * 20 + [list(range(1000))]})
    with pytest.raises(UsageError, match="a row of 'token_ids' holds 1000 values, the limit is 500"):
        list(stream_parquet(path))


def test_runs_of_rows_are_cut_as_a_loop_would_cut_them():
    rng = np.random.default_rng(0)
    for _ in range(50):
        weights = rng.integers(0, 30, rng.integers(1, 40)).astype(float)
        cuts, start, held = [], 0, 0.0
        for i, weight in enumerate(weights):
            if i > start and (held + weight > 25 or i - start == 4):
                cuts.append((start, i))
                start, held = i, 0.0
            held += weight
        cuts.append((start, len(weights)))
        assert list(cut_points(weights, 25, 4)) == cuts


def test_weights_count_values_and_written_out_text():
    texts = pa.DictionaryArray.from_arrays(pa.array([0, None, 1]), pa.array(["a" * 32, "b" * 16]))
    assert row_weights(texts).tolist() == [2.0, 0.0, 1.0]
    assert row_weights(pa.array([[1, 2], None, [3]])).tolist() == [2, 0, 1]
    assert row_weights(pa.array([[[1, 2], [3]], []])).tolist() == [3, 0]
    assert row_weights(pa.array([[{"content": "x" * 160}, {"content": None}], None])).tolist() == [11, 0]
    assert row_weights(pa.array([1.0])) is None


def test_the_file_is_closed_and_unchanged(tmp_path):
    path = write(tmp_path / "x.parquet", {"completion": ["x"]})
    before, warnings = path.read_bytes(), Warnings()
    opened = set(os.listdir("/proc/self/fd"))
    list(stream_parquet(path, warn=warnings))
    assert set(os.listdir("/proc/self/fd")) <= opened
    assert path.read_bytes() == before
