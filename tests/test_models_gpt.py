"""The small GPT against a slow loop in numpy, its cache against the full forward pass, and its file against broken ones."""

from __future__ import annotations

import cmath
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors", reason="needs safetensors: pip install 'equipoise[train]'")

from safetensors.torch import load_file, save_file  # noqa: E402
from torch import Tensor  # noqa: E402

from equipoise.errors import UsageError  # noqa: E402
from equipoise.models.cache import SharedPrompts  # noqa: E402
from equipoise.models.characters import Characters  # noqa: E402
from equipoise.models.checkpoint import load_gpt, save_gpt  # noqa: E402
from equipoise.models.gpt import GPT, GPTConfig  # noqa: E402
from equipoise.models.language_model import causal_bias, hidden_states, prefill, score_tokens, step  # noqa: E402
from equipoise.models.loaders import load_model  # noqa: E402
from equipoise.models.samples import Samples, score_samples  # noqa: E402

TOKENS = Characters("0123456789+-*/()=,>")
SMALL = GPTConfig(vocabulary=7, width=12, layers=2, heads=3, context=16)
EXACT = {"rtol": 0, "atol": 1e-12}


def small(seed: int = 0) -> GPT:
    """In float64, with weights and norms large enough that attention is far from uniform."""
    model = GPT(SMALL, seed=seed).double()
    draw = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.4 * torch.randn(weight.shape, generator=draw, dtype=torch.float64)
    return model


