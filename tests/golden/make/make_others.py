"""SkyRL and AReaL: run their released dump functions. NeMo-RL and open-instruct: lines written after their source.

    # the environment of make_trl.py, then the two source trees, without their GPU requirements
    /tmp/golden-trl/bin/pip install aiofiles
    /tmp/golden-trl/bin/pip install --no-deps --target /tmp/golden-src skyrl==0.3.0 areal==1.0.4
    OMP_NUM_THREADS=1 /tmp/golden-trl/bin/python tests/golden/make/make_others.py

The functions are cut out of the released files and run alone, since the packages do not import without a GPU stack.
"""

import ast
import asyncio
import importlib.util
import json
import os
import random
import shutil
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiofiles
import aiofiles.os
import torch
from tiny import LATIN, tiny_tokenizer

GOLDEN = Path(__file__).resolve().parent.parent
SOURCE = Path(os.environ.get("GOLDEN_SRC", "/tmp/golden-src"))
TOK = tiny_tokenizer(LATIN, special=("<|im_start|>", "<|im_end|>"))
QUESTIONS = [("What is 12 + 30?", "42"), ("What is 7 + 8?", "15")]
REPLIES = [["42", "It is 41.", "42", "twelve and thirty is"], ["15", "15", "15", "15"]]
REWARDS = [[1.0, 0.0, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0]]


def cut_out(file: str, name: str, **names: Any) -> Callable:
    """One function of a source file, imported alone with the given names around it."""
    text = (SOURCE / file).read_text()
    found = next(n for n in ast.walk(ast.parse(text)) if getattr(n, "name", None) == name)
    lines = text.splitlines()[found.lineno - 1 : found.end_lineno]
    alone = Path(tempfile.mkdtemp()) / f"{name}.py"
    alone.write_text("from __future__ import annotations\n\n" + textwrap.dedent("\n".join(lines)) + "\n")
    spec = importlib.util.spec_from_file_location(name, alone)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    vars(module).update(names)
    return getattr(module, name)


def prompt_text(question: str) -> str:
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def ids(text: str) -> list[int]:
    return TOK(text)["input_ids"]


def reply_ids(i: int, s: int) -> list[int]:
    cut_off = REPLIES[i][s].endswith(" is")
    return ids(REPLIES[i][s] + ("" if cut_off else "<|im_end|>"))


def pairs():
    return [(i, s) for i in range(2) for s in range(4)]


def fresh(name: str) -> Path:
    shutil.rmtree(GOLDEN / name, ignore_errors=True)
    (GOLDEN / name).mkdir()
    return GOLDEN / name


def write_skyrl() -> None:
    folder = fresh("skyrl") / "dumped_evals" / "global_step_5_evals"
    folder.mkdir(parents=True)
    file = "skyrl/train/utils/trainer_utils.py"
    logger = SimpleNamespace(info=lambda text: None)
    dump = cut_out(
        file,
        "dump_per_dataset_eval_results",
        json=json,
        logger=logger,
        sanitize_data_source=cut_out(file, "sanitize_data_source"),
    )
    rows = pairs()
    extras = [
        {
            "data_source": "openai/gsm8k" if i == 0 else None,
            "reward_spec": {"method": "rule", "ground_truth": QUESTIONS[i][1]},
            "extra_info": {"index": i, "split": "test"},
        }
        for i, s in rows
    ]
    dump(
        folder,
        TOK,
        {
            "prompt_token_ids": [ids(prompt_text(QUESTIONS[i][0])) for i, s in rows],
            "response_ids": [reply_ids(i, s) for i, s in rows],
            # A generator may return one number a sequence or one a token; the second data source shows the latter.
            "rewards": [
                REWARDS[i][s] if i == 0 else [0.0] * (len(reply_ids(i, s)) - 1) + [REWARDS[i][s]] for i, s in rows
            ],
            "stop_reasons": ["length" if REPLIES[i][s].endswith(" is") else "stop" for i, s in rows],
        },
        [e["data_source"] for e in extras],
        ["gsm8k"] * len(rows),
        extras,
        {
            "eval/openai_gsm8k/avg_score": 0.5,
            "eval/openai_gsm8k/pass_at_4": 1.0,
            "eval/unknown/avg_score": 1.0,
            "eval/all/avg_score": 0.75,
            "eval/all/pass_at_4": 1.0,
        },
    )


def padded(rows: list[list[int]]) -> torch.Tensor:
    width = max(map(len, rows))
    return torch.tensor([row + [0] * (width - len(row)) for row in rows])


