"""Token statistics against plain logits, a slow loop over the vocabulary, finite differences and hand calculations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_iter  # noqa: E402

from equipoise.errors import UsageError  # noqa: E402
from equipoise.models.tiles import cut  # noqa: E402
from equipoise.models.token_confidence import token_confidence  # noqa: E402
from equipoise.models.token_stats import masked_token_stats, token_stats  # noqa: E402

N, D, V = 7, 5, 11
CHUNKS = [1, 6, 7, 20, 33, 10**6]  # from a tile of one logit to all logits in one tile


def inputs(dtype: Any = torch.float64, *, scale: float = 2.0, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Hidden states, weight, bias and ids."""
    draw = torch.Generator().manual_seed(seed)
    hidden, weight, bias = (
        (scale * torch.randn(*shape, generator=draw, dtype=torch.float64)).to(dtype).requires_grad_()
        for shape in [(N, D), (V, D), (V,)]
    )
    return hidden, weight, bias, torch.randint(V, (N,), generator=draw)


def plain(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, ids: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Log-prob and entropy with all logits at once; their gradients are autograd's."""
    logits = hidden @ weight.T
    distribution = torch.distributions.Categorical(logits=(logits if bias is None else logits + bias) / temperature)
    return distribution.log_prob(ids), distribution.entropy()


def loop_stats(z: np.ndarray, chosen: int) -> tuple[float, float, float]:
    """Log-prob, entropy and drift of one token, summed over the vocabulary with Python's exact sum."""
    top = max(z)
    log_total = top + math.log(math.fsum(math.exp(x - top) for x in z))
    logs = [float(x) - log_total for x in z]
    seen = [x for x in logs if math.exp(x) > 0]
    entropy = -math.fsum(math.exp(x) * x for x in seen)
    return logs[chosen], entropy, math.fsum(math.exp(2 * x) * (x + entropy) for x in seen)


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
@pytest.mark.parametrize("with_bias", [False, True])
def test_values_and_gradients_are_those_of_plain_logits(chunk: int, temperature: float, with_bias: bool) -> None:
    hidden, weight, bias, ids = inputs()
    leaves = [hidden, weight, *([bias] if with_bias else [])]
    stats = token_stats(hidden, weight, ids, temperature=temperature, bias_V=bias if with_bias else None, chunk=chunk)
    logp, entropy = plain(hidden, weight, bias if with_bias else None, ids, temperature)
    exact = {"rtol": 0, "atol": 1e-10}
    torch.testing.assert_close(stats.logp_N, logp, **exact)
    torch.testing.assert_close(stats.entropy_N, entropy, **exact)
    on_logp, on_entropy = torch.linspace(-1, 2, N), torch.linspace(3, -1, N)
    ours = torch.autograd.grad((stats.logp_N * on_logp + stats.entropy_N * on_entropy).sum(), leaves)
    theirs = torch.autograd.grad((logp * on_logp + entropy * on_entropy).sum(), leaves)
    for mine, his in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, his, **exact)


@pytest.mark.parametrize("chunk", CHUNKS)
def test_all_three_are_those_of_a_loop_over_the_vocabulary(chunk: int) -> None:
    hidden, weight, bias, ids = inputs()
    stats = token_stats(hidden, weight, ids, temperature=0.8, bias_V=bias, chunk=chunk)
    z_NV = ((hidden @ weight.T + bias) / 0.8).detach().numpy()
    expected = np.array([loop_stats(z, int(a)) for z, a in zip(z_NV, ids, strict=True)])
    found = torch.stack([stats.logp_N, stats.entropy_N, stats.drift_N], dim=1).detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_drift_worked_by_hand() -> None:
    # p = (3/4, 1/4): H = ln 4 - (3/4) ln 3. ln p + H = (1/4) ln 3 and -(3/4) ln 3.
    # drift = (9/16)(1/4) ln 3 - (1/16)(3/4) ln 3 = (6/64) ln 3.
    weight = torch.tensor([[math.log(3.0)], [0.0]], dtype=torch.float64, requires_grad=True)
    stats = token_stats(torch.ones(1, 1, dtype=torch.float64), weight, torch.tensor([1]))
    assert stats.logp_N.item() == pytest.approx(-math.log(4), abs=1e-15)
    assert stats.entropy_N.item() == pytest.approx(math.log(4) - 0.75 * math.log(3), abs=1e-15)
    assert stats.drift_N.item() == pytest.approx(6 / 64 * math.log(3), abs=1e-15)
    assert stats.logp_N.requires_grad
    assert not stats.drift_N.requires_grad


