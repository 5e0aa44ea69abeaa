"""Call verl's own dump, validation, metric and file-logger code on CPU with scripted generations.

    # the environment of make_trl.py, then
    /tmp/golden-trl/bin/pip install --no-deps verl==0.9.1 torchdata TransferQueue cachetools prometheus_client
    /tmp/golden-trl/bin/pip install "torch==2.13.0" "transformers>=5.5.3,<5.11,!=5.6" "numpy>=2" ray hydra-core codetiming \
        "tensordict>=0.8,<=0.10,!=0.9" orjson peft pyzmq msgspec pylatexenc uvicorn fastapi
    OMP_NUM_THREADS=1 /tmp/golden-trl/bin/python tests/golden/make/make_verl.py

Real: `RayPPOTrainer._balance_batch` and `._log_rollout_data` (legacy), `PPOTrainer._log_rollout_data` and `._validate` (v1), the
math_dapo reward, `compute_data_metrics`, `Tracking` with the `file` backend. Scripted: the texts, and the queue that v1 reads them from.
"""

import os
import shutil
import uuid
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from omegaconf import OmegaConf
from tiny import LATIN, tiny_tokenizer
from transfer_queue import KVBatchMeta
from verl import DataProto
from verl.trainer.ppo.metric_utils import compute_data_metrics
from verl.trainer.ppo.ray_trainer import RayPPOTrainer
from verl.trainer.ppo.v1 import trainer_base
from verl.utils.reward_score import math_dapo
from verl.utils.tracking import Tracking

OUT = Path(__file__).resolve().parent.parent / "verl"
TOK = tiny_tokenizer(LATIN, special=("<|im_start|>", "<|im_end|>"))
MAX_RESPONSE, OVERLONG_FROM = 100, 60
QUESTIONS = [("What is 12 + 30?", "42"), ("How many primes are below 10?", "4"), ("What is 12 + 30?", "42")]
REPLIES = {
    "42": [
        "12 + 30 = 42.\nAnswer: 42",
        "I add 12 and 30 and get 32.\nAnswer: 32",
        "It is 42, surely.",
        "Let me add slowly: 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, voilà.\nAnswer: 42",
    ],
    "4": ["2, 3, 5, 7.\nAnswer: 4", "1, 2, 3, 5, 7.\nAnswer: 5", "2, 3, 5, 7, 9\nAnswer: 5", "Four.\nAnswer: 4"],
}
FIRST_TURN = "I should count: 2, 3, 5, 7."


def uid_of(step: int, question: int) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{step}-{question}"))


def prompt_ids(question: str) -> list[int]:
    text = (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    )
    return TOK(text)["input_ids"]


def reply_ids(reply: str) -> list[int]:
    ids = TOK(reply)["input_ids"]
    return ids[:MAX_RESPONSE] if len(ids) >= MAX_RESPONSE else [*ids, TOK.convert_tokens_to_ids("<|im_end|>")]


def graded(reply: str, gold: str) -> tuple[float, dict]:
    """The DAPO reward manager's sum: verdict plus overlong penalty, verdict kept among the extras."""
    extra = math_dapo.compute_score(reply, gold)
    excess = len(reply_ids(reply)) - OVERLONG_FROM
    penalty = min(-excess / (MAX_RESPONSE - OVERLONG_FROM), 0)
    return extra["score"] + penalty, extra | {"overlong_reward": penalty, "overlong": penalty < 0}


