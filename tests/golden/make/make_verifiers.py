"""Build episodes with the verifiers classes and let verifiers serialise them; add prime-rl's files around the same rollouts.

    python3.11 -m venv /tmp/golden-vf
    /tmp/golden-vf/bin/pip install verifiers==0.4.0
    /tmp/golden-vf/bin/python tests/golden/make/make_verifiers.py

`verifiers/` is what `verifiers.v1.utils.trace_store.write_episode` writes. `prime_rl/rollouts` holds `Episode.to_record()` lines, as the
prime-rl orchestrator appends them. `prime_rl/token_exports` and `prime_rl/metrics.jsonl` are written here after prime-rl's
`trainer/rl/token_export.py` (commit 004274ec) and `utils/monitor/file.py` (a28a9a4c), because prime-rl needs a GPU stack.
"""

import json
import math
import random
import shutil
from pathlib import Path

from verifiers.v1.configs.agent import AgentConfig
from verifiers.v1.episode import (
    EnvInfo,
    Episode,
    EvalRunInfo,
    EvalWorkInfo,
    GroupInfo,
    PolicySpan,
    TrainRunInfo,
    TrainWorkInfo,
)
from verifiers.v1.graph import MessageNode
from verifiers.v1.runtimes import SubprocessConfig
from verifiers.v1.task import Task, TaskData
from verifiers.v1.trace import AgentInfo, Error, ModelCall, TimeSpan, Timing, Trace, TraceTask, VersionInfo
from verifiers.v1.types import (
    AssistantMessage,
    SamplingConfig,
    SystemMessage,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
)
from verifiers.v1.utils.trace_store import write_episode

GOLDEN = Path(__file__).resolve().parent.parent
VOCABULARY = 128
CLOCK = 1_767_225_600.0


class SumData(TaskData):
    answer: str = ""


class SumTask(Task[SumData]):
    pass


QUESTIONS = [("What is 12 + 30?", "42"), ("What is 7 + 8?", "15")]
REPLIES = [["42", "41", "42", "It is 42"], ["15", "15", "15", "15"]]


def task_of(i: int) -> TraceTask:
    data = SumData(idx=i, prompt=QUESTIONS[i][0], system_prompt="Add.", answer=QUESTIONS[i][1])
    task = SumTask(data)
    return TraceTask(type="SumTask", data=data, key=task.key, hash=task.hash)


def node(
    message,
    parent,
    rng,
    *,
    tokens: bool,
    sampled: bool = False,
    scaffold: int = 2,
    advantage: float | None = None,
    trained=False,
):
    text = message.content or "".join(c.arguments for c in message.tool_calls)
    ids = [3 + i for i in range(scaffold)] + [ord(c) % VOCABULARY for c in text] if tokens else []
    mask = [False] * scaffold + [sampled] * len(text) if tokens else []
    n = sum(mask)
    logprobs = [-rng.expovariate(3) for _ in range(n)]
    full = tokens and sampled
    return MessageNode(
        parent=parent,
        message=message,
        sampled=sampled,
        timestamp=CLOCK,
        token_ids=ids,
        mask=mask,
        logprobs=logprobs,
        advantages=[advantage] * n if full and advantage is not None else None,
        trainer_logprobs=[x + rng.gauss(0, 0.01) for x in logprobs] if full and trained else None,
        entropies=[rng.expovariate(2) for _ in range(n)] if full and trained else None,
    )


