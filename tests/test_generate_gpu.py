"""Sampling with captured CUDA graphs: the same completions as step by step. Needs a GPU (make test-gpu)."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from equipoise.models.decoding import Decoding  # noqa: E402
from equipoise.models.generate import generate  # noqa: E402
from equipoise.models.gpt import GPT, GPTConfig  # noqa: E402
from equipoise.models.graphs import MOST, StepGraphs  # noqa: E402
from equipoise.models.proxy import ProxyModel  # noqa: E402
from equipoise.models.samples import Samples, score_samples  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

PROMPTS = [[2, 3, 4], [4], [3, 3], [2, 4, 4, 2, 5, 3, 2]]


def wild(dtype: torch.dtype = torch.float64) -> GPT:
    model = GPT(GPTConfig(8, width=32, layers=2, heads=2, context=40)).to("cuda", dtype)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)).to(weight)
    return model


def sample(model: GPT, graphs: StepGraphs | None, *, seeds=(1, 2, 3, 4), samples: int = 16, **rest) -> Samples:
    return generate(
        model, PROMPTS, seeds=seeds, samples=samples, max_tokens=20, pad=0, stop=(1,), graphs=graphs, **rest
    )


def test_graphs_draw_what_steps_draw_call_after_call() -> None:
    model, graphs = wild(), StepGraphs()
    for seeds in [(1, 2, 3, 4), (5, 6, 7, 8)]:
        stepped, replayed = sample(model, None, seeds=seeds), sample(model, graphs, seeds=seeds)
        assert torch.equal(stepped.ids_BT, replayed.ids_BT)
        assert torch.equal(stepped.mask_BT, replayed.mask_BT)
        assert stepped.finish == replayed.finish
        torch.testing.assert_close(stepped.logp_BT, replayed.logp_BT, rtol=0, atol=1e-6)
        torch.testing.assert_close(stepped.entropy_BT, replayed.entropy_BT, rtol=0, atol=1e-6)


def test_a_cpu_draws_the_same() -> None:
    model = wild()
    on_gpu = sample(model, StepGraphs())
    on_cpu = sample(model.cpu(), None)
    assert torch.equal(on_gpu.ids_BT.cpu(), on_cpu.ids_BT)


def test_graphs_see_weights_that_changed_in_place() -> None:
    model, graphs = wild(), StepGraphs()
    first = sample(model, graphs)
    with torch.no_grad():
        for weight in model.parameters():
            weight *= 0.5
    stepped, replayed = sample(model, None), sample(model, graphs)
    assert not torch.equal(stepped.ids_BT, first.ids_BT)
    assert torch.equal(stepped.ids_BT, replayed.ids_BT)


def test_many_shapes_and_rules_share_one_store() -> None:
    model, graphs = wild(), StepGraphs()
    for samples in range(1, MOST + 3):
        for decoding in (
            Decoding(),
            Decoding(temperature=0.7, top_p=0.9, min_p=0.05),
            Decoding(temperature=1.6, top_n_sigma=1.2, edt=0.2, order="temperature_last"),
            Decoding(repel=1.0),
        ):
            stepped = sample(model, None, samples=samples, decoding=decoding)
            assert torch.equal(stepped.ids_BT, sample(model, graphs, samples=samples, decoding=decoding).ids_BT)


def test_siblings_keep_apart_the_same_way_on_both_devices() -> None:
    model = wild()
    on_gpu = sample(model, StepGraphs(), decoding=Decoding(repel=1.0, repel_first=3))
    assert torch.equal(
        on_gpu.ids_BT.cpu(), sample(model.cpu(), None, decoding=Decoding(repel=1.0, repel_first=3)).ids_BT
    )


def test_a_proxy_replays_and_its_limits_are_exact() -> None:
    base, expert = wild(torch.float32), GPT(GPTConfig(8, width=16, layers=1, heads=2, context=40), seed=3).to("cuda")
    anti = GPT(GPTConfig(8, width=16, layers=1, heads=2, context=40), seed=4).to("cuda")
    proxy, graphs = ProxyModel(base, expert, anti, alpha=1.5), StepGraphs()
    assert torch.equal(sample(proxy, None).ids_BT, sample(proxy, graphs).ids_BT)
    for same, alone in (
        (proxy.at(0.0), base),
        (ProxyModel(base, anti, anti), base),
        (ProxyModel(base, expert, base), expert),
    ):
        assert torch.equal(sample(same, graphs).ids_BT, sample(alone, graphs).ids_BT)
        assert torch.equal(sample(same, None).logp_BT, sample(alone, None).logp_BT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_training_recomputes_the_sampled_log_probs(dtype: torch.dtype) -> None:
    model = wild(dtype)
    drawn = sample(model, StepGraphs())
    scored = score_samples(model, drawn)
    tolerance = 1e-4 if dtype == torch.float32 else 0.2
    assert float((scored.logp_BT.detach() - drawn.logp_BT).abs().mean()) < tolerance
    scored.logp_BT.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
