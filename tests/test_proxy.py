"""Proxy-tuning against single models bit by bit, hand calculations and whole forward passes of the three."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from equipoise.base import Answer, Question, Sampling  # noqa: E402
from equipoise.errors import UsageError  # noqa: E402
from equipoise.infer.decoded import Decoded  # noqa: E402
from equipoise.infer.ledger import Ledger  # noqa: E402
from equipoise.infer.metered import Metered  # noqa: E402
from equipoise.lab.open_model import open_sampler, proxy_parts  # noqa: E402
from equipoise.models.characters import Characters  # noqa: E402
from equipoise.models.decoding import Decoding, pick_tokens  # noqa: E402
from equipoise.models.generate import generate, pad_left  # noqa: E402
from equipoise.models.gpt import GPT, GPTConfig  # noqa: E402
from equipoise.models.language_model import Head, hidden_states, prefill, step  # noqa: E402
from equipoise.models.loaders import Loaded  # noqa: E402
from equipoise.models.proxy import ProxyHead, ProxyModel, combine_logits, proxy_of  # noqa: E402
from equipoise.models.samples import score_samples  # noqa: E402
from equipoise.samplers.in_process import InProcess  # noqa: E402

LETTERS = Characters("abcd+=")
PROMPTS = [[2, 3, 4], [4], [3, 3, 5, 2]]


def wild(seed, *, width=8, layers=2, vocabulary=LETTERS.size, context=24):
    """In float32, with weights large enough that the next token depends on all tokens before it."""
    model = GPT(GPTConfig(vocabulary, width=width, layers=layers, heads=2, context=context), seed=seed)
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.5 * torch.randn(weight.shape, generator=draw)
    return model.train(False)


def base():
    return wild(1, width=16, layers=3)


def sample(model, **rest):
    rest = {"seeds": (7, 8, 9), "samples": 20, "max_tokens": 12, "pad": 0, "stop": (1,), **rest}
    return generate(model, PROMPTS, **rest)


def same(one, other):
    for name in ("ids_BT", "mask_BT", "logp_BT", "entropy_BT"):
        assert torch.equal(getattr(one, name), getattr(other, name)), name
    return len({tuple(ids) for ids in one.ids_BT.tolist()}) > 20


def logits_of(model, ids):
    whole = torch.tensor([ids])
    with torch.no_grad():
        return model.head.logits(hidden_states(model, whole, torch.ones_like(whole, dtype=torch.bool))[:, -1])[0]


# --- exact limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decoding", [Decoding(), Decoding(temperature=2.0, min_p=0.02)])
def test_an_expert_equal_to_the_anti_expert_is_the_base_bit_by_bit(decoding):
    proxy = ProxyModel(base(), wild(2), wild(2), alpha=1.7)
    assert same(sample(proxy, decoding=decoding), sample(base(), decoding=decoding))


def test_alpha_0_is_the_base_bit_by_bit():
    assert same(sample(ProxyModel(base(), wild(2), wild(3), alpha=0.0)), sample(base()))
    assert same(sample(ProxyModel(base(), wild(2), wild(3)).at(0.0)), sample(base()))


def test_a_base_equal_to_the_anti_expert_is_the_expert_bit_by_bit():
    assert same(sample(ProxyModel(base(), wild(2), base(), alpha=1.0)), sample(wild(2)))


def test_otherwise_it_is_neither():
    drawn = sample(ProxyModel(base(), wild(2), wild(3)))
    for model in (base(), wild(2), wild(3)):
        assert not torch.equal(drawn.ids_BT, sample(model).ids_BT)


# --- the equation ----------------------------------------------------------------------------------------------------------


def test_three_tokens_by_hand():
    # base + 0.5 (expert − anti): 1 + 0.5 (2 − 1) = 1.5, 2 + 0.5 (0 − 1) = 1.5, 3 + 0.5 (1 − 1) = 3
    heads = [Head(torch.eye(3)) for _ in range(3)]
    head = ProxyHead.of(*heads, alpha=0.5)
    states = torch.tensor([[1.0, 2.0, 3.0, 2.0, 0.0, 1.0, 1.0, 1.0, 1.0]])
    assert head.logits(states).tolist() == [[1.5, 1.5, 3.0]]
    total = 2 * math.exp(1.5) + math.exp(3)
    picks = [pick_tokens(states, head, torch.tensor([u]), Decoding()) for u in (0.0, 0.1, 0.2, 0.35, 0.99)]
    # cumulative: 0.1543, 0.3086, 1
    assert [int(each.ids_B) for each in picks] == [0, 0, 1, 2, 2]
    logp = [float(each.logp_B) for each in picks]
    expected = [math.log(math.exp(x) / total) for x in (1.5, 1.5, 1.5, 3, 3)]
    assert logp == pytest.approx(expected, abs=1e-6)


def test_the_one_product_gives_the_same_logits():
    """For those who look on: token confidences and training's statistics use the weights of all three side by side."""
    proxy = ProxyModel(base(), wild(2), wild(3), alpha=0.8)
    states = torch.randn(5, proxy.head.weight_VD.shape[1], generator=torch.Generator().manual_seed(0))
    plain = Head(proxy.head.weight_VD, proxy.head.bias_V)
    torch.testing.assert_close(plain.logits(states), proxy.head.logits(states), atol=1e-4, rtol=0)
    assert plain.logits(states)[:, 0].isneginf().all()  # padding stays banned
    drawn = sample(proxy)
    torch.testing.assert_close(score_samples(proxy, drawn).logp_BT, drawn.logp_BT, atol=1e-4, rtol=0)


