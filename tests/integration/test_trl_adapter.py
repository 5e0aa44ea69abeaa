"""The mixin in real TRL runs: what it adds is what `objectives` computes, and a coefficient of 0 adds nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("trl", reason="needs trl: pip install 'equipoise[trl]'")
pytestmark = pytest.mark.integration

from trl import GRPOTrainer  # noqa: E402
from trl_runs import exploring, make, trained, weights  # noqa: E402

import equipoise as eq  # noqa: E402
from equipoise.adapters.trl import Exploration, ExplorationMixin  # noqa: E402
from equipoise.base import Answer  # noqa: E402
from equipoise.catalogue.build import build  # noqa: E402
from equipoise.errors import UsageError  # noqa: E402

BONUS = "equipoise.objectives.regularisers:entropy_bonus"  # not by its row: TRL's own option would be set
CLIP = "equipoise.objectives.clipped:clipped_surrogate:clip_low=0.2,clip_high=0.2"
OFF_POLICY = {"num_iterations": 2, "max_steps": 4}


def side(text: str) -> Answer | None:
    """The half of the alphabet that the last letter is from."""
    if not text or not text[-1].isalpha():
        return None
    return Answer("late" if text[-1] > "m" else "early", (len(text) - 1, len(text)))


# ---------------------------------------------------------------- nothing added


@pytest.mark.parametrize(
    "settings",
    [{}, OFF_POLICY, {"loss_type": "grpo", "gradient_accumulation_steps": 2, "per_device_train_batch_size": 8}],
)
def test_coefficients_of_zero_leave_the_run_bit_for_bit(tmp_path, settings):
    plain = make(tmp_path / "plain", **settings)
    wanted = trained(plain)
    chosen = Exploration(
        regularisers=(f"{BONUS}:coef=0.0", "kl:kind=k2,coef=0.0"),
        weights=("planning_credit:alpha=0.0", "forking_step:share=1.0"),
        bonuses=("batch_exploration:weight=0.0",),
        controllers=("band:low=0.1,high=9.0",),
    )
    ours = exploring(tmp_path / "ours", exploration=chosen, read=side, capture=tmp_path / "run", **settings)
    assert trained(ours) == wanted
    assert torch.equal(weights(plain), weights(ours))


# ---------------------------------------------------------------- TRL as the oracle


def test_our_entropy_bonus_is_trls_own(tmp_path):
    seen = trained(make(tmp_path / "theirs", entropy_coef=0.05, **OFF_POLICY))
    found = trained(
        exploring(tmp_path / "ours", exploration=Exploration(regularisers=(f"{BONUS}:coef=0.05",)), **OFF_POLICY)
    )
    assert [[f"{value:.4g}" for value in step] for step in found] == [
        [f"{value:.4g}" for value in step] for step in seen
    ]
    np.testing.assert_allclose(found, seen, rtol=2e-5, atol=1e-7)
    assert trained(make(tmp_path / "without", **OFF_POLICY))[1:] != seen[1:]


@pytest.mark.parametrize("loss_type", ["dapo", "bnpo", "grpo", "dr_grpo", "luspo"])
def test_a_surrogate_in_place_of_trls_is_divided_as_trls(tmp_path, loss_type):
    """TRL's clipped loss by our function: the same run for every loss type, two updates of two passes on each batch."""
    passes = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "steps_per_generation": 4}
    settings = {"loss_type": loss_type, "max_steps": 4, **passes}
    theirs = trained(make(tmp_path / "theirs", **settings))
    ours = trained(exploring(tmp_path / "ours", exploration=Exploration(surrogate=CLIP), **settings))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_native_methods_set_trls_options(tmp_path, caplog):
    specs = [
        "clip_higher",
        "entropy_bonus:coef=0.002",
        "forking:share=0.3",
        "kl:coef=0.02",
        "group_mean",
        "mask_truncated",
    ]
    trainer = exploring(tmp_path, *specs)
    found = {
        name: getattr(trainer.args, name)
        for name in ("epsilon", "epsilon_high", "entropy_coef", "top_entropy_quantile", "beta")
    }
    assert found == {
        "epsilon": 0.2,
        "epsilon_high": 0.28,
        "entropy_coef": 0.002,
        "top_entropy_quantile": 0.3,
        "beta": 0.02,
    }
    assert (trainer.scale_rewards, trainer.mask_truncated_completions) == ("none", True)
    assert (trainer.epsilon_high, trainer.entropy_coef, trainer.beta) == (0.28, 0.002, 0.02)
    assert "forking:share=0.3 is TRL's own: top_entropy_quantile=0.3" in caplog.text
    assert "clip_higher is inert" in caplog.text  # one update per batch: the ratio is 1
    ours = exploring(
        tmp_path / "c", "gppo", "forking:share=0.3"
    )  # TRL's mask would act on its own loss, which is replaced
    assert ours.args.top_entropy_quantile == 1.0
    assert [part.name for part in ours._exploring.objective.weights] == ["forking"]
    named = exploring(tmp_path / "d", "sequence_mean")
    assert named.loss_type == "grpo"
    adaptive = exploring(tmp_path / "b", "adaptive_entropy:target=0.5,step=0.001,max=0.1").args
    assert adaptive.use_adaptive_entropy
    assert (adaptive.entropy_target, adaptive.entropy_coef_delta, adaptive.entropy_coef_max) == (0.5, 0.001, 0.1)


