"""Equipoise inside the real verl 0.9.1: entry point, losses, estimators, reward manager, shared counter, config fragments.

Losses are called by verl's own registry and signature and compared, value and gradient of every token, with loops over tokens that
share no code with the adapter; estimators as its `compute_advantage` calls them, with enumerations and verl's own.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from importlib.util import find_spec
from itertools import combinations
from math import comb, sqrt
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from host_losses import graded, random_step, verl_config, verl_loss, verl_ppo_loss, with_leaves  # noqa: E402

from equipoise.adapters import verl_fragments, verl_settings  # noqa: E402
from equipoise.adapters.group_rows import group_advantages  # noqa: E402
from equipoise.adapters.host_objective import policy_losses  # noqa: E402
from equipoise.adapters.outcome_board import scored  # noqa: E402
from equipoise.errors import UsageError  # noqa: E402
from equipoise.objectives.covariance import draw_in_band  # noqa: E402

sys.path.append(str(Path(__file__).parents[1]))
from slow_objectives import (  # noqa: E402
    slow_cispo,
    slow_clip,
    slow_covariances,
    slow_dual_clip,
    slow_gppo,
    slow_gspo,
    slow_kl_cov,
    slow_unclipped,
)

needs_verl = pytest.mark.skipif(find_spec("verl") is None, reason="needs verl: pip install 'equipoise[verl]'")
pytestmark = [pytest.mark.integration, needs_verl]

ROOT = Path(__file__).parents[2]
CLOSE = {"rtol": 2e-8, "atol": 1e-12}  # verl adds 1e-8 to some denominators
BOUNDS = {"clip_ratio_low": 0.21, "clip_ratio_high": 0.29, "clip_ratio_c": 1.7}
ENV = (
    "cispo:weight_cap=1.4;cispo_two_sided:weight_floor=0.7,weight_cap=1.3;gppo:beta_low=0.6,beta_high=0.9;"
    "ce_gppo:beta_low=0.25;kl_cov_two_sided:share=0.1,coef=0.7"
)
POLICY = {"clip_cov_ratio": 0.1, "clip_cov_lb": 0.05, "clip_cov_ub": 9.0, "kl_cov_ratio": 0.1, "ppo_kl_coef": 0.8}


def highest(step, share: float, sign: int = 1) -> set[tuple[int, int]]:
    covariances = slow_covariances(step)
    ranked = sorted(covariances, key=lambda token: -sign * covariances[token])
    return set(ranked[: int(share * len(ranked))])


def slow_clip_cov(step, seed: int):
    """The clip without the tokens that are drawn; the draw itself, tested elsewhere, with verl's generator as we seed it."""
    generator = torch.Generator().manual_seed(seed)
    settings = {"share": 0.1, "low": 0.05, "high": 9.0, "clip_low": 0.21, "clip_high": 0.29, "seed": generator}
    drawn = draw_in_band(step.logp_BT, step.old_logp_BT, step.adv_BT, step.mask_BT, **settings)
    assert drawn.any()
    value, slope = slow_clip(step, 0.21, 0.29)
    return torch.where(drawn, 0.0, value), torch.where(drawn, 0.0, slope)


# What each loss is with the settings above, as loops: verl's own bounds, EQUIPOISE_VERL, else the row's values.
EXPECTED = {
    "clip": lambda step: slow_clip(step, 0.21, 0.29),
    "clip_higher": lambda step: slow_clip(step, 0.21, 0.29),
    "dual_clip": lambda step: slow_dual_clip(step, 0.21, 0.29, 1.7),
    "unclipped": slow_unclipped,
    "gspo": lambda step: slow_gspo(step, 0.21, 0.29),
    "cispo": lambda step: slow_cispo(step, 0.0, 1.4),
    "cispo_two_sided": lambda step: slow_cispo(step, 0.7, 1.3),
    "gppo": lambda step: slow_gppo(step, 0.21, 0.29, 0.6, 0.9),
    "ce_gppo": lambda step: slow_gppo(step, 0.21, 0.29, 0.25, 1.0),
    "clip_cov": lambda step: slow_clip_cov(step, 5),
    "kl_cov": lambda step: slow_kl_cov(step, highest(step, 0.1), 0.8),
    "kl_cov_two_sided": lambda step: slow_kl_cov(step, highest(step, 0.1) | highest(step, 0.1, -1), 0.7),
}


