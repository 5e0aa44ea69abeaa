"""Plain files. What each of the hand-written files in data/plain holds is written out here by hand."""

from __future__ import annotations

import csv
import gzip
import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from equipoise.errors import UsageError
from equipoise.rollouts.columns import BY_NAME
from equipoise.rollouts.readers import plain
from equipoise.rollouts.readers.aliases import ALIASES, match_names
from equipoise.rollouts.readers.table import read_run

DATA = Path(__file__).parent / "data" / "plain"


def rows_of(run, *columns):
    return [row for batch in run.rollouts(columns or None) for row in batch.rows()]


def column(path, name, **options):
    return [row.get(name) for row in rows_of(read_run(path, **options), name)]


def kinds(run):
    rows_of(run)
    return set(run.warnings.entries)


@pytest.fixture(autouse=True)
def _sources_stay_as_they_are():
    before = {path: path.read_bytes() for path in DATA.iterdir()}
    yield
    assert {path: path.read_bytes() for path in DATA.iterdir()} == before


def test_the_record_s_own_names():
    run = read_run(DATA / "record.jsonl")
    first, second, third = rows_of(run)
    assert first == {
        "prompt_id": "sum-1", "group_id": "sum-1", "step": 1, "sample_index": 0, "prompt": "1+1?", "completion": "It is 2.",
        "answer": "2", "reference_answer": "2", "correct": True, "reward": 1.0, "temperature": 0.7, "finish_reason": "stop",
        "token_ids": [5, 6, 7], "logprobs_rollout": [-0.5, -0.25, 0.0], "entropies": [0.5, 0.25, 0.0],
        "extra": '{"note": "kept as extra"}',
    }  # fmt: skip
    assert (second["correct"], second["reward"], second["finish_reason"], second["extra"]) == (
        False,
        0.0,
        "length",
        None,
    )
    assert [third[name] for name in ("completion", "answer", "correct", "reward", "token_ids")] == [
        "",
        None,
        None,
        None,
        [],
    ]
    assert run.info.source == "plain"
    assert kinds(run) <= {"mixed-schema"}


def test_other_names_in_a_csv_file():
    run = read_run(DATA / "aliases.csv")
    rows = rows_of(run)
    assert [
        [
            row[name]
            for name in (
                "prompt",
                "completion",
                "answer",
                "reference_answer",
                "correct",
                "reward",
                "n_tokens",
                "finish_reason",
            )
        ]
        for row in rows
    ] == [
        ["What is 1+1,\nplease?", "It is 2.", "2", "2", True, 1.0, 4, "stop"],
        ["What is 1+1,\nplease?", 'Well, "three".', "3", "2", False, 0.0, 9, "length"],
        ["2+2?", "no idea", None, "4", False, None, None, "stop"],
    ]
    assert rows[0]["prompt_id"] == rows[1]["prompt_id"] != rows[2]["prompt_id"]
    assert [row["sample_index"] for row in rows] == [0, 1, 0]
    assert json.loads(rows[0]["extra"]) == {"level": "easy"}
    said = run.warnings.entries["columns"][0]
    for used in (
        "Question as prompt",
        "Response as completion",
        "pred as answer",
        "score as reward",
        "truncated as finish_reason",
    ):
        assert used in said


def test_one_row_a_prompt_with_all_its_samples():
    run = read_run(DATA / "samples.json")
    assert [
        [
            row[name]
            for name in (
                "prompt_id",
                "sample_index",
                "completion",
                "answer",
                "reward",
                "reference_answer",
                "logprobs_rollout",
            )
        ]
        for row in rows_of(run)
    ] == [
        ["0", 0, "two", "2", 1.0, "2", [-0.5]],
        ["0", 1, "three", "3", 0.0, "2", [-1.0, -2.0]],
        ["0", 2, "2", "2", 1.0, "2", [-0.25]],
        ["1", 0, "four", None, None, "4", [-0.125]],
    ]
    assert "unequal-lists" in run.warnings.entries  # two scores for one response


