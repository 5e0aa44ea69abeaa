"""Entropy bonus and KL to the reference: values, gradients, and which KL a gradient belongs to."""

from __future__ import annotations

import math

import pytest
import slow_objectives as slow
import torch

from equipoise.errors import UsageError
from equipoise.objectives.regularisers import corrected_kl_to_reference, entropy_bonus, kl_to_reference


def test_the_entropy_bonus_is_minus_coef_times_entropy():
    batch = slow.random_batch()
    value, slope = slow.with_gradient(lambda h: entropy_bonus(h, batch.mask_BT, coef=0.3), batch.entropy_BT)
    for b, t in slow.real_tokens(batch):
        assert value[b, t].item() == pytest.approx(-0.3 * batch.entropy_BT[b, t].item())
        assert slope[b, t].item() == -0.3
    assert not value[~batch.mask_BT].any()
    assert not slope[~batch.mask_BT].any()


def softmax_case():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, generator=generator, dtype=torch.float64).requires_grad_()
    reference = torch.randn(5, generator=generator, dtype=torch.float64).log_softmax(0)
    return logits, reference


def entropy_of(logits):
    logp = logits.log_softmax(-1)
    return -(logp.exp() * logp).sum(-1)


def test_a_step_along_the_bonus_raises_the_entropy_of_a_tabular_policy():
    logits, _ = softmax_case()
    loss = entropy_bonus(entropy_of(logits)[None, None], torch.tensor([[True]]), coef=1.0).sum()
    (slope,) = torch.autograd.grad(loss, logits)
    assert entropy_of(logits - 0.01 * slope) > entropy_of(logits)


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_sampled_kls_equal_a_loop(kind, dtype):
    batch = slow.random_batch(2, dtype=dtype)
    found = slow.with_gradient(
        lambda x: kl_to_reference(x, batch.mask_BT, batch.ref_logp_BT, coef=0.3, kind=kind), batch.logp_BT
    )
    for a, b in zip(found, slow.slow_kl(batch, kind, 0.3), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10 if dtype == torch.float64 else 1e-5)


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_the_gradient_is_that_of_the_value(kind):
    batch = slow.random_batch(2)
    leaf = batch.logp_BT.clone().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: kl_to_reference(x, batch.mask_BT, batch.ref_logp_BT, coef=0.3, kind=kind), leaf
    )
    assert torch.autograd.gradcheck(
        lambda x: corrected_kl_to_reference(
            x, batch.old_logp_BT, batch.mask_BT, batch.ref_logp_BT, coef=1.0, kind=kind
        ),
        leaf,
    )


def test_an_exact_kl_is_taken_as_it_is():
    batch = slow.random_batch(2)
    value = kl_to_reference(batch.logp_BT, batch.mask_BT, None, batch.ref_kl_BT, coef=0.5, kind="exact")
    assert torch.equal(value, torch.where(batch.mask_BT, 0.5 * batch.ref_kl_BT, 0.0))


def test_by_hand():
    # Twice as likely as under the reference: d = ln 2. k1 0.693, k2 0.240, k3 1/2 - 1 + ln 2 = 0.193.
    logp, ref, mask = torch.tensor([[math.log(0.5)]]), torch.tensor([[math.log(0.25)]]), torch.tensor([[True]])
    values = [kl_to_reference(logp, mask, ref, coef=1.0, kind=kind).item() for kind in ("k1", "k2", "k3")]
    assert values == pytest.approx([0.693147, 0.240227, 0.193147], abs=1e-6)


def test_k3_is_never_negative():
    generator = torch.Generator().manual_seed(1)
    for scale in (1e-6, 1e-3, 1.0, 10.0):
        logp = -torch.rand(50, 40, generator=generator)
        ref = logp + scale * torch.randn(50, 40, generator=generator)
        value = kl_to_reference(logp, torch.ones(50, 40, dtype=torch.bool), ref, coef=1.0, kind="k3")
        assert (value >= 0).all()


# All actions of a softmax as one row, each weighted by its probability: expectations without sampling noise.