def test_a_recipe_of_ours_is_a_recipe_here(tmp_path):
    recipe = eq.recipe(
        "grpo", weights=["forking:share=0.2"], controllers=["band:low=0.2,high=0.6"], regularisers=["kl:kind=k2"]
    )
    trainer = exploring(tmp_path, exploration=recipe)
    assert (trainer.top_entropy_quantile, trainer.loss_type, trainer.epsilon_high) == (0.2, "dapo", 0.2)
    assert list(trainer._exploring.steering.controllers) == ["band"]
    assert [part.name for part in trainer._exploring.objective.regularisers] == ["kl"]
    with pytest.raises(UsageError, match="reward_funcs"):
        exploring(tmp_path, exploration=eq.recipe("dapo"))


# ---------------------------------------------------------------- each objective on the captured tensors


@dataclass
class Seen:
    """One loss call, from outside: what went in, what the model gave, and the loss with its gradients by that."""

    inputs: dict[str, Any]
    logp: torch.Tensor
    entropy: torch.Tensor
    loss: torch.Tensor
    by_logp: torch.Tensor
    by_entropy: torch.Tensor


class Recording(ExplorationMixin, GRPOTrainer):
    def _compute_loss(self, model, inputs):
        loss = super()._compute_loss(model, inputs)
        logp, entropy = self.passed
        by_logp = torch.autograd.grad(loss, logp, retain_graph=True)[0]
        by_entropy = torch.zeros_like(entropy)
        if entropy.requires_grad:  # TRL 1.14: only where something adds an entropy to the loss
            by_entropy = torch.autograd.grad(
                loss, entropy, retain_graph=True, allow_unused=True, materialize_grads=True
            )[0]
        self.__dict__.setdefault("calls", []).append(
            Seen(dict(inputs), logp.detach(), entropy.detach(), loss.detach(), by_logp, by_entropy)
        )
        return loss

    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        found = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        self.passed = found[0], found[1]
        return found


def by_hand(spec: str, kind: str, seen: Seen, *, clip: bool) -> torch.Tensor:
    """TRL's loss with this method, out of `objectives` alone: a sum over tokens divided by the tokens of the step."""
    mask = seen.inputs["completion_mask"].bool()
    adv = seen.inputs["advantages"]
    given = {
        "logp_BT": seen.logp.clone().requires_grad_(),
        "old_logp_BT": seen.inputs.get("old_per_token_logps", seen.logp),
        "adv_BT": adv[:, None].expand(mask.shape) if adv.dim() == 1 else adv,
        "mask_BT": mask,
        "entropy_BT": seen.entropy.clone().requires_grad_(),
        "ref_logp_BT": seen.inputs.get("ref_per_token_logps"),
        "planning_BT": seen.inputs.get("equipoise/planning_BT"),
        "chosen_BT": seen.inputs.get(f"equipoise/{spec.split(':')[0]}"),
    }

    def run(call):
        from inspect import signature

        names = [name for name in signature(call).parameters if name in given and given[name] is not None]
        return call(**{name: given[name] for name in names})

    term = run(build(spec))
    own = run(build("clip")) if clip else torch.zeros_like(term)
    total = {"surrogate": term, "regulariser": own + term, "weight": own * term}[kind].sum() / mask.sum()
    grads = torch.autograd.grad(
        total, [given["logp_BT"], given["entropy_BT"]], allow_unused=True, materialize_grads=True
    )
    return total.detach(), *grads


SURROGATES = ["unclipped", "dual_clip:cap=3.0", "cispo", "cispo_two_sided", "gppo", "ce_gppo", "kl_cov:share=0.1", "kl_cov_step:share=0.1",
              "kl_cov_two_sided:share=0.1", "kl_cov_two_sided_step:share=0.1", "kl_cov_reference:share=0.1",
              "kl_cov_reference_step:share=0.1", "clip_cov_step:share=0.1,low=0.01,high=5.0"]  # fmt: skip
