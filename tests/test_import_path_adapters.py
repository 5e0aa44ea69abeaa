"""Functions that other hosts take by their import path: called as each host calls them, against loops over tokens.

No host is installed. What a host's own module must hold for ours to run (`LossOutputs`, `LossType`, `get_log_probs_and_entropy`)
is put in its place, with the names and signatures that the host publishes.
"""

from __future__ import annotations

import enum
import inspect
import json
import math
import pickle
import sys
from dataclasses import dataclass, replace
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from slow_objectives import (  # noqa: E402
    random_batch,
    slow_cispo,
    slow_clip,
    slow_gppo,
    slow_kl,
    slow_kl_cov,
)

from equipoise.adapters import host_objective, nemo_rl, openrlhf, prime_rl, skyrl, slime, tinker  # noqa: E402
from equipoise.errors import UsageError  # noqa: E402

CLOSE = {"rtol": 1e-9, "atol": 1e-12}


def placed(monkeypatch, name: str, **held) -> None:
    """A module of a host that is not installed."""
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        path = ".".join(parts[:depth])
        module = ModuleType(path)
        if depth == len(parts):
            vars(module).update(held)
        monkeypatch.setitem(sys.modules, path, module)


def leaf(batch):
    return batch.logp_BT.detach().clone().requires_grad_()


def slope(loss, by):
    return torch.autograd.grad(loss, by)[0]


# ---------------------------------------------------------------- prime-rl


@dataclass
class LossInputs:  # prime-rl's, main of August 2026
    trainer_logprobs: torch.Tensor
    inference_logprobs: torch.Tensor
    teacher_logprobs: torch.Tensor | None
    advantages: torch.Tensor
    loss_mask: torch.Tensor
    loss_weights: torch.Tensor | None = None


@dataclass
class LossOutputs:
    loss: torch.Tensor
    metrics: dict[str, torch.Tensor]


@pytest.fixture
def prime(monkeypatch):
    placed(monkeypatch, "prime_rl.trainer.rl.loss", LossOutputs=LossOutputs, LossInputs=LossInputs)


def prime_inputs(batch, logp, row, **more):
    return LossInputs(logp[row], batch.old_logp_BT[row], None, batch.adv_BT[row], batch.mask_BT[row], **more)


def test_prime_rl_gets_the_sum_over_each_completion(prime):
    batch = random_batch(3)
    value_BT, slope_BT = slow_gppo(batch, 0.2, 0.28, 0.5, 1.0)
    for row in range(len(batch.logp_BT)):
        logp = leaf(batch)
        found = prime_rl.policy_loss(prime_inputs(batch, logp, row), method="gppo:beta_low=0.5")
        torch.testing.assert_close(found.loss.detach(), value_BT[row].sum(), **CLOSE)
        torch.testing.assert_close(slope(found.loss, logp)[row], slope_BT[row], **CLOSE)
        assert all(isinstance(value, torch.Tensor) and value.dim() == 0 for value in found.metrics.values())


def test_prime_rl_s_token_weights_multiply_the_terms(prime):
    batch = random_batch(4)
    weights = torch.linspace(0, 2, batch.logp_BT.shape[1], dtype=torch.float64)
    value_BT, _ = slow_clip(batch, 0.2, 0.28)
    found = prime_rl.policy_loss(prime_inputs(batch, batch.logp_BT, 0, loss_weights=weights))
    torch.testing.assert_close(found.loss, (value_BT[0] * weights).sum(), **CLOSE)


def test_a_completion_without_a_token_has_a_loss_of_0(prime):
    batch = random_batch(0)
    empty = len(batch.mask_BT) // 2
    assert not batch.mask_BT[empty].any()
    assert prime_rl.policy_loss(prime_inputs(batch, batch.logp_BT, empty)).loss == 0


@pytest.mark.parametrize("method", ["clip_cov", "kl_cov", "kl_cov_two_sided", "gspo", "kl_cov_step", "forking", "kl"])
def test_prime_rl_refuses_what_it_cannot_feed(prime, method):
    batch = random_batch(0)
    with pytest.raises(UsageError, match="prime-rl"):
        prime_rl.policy_loss(prime_inputs(batch, batch.logp_BT, 0), method=method)


# ---------------------------------------------------------------- SkyRL