def some_ids(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(1, SMALL.vocabulary, shape, generator=torch.Generator().manual_seed(seed))


def real(ids: Tensor) -> Tensor:
    return torch.ones_like(ids, dtype=torch.bool)


# --- the forward pass ------------------------------------------------------------------------------------------------------


def loop_hidden(model: GPT, ids: list[int]) -> np.ndarray:
    """Hidden states of one sequence, a token, a head and a key at a time; rotary positions as complex numbers."""
    w = {name: weight.detach().numpy() for name, weight in model.named_parameters()}
    heads, half = SMALL.heads, SMALL.width // SMALL.heads // 2

    def norm(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
        return x / math.sqrt(sum(v * v for v in x) / len(x) + 1e-6) * scale

    def turned(x: np.ndarray, position: int) -> list[complex]:
        return [complex(x[i], x[i + half]) * cmath.exp(1j * position * 10_000 ** (-i / half)) for i in range(half)]

    xs = [w["embed.weight"][token] for token in ids]
    for layer in range(SMALL.layers):
        b = {name.removeprefix(f"blocks.{layer}."): v for name, v in w.items() if name.startswith(f"blocks.{layer}.")}
        qkv = [
            (b["query_key_value.weight"] @ norm(x, b["norm_attention.weight"])).reshape(3, heads, 2 * half) for x in xs
        ]
        mixed = []
        for t in range(len(xs)):
            out = []
            for h in range(heads):
                q = turned(qkv[t][0, h], t)
                keys = [turned(qkv[s][1, h], s) for s in range(t + 1)]
                scores = [sum((a * c.conjugate()).real for a, c in zip(q, k, strict=True)) for k in keys]
                weights = np.exp(np.array(scores) / math.sqrt(2 * half))
                out.append(sum(a * qkv[s][2, h] for s, a in enumerate(weights / weights.sum())))
            mixed.append(b["out.weight"] @ np.concatenate(out))
        xs = [x + y for x, y in zip(xs, mixed, strict=True)]
        ups = [b["up.weight"] @ norm(x, b["norm_mlp.weight"]) for x in xs]
        gelus = [np.array([u * 0.5 * (1 + math.erf(u / math.sqrt(2))) for u in up]) for up in ups]
        xs = [x + b["down.weight"] @ g for x, g in zip(xs, gelus, strict=True)]
    return np.array([norm(x, w["norm.weight"]) for x in xs])


def test_hidden_states_are_those_of_a_slow_loop() -> None:
    model, ids = small(), some_ids(1, 9)
    expected = loop_hidden(model, ids[0].tolist())
    # The table of angles is float32.
    np.testing.assert_allclose(hidden_states(model, ids, real(ids))[0].detach(), expected, rtol=0, atol=1e-5)


def test_the_default_has_the_parameters_counted_by_hand() -> None:
    # 21 × 96 embeddings; a block has 3·96² + 96² + 4·96² + 4·96² weights and two norms of 96; one norm at the end.
    model = GPT(GPTConfig(TOKENS.size))
    assert sum(p.numel() for p in model.parameters()) == 21 * 96 + 3 * (12 * 96**2 + 2 * 96) + 96 == 334_464


def test_a_token_changes_nothing_before_it() -> None:
    model, ids = small(), some_ids(1, 8)
    other = ids.clone()
    other[0, 5] = ids[0, 5] % 6 + 1
    a, b = hidden_states(model, ids, real(ids))[0], hidden_states(model, other, real(other))[0]
    torch.testing.assert_close(a[:5], b[:5], **EXACT)
    assert all((a[t] - b[t]).abs().max() > 1e-6 for t in range(5, 8))


@pytest.mark.parametrize("side", ["left", "right", "both"])
def test_padding_is_invisible(side: str) -> None:
    model, ids = small(), some_ids(2, 6)
    left, right = {"left": (3, 0), "right": (0, 4), "both": (2, 2)}[side]
    mask = torch.nn.functional.pad(real(ids), (left, right))
    alone = hidden_states(model, ids, real(ids))
    for filler in (0, 3):  # whatever stands there
        padded = hidden_states(model, torch.nn.functional.pad(ids, (left, right), value=filler), mask)
        torch.testing.assert_close(padded[:, left : left + 6], alone, **EXACT)


@pytest.mark.parametrize("first", [0, 2])
def test_a_query_sees_real_keys_up_to_itself_and_always_itself(first: int) -> None:
    mask = torch.tensor([[False, True, True, False], [False] * 4])
    bias = causal_bias(mask, torch.float32, first=first)
    seen = [[[t == s or (s < t and bool(row[s])) for s in range(4)] for t in range(first, 4)] for row in mask]
    assert bias[:, 0].eq(0).tolist() == seen
    assert bias[:, 0].eq(-torch.inf).tolist() == [[[not s for s in t] for t in row] for row in seen]


def test_rows_of_padding_give_no_nan_in_values_or_gradients() -> None:
    model, ids = GPT(SMALL), some_ids(3, 6)
    mask = torch.tensor([[True] * 6, [False] * 6, [False] * 3 + [True] * 3])
    stats = score_tokens(model, ids, mask, n_prompt=2)
    (stats.logp_BT.sum() + stats.entropy_BT.sum()).backward()
    assert not stats.logp_BT[1].any()
    assert hidden_states(model, ids, mask).isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


# --- the cache -------------------------------------------------------------------------------------------------------------


def test_the_cache_gives_what_the_full_forward_pass_gives() -> None:
    model, ids = small(), some_ids(3, 12)
    mask = torch.arange(12) >= torch.tensor([[0], [3], [5]])  # prompts of 6, 3 and 1 tokens, then 6 more
    full = hidden_states(model, ids, mask)
    hidden, cache = prefill(model, ids[:, :6], mask[:, :6])
    cache = cache.expand(1, room=6)
    torch.testing.assert_close(hidden, full[:, 5], **EXACT)
    for column in range(6, 12):
        torch.testing.assert_close(step(model, ids[:, column], cache), full[:, column], **EXACT)


def test_a_prompt_expands_to_its_samples_and_rows_can_leave() -> None:
    model, ids = small(), some_ids(2, 4)
    mask = torch.tensor([[True] * 4, [False, True, True, True]])
    _, cache = prefill(model, ids, mask)
    cache = cache.expand(3, room=2)
    first, second = some_ids(6, seed=1), some_ids(6, seed=2)
    step(model, first, cache)
    rows = torch.tensor([4, 0, 5])
    found = step(model, second[rows], cache.keep(rows))
    for i, row in enumerate(rows.tolist()):
        whole = torch.cat([ids[row // 3][mask[row // 3]], first[row : row + 1], second[row : row + 1]])[None]
        torch.testing.assert_close(found[i], hidden_states(model, whole, real(whole))[0, -1], **EXACT)


def test_looking_at_all_slots_is_looking_at_the_filled_ones() -> None:
    """What a captured graph does: the bias alone hides the free slots."""
    model, ids = small(), some_ids(2, 7)
    caches = [prefill(model, ids[:, :4], real(ids[:, :4]))[1].expand(1, room=5) for _ in range(2)]
    caches[1].reach = 9
    for column in range(4, 7):
        narrow, wide = (step(model, ids[:, column], cache) for cache in caches)
        torch.testing.assert_close(narrow, wide, **EXACT)


def test_prompts_that_end_in_padding_are_refused() -> None:
    ids = some_ids(1, 3)
    with pytest.raises(UsageError, match="pad on the left"):
        prefill(small(), ids, torch.tensor([[True, True, False]]))


# --- token statistics ------------------------------------------------------------------------------------------------------


def test_scores_are_those_of_the_softmax_without_padding() -> None:
    model, ids = small(), some_ids(2, 8)
    mask = torch.tensor([[True] * 8, [False] * 2 + [True] * 5 + [False]])
    stats = score_tokens(model, ids, mask, n_prompt=4, temperature=0.7)
    logits = hidden_states(model, ids, mask)[:, 3:-1] @ model.embed.weight.T / 0.7
    choice = torch.distributions.Categorical(logits=logits[..., 1:])  # token 0 is padding: never sampled
    inside = mask[:, 4:]
    torch.testing.assert_close(stats.logp_BT[inside], choice.log_prob(ids[:, 4:] - 1)[inside], **EXACT)
    torch.testing.assert_close(stats.entropy_BT[inside], choice.entropy()[inside], **EXACT)
    assert not stats.logp_BT[~inside].any()


def samples_of(prompt_mask: Tensor, mask: Tensor, prompt_B: list[int]) -> Samples:
    ids = some_ids(*mask.shape, seed=4)
    nothing = torch.zeros(mask.shape)
    prompts = some_ids(*prompt_mask.shape, seed=3)
    return Samples(prompts, prompt_mask, torch.tensor(prompt_B), ids, mask, nothing, nothing, ("stop",) * len(mask))


@pytest.mark.parametrize("rows", [[0, 1, 2, 3, 4], [3, 0], [2]])
def test_running_each_prompt_once_changes_neither_scores_nor_gradients(rows: list[int]) -> None:
    prompt_mask = torch.tensor([[True] * 5, [False] * 3 + [True] * 2])
    lengths = torch.tensor([4, 1, 3, 2, 4])
    samples = samples_of(prompt_mask, torch.arange(4) < lengths[:, None], [0, 0, 1, 1, 0]).take(torch.tensor(rows))
    assert samples.mask_BT.shape[1] == lengths[rows].max()
    model = small()

    def gradients(stats) -> list[Tensor]:
        weights = torch.linspace(-1, 2, stats.logp_BT.numel()).view_as(stats.logp_BT)
        return list(torch.autograd.grad(((stats.logp_BT + 0.3 * stats.entropy_BT) * weights).sum(), model.parameters()))

    once = score_samples(model, samples, temperature=0.8)
    many = score_tokens(model, *samples.sequences(), n_prompt=5, temperature=0.8)
    torch.testing.assert_close(once.logp_BT, many.logp_BT, **EXACT)
    torch.testing.assert_close(once.entropy_BT, many.entropy_BT, **EXACT)
    for a, b in zip(gradients(once), gradients(many), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


def test_gradients_are_finite_differences_and_reach_every_weight() -> None:
    model, ids = small(), some_ids(2, 6)

    def loss() -> Tensor:
        return score_tokens(model, ids, real(ids), n_prompt=2).logp_BT.sum()

    names, weights = zip(*model.named_parameters(), strict=True)
    for name, weight, gradient in zip(names, weights, torch.autograd.grad(loss(), weights), strict=True):
        assert gradient.any(), name
        at = tuple(torch.unravel_index(gradient.abs().argmax(), gradient.shape))
        with torch.no_grad():
            start = float(weight[at])
            weight[at] = start + 1e-5
            above = float(loss())
            weight[at] = start - 1e-5
            below = float(loss())
            weight[at] = start
        assert (above - below) / 2e-5 == pytest.approx(float(gradient[at]), rel=1e-5), name


def test_shared_prompts_put_each_prompt_before_its_completions() -> None:
    shared = SharedPrompts(torch.tensor([1, 0, 1]))
    prompts = torch.arange(2.0).view(2, 1, 1, 1)
    assert shared.write(0, prompts, prompts)[0] is prompts
    keys, _ = shared.write(0, torch.tensor([10.0, 11.0, 12.0]).view(3, 1, 1, 1), torch.zeros(3, 1, 1, 1))
    assert keys.flatten(1).tolist() == [[1, 10], [0, 11], [1, 12]]


@pytest.mark.parametrize("seeds", [(5, 5), (5, 6)])
def test_weights_come_from_the_seed(seeds: tuple[int, int]) -> None:
    torch.manual_seed(seeds[0])  # the global generator plays no part
    a = GPT(SMALL, seed=seeds[0]).embed.weight
    torch.manual_seed(99)
    assert torch.equal(a, GPT(SMALL, seed=seeds[1]).embed.weight) == (seeds[0] == seeds[1])


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("heads", 5, "multiple of 10"),
        ("layers", 0, "layers >= 1"),
        ("pad", 7, "0 to 6"),
        ("context", -1, "context >= 1"),
    ],
)
def test_a_config_that_cannot_be_is_refused(setting: str, value: int, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        replace(SMALL, **{setting: value})


def test_more_columns_than_the_context_are_refused() -> None:
    ids = some_ids(1, 17)
    with pytest.raises(UsageError, match="17 columns, but this model reads at most 16"):
        hidden_states(small(), ids, real(ids))


# --- characters ------------------------------------------------------------------------------------------------------------


def test_characters_there_and_back() -> None:
    assert TOKENS.encode("30>") == [5, 2, 20]  # 0 pads and 1 ends, so '0' is 2
    assert TOKENS.decode([5, 2, 0, 20, 1, 7]) == "30>"
    assert TOKENS.size == 21
    every = TOKENS.alphabet
    assert TOKENS.decode(TOKENS.encode(every)) == every


def test_characters_refuse_what_they_cannot_read() -> None:
    with pytest.raises(UsageError, match="no token for 'x' in '3x'"):
        TOKENS.encode("3x")
    with pytest.raises(UsageError, match="chat messages"):
        TOKENS.encode([{"role": "user", "content": "3"}])
    with pytest.raises(UsageError, match="no character for token 21"):
        TOKENS.decode([21])
    for alphabet in ("", "aba"):
        with pytest.raises(UsageError, match="each character once"):
            Characters(alphabet)


# --- the file --------------------------------------------------------------------------------------------------------------


def saved(folder: Path) -> tuple[Path, GPT]:
    path, model = folder / "model.safetensors", GPT(GPTConfig(TOKENS.size, width=8, layers=1, heads=2), seed=3)
    save_gpt(path, model, TOKENS)
    return path, model


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_saving_and_loading_keeps_every_bit(tmp_path: Path, dtype: str) -> None:
    path, model = saved(tmp_path)
    model = model.to(getattr(torch, dtype))
    save_gpt(path, model, TOKENS)
    again, tokens = load_gpt(path)
    assert again.config == model.config
    assert tokens == TOKENS
    assert {k: (v.dtype, v.tolist()) for k, v in again.state_dict().items()} == {
        k: (v.dtype, v.tolist()) for k, v in model.state_dict().items()
    }
    assert [file.name for file in tmp_path.iterdir()] == ["model.safetensors"]


def test_a_model_is_loaded_by_its_file_name(tmp_path: Path) -> None:
    path, model = saved(tmp_path)
    loaded = load_model(str(path), dtype=torch.float64)
    assert loaded.tokens.encode("7") == [9]
    assert torch.equal(loaded.model.head.weight_VD, model.embed.weight.double())


def test_a_save_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = saved(tmp_path)
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("equipoise.files.os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save_gpt(path, GPT(GPTConfig(TOKENS.size, width=8, layers=1, heads=2), seed=4), TOKENS)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["model.safetensors"]


def rewrite(path: Path, weights: dict[str, Tensor], **about: object) -> None:
    config = {"vocabulary": 21, "width": 8, "layers": 1, "heads": 2, "context": 64, "pad": 0}
    whole = {"format": "equipoise.gpt/1", "config": config, "alphabet": TOKENS.alphabet} | about
    save_file(weights, path, {"equipoise": json.dumps(whole)})


def test_weights_that_do_not_fit_are_all_named(tmp_path: Path) -> None:
    path, _ = saved(tmp_path)
    weights = load_file(path)
    del weights["norm.weight"]
    rewrite(path, weights | {"extra.weight": torch.zeros(1), "embed.weight": torch.zeros(21, 9)})
    with pytest.raises(UsageError) as refused:
        load_gpt(path)
    for said in ("unknown: extra.weight", "missing: norm.weight", "embed.weight (21, 9) for (21, 8)"):
        assert said in str(refused.value)


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({"format": "other/1"}, "its format is 'other/1'"),
        ({"config": {"vocabulary": 21, "width": 8, "depth": 3}}, "named vocabulary, width, layers"),
        ({"config": None}, "the config must be"),
        ({"alphabet": "01"}, "21 tokens, the alphabet gives 4"),
    ],
)
def test_a_description_that_does_not_fit_is_refused(tmp_path: Path, about: dict[str, object], said: str) -> None:
    path, _ = saved(tmp_path)
    rewrite(path, load_file(path), **about)
    with pytest.raises(UsageError, match=said):
        load_gpt(path)


def test_files_that_are_no_checkpoint_are_refused_in_one_line(tmp_path: Path) -> None:
    path, _ = saved(tmp_path)
    torn, foreign, mixed = (
        tmp_path / "torn.safetensors",
        tmp_path / "foreign.safetensors",
        tmp_path / "mixed.safetensors",
    )
    torn.write_bytes(path.read_bytes()[:-7])
    save_file({"weight": torch.zeros(2)}, foreign)
    rewrite(mixed, load_file(path) | {"norm.weight": torch.ones(8, dtype=torch.int64)})
    cases = {torn: "not a complete safetensors file", foreign: "its format is None", mixed: "several kinds"}
    for file, said in (cases | {tmp_path / "none.safetensors": "cannot read"}).items():
        with pytest.raises(UsageError, match=said) as refused:
            load_gpt(file)
        assert "\n" not in str(refused.value)


def test_a_model_and_an_alphabet_that_disagree_are_not_saved(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="7 tokens, its alphabet gives 21"):
        save_gpt(tmp_path / "model.safetensors", GPT(SMALL), TOKENS)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("packged", "there is no model 'packged': did you mean 'packaged'?"),
        ("smolm2", "did you mean 'smollm2'?"),
        ("runs/plain", "runs/plain does not exist: give a run folder"),  # runs is a folder here
        ("./plain", "./plain does not exist"),
        ("out/checkpoint-800/average", "out/checkpoint-800/average does not exist"),
        ("/nowhere", "/nowhere does not exist"),
    ],
)
def test_a_path_that_is_not_there_is_not_asked_of_the_hub(name, said, tmp_path, monkeypatch):
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("equipoise.models.pretrained", None, raising=False)  # asking the hub would break on it
    with pytest.raises(UsageError, match=re.escape(said)):
        load_model(name)