@pytest.fixture
def settings(monkeypatch):
    monkeypatch.setenv("EQUIPOISE_VERL", ENV)


def reduced(loss_BT, mask_BT, mode: str):
    """verl's loss_agg_mode over a whole step, written down again."""
    lengths = mask_BT.sum(dim=1)
    rows = int((lengths > 0).sum())
    if mode == "token-mean":
        return loss_BT.sum() / mask_BT.sum()
    per_row = loss_BT.sum(dim=1) / (lengths.clamp(min=1) if mode == "seq-mean-token-mean" else 1)
    return per_row.sum() / rows


# ---------------------------------------------------------------- the entry point


def names_in_registries():
    import verl  # noqa: F401
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY

    ours = [
        name
        for names in (POLICY_LOSS_REGISTRY, ADV_ESTIMATOR_REGISTRY)
        for name in names
        if name.startswith("equipoise_")
    ]
    return sorted(ours)


EVERY_NAME = sorted(f"equipoise_{row.name}" for row in (*policy_losses(), *group_advantages()))


@pytest.fixture(scope="module")
def cluster():
    ray = pytest.importorskip("ray", reason="needs ray: pip install ray")
    ray.init(num_cpus=5, include_dashboard=False, log_to_driver=False, logging_level="error", ignore_reinit_error=True)
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # a worker cannot import this file
    yield ray
    ray.shutdown()


def test_importing_verl_is_enough_in_this_process():
    assert names_in_registries() == EVERY_NAME
    assert set(EXPECTED) == {row.name for row in policy_losses()}


def test_and_in_a_ray_worker(cluster):
    # The function travels by value: nothing of this test's modules registers anything over there.
    assert cluster.get(cluster.remote(names_in_registries).remote()) == EVERY_NAME


def run_python(code: str, **env: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, **env},
        check=False,
        timeout=120,
    )


def test_a_plug_in_that_breaks_says_so_in_one_line_though_verl_swallows_it(tmp_path):
    fake = tmp_path / "verl-0.8.0.dist-info"
    fake.mkdir()
    (fake / "METADATA").write_text("Metadata-Version: 2.1\nName: verl\nVersion: 0.8.0\n")
    code = (
        "import verl; from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY as r;"
        "print([n for n in r if n.startswith('equipoise')])"
    )
    found = run_python(code, PYTHONPATH=str(tmp_path))
    assert found.stdout.strip() == "[]"
    (line,) = [line for line in found.stderr.splitlines() if "equipoise" in line]
    assert "verl 0.8.0 is installed and verl >=0.9,<0.10 is supported" in line
    doctor = run_python(
        "import sys; sys.argv = ['equipoise', 'doctor']; from equipoise.cli.main import run; run()",
        PYTHONPATH=str(tmp_path),
    )
    assert doctor.returncode == 1
    assert "0.8.0" in doctor.stdout
    assert "unsupported" in doctor.stdout
    assert "BROKEN" in doctor.stdout


# ---------------------------------------------------------------- losses


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"])
def test_each_registered_loss_by_verl_s_own_signature(settings, name, mode):
    for seed in range(3):
        step = random_step(seed, token_advantages=seed == 1, empty_row=seed == 2, drift=0.3)
        value_BT, slope_BT = EXPECTED[name](step)
        found = verl_loss(f"equipoise_{name}", step, mode=mode, seed=5, loss=POLICY, **BOUNDS)
        torch.testing.assert_close(found.value, reduced(value_BT, step.mask_BT, mode), **CLOSE)
        torch.testing.assert_close(found.logp_BT, reduced_slope(slope_BT, step.mask_BT, mode), **CLOSE)


