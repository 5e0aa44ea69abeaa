"""Sampling against enumeration, hand calculations and the full forward pass; its randomness against published numbers."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from scipy import stats

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

from equipoise.errors import UsageError  # noqa: E402
from equipoise.models import generate as generate_file  # noqa: E402
from equipoise.models.characters import Characters  # noqa: E402
from equipoise.models.decoding import Decoding, draw_uniforms, pick_tokens, seed_of, splitmix64  # noqa: E402
from equipoise.models.generate import generate, pad_left  # noqa: E402
from equipoise.models.gpt import GPT, GPTConfig  # noqa: E402
from equipoise.models.graphs import StepGraphs  # noqa: E402
from equipoise.models.language_model import Head, hidden_states  # noqa: E402
from equipoise.models.samples import Samples, read_completions, score_samples  # noqa: E402

STOP, VOCABULARY = 1, 5
PROMPTS = [[2, 3, 4], [4], [3, 3], [2, 4, 4, 2]]


def wild(seed: int = 0, *, vocabulary: int = VOCABULARY) -> GPT:
    """In float64, with weights large enough that the next token depends on all tokens before it."""
    model = GPT(GPTConfig(vocabulary, width=8, layers=2, heads=2, context=24), seed=seed).double()
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.5 * torch.randn(weight.shape, generator=draw, dtype=torch.float64)
    return model


def sample(
    model: GPT, prompts=PROMPTS, *, seeds=(1, 2, 3, 4), samples: int = 5, max_tokens: int = 12, **rest
) -> Samples:
    return generate(
        model,
        prompts,
        seeds=seeds,
        samples=samples,
        max_tokens=max_tokens,
        pad=0,
        stop=rest.pop("stop", (STOP,)),
        **rest,
    )


def texts(samples: Samples) -> list[list[int]]:
    return [ids[mask].tolist() for ids, mask in zip(samples.ids_BT, samples.mask_BT, strict=True)]


def next_p(model: GPT, ids: list[int], temperature: float = 1.0) -> Tensor:
    """The next token's distribution by a forward pass over the whole sequence; token 0, padding, is never sampled."""
    whole = torch.tensor([ids])
    logits = hidden_states(model, whole, torch.ones_like(whole, dtype=torch.bool))[0, -1] @ model.embed.weight.T
    logits[0] = -torch.inf
    return (logits / temperature).softmax(0).detach()


# --- what is sampled -------------------------------------------------------------------------------------------------------


