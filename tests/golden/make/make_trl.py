"""Run TRL's GRPOTrainer on CPU with a tiny random Qwen2 and keep its completions files and trainer states.

    python3.11 -m venv /tmp/golden-trl
    /tmp/golden-trl/bin/pip install torch==2.13.0
    /tmp/golden-trl/bin/pip install "trl==1.16.*" "transformers>=5.5.3,<5.11,!=5.6" "torch==2.13.0" "numpy>=2"
    OMP_NUM_THREADS=1 /tmp/golden-trl/bin/python tests/golden/make/make_trl.py

Texts, rewards and advantages repeat exactly (one seed); timings in trainer_state.json do not.
"""

import re
import shutil
import tempfile
from pathlib import Path

from datasets import Dataset
from tiny import tiny_model, tiny_tokenizer
from trl import GRPOConfig, GRPOTrainer

OUT = Path(__file__).resolve().parent.parent / "trl"


def text_of(completion) -> str:
    return completion if isinstance(completion, str) else completion[-1]["content"]


def correct_reward(completions, answer, **kwargs):
    return [1.0 if a in text_of(c) else 0.0 for c, a in zip(completions, answer, strict=True)]


def brevity_reward(completions, **kwargs):
    return [round(1.0 - len(text_of(c)) / 24, 4) for c in completions]


def parsed_reward(completions, answer, log_extra=None, log_metric=None, **kwargs):
    """Leaves rows without a number unscored (None) and adds two columns to the Parquet file."""
    found = [re.findall(r"\d+", text_of(c)) for c in completions]
    log_extra("gold", list(answer))
    log_extra("parsed", [f[-1] if f else None for f in found])
    log_metric("parsed_fraction", sum(map(bool, found)) / len(found))
    return [(1.0 if f[-1] == a else -0.5) if f else None for f, a in zip(found, answer, strict=True)]


def rows(*, chat: bool) -> Dataset:
    """Twelve rows, five distinct questions: one batch of four prompts is bound to hold a question twice."""
    sums = [(1, 2), (3, 4), (1, 2), (2, 2), (3, 4), (1, 2), (5, 4), (2, 2), (1, 2), (0, 6), (3, 4), (1, 2)]
    texts = [f"{a}+{b}=?" for a, b in sums]
    prompts = (
        [[{"role": "system", "content": "answer"}, {"role": "user", "content": t}] for t in texts] if chat else texts
    )
    return Dataset.from_dict({"prompt": prompts, "answer": [str(a + b) for a, b in sums]})


def train(name: str, *, chat: bool = False, rewards, weights, eval_prompts: int = 0, **settings) -> None:
    tok = tiny_tokenizer()
    with tempfile.TemporaryDirectory() as scratch:
        config = GRPOConfig(
            output_dir=scratch,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to="none",
            disable_tqdm=True,
            seed=7,
            learning_rate=1e-2,
            per_device_train_batch_size=16,
            per_device_eval_batch_size=8,
            num_generations=4,
            max_completion_length=12,
            temperature=1.0,
            log_completions=True,
            num_completions_to_print=0,
            logging_steps=1,
            save_strategy="no",
            reward_weights=weights,
            eval_strategy="steps" if eval_prompts else "no",
            eval_steps=2 if eval_prompts else None,
            **{"max_steps": 3} | settings,
        )
        trainer = GRPOTrainer(
            model=tiny_model(tok),
            processing_class=tok,
            reward_funcs=rewards,
            args=config,
            train_dataset=rows(chat=chat),
            eval_dataset=rows(chat=chat).select(range(2, 2 + eval_prompts)) if eval_prompts else None,
        )
        trainer.train()
        trainer.save_state()
        target = OUT / name
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(Path(scratch) / "completions", target / "completions")
        shutil.copy(Path(scratch) / "trainer_state.json", target / "trainer_state.json")


if __name__ == "__main__":
    both = {"rewards": [correct_reward, brevity_reward], "weights": [1.0, 0.25]}
    train("plain", **both)
    train("chat", chat=True, rewards=[correct_reward, parsed_reward], weights=[1.0, 0.5])
    train("eval_overwrite", eval_prompts=4, **both)  # 16 eval rows push all 16 training rows out
    train("eval_mixed", eval_prompts=2, **both)  # 8 eval rows push the first 8 training rows out
    train("reused_batch", num_iterations=2, max_steps=4, beta=0.04, **both)