def reduced_slope(slope_BT, mask_BT, mode: str):
    """Each token's derivative over what its term is divided by."""
    lengths = mask_BT.sum(dim=1, keepdim=True)
    rows = int((lengths > 0).sum())
    if mode == "token-mean":
        return slope_BT / mask_BT.sum()
    return slope_BT / rows / (lengths.clamp(min=1) if mode == "seq-mean-token-mean" else 1)


@pytest.mark.parametrize("name", ["gppo", "cispo", "kl_cov_two_sided"])
def test_micro_batches_on_two_ranks_add_up_to_the_step(settings, name):
    # verl divides each micro-batch by the tokens of the whole step times the ranks, and averages gradients over ranks.
    step = random_step(1, rows=8, drift=0.3)
    if name == "kl_cov_two_sided":  # chooses within a micro-batch: only the division is looked at
        expected = [EXPECTED[name](step.rows(slice(at, at + 2)))[0].sum() for at in range(0, 8, 2)]
    else:
        expected = [EXPECTED[name](step)[0].sum()]
    info = {"dp_size": 2, "batch_num_tokens": step.step_tokens, "global_batch_size": 8}
    losses = [
        verl_loss(f"equipoise_{name}", step.rows(slice(at, at + 2)), loss=POLICY, info=info, **BOUNDS).value
        for at in range(0, 8, 2)
    ]
    torch.testing.assert_close(sum(losses) / 2, sum(expected) / step.step_tokens, **CLOSE)


def test_inside_verl_s_actor_loss_with_its_entropy_bonus_and_kl(settings):
    step = random_step(2, drift=0.3)
    info = {"dp_size": 1, "batch_num_tokens": step.step_tokens, "global_batch_size": 6}
    more = {"entropy_coeff": 0.01, "use_kl_loss": True, "kl_loss_coef": 0.02, "kl_loss_type": "low_var_kl"}
    ours = verl_ppo_loss(step, info=info, loss={"loss_mode": "equipoise_dual_clip"}, **BOUNDS, **more)
    own = verl_ppo_loss(step, info=info, loss={"loss_mode": "vanilla"}, **BOUNDS, **more)
    torch.testing.assert_close(ours.value, own.value, **CLOSE)
    torch.testing.assert_close(ours.logp_BT, own.logp_BT, **CLOSE)
    torch.testing.assert_close(ours.entropy_BT, own.entropy_BT, **CLOSE)


def call(name: str, step, config, **more):
    from verl.trainer.ppo.core_algos import get_policy_loss_fn

    return get_policy_loss_fn(f"equipoise_{name}")(
        old_log_prob=step.old_logp_BT,
        log_prob=step.logp_BT,
        advantages=step.adv_BT,
        response_mask=step.mask_BT,
        loss_agg_mode="token-mean",
        config=config,
        **more,
    )


def test_importance_weights_of_the_rollout_multiply_the_terms(settings):
    step = with_leaves(random_step(3, drift=0.3))
    weights = torch.linspace(0.5, 1.5, step.logp_BT.numel(), dtype=torch.float64).view(step.logp_BT.shape)
    value, _ = call("gppo", step, verl_config(loss=POLICY, **BOUNDS), rollout_is_weights=weights)
    value_BT, slope_BT = EXPECTED["gppo"](step.detached())
    torch.testing.assert_close(value.detach(), (value_BT * weights).sum() / step.step_tokens, **CLOSE)
    torch.testing.assert_close(graded(value, step).logp_BT, slope_BT * weights / step.step_tokens, **CLOSE)


