"""`equipoise doctor`: versions, configs of three hosts, and what it says of each control."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from equipoise.adapters import versions
from equipoise.cli import main
from equipoise.errors import UsageError
from equipoise.lab import doctor
from equipoise.lab.doctor_asked import judge
from equipoise.lab.doctor_config import read_host_config
from equipoise.lab.doctor_trl import asked_of_trl
from equipoise.lab.doctor_verl import asked_of_verl

ROOT = Path(__file__).parents[1]
ACTOR = "actor_rollout_ref.actor."


def states(controls) -> dict[str, str]:
    return {one.name: one.state for one in controls}


def trl(**settings) -> dict[str, str]:
    return states(judge(asked_of_trl(settings)))


def verl(**settings) -> dict[str, str]:
    """Keys with dots written as double underscores; 16 completions per prompt, critic-free."""
    flat = {"actor_rollout_ref.rollout.n": 16, "algorithm.adv_estimator": "grpo"}
    return states(judge(asked_of_verl({**flat, **{key.replace("__", "."): value for key, value in settings.items()}})))


# ---------------------------------------------------------------- versions


@pytest.mark.parametrize(
    ("found", "wanted", "holds"),
    [
        ("0.9.1", ">=0.9,<0.10", True),
        ("0.9.0.dev3", ">=0.9,<0.10", True),
        ("0.10.0", ">=0.9,<0.10", False),
        ("0.10.0.dev1", ">=0.9,<0.10", False),
        ("0.8.9", ">=0.9,<0.10", False),
        ("1.14", ">=1.14,<2", True),
        ("1.9.2", ">=1.14,<2", False),
        ("2.13.0+cpu", ">=2.6", True),
        ("5.6.3", ">=5.5.3,<5.11,!=5.6.*", False),
        ("5.10.4", ">=5.5.3,<5.11,!=5.6.*", True),
        ("1.0", "==1.0.0", True),
        ("1.0.1", "==1.0.*", True),
        ("1.1.0rc1", "<=1.1", True),
    ],
)
def test_a_version_lies_in_a_range(found, wanted, holds):
    assert versions.fits(found, wanted) is holds


def test_versions_agree_with_packaging():
    specifiers = pytest.importorskip("packaging.specifiers")
    for wanted in (">=0.9,<0.10", ">=1.14,<2", ">=5.5.3,<5.11,!=5.6.*", "==1.0.*"):
        for found in ("0.9", "0.9.1", "0.10", "1.0.3", "1.14.0", "1.16.2", "2.0", "5.5.3", "5.6.0", "5.7", "5.11"):
            assert versions.fits(found, wanted) == specifiers.SpecifierSet(wanted).contains(found), (found, wanted)


def test_the_ranges_are_those_of_the_catalogue_and_of_the_package():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert f"verl{versions.supported('verl')}" in extras["verl"]
    assert versions.supported("trl") == ">=1.14,<1.17"  # every patch of the minor releases that the catalogue names
    assert any(line.startswith("trl>=1.14,") for line in extras["trl"])
    assert f"transformers{versions.supported('transformers')}" in extras["train"]
    assert versions.supported("no-such-package") is None


def test_an_unsupported_version_fails_in_one_line_with_the_range(monkeypatch):
    monkeypatch.setattr(versions, "version", lambda package: "0.8.0")
    with pytest.raises(UsageError, match=r"verl 0\.8\.0 is installed and verl >=0\.9,<0\.10 is supported") as caught:
        versions.check_version("verl")
    assert "\n" not in str(caught.value)


def test_a_host_that_is_missing_is_named_with_its_pip_line():
    with pytest.raises(UsageError, match="no-such-package is not installed: pip install 'no-such-package'"):
        versions.check_version("no-such-package")


# ---------------------------------------------------------------- TRL


def test_trl_s_ratio_controls_are_inert_on_policy_and_live_off_policy():
    assert trl(epsilon_high=0.28) == {"clip_higher": "inert"}
    assert trl(epsilon_high=0.28, num_iterations=2) == {"clip_higher": "live"}
    assert trl(epsilon_high=0.28, steps_per_generation=8, gradient_accumulation_steps=2) == {"clip_higher": "live"}
    assert trl(epsilon_high=0.28, steps_per_generation=2, gradient_accumulation_steps=2) == {"clip_higher": "inert"}
    assert trl(epsilon=0.2) == {"clip": "inert"}


def test_trl_s_keys_are_the_controls_that_they_switch_on():
    found = trl(
        entropy_coef=0.001, top_entropy_quantile=0.2, beta=0.01, mask_truncated_completions=True, scale_rewards="none"
    )
    assert found == dict.fromkeys(("entropy_bonus", "forking", "kl_corrected", "mask_truncated", "group_mean"), "live")
    assert trl(beta=0.01, use_bias_correction_kl=False) == {"kl": "live"}
    assert trl(beta=0.0, entropy_coef=0.0, top_entropy_quantile=1.0) == dict.fromkeys(
        ("entropy_bonus", "forking", "kl_corrected"), "inert"
    )
    # A distance from 1 where TRL's CISPO wants the cap itself, and a floor that it does not have.
    assert trl(loss_type="cispo", epsilon=0.2, epsilon_high=0.28, num_iterations=2) == {
        "cispo": "risky",
        "epsilon": "inert",
    }
    assert trl(
        importance_sampling_level="sequence", epsilon=3e-4, epsilon_high=4e-4, loss_type="grpo", num_iterations=2
    ) == {"gspo": "live"}


def test_what_the_adapter_takes_no_trl_run_with_is_refused_here_too():
    specs = ["kl:coef=0.05,kind=exact", "rare_replay:rows=192", "base_anchor", "critique_loop", "brier", "majority"]
    assert trl(exploration=specs) == {
        "kl": "live", "rare_replay": "live", "base_anchor": "live",
        "critique_loop": "refused", "brier": "refused", "majority": "refused",
    }  # fmt: skip
    assert trl(exploration={"demonstrations": ["rare_replay"]}) == {"rare_replay": "live"}


def test_trl_s_adaptive_entropy_needs_its_switch():
    assert trl(entropy_target=0.3, entropy_coef_max=0.005) == {"entropy_target": "inert", "entropy_coef_max": "inert"}
    numbers = {"entropy_target": 0.3, "entropy_coef_delta": 1e-4, "entropy_coef_max": 0.005}
    assert trl(use_adaptive_entropy=True, **numbers) == {"adaptive_entropy": "live"}
    assert trl(use_adaptive_entropy=True, **{**numbers, "entropy_target": 5.0}) == {"adaptive_entropy": "risky"}


def test_our_own_methods_in_a_trl_config():
    given = {"surrogate": "gppo", "weights": ["forking:share=1.0"], "bonus_on_answer": False}
    assert trl(exploration=given) == {"gppo": "inert", "forking": "inert"}
    assert trl(exploration="kl_cov_reference:coef=1", num_iterations=1)["kl_cov_reference"] == "live"
    # Our surrogate takes the place of TRL's loss, and with it of the bounds that only that loss reads.
    assert trl(exploration=["gppo"], epsilon_high=0.3, num_iterations=2) == {
        "gppo": "live",
        "clip_higher": "overridden",
    }
    assert trl(exploration=["kl:coef=0.01"], epsilon_high=0.3, num_iterations=2) == {
        "clip_higher": "live",
        "kl": "live",
    }
    with pytest.raises(UsageError, match="write methods as texts"):
        trl(exploration=[3])


# ---------------------------------------------------------------- verl


def test_verl_is_off_policy_unless_one_update_follows_a_batch():
    loss = f"{ACTOR}policy_loss.loss_mode".replace(".", "__")
    mini = f"{ACTOR}ppo_mini_batch_size".replace(".", "__")
    assert verl(**{loss: "kl_cov"}) == {"kl_cov": "live"}
    assert verl(**{loss: "kl_cov", mini: 1024}) == {"kl_cov": "inert"}
    assert verl(**{loss: "kl_cov", mini: 1024, "trainer__v1__trainer_mode": "separate_async"}) == {"kl_cov": "live"}
    assert verl(**{loss: "equipoise_gppo"}) == {"gppo": "live"}
    assert verl(**{loss: "gspo"})["gspo"] == "inert"  # verl's default bounds of 0.2 never clip a sequence ratio


def test_what_verl_does_not_read():
    a = ACTOR.replace(".", "__")
    assert verl(**{f"{a}clip_ratio": 0.3}) == {"actor.clip_ratio": "inert"}
    assert verl(**{f"{a}kl_loss_coef": 0.01}) == {"actor.kl_loss_coef": "inert"}
    assert verl(**{f"{a}policy_loss__clip_cov_ratio": 0.1}) == {"policy_loss.clip_cov_ratio": "inert"}
    estimator = {"algorithm__adv_estimator": "equipoise_pkpo", "algorithm__norm_adv_by_std_in_grpo": False}
    assert verl(**estimator) == {"pkpo": "live", "algorithm.norm_adv_by_std_in_grpo": "inert"}
    assert verl(
        algorithm__filter_groups__enable=True, algorithm__filter_groups__metric="acc", trainer__use_v1=False
    ) == {
        "dynamic_sampling": "live",
        "algorithm.filter_groups": "inert",
    }


def test_what_verl_would_stop_at(monkeypatch):
    loss = f"{ACTOR}policy_loss.loss_mode".replace(".", "__")
    assert verl(**{loss: "clip-cov"}) == {"clip-cov": "refused"}
    assert verl(**{loss: "equipoise_gpo"}) == {"equipoise_gpo": "refused"}
    terms = {
        "reward__reward_kwargs__equipoise__terms": ["batch_exploration"],
        "algorithm__norm_adv_by_std_in_grpo": False,
    }
    assert verl(**terms)["reward terms"] == "refused"  # 16384 completions wait on 8 workers
    assert verl(**terms, reward__num_workers=21) == {"group_mean": "live", "batch_exploration": "live"}
    scaled = {**terms, "reward__num_workers": 21, "algorithm__norm_adv_by_std_in_grpo": True}
    assert verl(**scaled)["reward terms"] == "risky"
    monkeypatch.setenv("VERL_USE_EXTERNAL_PLUGINS", "none")
    assert verl(**{loss: "equipoise_gppo"})["equipoise_gppo"] == "refused"
    monkeypatch.setenv("VERL_USE_EXTERNAL_PLUGINS", "other,equipoise")
    assert verl(**{loss: "equipoise_gppo"}) == {"gppo": "live"}


def test_settings_of_ours_reach_the_verdict(monkeypatch):
    loss, env = (
        f"{ACTOR}policy_loss.loss_mode".replace(".", "__"),
        "ray_kwargs__ray_init__runtime_env__env_vars__EQUIPOISE_VERL",
    )
    assert verl(**{loss: "equipoise_ce_gppo", env: "ce_gppo:beta_low=0,beta_high=0"}) == {"ce_gppo": "inert"}
    assert verl(**{env: "pkpo:k=4"}) == {"EQUIPOISE_VERL pkpo": "inert"}  # no loss or estimator of that name is chosen
    assert verl(**{loss: "equipoise_gppo", env: "gppo:clip_high=0.3"})["EQUIPOISE_VERL"] == "refused"  # verl's own key
    monkeypatch.setenv("EQUIPOISE_VERL", "gppo:beta_low=0,beta_high=0")
    assert verl(**{loss: "equipoise_gppo"}) == {"gppo": "inert"}


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "verl").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_verl_config_asks_for_its_method_and_it_is_live(path):
    pytest.importorskip("yaml")
    found = states(judge(asked_of_verl(read_host_config(path).settings)))
    assert found.pop("group_mean", "live") == "live"
    assert found == ({} if path.stem == "group_mean" else {path.stem: "live"})


# ---------------------------------------------------------------- files


def test_a_host_is_told_by_its_keys(tmp_path):
    def told(name, text):
        path = tmp_path / name
        path.write_text(text)
        return read_host_config(path).host

    assert told("a.toml", "num_generations = 8\nlearning_rate = 1e-6") == "trl"
    assert told("b.json", json.dumps({"beta": 0.01})) == "trl"
    assert told("c.json", json.dumps({"actor_rollout_ref": {"actor": {"clip_ratio_high": 0.28}}})) == "verl"
    assert told("d.toml", '[method]\nsurrogate = "clip"') == "equipoise"
    pytest.importorskip("yaml")
    assert told("e.yaml", "algorithm:\n  adv_estimator: grpo\n+reward:\n  num_workers: 3") == "verl"
    assert read_host_config(tmp_path / "e.yaml").settings == {
        "algorithm.adv_estimator": "grpo",
        "reward.num_workers": 3,
    }


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.toml", "learning_rate = 1e-6", "no config of TRL, verl or equipoise: it sets learning_rate"),
        ("a.toml", "beta = ", "is not TOML"),
        ("a.json", "{", "is not JSON"),
        ("a.json", "[1]", "holds a list"),
        ("a.yaml", "a: [", "is not YAML"),
        ("a.txt", "beta = 1", "neither .toml"),
        ("missing.toml", None, "cannot read"),
    ],
)
def test_files_that_are_no_config_are_refused_in_one_line(tmp_path, name, text, says):
    if name.endswith("yaml"):
        pytest.importorskip("yaml")
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=says) as caught:
        read_host_config(tmp_path / name)
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- the command


@pytest.fixture
def bare(monkeypatch):
    """A machine with neither TRL nor verl, so that no test waits for them."""
    monkeypatch.setattr(doctor, "installed", lambda name: {"torch": "2.13.0"}.get(name))


def command(*words, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["equipoise", "doctor", *map(str, words)])
    with pytest.raises(SystemExit) as left:
        main.run()
    return left.value.code, *capsys.readouterr()


def test_the_command_prints_one_page_or_only_json(bare, tmp_path, capsys, monkeypatch):
    config = tmp_path / "grpo.toml"
    config.write_text("epsilon_high = 0.28\nbeta = 0.01\n")
    code, out, _ = command("--config", config, capsys=capsys, monkeypatch=monkeypatch)
    assert code == 0
    assert "clip_higher            inert" in out
    assert "kl_corrected           live" in out
    assert "num_iterations" in out  # what would make it act
    code, out, _ = command("--config", config, "--json", capsys=capsys, monkeypatch=monkeypatch)
    found = json.loads(out)
    assert (code, found["schema"], found["host"], found["broken"]) == (0, "equipoise.doctor/1", "trl", False)
    assert {one["name"]: one["state"] for one in found["controls"]} == {"clip_higher": "inert", "kl_corrected": "live"}
    assert [one["version"] for one in found["packages"] if one["name"] == "torch"] == ["2.13.0"]
    code, _, err = command("--config", tmp_path / "none.toml", capsys=capsys, monkeypatch=monkeypatch)
    assert code == 2
    assert err.startswith("equipoise: cannot read")


def test_our_own_config_is_judged_by_the_trainer_s_own_warnings(bare, tmp_path):
    config = tmp_path / "train.toml"
    config.write_text(
        'out = "run"\n[method]\nsurrogate = "clip_higher"\nregularisers = ["kl:coef=0.01"]\n[learning]\nupdates = 1\n'
    )
    found = states(doctor.examine(config).controls)
    assert (found["clip_higher"], found["kl"]) == ("inert", "live")
    config.write_text(config.read_text().replace("updates = 1", "updates = 4"))
    assert states(doctor.examine(config).controls)["clip_higher"] == "live"


def test_what_is_installed_and_does_not_work_is_broken(monkeypatch, capsys):
    there = {"torch": "2.13.0", "trl": "1.10.0", "unsloth": "2026.10.9"}
    monkeypatch.setattr(doctor, "installed", there.get)
    monkeypatch.setattr(
        doctor, "import_module", _raising(UsageError("trl 1.10.0 is installed and trl >=1.14,<2 is supported"))
    )
    found = doctor.examine()
    assert found.broken
    assert {one.name for one in found.packages if one.ok is False} == {"trl", "unsloth"}
    (plugin,) = found.plugins
    assert (plugin.ok, plugin.host) == (False, "trl")
    assert ">=1.14,<2" in plugin.found
    assert command(capsys=capsys, monkeypatch=monkeypatch)[0] == 1


def _raising(problem):
    def raising(name):
        raise problem

    return raising
