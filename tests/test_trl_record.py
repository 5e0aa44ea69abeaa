"""A generation batch of TRL as columns, against a loop over its completions: one and the same files."""

from __future__ import annotations

import math
from hashlib import sha1

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'equipoise[train]'")

from equipoise.adapters.trl_record import Drawn, RecordThread, Rendering  # noqa: E402
from equipoise.adapters.trl_texts import TokenTexts, decoder_of  # noqa: E402
from equipoise.base import Answer  # noqa: E402
from equipoise.errors import UsageError  # noqa: E402
from equipoise.rollouts.batch import Rollouts  # noqa: E402
from equipoise.rollouts.folder import list_parts, open_folder  # noqa: E402
from equipoise.rollouts.run import RunInfo  # noqa: E402
from equipoise.rollouts.writer import RunWriter  # noqa: E402
from equipoise.rollouts.writer_process import WriterProcess  # noqa: E402

PAD, END = 0, 1
N, T, L, G = 14, 9, 6, 4  # the last group is not whole


class Letters:
    """Token n is a letter, some of them of several bytes; 0 and 1 are special."""

    all_special_ids = (PAD, END)
    letters = "<>abcdefghijklmnoéü🎲\u2028"

    def batch_decode(self, rows, skip_special_tokens=False):
        return ["".join(self.letters[i] for i in row if not (skip_special_tokens and i < 2)) for row in rows]


def read(text):
    return Answer(text[:2]) if len(text) % 2 else None


def a_batch(seed, **changes):
    rng = np.random.default_rng(seed)
    lengths = np.array([0, T, 1, *rng.integers(0, T + 1, N - 3)])
    ids = rng.integers(2, len(Letters.letters), (N, T))
    ids[np.arange(N), np.maximum(lengths - 1, 0)] = rng.choice([PAD, END, 2], N)
    there = np.arange(T) < lengths[:, None]
    rewards = rng.integers(0, 2, (N, 3)).astype(np.float32)
    rewards[:, 0] *= 1.37
    rewards[rng.random((N, 3)) < 0.3] = np.nan
    rewards[5] = np.nan
    known = -rng.exponential(size=(N, T)).astype(np.float32)
    known[2], known[6, 0], known[7, 0] = np.nan, np.nan, np.inf
    given = {
        "step": seed + 1,
        "split": "eval" if seed % 2 else "train",
        "group_size": G,
        "first_group": seed,
        "prompt_ids_NL": rng.integers(2, 12, (N, L)),
        "prompt_mask_NL": (rng.random((N, L)) < 0.6).astype(int),
        "ids_NT": ids,
        "there_NT": there,
        "learnt_NT": there & (rng.random((N, T)) < 0.6),
        "adv": rng.normal(size=N).astype(np.float32),
        "rewards_NF": rewards,
        "reward_N": np.where(np.isnan(rewards).all(axis=1), np.nan, np.nansum(rewards, axis=1)),
        "names": ["a", "right", "ü"],
        "tokens": {"logprobs_train": known, "entropies": -2 * known, "logprobs_ref": np.full((N, T), np.nan)},
        "columns": {"reference_answer": [None if n % 3 else f"é{n}" for n in range(N)]},
    }
    return Drawn(**(given | changes))


def slow_rows(drawn, correct):
    """One completion after the other, with Python's own numbers."""
    for n in range(len(drawn.ids_NT)):
        group, place = divmod(n, drawn.group_size)
        first = group * drawn.group_size
        asked = [int(i) for i, m in zip(drawn.prompt_ids_NL[first], drawn.prompt_mask_NL[first], strict=True) if m]
        length = int(drawn.there_NT[n].sum())
        ids = [int(i) for i in drawn.ids_NT[n][:length]]
        text = "".join(Letters.letters[i] for i in ids if i > 1)
        parts = {k: float(v) for k, v in zip(drawn.names, drawn.rewards_NF[n], strict=True) if not math.isnan(v)}
        learnt = [bool(m) for m in drawn.learnt_NT[n][:length]]
        row = {
            "run_id": "run",
            "split": drawn.split,
            "step": drawn.step,
            "group_id": f"{drawn.split}-{drawn.step}-{drawn.first_group + group}",
            "sample_index": place,
            "prompt_id": sha1(np.array(asked, np.int32).tobytes()).hexdigest()[:16],
            "prompt": "".join(Letters.letters[i] for i in asked),
            "completion": text,
            "answer": text[:2] if len(text) % 2 else None,
            "correct": {0.0: False, 1.0: True}.get(parts.get(correct)),
            "reward": None if math.isnan(drawn.reward_N[n]) else float(drawn.reward_N[n]),
            "rewards": list(parts.items()) or None,
            "finish_reason": "stop" if ids and ids[-1] < 2 else "length",
            "temperature": 0.7,
            "n_tokens": length,
            "token_ids": ids,
            "loss_mask": learnt,
            **{name: values[n] for name, values in drawn.columns.items()},
        }
        if drawn.adv.ndim == 1:
            row["advantage"] = float(drawn.adv[n])
        else:
            row["advantages"] = [float(a) for a in drawn.adv[n][:length]]
            counted = [np.float32(a) for a, m in zip(row["advantages"], learnt, strict=True) if m]
            row["advantage"] = float(np.mean(counted)) if counted else None
        for name, values_NT in drawn.tokens.items():
            values = [float(v) for v in values_NT[n][:length]]
            if not all(map(math.isnan, values)):
                row[name] = [v if math.isfinite(v) else None for v in values]
        yield row