def test_metrics_say_whether_a_loss_acts(settings):
    from verl.utils.metric import AggregationType, Metric

    step = with_leaves(random_step(4, drift=0.3))
    _, metrics = call("gppo", step, verl_config(loss=POLICY, **BOUNDS))
    differs = (EXPECTED["gppo"](step.detached())[1] - slow_unclipped(step.detached())[1]).abs() > 1e-9
    assert metrics["actor/equipoise_touched"] == pytest.approx(int(differs.sum()) / step.step_tokens)
    drift = (step.old_logp_BT - step.logp_BT)[step.mask_BT].mean().item()
    assert metrics["actor/ppo_kl"] == pytest.approx(drift)
    assert Metric.from_dict(metrics, aggregation=AggregationType.MEAN)  # verl takes them
    on_policy = replace(step, old_logp_BT=step.logp_BT.detach())
    assert call("gppo", on_policy, verl_config(loss=POLICY, **BOUNDS))[1]["actor/equipoise_touched"] == 0.0
    with torch.no_grad():
        assert "actor/equipoise_touched" not in call("gppo", step.detached(), verl_config(loss=POLICY, **BOUNDS))[1]


def test_a_loss_without_verl_s_config_is_refused():
    with pytest.raises(UsageError, match="needs verl's actor config"):
        call("gppo", random_step(0), None)


# ---------------------------------------------------------------- settings


def test_settings_come_from_the_variable_or_from_a_file_that_it_names(tmp_path):
    file = tmp_path / "equipoise.toml"
    file.write_text("[ce_gppo]\nbeta_low = 0.25\n\n[pkpo]\nk = 4\n")
    expected = {"ce_gppo": {"beta_low": 0.25}, "pkpo": {"k": 4}}
    assert verl_settings.given_settings(str(file)) == expected
    assert verl_settings.given_settings("ce_gppo:beta_low=0.25; pkpo:k=4;") == expected
    assert verl_settings.given_settings("") == {}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("gppo:clip_high=0.3", "verl's own actor_rollout_ref.actor.clip_ratio_high: set it there"),
        ("kl_cov:coef=1", "verl's own actor_rollout_ref.actor.policy_loss.ppo_kl_coef"),
        ("dual_clip:cap=10", "verl's own actor_rollout_ref.actor.clip_ratio_c"),
        ("gppo:beta=1", "unknown setting of gppo 'beta'"),
        ("gpppo:beta_low=1", "did you mean 'gppo'"),
        ("gppo:beta_low=1;gppo:beta_high=1", "names gppo twice"),
        ("/no/such/file.toml", "every Ray node needs it"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(text, says):
    with pytest.raises(UsageError, match=says) as caught:
        verl_settings.given_settings(text)
    assert "\n" not in str(caught.value)


def test_the_resolved_values_are_printed_once(monkeypatch, capsys):
    monkeypatch.setenv("EQUIPOISE_VERL", "ce_gppo:beta_low=0.125")
    verl_settings._print_once.cache_clear()
    for _ in range(2):
        verl_loss("equipoise_ce_gppo", random_step(0), loss=POLICY, **BOUNDS)
    (line,) = capsys.readouterr().err.splitlines()
    assert (
        line
        == "equipoise: verl uses equipoise_ce_gppo with clip_low=0.21, clip_high=0.29, beta_low=0.125, beta_high=1.0"
    )


def test_the_variable_reaches_a_ray_worker_by_verl_s_own_config(cluster):
    config = composed(ROOT / "examples" / "verl", "ce_gppo")
    runtime = {"env_vars": dict(config.ray_kwargs.ray_init.runtime_env.env_vars)}
    read = cluster.remote(lambda: __import__("equipoise.adapters.verl_settings", fromlist=["x"]).given_settings())
    assert cluster.get(read.options(runtime_env=runtime).remote()) == {"ce_gppo": {"beta_low": 0.5, "beta_high": 1.0}}


# ---------------------------------------------------------------- advantages

REWARDS = [1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0]
GROUPS = list("abacbbabaca")  # a: 1 0 1 0 1, b: 0 0 1 0, c: 1 0


def estimated(name: str, rewards=REWARDS, groups=GROUPS) -> list[float]:
    """Called as verl's `compute_advantage` calls it: the advantage of each row, which every token of it has."""
    from verl.trainer.config import AlgoConfig
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 6, (len(rewards),), generator=generator)
    mask = (torch.arange(5) < lengths[:, None]).float()
    token_rewards = torch.zeros(len(rewards), 5)
    token_rewards[torch.arange(len(rewards)), lengths - 1] = torch.tensor(rewards)
    adv_BT, returns_BT = get_adv_estimator_fn(name)(
        token_level_rewards=token_rewards,
        response_mask=mask,
        config=AlgoConfig(adv_estimator=name),
        index=np.array(groups, dtype=object),
    )
    torch.testing.assert_close(adv_BT, adv_BT[:, :1] * mask)
    torch.testing.assert_close(returns_BT, adv_BT)
    return adv_BT[:, 0].tolist()