REGULARISERS = [f"{BONUS}:coef=0.1", "kl:kind=k2", "kl:kind=k1,coef=0.1", "kl_corrected:coef=0.1"]
WEIGHTS = ["forking_step:share=0.3", "planning_credit:alpha=0.3"]
CASES = (
    [(s, "surrogate") for s in SURROGATES]
    + [(s, "regulariser") for s in REGULARISERS]
    + [(s, "weight") for s in WEIGHTS]
)


@pytest.mark.parametrize(("spec", "kind"), CASES)
def test_what_is_added_equals_objectives_on_the_captured_tensors(tmp_path, spec, kind, monkeypatch):
    # A text with plans in it: the tiny model's own never has one.
    monkeypatch.setattr("equipoise.adapters.trl_explore.planning_tokens", lambda texts: [text > "h" for text in texts])
    chosen = Exploration(**{kind + "s" if kind != "surrogate" else kind: (spec,) if kind != "surrogate" else spec})
    trainer = exploring(tmp_path, kind=Recording, exploration=chosen, num_iterations=2, max_steps=2)
    trainer.train()
    first, second = trainer.calls
    assert "old_per_token_logps" in second.inputs
    assert not torch.equal(second.logp, second.inputs["old_per_token_logps"])
    for seen in (first, second):
        value, by_logp, by_entropy = by_hand(spec, kind, seen, clip=kind != "surrogate")
        torch.testing.assert_close(seen.loss, value, rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(seen.by_logp, by_logp, rtol=1e-4, atol=1e-8)
        torch.testing.assert_close(seen.by_entropy, by_entropy, rtol=1e-4, atol=1e-8)
        assert by_logp.abs().max() > 0


def test_a_choice_over_the_step_does_not_change_with_the_micro_batches(tmp_path):
    """Forking tokens of 16 completions at once, and of the same 16 in four passes."""
    together = exploring(tmp_path / "a", "forking_step:share=0.2", kind=Recording, max_steps=1)
    together.train()
    passes = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4}
    apart = exploring(tmp_path / "b", "forking_step:share=0.2", kind=Recording, max_steps=1, **passes)
    apart.train()
    key = "equipoise/forking_step"

    def chosen(trainer):
        rows = [
            (tuple(ids.tolist()), tuple(marks[mask.bool()].tolist()))
            for call in trainer.calls
            for ids, marks, mask in zip(
                call.inputs["completion_ids"], call.inputs[key], call.inputs["completion_mask"], strict=True
            )
        ]
        return sorted(rows)

    assert chosen(together) == chosen(apart)
    tokens = sum(len(marks) for _, marks in chosen(together))
    assert sum(sum(marks) for _, marks in chosen(together)) == pytest.approx(0.2 * tokens, abs=1.5)


# ---------------------------------------------------------------- advantages, bonuses, filters


def test_a_bonus_makes_token_advantages_and_leaves_the_answer_alone(tmp_path):
    trainer = exploring(
        tmp_path, "batch_exploration:weight=0.5,unless_all_right=False", kind=Recording, read=side, max_steps=1
    )
    trainer.train()
    (seen,) = trainer.calls
    texts = [
        "".join(trainer._exploring.texts.of(ids[mask.bool()].tolist()))
        for ids, mask in zip(seen.inputs["completion_ids"], seen.inputs["completion_mask"], strict=True)
    ]
    prompts = [tuple(ids.tolist()) for ids in seen.inputs["prompt_ids"]]
    lengths = seen.inputs["completion_mask"].sum(1).tolist()
    adv = seen.inputs["advantages"]
    assert adv.shape == seen.inputs["completion_ids"].shape
    acted = 0
    for b, text in enumerate(texts):
        group = [n for n, prompt in enumerate(prompts) if prompt == prompts[b]]
        assert len(group) == 4
        same = sum(
            n != b
            and side(text) is not None
            and side(texts[n]) is not None
            and (texts[n][-1] > "m") == (text[-1] > "m")
            for n in group
        )
        bonus = -0.5 * same / 4
        rewards = [float(len(texts[n]) % 2 + (texts[n][-1:] > "m")) + float(texts[n][-1:] > "a") for n in group]
        mean = sum(rewards) / 4
        std = math.sqrt(sum((r - mean) ** 2 for r in rewards) / 3)
        own = (rewards[group.index(b)] - mean) / (std + 1e-4)
        row = trainer._exploring.texts.of(seen.inputs["completion_ids"][b, : lengths[b]].tolist())
        last = max((t for t, token in enumerate(row) if token), default=-1)  # one token a character, specials have none
        for t in range(lengths[b]):
            answer = t == last and side(text) is not None
            assert adv[b, t].item() == pytest.approx(own + (0.0 if answer else bonus), abs=2e-5)
            acted += bonus != 0 and not answer
    assert acted