@pytest.mark.parametrize("advantage", [-0.7, 1.3])
def test_drift_completes_the_entropy_change_of_a_policy_gradient_step(advantage: float) -> None:
    z = inputs(seed=3)[2].detach()
    eye = torch.eye(V, dtype=torch.float64)

    def entropy_after(step: float) -> float:
        p = z.softmax(0)
        moved = z + step * advantage * (eye[4] - p)  # gradient ascent on A ln p_4
        return token_stats(moved[None], eye, torch.tensor([4])).entropy_N.item()

    stats = token_stats(z[None], eye, torch.tensor([4]))
    surprise = stats.logp_N.exp() * (stats.logp_N + stats.entropy_N)
    slope = (entropy_after(1e-5) - entropy_after(-1e-5)) / 2e-5
    assert slope == pytest.approx((-advantage * (surprise - stats.drift_N)).item(), abs=1e-9)


@pytest.mark.parametrize("chunk", [6, 10**6])
def test_gradcheck(chunk: int) -> None:
    hidden, weight, bias, ids = inputs(scale=0.8)

    def both(hidden: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        stats = token_stats(hidden, weight, ids, temperature=0.7, bias_V=bias, chunk=chunk)
        return stats.logp_N, stats.entropy_N

    assert torch.autograd.gradcheck(both, (hidden, weight, bias))


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8])
def test_ids_and_bias_of_any_width_and_stride(dtype: Any) -> None:
    hidden, weight, bias, ids = inputs()
    spaced_ids, spaced_bias = ids.to(dtype).repeat_interleave(2)[::2], bias.repeat_interleave(2)[::2]
    found = token_stats(hidden, weight, spaced_ids, bias_V=spaced_bias)
    torch.testing.assert_close(found.logp_N, plain(hidden, weight, bias, ids, 1.0)[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("used", ["logp_N", "entropy_N"])
def test_one_statistic_alone_gives_its_gradient(used: str) -> None:
    hidden, weight, _, ids = inputs()
    getattr(token_stats(hidden, weight, ids, chunk=20), used).sum().backward()
    expected = plain(hidden, weight, None, ids, 1.0)[0 if used == "logp_N" else 1].sum()
    for mine, his in zip((hidden.grad, weight.grad), torch.autograd.grad(expected, (hidden, weight)), strict=True):
        torch.testing.assert_close(mine, his, rtol=0, atol=1e-12)


@pytest.mark.parametrize("frozen", ["hidden", "weight", "bias"])
def test_what_is_frozen_gets_no_gradient_and_changes_no_other(frozen: str) -> None:
    hidden, weight, bias, ids = inputs()
    leaves = {"hidden": hidden, "weight": weight, "bias": bias}

    def run() -> None:
        stats = token_stats(hidden, weight, ids, bias_V=bias, chunk=20)
        (stats.logp_N + stats.entropy_N).sum().backward()

    run()
    expected = {name: leaf.grad for name, leaf in leaves.items() if name != frozen}
    for leaf in leaves.values():
        leaf.grad = None
    leaves[frozen].requires_grad_(False)
    run()
    assert leaves[frozen].grad is None
    for name, grad in expected.items():
        torch.testing.assert_close(leaves[name].grad, grad, rtol=0, atol=0)


def test_float32_is_close_to_float64() -> None:
    (hidden, weight, bias, ids), wide = inputs(torch.float32), inputs(torch.float32)[:3]
    stats = token_stats(hidden, weight, ids, bias_V=bias, chunk=20)
    wide = tuple(leaf.detach().double().requires_grad_() for leaf in wide)
    logp, entropy = plain(*wide, ids, 1.0)
    assert stats.logp_N.dtype == stats.entropy_N.dtype == stats.drift_N.dtype == torch.float32
    torch.testing.assert_close(stats.logp_N.double(), logp, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(stats.entropy_N.double(), entropy, rtol=1e-5, atol=1e-5)
    ours = torch.autograd.grad((stats.logp_N + stats.entropy_N).sum(), (hidden, weight, bias))
    theirs = torch.autograd.grad((logp + entropy).sum(), wide)
    for mine, his in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.double(), his, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32_and_gradients_rounded_once(dtype: Any) -> None:
    hidden, weight, _, ids = inputs(dtype)
    stats = token_stats(hidden, weight, ids, chunk=20)
    wide = [leaf.detach().float().requires_grad_() for leaf in (hidden, weight)]
    reference = token_stats(*wide, ids, chunk=20)
    assert stats.logp_N.dtype == torch.float32
    torch.testing.assert_close(stats.logp_N, reference.logp_N, rtol=0, atol=0)
    ours = torch.autograd.grad(stats.entropy_N.sum(), (hidden, weight))
    theirs = torch.autograd.grad(reference.entropy_N.sum(), wide)
    for mine, his in zip(ours, theirs, strict=True):
        assert mine.dtype == dtype
        torch.testing.assert_close(mine, his.to(dtype), rtol=0, atol=0)


def test_mixed_dtypes_meet_in_the_wider_one() -> None:
    hidden, weight, _, ids = inputs(torch.float32)
    low = hidden.detach().bfloat16().requires_grad_()
    stats = token_stats(low, weight, ids)
    expected = token_stats(low.detach().float(), weight, ids)
    torch.testing.assert_close(stats.logp_N, expected.logp_N, rtol=0, atol=0)
    stats.logp_N.sum().backward()
    assert (low.grad.dtype, weight.grad.dtype) == (torch.bfloat16, torch.float32)


# --- extremes --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("chunk", [1, 3, 100])
@pytest.mark.parametrize("offset", [0.0, 1e4, -1e4])
def test_logits_of_ten_thousand_lose_no_digits(dtype: Any, chunk: int, offset: float) -> None:
    # Integer logits: exact in both dtypes, whatever the offset.
    z = torch.tensor([[0, 1, 2, 3, -1], [3, 3, 3, 3, 3], [-2e4, 0, -2e4, 1, -2e4]], dtype=dtype) + offset
    hidden = z.clone().requires_grad_()
    ids = torch.tensor([1, 2, 3])
    stats = token_stats(hidden, torch.eye(5, dtype=dtype), ids, chunk=chunk)
    expected = np.array([loop_stats(row, int(a)) for row, a in zip((z - offset).double().numpy(), ids, strict=True)])
    found = torch.stack([stats.logp_N, stats.entropy_N, stats.drift_N], dim=1).detach().double().numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-14 if dtype == torch.float64 else 1e-6)
    (stats.logp_N + stats.entropy_N).sum().backward()
    assert hidden.grad.isfinite().all()


@pytest.mark.parametrize("chunk", [1, 2, 4, 14, 1000])
def test_banned_tokens_are_as_if_they_were_not_in_the_vocabulary(chunk: int) -> None:
    hidden, weight, bias, _ = inputs()
    banned = torch.tensor([True, True, False, True, False, False, False, False, False, False, True])
    allowed = (~banned).nonzero()[:, 0]
    ids = allowed[torch.arange(N) % len(allowed)]
    masked = bias.detach().masked_fill(banned, -math.inf).requires_grad_()
    stats = token_stats(hidden, weight, ids, bias_V=masked, chunk=chunk)
    small = [hidden, weight[allowed], bias[allowed]]
    logp, entropy = plain(*small, torch.searchsorted(allowed, ids), 1.0)
    torch.testing.assert_close(stats.logp_N, logp, rtol=0, atol=1e-12)
    torch.testing.assert_close(stats.entropy_N, entropy, rtol=0, atol=1e-12)
    ours = torch.autograd.grad((stats.logp_N + stats.entropy_N).sum(), (hidden, weight, masked))
    theirs = torch.autograd.grad((logp + entropy).sum(), (hidden, weight, bias))
    for mine, his in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, his, rtol=0, atol=1e-12)
    assert not ours[1][banned].any()
    assert stats.drift_N.isfinite().all()


def test_a_banned_token_that_was_chosen_has_probability_zero_and_a_finite_gradient() -> None:
    hidden, weight, bias, ids = inputs()
    banned = bias.detach().clone()
    banned[ids[0]] = -math.inf
    stats = token_stats(hidden, weight, ids, bias_V=banned)
    assert stats.logp_N[0] == -math.inf
    stats.logp_N[1:].sum().backward()
    assert hidden.grad.isfinite().all()
    assert weight.grad.isfinite().all()


def test_a_vocabulary_of_one() -> None:
    hidden, weight, _, _ = inputs()
    stats = token_stats(hidden, weight[:1], torch.zeros(N, dtype=torch.long))
    for values in (stats.logp_N, stats.entropy_N, stats.drift_N):
        assert not values.any()
    (stats.logp_N + stats.entropy_N).sum().backward()
    assert not hidden.grad.any()


def test_no_tokens_give_no_numbers_and_a_gradient_of_zero() -> None:
    hidden, weight, bias, ids = inputs()
    stats = token_stats(hidden[:0], weight, ids[:0], bias_V=bias)
    assert stats.logp_N.shape == stats.entropy_N.shape == stats.drift_N.shape == (0,)
    (stats.logp_N.sum() + stats.entropy_N.sum()).backward()
    for leaf in (hidden, weight, bias):
        assert leaf.grad.shape == leaf.shape
        assert not leaf.grad.any()


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0, 1e3])
def test_entropy_is_never_negative_nor_above_that_of_the_uniform(scale: float) -> None:
    hidden, weight, _, ids = inputs(torch.float32, scale=scale)
    entropy_N = token_stats(hidden, weight, ids, chunk=20).entropy_N
    assert (entropy_N >= 0).all()
    assert (entropy_N <= math.log(V) + 1e-6).all()


