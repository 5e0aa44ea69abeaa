"""The moving average of a TRL run's weights: what it is, what a checkpoint keeps of it, and that it blends with the base."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("trl", reason="needs trl: pip install 'equipoise[trl]'")
pytestmark = pytest.mark.integration

from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM  # noqa: E402
from trl_runs import exploring, figures, make, trained, weights  # noqa: E402

from equipoise.adapters.trl import AverageWeights  # noqa: E402
from equipoise.cli.main import run  # noqa: E402
from equipoise.errors import UsageError  # noqa: E402
from equipoise.lab.blend import blend  # noqa: E402

SAVED = {"max_steps": 3, "save_strategy": "steps", "save_steps": 1, "learning_rate": 1e-2}


def held(folder: Path, **how) -> dict[str, torch.Tensor]:
    return AutoModelForCausalLM.from_pretrained(folder, dtype="auto", **how).state_dict()


def by_hand(folder: Path, base: dict[str, torch.Tensor], decay: float, last: int) -> dict[str, torch.Tensor]:
    """From the weights before the first step and those of every checkpoint."""
    average = {name: tensor.double() for name, tensor in base.items()}
    for step in range(1, last + 1):
        after = held(folder / f"checkpoint-{step}")
        average = {name: decay * tensor + (1 - decay) * after[name].double() for name, tensor in average.items()}
    return average


def assert_same(found, wanted, atol=1e-6):
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name].double(), tensor.double(), rtol=0, atol=atol)


def test_the_average_follows_every_step_and_training_does_not_read_it(tmp_path):
    plain = make(tmp_path / "plain", **SAVED)
    wanted = trained(plain)
    ours = exploring(tmp_path / "ours", average=0.8, **SAVED)
    base = {name: tensor.clone() for name, tensor in ours.model.state_dict().items()}
    assert trained(ours) == wanted
    assert torch.equal(weights(plain), weights(ours))
    for step in (1, 3):
        found = held(tmp_path / "ours" / f"checkpoint-{step}" / "average")
        assert_same(found, by_hand(tmp_path / "ours", base, 0.8, step))
    ours.average.save(tmp_path / "end")
    assert_same(held(tmp_path / "end"), found, atol=0)
    apart = make(tmp_path / "apart", **SAVED)  # a trainer without the mixin
    apart.add_callback(AverageWeights(0.8))
    apart.train()
    assert_same(held(tmp_path / "apart" / "checkpoint-3" / "average"), found, atol=0)
    assert not any(path.name == "average" for path in (tmp_path / "plain").rglob("*"))


def test_resume_goes_on_with_the_average_of_the_checkpoint(tmp_path):
    whole = exploring(tmp_path / "whole", average=0.8, **SAVED)
    wanted = trained(whole)
    again = exploring(tmp_path / "again", average=0.8, **SAVED)
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-1"))
    assert figures(again)[-2:] == wanted[-2:]
    last = [held(tmp_path / name / "checkpoint-3" / "average") for name in ("whole", "again")]
    assert_same(last[1], last[0], atol=0)
    callback = make(tmp_path / "whole", **SAVED)
    callback.add_callback(AverageWeights(0.8))
    callback.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert_same(held(tmp_path / "whole" / "checkpoint-3" / "average"), last[0], atol=0)
    make(tmp_path / "plain", **SAVED).train()
    with pytest.raises(UsageError, match="made without an average of the weights"):
        exploring(tmp_path / "b", average=0.8, **SAVED).train(
            resume_from_checkpoint=str(tmp_path / "plain" / "checkpoint-1")
        )


def test_tied_weights_are_saved_once_and_half_precision_is_averaged_in_full(tmp_path, monkeypatch):
    def tied(tokenizer):
        torch.manual_seed(0)
        sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
        ends = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
        config = Qwen2Config(
            vocab_size=len(tokenizer), num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=True, **sizes, **ends
        )  # fmt: skip
        return Qwen2ForCausalLM(config).to(torch.bfloat16)

    monkeypatch.setattr("tiny.tiny_model", tied)
    trainer = exploring(tmp_path, average=0.9, **SAVED)
    base = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    trainer.train()
    folder = tmp_path / "checkpoint-3" / "average"
    stored = load_file(folder / "model.safetensors")
    assert "lm_head.weight" not in stored
    assert {tensor.dtype for tensor in stored.values()} == {torch.float32}
    wanted = by_hand(tmp_path, base, 0.9, 3)
    assert_same(stored, {name: tensor for name, tensor in wanted.items() if name != "lm_head.weight"})
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight


def test_the_average_blends_with_the_base(tmp_path, monkeypatch):
    trainer = exploring(tmp_path / "trl", average=0.5, **SAVED)
    base = Path(trainer.model.config._name_or_path)  # where the model came from; TRL was given the tokenizer beside it
    trainer.processing_class.save_pretrained(base)
    start = held(base)
    trainer.train()
    average, out = tmp_path / "trl" / "checkpoint-3" / "average", tmp_path / "blended"
    monkeypatch.setattr(sys, "argv", ["equipoise", "blend", str(base), str(average), "--at", "0.7", "-o", str(out)])
    with pytest.raises(SystemExit) as ended:
        run()
    assert not ended.value.code
    end = held(average)
    assert_same(held(out), {name: 0.3 * tensor.double() + 0.7 * end[name].double() for name, tensor in start.items()})
    assert any((end[name] - tensor).abs().max() > 1e-3 for name, tensor in start.items())
    found = blend(base, average, points=[0.5], task="test_blend:Parity", samples=2, problems=4, max_tokens=2)
    assert [one.point for one in found.sweep] == [0, 0.5, 1]


def test_a_model_with_an_adapter_is_refused():
    with pytest.raises(UsageError, match="adapter of PEFT"):
        AverageWeights(0.9).on_train_begin(None, None, None, model=SimpleNamespace(peft_config={}))
    with pytest.raises(UsageError, match="it begins with training"):
        AverageWeights(0.9).save("nowhere")
