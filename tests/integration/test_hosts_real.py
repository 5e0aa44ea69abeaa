"""Every setting that can be prescribed, given to the real TRL, verl and openai: the key exists and the value arrives.

Also the traps that the catalogue warns of: each is shown on the host's own code.
"""

from __future__ import annotations

import ast
import inspect
import shlex
from pathlib import Path

import pytest

from equipoise.catalogue.hosts import OPENAI, TRL, VERL
from equipoise.catalogue.paste import paste_for
from equipoise.catalogue.settings import as_lines, settings_for
from equipoise.catalogue.table import methods

pytestmark = pytest.mark.integration

NEEDS_VERL = "needs verl: pip install 'equipoise[verl]'"

# A value for each of our settings that no host has as its default, so that a value that does not arrive is seen.
VALUES = {
    "clip_low": 0.21,
    "clip_high": 0.29,
    "entropy_bonus.coef": 0.002,
    "adaptive_entropy.target": 0.3,
    "adaptive_entropy.step": 2e-4,
    "adaptive_entropy.max": 4e-3,
    "adaptive_entropy.min": 1e-5,
    "adaptive_entropy.start": 5e-4,
    "forking.share": 0.25,
    "constant_length.length": 1001,
    "kl.coef": 0.03,
    "clip_cov.share": 3e-4,
    "clip_cov.low": 1.5,
    "clip_cov.high": 6.0,
    "kl_cov.share": 3e-3,
    "kl_cov.coef": 0.9,
    "dynamic_sampling.metric": "acc",
    "soft_overlong.buffer": 128,
    "soft_overlong.penalty": 0.7,
    "soft_overlong.limit": 1000,
    "temperature": 0.9,
    "group_size": 16,
    "std_scaling": False,
    "mask_truncated": True,
    "max_completion_length": 1000,
    "reward_weights": [1.0, 0.25],
    "updates_per_batch": 3,
    "max_tokens": 100,
    "n": 3,
    "cap.tokens": 64,
}


def offered(host: str) -> list[str]:
    return [method.name for method in methods() if host in method.hosts]


# ---------------------------------------------------------------- TRL


@pytest.fixture
def trl():
    return pytest.importorskip("trl", reason="needs trl: pip install 'equipoise[trl]'")


@pytest.fixture
def verl():
    pytest.importorskip("hydra", reason=NEEDS_VERL)
    return pytest.importorskip("verl", reason=NEEDS_VERL)


def grpo_config(tmp_path: Path, **settings):
    import trl

    cpu = {"use_cpu": True, "bf16": False, "gradient_checkpointing": False, "report_to": "none"}
    return trl.GRPOConfig(output_dir=str(tmp_path), per_device_train_batch_size=16, **cpu, **settings)


@pytest.mark.parametrize("name", TRL.settings)
def test_trl_takes_each_setting(trl, tmp_path, name):
    setting = TRL.settings[name]
    value = setting.write(VALUES[name])
    assert getattr(grpo_config(tmp_path), setting.key) != value
    assert getattr(grpo_config(tmp_path, **{setting.key: value}), setting.key) == value


@pytest.mark.parametrize("name", offered("trl"))
def test_trl_takes_each_method_as_prescribed(trl, tmp_path, name):
    settings = settings_for(name, "trl")
    config = grpo_config(tmp_path, **settings)
    assert {key: getattr(config, key) for key in settings} == settings
    (call,) = (node.value for node in ast.parse(as_lines("trl", settings)[0]).body)
    assert call.func.id == "GRPOConfig"
    assert {word.arg: ast.literal_eval(word.value) for word in call.keywords} == settings


def with_equipoise(host: str) -> list[str]:
    """Methods that only our adapter brings the host."""
    return [m.name for m in methods() if (found := paste_for(m, host)) is not None and found.needs]


# Reward functions are made in tests/test_paste.py and run in test_trl_adapter_rewards.py.
EXPLORED = [name for name in with_equipoise("trl") if "explore(" in paste_for(name, "trl").lines[0]]


@pytest.mark.parametrize("name", EXPLORED)
def test_trl_runs_a_step_of_each_method_that_our_adapter_brings_as_printed(trl, tmp_path, name):
    from trl_runs import figures, make

    from equipoise.adapters.trl import explore

    def accuracy_reward(completions, **columns):
        return [float(text[-1:] > "a") for text in completions]

    (line,) = paste_for(name, "trl").lines
    call = ast.parse(line.replace("…, ", ""), mode="eval").body
    given = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
    size = {"num_generations": 8, "max_steps": 1}  # PKPO's k
    trainer = make(tmp_path, explore(trl.GRPOTrainer), rewards=[accuracy_reward], given=given, **size)
    trainer.train()
    assert len(figures(trainer)) == 1


def test_trl_is_on_policy_by_default_and_its_adaptive_defaults_are_far_from_the_paper_s(trl, tmp_path):
    config = grpo_config(tmp_path)
    assert config.num_iterations == 1
    assert config.steps_per_generation == config.gradient_accumulation_steps
    prescribed = settings_for("adaptive_entropy", "trl")
    assert config.entropy_coef_delta / prescribed["entropy_coef_delta"] == pytest.approx(50)
    assert config.entropy_coef_max / prescribed["entropy_coef_max"] == pytest.approx(200)
    assert not any("filter_group" in key or "dynamic_sampl" in key for key in vars(config))