def files_of(folder):
    return [(part.step, part.path.read_bytes()) for part in list_parts(folder)]


def rendering(correct="right"):
    return Rendering(Letters(), ends=[PAD, END], read=read, correct=correct, temperature=0.7)


CASES = {
    "as TRL gives it": (a_batch(0), "right"),
    "no verdict is named": (a_batch(1), None),
    "advantages by token": (a_batch(2, adv=np.random.default_rng(2).normal(size=(N, T)).astype(np.float32)), "right"),
    "nothing by token": (a_batch(3, tokens={}, columns={}), "right"),
    "advantages of nan": (a_batch(4, adv=np.full(N, np.nan, np.float32)), "right"),
    "nothing was written": (a_batch(5, there_NT=np.zeros((N, T), bool)), "right"),
    "no function gave anything": (a_batch(6, rewards_NF=np.full((N, 3), np.nan)), "right"),
}


@pytest.mark.parametrize("case", CASES)
def test_columns_are_those_of_a_loop_over_the_completions(case, tmp_path):
    drawn, correct = CASES[case]
    thread = RecordThread(WriterProcess(tmp_path / "columns", RunInfo("trl", run_id="run")), rendering(correct))
    thread.hand_over(drawn)
    thread.flush()
    slow = RunWriter(tmp_path / "rows", RunInfo("trl", run_id="run"))
    slow.write_batches([Rollouts.of_rows(slow_rows(drawn, correct))])
    assert files_of(tmp_path / "columns") == files_of(tmp_path / "rows")
    met = {int(i) for row, there in zip(drawn.ids_NT, drawn.there_NT, strict=True) for i in row[there]}
    assert (open_folder(tmp_path / "columns").vocab() or {}) == {i: "" if i < 2 else Letters.letters[i] for i in met}


def test_each_token_is_named_once_and_a_verdict_of_neither_kind_is_refused():
    told, first, second = rendering(), a_batch(0), a_batch(1)
    named = told.new_texts(first).keys()
    more = told.new_texts(second).keys()
    assert not named & more
    assert named | more == {int(i) for d in (first, second) for i in d.ids_NT[d.there_NT]}
    assert told.new_texts(first) == {}
    with pytest.raises(UsageError, match=r"correct='a' must be 1 for right and 0 for wrong, found 1\.37"):
        rendering("a").columns(first, "run")


def test_a_text_is_read_once_however_often_it_was_drawn():
    asked = []
    told = Rendering(Letters(), ends=[END], read=asked.append, correct=None, temperature=1.0)
    told.columns(a_batch(0, ids_NT=np.full((N, T), 5), there_NT=np.ones((N, T), bool)), "run")
    assert asked == [Letters.letters[5] * T]


# ---------------------------------------------------------------- decoding


def words(**settings):
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'equipoise[train]'")
    from tokenizers import Tokenizer, decoders, models

    made = Tokenizer(models.WordLevel({"<unk>": 0, "so": 1, ".": 2, "n't": 3, "do": 4, "<end>": 5}, unk_token="<unk>"))
    made.decoder = decoders.Fuse() if settings.pop("fused", False) else made.decoder
    kind = settings.pop("kind", None) or transformers.PreTrainedTokenizerFast
    return kind(tokenizer_object=made, unk_token="<unk>", eos_token="<end>", **settings)


IDS = [[1, 2], [4, 3, 1, 2, 5], [], [5]]


@pytest.mark.integration
@pytest.mark.parametrize("cleans", [False, True])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("skip", [False, True])
def test_decoding_at_once_gives_what_batch_decode_gives(cleans, fused, skip):
    tokenizer = words(clean_up_tokenization_spaces=cleans, fused=fused)
    assert decoder_of(tokenizer)(IDS, skip_special_tokens=skip) == tokenizer.batch_decode(IDS, skip_special_tokens=skip)
    assert decoder_of(tokenizer)([]) == []
    texts = TokenTexts(tokenizer)
    assert texts.of([4, 5, 3, 4]) == [tokenizer.decode([4]), "", tokenizer.decode([3]), tokenizer.decode([4])]


@pytest.mark.integration
def test_one_call_decodes_all_unless_the_tokenizer_does_more_than_that():
    from transformers import PreTrainedTokenizerFast

    class Shouting(PreTrainedTokenizerFast):
        def _decode(self, *args, **kwargs):
            return super()._decode(*args, **kwargs).upper()

    assert decoder_of(words(clean_up_tokenization_spaces=False)).__name__ == "at_once"
    assert decoder_of(words(clean_up_tokenization_spaces=True)).__name__ == "one_by_one"
    assert decoder_of(words(kind=Shouting))([[1, 2]]) == [words(kind=Shouting).decode([1, 2])]
    assert decoder_of(words(kind=Shouting)).__name__ == "one_by_one"
