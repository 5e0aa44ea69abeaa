"""The exact KL of two models against scipy's, computed from dense float64 softmaxes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import softmax
from scipy.stats import entropy

from equipoise.errors import UsageError
from equipoise.models.exact_kl import exact_kl
from equipoise.models.language_model import Head

N, V, BANNED = 7, 11, 4


def make(*, widths=(5, 3), bias=False, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    made = []
    for width in widths:
        hidden = torch.randn(N, width, generator=generator, dtype=torch.float64).to(dtype)
        weight = torch.randn(V, width, generator=generator, dtype=torch.float64).to(dtype)
        bias_V = torch.randn(V, generator=generator, dtype=torch.float64).to(dtype) if bias else None
        made += [hidden, Head(weight, bias_V)]
    return made


def dense(hidden, head, *, temperature=1.0):
    """(N, V) probabilities, a position at a time."""
    rows = []
    for h in hidden.double().numpy():
        logits = [float(h @ w) for w in head.weight_VD.double().numpy()]
        if head.bias_V is not None:
            logits = [x + float(b) for x, b in zip(logits, head.bias_V, strict=True)]
        rows.append(softmax(np.array(logits) / temperature))
    return np.array(rows)


@pytest.mark.parametrize("temperature", [1.0, 0.6, 2.5])
@pytest.mark.parametrize("bias", [False, True])
def test_value_is_scipys(temperature, bias):
    hidden, head, ref, ref_head = make(bias=bias)
    expected = entropy(
        dense(hidden, head, temperature=temperature), dense(ref, ref_head, temperature=temperature), axis=1
    )
    found = exact_kl(hidden, head, ref, ref_head, temperature=temperature)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)
    assert found.dtype == torch.float64


def test_gradients_are_the_finite_differences_and_the_reference_gets_none():
    hidden, head, ref, ref_head = make(bias=True)
    leaves = [t.requires_grad_() for t in (hidden, head.weight_VD, head.bias_V)]
    others = [t.requires_grad_() for t in (ref, ref_head.weight_VD, ref_head.bias_V)]

    def kl(hidden, weight, bias):
        return exact_kl(hidden, Head(weight, bias), ref, ref_head, temperature=0.7, chunk=3 * V)

    assert torch.autograd.gradcheck(kl, leaves)
    kl(*leaves).sum().backward()
    assert all(t.grad is None for t in others)


def test_a_banned_token_adds_nothing_to_value_or_gradient():
    hidden, head, ref, ref_head = make(bias=True)
    kept = [v for v in range(V) if v != BANNED]
    head.bias_V[BANNED] = ref_head.bias_V[BANNED] = -torch.inf
    weight = head.weight_VD.requires_grad_()
    found = exact_kl(hidden.requires_grad_(), head, ref, ref_head)
    found.sum().backward()

    # The same models without that token.
    hidden_2, weight_2 = hidden.detach().clone().requires_grad_(), weight.detach()[kept].clone().requires_grad_()
    ref_2 = Head(ref_head.weight_VD[kept], ref_head.bias_V[kept])
    expected = exact_kl(hidden_2, Head(weight_2, head.bias_V[kept]), ref, ref_2)
    expected.sum().backward()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(hidden.grad, hidden_2.grad)
    torch.testing.assert_close(weight.grad[kept], weight_2.grad)
    assert not weight.grad[BANNED].any()


def test_the_chunk_changes_nothing():
    whole = None
    for chunk in (1, V, 2 * V + 1, 3 * V, 10**9):
        hidden, head, ref, ref_head = make(dtype=torch.float32)
        found = exact_kl(hidden.requires_grad_(), head, ref, ref_head, chunk=chunk)
        found.sum().backward()
        whole = whole or (found.detach(), hidden.grad)
        torch.testing.assert_close(found.detach(), whole[0], rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(hidden.grad, whole[1], rtol=1e-5, atol=1e-6)


def test_equal_models_are_at_exactly_0_and_others_above_it():
    hidden, head, ref, ref_head = make(dtype=torch.float32, bias=True)
    head.bias_V[BANNED] = -torch.inf
    zero = exact_kl(hidden.requires_grad_(), head, hidden.detach(), head)
    assert not zero.any()
    zero.sum().backward()
    assert hidden.grad.abs().max() < 1e-6
    assert (exact_kl(hidden, head, ref, Head(ref_head.weight_VD, head.bias_V)) > 0).all()


def test_half_precision_is_widened_before_the_product():
    hidden, head, ref, ref_head = make(dtype=torch.bfloat16)
    found = exact_kl(hidden, head, ref, ref_head)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), entropy(dense(hidden, head), dense(ref, ref_head), axis=1), rtol=1e-5)


def test_no_positions_give_no_values():
    hidden, head, ref, ref_head = make(dtype=torch.bfloat16)
    empty = exact_kl(hidden[:0], head, ref[:0], ref_head)
    assert (empty.shape, empty.dtype) == ((0,), torch.float32)


def test_other_vocabularies_and_other_positions_are_refused():
    hidden, head, ref, ref_head = make()
    with pytest.raises(UsageError, match=r"head_V \(11,\), ref_head_V \(10,\)"):
        exact_kl(hidden, head, ref, Head(ref_head.weight_VD[1:]))
    with pytest.raises(UsageError, match=r"hidden_N \(7,\), ref_hidden_N \(1,\)"):
        exact_kl(hidden, head, ref[:1], ref_head)
