"""Min-p, top-nσ, entropy-adaptive temperature and sibling repulsion: hand values, slow loops, transformers' own warpers."""

from __future__ import annotations

import asyncio
import math
from collections import Counter

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from equipoise.base import Sampling  # noqa: E402
from equipoise.errors import UsageError  # noqa: E402
from equipoise.models.characters import Characters  # noqa: E402
from equipoise.models.decoding import COLDEST, Decoding, pick_tokens, sigma_floor  # noqa: E402
from equipoise.models.generate import generate  # noqa: E402
from equipoise.models.gpt import GPT, GPTConfig  # noqa: E402
from equipoise.models.language_model import Head  # noqa: E402
from equipoise.models.loaders import Loaded  # noqa: E402
from equipoise.samplers.in_process import InProcess  # noqa: E402

LETTERS = Characters("abcdef")
STOP = 1
GRID = [(i + 0.5) / 4000 for i in range(4000)]  # even uniforms give every token its share


def picks_of(logits, uniforms=(0.5,), **settings):
    logits = torch.as_tensor(logits, dtype=torch.float64)
    rows = logits.expand(len(uniforms), -1).clone()
    head = Head(torch.eye(rows.shape[1], dtype=torch.float64))
    return pick_tokens(rows, head, torch.tensor(uniforms, dtype=torch.float64), Decoding(**settings))


def shares(logits, **settings):
    seen = Counter(picks_of(logits, GRID, **settings).ids_B.tolist())
    return [seen[token] / len(GRID) for token in range(len(logits))]


def kept(logits, **settings):
    return {token for token, share in enumerate(shares(logits, **settings)) if share}


# --- min-p -----------------------------------------------------------------------------------------------------------------


@pytest.mark.integration  # with transformers
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("min_p", [0.0, 0.05, 0.3, 1.0])
def test_min_p_keeps_what_transformers_keeps(temperature, min_p):
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'equipoise[train]'")
    draw = torch.Generator().manual_seed(0)
    for _ in range(8):
        logits = 2 * torch.randn(1, 12, generator=draw, dtype=torch.float64)
        scores = transformers.TemperatureLogitsWarper(temperature)(None, logits)
        warped = transformers.MinPLogitsWarper(min_p=min_p)(None, scores) if min_p else scores
        p = warped.softmax(-1)[0].numpy()
        found = shares(logits[0], temperature=temperature, min_p=min_p)
        np.testing.assert_allclose(found, p, atol=2 / len(GRID))
        assert {t for t in range(12) if p[t] > 2 / len(GRID)} <= kept(logits[0], temperature=temperature, min_p=min_p)


def test_min_p_0_keeps_all_and_1_the_most_likely_ones():
    logits = [0.0, 1.0, 3.0, 3.0]
    assert kept(logits, min_p=0.0) == {0, 1, 2, 3}
    assert kept(logits, min_p=1.0) == {2, 3}


def test_the_order_of_temperature_and_truncation_is_named():
    # p at T = 1: 0.1, 0.3, 0.6. At T = 2 as their roots: 0.191, 0.331, 0.468, relative to the largest 0.41 and 0.71.
    logits = [math.log(p) for p in (0.1, 0.3, 0.6)]
    hot = {"temperature": 2.0, "min_p": 0.3}
    assert kept(logits, **hot) == {0, 1, 2}
    assert kept(logits, **hot, order="temperature_last") == {1, 2}  # 0.1 / 0.6 is below 0.3
    roots = np.sqrt([0.3, 0.6])
    np.testing.assert_allclose(shares(logits, **hot, order="temperature_last")[1:], roots / roots.sum(), atol=1e-3)
    for settings in ({"top_p": 0.5}, {"top_k": 2}):
        assert kept(logits, temperature=1.0, **settings) == kept(
            logits, temperature=1.0, **settings, order="temperature_last"
        )


# --- top-nσ ----------------------------------------------------------------------------------------------------------------


def test_top_n_sigma_by_a_slow_loop():
    rng = np.random.default_rng(1)
    for n in (0.3, 1.0, 1.7):
        logits = rng.normal(size=(6, 15)) * 3
        logits[:, 0] = -np.inf  # a banned token has no say in σ
        floors = sigma_floor(torch.tensor(logits), n)[:, 0].tolist()
        for row, floor in zip(logits, floors, strict=True):
            real = [x for x in row if x > -np.inf]
            mean = sum(real) / len(real)
            sigma = math.sqrt(sum((x - mean) ** 2 for x in real) / len(real))
            assert floor == pytest.approx(max(real) - n * sigma)


def test_top_n_sigma_worked_by_hand():
    # mean 2, variance (4 + 1 + 1 + 4) / 4 = 2.5, σ = 1.581: floors 4 − 0.791, 4 − 1.581 and 4 − 3.162
    logits = [0.0, 1.0, 3.0, 4.0]
    assert kept(logits, top_n_sigma=0.5) == {3}
    assert kept(logits, top_n_sigma=1.0) == {2, 3}
    assert kept(logits, top_n_sigma=2.0) == {1, 2, 3}
    p = np.exp([3.0, 4.0]) / np.exp([3.0, 4.0]).sum()
    np.testing.assert_allclose(shares(logits, top_n_sigma=1.0)[2:], p, atol=1e-3)


