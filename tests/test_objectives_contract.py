"""What every objective of the catalogue promises, row by row. A new row is held to it by being there."""

from __future__ import annotations

import math
from dataclasses import replace
from inspect import Parameter, signature

import pytest
import slow_objectives as slow
import torch

from equipoise.catalogue.build import build
from equipoise.catalogue.table import methods
from equipoise.errors import UsageError
from equipoise.objectives.batch import FIELDS, TokenBatch
from equipoise.objectives.compose import compose
from equipoise.objectives.influence import influence, moved

TERMS = {"ratio_clip": "surrogate", "surrogate": "surrogate", "regulariser": "regularisers", "weight": "weights"}
ROWS = {
    method.name: method
    for method in methods()
    if method.kind in (*TERMS, "reduction") and method.target.startswith("equipoise.objectives")
}
PER_TOKEN = [name for name, row in ROWS.items() if row.kind != "reduction"]
REDUCTIONS = [name for name, row in ROWS.items() if row.kind == "reduction"]
# Choices of so few tokens that a small batch would have none; these have some.
LARGER = {"share": 0.2, "low": 0.01, "high": 9.0}
# Their choice is made from the tensors at hand, so that a micro-batch chooses for itself.
PER_MICRO_BATCH = {"clip_cov", "kl_cov", "kl_cov_two_sided", "kl_cov_reference", "forking"}
DRAWN = {"clip_cov", "clip_cov_step"}  # a draw goes by place: another order of rows draws other tokens
BASE = "unclipped"


def built(name: str):
    settings = {key: value for key, value in LARGER.items() if key in ROWS[name].settings}
    return build(name, **settings)


def objective(name: str):
    """The row in its place, beside the plainest other parts."""
    kind = ROWS[name].kind
    if kind == "reduction":
        return compose(build(BASE), reduction=built(name))
    if TERMS[kind] == "surrogate":
        return compose(built(name))
    return compose(build(BASE), **{TERMS[kind]: [built(name)]})


def loss_and_influence(name: str, batch: TokenBatch):
    whole = objective(name)
    chosen = whole.prepare(batch)
    return whole(batch, chosen=chosen), influence(whole, batch, chosen=chosen)


def term(name: str, batch: TokenBatch) -> torch.Tensor:
    """The row's own (B, T)."""
    whole = objective(name)
    terms = whole.terms(batch, chosen=whole.prepare(batch))
    kind = ROWS[name].kind
    if kind == "weight":
        return terms.weight_BT
    return terms.surrogate_BT if TERMS[kind] == "surrogate" else terms.regularisers[name]


def test_the_rows_of_objectives_are_all_there():
    assert len(PER_TOKEN) >= 20
    assert len(REDUCTIONS) == 4


@pytest.mark.parametrize("name", PER_TOKEN)
def test_a_term_is_per_token_and_exactly_0_under_the_padding(name):
    batch = slow.random_batch(1)
    term_BT = term(name, batch)
    assert term_BT.shape == batch.logp_BT.shape
    assert term_BT.dtype == batch.logp_BT.dtype
    assert term_BT.isfinite().all()
    assert not term_BT[~batch.mask_BT].any()
    assert term_BT[batch.mask_BT].any()


@pytest.mark.parametrize("fill", [math.nan, math.inf, -math.inf, 1e30])
@pytest.mark.parametrize("name", ROWS)
def test_what_stands_under_the_padding_is_never_read(name, fill):
    clean = slow.random_batch(1)
    dirty = {
        field: torch.where(clean.mask_BT, getattr(clean, field), fill)
        for field in ("logp_BT", "old_logp_BT", "adv_BT", "entropy_BT", "drift_BT", "ref_logp_BT", "ref_kl_BT")
    }
    dirty |= {f: torch.where(clean.mask_BT, getattr(clean, f), True) for f in ("planning_BT", "answer_BT")}
    loss, moves = loss_and_influence(name, clean)
    dirty_loss, dirty_moves = loss_and_influence(name, replace(clean, **dirty))
    assert torch.equal(dirty_loss, loss)
    for field in ("logp_BT", "entropy_BT", "ref_kl_BT"):
        assert torch.equal(getattr(dirty_moves, field), getattr(moves, field))


@pytest.mark.parametrize("name", ROWS)
def test_a_batch_without_a_token_is_an_exact_0(name):
    batch = slow.random_batch(1)
    loss, moves = loss_and_influence(name, replace(batch, mask_BT=torch.zeros_like(batch.mask_BT), step_tokens=0))
    assert loss.item() == 0
    assert not moves.logp_BT.any()
    assert not moves.entropy_BT.any()


