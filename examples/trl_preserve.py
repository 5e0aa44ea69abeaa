"""TRL's GRPO with the recipe that keeps a policy broad: an exact KL to the base, a cooler temperature, an average of the weights.

    pip install 'equipoise[trl]'
    python examples/trl_preserve.py

A model of 100 thousand weights, made here, has learnt from examples to write two digits with a given sum, with many mistakes: "12=" is
answered by "3+9", "8+4" or, wrongly, "5+5". GRPO then rewards right sums. What is counted at the end, at temperature 1 and at 0.5: how
often one try is right, and how many of the different right answers 64 tries find. About a minute and a half on one core.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, set_seed
from trl import GRPOConfig, GRPOTrainer

from equipoise.adapters.trl import explore

OUT = Path(sys.argv[1] if len(sys.argv) > 1 else "build/trl_preserve")
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 100
TAUGHT = int(sys.argv[3]) if len(sys.argv) > 3 else 1000
SEED = int(sys.argv[4]) if len(sys.argv) > 4 else 42
SUMS = range(19)
BASE = OUT / "base"
RATE = 1e-3
ARMS = {
    "plain": {"rate": RATE},
    # At the recipe's temperature, 0.5, half the rate moves the policy as far. Its average is for 400 steps; here there are 100.
    "preserved": {"rate": RATE / 2, "recipe": "preserve", "average": 0.95},
}


def is_right(total: int, text: str) -> bool:
    return (
        len(text) == 3
        and text[1] == "+"
        and text[0].isdigit()
        and text[2].isdigit()
        and int(text[0]) + int(text[2]) == total
    )


def right(prompts: list[str], completions: list[str], **columns: object) -> list[float]:
    return [float(is_right(int(prompt.strip("=")), text)) for prompt, text in zip(prompts, completions, strict=True)]


def make_base() -> None:
    """A model that has seen right sums among more wrong ones, saved as any model is: TRL loads its reference from there."""
    words = ["<pad>", "<eos>", *"0123456789+="]
    tokens = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<pad>"))
    tokens.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokens.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokens, pad_token="<pad>", eos_token="<eos>", padding_side="left"
    )
    set_seed(0)
    size = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    ends = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    model = Qwen2ForCausalLM(
        Qwen2Config(vocab_size=len(words), num_key_value_heads=4, max_position_embeddings=32, **size, **ends)
    )
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    digits = torch.Generator().manual_seed(0)
    for _ in range(TAUGHT):
        texts = []
        for a, b, noise in torch.randint(10, (256, 3), generator=digits).tolist():
            total = a + b if noise < 4 else int(torch.randint(19, (), generator=digits))
            texts.append(f"{total:02}={a}+{b}<eos>")
        ids = tokenizer(texts, return_tensors="pt")["input_ids"]
        model(input_ids=ids, labels=ids).loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    model.save_pretrained(BASE)
    tokenizer.save_pretrained(BASE)


def train(name: str, rate: float, **control: object) -> None:
    trainer = explore(GRPOTrainer)(
        model=AutoModelForCausalLM.from_pretrained(BASE),
        processing_class=PreTrainedTokenizerFast.from_pretrained(BASE),
        reward_funcs=right,
        train_dataset=Dataset.from_dict({"prompt": [f"{total:02}=" for total in SUMS] * 8}),
        args=GRPOConfig(
            output_dir=str(OUT / name),
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            per_device_train_batch_size=8 * len(SUMS),
            num_generations=8,
            max_completion_length=5,
            max_steps=STEPS,
            learning_rate=rate,
            lr_scheduler_type="constant",
            seed=SEED,
            report_to="none",
            logging_strategy="no",
            disable_tqdm=True,
            save_strategy="steps",
            save_steps=STEPS,
        ),
        **control,  # the recipe, and what differs from it
    )
    trainer.train()


@torch.no_grad()
def count(name: str, folder: Path) -> None:
    """Of 64 tries at every sum, at two temperatures: the share that is right, and how many of the different right answers are among them."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), PreTrainedTokenizerFast.from_pretrained(folder)
    asked = tokenizer([f"{total:02}=" for total in SUMS], return_tensors="pt")["input_ids"]
    told = []
    for heat in (1.0, 0.5):
        set_seed(1)
        drawn = model.generate(
            asked, do_sample=True, temperature=heat, top_k=0, max_new_tokens=5, num_return_sequences=64
        )
        texts = tokenizer.batch_decode(drawn[:, 3:], skip_special_tokens=True)
        found = [[text for text in texts[64 * total :][:64] if is_right(total, text)] for total in SUMS]
        once, different = sum(map(len, found)) / len(texts), sum(len(set(each)) for each in found)
        told.append(f"at {heat:g} right {once:.2f}, different right answers {different:2} of 100")
    print(f"{name:19}", *told, sep="  ", flush=True)


make_base()
for name, control in ARMS.items():
    train(name, **control)
count("base", BASE)
for name in ARMS:
    count(name, OUT / name / f"checkpoint-{STEPS}")
count("preserved, average", OUT / "preserved" / f"checkpoint-{STEPS}" / "average")