def test_what_top_n_sigma_keeps_does_not_depend_on_the_temperature():
    logits = [0.0, 1.0, 2.2, 3.0, 2.9, 0.4]
    sets = [kept(logits, top_n_sigma=0.8, temperature=t) for t in (0.5, 1.0, 2.0)]
    assert sets[0] == sets[1] == sets[2] == {2, 3, 4}


# --- entropy-adaptive temperature ------------------------------------------------------------------------------------------


def test_edt_by_hand():
    # Four equal tokens: H = ln 4, T = 1.5 · 0.8^(2 / ln 4). Equal they stay; of two unequal logits the ratio tells T.
    for logits in ([0.0, 0.0, 0.0, 0.0], [1.0, 0.0], [4.0, 0.0, -1.0]):
        p = np.exp(logits) / np.exp(logits).sum()
        entropy = -float((p * np.log(p)).sum())
        temperature = 1.5 * 0.8 ** (2 / entropy)
        cooled = np.exp(np.array(logits) / temperature)
        expected = cooled / cooled.sum()
        found = picks_of(logits, GRID, temperature=1.5, edt=2.0)
        assert found.logp_B.tolist() == pytest.approx([math.log(expected[t]) for t in found.ids_B.tolist()])
        assert float(found.entropy_B[0]) == pytest.approx(-float((expected * np.log(expected)).sum()))


def test_edt_cools_the_sure_tokens_most_and_none_above_the_temperature_given():
    def temperature(logits, **settings):
        found = picks_of(logits, (0.0, 1 - 2**-40), **settings)  # log-probs of the first and the last token
        return (logits[0] - logits[-1]) / float(found.logp_B[0] - found.logp_B[1])

    gaps = (3.0, 2.0, 1.0, 0.5)  # ever less sure
    found = [temperature([gap, 0.0], temperature=1.3, edt=0.1) for gap in gaps]
    assert found == sorted(found)
    assert max(found) < 1.3
    assert temperature([0.5, 0.0], temperature=1.3, edt=0.0) == pytest.approx(1.3)
    assert temperature([0.5, 0.0], temperature=1.3, edt=1e-9) == pytest.approx(1.3)


def test_edt_is_finite_where_the_model_is_certain():
    for logits in ([60.0, 0.0], [1e4, 0.0, -1e3]):
        found = picks_of(logits, (0.0, 0.5, 1 - 2**-40), edt=1.0)
        assert found.ids_B.tolist() == [0, 0, 0]
        assert found.logp_B.isfinite().all()
        assert found.entropy_B.tolist() == pytest.approx([0, 0, 0])
    assert COLDEST > 0


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("top_n_sigma", 0),
        ("top_n_sigma", -1.0),
        ("order", "last"),
        ("edt", -0.1),
        ("edt", float("nan")),
        ("repel", -1),
        ("repel", float("inf")),
        ("repel_first", -1),
        ("repel_first", 1.5),
    ],
)
def test_settings_that_cannot_be_are_refused(setting, value):
    with pytest.raises(UsageError, match=setting):
        Decoding(**{setting: value})


# --- siblings that keep apart ----------------------------------------------------------------------------------------------


def wild(seed=5, *, scale=0.3):
    model = GPT(GPTConfig(LETTERS.size, width=8, layers=2, heads=2, context=24), seed=seed).double()
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight += scale * torch.randn(weight.shape, generator=draw, dtype=torch.float64)
    return model.train(False)


PROMPTS = [[2, 3, 4], [4], [3, 3, 5, 2]]


def sample(model, *, samples=12, seeds=(1, 2, 3), prompts=PROMPTS, max_tokens=8, **settings):
    return generate(
        model, prompts, seeds=seeds, samples=samples, max_tokens=max_tokens, pad=0, stop=(STOP,), decoding=Decoding(**settings)
    )  # fmt: skip


def texts(drawn):
    return [tuple(ids[mask].tolist()) for ids, mask in zip(drawn.ids_BT, drawn.mask_BT, strict=True)]


def slowly_repelled(model, prompt, seed, *, samples, repel, first, max_tokens=8, leaves=()):
    """Sibling after sibling, column by column, each row's next token by a whole forward pass. Those who leave have one token."""
    from equipoise.models.decoding import draw_uniforms
    from equipoise.models.language_model import hidden_states

    uniforms = draw_uniforms([seed], samples=samples, n=max_tokens)
    rows = [[] for _ in range(samples)]
    for t in range(max_tokens):
        taken = []  # (prefix, token) of this column
        for g in range(samples):
            if STOP in rows[g] or (t and g in leaves):
                continue
            whole = torch.tensor([prompt + rows[g]])
            with torch.no_grad():
                state = hidden_states(model, whole, torch.ones_like(whole, dtype=torch.bool))[:, -1]
                p = model.head.logits(state)[0].softmax(0).numpy()
            repelled = [p[v] * math.exp(-repel * taken.count((tuple(rows[g]), v)) * (t < first)) for v in range(len(p))]
            scale = (1 - p[STOP]) / sum(w for v, w in enumerate(repelled) if v != STOP)  # the end keeps its probability
            weights = [p[v] if v == STOP else scale * repelled[v] for v in range(len(p))]
            place = uniforms[g, t].item() * sum(weights)
            token = next(v for v in range(len(p)) if sum(weights[: v + 1]) > place)
            taken.append((tuple(rows[g]), token))
            rows[g].append(token)
    return [tuple(row) for row in rows]


