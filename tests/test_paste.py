"""Lines for a host that lacks a method: the adapter takes every one of them, and what it refuses has none."""

from __future__ import annotations

import ast
import re
import shlex
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from equipoise.adapters import trl_plan
from equipoise.adapters.group_rows import group_advantages
from equipoise.adapters.outcome_board import OutcomeBoard, workers_needed
from equipoise.adapters.trl_groups import MEASURED, GroupShaper
from equipoise.adapters.trl_plan import Exploration, with_recipe
from equipoise.catalogue.hosts import HOSTS
from equipoise.catalogue.paste import GROUPS_GET, LOSS_GETS, Paste, paste_for, pastes, recipe_pastes
from equipoise.catalogue.table import find_method, find_recipe, methods
from equipoise.catalogue.verl_keys import ENV, PREFIX, TERMS, WORKERS
from equipoise.diagnosis.prescribe import _pasted
from equipoise.errors import UsageError

FRAGMENTS = Path(__file__).parents[1] / "examples" / "verl"
TRAINING = [method.name for method in methods() if method.loop == "training"]
LOSS, ADVANTAGE = "actor_rollout_ref.actor.policy_loss.loss_mode", "algorithm.adv_estimator"


def added(name: str, host: str) -> Paste | None:
    """The lines that need our adapter."""
    found = paste_for(name, host)
    return found if found is not None and found.needs else None


def lacking(host: str) -> list[str]:
    return [name for name in TRAINING if host not in find_method(name).hosts]


def call_in(line: str) -> ast.Call:
    """A printed call, its ellipses left out."""
    call = ast.parse(line.replace("…, ", ""), mode="eval").body
    assert isinstance(call, ast.Call)
    return call


def keywords(call: ast.Call) -> dict[str, ast.expr]:
    return {str(word.arg): word.value for word in call.keywords}


# ---------------------------------------------------------------- TRL


def asked_of_trl(line: str) -> dict[str, Any]:
    call = call_in(line)
    assert ast.unparse(call.func) == "explore(GRPOTrainer)"
    return {name: ast.literal_eval(value) for name, value in keywords(call).items()}


def take_up(*specs: str) -> tuple[Exploration, GroupShaper]:
    """All that the mixin makes of specs before it has a trainer: it raises on what it cannot feed or move."""
    torch_side = pytest.importorskip(
        "equipoise.adapters.trl_loss", reason="needs torch: pip install 'equipoise[train]'", exc_type=ImportError
    )
    steer = pytest.importorskip(
        "equipoise.adapters.trl_steer",
        reason="needs transformers: pip install 'equipoise[train]'",
        exc_type=ImportError,
    )
    asked = Exploration.of(*specs)
    objective = torch_side.build_objective(asked)
    trainer = SimpleNamespace(use_adaptive_entropy=False, loss_type="dapo", entropy_coef=0.0, epsilon_high=0.2)
    steer.Steering(asked.controllers, trainer, objective)
    return asked, GroupShaper(asked)


@pytest.mark.integration  # with transformers
@pytest.mark.parametrize("name", lacking("trl"))
def test_the_trl_adapter_takes_what_is_printed_and_refuses_what_is_not(name):
    found = added(name, "trl")
    if found is None:
        with pytest.raises(UsageError):
            take_up(name)
        return
    assert "pip install 'equipoise[trl]'" in found.needs
    if "reward_funcs" in found.lines[0]:
        return  # see below
    given = asked_of_trl(found.lines[0])
    asked, shaper = take_up(*given["exploration"])
    (spec,) = (spec for spec in asked.specs if trl_plan.read_spec(spec)[0] == name)
    assert trl_plan.read_spec(spec)[1] == find_method(name).settings
    # `correct=` is in the line exactly where the mixin asks for it.
    assert ("correct" in given) == (shaper.needs_verdicts or bool(asked.demonstrations))