def test_trl_s_cispo_reads_epsilon_high_as_the_cap_itself(trl):
    source = inspect.getsource(trl.GRPOTrainer._compute_loss)
    assert "torch.clamp(coef_1, max=self.epsilon_high)" in source
    assert "torch.clamp(coef_1, 1 - self.epsilon_low, 1 + self.epsilon_high)" in source  # the clipped losses


def test_trl_s_soft_overlong_reward(trl):
    from trl.rewards import get_soft_overlong_punishment

    punish = get_soft_overlong_punishment(max_completion_len=100, soft_punish_cache=20)
    assert punish(completion_ids=[[0] * 80, [0] * 90, [0] * 101]) == [0.0, -0.5, -1.0]


# ---------------------------------------------------------------- verl


def composed(*overrides: str):
    """verl's shipped PPO configuration with the overrides, as its command line would compose it."""
    import hydra
    import verl

    folder = str(Path(verl.__file__).parent / "trainer" / "config")
    filled = ["actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1", "actor_rollout_ref.rollout.name=vllm"]
    with hydra.initialize_config_dir(config_dir=folder, version_base=None):
        return hydra.compose("ppo_trainer", overrides=[*filled, *overrides])


def selected(config, key: str):
    from omegaconf import OmegaConf

    return OmegaConf.select(config, key.removeprefix("+"))


@pytest.mark.parametrize("name", VERL.settings)
def test_verl_takes_each_setting(verl, name):
    setting = VERL.settings[name]
    value = setting.write(VALUES[name])
    assert selected(composed(), setting.key) != value
    assert selected(composed(*as_lines("verl", {setting.key: value})), setting.key) == value


@pytest.mark.parametrize("name", offered("verl"))
def test_verl_takes_each_method_as_prescribed(verl, name):
    from verl.utils.config import omega_conf_to_dataclass

    settings = settings_for(name, "verl")
    config = composed(*as_lines("verl", settings))
    assert {key: selected(config, key) for key in settings} == settings
    actor, algorithm = (
        omega_conf_to_dataclass(config.actor_rollout_ref.actor),
        omega_conf_to_dataclass(config.algorithm),
    )
    assert actor.clip_ratio_high == selected(config, VERL.settings["clip_high"].key)
    for key, value in settings.items():  # and in the typed configs that the workers get
        for prefix, typed in (("actor_rollout_ref.actor.", actor), ("algorithm.", algorithm)):
            if key.startswith(prefix):
                assert _attribute(typed, key.removeprefix(prefix)) == value


@pytest.mark.parametrize("name", with_equipoise("verl"))
def test_verl_takes_each_method_that_our_plug_in_brings_as_printed(verl, name):
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn, get_policy_loss_fn
    from verl.trainer.ppo.reward import resolve_reward_manager_cls

    from equipoise.adapters.verl import register
    from equipoise.adapters.verl_settings import given_settings
    from equipoise.catalogue.verl_keys import ENV, TERMS, added_keys

    register()
    config = composed(*shlex.split(" ".join(paste_for(name, "verl").lines)))
    row = next(method for method in methods() if method.name == name)
    wanted = added_keys(row, row.settings)
    found = {key: selected(config, key) for key in wanted}
    assert found | ({TERMS: list(found[TERMS])} if TERMS in found else {}) == wanted
    assert callable(get_policy_loss_fn(config.actor_rollout_ref.actor.policy_loss.loss_mode))
    assert callable(get_adv_estimator_fn(config.algorithm.adv_estimator))
    assert resolve_reward_manager_cls(config)
    assert set(given_settings(wanted.get(ENV, ""))) <= {name}


def _attribute(value, path: str):
    for part in path.split("."):
        value = getattr(value, part)
    return value


def test_the_typed_rollout_config_of_verl_gets_temperature_and_group_size(verl):
    from verl.utils.config import omega_conf_to_dataclass

    lines = as_lines(
        "verl",
        {VERL.settings[name].key: VALUES[name] for name in ("temperature", "group_size", "max_completion_length")},
    )
    config = composed(*lines)
    rollout = omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    assert (rollout.temperature, rollout.n, rollout.response_length) == (0.9, 16, 1000)
    assert omega_conf_to_dataclass(config.actor_rollout_ref.actor).rollout_n == 16


def test_a_key_that_verl_does_not_have_is_refused(verl):
    with pytest.raises(Exception, match="Could not override"):
        composed("actor_rollout_ref.actor.clip_ratio_hi=0.28")


def test_verl_is_off_policy_by_default_and_filters_in_its_default_trainer(verl):
    config = composed()
    assert config.data.train_batch_size == 4 * config.actor_rollout_ref.actor.ppo_mini_batch_size
    assert config.trainer.use_v1 is True
    assert config.actor_rollout_ref.actor.policy_loss.ppo_kl_coef == 0.1  # the paper's is 1
    assert settings_for("kl_cov", "verl")[VERL.settings["kl_cov.coef"].key] == 1.0