def samples(step: int, n: int = 4) -> list[dict]:
    """Rows in the order they were sampled: group after group."""
    rows = []
    for q, (question, gold) in enumerate(QUESTIONS):
        for s in range(n):
            reply = REPLIES[gold][(s * (1 + q // 2) + step) % 4]
            reward, extra = graded(reply, gold)
            rows.append(
                {
                    "uid": uid_of(step, q),
                    "session": s,
                    "question": question,
                    "gold": gold,
                    "reply": reply,
                    "reward": reward,
                    "extra": extra,
                }
            )
    return rows


def bare(cls, step: int, **config):
    trainer = object.__new__(cls)
    trainer.tokenizer, trainer.global_steps = TOK, step
    trainer.config = OmegaConf.create(config)
    trainer._init_dump_executor()
    return trainer


def write_legacy(step: int) -> dict:
    rows = samples(step)
    if step == 2:
        rows[5]["reply"] = ""  # an aborted sample
        rows[5]["reward"], rows[5]["extra"] = graded("", rows[5]["gold"])
    prompts = [prompt_ids(r["question"]) for r in rows]
    replies = [reply_ids(r["reply"]) if r["reply"] else [] for r in rows]
    wide = max(map(len, prompts))
    scores = torch.zeros(len(rows), MAX_RESPONSE)
    for i, (row, ids) in enumerate(zip(rows, replies, strict=True)):
        scores[i, max(len(ids) - 1, 0)] = row["reward"]
    mask = torch.tensor([[1] * len(i) + [0] * (MAX_RESPONSE - len(i)) for i in replies])
    prompt_mask = torch.tensor([[0] * (wide - len(p)) + [1] * len(p) for p in prompts])
    batch = DataProto.from_dict(
        tensors={
            "prompts": torch.tensor([[0] * (wide - len(p)) + p for p in prompts]),
            "responses": torch.tensor([i + [0] * (MAX_RESPONSE - len(i)) for i in replies]),
            "response_mask": mask,
            "attention_mask": torch.cat([prompt_mask, mask], dim=1),
            "token_level_scores": scores,
            "token_level_rewards": scores,
            "advantages": scores.sum(1, keepdim=True) * mask,
            "returns": scores.sum(1, keepdim=True) * mask,
        },
        non_tensors={
            "reward_model": np.array([{"style": "rule", "ground_truth": r["gold"]} for r in rows], dtype=object),
            "uid": np.array([r["uid"] for r in rows], dtype=object),
            **{k: np.array([r["extra"][k] for r in rows], dtype=object) for k in rows[0]["extra"]},
        },
    )
    trainer = bare(RayPPOTrainer, step)
    trainer.actor_rollout_wg = None
    trainer._get_dp_size = lambda group, role: 2
    metrics: dict = {}
    trainer._balance_batch(batch, metrics)  # on by default: rows leave their groups
    extras = {k: batch.non_tensor_batch[k] for k in rows[0]["extra"]}
    trainer._log_rollout_data(batch, extras, {}, str(OUT / "legacy" / "rollout"))
    trainer._shutdown_dump_executor()
    return compute_data_metrics(batch, use_critic=False) | metrics


class Queue:
    """Stands in for the transfer queue: remembers rows by key."""

    def __init__(self, step: int):
        self.rows: dict[str, dict] = {}
        for row in samples(step):
            outputs = [FIRST_TURN, row["reply"]] if (row["session"], row["gold"]) == (1, "4") else [row["reply"]]
            for i, reply in enumerate(outputs):
                # verl copies the last output's reward to the earlier outputs of the session.
                self.rows[f"{row['uid']}_{row['session']}_{i}"] = row | {"reply": reply, "turns": 2 * len(outputs)}

    def kv_batch_put(self, **kwargs):
        pass

    def kv_clear(self, **kwargs):
        pass

    def kv_batch_get(self, keys, partition_id, select_fields):
        rows = [self.rows[k] for k in keys]

        def ragged(lists, dtype):
            return torch.nested.as_nested_tensor([torch.tensor(x, dtype=dtype) for x in lists], layout=torch.jagged)

        def objects(values):
            out = np.empty(len(values), dtype=object)
            out[:] = values
            return out

        full = {
            "uid": objects([r["uid"] for r in rows]),
            "prompts": ragged([prompt_ids(r["question"]) for r in rows], torch.int64),
            "responses": ragged([reply_ids(r["reply"]) for r in rows], torch.int64),
            "rm_scores": torch.tensor([[0.0, r["reward"]] for r in rows]),
            "num_turns": objects([r["turns"] for r in rows]),
            "reward_model": objects([{"style": "rule", "ground_truth": r["gold"]} for r in rows]),
            "data_source": objects(["math_dapo"] * len(rows)),
            "extra_fields": objects([{"reward_extra_info": r["extra"]} for r in rows]),
        }
        return {k: full[k] for k in select_fields}

    def batch(self) -> KVBatchMeta:
        keys = sorted(self.rows, key=lambda k: k[::-1])  # finished in any order
        return KVBatchMeta(keys=keys, tags=[{}] * len(keys), partition_id="train")


class V1Trainer(trainer_base.PPOTrainer):
    """The base class leaves two hooks abstract; neither takes part in dumping."""

    def on_sample_end(self, *args):
        pass

    def on_step_end(self, *args):
        pass


def write_v1(step: int) -> None:
    trainer = bare(V1Trainer, step)
    trainer_base.tq = queue = Queue(step)
    trainer._log_rollout_data(queue.batch(), {}, str(OUT / "v1" / "rollout"))
    trainer._shutdown_dump_executor()


def write_v1_validation(step: int) -> dict:
    trainer = bare(
        V1Trainer,
        step,
        trainer={"validation_data_dir": str(OUT / "v1" / "validation"), "log_val_generations": 0},
        actor_rollout_ref={"rollout": {"val_kwargs": {"n": 4}}},
    )
    trainer_base.tq = queue = Queue(step)
    trainer.val_dataloader = [{"raw_prompt": np.array([q for q, _ in QUESTIONS], dtype=object)}]
    trainer.agent_loop_manager = SimpleNamespace(generate_sequences=lambda batch: None)
    trainer.replay_buffer = SimpleNamespace(sample=lambda **kwargs: (queue.batch(), {}))
    trainer.reward_loop_manager = SimpleNamespace(reward_loop_worker_handles=[])
    metrics = trainer._validate()
    trainer._shutdown_dump_executor()
    return metrics


def main() -> None:
    shutil.rmtree(OUT, ignore_errors=True)
    os.environ["VERL_FILE_LOGGER_ROOT"] = str(OUT / "metrics")
    tracking = Tracking("golden", "grpo", default_backend=["file"])
    tracking.log(data=write_v1_validation(0), step=0)  # val_before_train
    for step in (1, 2):
        metrics = write_legacy(step)
        write_v1(step)
        # What the actor reports, written out: names from verl's actor update, values scripted.
        metrics |= {
            "actor/entropy": 1.25 - 0.3 * step,
            "actor/pg_loss": np.float32(0.01 * step),
            "actor/pg_clipfrac": 0.002 * step,
            "actor/pg_clipfrac_lower": 0.0,
            "actor/ppo_kl": 0.0005 * step,
            "actor/kl_loss": 0.001 * step,
            "actor/grad_norm": float("nan") if step == 2 else 0.8,
            "actor/lr": 1e-6,
            "training/global_step": step,
            "training/epoch": 0,
        }
        if step == 2:
            metrics |= write_v1_validation(step)
        tracking.log(data=metrics, step=step)


if __name__ == "__main__":
    main()