@pytest.mark.parametrize("name", [name for name in ROWS if name not in DRAWN])
def test_another_order_of_completions_changes_nothing_else(name):
    batch = slow.random_batch(1)
    order = [3, 5, 0, 1, 4, 2]
    loss, moves = loss_and_influence(name, batch)
    other_loss, other = loss_and_influence(name, batch.rows(order))
    torch.testing.assert_close(other_loss, loss, rtol=0, atol=1e-14)
    torch.testing.assert_close(other.logp_BT, moves.logp_BT[order], rtol=0, atol=1e-14)
    torch.testing.assert_close(other.entropy_BT, moves.entropy_BT[order], rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", [name for name in ROWS if name not in PER_MICRO_BATCH])
@pytest.mark.parametrize("split", [[[0, 1, 2], [3, 4, 5]], [[0], [1], [2], [3], [4], [5]], [[4, 1], [5, 0, 2, 3]]])
def test_micro_batches_and_ranks_add_up_to_the_step(name, split):
    step, whole = slow.random_batch(1), objective(name)
    chosen = whole.prepare(step)
    expected = influence(whole, step, chosen=chosen).logp_BT
    leaf = step.logp_BT.clone().requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for rows in split:
        loss = whole(replace(step, logp_BT=leaf).rows(rows), chosen=chosen.rows(rows))
        loss.backward()
        total += loss.detach()
    torch.testing.assert_close(leaf.grad, expected, rtol=0, atol=1e-14)
    torch.testing.assert_close(total, whole(step, chosen=chosen), rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", sorted(PER_MICRO_BATCH))
def test_a_choice_per_micro_batch_depends_on_the_split_and_its_step_wide_twin_does_not(name):
    assert f"{name}_step" in ROWS
    batch = slow.random_batch(1, rows=12)
    parts = torch.cat([term(name, batch.rows(slice(i, i + 3))) for i in range(0, 12, 3)])
    assert not torch.equal(parts, term(name, batch))
    assert torch.equal(term(name, batch), term(f"{name}_step", batch))


@pytest.mark.parametrize("name", ROWS)
def test_float32_is_close_to_float64(name):
    double = slow.random_batch(1)
    floats = {field: getattr(double, field) for field in FIELDS}
    single = TokenBatch(
        **{k: v.float() if torch.is_tensor(v) and v.is_floating_point() else v for k, v in floats.items()}
    )
    for a, b in zip(loss_and_influence(name, single), loss_and_influence(name, double), strict=True):
        if torch.is_tensor(a):
            assert a.dtype == torch.float32
            assert a.item() == pytest.approx(b.item(), abs=1e-5)
        else:
            torch.testing.assert_close(a.logp_BT.double(), b.logp_BT, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ROWS)
def test_the_row_names_the_inputs_of_its_code(name):
    row = ROWS[name]
    parameters = signature(build(name).func).parameters.values()
    read = {p.name: p.default is Parameter.empty for p in parameters if p.name in FIELDS}
    assert {field for field, required in read.items() if required} <= set(row.inputs) <= set(read)
    assert set(row.settings) <= {p.name for p in parameters if p.kind is Parameter.KEYWORD_ONLY}
    assert row.equation
    assert row.loop == "training"
    # Enough to run, and nothing less.
    batch = slow.random_batch(1)
    optional = FIELDS - {"logp_BT", "old_logp_BT", "adv_BT", "mask_BT", "step_tokens", "step_sequences"}
    enough = replace(batch, **dict.fromkeys(optional - set(row.inputs)))
    assert loss_and_influence(name, enough)[0].isfinite()
    for field in optional & set(row.inputs):
        with pytest.raises(UsageError, match=rf"needs {field}.*comes from"):
            loss_and_influence(name, replace(enough, **{field: None}))


@pytest.mark.parametrize("name", PER_TOKEN)
def test_shapes_that_would_broadcast_are_refused(name):
    batch = slow.random_batch(1)
    tensors = {field: getattr(batch, field) for field in ROWS[name].inputs}
    for field in tensors:
        with pytest.raises(UsageError, match="these must share one shape"):
            built(name)(**{**tensors, field: tensors[field][:, :1]})


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if TERMS.get(row.kind) == "surrogate"])
def test_what_acts_only_off_policy_moves_nothing_on_policy(name):
    batch = slow.random_batch(1)
    on_policy = replace(batch, old_logp_BT=batch.logp_BT)

    def moves(data):
        return moved(loss_and_influence(name, data)[1], loss_and_influence(BASE, data)[1])

    off_policy_only = "off_policy" in ROWS[name].acts_only
    # At PPO's own bounds: a cap of 5 or a dual clip at 3 is beyond the ratios of this batch.
    assert moves(on_policy).any() == (not off_policy_only and name != BASE)
    if off_policy_only and name != "cispo":
        assert moves(batch).any()


@pytest.mark.parametrize("kind", ["ratio_clip"])
def test_on_policy_every_ratio_clip_is_reinforce(kind):
    batch = slow.random_batch(1)
    on_policy = replace(batch, old_logp_BT=batch.logp_BT)
    for name in (name for name, row in ROWS.items() if row.kind == kind):
        assert "off_policy" in ROWS[name].acts_only
        slope = loss_and_influence(name, on_policy)[1].logp_BT
        torch.testing.assert_close(slope, torch.where(batch.mask_BT, -batch.adv_BT, 0.0) / batch.step_tokens)