def test_a_recipe_s_lines_name_it_and_the_batch_that_it_was_reported_with():
    (trl, own) = recipe_pastes(find_recipe("preserve"))
    assert (trl.host, own.host) == ("trl", "equipoise")
    assert [asked_of_trl(line) for line in trl.lines] == [{"recipe": "preserve"}]
    assert own.lines == ("equipoise train recipe=preserve sampling.prompts=256 sampling.samples=4 out=FOLDER",)
    (grpo, _) = recipe_pastes(find_recipe("grpo"))
    assert [asked_of_trl(line) for line in grpo.lines] == [{"recipe": "grpo"}]
    # Its length penalty is a reward function in TRL.
    (dapo,) = recipe_pastes(find_recipe("dapo"))
    assert dapo.host == "equipoise"
    # 512 × 16 completions in minibatches of 512
    assert dapo.lines[0].split()[3:6] == ["sampling.prompts=512", "sampling.samples=16", "learning.updates=16"]


def test_parts_that_are_given_replace_those_of_a_recipe():
    whole = with_recipe(Exploration(), find_recipe("preserve"))
    assert whole.specs == ("kl:coef=0.05,kind=exact",)
    beside = with_recipe(Exploration.of("rare_replay:rows=8", "batch_exploration"), find_recipe("preserve"))
    assert beside.regularisers == ("kl:coef=0.05,kind=exact",)
    assert beside.demonstrations == ("rare_replay:rows=8",)
    assert beside.bonuses == ("batch_exploration",)
    own = with_recipe(Exploration.of("kl:coef=0.2"), find_recipe("preserve"))
    assert own.regularisers == ("kl:coef=0.2",)


def test_rewards_are_reward_functions_of_the_adapter():
    pytest.importorskip("torch")
    rewards = pytest.importorskip("equipoise.adapters.trl_rewards", exc_type=ImportError)
    seen = set()
    for name in (name for name in TRAINING if find_method(name).kind == "reward"):
        found = added(name, "trl")
        if found is None:
            continue
        listed = keywords(call_in(found.lines[0].replace("…, ", "")))["reward_funcs"]
        (made,) = (each for each in ast.walk(listed) if isinstance(each, ast.Call))
        function = ast.unparse(made.func)
        assert found.needs.endswith(f"import {function}")
        settings = {
            word: value if (value := ast.unparse(node)) == "accuracy_reward" else ast.literal_eval(node)
            for word, node in keywords(made).items()
        }
        assert {word: settings[word] for word in find_method(name).settings} == find_method(name).settings
        assert callable(getattr(rewards, function)(*map(ast.literal_eval, made.args), **settings))
        seen.add(function)
    # Those that the mixin names when it refuses a reward.
    assert seen == set(re.findall(r"\w+_reward\b", trl_plan._ELSEWHERE["reward"]))


def test_what_the_trl_adapter_gives_is_what_the_catalogue_says():
    batch = pytest.importorskip("equipoise.objectives.batch", exc_type=ImportError)
    assert {field.name for field in fields(batch.TokenBatch)} >= LOSS_GETS
    assert set(MEASURED) == GROUPS_GET


def test_reductions_are_trl_s_own_loss_types():
    for name, loss_type in trl_plan.LOSS_TYPES.items():
        found = paste_for(name, "trl")
        assert found is not None
        assert not found.needs
        assert f"loss_type='{loss_type}'" in found.lines[0]
    assert list(trl_plan.LOSS_TYPES) == ["token_mean", "sequence_mean", "sequence_sum", "constant_length"]


# ---------------------------------------------------------------- verl


def overrides(found: Paste) -> dict[str, str]:
    """Key → value as Hydra sees them, after a shell has read the line."""
    pairs = [word.split("=", 1) for word in shlex.split(" ".join(found.lines))]
    assert all((key.startswith("+")) == (key.lstrip("+") in (ENV, TERMS)) for key, _ in pairs)
    return {key.lstrip("+"): value for key, value in pairs}