def test_skyrl_s_signatures():
    loss = list(inspect.signature(skyrl.policy_loss("clip")).parameters)
    assert loss == ["log_probs", "old_log_probs", "advantages", "config", "loss_mask", "rollout_logprobs"]
    estimator = inspect.signature(skyrl.advantage("group_mean")).parameters
    assert {"token_level_rewards", "response_mask", "index"} <= set(estimator)
    assert any(one.kind is inspect.Parameter.VAR_KEYWORD for one in estimator.values())


def test_skyrl_adds_up_advantages_that_it_has_divided():
    batch = random_batch(5)
    tokens = int(batch.mask_BT.sum())
    divided = replace(batch, adv_BT=batch.adv_BT / tokens)  # loss_reduction=token_mean
    value_BT, slope_BT = slow_cispo(batch, 0.0, 1.5)
    logp = leaf(batch)
    loss, metrics = skyrl.policy_loss("cispo:weight_cap=1.5")(
        logp, divided.old_logp_BT, divided.adv_BT, config=None, loss_mask=batch.mask_BT.float()
    )
    torch.testing.assert_close(loss.detach(), value_BT.sum() / tokens, **CLOSE)
    torch.testing.assert_close(slope(loss, logp), slope_BT / tokens, **CLOSE)
    assert all(isinstance(value, float) for value in metrics.values())


def test_what_skyrl_registers_travels_to_its_workers():
    batch = random_batch(6)
    for made in (
        skyrl.policy_loss("gppo:beta_low=0.5"),
        pickle.loads(pickle.dumps(skyrl.policy_loss("gppo:beta_low=0.5"))),
    ):
        loss, _ = made(batch.logp_BT, batch.old_logp_BT, batch.adv_BT, None, batch.mask_BT)
        torch.testing.assert_close(loss, slow_gppo(batch, 0.2, 0.28, 0.5, 1.0)[0].sum(), **CLOSE)
    assert pickle.loads(pickle.dumps(skyrl.advantage("pkpo:k=2"))) == skyrl.advantage("pkpo:k=2")


def test_skyrl_refuses_methods_that_read_the_size_of_an_advantage():
    for method in host_objective.covariance_losses():
        with pytest.raises(UsageError, match="divided by the tokens"):
            skyrl.policy_loss(method)
    with pytest.raises(UsageError, match="no advantage"):
        skyrl.advantage("clip")


def test_skyrl_s_advantages_by_group_whatever_the_order_of_rows():
    rewards = torch.tensor([1.0, 0.0, 0.5, 1.0, 0.0])  # groups a: 1, 0.5, 0; b: 0, 1
    index = np.array(["a", "b", "a", "b", "a"], dtype=object)
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1], [1, 1, 0], [1, 0, 0]])
    token_rewards = torch.zeros(5, 3)
    token_rewards[torch.arange(5), mask.sum(dim=1) - 1] = rewards
    adv, returns = skyrl.advantage("group_mean")(
        token_level_rewards=token_rewards,
        response_mask=mask,
        index=index,
        values=None,
        grpo_norm_by_std=True,
        config=None,
    )
    expected = torch.tensor([0.5, -0.5, 0.0, 0.5, -0.5])[:, None] * mask
    torch.testing.assert_close(adv, expected)
    assert adv is returns


# ---------------------------------------------------------------- NeMo-RL


class LossType(enum.Enum):
    TOKEN_LEVEL = "token_level"
    SEQUENCE_LEVEL = "sequence_level"


class LossInputType(enum.Enum):
    LOGPROB = "logprob"


@pytest.fixture
def nemo(monkeypatch):
    placed(monkeypatch, "nemo_rl.algorithms.loss.interfaces", LossType=LossType, LossInputType=LossInputType)


def nemo_data(batch):
    """One more token in front, which no log-prob is of; the last completion is masked as a sample."""
    first = torch.full((len(batch.logp_BT), 1), 7.0, dtype=torch.float64)

    def shifted(tensor):
        return torch.cat([first, tensor], dim=1)

    sample = torch.ones(len(batch.logp_BT), dtype=torch.float64)
    sample[-1] = 0
    data = {
        "prev_logprobs": shifted(batch.old_logp_BT),
        "advantages": shifted(batch.adv_BT),
        "reference_policy_logprobs": shifted(batch.ref_logp_BT),
        "token_mask": shifted(batch.mask_BT.double()),
        "sample_mask": sample,
    }
    return data, replace(batch, mask_BT=batch.mask_BT & (sample[:, None] > 0))