def test_a_lower_temperature_is_larger_logits() -> None:
    hidden, weight, _, ids = inputs()
    cold, large = token_stats(hidden, weight, ids, temperature=0.5), token_stats(2 * hidden, weight, ids)
    for name in ("logp_N", "entropy_N", "drift_N"):
        torch.testing.assert_close(getattr(cold, name), getattr(large, name), rtol=0, atol=1e-12)


# --- a batch with a mask ---------------------------------------------------------------------------------------------------


def test_masked_positions_are_zero_and_nothing_in_them_reaches_value_or_gradient() -> None:
    draw = torch.Generator().manual_seed(5)
    hidden = torch.randn(3, 4, D, generator=draw, dtype=torch.float64)
    ids = torch.randint(V, (3, 4), generator=draw)
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]], dtype=torch.bool)
    weight = inputs()[1]
    logp, entropy = plain(hidden[mask], weight, None, ids[mask], 1.0)
    (theirs,) = torch.autograd.grad((logp + entropy).sum(), weight)
    hidden[~mask], ids[~mask] = math.nan, -100
    hidden.requires_grad_()
    stats = masked_token_stats(hidden, weight, ids, mask, chunk=20)
    for values in (stats.logp_BT, stats.entropy_BT, stats.drift_BT):
        assert values.shape == mask.shape
        assert not values[~mask].any()
    torch.testing.assert_close(stats.logp_BT[mask], logp, rtol=0, atol=1e-12)
    torch.testing.assert_close(stats.entropy_BT[mask], entropy, rtol=0, atol=1e-12)
    grad_hidden, grad_weight = torch.autograd.grad((stats.logp_BT + stats.entropy_BT).sum(), (hidden, weight))
    assert not grad_hidden[~mask].any()
    assert grad_hidden[mask].any(dim=1).all()
    torch.testing.assert_close(grad_weight, theirs, rtol=0, atol=1e-12)