def test_conversations():
    run = read_run(DATA / "chat.jsonl")
    rows = rows_of(run)
    assert [row["completion"] for row in rows] == ["2", "3", "4\nfour", "6"]
    assert [row["messages"] for row in rows] == [[{"role": "user", "content": f"{n}+{n}?"}] for n in (1, 1, 2, 3)]
    assert [row["sample_index"] for row in rows] == [0, 1, 0, 0]


def test_problems_that_are_numbered_anew_in_every_task():
    run = read_run(DATA / "tasks.jsonl")
    assert [
        [row[name] for name in ("run_id", "env", "prompt_id", "sample_index", "reward")] for row in rows_of(run)
    ] == [
        ["base", "sums", "sums/0", 0, 1.0],
        ["base", "sums", "sums/0", 1, 0.0],
        ["base", "products", "products/0", 0, 1.0],
        ["tuned", "products", "products/0", 0, 1.0],
    ]
    assert "prompt-id" in run.warnings.entries


def test_an_id_that_is_called_prompt_id_or_was_named_is_believed_and_a_clash_is_said(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps({"prompt_id": "0", "task": task, "reward": 1}) + "\n" for task in ("a", "b")))
    run = read_run(path)
    assert [row["prompt_id"] for row in rows_of(run)] == ["0", "0"]
    assert "prompt-id-reused" in run.warnings.entries
    named = read_run(DATA / "tasks.jsonl", columns={"prompt_id": "problem"})
    assert [row["prompt_id"] for row in rows_of(named)] == ["0"] * 4
    assert "prompt-id-reused" in named.warnings.entries


def test_a_messy_file_keeps_what_can_be_used_and_names_the_rest():
    run = read_run(DATA / "messy.jsonl")
    assert [
        [row.get(name) for name in ("prompt_id", "completion", "reward", "correct", "entropies", "token_ids")]
        for row in rows_of(run)
    ] == [
        ["1", "2", None, None, [0.5, None, None], None],
        ["1", "3", 1.5, True, None, None],  # two tokens and one entropy: neither can be trusted
        ["2", '{"text": "4"}', None, None, None, None],
    ]
    assert kinds(run) == {
        "columns", "mixed-schema", "bad-reward", "bad-correct", "bad-entropies", "unequal-tokens", "bad-line",
        "bad-finish_reason", "truncated",
    }  # fmt: skip
    assert all("\n" not in line for line in run.warnings.lines())


WRONG = [
    None,
    "",
    "x",
    "[",
    -1,
    2**70,
    0.5,
    float("nan"),
    True,
    [],
    {},
    [None],
    ["x", 1],
    [[]],
    {"a": {"b": [1]}},
    [{"from": []}],
]


@pytest.mark.parametrize("name", ["record.jsonl", "samples.json", "chat.jsonl", "tasks.jsonl"])
def test_any_value_may_be_of_any_other_type(tmp_path, name):
    text = (DATA / name).read_text()
    source = json.loads(text) if name.endswith(".json") else [json.loads(line) for line in text.splitlines()]
    path, refused = tmp_path / "x.jsonl", []
    for at, row in enumerate(source):
        for key in row:
            for value in WRONG:
                changed = [*source[:at], row | {key: value}, *source[at + 1 :]]
                path.write_text("".join(json.dumps(line) + "\n" for line in changed))
                try:
                    run = read_run(path)
                    assert len(rows_of(run)) >= len(source) - ("no-samples" in run.warnings.entries)
                except UsageError as problem:
                    refused.append(str(problem))
    assert not refused


def test_any_column_of_a_parquet_file_may_be_of_any_other_type(tmp_path):
    path, refused = tmp_path / "x.parquet", []
    text = [json.loads(line) for line in (DATA / "record.jsonl").read_text().splitlines()]
    for key in [*text[0], "messages", "rewards", "truncated", "task"]:
        for value in WRONG:
            if value == 2**70:
                continue
            rows = [row | {key: None if i == 1 else value} for i, row in enumerate(text)]
            try:
                pq.write_table(pa.Table.from_pylist(rows), path)
            except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
                continue  # no such column can be written
            try:
                run = read_run(path)
                assert len(rows_of(run)) == 3 or "no-samples" in run.warnings.entries
            except UsageError as problem:
                refused.append((key, value, str(problem)))
    assert not refused


