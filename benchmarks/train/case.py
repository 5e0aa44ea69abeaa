"""What both trainers are given: one model folder, the same prompts in every step, one reward, and completions of equal length."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from equipoise.base import Answer, Completion, Grade, Problem
from equipoise.models.pretrained import find_smollm2, load_transformers
from equipoise.tasks.countdown import Countdown
from equipoise.tasks.task import Seed

VOCABULARY = 4_096  # of the small model
NEVER = (
    "<never>"  # ends a completion, and has an id that the model has no logit for: every completion runs to the limit
)


@dataclass(frozen=True, slots=True)
class Case:
    """One step is `prompts` × `samples` completions of exactly `tokens` tokens, and one update in passes of `rows` completions."""

    model: str  # small, smollm2 or a folder
    device: str = "cpu"
    prompts: int = 8
    samples: int = 8
    tokens: int = 64
    rows: int = 16
    kl: float = 0.0  # coefficient of the KL to the reference; 0: no reference
    warmup: int = 2  # steps of each that are not counted, 1 or more
    repeats: int = 10  # steps that are

    @property
    def steps(self) -> int:
        return self.warmup + self.repeats + 1  # neither takes the last one, which also evaluates and saves

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def read(cls, text: str) -> Case:
        return cls(**json.loads(text))


# --- prompts and reward ------------------------------------------------------------------------------------------------------


def reward_of(text: str) -> float:
    """Right for half of all texts, whatever the model: every group has an advantage, and grading costs nothing."""
    return float(len(text) % 2)


@dataclass(frozen=True, slots=True)
class OddLength:
    """Countdown's questions in words; a completion of an odd number of characters is right."""

    env: str = "odd_length"

    def problems(self, seed: Seed, n: int, *, split: str = "train") -> list[Problem]:
        return Countdown(prompt="words").problems(seed, n, split=split)

    def read(self, problem: Problem, text: str) -> Answer | None:
        return Answer(str(len(text)))

    def grade(self, problem: Problem, completion: Completion) -> Grade:
        text = completion.text or ""
        reward = reward_of(text)
        return Grade(self.read(problem, text), "right" if reward else "wrong", reward, format_ok=True)


def prompts_of(case: Case, step: int) -> list[str]:
    """The texts of a step, from 1; drawn as the embedded trainer draws them for its seed 0."""
    return [str(problem.prompt) for problem in OddLength().problems((0, "train", step), case.prompts)]


# --- the model ---------------------------------------------------------------------------------------------------------------


def save_model(name: str, folder: Path) -> int:
    """Write the model of that name, in float32, so that neither trainer ever meets an end of text. Returns its parameters."""
    if name == "small":
        inner, tokenizer = small_model(), small_tokenizer()
    else:
        model, tokens = load_transformers(find_smollm2() if name == "smollm2" else name)
        inner, tokenizer = model.inner, tokens.inner
    n_rows = len(inner.get_input_embeddings().weight)
    pad = tokenizer.pad_token or tokenizer.eos_token
    tokenizer.add_tokens([f"<unused {number}>" for number in range(n_rows - len(tokenizer))])
    tokenizer.add_special_tokens({"eos_token": NEVER, "pad_token": pad})
    assert tokenizer.eos_token_id >= n_rows > tokenizer.pad_token_id
    for config in (inner.config, inner.generation_config):
        config.eos_token_id, config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    inner.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return sum(parameter.numel() for parameter in inner.parameters())


def small_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=256,
            intermediate_size=688,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=1_024,
            bos_token_id=None,
        )
    )


def small_tokenizer() -> PreTrainedTokenizerFast:
    """A token for every word, number and sign of the prompts; the other ids are words of their own."""
    split = pre_tokenizers.Whitespace()
    texts = [str(problem.prompt) for problem in OddLength().problems(0, 64)]
    seen = {word for text in texts for word, _ in split.pre_tokenize_str(text)} | {str(n) for n in range(100)}
    words = ["<pad>", "<unk>", *sorted(seen)]
    words += [f"word{number}" for number in range(VOCABULARY - len(words))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = split
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", eos_token="<unk>", padding_side="left"
    )