def by_group(groups, rewards):
    return {
        name: [reward for group, reward in zip(groups, rewards, strict=True) if group == name] for name in set(groups)
    }


def enumerated(group: list[float], own: int, k: int) -> float:
    """PKPO's advantage: what a completion adds to the best of k, over every subset that it is in."""
    subsets = [s for s in combinations(range(len(group)), k) if own in s]
    added = sum(max(group[i] for i in s) - max(group[i] for i in s if i != own) for s in subsets)
    return len(group) * added / comb(len(group), k)


def each_row(function) -> list[float]:
    """`function(group's rewards, place of the row in it)` of every row."""
    seen: Counter[str] = Counter()
    values = []
    for name in GROUPS:
        values.append(function(by_group(GROUPS, REWARDS)[name], seen[name]))
        seen[name] += 1
    return values


def test_every_estimator_is_compared():
    compared = {"group_std", "group_mean", "leave_one_out", "quantile_baseline", "pkpo", "passk_training"}
    assert compared | {"weighted_reinforce"} == {row.name for row in group_advantages()}


def test_estimators_that_verl_has_too():
    assert estimated("equipoise_group_std") == pytest.approx(estimated("grpo"), abs=1e-6)
    assert estimated("equipoise_leave_one_out") == pytest.approx(estimated("rloo"), abs=1e-6)