def test_the_losses_and_advantages_printed_for_verl_are_those_that_the_plug_in_registers():
    host_objective = pytest.importorskip("equipoise.adapters.host_objective", exc_type=ImportError)
    printed: dict[str, list[str]] = {LOSS: [], ADVANTAGE: []}
    for name in lacking("verl"):
        keys = overrides(found) if (found := added(name, "verl")) is not None else {}
        for key, names in printed.items():
            if keys.get(key, "").startswith(PREFIX):
                assert keys[key] == PREFIX + name
                names.append(name)
    assert printed[LOSS] == [row.name for row in host_objective.policy_losses() if "verl" not in row.hosts]
    assert printed[ADVANTAGE] == [row.name for row in group_advantages() if "verl" not in row.hosts]


@pytest.mark.parametrize("name", [name for name in lacking("verl") if find_method(name).kind in ("bonus", "reward")])
def test_the_reward_manager_takes_the_terms_that_are_printed_and_no_others(name):
    found = added(name, "verl")
    if found is None:
        with pytest.raises(UsageError):
            OutcomeBoard([name])
        return
    yaml = pytest.importorskip("yaml")
    (spec,) = yaml.safe_load(overrides(found)[TERMS])
    assert trl_plan.read_spec(spec) == (name, find_method(name).settings)
    OutcomeBoard([spec])


def test_reward_workers_hold_the_default_batch():
    assert workers_needed(1024 * 16) == WORKERS


@pytest.mark.parametrize("name", lacking("verl"))
def test_the_keys_for_verl_are_those_of_its_config(name):
    yaml = pytest.importorskip("yaml")
    found, path = added(name, "verl"), FRAGMENTS / f"{name}.yaml"
    assert (found is not None) == path.exists()
    if found is None:
        return
    assert f"examples/verl/{name}.yaml" in found.needs
    assert "pip install 'equipoise[verl]'" in found.needs
    asked = dict(flat(yaml.safe_load(path.read_text())))
    frame = {"hydra.searchpath", "defaults", "actor_rollout_ref.rollout.n"}
    read = {key: yaml.safe_load(value) for key, value in overrides(found).items()}
    assert read | {key: asked[key] for key in frame} | {ADVANTAGE: read.get(ADVANTAGE, "grpo")} == asked


def flat(tree: dict[str, Any], prefix: str = "") -> Any:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


# ---------------------------------------------------------------- what a reader sees


def test_a_line_says_whether_it_needs_equipoise():
    assert str(paste_for("kl", "trl", coef=0.02)) == "trl: GRPOConfig(beta=0.02)"
    assert str(paste_for("entropy_budget", "trl", target=0.4)) == (
        "trl, with equipoise: explore(GRPOTrainer)(…, exploration=['entropy_budget:target=0.4,band=0.05,gain=0.3'])"
    )
    assert str(paste_for("gppo", "verl", clip_high=0.3, beta_low=0.5)) == (
        "verl, with equipoise: actor_rollout_ref.actor.policy_loss.loss_mode=equipoise_gppo "
        "actor_rollout_ref.actor.clip_ratio_low=0.2 actor_rollout_ref.actor.clip_ratio_high=0.3 "
        """'+ray_kwargs.ray_init.runtime_env.env_vars.EQUIPOISE_VERL="gppo:beta_low=0.5,beta_high=1.0"'"""
    )
    assert paste_for("entropy_budget", "verl") is None  # verl hands no entropies to a loss
    assert paste_for("majority", "trl") is None
    with pytest.raises(UsageError, match="unknown setting of gppo"):
        paste_for("gppo", "verl", clip_hgh=0.3)


def test_hosts_come_in_their_order_each_once():
    for method in methods():
        hosts = [found.host for found in pastes(method)]
        assert hosts == [host for host in HOSTS if host in hosts]
        assert all("\n" not in line for found in pastes(method) for line in found.lines)


def test_a_prescription_has_one_line_for_a_host_and_none_for_what_does_nothing():
    chosen = {"entropy_budget": {"target": 0.4}, "gppo": {}, "too_hard": {}}
    found = _pasted(chosen, besides=["equipoise"])
    # gppo is inert on one update per batch, and verl takes neither of the others.
    assert list(found) == ["trl"]
    assert found["trl"].startswith(
        "trl, with equipoise: explore(GRPOTrainer)(…, exploration=['entropy_budget:target=0.4,"
    )
    assert _pasted(chosen, besides=HOSTS) == {}
