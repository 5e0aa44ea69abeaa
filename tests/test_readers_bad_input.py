"""Readers on damaged, mixed and hostile files: a named warning or one line of error, never a traceback, never a change.

Every value of every golden line is replaced by values of other types, one at a time.
"""

from __future__ import annotations

import copy
import gzip
import json
import shutil
import tracemalloc
import zipfile
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from equipoise.errors import UsageError
from equipoise.rollouts.readers import (
    areal,
    inspect_log,
    lm_eval,
    nemo_rl,
    open_instruct,
    prime_rl,
    skyrl,
    trace_branches,
    trl,
    verifiers,
    verl,
)

GOLDEN = Path(__file__).parent / "golden"
# reader, folder to copy, file in it to damage
LINES = [
    (areal, "areal", "rollout/2/11.jsonl"),
    (lm_eval, "lm_eval", "tiny-model/samples_sums_2026-01-02T03-04-05.678901.jsonl"),
    (nemo_rl, "nemo_rl", "train_data_step1.jsonl"),
    (open_instruct, "open_instruct", "grpo_sums_rollouts_000000.jsonl"),
    (prime_rl, "prime_rl", "rollouts/step_1/train/all/traces.jsonl"),
    (prime_rl, "prime_rl", "token_exports/step_1/rank_0.jsonl"),
    (skyrl, "skyrl", "dumped_evals/global_step_5_evals/openai_gsm8k.jsonl"),
    (verifiers, "verifiers", "traces.jsonl"),
    (verl, "verl/v1/validation", "0.jsonl"),
    (verl, "verl/legacy/rollout", "1.jsonl"),
]
WRONG = [
    None,
    "x",
    "",
    -1,
    0.5,
    True,
    [],
    {},
    [None],
    ["x", 1],
    {"a": []},
    float("nan"),
    float("inf"),
    2**70,
    [[[]]],
    [{"role": 1}],
]


@pytest.fixture
def folder(request, tmp_path):
    """A copy of a golden folder, and the file in it to damage."""
    reader, name, file = request.param
    shutil.copytree(GOLDEN / name, tmp_path / "copy")
    return reader, tmp_path / "copy", tmp_path / "copy" / file


def read(reader, path):
    """(rows, warnings), or the error's one line."""
    try:
        assert isinstance(reader.claims(path), bool)
        run = reader.open(path)
        rows = [row for batch in run.rollouts() for row in batch.rows()]
        list(run.metrics())
    except UsageError as problem:
        message = str(problem)
    else:
        return rows, run.warnings.entries
    assert message
    assert "\n" not in message
    return message, {}


