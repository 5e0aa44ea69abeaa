"""TRL's GRPO on a CPU, with and without a control, recorded and diagnosed: about a minute.

    pip install 'equipoise[trl]'
    python examples/trl_grpo.py

A model of 100 thousand weights, made here, learns to add two digits and write the last digit of the sum. It has to find that out
by itself: its first answers are random. `plain` is TRL as it is; `held` lets a controller move TRL's entropy bonus so that the
policy stays between two entropies. Both runs are recorded in full and can be diagnosed like any other, and so are completions of the
untrained model, for a baseline.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, set_seed
from trl import GRPOConfig, GRPOTrainer

from equipoise.adapters.trl import explore
from equipoise.base import Answer

OUT = Path(sys.argv[1] if len(sys.argv) > 1 else "build/trl_grpo")
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 100
PROBLEMS = [(a, b) for a in range(5) for b in range(5)]
ARMS = {"plain": [], "held": ["band:low=1.0,high=3.0,step=0.005,max=0.2"]}


def right(prompts: list[str], completions: list[str], **columns: object) -> list[float]:
    """1 where the first character is the last digit of the sum."""
    sums = [sum(map(int, prompt.strip("=").split("+"))) for prompt in prompts]
    return [float(text[:1] == str(n % 10)) for n, text in zip(sums, completions, strict=True)]


def first_character(text: str) -> Answer | None:
    return Answer(text[0], (0, 1)) if text else None


def small_model() -> tuple[Qwen2ForCausalLM, PreTrainedTokenizerFast]:
    words = ["<pad>", "<eos>", *"0123456789+="]
    tokens = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<pad>"))
    tokens.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokens, pad_token="<pad>", eos_token="<eos>", padding_side="left"
    )
    set_seed(0)
    size = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    ends = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = Qwen2Config(vocab_size=len(words), num_key_value_heads=4, max_position_embeddings=32, **size, **ends)
    return Qwen2ForCausalLM(config), tokenizer


def make_trainer(name: str, exploration: list[str]) -> GRPOTrainer:
    model, tokenizer = small_model()
    return explore(GRPOTrainer)(
        model=model,
        processing_class=tokenizer,
        reward_funcs=right,
        train_dataset=Dataset.from_dict({"prompt": [f"{a}+{b}=" for a, b in PROBLEMS * 8]}),
        args=GRPOConfig(
            output_dir=str(OUT / name / "trl"),
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            per_device_train_batch_size=200,
            num_generations=8,
            per_device_eval_batch_size=800,
            num_generations_eval=16,
            max_completion_length=2,
            max_steps=STEPS,
            shuffle_dataset=False,  # every problem in every step
            learning_rate=3e-3,
            lr_scheduler_type="constant",
            logging_steps=1,
            report_to="none",
            disable_tqdm=True,
            save_strategy="no",
        ),
        exploration=exploration,  # what is added: specs of `equipoise methods`
        capture=OUT / name / "run",  # everything that is sampled, with its log-probs and entropies
        correct="right",  # the reward function whose 1 means a right answer
        read=first_character,
    )


base = make_trainer("base", [])
base.evaluate(base.train_dataset)  # untrained, and recorded: the baseline, 8 times 16 completions of every problem

for name, exploration in ARMS.items():
    trainer = make_trainer(name, exploration)
    trainer.train()
    main_process = trainer.is_world_process_zero()
    lines = [line for line in trainer.state.log_history if "entropy" in line] if main_process else []
    for line in lines[:: max(STEPS // 5, 1)] + lines[-1:]:
        print(f"{name:6} step {line['step']:3}  right {line['reward']:.2f}  entropy {line['entropy']:.2f}", flush=True)

for name in ARMS if main_process else ():
    print(f"\n$ equipoise diagnose {OUT / name / 'run'}", flush=True)
    subprocess.run([Path(sys.executable).with_name("equipoise"), "diagnose", OUT / name / "run"], check=True)
