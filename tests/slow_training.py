"""A slow trainer: one sequence at a time, dense softmax, losses by loops. What the trainer's updates are compared with."""

from __future__ import annotations

import math
from statistics import mean, stdev

import torch
from safetensors.torch import load_file
from tiny_training import read_rollouts

from equipoise.models.checkpoint import load_gpt
from equipoise.models.language_model import hidden_states

CAREFUL = {"lr": 1e-4, "warmup": 2, "clip_norm": 0.5, "weight_decay": 0.1, "steps": 2}


def newest(folder, name="model"):
    return load_file(sorted((folder / "checkpoints").glob("step=*"))[-1] / f"{name}.safetensors")


def assert_near(found, expected, tolerance):
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=tolerance, msg=lambda m, name=name: f"{name}: {m}")


class Slow:
    """The policy, updated from recorded completions: one sequence at a time, dense softmax, losses by loops."""

    def __init__(self, path, *, lr=1e-4, clip_norm=0.5, weight_decay=0.1):
        self.policy, self.tokens = load_gpt(path)
        self.base, _ = load_gpt(path)
        self.clip_norm = clip_norm
        self.optimiser = torch.optim.AdamW(
            self.policy.parameters(), lr=lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=weight_decay
        )

    def log_softmax(self, model, row):
        """(tokens, vocabulary) of one completion."""
        prompt = self.tokens.encode(row["prompt"])
        ids = torch.tensor([[*prompt, *row["token_ids"]]])
        hidden = hidden_states(model, ids, torch.ones_like(ids, dtype=torch.bool))[0, len(prompt) - 1 : -1]
        logits = hidden @ model.head.weight_VD.T + model.head.bias_V
        return logits.log_softmax(-1)

    def update(self, rows, advantages, term, *, lr, lessons=(), coef=0.0):
        """`term(row, t, logp_V, ref_logp_V, advantage)` is a token's loss; rows without an advantage are no part of the step.

        Of `lessons`, minus the log-prob of each token is added, times `coef`, over the tokens of both.
        """
        kept = [(row, a) for row, a in zip(rows, advantages, strict=True) if a is not None]
        n_tokens = sum(row["n_tokens"] for row, _ in kept)
        loss = torch.zeros(())
        for row, advantage in kept:
            logp_TV = self.log_softmax(self.policy, row)
            with torch.no_grad():
                ref_TV = self.log_softmax(self.base, row)
            for t in range(row["n_tokens"]):
                loss = loss + term(row, t, logp_TV[t], ref_TV[t], advantage) / n_tokens
        n_both = n_tokens + sum(row["n_tokens"] for row in lessons)
        for row in lessons:
            logp_TV = self.log_softmax(self.policy, row)
            for t, token in enumerate(row["token_ids"]):
                loss = loss - coef * logp_TV[t, token] / n_both
        self.optimiser.zero_grad()
        loss.backward()
        norm = sum(float(p.grad.square().sum()) for p in self.policy.parameters()) ** 0.5
        for p in self.policy.parameters():
            p.grad *= self.clip_norm / max(norm, self.clip_norm)
        self.optimiser.param_groups[0]["lr"] = lr
        self.optimiser.step()
        return float(loss.detach()), norm

    def moments(self):
        state = self.optimiser.state_dict()["state"]
        return {f"{n}.{name}": value for n, values in state.items() for name, value in values.items()}


def step_rows(folder, step):
    return [row for row in read_rollouts(folder) if row["split"] == "train" and row["step"] == step]


def grpo_advantages(rows):
    """(R − mean) / (std + 1e-6) over the completions of a problem; 0 where they are equal."""
    found = []
    for row in rows:
        rewards = [r["reward"] for r in rows if r["group_id"] == row["group_id"]]
        same = max(rewards) == min(rewards)
        found.append(0.0 if same else (row["reward"] - mean(rewards)) / (stdev(rewards) + 1e-6))
    return found


def ppo(row, t, logp_V, ref_V, advantage):
    ratio = (logp_V[row["token_ids"][t]] - row["logprobs_rollout"][t]).exp()
    return -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)


def entropy_of(logp_V):
    return -sum(logp.exp() * logp for logp in logp_V if logp > -math.inf)