@pytest.mark.parametrize("name", ["record.jsonl", "samples.json", "tasks.jsonl"])
def test_parquet_and_gzip_read_as_the_json_they_were_made_of(tmp_path, name):
    text = (DATA / name).read_text()
    source = json.loads(text) if name.endswith(".json") else [json.loads(line) for line in text.splitlines()]
    pd.DataFrame(source).to_parquet(tmp_path / "x.parquet")
    with gzip.open(tmp_path / "x.jsonl.gz", "wt") as handle:
        handle.writelines(json.dumps(row) + "\n" for row in source)
    (tmp_path / "x.json").write_text(json.dumps({"config": 1, "results": source}))

    def told(path):
        return [{k: v for k, v in row.items() if v is not None and k != "extra"} for row in rows_of(read_run(path))]

    expected = told(DATA / name)
    assert told(tmp_path / "x.parquet") == expected
    assert told(tmp_path / "x.jsonl.gz") == expected
    assert told(tmp_path / "x.json") == expected


def test_parquet_token_lists_keep_the_floats_they_have(tmp_path):
    table = pa.table(
        {
            "id": pa.array([0, 0, 1], pa.int16()),
            "tokens": pa.array([[1, 2], None, [3]], pa.large_list(pa.int64())),
            "entropy": pa.array([[0.1, 0.2], None, [0.3]], pa.list_(pa.float32())),
            "logprobs": pa.array([[-0.1, -0.2], None, [-0.3]], pa.list_(pa.float64())),
            "mask": pa.array([[1, 0], None, [1]], pa.list_(pa.int8())),
            "score": pa.array([1, None, 0], pa.int64()),
            "temperature": pa.array([0.5, float("nan"), 1.0]),
        }
    )
    pq.write_table(table, tmp_path / "x.parquet")
    run = read_run(tmp_path / "x.parquet")
    (batch,) = run.rollouts()
    assert batch.ragged("entropies").values.dtype == np.float32
    assert batch.ragged("logprobs_rollout").values.tolist() == [-0.1, -0.2, -0.3]
    assert batch.ragged("token_ids").values.dtype == np.int32
    assert [row["loss_mask"] for row in batch.rows()] == [[True, False], None, [True]]
    assert [row["temperature"] for row in batch.rows()] == [0.5, None, 1.0]
    assert [(row["prompt_id"], row["sample_index"]) for row in batch.rows()] == [("0", 0), ("0", 1), ("1", 0)]
    assert set(run.warnings.entries) == {"columns", "bad-temperature"}


def test_parquet_columns_are_coerced_as_rows_are(tmp_path):
    rows = [
        {"prompt_id": 1.0, "correct": "true", "reward": "0.5", "n_tokens": 3.0, "finish_reason": "eos", "token_ids": [1, 2], "entropies": [0.5]},
        {"prompt_id": None, "correct": "x", "reward": "y", "n_tokens": 3.5, "finish_reason": "zzz", "token_ids": [1], "entropies": [0.5]},
        {"prompt_id": 2.0, "correct": None, "reward": None, "n_tokens": None, "finish_reason": None, "token_ids": None, "entropies": None},
    ]  # fmt: skip
    for row, prompt in zip(rows, "abc", strict=True):
        row |= {"prompt": prompt, "rewards": {"f": 0.5}, "messages": [{"role": "user", "content": prompt, "name": "x"}]}
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    by_rows, by_columns = read_run(tmp_path / "x.jsonl"), read_run(tmp_path / "x.parquet")
    assert rows_of(by_columns) == rows_of(by_rows)
    assert kinds(by_columns) == kinds(by_rows) == {
        "bad-correct", "bad-reward", "bad-n_tokens", "bad-finish_reason", "unequal-tokens",
    }  # fmt: skip


@pytest.mark.parametrize("columns", [["correct"], ["entropies"], ["prompt_id", "sample_index"], ["extra"], []])
def test_only_what_is_asked_is_read_and_the_rows_stay_the_same(tmp_path, columns):
    pd.DataFrame([json.loads(line) for line in (DATA / "record.jsonl").read_text().splitlines()]).to_parquet(
        tmp_path / "x.parquet"
    )
    for path in (DATA / "record.jsonl", tmp_path / "x.parquet"):
        whole = rows_of(read_run(path))
        part = [row for batch in read_run(path).rollouts(columns) for row in batch.rows()]
        assert part == [{name: row[name] for name in columns} for row in whole]


