"""What tests share since it takes most of their time to build: one tiny GRPOTrainer, and a real server."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from browser import chromium, visit  # noqa: F401  (fixtures)
from llama_server import llama_server  # noqa: F401  (a fixture)

TINY = Path(__file__).resolve().parent.parent / "golden" / "make"


@pytest.fixture(scope="session")
def tiny_trainer(tmp_path_factory):
    """`make(**settings)` → a GRPOTrainer on CPU with a random two-layer Qwen2: 4 prompts, 4 completions of 12 tokens each."""
    pytest.importorskip("trl", reason="needs trl: pip install 'equipoise[trl]'")
    pytest.importorskip("torch", reason="needs torch: pip install 'equipoise[train]'")
    if str(TINY) not in sys.path:
        sys.path.append(str(TINY))
    from datasets import Dataset
    from tiny import tiny_model, tiny_tokenizer
    from trl import GRPOConfig, GRPOTrainer

    def make(kind: type = GRPOTrainer, **settings):
        tokenizer = tiny_tokenizer()
        config = GRPOConfig(
            output_dir=str(tmp_path_factory.mktemp("trl")),
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to="none",
            disable_tqdm=True,
            save_strategy="no",
            seed=7,
            per_device_train_batch_size=16,
            num_generations=4,
            max_completion_length=12,
            **settings,
        )
        prompts = [f"{a}+{b}=?" for a in range(4) for b in range(3)]
        return kind(
            model=tiny_model(tokenizer),
            processing_class=tokenizer,
            reward_funcs=lambda completions, **columns: [float(len(text) % 3) for text in completions],
            args=config,
            train_dataset=Dataset.from_dict({"prompt": prompts}),
        )

    return make


@pytest.fixture(scope="session")
def trl_trainer(tiny_trainer):
    """Shared, ready for `_compute_loss`. Tests change its settings through `host_losses.trl_settings`, which puts them back."""
    trainer = tiny_trainer()
    # What the training loop would set, which does not run here.
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    return trainer
