"""vocab.json as it grows: the bytes of one dump of everything, by one writer or by several."""

from __future__ import annotations

import json
import random

import pytest

from equipoise.errors import UsageError
from equipoise.rollouts import vocab as writing
from equipoise.rollouts.folder import open_folder
from equipoise.rollouts.run import RunInfo
from equipoise.rollouts.vocab import VocabFile
from equipoise.rollouts.writer import RunWriter

STRANGE = {0: "", 1: '"\\', 2: "\n\t\x00", 3: "é🎲\u2028", 4: "</s>", 130: "far"}


def dumped(texts):
    return json.dumps({str(token): texts[token] for token in sorted(texts)}, indent=1, ensure_ascii=False) + "\n"


def test_the_file_is_one_dump_of_all_that_was_added_in_any_order(tmp_path):
    texts = STRANGE | {token: f"t{token}" for token in range(200, 2000, 7)}
    order, vocab = list(texts), VocabFile(tmp_path)
    random.Random(0).shuffle(order)
    for start in range(0, len(order), 50):
        some = order[: start + 50]
        vocab.add({token: texts[token] for token in some[start:]})
        assert vocab.path.read_text("utf-8") == dumped({token: texts[token] for token in some})
    assert open_folder(tmp_path).vocab() == texts


def test_nothing_new_writes_nothing_and_nothing_at_all_is_an_empty_file(tmp_path):
    vocab = VocabFile(tmp_path)
    vocab.add({})
    assert vocab.path.read_text() == "{}\n"
    vocab.add({5: "five"})
    before = vocab.path.stat()
    vocab.add({5: "five"})
    vocab.add({})
    assert (vocab.path.stat().st_ino, vocab.path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_two_writers_of_one_file_lose_nothing_that_either_has(tmp_path):
    ours, theirs = VocabFile(tmp_path), VocabFile(tmp_path)
    ours.add({1: "a"})
    theirs.add({2: "b"})
    ours.add({3: "c"})
    theirs.add({})
    assert open_folder(tmp_path).vocab() == {1: "a", 2: "b", 3: "c"}
    theirs.path.write_text('{"9": "z"}')  # by a third, who had not looked
    ours.add({1: "a"})
    assert open_folder(tmp_path).vocab() == {1: "a", 2: "b", 3: "c", 9: "z"}
    theirs.path.unlink()
    theirs.add({2: "b"})
    assert open_folder(tmp_path).vocab() == {1: "a", 2: "b", 3: "c"}


def test_another_text_for_a_token_is_refused_and_a_lone_surrogate_is_not_another(tmp_path):
    vocab = VocabFile(tmp_path)
    vocab.add({5: "a\ud800", 6: "b"})
    VocabFile(tmp_path).add({5: "a\ud800"})
    vocab.add({5: "a\ud800"})
    assert open_folder(tmp_path).vocab() == {5: "a?", 6: "b"}
    for holder in (vocab, VocabFile(tmp_path)):
        with pytest.raises(UsageError, match=r"token 6 is 'b' in .*vocab\.json and 'B' here: two tokenizers"):
            holder.add({7: "c", 6: "B"})
    assert open_folder(tmp_path).vocab() == {5: "a?", 6: "b"}


def test_what_a_full_disk_refused_is_written_the_next_time(tmp_path, monkeypatch):
    writer = RunWriter(tmp_path, RunInfo("test"))
    writer.vocab({1: "a"})

    def full(path):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(writing, "atomic_write", full)
        with pytest.raises(OSError, match=r"cannot write .*vocab\.json: No space left on device"):
            writer.vocab({2: "b"})
    assert open_folder(tmp_path).vocab() == {1: "a"}
    writer.vocab({2: "b"})
    assert open_folder(tmp_path).vocab() == {1: "a", 2: "b"}