def test_a_column_map_says_what_cannot_be_guessed(tmp_path):
    rows = [
        {"puzzle": "4 5 6 10", "puzzle_nr": 900, "way": "cot", "ok": 1},
        {"puzzle": "4 5 6 10", "puzzle_nr": 900, "way": "direct", "ok": 0},
    ]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pd.DataFrame(rows).to_parquet(tmp_path / "x.parquet")
    named = {"prompt_id": "puzzle_nr", "strategy": "way", "correct": "ok"}
    for name in ("x.jsonl", "x.parquet"):
        found = rows_of(read_run(tmp_path / name, columns=named), "prompt_id", "strategy", "correct", "prompt")
        assert [tuple(row[c] for c in ("prompt_id", "strategy", "correct", "prompt")) for row in found] == [
            ("900", "cot", True, "4 5 6 10"),
            ("900", "direct", False, "4 5 6 10"),
        ]
        with pytest.raises(
            UsageError, match="no column 'puzzle_idx' to read as prompt_id; its columns are puzzle, puzzle_nr, way, ok"
        ):
            read_run(tmp_path / name, columns={"prompt_id": "puzzle_idx"})
        with pytest.raises(UsageError, match="did you mean 'prompt_id'"):
            read_run(tmp_path / name, columns={"promptid": "puzzle_nr"})


def test_an_id_that_counts_rows_is_not_taken_for_the_problem(tmp_path):
    rows = [{"id": i, "question": f"q{i // 2}", "response": "x", "score": 1} for i in range(6)]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pd.DataFrame(rows).to_parquet(tmp_path / "x.parquet")
    for name in ("x.jsonl", "x.parquet"):
        assert len(set(column(tmp_path / name, "prompt_id"))) == 3
        assert column(tmp_path / name, "sample_index") == [0, 1] * 3


def test_what_a_column_holds_decides_where_its_name_does_not():
    names = match_names(
        {"problem": [3], "tokens": [[1, 2]], "entropy": [0.5], "task": ["sums"], "text": ["x"]}, {}
    ).source
    assert names == {"prompt_id": "problem", "token_ids": "tokens", "env": "task", "completion": "text"}
    names = match_names({"problem": ["1+1?"], "tokens": [17], "entropy": [[0.5]], "task": [3]}, {}).source
    assert names == {"prompt": "problem", "n_tokens": "tokens", "entropies": "entropy", "prompt_id": "task"}


def test_the_record_s_name_wins_and_what_was_passed_over_is_said():
    names = match_names({"answer": ["4"], "pred": ["5"], "question": ["q"], "prompt": ["p"], "score": [1]}, {})
    assert names.source == {"answer": "answer", "prompt": "prompt", "reward": "score"}
    assert "pred (answer is answer)" in names.note()
    assert "question (prompt is prompt)" in names.note()


def test_a_list_of_problems_is_read_with_a_warning(tmp_path):
    path = tmp_path / "problems.jsonl"
    path.write_text('{"question": "1+1?", "answer": "2"}\n')
    assert "answer-only" in kinds(read_run(path))


def test_every_alias_is_of_a_column_of_the_record():
    assert set(ALIASES) <= set(BY_NAME)
    assert not {alias for names in ALIASES.values() for alias in names.split()} & set(BY_NAME)


def write(path, text, encoding="utf-8"):
    path.write_bytes(text.encode(encoding))
    return path


CSV = "prompt,completion,reward\nq,é,1\nq,b,0.5\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("comma", [",", ";", "\t"])
def test_csv_of_any_common_encoding_newline_and_delimiter(tmp_path, encoding, newline, comma):
    text = CSV.replace("\n", newline).replace(",", comma)
    path = write(tmp_path / "x.csv", text, encoding)
    assert column(path, "completion") == ["é", "b"]
    assert column(path, "reward") == [1.0, 0.5]
    packed = tmp_path / "x.csv.gz"
    packed.write_bytes(gzip.compress(text.encode(encoding)))
    assert column(packed, "completion") == ["é", "b"]


