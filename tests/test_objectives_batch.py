"""`TokenBatch`: its checks, its counts, its rows."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, replace

import pytest
import slow_objectives as slow
import torch

from equipoise.errors import UsageError
from equipoise.objectives.batch import TokenBatch

TENSORS = [field.name for field in fields(TokenBatch) if not field.name.startswith("step_")]


def four(**more):
    given = {"logp_BT": torch.zeros(2, 3), "old_logp_BT": torch.zeros(2, 3), "adv_BT": torch.zeros(2, 3)}
    mask = torch.tensor([[True, True, False], [False, False, False]])
    return TokenBatch(**{**given, "mask_BT": mask, **more})


def test_counts_are_the_batch_s_own_unless_given():
    assert (four().step_tokens, four().step_sequences) == (2, 1)  # a completion without a token is not counted
    given = four(step_tokens=100, step_sequences=7)
    assert (given.step_tokens, given.step_sequences) == (100, 7)


def test_what_was_not_measured_is_none():
    assert all(getattr(four(), name) is None for name in TENSORS[4:])


@pytest.mark.parametrize(
    ("index", "rows"),
    [(slice(1, 3), [1, 2]), ([4, 0], [4, 0]), (3, [3]), (-1, [5]), (torch.tensor([2, 2]), [2, 2]), ([], [])],
)
def test_rows_keep_the_counts_of_the_step(index, rows):
    batch = replace(slow.random_batch(), top_logp_BTK=torch.randn(6, 9, 4))
    part = batch.rows(index)
    assert (part.step_tokens, part.step_sequences) == (batch.step_tokens, batch.step_sequences)
    for name in TENSORS:
        assert torch.equal(getattr(part, name), getattr(batch, name)[torch.tensor(rows, dtype=torch.long)])


def test_rows_by_mask_and_of_what_is_not_there():
    keep = torch.tensor([False, True])
    part = four().rows(keep)
    assert part.logp_BT.shape == (1, 3)
    assert part.entropy_BT is None


def test_detached_has_the_numbers_without_the_graph():
    leaf = torch.zeros(2, 3, requires_grad=True)
    batch = four(logp_BT=leaf * 2, entropy_BT=leaf + 1)
    assert not batch.detached().logp_BT.requires_grad
    assert torch.equal(batch.detached().entropy_BT, torch.ones(2, 3))
    assert batch.entropy_BT.requires_grad


def test_it_is_frozen_and_slotted():
    with pytest.raises(FrozenInstanceError):
        four().step_tokens = 3
    assert not hasattr(four(), "__dict__")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"adv_BT": torch.zeros(2, 1)}, r"these must share one shape: .*adv_BT \(2, 1\)"),
        ({"logp_BT": torch.zeros(6)}, r"logp_BT must be \(completions, tokens\), found shape \(6,\)"),
        ({"mask_BT": torch.ones(2, 3)}, "mask_BT must be bool, found torch.float32: compare with 0 first"),
        ({"mask_BT": torch.ones(2, 3, dtype=torch.long)}, "mask_BT must be bool"),
        ({"planning_BT": torch.ones(2, 3)}, "planning_BT must be bool"),
        ({"adv_BT": torch.zeros(2, 3, dtype=torch.long)}, "adv_BT must be floating-point, found torch.int64"),
        ({"entropy_BT": [[0.0] * 3] * 2}, "entropy_BT must be a torch tensor, found list"),
        ({"old_logp_BT": None}, "a batch needs old_logp_BT"),
        ({"top_logp_BTK": torch.zeros(2, 3)}, r"top_logp_BTK must be \(completions, tokens, candidates\)"),
        ({"top_logp_BTK": torch.zeros(2, 4, 5)}, "these must share one shape"),
        ({"step_tokens": -1}, "step_tokens must be a whole number of the step's tokens, found -1"),
        ({"step_sequences": 1.5}, "step_sequences must be a whole number of the step's sequences, found 1.5"),
    ],
)
def test_bad_input_is_told_in_one_line(change, message):
    with pytest.raises(UsageError, match=message) as caught:
        four(**change)
    assert "\n" not in str(caught.value)
