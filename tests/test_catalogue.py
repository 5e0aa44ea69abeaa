"""The catalogue: its rows hold together, and its settings come out as a user of each host would write them."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace

import pytest

from equipoise.catalogue.base import Method, Setting
from equipoise.catalogue.hosts import HOSTS
from equipoise.catalogue.settings import as_lines, settings_for
from equipoise.catalogue.table import find_host, find_method, find_recipe, hosts_of, is_built, methods, recipes
from equipoise.errors import UsageError

NATIVE = [(method.name, host) for method in methods() for host in method.hosts]


def test_rows_hold_together():
    names = [method.name for method in methods()]
    assert len(names) == len(set(names))
    for method in methods():
        assert re.fullmatch(r"[a-z][a-z0-9_]*", method.name)
        assert re.fullmatch(r"[\w.]+:\w+", method.target)
        assert re.fullmatch(r"\d{4}\.\d{4,5}", method.paper)
        assert method.link.endswith(method.paper)
        assert set(method.hosts) <= set(HOSTS)
        assert method.about.isprintable()
        assert method.equation.isprintable()
        assert set(method.acts_only) <= {"off_policy"}
        assert all(trap.isprintable() and not trap.endswith(".") for trap in method.traps)
    for name, host in HOSTS.items():
        assert name == host.name
        twice = 2 if name == "trl" else 0  # entropy_coef and max_completion_length
        assert len({setting.key for setting in host.settings.values()}) == len(host.settings) - twice
        owners = {name.split(".")[0] for name in host.settings if "." in name}
        assert owners <= set(names)
    for recipe in recipes():
        assert set(recipe.methods) <= set(names)
        assert recipe.name not in names  # `equipoise methods NAME` shows either
        assert re.fullmatch(r"\d{4}\.\d{4,5}", recipe.paper)
        assert recipe.ema is None or 0 < recipe.ema < 1
        assert recipe.temperature is None or 0 < recipe.temperature <= 10


@pytest.mark.parametrize(("name", "host"), NATIVE)
def test_a_host_that_has_a_method_has_a_key_for_each_of_its_settings(name, host):
    method = find_method(name)
    settings = settings_for(name, host)
    assert len(settings) == len(method.settings) + len(method.hosts[host])
    lines = as_lines(host, settings)
    assert all(key.rsplit(".", 1)[-1] in "\n".join(lines) for key in settings)


def test_lines_to_paste():
    assert as_lines("trl", settings_for("clip_higher", "trl")) == ["GRPOConfig(epsilon=0.2, epsilon_high=0.28)"]
    assert as_lines("verl", settings_for("clip_higher", "verl")) == [
        "actor_rollout_ref.actor.clip_ratio_low=0.2",
        "actor_rollout_ref.actor.clip_ratio_high=0.28",
    ]
    assert as_lines("trl", settings_for("adaptive_entropy", "trl")) == [
        "GRPOConfig(use_adaptive_entropy=True, entropy_target=0.2, entropy_coef_delta=0.0001, entropy_coef_max=0.005, "
        "entropy_coef_min=0.0, entropy_coef=0.0)"
    ]
    assert as_lines("verl", settings_for("kl_cov", "verl", share=2e-4)) == [
        "actor_rollout_ref.actor.policy_loss.loss_mode=kl_cov",
        "actor_rollout_ref.actor.policy_loss.kl_cov_ratio=0.0002",
        "actor_rollout_ref.actor.policy_loss.ppo_kl_coef=1.0",
    ]
    assert as_lines("verl", settings_for("dynamic_sampling", "verl")) == [
        "algorithm.filter_groups.enable=True",
        "algorithm.filter_groups.metric=acc",
    ]
    assert as_lines("verl", settings_for("kl", "verl", coef=0.001))[-1] == "actor_rollout_ref.actor.kl_loss_coef=0.001"
    assert as_lines("openai", settings_for("cap", "openai", tokens=2048)) == [
        "client.chat.completions.create(…, extra_body={'thinking_token_budget': 2048})"
    ]
    assert as_lines("verl", {"a": None, "b": [1.0, 0.5], "c": False}) == ["a=null", "'b=[1.0,0.5]'", "c=False"]
    assert as_lines("trl", {}) == []


BUILT = "json.decoder:JSONDecoder"  # any code that is there


def row(target: str, name: str = "x", **more) -> Method:
    given = {"kind": "weight", "loop": "training", "settings": {"share": 0.2}} | more
    return Method(name, about="", target=target, paper="2506.01939", **given)


@pytest.fixture
def our_hosts_run(monkeypatch):
    for name in ("equipoise", "gateway"):
        monkeypatch.setitem(HOSTS, name, replace(HOSTS[name], ours="json"))


def test_our_own_hosts_take_a_method_by_name_once_it_is_built(our_hosts_run):
    assert settings_for(row("nowhere.to:be"), "equipoise") == {}
    assert settings_for(row(BUILT, "token_mean", kind="reduction", settings={}), "equipoise") == {
        "reduction": "token_mean"
    }
    assert settings_for(row(BUILT, "forking"), "equipoise") == {"weights": ["forking:share=0.2"]}
    clip = row(BUILT, "clip", kind="ratio_clip", settings={"clip_low": 0.2, "clip_high": 0.28})
    assert as_lines("equipoise", settings_for(clip, "equipoise", clip_high=0.3)) == [
        "eq.recipe(\"grpo\", surrogate='clip:clip_low=0.2,clip_high=0.3')"
    ]
    vote = row(BUILT, "majority", kind="strategy", loop="inference", settings={"n": 16})
    assert as_lines("gateway", settings_for(vote, "gateway", n=8)) == [
        "client.chat.completions.create(…, extra_body={'controller': {'strategy': 'majority:n=8'}})"
    ]
    assert settings_for(vote, "equipoise") == {}  # not a training method
    cap = row(BUILT, "cap", kind="cap", loop="inference", settings={"tokens": 512})
    assert settings_for(cap, "gateway") == {"controller.thinking_budget": 512}


def test_a_host_without_the_method_has_no_settings_for_it():
    assert settings_for("clip_cov", "trl") == {}
    assert settings_for("brier", "verl") == {}
    assert as_lines("trl", settings_for("clip_cov", "trl")) == []
    assert settings_for("clip-cov", "verl") == settings_for("clip_cov", "verl") != {}


def test_a_host_s_values_where_they_differ_from_ours():
    scaling = find_host("trl").settings["std_scaling"]
    assert (scaling.write(True), scaling.write(False)) == ("group", "none")
    assert find_host("verl").settings["std_scaling"].write(False) is False
    assert Setting("x", values={True: "yes"}).write(1) == 1  # a number is not a truth value


def test_the_same_setting_means_different_things_and_is_noted():
    assert "cap itself" in find_host("trl").settings["clip_high"].note
    assert "distance from 1" in find_host("verl").settings["clip_high"].note
    assert "num_iterations" in find_host("trl").off_policy
    assert "off_policy" in find_method("kl_cov").acts_only
    assert any("50 and 200 times" in trap for trap in find_method("adaptive_entropy").traps)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: find_method("clip_hgher"), "unknown method 'clip_hgher': did you mean 'clip_higher'"),
        (lambda: find_recipe("dap"), "unknown recipe 'dap': did you mean 'dapo'"),
        (lambda: settings_for("clip_higher", "tlr"), "unknown host 'tlr': did you mean 'trl'"),
        (lambda: settings_for("clip_higher", "trl", clip_hgh=1), "unknown setting of clip_higher 'clip_hgh'"),
        (lambda: settings_for(row(BUILT, hosts={"trl": {}}), "trl"), "TRL GRPOConfig has no key for 'share' of x"),
        (lambda: as_lines("trll", {"a": 1}), "unknown host 'trll'"),
    ],
)
def test_bad_names_are_told_in_one_line(ask, message):
    with pytest.raises(UsageError, match=re.escape(message)) as caught:
        ask()
    assert "\n" not in str(caught.value)


def test_is_built_looks_without_importing(tmp_path, monkeypatch):
    (tmp_path / "catpkg").mkdir()
    (tmp_path / "catpkg" / "__init__.py").write_text("")
    source = "import a_package_that_is_not_there\ndef f(): ...\nasync def g(): ...\nclass C: ...\nV = 1\nW: int = 2\n"
    (tmp_path / "catpkg" / "heavy.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("f", "g", "C", "V", "W"):
        assert is_built(row(f"catpkg.heavy:{name}"))
    for target in (
        "catpkg.heavy:missing",
        "catpkg.absent:f",
        "no_such_package.module:f",
        "catpkg.heavy:a_package_that_is_not_there",
    ):
        assert not is_built(row(target))
    assert "catpkg.heavy" not in sys.modules


def test_a_method_is_shown_where_it_can_be_set_today(our_hosts_run):
    assert hosts_of(row("nowhere.to:be", hosts={"trl": {}})) == ("trl",)
    assert hosts_of(row(BUILT, hosts={"trl": {}})) == ("trl", "equipoise")
    assert hosts_of(row("nowhere.to:be")) == ()
    for method in methods():
        assert set(hosts_of(method)) >= set(method.hosts)
        own = "equipoise" if method.loop == "training" else "gateway"
        assert (own in hosts_of(method)) == (is_built(method) and not method.lacking)


def test_a_host_of_ours_that_is_not_there_takes_nothing(monkeypatch):
    monkeypatch.setitem(HOSTS, "equipoise", replace(HOSTS["equipoise"], ours="no_such_package"))
    assert hosts_of(row(BUILT, hosts={"trl": {}})) == ("trl",)
    assert settings_for(row(BUILT), "equipoise") == {}


def test_a_method_of_every_kind_has_its_place_in_a_recipe(our_hosts_run):
    for kind in {method.kind for method in methods() if method.loop == "training"}:
        assert len(settings_for(row(BUILT, "any", kind=kind), "equipoise")) == 1


def test_the_catalogue_needs_only_the_standard_library():
    code = "import equipoise.catalogue.settings, sys; print(sorted({'numpy', 'torch', 'pyarrow', 'pydantic', 'rich'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