def test_nemo_rl_divides_by_its_global_counts(nemo):
    batch = random_batch(7)
    data, seen = nemo_data(batch)
    clip, kl = slow_clip(seen, 0.2, 0.28), slow_kl(seen, "k3", 0.05)
    tokens, sequences = torch.tensor(400.0, dtype=torch.float64), torch.tensor(20.0, dtype=torch.float64)
    lengths = seen.mask_BT.sum(dim=1, keepdim=True).clamp(min=1)
    for level, weight in (("token", 1 / tokens), ("sequence", 1 / (lengths * sequences))):
        made = nemo_rl.PolicyLoss(["clip_higher", "kl:coef=0.05"], level=level)
        assert made.loss_type is (LossType.TOKEN_LEVEL if level == "token" else LossType.SEQUENCE_LEVEL)
        assert made.input_type is LossInputType.LOGPROB
        logp = leaf(batch)
        loss, metrics = made(data=data, global_valid_seqs=sequences, global_valid_toks=tokens, next_token_logprobs=logp)
        torch.testing.assert_close(loss.detach(), ((clip[0] + kl[0]) * weight).sum(), rtol=1e-8, atol=1e-12)
        torch.testing.assert_close(slope(loss, logp), (clip[1] + kl[1]) * weight, rtol=1e-8, atol=1e-12)
        assert metrics["num_valid_samples"] == len(batch.logp_BT) - 1


def test_nemo_rl_refuses_entropies_and_other_levels(nemo):
    with pytest.raises(UsageError, match="needs entropy_BT, which NeMo-RL does not give"):
        nemo_rl.PolicyLoss(["clip", "entropy_bonus"])
    with pytest.raises(UsageError, match="'token' or 'sequence'"):
        nemo_rl.PolicyLoss(level="prompt")


# ---------------------------------------------------------------- tinker


def test_tinker_gets_the_sum_over_datums_of_different_lengths():
    batch = random_batch(8)
    lengths = [3, 9, 5, 9, 1, 4]

    def rows(tensor):
        return [row[:n] for row, n in zip(tensor, lengths, strict=True)]

    inside = torch.arange(batch.logp_BT.shape[1]) < torch.tensor(lengths)[:, None]
    seen = replace(batch, mask_BT=batch.mask_BT & inside)
    loss_fn = tinker.policy_loss(
        "gppo:beta_low=0.5",
        old_logprobs=[row.tolist() for row in rows(batch.old_logp_BT)],
        advantages=rows(batch.adv_BT),
        masks=[row.int().tolist() for row in rows(batch.mask_BT)],
    )
    assert list(inspect.signature(loss_fn).parameters) == ["data", "logprobs"]  # CustomLossFnV1: (data, logprobs)
    logp = leaf(batch)
    loss, metrics = loss_fn([object()] * 6, rows(logp))
    value_BT, slope_BT = slow_gppo(seen, 0.2, 0.28, 0.5, 1.0)
    torch.testing.assert_close(loss.detach(), value_BT.sum(), **CLOSE)
    torch.testing.assert_close(slope(loss, logp), slope_BT, **CLOSE)
    assert all(isinstance(value, float) for value in metrics.values())


def test_tinker_refuses_lists_that_do_not_fit():
    with pytest.raises(UsageError, match="one entry per datum"):
        tinker.policy_loss("clip", old_logprobs=[[0.0]], advantages=[[1.0]], masks=[])
    made = tinker.policy_loss("clip", old_logprobs=[[0.0]], advantages=[[1.0]], masks=[[1]])
    with pytest.raises(UsageError, match="made for 1 datums and got 2"):
        made([], [torch.zeros(1), torch.zeros(1)])
    with pytest.raises(UsageError, match="datum 0 has 2 target tokens and a mask of 1"):
        made([], [torch.zeros(2)])


# ---------------------------------------------------------------- slime


@pytest.fixture
def slime_host(monkeypatch):
    """slime's reading of logits; here a "logit" is the log-prob of its token, and 0.5 nats the entropy of each."""

    def get_log_probs_and_entropy(logits, *, args, unconcat_tokens, total_lengths, response_lengths, with_entropy):
        assert with_entropy
        parts = list(logits[0, :, 0].split(response_lengths))
        return None, {"log_probs": parts, "entropy": [0.5 * torch.ones_like(part) + 0 * part for part in parts]}

    placed(monkeypatch, "slime.backends.megatron_utils.loss", get_log_probs_and_entropy=get_log_probs_and_entropy)


