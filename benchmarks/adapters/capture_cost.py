"""What the capture's thread costs a step of TRL, without a trainer: python -m benchmarks.adapters.capture_cost [--json FILE].

A `Capture` is handed what TRL hands over: token ids, log-probs, entropies, rewards and advantages of 16 × 16 completions of 32 tokens,
with SmolLM2's tokenizer. Tokens are an expression of Countdown and then Zipf draws, so that new tokens turn up in every step, as they do
in a run. Two figures a step: the CPU time of the thread, and by how much it holds up a training thread that runs Python all along, as the
loop of `generate` does. The first counts what the thread does without the interpreter's lock too, the second only what it takes from others.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer

from benchmarks.adapters.trl_arm import SHOTS, TASK, read_line, thread_clock
from equipoise.adapters.trl import Capture
from equipoise.models.pretrained import find_smollm2

WARMUP = 3  # steps that are not counted
EXPONENT = 1.4  # of the draws: 242 distinct tokens in 4 × 16 completions and 327 in 6 × 16; SmolLM2's own samples have 230 and 305
LAUNCHES = 60_000  # small calls of torch by the thread beside it: longer than the capture needs


def stand_in(tokenizer: Any, *, samples: int, tokens: int) -> Any:
    """What the capture reads of a trainer."""
    args = SimpleNamespace(temperature=1.0, top_p=1.0, max_completion_length=tokens, num_generations=samples, seed=0)
    model = SimpleNamespace(config=SimpleNamespace(_name_or_path="SmolLM2-135M-Instruct"), training=True)
    return SimpleNamespace(
        accelerator=SimpleNamespace(is_main_process=True, num_processes=1),
        args=args,
        model=model,
        state=SimpleNamespace(global_step=0),
        temperature=1.0,
        eos_token_ids=[tokenizer.eos_token_id],
        num_generations=samples,
        reward_func_names=["right"],
        reward_weights=torch.ones(1),
        average=None,
        _tokenizer=tokenizer,
    )


class Steps:
    """Generation batches, as TRL's `_generate_and_score_completions` returns them."""

    def __init__(self, tokenizer: Any, *, prompts: int, samples: int, tokens: int) -> None:
        self.tokenizer, self.prompts, self.samples, self.tokens = tokenizer, prompts, samples, tokens
        self.rng = np.random.default_rng(0)
        share = np.arange(1, len(tokenizer), dtype=np.float64) ** -EXPONENT
        self.share = share / share.sum()
        self.shots = "".join(f"{p.prompt} {p.reference}\n" for p in TASK.problems((1, "shots"), SHOTS))

    def draw(self, step: int) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor, torch.Tensor]:
        """Its batch, the rewards by function, log-probs and entropies."""
        problems = TASK.problems((0, "train", step), self.prompts)
        n, rng = self.prompts * self.samples, self.rng
        asked = [self.tokenizer(self.shots + str(p.prompt))["input_ids"] for p in problems]
        width = max(map(len, asked))
        prompt_ids = np.full((n, width), self.tokenizer.pad_token_id)
        ids = 1 + rng.choice(len(self.share), (n, self.tokens), p=self.share)
        for row in range(n):
            problem = row // self.samples
            prompt_ids[row, width - len(asked[problem]) :] = asked[problem]
            answer = self.tokenizer(f" {problems[problem].reference}\n")["input_ids"][: self.tokens]
            ids[row, : len(answer)] = answer
        logp = -rng.exponential(1.0, ids.shape)
        inputs = {
            "prompt_ids": torch.tensor(prompt_ids),
            "prompt_mask": torch.tensor(prompt_ids != self.tokenizer.pad_token_id).long(),
            "completion_ids": torch.tensor(ids),
            "completion_mask": torch.ones(ids.shape, dtype=torch.long),
            "advantages": torch.tensor(rng.normal(size=n), dtype=torch.float32),
        }
        rewards = torch.tensor(rng.integers(0, 2, (n, 1)), dtype=torch.float32)
        return inputs, rewards, torch.tensor(logp).float(), torch.tensor(-logp).float()


def measure(*, steps: int, prompts: int, samples: int, tokens: int) -> dict[str, Any]:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # what it decodes is done, and counted, in the thread
    tokenizer = AutoTokenizer.from_pretrained(str(find_smollm2().parent), gguf_file=find_smollm2().name)
    tokenizer.eos_token, tokenizer.pad_token = "<|im_end|>", "<|endoftext|>"
    trainer = stand_in(tokenizer, samples=samples, tokens=tokens)
    drawn = Steps(tokenizer, prompts=prompts, samples=samples, tokens=tokens)
    rows: list[dict[str, Any]] = [{}] * (prompts * samples)
    cpu, alone, beside, handing = [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        capture = Capture(Path(folder) / "run")
        capture.begin(trainer, read=read_line, correct="right", specs=[])
        for step in range(WARMUP + steps):
            inputs, rewards, logp, entropy = drawn.draw(step + 1)
            trainer.state.global_step = step
            began = thread_clock()
            start = time.perf_counter()
            capture.scored(trainer, rows, inputs, rewards)
            capture.seen(trainer, inputs, logp, entropy)
            handing.append(time.perf_counter() - start)
            beside.append(timed(launch))
            capture.log(step + 1, {"loss": 0.1, "entropy": 1.0, "reward": 0.5, "grad_norm": 1.0})
            capture.flush()
            cpu.append(thread_clock() - began)
            alone.append(timed(launch))
    held = np.array(beside) - np.array(alone)
    return {
        "prompts": prompts,
        "samples": samples,
        "tokens": tokens,
        "steps": steps,
        "thread_cpu_ms": spread(cpu[WARMUP:]),
        "held_up_ms": spread(held[WARMUP:]),
        "handing_over_ms": spread(handing[WARMUP:]),
    }


def launch() -> None:
    """As `generate` does it: Python that hands the interpreter's lock out, and wants it back, at every call of torch."""
    number = torch.zeros(1)
    for _ in range(LAUNCHES):
        number.add_(1.0)


def timed(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def spread(seconds: Sequence[float] | np.ndarray) -> dict[str, float]:
    low, median, high = np.quantile(np.asarray(seconds) * 1000, (0.1, 0.5, 0.9))
    return {"q10": round(float(low), 2), "median": round(float(median), 2), "q90": round(float(high), 2)}


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--steps", type=int, default=40)
    asked.add_argument("--prompts", type=int, default=16)
    asked.add_argument("--samples", type=int, default=16)
    asked.add_argument("--tokens", type=int, default=32)
    asked.add_argument("--json", type=Path)
    how = asked.parse_args()
    found = measure(steps=how.steps, prompts=how.prompts, samples=how.samples, tokens=how.tokens)
    found |= {
        "device": platform.processor() or platform.machine(),
        "versions": {package: version(package) for package in ("pyarrow", "numpy", "transformers")},
    }
    text = json.dumps(found, indent=1)
    print(text)
    if how.json is not None:
        how.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