@pytest.mark.parametrize(("repel", "first"), [(0.7, 2), (3.0, 4)])
def test_repulsion_is_the_slow_loop(repel, first):
    model = wild()
    found = texts(sample(model, samples=9, repel=repel, repel_first=first))
    slow = [
        row
        for prompt, seed in zip(PROMPTS, (1, 2, 3), strict=True)
        for row in slowly_repelled(model, prompt, seed, samples=9, repel=repel, first=first)
    ]
    assert found == slow != texts(sample(model, samples=9))


def test_strength_0_is_plain_sampling_bit_by_bit():
    model = wild()
    plain, none, nowhere = sample(model), sample(model, repel=0.0), sample(model, repel=2.0, repel_first=0)
    for other in (none, nowhere):
        for name in ("ids_BT", "mask_BT", "logp_BT", "entropy_BT"):
            assert torch.equal(getattr(plain, name), getattr(other, name))


def test_a_first_sibling_is_plain_and_more_siblings_only_add_to_fewer():
    model = wild()
    many, few, plain = (texts(sample(model, samples=n, repel=r)) for n, r in ((12, 1.5), (5, 1.5), (1, 0.0)))
    assert [many[12 * p + g] for p in range(3) for g in range(5)] == few
    assert [many[12 * p] for p in range(3)] == plain
    alone = [texts(sample(model, prompts=[prompt], seeds=[seed], repel=1.5)) for prompt, seed in zip(PROMPTS, (1, 2, 3), strict=True)]  # fmt: skip
    assert [row for part in alone for row in part] == many


def test_strong_repulsion_spreads_the_first_tokens_evenly_and_the_end_keeps_its_share():
    drawn = texts(sample(wild(), samples=70, repel=30.0, repel_first=1, max_tokens=1))
    for p in range(3):
        seen = Counter(token for (token,) in drawn[70 * p : 70 * (p + 1)])
        others = [seen[token] for token in range(2, LETTERS.size)]
        assert max(others) - min(others) <= 1
        assert 0 not in seen  # padding is banned whatever the others cost
    # p(end) is .44, .23 and .40 here: of 210 completions 75 end at once, with a standard deviation of 7.
    assert abs(sum(token == (STOP,) for token in drawn) - 75) < 20


def test_log_probs_stay_the_models_own():
    model = wild()
    from equipoise.models.samples import score_samples

    drawn = sample(model, repel=2.0)
    torch.testing.assert_close(score_samples(model, drawn).logp_BT.float(), drawn.logp_BT, atol=1e-5, rtol=0)


def test_truncation_is_by_the_models_own_softmax():
    drawn = sample(wild(8), samples=30, max_tokens=1, top_k=2, repel=1e6)
    for p in range(3):
        assert len(set(texts(drawn)[30 * p : 30 * (p + 1)])) <= 2


def test_a_sampler_repels_the_completions_of_one_draw():
    loaded = Loaded(wild(), LETTERS)
    how = Sampling(max_tokens=8, extra={"repel": 1.5, "repel_first": 3})
    whole = texts(sample(loaded.model, prompts=[LETTERS.encode("abc")], seeds=[4], repel=1.5, repel_first=3))

    async def go(piece):
        ids = [[] for _ in range(12)]
        async for chunk in InProcess(loaded, piece=piece).draw("abc", how, n=12, seed=4):
            ids[chunk.index] += list(chunk.token_ids or ())
        return [tuple(row) for row in ids]

    for piece in (1, 3, 8):
        assert asyncio.run(go(piece)) == whole


def test_a_completion_that_was_cancelled_repels_nobody_any_more():
    loaded, leaves = Loaded(wild(8), LETTERS), range(15)
    how = Sampling(max_tokens=3, extra={"repel": 30.0, "repel_first": 3})

    async def go():
        ids = [[] for _ in range(40)]
        draw = InProcess(loaded, piece=1).draw("abc", how, n=40, seed=4)
        async for chunk in draw:
            ids[chunk.index] += list(chunk.token_ids or ())
            for index in leaves:
                draw.cancel(index, "cancelled")
        return [tuple(row) for row in ids]

    prompt = LETTERS.encode("abc")
    slow = slowly_repelled(loaded.model, prompt, 4, samples=40, repel=30.0, first=3, max_tokens=3, leaves=leaves)
    assert asyncio.run(go()) == slow