def test_csv_that_is_cut_or_broken_is_read_as_far_as_it_goes(tmp_path):
    cut = read_run(write(tmp_path / "a.csv", CSV + "q,c"))
    assert [row["reward"] for row in rows_of(cut)] == [1.0, 0.5]
    assert kinds(cut) == {"truncated"}
    odd = read_run(write(tmp_path / "b.csv", CSV + "q,c\nq,d,1,2\nq,e,2\n"))
    assert [row["reward"] for row in rows_of(odd)] == [1.0, 0.5, 2.0]
    assert odd.warnings.entries["bad-line"][1] == 2
    latin = read_run(write(tmp_path / "c.csv", CSV, "latin-1"))
    assert [row["completion"] for row in rows_of(latin)] == ["\ufffd", "b"]
    assert kinds(latin) == {"encoding"}
    noise = "".join(f"q,{np.random.default_rng(n).random()},{n}\n" for n in range(2000))
    data = gzip.compress(("prompt,completion,reward\n" + noise).encode())
    (tmp_path / "d.csv.gz").write_bytes(data[: len(data) // 2])
    short = read_run(tmp_path / "d.csv.gz")
    assert [row["reward"] for row in rows_of(short)] == list(range(len(rows_of(short))))
    assert kinds(short) == {"truncated"}


@pytest.mark.parametrize(
    ("name", "encoding"),
    [("x.csv", "utf-8"), ("x.csv", "utf-16"), ("x.jsonl", "utf-8"), ("x.jsonl", "utf-16"), ("x.json", "utf-8")],
)
def test_a_replacement_character_that_the_file_holds_is_text(tmp_path, name, encoding):
    rows = [{"prompt": "q", "completion": "a\ufffdb", "reward": 1.0}] * 2
    text = {
        "x.csv": "prompt,completion,reward\n" + "q,a\ufffdb,1\n" * 2,
        "x.jsonl": "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows),
        "x.json": json.dumps(rows, ensure_ascii=False),
    }[name]
    run = read_run(write(tmp_path / name, text, encoding))
    assert [row["completion"] for row in rows_of(run)] == ["a\ufffdb"] * 2
    assert not kinds(run)


def test_bytes_that_are_no_text_are_replaced_alike_in_every_format(tmp_path):
    row = b'{"prompt": "q", "completion": "a%sb", "reward": 1.0}'
    bad, good = row % b"\xe9", row % "é".encode()
    files = {
        "x.csv": b"prompt,completion,reward\nq,a\xe9b,1\nq,a\xc3\xa9b,1\n",
        "x.jsonl": bad + b"\n" + good + b"\n",
        "x.json": b"[" + bad + b", " + good + b"]",
        "one.json": b'{"rows": [' + bad + b", " + good + b"]}",
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
        run = read_run(tmp_path / name)
        assert [found["completion"] for found in rows_of(run)] == ["a\ufffdb", "aéb"], name
        assert {kind: count for kind, (_, count) in run.warnings.entries.items()} == {"encoding": 1}, name
    halved = '{"prompt": "q", "completion": "a?b", "reward": 1.0}\n'.encode("utf-16").replace(b"?\0", b"\0\xd8")
    (tmp_path / "wide.jsonl").write_bytes(halved)
    wide = read_run(tmp_path / "wide.jsonl")
    assert [found["completion"] for found in rows_of(wide)] == ["a\ufffdb"]
    assert kinds(wide) == {"encoding"}


def test_a_last_line_cut_inside_a_character_is_cut_off(tmp_path):
    line = '{"prompt": "q", "completion": "é", "reward": 1.0}\n'.encode()
    (tmp_path / "x.jsonl").write_bytes(line + line[: line.index(b"\xa9")])
    run = read_run(tmp_path / "x.jsonl")
    assert [found["completion"] for found in rows_of(run)] == ["é"]
    assert kinds(run) == {"truncated"}


@pytest.mark.parametrize("name", ["x.jsonl", "x.csv", "x.txt", "x"])
def test_parquet_is_read_whatever_its_name(tmp_path, name):
    pd.DataFrame({"prompt": ["q", "q"], "completion": ["a", "b"], "reward": [1.0, 0.5]}).to_parquet(tmp_path / name)
    assert column(tmp_path / name, "completion") == ["a", "b"]


@pytest.mark.parametrize("comma", [",", ";", "\t"])
@pytest.mark.parametrize("name", ["x.txt", "x", "x.jsonl", "x.jsonl.gz"])
def test_csv_of_another_name_is_refused_with_the_name_to_give_it(tmp_path, name, comma):
    # A field of several lines, and a character across the border of what is looked at.
    data = CSV.replace(",", comma).replace("é", '"é\né"').encode() + f"q{comma}{'é' * 40_000}{comma}1\n".encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    with pytest.raises(UsageError, match=r"looks like CSV.*name it x\.csv(\.gz)?$|name it x\.csv;") as refused:
        read_run(tmp_path / name)
    renamed = tmp_path / ("x.csv.gz" if name.endswith(".gz") else "x.csv")
    assert renamed.name in str(refused.value)
    (tmp_path / name).rename(renamed)
    assert column(renamed, "completion") == ["é\né", "b", "é" * 40_000]


@pytest.mark.parametrize("text", ["Dear all, hello\nthis has none\n", "one line, of text", "a\nb\n", "\x00\x01,\n"])
def test_other_text_is_not_called_csv(tmp_path, text):
    with pytest.raises(UsageError) as refused:
        read_run(write(tmp_path / "x.txt", text))
    assert "CSV: name" not in str(refused.value)


def test_columns_that_say_nothing_are_refused_with_the_flag_that_names_them(tmp_path):
    with pytest.raises(UsageError, match=r"its columns are a, b; .*--column prompt_id=NAME"):
        read_run(write(tmp_path / "x.csv", "a,b\n1,2\n"))


def test_csv_fields_may_be_long_and_have_a_limit(tmp_path):
    path = tmp_path / "x.csv"
    with open(path, "w", newline="") as handle:
        csv.writer(handle).writerows([["prompt", "completion"], ["q", "x" * 1_000_000]])
    assert [len(text) for text in column(path, "completion")] == [1_000_000]
    with open(path, "ab") as handle:
        handle.write(b'q,"')
        handle.write(b"x" * (65 * 2**20))
        handle.write(b'"\n')
    with pytest.raises(UsageError, match="longer than 64 MB"):
        rows_of(read_run(path))
    with pytest.raises(UsageError, match="more than one column named reward"):
        rows_of(read_run(write(tmp_path / "y.csv", "prompt,reward,reward\nq,1,2\n")))


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("x.jsonl", "", "is empty"),
        ("x.jsonl", "\n\n", "holds no row that can be read"),
        ("x.jsonl", "not json\n", "holds no row that can be read"),
        ("x.jsonl", "[" * 100_000, "nested deeper than 64"),
        ("x.json", "[]", "holds no row that can be read"),
        ("x.json", "{", "holds no row that can be read (truncated"),
        ("x.json", '{"a": {"b": 1}}', "its columns are a;"),
        ("x.json", "[1, 2]", "holds no row that can be read"),
        ("x.csv", "prompt,reward\n", "holds no row that can be read"),
        ("x.jsonl", '{"colour": 1, "size": 2}\n', "its columns are colour, size; a file of rollouts needs at least"),
        ("x.jsonl", '{"prompt": "q", "gold": "4"}\n', "needs at least one of completion, answer"),
        ("x.jsonl", '{"temperature": 1, "reward": 2}\n', "one of prompt, prompt_id or group_id"),
        ("x.txt", "some words", "of no format that is read here: it begins with b'some words'"),
        ("x.parquet", "PAR1", "cannot read"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_is_one_clear_line(tmp_path, name, text, said):
    path = write(tmp_path / name, text)
    with pytest.raises(UsageError) as caught:
        rows_of(read_run(path))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert path.read_text() == text


def test_a_path_that_cannot_be_used_is_one_clear_line(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "notes.md").write_text("# notes")
    for path, said in {
        tmp_path / "missing" / "x.jsonl": f"does not exist; {tmp_path} holds docs/, empty/",
        tmp_path / "empty": "is an empty folder",
        tmp_path / "docs": "it holds notes.md",
        Path("/dev/null"): "neither a file nor a folder",
        Path("bad\0name"): "does not exist",
    }.items():
        with pytest.raises(UsageError) as caught:
            read_run(path)
        assert said in str(caught.value)
    with pytest.raises(UsageError, match="unknown reader 'plane': did you mean 'plain'"):
        read_run(DATA / "record.jsonl", reader="plane")
    assert len(rows_of(read_run(str(DATA / "record.jsonl"), reader="plain"))) == 3


def test_a_huge_line_is_one_clear_line(tmp_path):
    path = tmp_path / "x.jsonl"
    with open(path, "wb") as handle:
        handle.write(b'{"prompt": "q", "completion": "x", "reward": 1}\n{"prompt": "')
        handle.seek(65 * 2**20)
        handle.write(b'"}\n')
    with pytest.raises(UsageError, match="line 2 is longer than 64 MB"):
        rows_of(read_run(path))


def test_a_folder_of_files_is_one_run_in_the_order_a_person_counts(tmp_path):
    for n in (10, 2, 1):
        (tmp_path / f"shard{n}.jsonl").write_text(json.dumps({"prompt": "q", "reward": n}) + "\n")
    pd.DataFrame([{"question": "q", "score": 3}]).to_parquet(tmp_path / "shard3.parquet")
    (tmp_path / "config.json").write_text('{"lr": 1}')
    (tmp_path / "notes.md").write_text("x")
    (tmp_path / ".hidden.jsonl").write_text('{"prompt": "q", "reward": 99}\n')
    run = read_run(tmp_path)
    assert [(row["reward"], row["sample_index"]) for row in rows_of(run)] == [(1, 0), (2, 1), (3, 2), (10, 3)]
    assert {"skipped-file", "ignored-files", "columns"} <= set(run.warnings.entries)
    assert "config.json" in run.warnings.entries["skipped-file"][0]


def test_a_step_may_be_in_the_name_of_the_file(tmp_path):
    (tmp_path / "eval_step_200.jsonl").write_text('{"prompt": "q", "reward": 1}\n')
    (tmp_path / "eval_step_1000.jsonl").write_text('{"prompt": "q", "reward": 1, "step": 7}\n')
    run = read_run(tmp_path)
    assert [row["step"] for row in rows_of(run)] == [200, 7]
    assert "step-from-name" in run.warnings.entries


def test_a_part_of_a_run_folder_is_a_plain_file_too(tmp_path):
    from equipoise.rollouts.run import RunInfo
    from equipoise.rollouts.writer import RunWriter

    RunWriter(tmp_path, RunInfo("test")).write([{"prompt": "q", "reward": 1.0, "entropies": [0.5]}], step=12)
    (part,) = (tmp_path / "rollouts").rglob("*.parquet")
    assert [(row["step"], row["entropies"]) for row in rows_of(read_run(part))] == [(12, [0.5])]


def test_a_second_reading_starts_anew_and_says_the_same(tmp_path):
    shutil.copy(DATA / "messy.jsonl", tmp_path / "x.jsonl")
    run = read_run(tmp_path / "x.jsonl")
    first, said = rows_of(run), run.warnings.lines()
    assert rows_of(run) == first
    assert run.warnings.lines() == said


def test_plain_claims_what_it_can_read_and_nothing_else(tmp_path):
    for name, data in {
        "a.parquet": b"",
        "b.jsonl.gz": b"",
        "c.dat": b'  {"a": 1}',
        "d.bin": b"PAR1..",
        "e.CSV": b"",
    }.items():
        (tmp_path / name).write_bytes(data)
        assert plain.claims(tmp_path / name), name
    for name, data in {"f.txt": b"hello", "g.pt": b"\x80\x02}", "h.gz": b"\x1f\x8b"}.items():
        (tmp_path / name).write_bytes(data)
        assert not plain.claims(tmp_path / name), name