def slime_case(seed):
    batch, lengths = random_batch(seed), [3, 9, 5, 9, 1, 4]
    inside = torch.arange(9) < torch.tensor(lengths)[:, None]
    masks = [row[:n].double() for row, n in zip(batch.mask_BT, lengths, strict=True)]

    def rows(tensor):
        return [row[:n] for row, n in zip(tensor, lengths, strict=True)]

    def sum_of_sample_mean(flat):
        """slime's reducer: the mean over each completion's own tokens, summed."""
        parts = zip(flat.split(lengths), masks, strict=True)
        return sum((part * mask).sum() / mask.sum().clamp(min=1) for part, mask in parts)

    host = {
        "advantages": rows(batch.adv_BT),
        "log_probs": rows(batch.old_logp_BT),
        "ref_log_probs": rows(batch.ref_logp_BT),
        "unconcat_tokens": None,
        "total_lengths": lengths,
        "response_lengths": lengths,
        "loss_masks": masks,
    }
    weight_BT = (batch.mask_BT & inside).double() / (batch.mask_BT & inside).sum(dim=1, keepdim=True).clamp(min=1)
    return batch, inside, rows, host, sum_of_sample_mean, weight_BT


def test_slime_s_loss_is_reduced_by_slime(slime_host):
    batch, inside, rows, host, reducer, weight_BT = slime_case(9)
    args = SimpleNamespace(equipoise_loss=["gppo:beta_low=0.5", "kl:coef=0.05"], use_rollout_logprobs=False)
    logits = torch.cat(rows(batch.logp_BT))[None, :, None].detach().requires_grad_()
    loss, metrics = slime.policy_loss(args, host, logits, reducer)
    seen = replace(batch, mask_BT=inside)
    parts = slow_gppo(seen, 0.2, 0.28, 0.5, 1.0), slow_kl(seen, "k3", 0.05)
    torch.testing.assert_close(loss.detach(), (sum(part[0] for part in parts) * weight_BT).sum(), **CLOSE)
    expected = sum(part[1] for part in parts) * weight_BT
    torch.testing.assert_close(slope(loss, logits)[0, :, 0], torch.cat(rows(expected)), **CLOSE)
    assert set(metrics) >= {"loss", "entropy_loss", "equipoise_touched", "equipoise_policy_drift"}
    assert all(isinstance(value, torch.Tensor) and value.dim() == 0 for value in metrics.values())


def test_slime_s_entropy_bonus_and_the_old_log_probs_of_its_flag(slime_host):
    batch, _, rows, host, reducer, _ = slime_case(10)
    logits = torch.cat(rows(batch.logp_BT))[None, :, None]
    args = SimpleNamespace(equipoise_loss=["unclipped"], use_rollout_logprobs=True)
    host |= {"rollout_log_probs": rows(batch.logp_BT)}
    plain, _ = slime.policy_loss(args, host, logits, reducer)
    advantages = reducer(torch.cat(rows(batch.adv_BT)))
    torch.testing.assert_close(plain, -advantages, **CLOSE)  # the ratio is 1
    kept_none = SimpleNamespace(equipoise_loss="unclipped", use_rollout_logprobs=False)
    torch.testing.assert_close(
        slime.policy_loss(kept_none, {**host, "log_probs": None}, logits, reducer)[0], plain, **CLOSE
    )
    assert slime.policy_loss(kept_none, host, logits, reducer)[0] != plain
    args.equipoise_loss = ["unclipped", "entropy_bonus:coef=0.1"]
    with_bonus, _ = slime.policy_loss(args, host, logits, reducer)
    five = sum(1 for mask in host["loss_masks"] if mask.any())  # completions with a token: each has a mean of 0.5 nats
    torch.testing.assert_close(with_bonus, plain - 0.1 * 0.5 * five, **CLOSE)
    args.equipoise_loss = "gspo"
    with pytest.raises(UsageError, match="slime has its own gspo"):
        slime.policy_loss(args, host, logits, reducer)


def test_slime_s_rewards_become_advantages_of_their_group():
    def sample(group, reward):
        return SimpleNamespace(group_index=group, get_reward_value=lambda args: reward)

    samples = [sample(0, 1.0), sample(1, 0.0), sample(0, 0.0), sample(1, 0.0), sample(0, 0.0)]
    raw, shaped = slime.shape_rewards(SimpleNamespace(equipoise_advantage="leave_one_out"), samples)
    assert raw == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert shaped == pytest.approx([1.0, 0.0, -0.5, 0.0, -0.5])
    _, plain = slime.shape_rewards(SimpleNamespace(), samples)  # slime's own: (R − mean) / (unbiased std + 1e-6)
    std = math.sqrt(((2 / 3) ** 2 + 2 * (1 / 3) ** 2) / 2)
    assert plain == pytest.approx([2 / 3 / (std + 1e-6), 0, -1 / 3 / (std + 1e-6), 0, -1 / 3 / (std + 1e-6)])
    with pytest.raises(UsageError, match="no advantage"):
        slime.shape_rewards(SimpleNamespace(equipoise_advantage="clip"), samples)


