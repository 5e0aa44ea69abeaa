"""Token statistics on a GPU against the CPU's and against float64. Run with `make test-gpu`."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

from equipoise.models.token_confidence import token_confidence  # noqa: E402
from equipoise.models.token_stats import masked_token_stats, token_stats  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]
N, D, V = 300, 64, 5_000  # neither N nor V a multiple of a tile or block
CHUNKS = [50_000, N * 1_280, N * 4_096, 2**26]


def inputs(dtype: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """On the CPU, exact in `dtype`: hidden states, weight, bias with banned tokens, ids that are not banned."""
    draw = torch.Generator().manual_seed(1)
    hidden, weight = torch.randn(N, D, generator=draw), 0.5 * torch.randn(V, D, generator=draw)
    bias = torch.randn(V, generator=draw)
    bias[1_000:3_000:2] = -math.inf
    ids = 2 * torch.randint(V // 2, (N,), generator=draw) + 1
    return hidden.to(dtype), weight.to(dtype), bias.to(dtype), ids


def run(hidden: Tensor, weight: Tensor, bias: Tensor | None, ids: Tensor, **settings: Any) -> dict[str, Tensor]:
    """Values and the gradients of a weighted sum, in float64 on the CPU."""
    leaves = [
        leaf.detach().clone().requires_grad_() for leaf in (hidden, weight) + ((bias,) if bias is not None else ())
    ]
    stats = token_stats(*leaves[:2], ids, bias_V=leaves[2] if bias is not None else None, **settings)
    weights = torch.linspace(-1, 1, len(ids)).to(stats.logp_N)
    (stats.logp_N * weights + 0.5 * stats.entropy_N * weights.flip(0)).sum().backward()
    found = {"logp": stats.logp_N, "entropy": stats.entropy_N, "drift": stats.drift_N}
    found |= {f"grad{i}": leaf.grad for i, leaf in enumerate(leaves)}
    assert all(leaf.grad.dtype == leaf.dtype for leaf in leaves)
    return {name: value.detach().double().cpu() for name, value in found.items()}


def assert_near(found: dict[str, Tensor], exact: dict[str, Tensor], *, values: float, grads: float) -> None:
    for name, true in exact.items():
        gap = found[name] - true
        assert gap.isfinite().all(), name
        if name.startswith("grad"):
            assert gap.norm() <= grads * true.norm(), name
        else:
            assert gap.abs().max() <= values, name


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(
    ("dtype", "values", "grads"),
    [
        (torch.float64, 1e-12, 1e-12),
        (torch.float32, 2e-5, 1e-5),
        (torch.float16, 1e-4, 1e-3),  # values as in float32: logits are not rounded; gradients to 11 bits
        (torch.bfloat16, 1e-4, 4e-3),  # to 8 bits
    ],
)
def test_same_as_float64_on_the_cpu(chunk: int, with_bias: bool, dtype: Any, values: float, grads: float) -> None:
    hidden, weight, bias, ids = inputs(dtype)
    mine = (hidden, weight, bias if with_bias else None)
    exact = run(*(None if t is None else t.double() for t in mine), ids, temperature=0.8)
    found = run(*(None if t is None else t.cuda() for t in mine), ids.cuda(), temperature=0.8, chunk=chunk)
    assert_near(found, exact, values=values, grads=grads)


def test_ids_and_bias_of_any_width_and_stride() -> None:
    hidden, weight, bias, ids = (t.cuda() for t in inputs(torch.float32))
    expected = token_stats(hidden, weight, ids, bias_V=bias)
    spaced_ids, spaced_bias = ids.int().repeat_interleave(2)[::2], bias.repeat_interleave(2)[::2]
    found = token_stats(hidden.T.contiguous().T, weight.T.contiguous().T, spaced_ids, bias_V=spaced_bias)
    torch.testing.assert_close(found.logp_N, expected.logp_N, rtol=0, atol=1e-4)
    torch.testing.assert_close(found.entropy_N, expected.entropy_N, rtol=0, atol=1e-4)


def test_blocks_of_tokens_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight, bias, ids = (t.cuda() for t in inputs(torch.bfloat16))
    exact = run(hidden.double(), weight.double(), bias.double(), ids)
    monkeypatch.setattr("equipoise.models.tiles.ROWS", 128)
    assert_near(run(hidden, weight, bias, ids), exact, values=1e-4, grads=4e-3)


def test_autocast_multiplies_in_half_precision_and_keeps_float32_gradients() -> None:
    hidden, weight, _, ids = inputs(torch.bfloat16)
    exact = run(hidden.double(), weight.double(), None, ids)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        found = run(hidden.cuda().float(), weight.cuda().float(), None, ids.cuda())
    assert_near(found, exact, values=1e-4, grads=4e-3)


@pytest.mark.parametrize("offset", [0.0, 1e4, -1e4])
def test_logits_of_ten_thousand_lose_no_digits(offset: float) -> None:
    z = torch.tensor([[0.0, 1, 2, 3, -1, 0, 0, 0], [-2e4, 0, -2e4, 1, -2e4, -2e4, -2e4, -2e4]])
    ids, eye = torch.tensor([1, 3]), torch.eye(8)
    exact = run(z.double(), eye.double(), None, ids)
    found = run((z + offset).cuda(), eye.cuda(), None, ids.cuda(), chunk=6)
    for name in ("logp", "entropy", "drift", "grad0"):
        torch.testing.assert_close(found[name], exact[name], rtol=0, atol=2e-6)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0, 1e3])
def test_entropy_is_never_negative_nor_above_that_of_the_uniform(scale: float) -> None:
    hidden, weight, _, ids = (t.cuda() for t in inputs(torch.float32))
    entropy_N = token_stats(scale * hidden, weight, ids, temperature=0.7).entropy_N
    assert (entropy_N >= 0).all()
    assert (entropy_N <= math.log(V) + 1e-5).all()


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("v", [1, 2, 17])
def test_few_tokens_and_few_words(n: int, v: int) -> None:
    hidden, weight, _, ids = inputs(torch.float32)
    hidden, weight, ids = hidden[:n], weight[:v], ids[:n] % v
    exact = run(hidden.double(), weight.double(), None, ids)
    assert_near(run(hidden.cuda(), weight.cuda(), None, ids.cuda(), chunk=8), exact, values=2e-5, grads=1e-5)


def test_masked_batch_and_no_tokens() -> None:
    hidden, weight, _, ids = (t.cuda() for t in inputs(torch.bfloat16))
    hidden_BTD, ids_BT = hidden.view(3, 100, D).clone(), ids.view(3, 100).clone()
    mask_BT = torch.arange(100, device="cuda") < torch.tensor([[100], [37], [0]], device="cuda")
    expected = token_stats(hidden_BTD[mask_BT], weight, ids_BT[mask_BT])
    hidden_BTD[~mask_BT], ids_BT[~mask_BT] = math.nan, -100
    stats = masked_token_stats(hidden_BTD, weight, ids_BT, mask_BT)
    torch.testing.assert_close(stats.entropy_BT[mask_BT], expected.entropy_N, rtol=0, atol=0)
    assert not stats.entropy_BT[~mask_BT].any()
    none = masked_token_stats(hidden_BTD.requires_grad_(), weight, ids_BT, torch.zeros_like(mask_BT))
    none.logp_BT.sum().backward()
    assert not hidden_BTD.grad.any()


@pytest.mark.parametrize("chunk", CHUNKS)
def test_confidence_same_as_sorted_on_the_cpu(chunk: int) -> None:
    hidden, weight, bias, _ = inputs(torch.bfloat16)
    log_p = ((hidden.double() @ weight.double().T + bias.double()) / 0.8).log_softmax(-1)
    exact = -log_p.sort(descending=True).values[:, :20].mean(-1)
    found = token_confidence(hidden.cuda(), weight.cuda(), bias_V=bias.cuda(), temperature=0.8, chunk=chunk)
    torch.testing.assert_close(found.double().cpu(), exact, rtol=0, atol=1e-4)