def test_estimators_that_it_does_not_have(monkeypatch):
    monkeypatch.setenv("EQUIPOISE_VERL", "pkpo:k=2;passk_training:k=2;quantile_baseline:quantile=0.5,eps=0")
    assert estimated("equipoise_group_mean") == pytest.approx(
        each_row(lambda group, i: group[i] - np.mean(group)), abs=1e-6
    )
    assert estimated("equipoise_pkpo") == pytest.approx(each_row(lambda group, i: enumerated(group, i, 2)), abs=1e-6)

    def normalised(group, i):
        """Pass@2 Training: a completion's mean reward over its pairs, in units of the spread over all pairs."""
        pairs = [max(group[a], group[b]) for a, b in combinations(range(len(group)), 2)]
        mean = np.mean(pairs)
        own = [max(group[i], group[j]) for j in range(len(group)) if j != i]
        return 0.0 if len(set(pairs)) == 1 else (np.mean(own) - mean) / sqrt(mean * (1 - mean))

    assert estimated("equipoise_passk_training") == pytest.approx(each_row(normalised), abs=1e-6)
    assert estimated("equipoise_weighted_reinforce") == pytest.approx(
        each_row(lambda group, i: 0.1 if group[i] else -1.0), abs=1e-6
    )

    def above_median(group, i):
        baseline = sorted(group)[-(-len(group) // 2) - 1]  # the smallest reward that half of the group does not exceed
        return (group[i] - baseline) / np.std(group, ddof=1)

    assert estimated("equipoise_quantile_baseline") == pytest.approx(each_row(above_median), abs=1e-6)


def test_verdicts_are_not_read_out_of_a_shaped_reward(monkeypatch):
    monkeypatch.setenv("EQUIPOISE_VERL", "passk_training:k=2")
    with pytest.raises(UsageError, match=r"must hold 0, 1 or nan, found 0\.9"):
        estimated("equipoise_passk_training", [0.9, 0.0], ["a", "a"])


# ---------------------------------------------------------------- the counter that all workers share


def test_the_shared_counter_is_exact_with_four_concurrent_workers(cluster):
    from equipoise.adapters.outcome_board import shared_board

    size, problems, steps = 4, 6, 5
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, 3, (steps, problems, size))  # the answer of every completion

    @cluster.remote
    class Worker:
        """As a reward worker: it makes or finds the board by name, posts what it scored, and waits for its terms."""

        def __init__(self, number):
            self.number = f"worker-{number}"
            self.board = shared_board(["ucb_naive:weight=1,unless_all_right=false"])

        def score(self, step, answers):
            import ray

            wanted = set()
            for problem, member, answer in answers:
                known = {"answer": str(answer), "correct": False, "confidence": None, "n_tokens": 3, "step": step}
                self.board.post.remote(
                    self.number, f"{step}-{problem}", member, size, scored(prompt_id=str(problem), **known)
                )
                wanted.add((f"{step}-{problem}", member))
            found = {}
            while wanted - set(found):
                found |= ray.get(self.board.collect.remote(self.number))
            return found

    workers = [Worker.remote(number) for number in range(4)]
    counts: Counter[tuple[int, int]] = Counter()
    for step in range(steps):
        rows = [(p, g, int(drawn[step, p, g])) for p in range(problems) for g in range(size)]
        # Every group is split over all four workers, which run at once.
        parts = [[row for row in rows if (row[0] + row[1]) % 4 == number] for number in range(4)]
        terms = {}
        for part in cluster.get(
            [worker.score.remote(step + 1, part) for worker, part in zip(workers, parts, strict=True)]
        ):
            terms |= part
        for problem, member, answer in rows:
            expected = 1 / sqrt(max(counts[problem, answer], 1))  # of the steps before this one
            assert terms[f"{step + 1}-{problem}", member] == pytest.approx(expected)
        counts.update((problem, answer) for problem, _, answer in rows)
    state = cluster.get(shared_board([]).state.remote())  # the same actor, whoever asks
    held = {(int(p), int(a)): n for p, answers in state["counts"].items() for a, n in answers.items()}
    assert held == dict(counts)
    assert sum(held.values()) == size * problems * steps
    cluster.kill(shared_board([]))


# ---------------------------------------------------------------- the reward manager

TEXTS = {1: "The answer is 7.", 2: "The answer is 8.", 3: "I do not know."}


class Tokenizer:
    def decode(self, ids, skip_special_tokens=True):
        return TEXTS[int(ids[0])]


def completion(kind: int, *, group: str, member: int, split: str | None = "train", step: int = 1):
    """One completion as verl's agent loop hands it over: `kind` says what its text states."""
    from tensordict import TensorDict
    from verl import DataProto

    ids = torch.tensor([[kind, kind]])
    batch = TensorDict(
        {"prompts": ids[:, :1], "responses": ids, "attention_mask": torch.ones(1, 3, dtype=torch.long)}, batch_size=1
    )
    info = {"index": 3} | ({} if split is None else {"split": split})
    columns = {
        "uid": group, "session_id": member, "global_steps": step, "data_source": "sums", "raw_prompt": "3+4?",
        "reward_model": {"ground_truth": "7"}, "extra_info": info,
    }  # fmt: skip
    return DataProto(
        batch=batch, non_tensor_batch={key: np.array([value], dtype=object) for key, value in columns.items()}
    )


def right_or_wrong(data_source, solution_str, ground_truth, extra_info, **more):
    return float(ground_truth in solution_str)


def manager(terms, **overrides):
    """Made by verl's own loader, as its reward workers make theirs."""
    from verl.trainer.ppo.reward import load_reward_manager

    lines = [f"{key.replace('__', '.')}={value}" for key, value in overrides.items()]
    lines += [
        f"reward.custom_reward_function.path=pkg://{__name__}",
        "reward.custom_reward_function.name=right_or_wrong",
    ]
    lines.append(
        "+reward.reward_kwargs.equipoise.wait=20"
    )  # a completion that waits for nobody fails the test, not hangs it
    config = composed(ROOT / "examples" / "verl", "batch_exploration", *lines)
    config.reward.reward_kwargs.equipoise.terms = terms
    return load_reward_manager(config, Tokenizer(), reward_router_address=None, reward_model_tokenizer=None)


@pytest.fixture
def fresh_board(cluster, tmp_path):
    yield tmp_path
    from equipoise.adapters.outcome_board import shared_board

    cluster.kill(shared_board([]))


async def scores(made, *completions):
    found = await asyncio.gather(*(made.run_single(each) for each in completions))
    return [one["reward_score"] for one in found], [one["reward_extra_info"] for one in found]


def test_the_reward_manager_adds_terms_over_each_group(fresh_board):
    made = manager(
        ["batch_exploration:weight=0.3"], actor_rollout_ref__rollout__n=3, trainer__default_local_dir=fresh_board
    )

    async def both_groups():
        made.loop = asyncio.get_running_loop()
        mixed = [completion(kind, group="u1", member=member) for member, kind in enumerate((1, 2, 2))]
        right = [completion(1, group="u2", member=member) for member in range(3)]
        return await scores(made, *mixed, *right)

    rewards, extras = asyncio.run(both_groups())
    # u1: right; wrong twice with the same answer, 0.3 · 1/3 each. u2 is all right: nothing to explore.
    assert rewards == pytest.approx([1.0, -0.1, -0.1, 1.0, 1.0, 1.0])
    assert [extra["pred"] for extra in extras] == ["7", "8", "8", "7", "7", "7"]
    assert [extra["acc"] for extra in extras] == [1, 0, 0, 1, 1, 1]  # what filters read stays raw
    assert [extra["equipoise_term"] for extra in extras] == pytest.approx([0, -0.1, -0.1, 0, 0, 0])


def test_validation_gets_no_term_does_not_wait_and_is_not_counted(fresh_board, cluster):
    from equipoise.adapters.outcome_board import shared_board

    made = manager(
        ["ucb_naive:weight=1,unless_all_right=false"],
        actor_rollout_ref__rollout__n=2,
        trainer__default_local_dir=fresh_board,
    )

    async def steps():
        made.loop = asyncio.get_running_loop()
        first = await scores(made, *(completion(1, group="a", member=m, step=1) for m in range(2)))
        held_out = await scores(made, completion(1, group="v", member=0, split="test", step=1))
        second = await scores(made, *(completion(kind, group="b", member=m, step=2) for m, kind in enumerate((1, 3))))
        return first[0], held_out[0], second[0]

    first, held_out, second = asyncio.run(steps())
    assert first == pytest.approx([2.0, 2.0])  # right, and never seen before
    assert held_out == [1.0]
    assert second == pytest.approx([1 + 1 / sqrt(2), 0.0])  # "7" was given twice; no answer has no rarity
    (counts,) = cluster.get(shared_board([]).state.remote())["counts"].values()
    assert counts == {"7": 3}


def test_a_dataset_without_splits_is_refused_where_verl_validates(fresh_board):
    made = manager(
        ["batch_exploration"],
        actor_rollout_ref__rollout__n=1,
        trainer__default_local_dir=fresh_board,
        trainer__test_freq=5,
    )

    async def one(each):
        made.loop = asyncio.get_running_loop()
        return await scores(made, each)

    with pytest.raises(UsageError, match=r"need extra_info\.split"):
        asyncio.run(one(completion(1, group="a", member=0, split=None)))
    off = {"trainer__test_freq": -1, "trainer__val_before_train": False}
    first, made = (
        made,
        manager(["batch_exploration"], actor_rollout_ref__rollout__n=1, trainer__default_local_dir=fresh_board, **off),
    )
    assert first.board == made.board  # and it lives as long as the manager that made it
    assert asyncio.run(one(completion(1, group="a", member=0, split=None)))[0] == [1.0]


def test_what_the_reward_manager_cannot_run_with_is_refused_at_once(cluster):
    with pytest.raises(UsageError, match=r"set reward\.num_workers=41"):
        manager(["batch_exploration"], data__train_batch_size=2048)
    with pytest.raises(UsageError, match="v1 trainer"):
        manager(["batch_exploration"], trainer__use_v1=False)
    with pytest.raises(UsageError, match="needs terms"):
        manager([])
    with pytest.raises(UsageError, match="clip_higher is a ratio_clip"):
        manager(["clip_higher"])


# ---------------------------------------------------------------- configs


def composed(folder: Path, name: str, *overrides: str):
    import hydra

    filled = ["actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1", "actor_rollout_ref.rollout.name=vllm"]
    with hydra.initialize_config_dir(config_dir=str(folder), version_base=None):
        return hydra.compose(name, overrides=[*filled, *overrides])


def test_the_shipped_fragments_are_those_that_the_catalogue_makes(tmp_path):
    made = {path.name: path.read_text() for path in verl_fragments.write_fragments(tmp_path)}
    shipped = {path.name: path.read_text() for path in (ROOT / "examples" / "verl").glob("*.yaml")}
    assert shipped == made, "make them again: equipoise.adapters.verl_fragments.write_fragments(Path('examples/verl'))"
    with pytest.raises(UsageError, match="verl cannot run forking"):
        verl_fragments.fragment("forking")


@pytest.mark.parametrize("name", verl_fragments.offered())
def test_each_fragment_composes_over_verl_s_own_config_and_arrives(name):
    import yaml
    from omegaconf import OmegaConf
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn, get_policy_loss_fn
    from verl.trainer.ppo.reward import resolve_reward_manager_cls
    from verl.utils.config import omega_conf_to_dataclass

    tree = yaml.safe_load((ROOT / "examples" / "verl" / f"{name}.yaml").read_text())
    config = composed(ROOT / "examples" / "verl", name)
    asked = {key: value for key, value in flat(tree) if not key.startswith(("hydra", "defaults"))}
    assert asked
    assert {key: plain(OmegaConf.select(config, key)) for key in asked} == asked
    typed = omega_conf_to_dataclass(config.actor_rollout_ref.actor), omega_conf_to_dataclass(config.algorithm)
    assert callable(get_policy_loss_fn(typed[0].policy_loss.loss_mode))
    assert callable(get_adv_estimator_fn(typed[1].adv_estimator))
    assert resolve_reward_manager_cls(config)
    assert typed[0].rollout_n == 16
    verl_settings.given_settings(asked.get("ray_kwargs.ray_init.runtime_env.env_vars.EQUIPOISE_VERL", ""))


def flat(tree, prefix=""):
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def plain(value):
    from omegaconf import OmegaConf

    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value


def test_doctor_s_defaults_are_the_hosts_own(tmp_path):
    import verl
    from omegaconf import OmegaConf

    from equipoise.lab.doctor_trl import DEFAULTS as OF_TRL
    from equipoise.lab.doctor_verl import DEFAULTS as OF_VERL

    config = composed(Path(verl.__file__).parent / "trainer" / "config", "ppo_trainer")
    assert {key: OmegaConf.select(config, key) for key in OF_VERL} == dict(OF_VERL)
    trl = pytest.importorskip("trl")
    fields = trl.GRPOConfig.__dataclass_fields__
    assert {key: fields[key].default for key in OF_TRL} == dict(OF_TRL)
