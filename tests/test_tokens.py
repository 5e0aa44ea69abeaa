"""The token pass against slow loops, and its promise that neither order nor splitting of the rollouts matters."""

from __future__ import annotations

import math

import numpy as np
import pytest
from token_runs import as_stored

from equipoise.measures.cells import Cells, total
from equipoise.measures.frames import Frame, segment_sums
from equipoise.measures.logprobs import SOURCES
from equipoise.measures.planning import planning_tokens, string_lengths
from equipoise.measures.tokens import EDGES, ENTROPY_OF_CODE, TokenCounter, TokenTable
from equipoise.rollouts.batch import Rollouts

POLICY = ("logprobs_rollout", "logprobs_train", "logprobs_ref")


def random_rows(seed: int, n: int = 60) -> list[dict]:
    """Ragged rollouts with empty ones, null lists, masks, and entropies that no policy can have."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(n):
        length = int(rng.choice([0, 1, 3, 9, 10, 47, 200]))
        H = np.where(rng.random(length) < 0.4, 0.0, rng.exponential(0.5, length)).astype(np.float16)
        if i % 5 == 0:
            H[rng.random(length) < 0.1] = np.nan
            H[rng.random(length) < 0.1] = -0.0
            H[rng.random(length) < 0.1] = -0.5
            H[rng.random(length) < 0.1] = -1e-4
            H[rng.random(length) < 0.05] = np.inf
        logp = -rng.exponential(1.0, length)
        row = {
            "run_id": "a" if i % 3 else "b",
            "step": int(rng.integers(0, 4)) if i % 11 else None,
            "prompt_id": f"p{i % 7}",
            "token_ids": rng.integers(0, 30, length).tolist(),
            "entropies": H.tolist(),
            "logprobs_rollout": logp.astype(np.float32).tolist(),
            "logprobs_train": (logp + rng.normal(0, 0.5, length)).astype(np.float32).tolist(),
            "logprobs_ref": (logp + rng.normal(0, 0.3, length)).astype(np.float32).tolist(),
            "loss_mask": (rng.random(length) < 0.8).tolist() if i % 4 == 0 else None,
        }
        for name in ("token_ids", "entropies", *POLICY):
            if rng.random() < 0.12:
                row[name] = None
        if length and i % 13 == 0:
            row["logprobs_ref"] = [math.nan] * length
        rows.append(row)
    return rows


def count(*batches: Rollouts, vocab=None) -> TokenTable:
    counter = TokenCounter(vocab)
    for batch in batches:
        counter.add(batch)
    return counter.table()


def slow_row(row: dict) -> dict:
    """One rollout, token by token."""
    lists = {name: row.get(name) for name in ("token_ids", "entropies", "loss_mask", *POLICY)}
    length = max((len(values) for values in lists.values() if values is not None), default=0)
    found = dict.fromkeys(
        ("tokens", "entropy_tokens", "entropy", "entropy_square", "logp_tokens", "logp", "drift_tokens", "kl_k1", "kl_k3",
         "gap_tokens", "gap_abs", "gap_max", "gap_k1", "gap_k3", "weight", "weight_square", "weight_tail"), 0.0,
    )  # fmt: skip
    found["position_entropy"], found["position_tokens"] = [0.0] * 10, [0] * 10
    found["excess"] = [0.0] * len(EDGES)
    found["entropy_bins"] = [0] * (len(EDGES) + 1)
    found["kept"] = []  # (id, entropy)
    for t in range(length):
        if lists["loss_mask"] is not None and not lists["loss_mask"][t]:
            continue
        at = {name: (math.nan if values is None else values[t]) for name, values in lists.items()}
        found["tokens"] += 1
        H = at["entropies"]
        if math.isfinite(H) and H > -1e-3:
            H = max(H, 0.0)
            found["entropy_tokens"] += 1
            found["entropy"] += H
            found["entropy_square"] += H * H
            found["position_entropy"][10 * t // length] += H
            found["position_tokens"][10 * t // length] += 1
            found["excess"] = [e + max(H - edge, 0.0) for e, edge in zip(found["excess"], EDGES, strict=True)]
            found["entropy_bins"][sum(edge <= H for edge in EDGES)] += 1
            found["kept"].append((at["token_ids"], H))
        rollout, train, ref = (at[name] for name in POLICY)
        sampled = rollout if lists["logprobs_rollout"] is not None else train
        trained = train if lists["logprobs_train"] is not None else rollout
        if math.isfinite(sampled):
            found["logp_tokens"] += 1
            found["logp"] += sampled
        if math.isfinite(trained - ref):
            found["drift_tokens"] += 1
            found["kl_k1"] += trained - ref
            found["kl_k3"] += math.exp(ref - trained) - 1 - (ref - trained)
        if math.isfinite(train - rollout):
            ratio = math.exp(train) / math.exp(rollout)
            found["gap_tokens"] += 1
            found["gap_abs"] += abs(train - rollout)
            found["gap_max"] = max(found["gap_max"], abs(train - rollout))
            found["gap_k1"] += rollout - train
            found["gap_k3"] += ratio - 1 - math.log(ratio)
            found["weight"] += ratio
            found["weight_square"] += ratio**2
            found["weight_tail"] += ratio > 2 or ratio < 0.5
    return found


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_every_sum_equals_a_loop_over_tokens(seed):
    rows = random_rows(seed)
    batch = as_stored(rows)
    table = count(batch)
    assert len(table) == len(rows)
    slow = [slow_row(row) for row in batch.rows()]
    for name, values in table.rows.items():
        if name.endswith("_from"):
            continue
        expected = np.asarray([row[name] for row in slow])
        np.testing.assert_allclose(values, expected, rtol=2e-6 if name == "excess" else 1e-9, atol=1e-9, err_msg=name)


def test_sources_of_log_probs_are_kept_apart():
    table = count(
        as_stored(
            [
                {"logprobs_rollout": [-1.0], "logprobs_train": [-2.0], "logprobs_ref": [-2.5]},
                {"logprobs_rollout": None, "logprobs_train": [-2.0], "logprobs_ref": [-2.5]},
                {"logprobs_rollout": [-1.0], "logprobs_train": None, "logprobs_ref": [-2.5]},
                {"logprobs_rollout": [-1.0], "logprobs_train": [-2.0], "logprobs_ref": None},
            ]
        )
    )
    # The sampler's are preferred for surprisal, the trainer's for drift.
    sampler, trainer = SOURCES.index("logprobs_rollout"), SOURCES.index("logprobs_train")
    assert table.rows["logp_from"].tolist() == [sampler, trainer, sampler, sampler]
    assert table.rows["drift_from"].tolist() == [trainer, trainer, sampler, 0]
    assert table.rows["kl_k1"].tolist() == [0.5, 0.5, 1.5, 0.0]
    assert table.skipped == {}  # a list that is not there is not a bad one


def test_histogram_gives_numpy_quantiles_and_sums_by_cell():
    batch = as_stored(random_rows(3, 200))
    table = count(batch)
    expected: dict = {}
    for row in batch.rows():
        key = ((row["run_id"], None, None, None, None), row["step"])
        expected.setdefault(key, []).extend(H for _, H in slow_row(row)["kept"])
    assert set(table.histograms.arrays) == {key for key, kept in expected.items() if kept}
    for key, kept in expected.items():
        counts, sums = table.histograms.arrays[key]
        assert counts.sum() == len(kept)
        assert sums.sum() == pytest.approx(sum(kept), rel=1e-12)
        values = np.repeat(ENTROPY_OF_CODE[: len(counts)], counts.astype(int))
        for q in (0.0, 0.5, 0.8, 0.99):
            assert np.quantile(values, q, method="inverted_cdf") == np.quantile(kept, q, method="inverted_cdf")


def test_entropy_by_token_id_equals_a_dictionary():
    batch = as_stored(random_rows(4, 150))
    counts, sums = total(list(count(batch).token_types.arrays.values()))
    expected: dict = {}
    for row in batch.rows():
        for token, H in slow_row(row)["kept"]:
            if not math.isnan(token):
                expected.setdefault(token, []).append(H)
    assert {i: int(n) for i, n in enumerate(counts) if n} == {i: len(kept) for i, kept in expected.items()}
    for i, kept in expected.items():
        assert sums[i] == pytest.approx(sum(kept), rel=1e-12)


def test_exact_entropies_keep_their_digits():
    rows = [{"entropies": [0.123456789, 1.000000001, 3e-9], "token_ids": [1, 2, 1]}]
    table = count(Rollouts.of_rows(rows))
    assert table.rows["entropy"][0] == pytest.approx(1.123456793, rel=1e-12)
    ((_, sums),) = table.histograms.arrays.values()
    assert sums.sum() == pytest.approx(1.123456793, rel=1e-12)


def test_unusable_values_are_counted_by_reason():
    rows = [
        {
            "entropies": [math.nan, 0.5, -0.2, -1e-4, math.inf],
            "token_ids": [1, 2, 3, 4, 2**30],
            "logprobs_rollout": [-1.0] * 5,
        },
        {"entropies": None, "token_ids": [1, 2], "logprobs_rollout": [-1.0, -math.inf]},
        {"entropies": [1.0], "token_ids": [2**30], "logprobs_rollout": [-1.0]},
    ]
    table = count(as_stored(rows))
    assert table.rows["entropy_tokens"].tolist() == [2, 0, 1]
    assert table.skipped == {
        "entropies that are nan or infinite": 2,
        "entropies below 0": 1,
        "token ids from 1048576 up": 1,
        "log-probs that are nan or infinite": 1,
    }


def test_impossible_tokens_are_left_out_without_a_warning():
    rows = [
        {"logprobs_rollout": [-math.inf, -1.0], "logprobs_train": [-math.inf, -1.0], "logprobs_ref": [-math.inf, -1.5]},
        {"logprobs_rollout": [-1.0], "logprobs_train": [-2000.0], "logprobs_ref": [-1.0]},
    ]
    table = count(as_stored(rows))
    assert table.rows["gap_tokens"].tolist() == [1, 1]
    assert table.rows["gap_k1"].tolist() == [0.0, 1999.0]
    assert table.rows["kl_k1"].tolist() == [0.5, -1999.0]
    assert table.rows["kl_k3"][1] == math.inf
    assert "tokens: 3 log-probs that are nan or infinite were left out" in table.notes()


def test_a_list_of_another_length_is_left_out_and_counted():
    table = count(
        as_stored(
            [
                {"entropies": [1.0, 1.0, 1.0], "logprobs_rollout": [-1.0, -1.0]},
                {"entropies": [2.0], "logprobs_rollout": [-3.0]},
            ]
        )
    )
    assert table.skipped == {"lists of unequal length": 1}
    assert table.rows["logp"].tolist() == [0.0, -3.0]
    assert table.rows["entropy"].tolist() == [3.0, 2.0]


@pytest.mark.parametrize("seed", [5, 6])
def test_merging_and_order_change_nothing(seed):
    rows = random_rows(seed, 90)
    whole = count(as_stored(rows))
    split = count(as_stored(rows[:31])) + count(as_stored(rows[31:32])) + count(as_stored(rows[32:]))
    order = np.random.default_rng(seed).permutation(len(rows))
    shuffled = count(as_stored([rows[i] for i in order]))
    for name, values in whole.rows.items():
        np.testing.assert_allclose(split.rows[name], values, rtol=1e-12, err_msg=name)
        np.testing.assert_allclose(shuffled.rows[name], values[order], rtol=1e-12, err_msg=name)
    assert whole.skipped == split.skipped == shuffled.skipped
    for other in (split, shuffled):
        for mine, theirs in ((whole.histograms, other.histograms), (whole.token_types, other.token_types)):
            assert mine.level == theirs.level
            assert mine.arrays.keys() == theirs.arrays.keys()
            for key, array in mine.arrays.items():
                np.testing.assert_allclose(total([array, -theirs.arrays[key]]), 0, atol=1e-9)


def test_blocks_cut_a_batch_without_changing_it(monkeypatch):
    batch = as_stored(random_rows(7))
    whole = count(batch)
    monkeypatch.setattr("equipoise.measures.tokens.BLOCK", 64)
    cut = count(batch)
    for name, values in whole.rows.items():
        np.testing.assert_allclose(cut.rows[name], values, rtol=1e-12, err_msg=name)


def test_a_run_without_token_columns_has_rows_and_no_sums():
    table = count(as_stored([{"run_id": "a", "step": 1}, {"run_id": "a", "step": 2}]))
    assert len(table) == 2
    assert table.rows["tokens"].tolist() == [0, 0]
    assert not table.has("entropy_tokens")
    assert len(count()) == 0


# --- cells --------------------------------------------------------------------------------------------------------------


def test_steps_merge_by_doubling_until_they_fit():
    cells = Cells(limit=4)
    for step in range(10):
        cells.add(("run",), step, np.array([1.0, step]))
    # Ten steps: width 2 gives 5 buckets, width 4 gives 3.
    assert {cell: array.tolist() for cell, array in cells.arrays.items()} == {
        (("run",), 0): [4.0, 0 + 1 + 2 + 3],
        (("run",), 4): [4.0, 4 + 5 + 6 + 7],
        (("run",), 8): [2.0, 8 + 9],
    }


def test_conditions_are_pooled_only_when_one_bucket_each_is_too_many():
    cells = Cells(limit=3)
    for i in range(3):
        for step in range(5):
            cells.add((f"c{i}",), step, np.ones(i + 1))
    assert len(cells.arrays) == 3
    assert not cells.pooled
    cells.add(("c3",), None, np.ones(1))
    assert cells.pooled
    assert {cell: array.tolist() for cell, array in cells.arrays.items()} == {
        (None, 0): [15.0, 10.0, 5.0],
        (None, None): [1.0],
    }


def test_merging_takes_the_coarser_of_two_levels():
    fine, coarse = Cells(limit=4), Cells(limit=4)
    fine.add(None, 1, np.ones(1))
    for step in range(10):
        coarse.add(None, step, np.ones(1))
    assert {cell[1]: array.tolist() for cell, array in (fine + coarse).arrays.items()} == {0: [5.0], 4: [4.0], 8: [2.0]}
    assert (coarse + fine).arrays.keys() == (fine + coarse).arrays.keys()


def test_sparse_steps_keep_their_own_bucket():
    cells = Cells(limit=8)
    for step in range(0, 800, 100):
        cells.add(None, step, np.ones(1))
    assert cells.width == 1


# --- frames -------------------------------------------------------------------------------------------------------------


def test_segment_sums_of_empty_segments_are_zero():
    assert segment_sums(np.array([1.0, 2.0, 3.0]), np.array([0, 0, 2, 2, 3, 3])).tolist() == [0, 3, 0, 3, 0]
    assert segment_sums(np.empty(0), np.array([0, 0, 0])).tolist() == [0, 0]


# --- planning tokens ----------------------------------------------------------------------------------------------------

VOCAB = {
    0: "So",
    1: " w",
    2: "ait",
    3: ", let",
    4: " me",
    5: " chec",
    6: "k it",
    7: ".",
    8: "<eos>",
    9: "",
    10: " naïve",
    11: " ",
    12: "wait",
}


def planned(ids: list[int], text: str | None) -> list[int]:
    frame, _ = Frame.of(as_stored([{"token_ids": ids}]), ["token_ids"])
    found = planning_tokens(frame, [text], string_lengths(VOCAB))
    return [-1] * len(ids) if found is None else found.tolist()


def test_planning_tokens_by_hand_with_odd_tokenisation():
    assert planned([0, 11, 12, 7], "So wait.") == [0, 0, 1, 0]  # tokens that only touch the gram are outside
    # "wait" is spread over " w" and "ait"; "let me check" starts inside ", let" and ends inside "k it".
    assert planned([0, 1, 2, 3, 4, 5, 6, 7], "So wait, let me check it.") == [0, 1, 1, 1, 1, 1, 1, 0]


def test_an_end_token_outside_the_text_is_allowed_and_anything_else_is_not_measured():
    assert planned([0, 1, 2, 8], "So wait") == [0, 1, 1, 0]
    assert planned([1, 2, 8], " wait<eos>") == [1, 1, 0]
    assert planned([0, 1, 2, 8, 8], "So wait") == [-1] * 5
    assert planned([0, 1, 2], "So wait!!") == [-1] * 3
    assert planned([0, 1, 2], None) == [-1] * 3
    assert planned([0, 99], "So") == [-1] * 2  # an id without a string
    assert planned([1, 9, 2], " wait") == [1, 0, 1]  # an empty token belongs to no gram
    assert planned([10, 1, 2], " naïve wait") == [0, 1, 1]


def test_planning_sums_leave_out_masked_tokens_and_rollouts_that_cannot_be_aligned():
    rows = [
        {
            "token_ids": [0, 1, 2],
            "completion": "So wait",
            "entropies": [0.25, 1.0, 2.0],
            "loss_mask": [True, True, False],
        },
        {"token_ids": [0, 1, 2], "completion": "So wait...", "entropies": [0.25, 1.0, 2.0]},
        {"token_ids": [1, 2, 0], "completion": " waitSo", "entropies": [0.5, 0.5, 0.25]},  # no word ends at "wait"
        {"token_ids": None, "completion": "wait", "entropies": [0.5]},
        {"token_ids": [1, 2, 7], "completion": " wait.", "entropies": [0.5, 0.25, 4.0]},
    ]
    table = count(as_stored(rows), vocab=VOCAB)
    assert table.rows["planning_known"].tolist() == [True, False, True, False, True]
    assert table.rows["planning_tokens"].tolist() == [1, 0, 0, 0, 2]
    assert table.rows["planning_entropy"].tolist() == [1.0, 0.0, 0.0, 0.0, 0.75]


def test_a_large_run_is_searched_in_a_sample_that_order_and_merging_do_not_change(monkeypatch):
    monkeypatch.setattr("equipoise.measures.planning.SAMPLE", 10)
    rows = [{"token_ids": [1, 2, 3], "completion": " wait, let", "entropies": [i / 64, 0.0, 1.0]} for i in range(3)]
    vocab = VOCAB | {100 + i: f" {i}" for i in range(100)}
    rows += [
        {"token_ids": [1, 2, 100 + i], "completion": f" wait {i}", "entropies": [i / 64, 0.0, 1.0]} for i in range(100)
    ]
    whole = count(as_stored(rows), vocab=vocab)
    parts = [count(as_stored(rows[:50]), vocab=vocab), count(as_stored(rows[50:]), vocab=vocab)]
    order = np.random.default_rng(0).permutation(len(rows))
    shuffled = count(*(as_stored([rows[i] for i in chunk]) for chunk in np.array_split(order, 7)), vocab=vocab)
    known = whole.rows["planning_known"]
    assert 0 < known.sum() <= 10
    assert whole.planning_level > parts[0].planning_level > 0
    for name in ("planning_known", "planning_tokens", "planning_entropy"):
        assert (parts[0] + parts[1]).rows[name].tolist() == whole.rows[name].tolist()
        assert shuffled.rows[name].tolist() == whole.rows[name][order].tolist()
    assert whole.rows["planning_entropy"][known].tolist() == [
        row["entropies"][0] for row, kept in zip(rows, known, strict=True) if kept
    ]
    assert not whole.rows["planning_tokens"][~known].any()