# ---------------------------------------------------------------- OpenRLHF


def test_openrlhf_s_reward_function_writes_rows_that_are_read_as_groups(tmp_path):
    import equipoise as eq

    path = tmp_path / "rollouts.jsonl"

    @openrlhf.recorded(path)
    def reward_func(queries, prompts, labels, **kwargs):
        right = torch.tensor([float(query.endswith(label)) for query, label in zip(queries, labels, strict=True)])
        return {"rewards": right - 0.1, "scores": right, "extra_logs": {"seen": right}}

    prompts = ["2+2=", "2+2=", "3+3=", "3+3="]
    queries = [prompt + answer for prompt, answer in zip(prompts, ["4", "5", "6", "6"], strict=True)]
    result = reward_func(queries, prompts, ["4", "4", "6", "6"], more=1)
    assert result["scores"].tolist() == [1, 0, 1, 1]
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["completion"] for row in rows] == ["4", "5", "6", "6"]
    assert [row["correct"] for row in rows] == [True, False, True, True]
    assert [row["reward"] for row in rows] == pytest.approx([0.9, -0.1, 0.9, 0.9])
    found = eq.measure(eq.read(path), ["passk"]).estimates["passk"]
    rates = {one.name: one.value for one in found if one.name.startswith("pass@")}
    assert rates == pytest.approx({"pass@1": 0.75, "pass@2": 1.0})  # of 2 draws each: 1 and 2 right


def test_openrlhf_s_older_return_and_a_wrong_number_of_rewards(tmp_path):
    scored = openrlhf.recorded(tmp_path / "a.jsonl")(lambda queries, prompts, labels: [0.5 for _ in queries])
    assert scored(["p!"], ["p"], [None]) == [0.5]
    (row,) = map(json.loads, (tmp_path / "a.jsonl").read_text().splitlines())
    assert (row["correct"], row["reference_answer"], row["reward"]) == (None, None, 0.5)
    with pytest.raises(UsageError, match="returned 1 rewards for 2 completions"):
        openrlhf.recorded(tmp_path / "b.jsonl")(lambda *a: [1.0])(["a", "b"], ["", ""], ["", ""])


# ---------------------------------------------------------------- what all share


def test_the_share_of_touched_tokens_is_counted_by_hand(prime):
    batch = random_batch(11)
    _, gppo = slow_gppo(batch, 0.2, 0.28, 0.5, 1.0)
    _, plain = slow_clip(batch, math.inf, math.inf)
    for row in range(len(batch.logp_BT)):
        found = prime_rl.policy_loss(prime_inputs(batch, leaf(batch), row), method="gppo:beta_low=0.5")
        tokens = max(int(batch.mask_BT[row].sum()), 1)
        expected = int(((gppo[row] - plain[row]).abs() > 1e-9).sum()) / tokens
        assert found.metrics["equipoise_touched"].item() == pytest.approx(expected)
        drift = (batch.old_logp_BT[row] - batch.logp_BT[row])[batch.mask_BT[row]].sum().item() / tokens
        assert found.metrics["equipoise_policy_drift"].item() == pytest.approx(drift)


def test_kl_cov_runs_where_a_host_hands_over_several_completions(nemo):
    batch = random_batch(12)
    data, seen = nemo_data(batch)
    made = nemo_rl.PolicyLoss("kl_cov:share=0,coef=1")
    loss, _ = made(data, torch.tensor(1.0), torch.tensor(1.0), next_token_logprobs=batch.logp_BT)
    torch.testing.assert_close(loss, slow_kl_cov(seen, set(), 1.0)[0].sum(), rtol=1e-7, atol=0)


def test_two_surrogates_and_what_is_no_loss_are_refused(nemo):
    with pytest.raises(UsageError, match="one surrogate"):
        nemo_rl.PolicyLoss(["clip", "gppo"])
    with pytest.raises(UsageError, match="pkpo is no part of a loss"):
        nemo_rl.PolicyLoss("pkpo")
    with pytest.raises(UsageError, match="whole step"):
        nemo_rl.PolicyLoss("kl_cov_step")