def expected(kind, logits, reference, *, old=None):
    """Σ_a sg(p_a) loss_a, p the sampling policy's."""
    logp = logits.log_softmax(0)
    old = logp.detach() if old is None else old
    everything = torch.ones(1, 5, dtype=torch.bool)
    if old.equal(logp.detach()):
        loss = kl_to_reference(logp[None], everything, reference[None], coef=1.0, kind=kind)
    else:
        loss = corrected_kl_to_reference(logp[None], old[None], everything, reference[None], coef=1.0, kind=kind)
    return (old.exp() * loss[0]).sum()


def kl(logp, other):
    return (logp.exp() * (logp - other)).sum()


def test_values_in_the_mean():
    logits, reference = softmax_case()
    exact = kl(logits.log_softmax(0), reference)
    assert expected("k1", logits, reference).item() == pytest.approx(exact.item())
    assert expected("k3", logits, reference).item() == pytest.approx(exact.item())
    assert expected("k2", logits, reference).item() != pytest.approx(exact.item(), rel=0.01)


def test_which_kl_a_gradient_belongs_to():
    logits, reference = softmax_case()

    def gradient(value):
        return torch.autograd.grad(value, logits)[0]

    towards = gradient(kl(logits.log_softmax(0), reference))
    backwards = gradient(kl(reference, logits.log_softmax(0)))
    torch.testing.assert_close(gradient(expected("k1", logits, reference)), torch.zeros_like(towards))
    torch.testing.assert_close(gradient(expected("k2", logits, reference)), towards)
    torch.testing.assert_close(gradient(expected("k3", logits, reference)), backwards)
    assert not torch.allclose(towards, backwards, rtol=0.1)


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_the_corrected_kl_is_right_off_policy_in_value_and_gradient(kind):
    logits, reference = softmax_case()
    old = torch.randn(5, generator=torch.Generator().manual_seed(5), dtype=torch.float64).log_softmax(0)
    exact, found = kl(logits.log_softmax(0), reference), expected(kind, logits, reference, old=old)
    assert found.item() == pytest.approx(exact.item())
    torch.testing.assert_close(torch.autograd.grad(found, logits)[0], torch.autograd.grad(exact, logits)[0])


def test_no_gradient_flows_into_the_reference():
    batch = slow.random_batch()
    leaves = [batch.logp_BT.clone().requires_grad_(), batch.ref_logp_BT.clone().requires_grad_()]
    kl_to_reference(leaves[0], batch.mask_BT, leaves[1], coef=1.0).sum().backward()
    assert leaves[0].grad.any()
    assert leaves[1].grad is None


def test_a_coefficient_of_0_adds_exact_zeros():
    batch = slow.random_batch()
    assert not entropy_bonus(batch.entropy_BT, batch.mask_BT, coef=0.0).any()
    assert not kl_to_reference(batch.logp_BT, batch.mask_BT, batch.ref_logp_BT, coef=0.0).any()


def test_a_reference_that_never_says_this_token_gives_no_nan():
    logp = torch.tensor([[-1.0]], requires_grad=True)
    mask = torch.tensor([[True]])
    # 500 nats apart: exp(500) is no float32.
    kl_to_reference(logp, mask, torch.tensor([[499.0]]), coef=1.0).sum().backward()
    assert logp.grad.isfinite().all()


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (
            lambda b: kl_to_reference(b.logp_BT, b.mask_BT, b.ref_logp_BT, coef=1.0, kind="k4"),
            "unknown kind of KL 'k4'",
        ),
        (lambda b: kl_to_reference(b.logp_BT, b.mask_BT, coef=1.0), "kind k3 needs ref_logp_BT.*reference model"),
        (lambda b: kl_to_reference(b.logp_BT, b.mask_BT, coef=1.0, kind="exact"), "needs ref_kl_BT.*softmaxes"),
        (lambda b: entropy_bonus(None, b.mask_BT, coef=1.0), "needs entropy_BT.*full softmax"),
        (lambda b: kl_to_reference(b.logp_BT, b.mask_BT, b.ref_logp_BT[:1], coef=1.0), "share one shape"),
        (
            lambda b: corrected_kl_to_reference(b.logp_BT, b.logp_BT, b.mask_BT, b.ref_logp_BT, coef=1.0, kind="exact"),
            "unknown kind of KL 'exact'",
        ),
    ],
)
def test_bad_input_is_told_in_one_line(ask, message):
    with pytest.raises(UsageError, match=message) as caught:
        ask(slow.random_batch())
    assert "\n" not in str(caught.value)
