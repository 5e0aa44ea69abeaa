"""The rollouts that a report shows: which, whole groups, and what is told of each."""

from __future__ import annotations

import base64
import math
from collections import Counter

import numpy as np
import pytest
from making import run_of

from equipoise.measures.rollout_facts import describe_rollout
from equipoise.views.browse import browse, choose_groups, spread
from equipoise.views.embed import as_json, data_block, packed


def rows(*, steps, prompts, samples, **cells):
    return [
        {"step": step, "group_id": f"g{p}", "prompt_id": f"p{p}", "sample_index": s, **cells}
        for step in steps
        for p in range(prompts)
        for s in range(samples)
    ]


def test_facts_of_a_rollout_by_hand() -> None:
    # Twenty entropies 0.0, 0.1, … 1.9: mean 0.95; 19 of 20 are up to 1.8; the top four begin at 1.6.
    facts = describe_rollout(np.arange(20) / 10, "The answer is 4.", finish="length", outcome="unparsable")
    assert facts.mean_entropy == pytest.approx(0.95)
    assert facts.p95_entropy == pytest.approx(1.8)
    assert facts.fork_from == pytest.approx(1.6)
    assert facts.flags[:2] == ("no answer", "truncated")


def test_unusable_entropies_are_left_out_and_equal_ones_hold_no_fork() -> None:
    facts = describe_rollout(np.array([0.5, math.nan, math.inf, -3.0, 0.5]), None, finish="stop", outcome="right")
    assert (facts.mean_entropy, facts.p95_entropy, facts.fork_from, facts.flags) == (0.5, 0.5, None, ())
    none = describe_rollout(None, None, finish=None, outcome=None)
    assert (none.mean_entropy, none.p95_entropy, none.fork_from) == (None, None, None)
    assert describe_rollout(np.array([math.nan]), None, finish=None, outcome=None).mean_entropy is None


def test_a_looping_text_is_flagged_as_the_health_measure_flags_it() -> None:
    looping = describe_rollout(None, "I think so. " + "again and again " * 200, finish="stop", outcome="wrong")
    assert "loop" in looping.flags


@pytest.mark.parametrize("n", [0, 1, 2, 3, 7, 100])
def test_spread_visits_every_place_once_and_its_beginning_is_spread(n: int) -> None:
    order = spread(n)
    assert sorted(order) == list(range(n))
    assert order[:2] == [n - 1, 0][:n]
    if n == 100:
        gaps = np.diff(sorted(order[:9]))  # after k halvings no gap is above twice another
        assert gaps.max() <= 2 * gaps.min()


def test_groups_stay_whole_and_steps_take_turns() -> None:
    browsed = browse(run_of(rows(steps=range(50), prompts=10, samples=8)), shown=200)
    assert browsed.total == 4000
    assert len(browsed.rows) == 200
    sizes = Counter((row["step"], row["group_id"]) for row in browsed.rows)
    assert set(sizes.values()) == {8}
    per_step = Counter(step for step, _ in sizes)
    assert set(per_step.values()) == {1}  # 25 groups from 25 of the 50 steps
    assert {0, 49} <= set(per_step)
    assert np.diff(sorted(per_step)).max() <= 4
    assert [row["step"] for row in browsed.rows] == sorted(row["step"] for row in browsed.rows)
    assert browsed.choice.startswith("200 of 4,000 rollouts")
    assert browsed.choice.endswith("The others are in rows.")


def test_small_runs_are_shown_whole_and_one_large_group_too() -> None:
    assert len(browse(run_of(rows(steps=[None], prompts=3, samples=2))).rows) == 6
    assert "All 6 rollouts" in browse(run_of(rows(steps=[None], prompts=3, samples=2))).choice
    large = browse(run_of(rows(steps=[1], prompts=2, samples=300)), shown=200)
    assert len(large.rows) == 300
    assert len({row["group_id"] for row in large.rows}) == 1
    assert browse(run_of(rows(steps=[1], prompts=2, samples=3)), shown=0).rows == ()