def test_log_probs_are_those_of_the_three_whole_forward_passes():
    models, alpha, temperature = (base(), wild(2), wild(3)), 1.3, 0.7
    drawn = sample(ProxyModel(*models, alpha=alpha), samples=4, decoding=Decoding(temperature=temperature))
    for row in range(len(drawn.ids_BT)):
        ids = drawn.ids_BT[row][drawn.mask_BT[row]].tolist()
        for t, token in enumerate(ids):
            first, second, third = (logits_of(m, PROMPTS[row // 4] + ids[:t]).double() for m in models)
            logits = first + alpha * (second - third)
            logits[0] = -torch.inf
            p = (logits / temperature).softmax(0)
            assert float(drawn.logp_BT[row, t]) == pytest.approx(float(p[token].log()), abs=1e-4)
            assert float(drawn.entropy_BT[row, t]) == pytest.approx(float(torch.special.entr(p).sum()), abs=1e-4)


def test_greedy_is_the_largest_of_the_summed_logits():
    models = (base(), wild(2), wild(3))
    drawn = sample(ProxyModel(*models), samples=1, stop=(), max_tokens=8, decoding=Decoding(top_k=1))
    for prompt, ids in zip(PROMPTS, drawn.ids_BT.tolist(), strict=True):
        for t, token in enumerate(ids):
            first, second, third = (logits_of(m, prompt + ids[:t]).double() for m in models)
            assert token == int((first + second - third)[1:].argmax()) + 1


def test_a_constant_added_to_any_models_logits_changes_nothing():
    draw = torch.Generator().manual_seed(3)
    first, second, third = (torch.randn(4, 9, generator=draw) for _ in range(3))
    plain = combine_logits(first, second, third, alpha=0.7).softmax(-1)
    for moved in ((first + 5, second, third), (first, second - 3, third), (first, second, third + 2)):
        torch.testing.assert_close(combine_logits(*moved, alpha=0.7).softmax(-1), plain, atol=1e-5, rtol=0)


def test_three_caches_stay_of_one_length():
    models = (base(), wild(2), wild(3, layers=1))
    proxy = ProxyModel(*models)
    ids, mask = pad_left(PROMPTS, 4, pad=0)
    _, cache = prefill(proxy, ids, mask)
    assert len(cache.keys) == 3 + 2 + 1
    cache = cache.expand(2, room=3)
    for _ in range(3):
        step(proxy, torch.full((6,), 2), cache)
    assert {keys.shape[2] for keys in cache.keys} == {7}
    assert [keys.shape[3] for keys in cache.keys] == [8, 8, 8, 4, 4, 4]
    assert (cache.slot_1.tolist(), cache.positions_B.tolist()) == ([7], [6, 6, 4, 4, 7, 7])


# --- models that do not go together ----------------------------------------------------------------------------------------


def test_rows_beyond_the_bases_are_left_out():
    longer = wild(2, vocabulary=LETTERS.size + 4)
    proxy = ProxyModel(base(), longer, longer)
    assert len(proxy.head.weight_VD) == LETTERS.size
    assert same(sample(proxy), sample(base()))


def test_the_shortest_context_holds():
    assert ProxyModel(base(), wild(2, context=20), wild(2)).context == 20


def refused(make):
    with pytest.raises(UsageError) as problem:
        make()
    assert "\n" not in str(problem.value)
    return str(problem.value)


def test_what_cannot_be_added_is_refused_in_one_line():
    mine, others = Loaded(base(), LETTERS), Loaded(wild(2), Characters("dcba+="))
    assert "the expert's vocabulary is not the base's" in refused(lambda: proxy_of(mine, others, mine))
    assert "the anti-expert's vocabulary" in refused(lambda: proxy_of(mine, mine, others))
    assert "the base has 8 of them, the anti-expert 6" in refused(
        lambda: ProxyModel(base(), wild(2), wild(2, vocabulary=6))
    )
    assert "in one precision" in refused(lambda: ProxyModel(base(), wild(2).double(), wild(2)))
    banning = wild(2)
    banning.no_pad_V[3] = -torch.inf
    assert "bans other tokens" in refused(lambda: ProxyModel(base(), banning, wild(2)))
    assert "alpha" in refused(lambda: ProxyModel(base(), wild(2), wild(2), alpha=math.nan))


def test_a_diverged_part_is_an_error():
    broken = wild(2)
    with torch.no_grad():
        broken.norm.weight.fill_(torch.nan)
    with pytest.raises(FloatingPointError, match="diverged"):
        sample(ProxyModel(base(), broken, wild(2)))


# --- by name, and as a sampler ---------------------------------------------------------------------------------------------


def test_a_name_says_all_three():
    assert proxy_parts("packaged:small") == (["packaged:small"], None)
    name = "proxy:base=packaged:medium,expert=runs/a-b+c,anti=packaged:small"
    assert proxy_parts(name) == (["packaged:medium", "runs/a-b+c", "packaged:small"], 1.0)
    assert proxy_parts(f"{name},alpha=0.5")[1] == 0.5
    for bad, words in [
        ("proxy:base=a,expert=b", "has no anti"),
        (f"{name},alpha=much", "no number"),
        (f"{name},beta=1", "beta"),
    ]:
        assert words in refused(lambda bad=bad: proxy_parts(bad))


def test_by_name_the_packaged_model_steered_by_nothing_is_itself():
    proxy = open_sampler("proxy:base=packaged:small,expert=packaged:medium,anti=packaged:medium")
    assert (proxy.passes, proxy.small, open_sampler("packaged").passes) == (3, True, 1)
    assert proxy.title.endswith("(3 forward passes a token)")
    how = Sampling(max_tokens=20)
    assert proxy.describe_sampling(how, max_tokens=20)["forward_passes"] == 3
    found = [draw(opened.sampler, "3,7,2,9=24>", how) for opened in (proxy, open_sampler("packaged:small"))]
    assert found[0] == found[1]


def draw(sampler, prompt, how, n=8):
    question = Question("q", prompt, lambda c: Answer(c.text), how, seed=3)
    metered = Metered(sampler, Ledger())

    async def go():
        return await metered.draw(question, n=n).completions()

    drawn = asyncio.run(go())
    assert metered.ledger.spent.generated == sum(c.n_tokens for c in drawn)  # once, not once for each model
    return [(c.text, list(c.logprobs), list(c.entropies)) for c in drawn]


def test_a_sampler_draws_what_generate_does_and_takes_an_alpha():
    loaded = proxy_of(Loaded(base(), LETTERS), Loaded(wild(2), LETTERS), Loaded(wild(3), LETTERS), alpha=0.5)
    how = Sampling(max_tokens=9)
    whole = generate(loaded.model, [LETTERS.encode("ab+")], seeds=[3], samples=8, max_tokens=9, pad=0, stop=(1,))
    found = draw(InProcess(loaded, piece=2), "ab+", how)
    assert [len(logp) for _, logp, _ in found] == whole.mask_BT.sum(1).tolist()
    np.testing.assert_allclose(
        [x for _, logp, _ in found for x in logp], whole.logp_BT[whole.mask_BT].numpy(), atol=1e-5
    )
    alone = draw(InProcess(Loaded(base(), LETTERS)), "ab+", how)
    assert draw(InProcess(loaded), "ab+", replace(how, extra={"alpha": 0.0})) == alone != found


def test_two_alphas_are_two_arms():
    loaded = proxy_of(Loaded(base(), LETTERS), Loaded(wild(2), LETTERS), Loaded(wild(3), LETTERS))
    question = Question("q", "ab+", lambda c: Answer(c.text), Sampling(max_tokens=9), seed=3)

    def texts(strategy, model):
        choice = asyncio.run(strategy(question, Metered(InProcess(model), Ledger())))
        return [c.text for c in choice.drawn]

    alone = texts(Decoded(n=6), Loaded(base(), LETTERS))
    assert texts(Decoded(n=6, alpha=0.0), loaded) == alone != texts(Decoded(n=6), loaded)
    with pytest.raises(UsageError, match="not proxy-tuned"):
        texts(Decoded(n=6, alpha=0.5), Loaded(base(), LETTERS))