def test_an_advantage_of_ours_replaces_trls(tmp_path):
    trainer = exploring(tmp_path, "leave_one_out", kind=Recording, max_steps=1)
    trainer.train()
    (seen,) = trainer.calls
    reward = trainer._exploring.rewards_NF.sum(1).numpy().reshape(4, 4)
    wanted = reward - (reward.sum(1, keepdims=True) - reward) / 3
    np.testing.assert_allclose(sorted(seen.inputs["advantages"].tolist()), sorted(wanted.ravel().tolist()), atol=1e-6)


def test_what_a_filter_drops_is_no_token_of_the_loss(tmp_path):
    trainer = exploring(tmp_path, "dynamic_sampling", kind=Recording, max_steps=1)
    trainer.train()
    (seen,) = trainer.calls
    verdict = (trainer._exploring.rewards_NF[:, 1] > 0.5).numpy().reshape(4, 4)
    mixed = verdict.any(1) & ~verdict.all(1)
    assert 0 < mixed.sum() < 4
    kept = seen.inputs["tool_mask"].bool().any(1)
    assert kept.sum() == 4 * mixed.sum()
    assert seen.inputs["num_items_in_batch"] == (seen.inputs["completion_mask"] * seen.inputs["tool_mask"]).sum()
    assert not seen.by_logp[~kept].any()


def test_two_passes_of_half_the_rows_are_one_pass_of_all(tmp_path):
    specs = Exploration(
        surrogate="gppo",
        regularisers=(f"{BONUS}:coef=0.05", "kl:kind=k2,coef=0.5"),
        weights=("forking_step:share=0.5",),
    )
    one = exploring(tmp_path / "one", exploration=specs)
    wanted = np.array(trained(one))[:, [1, 3]]
    two = exploring(tmp_path / "two", exploration=specs, per_device_train_batch_size=8, gradient_accumulation_steps=2)
    np.testing.assert_allclose(np.array(trained(two))[:, [1, 3]], wanted, rtol=2e-4)
    torch.testing.assert_close(weights(one), weights(two), rtol=1e-3, atol=1e-4)


def ones(logp_BT: torch.Tensor) -> torch.Tensor:
    """A term of somebody else's that is not 0 under the padding."""
    return torch.ones_like(logp_BT)


@pytest.mark.parametrize(("loss_type", "mean"), [("dapo", 1.0), ("bnpo", 1.0), ("grpo", 1.0)])
def test_nothing_under_the_padding_counts(tmp_path, loss_type, mean):
    chosen = Exploration(regularisers=(f"{__name__}:ones",))
    trainer = exploring(tmp_path, exploration=chosen, loss_type=loss_type, max_steps=1)
    trainer.train()
    line = next(line for line in trainer.state.log_history if "loss" in line)
    assert line["completions/min_length"] < line["completions/max_length"]
    assert line["equipoise/ones"] == pytest.approx(mean)


def test_tool_tokens_count_in_no_term(tmp_path):
    """A rollout function whose environment wrote every third token."""

    def rollout(prompts, trainer):
        gen = torch.Generator().manual_seed(0)
        ids = [trainer.processing_class(text=prompt)["input_ids"] for prompt in prompts]
        drawn = [torch.randint(3, 30, (9,), generator=gen).tolist() for _ in prompts]
        return {
            "prompt_ids": ids,
            "completion_ids": drawn,
            "logprobs": [[-1.0] * 9 for _ in prompts],
            "env_mask": [[1, 1, 0] * 3 for _ in prompts],
        }

    chosen = Exploration(regularisers=(f"{BONUS}:coef=0.5",))
    trainer = exploring(
        tmp_path, kind=Recording, exploration=chosen, rollout_func=rollout, max_steps=1, capture=tmp_path / "run"
    )
    trainer.train()
    (seen,) = trainer.calls
    hidden = seen.inputs["tool_mask"] == 0
    assert hidden.sum() == 16 * 3
    assert not seen.by_entropy[hidden].any()
    torch.testing.assert_close(seen.by_entropy[~hidden], torch.full((16 * 6,), -0.5 / (16 * 6)))
    logged = next(line for line in trainer.state.log_history if "entropy" in line)
    assert logged["equipoise/entropy_bonus"] == pytest.approx(-0.5 * logged["entropy"], rel=1e-5)