def test_frequencies_are_those_of_the_model() -> None:
    """All 84 completions of up to three tokens (3 tokens that go on, 1 that stops), enumerated with the full forward pass."""
    model, n = wild(4), 6000
    expected: dict[tuple[int, ...], float] = {}
    for ids in itertools.product(range(1, VOCABULARY), repeat=3):
        ids = ids[: ids.index(STOP) + 1] if STOP in ids else ids
        expected[ids] = float(np.prod([next_p(model, [2, 3, *ids[:t]], 1.3)[ids[t]] for t in range(len(ids))]))
    assert sum(expected.values()) == pytest.approx(1)
    drawn = sample(model, [[2, 3]], seeds=[11], samples=n, max_tokens=3, decoding=Decoding(temperature=1.3))
    seen = Counter(map(tuple, texts(drawn)))
    assert set(seen) <= set(expected)
    common = [ids for ids, p in expected.items() if p * n >= 5]
    observed = [seen[ids] for ids in common] + [n - sum(seen[ids] for ids in common)]
    hoped = [n * expected[ids] for ids in common] + [n * (1 - sum(expected[ids] for ids in common))]
    assert len(common) > 15
    assert stats.chisquare(observed, hoped).pvalue > 0.01


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.6])
def test_log_probs_and_entropies_are_those_of_the_full_forward_pass(temperature: float) -> None:
    model = wild()
    drawn = sample(model, decoding=Decoding(temperature=temperature))
    for row, ids in enumerate(texts(drawn)):
        prompt = PROMPTS[row // 5]
        for t, token in enumerate(ids):
            p = next_p(model, prompt + ids[:t], temperature)
            assert float(drawn.logp_BT[row, t]) == pytest.approx(float(p[token].log()), abs=1e-6)
            assert float(drawn.entropy_BT[row, t]) == pytest.approx(float(torch.special.entr(p).sum()), abs=1e-6)
    assert not drawn.logp_BT[~drawn.mask_BT].any()
    assert not drawn.entropy_BT[~drawn.mask_BT].any()


def test_training_recomputes_the_same_log_probs_in_float32() -> None:
    model = wild().float()
    drawn = sample(model, decoding=Decoding(temperature=0.8))
    scored = score_samples(model, drawn, temperature=0.8)
    torch.testing.assert_close(scored.logp_BT, drawn.logp_BT, rtol=0, atol=2e-5)
    torch.testing.assert_close(scored.entropy_BT, drawn.entropy_BT, rtol=0, atol=2e-5)
    assert drawn.logp_BT.dtype == drawn.entropy_BT.dtype == torch.float32


def test_greedy_is_the_most_likely_token_each_time() -> None:
    model = wild()
    drawn = sample(model, samples=1, stop=(), max_tokens=8, decoding=Decoding(top_k=1))
    for prompt, ids in zip(PROMPTS, texts(drawn), strict=True):
        for t, token in enumerate(ids):
            assert token == int(next_p(model, prompt + ids[:t]).argmax())


# --- randomness ------------------------------------------------------------------------------------------------------------


def test_the_generator_gives_the_published_numbers() -> None:
    # SplitMix64 started at 1234567: the vector that most implementations test against.
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    found = splitmix64(torch.tensor([1234567]), 5)[0].tolist()
    assert [number % 2**64 for number in found] == known


def test_uniforms_are_uniform_and_rows_are_unrelated() -> None:
    u = draw_uniforms(range(100), samples=20, n=30).numpy()  # neighbouring seeds, as people choose them
    assert u.shape == (2000, 30)
    assert 0 <= u.min() < u.max() < 1
    assert stats.kstest(u.ravel(), "uniform").pvalue > 0.01
    assert len(np.unique(u)) == u.size
    for other in (np.roll(u, 1, axis=0), np.roll(u, 20, axis=0), np.roll(u, 1, axis=1)):
        assert abs(np.corrcoef(u.ravel(), other.ravel())[0, 1]) < 4 / np.sqrt(u.size)


def test_a_split_or_a_permutation_draws_the_same_completions() -> None:
    model = wild()
    whole = texts(sample(model))
    assert len(set(map(tuple, whole))) > 10
    order = [2, 0, 3, 1]
    moved = texts(sample(model, [PROMPTS[i] for i in order], seeds=[i + 1 for i in order]))
    assert moved == [whole[5 * i + g] for i in order for g in range(5)]
    parts = [texts(sample(model, [prompt], seeds=[i + 1])) for i, prompt in enumerate(PROMPTS)]
    assert list(itertools.chain(*parts)) == whole


def test_more_samples_only_add_to_fewer() -> None:
    model = wild()
    few, many = texts(sample(model, samples=2)), texts(sample(model, samples=7))
    assert [many[7 * p + g] for p in range(4) for g in range(2)] == few


def test_a_seed_draws_the_same_and_another_does_not() -> None:
    model = wild()
    first, again, other = (texts(sample(model, seeds=seeds)) for seeds in [(1, 2, 3, 4), (1, 2, 3, 4), (5, 6, 7, 8)])
    assert first == again != other
    torch.manual_seed(0)  # the global generator plays no part
    assert texts(sample(model)) == first


def test_seeds_from_parts_differ_by_value_type_and_place() -> None:
    seeds = [
        seed_of("run", 1),
        seed_of("run", "1"),
        seed_of("run1"),
        seed_of(1, "run"),
        seed_of("run", 1, ""),
        seed_of("run", 11),
    ]
    assert len(set(seeds)) == len(seeds)
    assert seed_of("run", 1) == seeds[0]
    assert all(0 <= seed < 2**63 for seed in seeds)


# --- truncation and the draw -----------------------------------------------------------------------------------------------


def picked(p: list[float], uniforms: list[float], **settings) -> list[int]:
    """Tokens drawn from exactly these probabilities."""
    logits = torch.tensor([p], dtype=torch.float64).log().expand(len(uniforms), -1)
    head = Head(torch.eye(len(p), dtype=torch.float64))
    with torch.no_grad():
        u = torch.tensor(uniforms, dtype=torch.float64)
        return pick_tokens(logits.clamp(min=-1e3), head, u, Decoding(**settings)).ids_B.tolist()


def test_a_draw_worked_by_hand() -> None:
    # cumulative: 0.2, 0.2, 0.7, 1.0; token 1 has no mass and is never drawn, not even on its boundary
    assert picked([0.2, 0.0, 0.5, 0.3], [0.0, 0.199, 0.201, 0.699, 0.701, 1 - 2**-48]) == [0, 0, 2, 2, 3, 3]
    assert picked([0.0, 0.9, 0.0], [0.0, 1 - 2**-48]) == [1, 1]


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({}, [0.1, 0.4, 0.3, 0.2]),
        ({"top_k": 2}, [0, 0.4, 0.3, 0]),
        ({"top_k": 9}, [0.1, 0.4, 0.3, 0.2]),
        ({"top_p": 0.69}, [0, 0.4, 0.3, 0]),
        ({"top_p": 0.71}, [0, 0.4, 0.3, 0.2]),
        ({"top_p": 0.01}, [0, 0.4, 0, 0]),
        ({"min_p": 0.45}, [0, 0.4, 0.3, 0.2]),
        ({"min_p": 0.55}, [0, 0.4, 0.3, 0]),
        ({"top_k": 3, "top_p": 0.69, "min_p": 0.9}, [0, 0.4, 0, 0]),
    ],
)
def test_truncation_worked_by_hand(settings: dict[str, float], kept: list[float]) -> None:
    n = 9000  # an even grid of uniforms gives every kept token its share
    seen = Counter(picked([0.1, 0.4, 0.3, 0.2], [(i + 0.5) / n for i in range(n)], **settings))
    shares = [seen[token] / n for token in range(4)]
    np.testing.assert_allclose(shares, np.array(kept) / sum(kept), atol=2 / n)


