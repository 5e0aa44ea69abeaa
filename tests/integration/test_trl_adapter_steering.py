"""Controllers and counters in real TRL runs: what they move, what a checkpoint keeps, and what is refused with one line."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch

pytest.importorskip("trl", reason="needs trl: pip install 'equipoise[trl]'")
pytestmark = pytest.mark.integration

from trl import GRPOTrainer  # noqa: E402
from trl_runs import PROMPTS, exploring, figures, make, trained, weights  # noqa: E402

from equipoise.adapters import versions  # noqa: E402
from equipoise.adapters.trl import Exploration, SteeringCallback, explore  # noqa: E402
from equipoise.base import Answer  # noqa: E402
from equipoise.errors import UsageError  # noqa: E402

BAND = (
    "band:low=5.0,high=6.0,step=0.01,max=1.0"  # a tiny model's entropy is 3.5 nats: the coefficient grows at every step
)


def first_letter(text: str) -> Answer | None:
    return Answer(text[0], (0, 1)) if text else None


def test_a_controller_moves_trls_entropy_bonus_from_the_step_after(tmp_path):
    steered = exploring(tmp_path / "a", BAND, max_steps=4)
    found = trained(steered)
    coefs = [line["equipoise/entropy_bonus.coef"] for line in steered.state.log_history if "loss" in line]
    assert coefs == pytest.approx([0.01, 0.02, 0.03, 0.04])
    plain = trained(make(tmp_path / "b", max_steps=4))
    assert found[0] == plain[0]  # nothing was observed before the first update
    assert found[1][0] == pytest.approx(
        plain[1][0] - 0.01 * plain[1][2], rel=1e-5
    )  # L - c H, the weights still the same
    assert found[2] != plain[2]


def test_the_callback_does_the_same_without_the_mixin(tmp_path):
    trainer = make(tmp_path / "a", max_steps=4)
    trainer.add_callback(SteeringCallback(trainer, [BAND]))
    found = trained(trainer)
    assert found == trained(exploring(tmp_path / "b", BAND, max_steps=4))
    assert trainer.entropy_coef == pytest.approx(0.04)


def test_the_clip_of_trls_loss_and_of_ours_is_moved(tmp_path):
    spec = "adaptive_clip:initial=9.0,start=0.2,max=1.0"  # entropy is below 9: doubled at every step
    theirs = exploring(tmp_path / "a", spec, max_steps=2, num_iterations=2)
    theirs.train()
    assert theirs.epsilon_high == pytest.approx(0.8)
    ours = exploring(tmp_path / "b", spec, "gppo", max_steps=2, num_iterations=2)
    ours.train()
    assert ours.epsilon_high == 0.2  # TRL's own, which no longer matters
    assert ours._exploring.steering.part_settings() == {"clip_high": pytest.approx(0.8)}


def test_the_entropy_budget_weighs_the_tokens_that_spend(tmp_path):
    """Below its target and before the scale is known no token may spend: their weight is 0."""
    trainer = exploring(tmp_path, "entropy_budget:target=9.0", max_steps=3)
    trainer.train()
    lines = [line for line in trainer.state.log_history if "loss" in line]
    assert [line["equipoise/entropy_budget.weight"] for line in lines[:2]] == [1.0, 0.0]
    batch = trainer._buffered_inputs[0]
    weight = batch["equipoise/given_weights"]
    assert set(weight.unique().tolist()) == {0.0, 1.0}


def test_the_budgets_moments_are_those_of_the_softmax(tmp_path):
    from equipoise.adapters.trl_step import token_moments

    trainer = exploring(tmp_path, max_steps=1, temperature=0.8)
    trainer.train()
    batch = trainer._buffered_inputs[0]
    logp, entropy, drift = token_moments(trainer, batch)
    row = torch.cat([batch["prompt_ids"][0], batch["completion_ids"][0]])[None]
    p = (trainer.model(row).logits[0].detach().double() / 0.8).softmax(-1)[batch["prompt_ids"].shape[1] - 1 : -1]
    for t in range(int(batch["completion_mask"][0].sum())):
        h = -sum(float(x) * float(x.log()) for x in p[t])
        assert entropy[0, t].item() == pytest.approx(h, rel=1e-4)
        assert drift[0, t].item() == pytest.approx(
            sum(float(x) ** 2 * (float(x.log()) + h) for x in p[t]), rel=1e-3, abs=1e-6
        )
        assert logp[0, t].item() == pytest.approx(float(p[t, batch["completion_ids"][0, t]].log()), rel=1e-4)


# ---------------------------------------------------------------- checkpoints


def test_resume_restores_controllers_and_counter(tmp_path):
    specs = [BAND, "ucb_mean:unless_all_right=False", "clip_cov_step:share=0.1,low=0.01,high=5.0"]
    settings = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "read": first_letter}
    whole = exploring(tmp_path / "whole", *specs, capture=tmp_path / "run", **settings)
    wanted = trained(whole)
    again = exploring(tmp_path / "again", *specs, **settings)
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert figures(again)[-2:] == wanted[-2:]
    assert torch.equal(weights(again), weights(whole))
    for name in ("steering", "shaper"):
        one, other = getattr(again._exploring, name), getattr(whole._exploring, name)
        assert getattr(one, "counter", one).state() == getattr(other, "counter", other).state()
    assert again.entropy_coef == pytest.approx(0.04)


def test_resume_of_the_callback(tmp_path):
    settings = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    first = make(tmp_path, **settings)
    first.add_callback(SteeringCallback(first, [BAND]))
    wanted = trained(first)
    second = make(tmp_path, **settings)
    second.add_callback(SteeringCallback(second, [BAND]))
    second.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert figures(second)[-2:] == wanted[-2:]


def test_a_record_that_went_on_too_far_is_rewound(tmp_path):
    import equipoise as eq

    settings = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "capture": tmp_path / "run"}
    exploring(tmp_path / "trl", **settings).train()
    again = exploring(tmp_path / "trl", **settings)
    again.train(resume_from_checkpoint=str(tmp_path / "trl" / "checkpoint-2"))
    steps = [step for batch in eq.read(tmp_path / "run").rollouts(["step"]) for step in batch.numbers("step")]
    assert {step: steps.count(step) for step in set(steps)} == {1: 16, 2: 16, 3: 16, 4: 16}


def test_a_checkpoint_without_our_state_is_refused(tmp_path):
    settings = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    make(tmp_path, **settings).train()
    with pytest.raises(UsageError, match="equipoise_controllers"):
        exploring(tmp_path / "b", BAND, **settings).train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))


def test_evaluation_feeds_neither_counter_nor_controller(tmp_path):
    trainer = exploring(
        tmp_path,
        "ucb_naive",
        BAND,
        read=first_letter,
        eval_dataset={"prompt": PROMPTS[:4], "gold": ["a"] * 4},
        max_steps=1,
    )
    trainer.train()
    before = (trainer._exploring.shaper.counter.state(), trainer._exploring.steering.state())
    trainer.evaluate()
    assert (trainer._exploring.shaper.counter.state(), trainer._exploring.steering.state()) == before
    assert sum(sum(held.values()) for held in before[0]["counts"].values()) == 16
    assert trainer._exploring._entropies is None  # nothing waits for the next step to be counted with it


# ---------------------------------------------------------------- refused with one line


class Warmer:
    """A controller that would move the temperature."""

    def observe(self, tally):
        pass

    def settings(self):
        return {"temperature": 1.1}

    def state(self):
        return {}


@pytest.mark.parametrize(
    ("asked", "settings", "told"),
    [
        (["brier"], {}, "reward function"),
        (["constant_length:length=99"], {}, "max_completion_length=12"),
        (["curriculum"], {}, "sampler"),
        (["scouting"], {}, "num_generations"),
        (["gppo", "cispo"], {}, "choose one"),
        (["band", "adaptive_entropy"], {}, "both move"),
        (["clip_higher"], {"epsilon_high": 0.5}, "in one place"),
        (["clip_higher"], {"loss_type": "cispo"}, "loss_type='cispo'"),
        (["adaptive_clip"], {"loss_type": "cispo"}, "does not clip by"),
        (["gppo"], {"top_entropy_quantile": 0.5}, "TRL's own loss"),
        (["batch_exploration"], {"correct": None}, "correct='…'"),
        (["band"], {"correct": "nobody"}, "unknown reward function 'nobody'"),
        (["module:thing"], {}, "Exploration(regularisers="),
        (Exploration(controllers=(f"{__name__}:Warmer",)), {}, "fused head"),
        (["reference_likelihood"], {}, "reference_reward"),
    ],
)  # fmt: skip
def test_what_cannot_act_is_refused_in_one_line(tmp_path, asked, settings, told):
    with pytest.raises(UsageError) as refused:
        exploring(tmp_path, exploration=asked, **settings)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("found", ["1.13.2", "1.17.0", "0.26.1", "2.0.0"])
def test_other_versions_fail_with_the_supported_range(tmp_path, monkeypatch, found):
    monkeypatch.setattr(versions, "version", lambda package: found)
    with pytest.raises(UsageError) as refused:
        exploring(tmp_path)
    assert (
        str(refused.value)
        == f"trl {found} is installed and trl >=1.14,<1.17 is supported: pip install 'trl>=1.14,<1.17'"
    )


def test_unsloth_is_told_apart(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "unsloth", ModuleType("unsloth"))
    with pytest.raises(UsageError, match="Unsloth replaces GRPOTrainer's loss"):
        make(tmp_path, explore(GRPOTrainer))