def test_groups_with_token_entropies_come_first_in_their_step() -> None:
    groups = {("r", "train", None, None, None, 1.0, name): 4 for name in "abcd"}
    kept = next(key for key in groups if key[-1] == "c")
    assert choose_groups(groups, 4, first={kept}) == [kept]
    assert [key[-1] for key in choose_groups(groups, 4)] == ["a"]


def test_a_run_that_has_grown_since_it_was_measured_is_shown_too() -> None:
    run = run_of(rows(steps=[1, 2], prompts=2, samples=2))
    assert len(browse(run, measured_R=np.array([0, 0, 3, 3])).rows) == 8
    (first, *_) = browse(run, measured_R=np.array([0, 0, 3, 3]), shown=4).rows
    assert (first["step"], first["group_id"]) == (1, "g1")


def test_bytes_are_bounded_and_what_fits_is_whole() -> None:
    run = run_of(rows(steps=range(4), prompts=2, samples=4, completion="x" * 10_000))
    browsed = browse(run, max_bytes=100_000)
    sizes = Counter((row["step"], row["group_id"]) for row in browsed.rows)
    assert set(sizes.values()) == {4}
    assert len(sizes) == 2  # each group takes a bit over 40 kB
    alone = browse(run, max_bytes=25_000)
    assert len(alone.rows) == 2  # no group fits: the first rollouts of one


def test_a_row_tells_what_the_record_holds_and_null_where_it_does_not() -> None:
    held = {
        "prompt_id": "p", "completion": "4", "correct": True, "reward": 0.5, "n_tokens": 2, "budget": 64,
        "token_ids": [7, 8], "entropies": [0.25, 0.5], "logprobs_rollout": [-0.5, -1.0],
        "topk_ids": [[7, 1, 2, 3, 4, 5], [8]], "topk_logprobs": [[-0.5, -1, -2, -3, -4, -5], [-1.0]],
    }  # fmt: skip
    (row,) = browse(run_of([held])).rows
    assert (row["correct"], row["reward"], row["n_tokens"], row["budget"]) == (True, 0.5, 2, 64)
    assert row["ids"].tolist() == [7, 8]
    assert row["entropies"].tolist() == [0.25, 0.5]
    assert row["top_ids"] == [[7, 1, 2, 3, 4], [8]]
    assert (row["step"], row["answer"], row["confidence"], row["prompt"]) == (None, None, None, None)


def test_chat_prompts_are_told_with_their_roles() -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]
    (row,) = browse(run_of([{"prompt_id": "p", "messages": messages}])).rows
    assert row["prompt"] == "[system] Be brief.\n[user] 2+2?"


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (np.array([0.0, 0.5, -2.0, math.nan]), "f2"),
        (np.array([0.1], dtype=np.float16), "f2"),
        (np.array([0.1], dtype=np.float32), "f4"),
        (np.array([0.1]), "f8"),
        (np.array([1e9], dtype=np.float32), "f4"),  # beyond float16
        (np.array([0, 255]), "u1"),
        (np.array([0, 256]), "u2"),
        (np.array([-1, 50_000], dtype=np.int32), "i4"),
        (np.array([2**40]), "i8"),
        (np.array([], dtype=np.float16), "f2"),
    ],
)
def test_packed_numbers_are_exact_in_the_smallest_type(values, kind) -> None:
    held = packed(values)
    assert held["kind"] == kind
    back = np.frombuffer(base64.b64decode(held["data"]), dtype=f"<{kind}")
    np.testing.assert_array_equal(back.astype(values.dtype), values)


def test_json_cannot_leave_its_element() -> None:
    import json

    text = "</script><!--&\u2028\u2029\ud800 é"
    made = as_json({"text": text, "nan": math.nan, text: 1})
    assert not set("<>&\u2028\u2029\ud800") & set(made)
    assert json.loads(made) == {"text": text, "nan": None, text: 1}
    made.encode("utf-8")
    with pytest.raises(ValueError, match="small letters"):
        data_block('x" onload="', {})