def write_areal() -> None:
    folder = fresh("areal") / "rollout"
    dump = cut_out(
        "areal/infra/workflow_executor.py",
        "_dump_trajectory",
        RTensor=SimpleNamespace(localize=lambda t: t),
        os=os,
        aiofiles=aiofiles,
        json=json,
    )
    executor = SimpleNamespace(_get_dump_dir=lambda is_eval: str(folder), _get_tokenizer=lambda: TOK)
    for task, i in ((11, 0), (12, 1), (19, 0)):
        prompt = ids(prompt_text(QUESTIONS[i][0]))
        replies = [reply_ids(i, s) for s in range(4)]
        newest = 3 if task == 19 else 2
        trajectory = {
            "input_ids": padded([prompt + r for r in replies]),
            "attention_mask": padded([[1] * (len(prompt) + len(r)) for r in replies]),
            "loss_mask": padded([[0] * len(prompt) + [1] * len(r) for r in replies]),
            # The workflows mark prompt tokens with version -1.
            "versions": padded([[-1] * len(prompt) + [newest - 1] + [newest] * (len(r) - 1) for r in replies]),
            "rewards": torch.tensor(REWARDS[i]),
        }
        asyncio.run(dump(executor, trajectory, task, False))


def write_nemo_rl() -> None:
    """After `nemo_rl/algorithms/grpo.py` and `Logger.log_batched_dict_as_jsonl`: every value is a batch of one."""
    folder = fresh("nemo_rl")
    rng = random.Random(5)
    for step in (1, 2):
        prompts = [ids(prompt_text(q)) for q, _ in QUESTIONS]
        verdicts = ["Environment: correct" if REWARDS[i][s] else "Environment: incorrect" for i, s in pairs()]
        sequences = [prompts[i] + reply_ids(i, s) + ids(v) for (i, s), v in zip(pairs(), verdicts, strict=True)]
        width = -(-max(map(len, sequences)) // 8) * 8
        with (folder / f"train_data_step{step}.jsonl").open("w") as file:
            for idx, (i, s) in enumerate(pairs()):
                sequence, start = sequences[idx], len(prompts[i])
                sampled = len(reply_ids(i, s))
                mask = [0] * start + [1] * sampled + [0] * (width - start - sampled)
                generation = [-rng.expovariate(2) if m else 0.0 for m in mask]
                previous = [
                    g + rng.gauss(0, 0.01) if m else -rng.expovariate(1) for g, m in zip(generation, mask, strict=True)
                ]
                previous[0] = 0.0  # the first token has no prediction
                advantage = REWARDS[i][s] - sum(REWARDS[i]) / 4
                record = {
                    "content": [[prompt_text(QUESTIONS[i][0]), REPLIES[i][s], verdicts[idx]]],
                    "rewards": [REWARDS[i][s]],
                    "input_lengths": [len(sequence)],
                    "token_ids": [sequence + [0] * (width - len(sequence))],
                    "token_loss_mask": [mask],
                    "sample_loss_mask": [1.0],
                    "advantages": [[advantage] * width],
                    "generation_logprobs": [generation],
                    "prev_logprobs": [previous],
                    "idx": idx,
                }
                file.write(json.dumps(record) + "\n")
    with (folder / "val_data_step2.jsonl").open("w") as file:
        for idx, (i, s) in enumerate(pairs()):
            messages = [
                {"role": "user", "content": prompt_text(QUESTIONS[i][0])},
                {"role": "assistant", "content": REPLIES[i][s]},
                {
                    "role": "environment",
                    "content": "Environment: correct" if REWARDS[i][s] else "Environment: incorrect",
                },
            ]
            file.write(json.dumps({"content": [messages], "rewards": [REWARDS[i][s]], "idx": idx}) + "\n")


def write_open_instruct() -> None:
    """After `open_instruct/rl_utils.py`: RolloutRecord, RolloutMetadata, _save_rollouts."""
    folder = fresh("open_instruct")
    metadata = {
        "run_name": "grpo_sums",
        "git_commit": "0" * 40,
        "model_name": "tiny",
        "timestamp": "2026-01-02T03:04:05.678901+00:00",
    }
    (folder / "grpo_sums_metadata.jsonl").write_text(json.dumps(metadata) + "\n")
    rng = random.Random(6)
    with (folder / "grpo_sums_rollouts_000000.jsonl").open("w") as file:
        for step in (1, 2):
            for k, (i, s) in enumerate(pairs()):
                response = reply_ids(i, s)
                record = {
                    "step": step,
                    "sample_idx": k,
                    "prompt_idx": k // 4,
                    "prompt_tokens": ids(prompt_text(QUESTIONS[i][0])),
                    "response_tokens": response,
                    "reward": 10.0 * REWARDS[i][s],
                    "advantage": 10.0 * (REWARDS[i][s] - sum(REWARDS[i]) / 4),
                    "finish_reason": "length" if REPLIES[i][s].endswith(" is") else "stop",
                    "dataset": "gsm8k",
                    "ground_truth": ids(QUESTIONS[i][1]),
                    "request_info": {
                        "num_calls": 0,
                        "timeouts": 0,
                        "tool_errors": "",
                        "tool_outputs": "",
                        "tool_runtimes": 0.0,
                        "tool_calleds": False,
                        "tool_call_stats": [],
                        "rollout_state": {},
                    },
                    "logprobs": [-rng.expovariate(2) for _ in response],
                }
                file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    write_skyrl()
    write_areal()
    write_nemo_rl()
    write_open_instruct()