@pytest.mark.parametrize("folder", LINES, indirect=True)
def test_a_torn_last_line_and_garbage_are_skipped_with_a_warning(folder):
    reader, path, file = folder
    whole, _ = read(reader, path)
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(
        b"".join([lines[0], b"\xff\xfe not json\n", b"[1, 2]\n", *lines[1:-1], lines[-1][: len(lines[-1]) // 2]])
    )
    rows, warnings = read(reader, path)
    assert {"bad-line", "truncated"} <= warnings.keys()
    assert len(whole) - 8 <= len(rows) <= len(whole)
    assert [rows[0][name] for name in ("group_id", "reward", "sample_index")] == [
        whole[0][name] for name in ("group_id", "reward", "sample_index")
    ]


@pytest.mark.parametrize("folder", LINES, indirect=True)
@pytest.mark.parametrize(
    "content",
    [b"", b"\n\n", b"{}\n", b"null\n", b"[" * 100_000, b"\x1f\x8bbroken", b"PK\x03\x04", b"PAR1", b"\x00" * 64],
)
def test_emptied_and_foreign_content(folder, content):
    reader, path, file = folder
    file.write_bytes(content)
    found, _ = read(reader, path)  # other files of the folder may still be read
    alone, warnings = read(reader, file)
    assert isinstance(alone, str) or not alone or warnings
    assert isinstance(found, str | list)


@pytest.mark.parametrize("folder", LINES, indirect=True)
def test_a_gzip_cut_short_gives_what_is_left(folder):
    reader, path, file = folder
    packed = gzip.compress(file.read_bytes())
    file.write_bytes(packed[: len(packed) * 3 // 4])
    rows, warnings = read(reader, path)
    assert isinstance(rows, str) or "truncated" in warnings or file.name == "rank_0.jsonl"


def places(value, path=()):
    """The paths of all values in a JSON document, the first entries of lists only."""
    items = value.items() if isinstance(value, dict) else list(enumerate(value))[:2] if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from places(item, (*path, key))


def with_value(document, path, value):
    changed = copy.deepcopy(document)
    at = changed
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return changed


@pytest.mark.parametrize("folder", LINES, indirect=True)
def test_a_value_of_any_other_type_is_survived(folder):
    reader, path, file = folder
    for other in list(path.rglob("step_2")):
        shutil.rmtree(other)  # one step is enough
    lines = file.read_text().splitlines()
    document = json.loads(lines[1])
    for number, place in enumerate(places(document)):
        # A few wrong values in turn: over all places each type meets each reader many times.
        for wrong in [
            WRONG[(number + offset) % len(WRONG)] for offset in ((0, 3, 7, 11) if len(place) == 1 else (0, 5))
        ]:
            file.write_text("\n".join([lines[0], json.dumps(with_value(document, place, wrong)), *lines[2:4]]) + "\n")
            rows, _ = read(reader, path)
            assert isinstance(rows, list), (place, wrong, rows)


def test_inspect_a_value_of_any_other_type_is_survived(tmp_path):
    log = json.loads((GOLDEN / "inspect/match.json").read_text())
    for sample in log["samples"]:
        sample["events"] = []
    path = tmp_path / "log.json"
    for number, place in enumerate(places(log)):
        if len(place) == 1 and place[0] in ("version", "status", "eval"):
            continue  # what the log is known by
        for wrong in (WRONG[number % len(WRONG)], WRONG[(number + 3) % len(WRONG)]):
            path.write_text(json.dumps(with_value(log, place, wrong)))
            rows, _ = read(inspect_log, path)
            assert isinstance(rows, list), (place, wrong, rows)


def test_inspect_truncated_empty_and_other_files(tmp_path):
    whole = (GOLDEN / "inspect/match.eval").read_bytes()
    path = tmp_path / "log.eval"
    for content in (b"", b"PK\x03\x04", whole[: len(whole) // 2], whole[:-1], b"\x00" * 100, b"{}"):
        path.write_bytes(content)
        message, _ = read(inspect_log, path)
        assert "is not a complete .eval archive" in message
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")
    assert "is not an inspect log" in read(inspect_log, path)[0]
    for text in ('{"version": 2, "status": "success", "eval": ', '{"version": 2, "status": "success", "eval": {}}'):
        (tmp_path / "log.json").write_text(text)
        found, _ = read(inspect_log, tmp_path / "log.json")
        assert isinstance(found, str) or found == []


def test_inspect_damaged_members_are_skipped(tmp_path):
    data = bytearray((GOLDEN / "inspect/match.eval").read_bytes())
    with zipfile.ZipFile(GOLDEN / "inspect/match.eval") as archive:
        victim = next(i for i in archive.infolist() if i.filename.startswith("samples/"))
    middle = victim.header_offset + 30 + len(victim.filename) + victim.compress_size // 2
    data[middle : middle + 8] = bytes(8)
    path = tmp_path / "log.eval"
    path.write_bytes(data)
    rows, warnings = read(inspect_log, path)
    assert len(rows) == 23
    assert victim.filename in warnings["bad-member"][0]


def write_log(path, members, **settings):
    header = {"version": 2, "status": "success", "eval": {"eval_id": "x", "task": "t"}}
    with zipfile.ZipFile(path, "w", **settings) as archive:
        archive.writestr("header.json", json.dumps(header))
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def test_inspect_zip_bombs_and_paths_out_of_the_archive(tmp_path):
    sample = json.dumps({"id": "a", "epoch": 1, "input": "q", "target": "t"})
    bomb = write_log(tmp_path / "bomb.eval", {"samples/a_epoch_1.json": " " * 2**26}, compression=zipfile.ZIP_DEFLATED)
    assert bomb.stat().st_size < 1_000_000
    message, _ = read(inspect_log, bomb)
    assert "looks like a zip bomb" in message
    # Beside enough ordinary bytes the archive as a whole is believable, the member is not.
    noise = {f"samples/{i}.json": bytes(range(256)) * 4 for i in range(300)}
    hidden = write_log(
        tmp_path / "hidden.eval",
        noise | {"samples/b.json": " " * 20_000_000, "samples/a.json": sample},
        compression=zipfile.ZIP_BZIP2,
    )
    rows, warnings = read(inspect_log, hidden)
    assert isinstance(rows, str) or {"refused-member", "bad-member"} & warnings.keys()
    out = write_log(
        tmp_path / "out.eval",
        {
            "../samples/a.json": sample,
            "/samples/a.json": sample,
            "samples/../../a.json": sample,
            "samples/a.json": sample,
        },
    )
    rows, warnings = read(inspect_log, out)
    assert len(rows) == 1
    assert warnings["refused-member"][1] >= 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bomb.eval", "hidden.eval", "out.eval"]


def test_inspect_sizes_that_lie_are_found_out(tmp_path):
    """The directory says 100 bytes, the stream holds fifty million: reading stops at what was promised."""
    path = write_log(tmp_path / "lie.eval", {"samples/a.json": " " * 50_000_000}, compression=zipfile.ZIP_DEFLATED)
    data = bytearray(path.read_bytes())
    at = data.rfind(b"PK\x01\x02")
    data[at + 24 : at + 28] = (100).to_bytes(4, "little")
    path.write_bytes(data)
    tracemalloc.start()
    rows, warnings = read(inspect_log, path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert rows == []
    assert "bad-member" in warnings
    assert peak < 10_000_000


def test_inspect_a_member_with_another_checksum_is_not_trusted(tmp_path):
    sample = json.dumps({"id": "a", "epoch": 1, "input": "q", "target": "t"})
    path = write_log(tmp_path / "log.eval", {"samples/a.json": sample, "samples/b.json": sample.replace("a", "b")})
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"id": "a"', b'"id": "c"'))
    rows, warnings = read(inspect_log, path)
    assert [r["prompt_id"] for r in rows] == ["b"]
    assert "checksum" in warnings["bad-member"][0]


def test_verifiers_graphs_that_loop_or_explode(tmp_path, monkeypatch):
    monkeypatch.setattr(trace_branches, "MAX_STEPS", 10_000)
    line = json.loads((GOLDEN / "verifiers/traces.jsonl").read_text().splitlines()[1])
    (trace,) = line["traces"]
    user, reply = (
        {"message": {"role": "user", "content": "q"}},
        {"message": {"role": "assistant", "content": "a"}, "sampled": True},
    )
    path = tmp_path / "traces.jsonl"

    def found(nodes):
        path.write_text(json.dumps(line | {"traces": [trace | {"nodes": nodes}]}) + "\n")
        return read(verifiers, path)

    rows, _ = found([user | {"parent": 1}, reply | {"parent": 0}, reply | {"parent": 99}, reply | {"parent": -1}])
    assert [r["completion"] for r in rows] == ["a", "a"]  # the loop has no leaf
    # A chain of 300 messages with 300 leaves at its end: ninety thousand messages along the branches.
    chain = [reply | {"parent": i - 1} for i in range(300)]
    rows, warnings = found(chain + [reply | {"parent": 299}] * 300)
    assert len(rows) == 10_000 // 301
    assert "too-many-branches" in warnings


# ---------------------------------------------------------------- TRL


@pytest.fixture
def trl_run(tmp_path):
    shutil.copytree(GOLDEN / "trl/plain", tmp_path / "run")
    return tmp_path / "run"


def test_trl_truncated_empty_and_other_files(trl_run):
    file = trl_run / "completions/completions_00002.parquet"
    whole = file.read_bytes()
    for content in (b"", b"PAR1", whole[: len(whole) // 2], whole[:-1], b"\x00" * 64, b'{"prompt": "q"}\n'):
        file.write_bytes(content)
        message, _ = read(trl, file)
        assert "completions_00002.parquet" in message
        rows, warnings = read(trl, trl_run)  # it may be being written: the others are read
        assert len(rows) == 32
        assert "completions_00002.parquet" in warnings["bad-file"][0]
    pd.DataFrame({"step": [1], "text": ["a"]}).to_parquet(file)
    assert "it is not a TRL completions file" in read(trl, file)[0]


@pytest.mark.parametrize(
    "log",
    [
        "",
        "{",
        "[]",
        '{"log_history": 3}',
        '{"log_history": [1, {"step": "x", "reward": []}, {"step": 1, "loss": null, "reward": "x"}]}',
    ],
)
def test_trl_a_broken_log_leaves_the_rollouts(trl_run, log):
    (trl_run / "trainer_state.json").write_text(log)
    rows, warnings = read(trl, trl_run)
    assert len(rows) == 48
    assert "guessed-rewards" in warnings
    assert all(row.get("reward") is None for row in rows)


def test_trl_columns_of_other_types(trl_run):
    file = trl_run / "completions/completions_00002.parquet"
    frame = pd.read_parquet(file)
    for name, values in {
        "advantage": ["x"] * 16,
        "correct_reward": [[1.0]] * 16,
        "prompt": list(range(16)),
        "completion": [None] * 16,
        "step": [1.5] * 16,
    }.items():
        frame.assign(**{name: values}).to_parquet(file)
        rows, _ = read(trl, trl_run)
        assert len(rows) == 48, rows
    frame.drop(columns=["advantage", "step"]).to_parquet(file)
    rows, _ = read(trl, trl_run)
    assert [r["step"] for r in rows[16:32]] == [2] * 16  # from the file's name
    frame.iloc[:0].to_parquet(file)
    rows, _ = read(trl, trl_run)
    assert len(rows) == 32


def test_trl_files_with_other_reward_columns_have_no_total(trl_run):
    file = trl_run / "completions/completions_00002.parquet"
    pd.read_parquet(file).drop(columns=["brevity_reward"]).to_parquet(file)
    rows, warnings = read(trl, trl_run)
    assert len(rows) == 48
    assert "mixed-schema" in warnings
    assert all(row.get("reward") is None for row in rows)


def test_trl_a_small_file_that_would_expand_is_refused(trl_run):
    file = trl_run / "completions/completions_00002.parquet"
    huge = pa.ListArray.from_arrays([0, 2**24 + 1], pa.repeat("x", 2**24 + 1))
    table = pa.table({"step": [2], "prompt": ["q"], "completion": huge, "advantage": [0.0]})
    pq.write_table(table, file)
    assert file.stat().st_size < 1_000_000
    message, _ = read(trl, file)
    assert "the limit is" in message


# ---------------------------------------------------------------- all


@pytest.mark.parametrize(
    "reader", [areal, inspect_log, lm_eval, nemo_rl, open_instruct, prime_rl, skyrl, trl, verifiers, verl]
)
def test_nothing_there_is_one_line(reader, tmp_path):
    for path in (tmp_path, tmp_path / "missing", tmp_path / "missing.jsonl", Path("/dev/null")):
        assert reader.claims(path) is False
        with pytest.raises(UsageError) as caught:
            reader.open(path)
        assert "\n" not in str(caught.value)
    locked = tmp_path / "traces.jsonl"
    locked.mkdir()  # a folder with a file's name
    assert reader.claims(locked) is False


def test_sources_are_not_changed():
    names = [name for _, name, _ in LINES] + ["inspect", "trl"]
    before = {
        p: (p.stat().st_mtime_ns, p.read_bytes()) for name in names for p in (GOLDEN / name).rglob("*") if p.is_file()
    }
    for reader, name, _ in [*LINES, (inspect_log, "inspect", ""), (trl, "trl/plain", ""), (trl, "trl/chat", "")]:
        read(reader, GOLDEN / name)
    after = {
        p: (p.stat().st_mtime_ns, p.read_bytes()) for name in names for p in (GOLDEN / name).rglob("*") if p.is_file()
    }
    assert after == before