def test_truncation_leaves_log_probs_and_entropies_alone() -> None:
    p = torch.tensor([[0.1, 0.4, 0.3, 0.2]], dtype=torch.float64)
    picks = pick_tokens(p.log(), Head(torch.eye(4, dtype=torch.float64)), torch.tensor([0.5]), Decoding(top_k=1))
    assert float(picks.logp_B) == pytest.approx(np.log(0.4))
    assert float(picks.entropy_B) == pytest.approx(stats.entropy([0.1, 0.4, 0.3, 0.2]))


@pytest.mark.parametrize(
    ("setting", "value"),
    [("temperature", 0), ("temperature", float("nan")), ("top_k", 0), ("top_p", 0), ("top_p", 1.1), ("min_p", -0.1)],
)
def test_settings_that_cannot_be_are_refused(setting: str, value: float) -> None:
    with pytest.raises(UsageError, match=f"{setting} is"):
        Decoding(**{setting: value})


# --- rows that end ---------------------------------------------------------------------------------------------------------


def test_a_row_ends_with_its_stop_token_or_at_the_limit() -> None:
    drawn = sample(wild(), samples=30, max_tokens=6)
    ends = {"stop": 0, "length": 0}
    for ids, mask, finish in zip(drawn.ids_BT.tolist(), drawn.mask_BT.tolist(), drawn.finish, strict=True):
        n = sum(mask)
        assert mask == [True] * n + [False] * (6 - n)
        assert ids[n:] == [0] * (6 - n)
        assert 0 not in ids[:n]
        assert STOP not in ids[: n - 1]
        assert finish == ("stop" if ids[n - 1] == STOP else "length")
        assert finish == "stop" or n == 6
        ends[finish] += 1
    assert min(ends.values()) > 10