def actor_config(loss_mode: str = "vanilla", **settings):
    from verl.workers.config import ActorConfig, PolicyLossConfig

    loss = {key: settings.pop(key) for key in list(settings) if key in PolicyLossConfig.__dataclass_fields__}
    policy = PolicyLossConfig(loss_mode=loss_mode, **loss)
    return ActorConfig(strategy="fsdp", rollout_n=4, ppo_micro_batch_size_per_gpu=1, policy_loss=policy, **settings)


def verl_loss(config, ratio: float, seed: int = 0):
    """verl's loss and its gradient on 2 x 8 tokens whose policy ratio is the same everywhere."""
    import torch
    from verl.trainer.ppo.core_algos import get_policy_loss_fn

    generator = torch.Generator().manual_seed(seed)
    old = -torch.rand(2, 8, generator=generator)
    new = (old + torch.tensor(ratio).log()).requires_grad_()
    advantages = torch.randn(2, 8, generator=generator)
    function = get_policy_loss_fn(config.policy_loss.loss_mode)
    loss, _ = function(old, new, advantages, torch.ones(2, 8), "token-mean", config)
    loss.backward()
    return loss.detach(), new.grad


def test_verl_s_single_clip_ratio_does_nothing(verl):
    wide, narrow = actor_config(clip_ratio=0.9), actor_config(clip_ratio=0.01)
    assert verl_loss(wide, 1.5)[0] == verl_loss(narrow, 1.5)[0]
    assert verl_loss(actor_config(clip_ratio_high=0.9), 1.5)[0] != verl_loss(actor_config(clip_ratio_high=0.01), 1.5)[0]


def test_verl_s_cispo_reads_clip_high_as_a_distance_from_1(verl):
    import torch

    # A ratio of 3 is cut to 1 + 0.5: the gradient is that of a ratio of 1.5.
    config = actor_config("cispo", clip_ratio_high=0.5)
    torch.testing.assert_close(verl_loss(config, 3.0)[1], verl_loss(actor_config("cispo", clip_ratio_high=9.0), 1.5)[1])


def test_kl_cov_is_inert_on_policy_and_acts_off_policy(verl):
    import torch

    weak, strong = (actor_config("kl_cov", kl_cov_ratio=0.25, ppo_kl_coef=coef) for coef in (0.0, 1.0))
    torch.testing.assert_close(verl_loss(weak, 1.0)[1], verl_loss(strong, 1.0)[1], rtol=0, atol=0)
    off_policy = verl_loss(strong, 1.2)[1] - verl_loss(weak, 1.2)[1]
    assert torch.count_nonzero(off_policy) == 4  # a quarter of 16 tokens, each by coef / tokens
    torch.testing.assert_close(off_policy[off_policy != 0], torch.full((4,), 1 / 16))


def test_clip_higher_is_inert_on_policy(verl):
    import torch

    narrow, wide = actor_config(clip_ratio_high=0.2), actor_config(clip_ratio_high=0.28)
    torch.testing.assert_close(verl_loss(narrow, 1.0)[1], verl_loss(wide, 1.0)[1], rtol=0, atol=0)
    assert not torch.equal(verl_loss(narrow, 1.25)[1], verl_loss(wide, 1.25)[1])


def test_verl_s_loss_modes_have_underscores(verl):
    from verl.trainer.ppo.core_algos import get_policy_loss_fn

    modes = [
        settings_for(name, "verl")["actor_rollout_ref.actor.policy_loss.loss_mode"] for name in ("clip_cov", "kl_cov")
    ]
    assert all(callable(get_policy_loss_fn(mode)) for mode in modes)
    with pytest.raises(ValueError, match="clip-cov"):
        get_policy_loss_fn("clip-cov")


def test_verl_s_dapo_reward_manager_reads_the_length_penalty(verl):
    pytest.importorskip("aiohttp", reason=f"verl's reward loop {NEEDS_VERL}")
    from verl.experimental.reward_loop import reward_manager as managers

    config = composed(*as_lines("verl", settings_for("soft_overlong", "verl", limit=1000, buffer=128, penalty=0.7)))
    manager = managers.get_reward_manager_cls(config.reward.reward_manager.name)
    read = manager(config, tokenizer=None, compute_score=None)
    cfg = read.overlong_buffer_cfg
    assert (read.max_resp_len, cfg.enable, cfg.len, cfg.penalty_factor, cfg.log) == (1000, True, 128, 0.7, True)


# ---------------------------------------------------------------- requests


@pytest.mark.parametrize("name", OPENAI.settings)
def test_the_openai_client_knows_each_request_field(name):
    openai = pytest.importorskip("openai", reason="needs openai: pip install openai")
    create = inspect.signature(openai.resources.chat.completions.Completions.create)
    field, _, rest = OPENAI.settings[name].key.partition(".")
    assert field in create.parameters
    assert (field == "extra_body") == bool(rest)