def trace_of(
    i: int, s: int, rng, *, tokens: bool, advantage: float | None = None, trained: bool = False, tool: bool = False
) -> Trace:
    question, gold = QUESTIONS[i]
    options = {"rng": rng, "tokens": tokens, "trained": trained}
    nodes = [
        node(SystemMessage(content="Add."), None, **options),
        node(UserMessage(content=question), 0, **options),
    ]
    if tool:
        call = ToolCall(id="call_0", name="calculator", arguments='{"expression": "12+30"}')
        nodes.append(node(AssistantMessage(tool_calls=[call]), 1, sampled=True, advantage=advantage, **options))
        nodes.append(node(ToolMessage(tool_call_id="call_0", content="42", name="calculator"), 2, **options))
    reply = REPLIES[i][s]
    nodes.append(node(AssistantMessage(content=reply), len(nodes) - 1, sampled=True, advantage=advantage, **options))
    calls = [
        ModelCall(
            node=k,
            model="tiny",
            endpoint="/chat/completions",
            finish_reason="tool_calls" if tool and k == 2 else "length" if (i, s) == (0, 3) else "stop",
            usage=Usage(prompt_tokens=20 + 10 * j, completion_tokens=6),
            time=TimeSpan(start=CLOCK, end=CLOCK + 1),
        )
        for j, k in enumerate(k for k, n in enumerate(nodes) if n.sampled)
    ]
    trace = Trace(
        id=f"{i:04d}{s:028d}",
        verifiers=VersionInfo(version="0.4.0"),
        task=task_of(i),
        agent=AgentInfo(
            config=AgentConfig(
                model="tiny", runtime=SubprocessConfig(), sampling=SamplingConfig(temperature=0.7, max_tokens=64)
            ),
            name="solver",
        ),
        nodes=nodes,
        calls=calls,
        timing=Timing(start=CLOCK),
        ok=True,
    )
    trace.record_reward("exact", float(reply == gold), weight=1.0)
    trace.record_reward("contains", float(gold in reply), weight=0.25)
    if (i, s) == (0, 2):
        trace.rewards["judge"] = None  # scoring did not run
    trace.record_metric("reply_length", len(reply))
    trace.stop("agent_completed")
    return trace


def episode_of(trace: Trace, name: str, **fields) -> Episode:
    return Episode(
        id=f"{name}{trace.id[len(name) :]}",
        env=EnvInfo(id="sums", name="sums"),
        task=trace.task,
        traces=[trace],
        ok=trace.ok,
        **fields,
    )


def write_eval() -> None:
    """A standalone evaluation through a hosted model: no token ids, no group."""
    folder = GOLDEN / "verifiers"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    rng = random.Random(1)
    for i in range(2):
        for s in range(4):
            trace = trace_of(i, s, rng, tokens=False, tool=(i, s) == (0, 0))
            write_episode(folder, episode_of(trace, "e", run=EvalRunInfo(id="run-1", name="sums--tiny")))
    failed = Episode(
        id="e" + "f" * 31,
        env=EnvInfo(id="sums", name="sums"),
        task=task_of(1),
        run=EvalRunInfo(id="run-1", name="sums--tiny"),
        errors=[Error(type="ProviderError", message="rate limited", status_code=429)],
    )
    write_episode(folder, failed)


def append(path: Path, record: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(record, separators=(",", ":"), ensure_ascii=False) + "\n")


def exported(trace: Trace, step: int, index: int, rng) -> dict:
    """One token-export line, built from the trace's only branch. Rounded to keep the file small; prime-rl writes float32 digits."""
    branch = trace.branches[0]
    ids, mask = branch.token_ids, branch.sampled_mask
    sampler, trainer = branch.logprobs, branch.trainer_logprobs
    trainer = [x if m else -rng.expovariate(1) for x, m in zip(trainer, mask, strict=True)]
    entropy = [x if m else rng.expovariate(1) for x, m in zip(branch.entropies, mask, strict=True)]
    trainer[0], entropy[0] = -math.log(VOCABULARY), math.log(VOCABULARY)  # position 0 predicts nothing
    log_ratio = [t - s for t, s in zip(trainer, sampler, strict=True)]
    delta = [math.exp(t) - math.exp(s) for t, s in zip(trainer, sampler, strict=True)]
    advantages = branch.advantages
    high = [m and a > 0 and d > 0.2 for m, a, d in zip(mask, advantages, delta, strict=True)]
    low = [m and a < 0 and d < -0.2 for m, a, d in zip(mask, advantages, delta, strict=True)]
    record = {
        "schema_version": 1,
        "step": step,
        "export_step": step,
        "rank": 0,
        "micro_step": index // 2,
        "micro_sequence_idx": index % 2,
        "export_sequence_idx": index,
        "run_id": None,
        "env_name": "sums",
        "token_ids": ids,
        "position_ids": list(range(len(ids))),
        "loss_mask": mask,
        "advantages": advantages,
        "losses": [{"rl": {"advantage": a, "mask": m}} for a, m in zip(advantages, mask, strict=True)],
        "rewards": [None] * len(ids),
        "inference_logprobs": sampler,
        "trainer_logprobs": trainer,
        "entropy": entropy,
        "mismatch_kl": [math.exp(x) - x - 1 for x in log_ratio],
        "log_importance_ratio": log_ratio,
        "importance_ratio": [math.exp(x) for x in log_ratio],
        "prob_delta": delta,
        "is_masked": [a or b for a, b in zip(high, low, strict=True)],
        "is_masked_high": high,
        "is_masked_low": low,
    }
    return {
        k: [round(x, 5) if isinstance(x, float) else x for x in v] if isinstance(v, list) else v
        for k, v in record.items()
    }