def test_any_of_several_tokens_stops() -> None:
    drawn = texts(sample(wild(), stop=(STOP, 3), samples=20))
    assert {ids[-1] for ids in drawn if len(ids) < 12} == {STOP, 3}
    assert not any({STOP, 3} & set(ids[:-1]) for ids in drawn)


def test_finished_rows_leave_the_batch_and_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    model = wild()
    sizes = []
    forward = model.forward
    monkeypatch.setattr(model, "forward", lambda ids, *rest: sizes.append(len(ids)) or forward(ids, *rest))
    found = sample(model, samples=20)
    assert sizes[0] == 4  # a prompt runs once
    assert sizes[1] == 80 > sizes[-1]
    monkeypatch.setattr(generate_file, "DROP_AT", 2.0)
    kept = sample(model, samples=20)
    assert texts(kept) == texts(found)
    torch.testing.assert_close(kept.logp_BT, found.logp_BT, rtol=0, atol=1e-6)


def test_sampling_stops_when_every_row_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    model, calls = wild(), []
    forward = model.forward
    monkeypatch.setattr(model, "forward", lambda *given: calls.append(1) or forward(*given))
    model.no_pad_V[2:] = -torch.inf  # only the stop token is left
    drawn = sample(model, max_tokens=20)
    assert (len(calls), drawn.ids_BT.tolist()) == (1, [[STOP]] * 20)


def test_one_token_needs_no_step() -> None:
    drawn = sample(wild(), max_tokens=1)
    assert drawn.ids_BT.shape == (20, 1)
    assert drawn.mask_BT.all()
    assert score_samples(wild(), drawn).logp_BT.shape == (20, 1)


def test_taking_rows_keeps_what_belongs_to_them() -> None:
    drawn = sample(wild(), samples=3)
    rows = torch.tensor([10, 2, 3])  # of prompts 3, 0 and 1
    part = drawn.take(rows)
    ids, mask = part.sequences()
    for i, row in enumerate(rows.tolist()):
        assert ids[i][mask[i]].tolist() == PROMPTS[row // 3] + texts(drawn)[row]
    assert part.finish == tuple(drawn.finish[row] for row in rows.tolist())
    assert len(part.prompt_ids_PL) == 3


def test_completions_carry_text_tokens_and_measurements() -> None:
    tokens = Characters("abc")
    drawn = sample(wild(), samples=4)
    for completion, ids, logp in zip(read_completions(drawn, tokens), texts(drawn), drawn.logp_BT, strict=True):
        assert completion.text == "".join("??abc"[i] for i in ids if i != STOP)
        assert list(completion.token_ids or []) == ids
        assert completion.n_tokens == len(ids) == len(completion.entropies or [])
        np.testing.assert_array_equal(completion.logprobs, logp[: len(ids)])
        assert completion.finish == ("stop" if ids[-1] == STOP else "length")


def test_the_model_goes_back_to_training() -> None:
    model = wild()
    for mode in (True, False):
        model.train(mode)
        sample(model, max_tokens=2)
        assert model.training is mode


def test_weights_that_diverged_are_reported() -> None:
    model = wild()
    with torch.no_grad():
        model.norm.weight[0] = torch.nan
    with pytest.raises(FloatingPointError, match="not finite"):
        sample(model)


def test_prompts_are_padded_on_the_left() -> None:
    ids, mask = pad_left([[5, 6], [7]], 3, pad=9)
    assert ids.tolist() == [[9, 5, 6], [9, 9, 7]]
    assert mask.tolist() == [[False, True, True], [False, False, True]]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"prompts": []}, "at least one prompt"),
        ({"prompts": [[2], []], "seeds": [1, 2]}, "one token in each"),
        ({"seeds": [1]}, "4 prompts need as many seeds, found 1"),
        ({"seeds": [1, 2, 3, -4]}, "a seed is -4"),
        ({"samples": 0}, "samples is 0"),
        ({"max_tokens": 21}, "max_tokens <= 20"),
        ({"graphs": StepGraphs()}, "CUDA graphs need a model on a GPU"),
    ],
)
def test_what_cannot_be_sampled_is_refused(given: dict, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        sample(wild(), **given)
