"""TensorBoard event files: golden ones written by torch's SummaryWriter, and records put together here byte by byte."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.errors import UsageError
from equipoise.rollouts.run import Warnings
from equipoise.rollouts.tfevents import MAX_RECORD, Scalar, looks_like_events, read_scalars

GOLDEN = Path(__file__).parent / "golden" / "tensorboard"


def crc32c(data: bytes) -> int:
    """Bit by bit, as polynomial division: slow, and written apart from the table under test."""
    remainder = 0xFFFFFFFF
    for byte in data:
        for bit in range(8):
            odd = (remainder ^ (byte >> bit)) & 1
            remainder = (remainder >> 1) ^ (0x82F63B78 if odd else 0)
    return remainder ^ 0xFFFFFFFF


def masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc // 2**15 + crc * 2**17) + 0xA282EAD8) % 2**32)


def record(body: bytes) -> bytes:
    length = struct.pack("<Q", len(body))
    return length + masked(length) + body + masked(body)


def varint(number: int) -> bytes:
    number %= 2**64
    data = b""
    while number >= 128:
        data += bytes([number % 128 + 128])
        number //= 128
    return data + bytes([number])


def part(field: int, body: bytes) -> bytes:
    return varint(field * 8 + 2) + varint(len(body)) + body


def event(step: int, *values: bytes, at: float = 5.0) -> bytes:
    return b"\x09" + struct.pack("<d", at) + b"\x10" + varint(step) + part(5, b"".join(part(1, v) for v in values))


def simple(tag: str, number: float) -> bytes:
    return part(1, tag.encode()) + b"\x15" + struct.pack("<f", number)


def tensor(tag: str, body: bytes, plugin: str | None = "scalars") -> bytes:
    metadata = b"" if plugin is None else part(9, part(1, part(1, plugin.encode())))
    return part(1, tag.encode()) + part(8, body) + metadata


def read(path: Path, *records: bytes) -> tuple[list[Scalar], Warnings]:
    path.write_bytes(b"".join(records))
    warnings = Warnings()
    return list(read_scalars(path, warn=warnings)), warnings


def test_the_checksum_used_here_is_crc_32c():
    assert crc32c(b"123456789") == 0xE3069283  # the check value of the CRC catalogue


def test_a_file_of_torch_s_summary_writer():
    warnings = Warnings()
    scalars = list(read_scalars(GOLDEN / "verl" / "events.out.tfevents.1767225600.host.1.0", warn=warnings))
    entropy = {s.step: s.value for s in scalars if s.tag == "actor/entropy"}
    assert entropy == pytest.approx({s: 1.2 * math.exp(-0.3 * s) for s in range(1, 7)}, rel=1e-6)
    assert [s.step for s in scalars if s.tag == "actor/pg_clipfrac"] == [1, 2, 3, 5, 6]  # nan at step 4
    assert {s.tag for s in scalars} == {
        *("actor/entropy", "critic/score/mean", "response_length/mean", "response_length/clip_ratio"),
        *("actor/pg_clipfrac", "val-core/math_dapo/acc/mean@4"),  # neither the histogram nor the text
    }
    assert scalars[0].wall_time == 1_767_225_601
    assert warnings.lines() == []


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"\x08\x01" + b"\x2d" + struct.pack("<f", 1.5), 1.5),  # float_val, one element
        (b"\x08\x01" + part(5, struct.pack("<f", 1.5)), 1.5),  # float_val, packed
        (b"\x08\x02" + b"\x31" + struct.pack("<d", 0.1), 0.1),  # double_val
        (b"\x08\x01" + part(4, struct.pack("<f", 2.5)), 2.5),  # tensor_content, float
        (b"\x08\x02" + part(4, struct.pack("<d", 0.1)), 0.1),  # tensor_content, double
        (b"\x08\x09" + part(4, struct.pack("<q", -7)), -7.0),  # tensor_content, int64
        (b"\x08\x03" + b"\x38" + varint(-3), -3.0),  # int_val
        (b"\x08\x09" + part(10, varint(12)), 12.0),  # int64_val, packed
    ],
)
def test_scalars_stored_as_tensors(tmp_path, body, expected):
    scalars, warnings = read(tmp_path / "e", record(event(3, tensor("a", body))))
    assert scalars == [Scalar("a", 3, expected, 5.0)]
    assert warnings.lines() == []


def test_what_is_not_one_number_is_passed_over(tmp_path):
    two = b"\x08\x01" + part(5, struct.pack("<ff", 1.0, 2.0))
    text = b"\x08\x07" + part(8, b"hello")
    one = b"\x08\x01" + part(5, struct.pack("<f", 1.0))
    values = [tensor("two", two), tensor("text", text, "text"), tensor("pr", one, "pr_curves"), simple("nan", math.nan)]
    scalars, warnings = read(
        tmp_path / "e", record(event(1, *values, simple("inf", math.inf), tensor("ok", one, None)))
    )
    assert [s.tag for s in scalars] == ["ok"]
    assert warnings.lines() == []


def test_steps_and_tags(tmp_path):
    records = [record(event(2**40, simple("naïve/ключ", 1.0))), record(event(-1, simple("b", -2.0), simple("c", 3.0)))]
    scalars, _ = read(tmp_path / "e", *records)
    assert [(s.tag, s.step, s.value) for s in scalars] == [("naïve/ключ", 2**40, 1.0), ("b", -1, -2.0), ("c", -1, 3.0)]


def test_a_torn_end_keeps_what_came_before(tmp_path):
    first, last = record(event(1, simple("a", 1.0))), record(event(2, simple("a", 2.0)))
    for cut in range(1, len(last)):
        scalars, warnings = read(tmp_path / "e", first, last[:cut])
        assert [s.step for s in scalars] == [1]
        assert list(warnings.entries) == ["truncated"]


def test_a_damaged_record_is_skipped_and_a_damaged_length_ends_the_file(tmp_path):
    records = [record(event(step, simple("a", float(step)))) for step in (1, 2, 3)]
    body = bytearray(records[1])
    body[20] ^= 0xFF
    scalars, warnings = read(tmp_path / "e", records[0], bytes(body), records[2])
    assert [s.step for s in scalars] == [1, 3]
    assert list(warnings.entries) == ["corrupt"]

    length = bytearray(records[1])
    length[0] ^= 0x01
    scalars, warnings = read(tmp_path / "e", records[0], bytes(length), records[2])
    assert [s.step for s in scalars] == [1]
    assert list(warnings.entries) == ["corrupt"]


def test_long_records_are_not_looked_into(tmp_path):
    graph = part(4, b"g" * MAX_RECORD)
    header = struct.pack("<Q", len(graph))
    long = header + masked(header) + graph + b"\0\0\0\0"  # a wrong checksum: it is not even computed
    scalars, warnings = read(tmp_path / "e", long, record(event(2, simple("a", 2.0))))
    assert [s.step for s in scalars] == [2]
    assert warnings.lines() == []
    scalars, warnings = read(tmp_path / "e", record(event(2, simple("a", 2.0))), long[:-9])
    assert [s.step for s in scalars] == [2]
    assert list(warnings.entries) == ["truncated"]


def test_files_of_another_kind(tmp_path):
    for content in (b"step,entropy\n1,0.5\n", b"\x00" * 40, b"PAR1"):
        with pytest.raises(UsageError, match="not a TensorBoard event file"):
            read(tmp_path / "e", content)
        assert not looks_like_events(content)
    assert read(tmp_path / "e", b"")[0] == []
    with pytest.raises(UsageError, match="cannot read"):
        list(read_scalars(tmp_path / "missing", warn=Warnings()))


@given(st.binary(max_size=60), st.integers(0, 5))
def test_whatever_a_record_holds_nothing_but_a_warning_comes_of_it(tmp_path_factory, junk, wrap):
    path = tmp_path_factory.mktemp("fuzz") / "e"
    value, metadata = part(5, part(1, part(8, junk))), part(5, part(1, part(9, junk)))
    bodies = [junk, part(5, junk), part(5, part(1, junk)), value, metadata, b"\x10" + junk]
    scalars, warnings = read(path, record(event(1, simple("a", 1.0))), record(bodies[wrap]))
    assert scalars[0].tag == "a"
    assert set(warnings.entries) <= {"corrupt"}
    assert all(math.isfinite(s.value) for s in scalars)