def test_an_all_masked_batch_is_an_exact_zero_that_can_still_be_differentiated() -> None:
    hidden = torch.full((2, 3, D), math.nan, dtype=torch.float64, requires_grad=True)
    weight = inputs()[1]
    stats = masked_token_stats(hidden, weight, torch.full((2, 3), -100), torch.zeros(2, 3, dtype=torch.bool))
    (stats.logp_BT.sum() + stats.entropy_BT.sum()).backward()
    assert not stats.logp_BT.any()
    assert not hidden.grad.any()
    assert not weight.grad.any()


# --- memory ----------------------------------------------------------------------------------------------------------------


class Largest(TorchDispatchMode):
    """The most elements of any tensor that an operation gives back."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_iter(result) if isinstance(leaf, Tensor)]
        self.elements = max(self.elements, *sizes, 0)
        return result


@pytest.mark.parametrize("chunk", [64, 500, 1000])
def test_no_tensor_is_larger_than_an_input_or_the_chunk(chunk: int) -> None:
    n, v = 60, 400
    hidden = torch.randn(n, 2, requires_grad=True)
    weight = torch.randn(v, 2, requires_grad=True)
    ids = torch.randint(v, (n,))
    with Largest() as seen:
        stats = token_stats(hidden, weight, ids, chunk=chunk)
        (stats.logp_N + stats.entropy_N).sum().backward()
        token_confidence(hidden, weight, chunk=chunk, k=3)
    assert seen.elements <= max(chunk, v * 2) < n * v
    with Largest() as seen:
        plain(hidden, weight, None, ids, 1.0)
    assert seen.elements == n * v  # the recorder sees what it should


@pytest.mark.parametrize("n", [0, 1, 100, 16_384, 100_000])
@pytest.mark.parametrize("v", [1, 127, 49_152, 151_936])
@pytest.mark.parametrize("chunk", [1, 100, 2**20, 2**26])
def test_tiles_fit_the_chunk_and_are_about_as_many_as_must_be(n: int, v: int, chunk: int) -> None:
    rows, columns = cut(n, v, chunk)
    assert 1 <= rows <= max(n, 1)
    assert 1 <= columns <= v
    assert rows * columns <= chunk
    if columns >= 128 and rows * v > chunk:
        assert columns % 128 == 0
        assert -(-v // columns) == -(-v // (chunk // rows // 128 * 128))


# --- confidence ------------------------------------------------------------------------------------------------------------


def loop_confidence(z: np.ndarray, k: int) -> float:
    most_likely = sorted(range(len(z)), key=lambda a: z[a], reverse=True)[:k]
    return -sum(loop_stats(z, a)[0] for a in most_likely) / k


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("k", [1, 3, V])
def test_confidence_is_that_of_a_loop_over_the_vocabulary(chunk: int, k: int) -> None:
    hidden, weight, bias, _ = inputs()
    found = token_confidence(hidden, weight, k=k, temperature=0.8, bias_V=bias, chunk=chunk)
    assert not found.requires_grad
    z_NV = ((hidden @ weight.T + bias) / 0.8).detach().numpy()
    np.testing.assert_allclose(found.numpy(), [loop_confidence(z, k) for z in z_NV], rtol=0, atol=1e-12)


@pytest.mark.parametrize("chunk", [2 * 640, 2 * 2000, 10**6])
def test_confidence_of_a_wide_vocabulary_with_ties_and_neighbours(chunk: int) -> None:
    # The largest logits lie side by side, and many are equal: a search by groups must lose none of them.
    z = torch.zeros(2, 1920, dtype=torch.float64)
    z[0, 700:716] = torch.arange(16.0, dtype=torch.float64) + 1
    z[1] = torch.arange(1920) % 7
    found = token_confidence(z, torch.eye(1920, dtype=torch.float64), k=5, chunk=chunk)
    np.testing.assert_allclose(found.numpy(), [loop_confidence(row, 5) for row in z.numpy()], rtol=0, atol=1e-12)


def test_confidence_of_the_uniform_is_the_log_of_the_vocabulary() -> None:
    found = token_confidence(torch.zeros(3, D), torch.ones(50, D))
    torch.testing.assert_close(found, torch.full((3,), math.log(50)))


# --- bad input -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"ids_N": torch.tensor([0, 11])}, "ids must be 0 to 10 .* found 0 to 11"),
        ({"ids_N": torch.tensor([-100, 3])}, "found -100 to 3: leave masked positions out"),
        ({"ids_N": torch.tensor([0.0, 1.0])}, "ids must be 2 integers, one per token, found torch.float32"),
        ({"ids_N": torch.tensor([0])}, "ids must be 2 integers"),
        ({"ids_N": torch.zeros(2, dtype=torch.long, device="meta")}, "ids are on meta, hidden states on cpu"),
        ({"weight_VD": torch.zeros(V, D + 1)}, r"need hidden \(N, D\), weight \(V, D\)"),
        ({"weight_VD": torch.zeros(0, D)}, r"found hidden \(2, 5\), weight \(0, 5\)"),
        ({"hidden_ND": torch.zeros(1, 2, D)}, r"found hidden \(1, 2, 5\)"),
        ({"hidden_ND": torch.zeros(2, D, dtype=torch.long)}, "must be floating point, found torch.int64"),
        ({"bias_V": torch.zeros(D)}, r"bias \(5,\)"),
        ({"temperature": 0.0}, "temperature 0.0: use a finite number above 0"),
        ({"temperature": math.nan}, "temperature nan"),
        ({"chunk": 0}, "chunk 0"),
    ],
)
def test_bad_input_is_one_line(change: dict[str, Any], says: str) -> None:
    good = {"hidden_ND": torch.zeros(2, D), "weight_VD": torch.zeros(V, D), "ids_N": torch.tensor([0, 1])}
    with pytest.raises(UsageError, match=says) as raised:
        token_stats(**(good | change))
    assert "\n" not in str(raised.value)


def test_bad_masks_and_k_are_refused() -> None:
    hidden, weight, ids = torch.zeros(2, 3, D), torch.zeros(V, D), torch.zeros(2, 3, dtype=torch.long)
    with pytest.raises(UsageError, match=r"share one shape: .*mask_BT \(2, 1\)"):
        masked_token_stats(hidden, weight, ids, torch.ones(2, 1, dtype=torch.bool))
    with pytest.raises(UsageError, match="boolean"):
        masked_token_stats(hidden, weight, ids, torch.ones(2, 3))
    with pytest.raises(UsageError, match="12 most likely tokens of 11"):
        token_confidence(hidden[0], weight, k=12)