def write_prime_rl() -> None:
    folder = GOLDEN / "prime_rl"
    shutil.rmtree(folder, ignore_errors=True)
    rng = random.Random(2)
    for step in (1, 2):
        exports = []
        for i in range(2):
            rewards = [trace_of(i, s, random.Random(0), tokens=False).reward for s in range(4)]
            mean = sum(rewards) / 4
            for s in range(4):
                trace = trace_of(
                    i, s, rng, tokens=True, advantage=rewards[s] - mean, trained=True, tool=(i, s) == (0, 0)
                )
                trace.id = f"{step}{trace.id[1:]}"
                policy = PolicySpan(start=step - 1 - (s == 0), end=step - 1) if step > 1 else PolicySpan(start=0, end=0)
                work = TrainWorkInfo(step=step, policy=policy)
                episode = episode_of(
                    trace, f"{step}t", group=GroupInfo(id=f"group-{step}-{i}"), run=TrainRunInfo(id="run-7", work=work)
                )
                record = episode.to_record()
                append(folder / "rollouts" / f"step_{step}" / "train" / "all" / "traces.jsonl", record)
                if len(set(rewards)) > 1:  # the second question is solved by all four: filtered out
                    append(folder / "rollouts" / f"step_{step}" / "train" / "effective" / "traces.jsonl", record)
                    exports.append(trace)
        # Step 2 is caught while being written: one line and no marker.
        for index, trace in enumerate(exports if step == 1 else exports[1:2]):
            append(folder / "token_exports" / f"step_{step}" / "rank_0.jsonl", exported(trace, step, index, rng))
    (folder / "token_exports" / "step_1" / "STABLE").touch()
    for s in range(4):
        trace = trace_of(0, s, rng, tokens=False)
        work = EvalWorkInfo(step=2, policy=PolicySpan(start=2, end=2))
        episode = episode_of(trace, "v", group=GroupInfo(id="eval-0"), run=TrainRunInfo(id="run-7", work=work))
        append(folder / "rollouts" / "step_2" / "eval" / "all" / "traces.jsonl", episode.to_record())
    # The older layout: one bare trace a line, with the identity under `run` and `info`.
    trace = trace_of(0, 1, rng, tokens=True, advantage=-0.5)
    older = trace.to_record() | {"run": {"type": "train", "id": "run-6", "step": 1}}
    older["info"] = {"env_name": "sums", "group_id": "group-1-0", "episode_id": "old-1", "policy_version": 0}
    append(folder / "older" / "rollouts" / "step_1" / "train" / "all" / "traces.jsonl", older)
    for step in (1, 2):
        row = {"step": step, "time": CLOCK + step, "loss/mean": 0.01 * step, "optim/grad_norm": 0.25, "optim/lr": 1e-6}
        append(folder / "metrics.jsonl", row)
        row = {"step": step, "time": CLOCK + step + 0.5, "train/agg/effective/reward/mean": 0.5}
        append(folder / "metrics.jsonl", row)


if __name__ == "__main__":
    write_eval()
    write_prime_rl()
