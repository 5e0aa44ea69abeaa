"""Completions that are imitated and the exact KL in real TRL runs: what is added to the loss is what a slow loop over single rows makes of it."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("trl", reason="needs trl: pip install 'equipoise[trl]'")
pytestmark = pytest.mark.integration

from trl import GRPOTrainer  # noqa: E402
from trl_runs import exploring, figures, length, make, right, trained, weights  # noqa: E402

import equipoise as eq  # noqa: E402
from equipoise.adapters.trl import Exploration, ExplorationMixin  # noqa: E402
from equipoise.adapters.trl_exact_kl import refuse_sharded  # noqa: E402
from equipoise.errors import UsageError  # noqa: E402

ALL = "rare_replay:most_rate=1,rows=1000,coef=0.5"
PASSES = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "steps_per_generation": 4, "max_steps": 4}
OFF_POLICY = {"num_iterations": 2, "max_steps": 4}
TWO_PASSES = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2}


class Drawn:
    """A reward function that remembers what it was asked: prompts, token ids and verdicts of every generation batch."""

    __name__ = "right"

    def __init__(self) -> None:
        self.batches: list[list[tuple[str, tuple[int, ...], bool]]] = []

    def __call__(self, prompts, completions, completion_ids, **columns) -> list[float]:
        found = right(completions)
        rows = zip(prompts, completion_ids, found, strict=True)
        self.batches.append([(prompt, tuple(ids), said == 1.0) for prompt, ids, said in rows])
        return found


class Weighed(ExplorationMixin, GRPOTrainer):
    """What each pass added to TRL's own loss, with its gradient, and the token ids of every forward pass that it took."""

    def _compute_loss(self, model, inputs):
        self.rows: list[Any] = []
        loss = super()._compute_loss(model, inputs)
        passed = list(self.rows)
        metrics = {name: list(values) for name, values in self._metrics["train"].items()}
        beta, self.beta = self.beta, 0.0  # TRL's own loss without a KL of its own
        added = loss - GRPOTrainer._compute_loss(self, model, inputs)
        self.beta = beta
        self._metrics["train"].update(metrics)  # TRL's own, counted once
        parameters = list(model.parameters())
        grads = torch.autograd.grad(added, parameters, retain_graph=True, allow_unused=True, materialize_grads=True)
        call = SimpleNamespace(inputs=dict(inputs), added=added.item(), grads=grads, passed=passed)
        call.slow = self.slowly(model, inputs, passed[1:])
        self.__dict__.setdefault("calls", []).append(call)
        return loss

    def slowly(self, model, inputs, passed) -> Any:
        """−Σ ln π of the rows of the second pass, one unpadded row at a time."""
        total, taught, tokens = torch.zeros(()), [], 0
        for ids, mask, width in passed:
            for row, there in zip(ids, mask.bool(), strict=True):
                ends = int(there[-width:].sum())
                real = row[there]
                logp = (model(real[None]).logits[0, -ends - 1 : -1].float() / self.temperature).log_softmax(-1)
                total = total - sum(logp[t, token] for t, token in enumerate(real[-ends:]))
                taught.append((tuple(real[:-ends].tolist()), tuple(real[-ends:].tolist())))
                tokens += ends
        if not taught:
            return SimpleNamespace(value=0.0, grads=None, rows=[], tokens=0)
        grads = torch.autograd.grad(total, list(model.parameters()), allow_unused=True, materialize_grads=True)
        return SimpleNamespace(value=total.item(), grads=grads, rows=taught, tokens=tokens)

    def _get_per_token_logps_and_entropies(self, model, ids, mask, width, **more):
        if hasattr(self, "rows"):
            self.rows.append((ids, mask, width))
        return super()._get_per_token_logps_and_entropies(model, ids, mask, width, **more)


def kept_of(trainer, batch, *, most_right: int = 4):
    """(prompt ids, completion ids) of the right completions of groups of four with at most so many right, each once."""
    kept: dict[Any, None] = {}
    for first in range(0, len(batch), 4):
        group = batch[first : first + 4]
        if sum(said for _, _, said in group) <= most_right:
            for prompt, ids, said in group:
                if said:
                    kept[tuple(trainer.processing_class(text=prompt)["input_ids"]), ids] = None
    return list(kept)


# ---------------------------------------------------------------- replay


@pytest.mark.parametrize("settings", [{}, OFF_POLICY, TWO_PASSES, PASSES, {"loss_type": "grpo", "temperature": 0.8}])
def test_what_is_imitated_equals_a_slow_loop_over_single_rows(tmp_path, settings):
    drawn = Drawn()
    trainer = exploring(tmp_path, ALL, kind=Weighed, rewards=[drawn], **settings)
    trainer.train()
    args = trainer.args
    per_batch = args.steps_per_generation * args.num_iterations
    batches = [trainer.calls[first : first + per_batch] for first in range(0, len(trainer.calls), per_batch)]
    assert len(batches) >= 2
    known: list[Any] = []
    for number, calls in enumerate(batches):
        # Every kept completion of the batches before is in exactly one pass; those of the batch itself are in none.
        assert sorted(row for call in calls for row in call.slow.rows) == sorted(known)
        lesson = sum(call.slow.tokens for call in calls)
        assert lesson == sum(len(ids) for _, ids in known)
        for call in calls:
            own = float(call.inputs["num_items_in_batch"])
            updates = per_batch // args.gradient_accumulation_steps
            tokens = own * args.gradient_accumulation_steps / args.steps_per_generation + lesson / updates
            assert call.added == pytest.approx(0.5 * call.slow.value / tokens, rel=2e-4, abs=2e-6)
            if call.slow.rows:
                for found, wanted in zip(call.grads, call.slow.grads, strict=True):
                    torch.testing.assert_close(found, 0.5 * wanted / tokens, rtol=1e-3, atol=1e-6)
        known += [row for row in kept_of(trainer, drawn.batches[number]) if row not in known]
    assert batches[1][0].slow.rows


def test_what_is_kept_are_right_completions_of_groups_with_few(tmp_path):
    drawn = Drawn()
    trainer = exploring(tmp_path, "rare_replay:size=3,rows=2", rewards=[drawn], max_steps=4)
    trainer.train()
    kept: list[Any] = []
    for batch in drawn.batches:
        kept += [row for row in kept_of(trainer, batch, most_right=1) if row not in kept]
        kept = kept[-3:]
    shelf = trainer._exploring.lessons[0].shelf
    assert [(tuple(prompt), tuple(ids)) for _, prompt, ids in shelf.kept] == kept != []
    lines = [line for line in trainer.state.log_history if "loss" in line]
    assert lines[0]["equipoise/rare_replay/rows"] == 0
    assert lines[-1]["equipoise/rare_replay/kept"] == len(kept)
    assert 0 < lines[-1]["equipoise/rare_replay/rows"] <= 2
    assert lines[-1]["equipoise/rare_replay/nll"] > 0


@pytest.mark.parametrize("settings", [{}, OFF_POLICY, PASSES, {"loss_type": "grpo"} | TWO_PASSES])
def test_coefficients_of_zero_leave_the_run_bit_for_bit(tmp_path, settings):
    plain = make(tmp_path / "plain", **settings)
    wanted = trained(plain)
    specs = ("rare_replay:most_rate=1,coef=0", "base_anchor:coef=0", "kl:kind=exact,coef=0.0")
    ours = exploring(tmp_path / "ours", *specs, average=0.9, **settings)
    assert trained(ours) == wanted
    assert torch.equal(weights(plain), weights(ours))
    assert ours._exploring.lessons[0].shelf.kept


def test_two_passes_of_half_the_rows_are_one_pass_of_all(tmp_path):
    specs = (ALL, "kl:kind=exact,coef=0.5")
    one = exploring(tmp_path / "one", *specs)
    wanted = np.array(trained(one))[:, [1, 3]]
    two = exploring(tmp_path / "two", *specs, **TWO_PASSES)
    np.testing.assert_allclose(np.array(trained(two))[:, [1, 3]], wanted, rtol=2e-4)
    torch.testing.assert_close(weights(one), weights(two), rtol=1e-3, atol=1e-4)


def test_resume_restores_what_is_kept(tmp_path):
    specs = (ALL, "kl:kind=exact,coef=0.5")
    settings = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    whole = exploring(tmp_path / "whole", *specs, **settings)
    wanted = trained(whole)
    again = exploring(tmp_path / "again", *specs, **settings)
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert figures(again)[-2:] == wanted[-2:]
    assert torch.equal(weights(again), weights(whole))
    assert again._exploring.lessons[0].state() == whole._exploring.lessons[0].state()
    saved = json.loads((tmp_path / "whole" / "checkpoint-2" / "equipoise_rare_replay.json").read_text())
    assert saved["batches"] == 2
    assert saved["kept"]
    make(tmp_path / "plain", **settings | {"max_steps": 2}).train()
    with pytest.raises(UsageError, match="equipoise_rare_replay"):
        exploring(tmp_path / "b", ALL, **settings).train(
            resume_from_checkpoint=str(tmp_path / "plain" / "checkpoint-2")
        )


def test_a_recipe_with_demonstrations_is_a_recipe_here(tmp_path):
    recipe = eq.recipe(
        "grpo", regularisers=["kl:coef=0.05,kind=exact"], demonstrations=["rare_replay:rows=192,coef=0.5"]
    )
    trainer = exploring(tmp_path, exploration=recipe, capture=tmp_path / "run", average=0.9)
    trainer.train()
    assert trainer._exploring.lessons[0].shelf.rows == 192
    told = json.loads((tmp_path / "run" / "run.json").read_text())["settings"]
    assert {"kl:coef=0.05,kind=exact", "rare_replay:rows=192,coef=0.5"} <= set(told["exploration"])
    assert told["average"] == 0.9


def test_evaluation_keeps_nothing(tmp_path):
    trainer = exploring(tmp_path, ALL, max_steps=1, eval_dataset={"prompt": ["1+1=?"] * 4, "gold": ["a"] * 4})
    trainer.train()
    before = json.dumps(trainer._exploring.lessons[0].state())
    told = trainer.evaluate()
    assert json.dumps(trainer._exploring.lessons[0].state()) == before
    assert not any("rare_replay" in name for name in told)


# ---------------------------------------------------------------- the anchor


def test_the_base_model_s_right_completions_are_drawn_before_the_first_step(tmp_path):
    drawn = Drawn()
    trainer = exploring(
        tmp_path, "base_anchor:problems=9,rows=1000,coef=0.25", kind=Weighed, rewards=[drawn], max_steps=2
    )
    trainer.train()
    # Nine problems in batches of four: three batches of 16 completions, then the two of the run.
    assert len(drawn.batches) == 3 + 2
    prompts = [prompt for batch in drawn.batches[:3] for prompt, _, _ in batch[::4]]
    assert len(set(prompts)) > 4  # the dataset has each of its 16 prompts twice
    wanted = [
        (tuple(trainer.processing_class(text=prompt)["input_ids"]), ids)
        for batch in drawn.batches[:3]
        for prompt, ids, said in batch
        if said
    ]
    kept = trainer._exploring.lessons[0].shelf.kept
    assert [(tuple(prompt), tuple(ids)) for _, prompt, ids in kept] == wanted != []
    for call in trainer.calls:  # all of them in every step, the first included
        assert sorted(call.slow.rows) == sorted(wanted)
        tokens = float(call.inputs["num_items_in_batch"]) + call.slow.tokens
        assert call.added == pytest.approx(0.25 * call.slow.value / tokens, rel=2e-4)
    first = next(line for line in trainer.state.log_history if "loss" in line)
    assert first["equipoise/base_anchor/drawn"] == 48
    assert first["equipoise/base_anchor/rows"] == len(wanted)
    assert first["reward"] == pytest.approx(
        np.mean([said for _, _, said in drawn.batches[3]])
    )  # of its own batch alone


def test_an_anchor_is_drawn_once_and_goes_with_the_checkpoint(tmp_path):
    specs = ("base_anchor:problems=4,rows=3,once=True", "rare_replay:most_rate=1,rows=4")
    settings = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    whole = exploring(tmp_path / "whole", *specs, **settings)
    wanted = trained(whole)
    drawn = Drawn()
    again = exploring(tmp_path / "again", *specs, rewards=[length, drawn], **settings)
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert len(drawn.batches) == 2
    assert figures(again)[-2:] == wanted[-2:]
    assert torch.equal(weights(again), weights(whole))
    kept = whole._exploring.lessons[0].state()["kept"]
    assert again._exploring.lessons[0].state()["kept"] == kept
    assert len({(name, tuple(ids)) for name, _, ids in kept}) == len(kept)


# ---------------------------------------------------------------- the exact KL


@pytest.mark.parametrize(
    "settings", [{}, {"temperature": 0.7, "loss_type": "grpo"} | OFF_POLICY, {"gradient_checkpointing": True}]
)
def test_the_exact_kl_equals_both_softmaxes(tmp_path, settings):
    trainer = exploring(tmp_path, "kl:kind=exact,coef=0.3", kind=Weighed, **settings)

    def slowly(model, inputs, passed):
        """Σ over tokens of Σ_v p (ln p − ln q), divided as TRL divides, one unpadded row at a time."""
        sums, counts = [], []
        for b, mask in enumerate(inputs["completion_mask"].bool()):
            prompt = inputs["prompt_ids"][b][inputs["prompt_mask"][b].bool()]
            row = torch.cat([prompt, inputs["completion_ids"][b][mask]])
            p, q = (
                (each(row[None]).logits[0, len(prompt) - 1 : -1].double() / trainer.temperature).log_softmax(-1)
                for each in (model, trainer.ref_model)
            )
            sums.append((p.exp() * (p - q.detach())).sum())
            counts.append(len(row) - len(prompt))
        if trainer.loss_type == "grpo":
            value = sum(s / n for s, n in zip(sums, counts, strict=True)) / len(sums)
        else:
            value = sum(sums) / sum(counts)
        grads = torch.autograd.grad(value, list(model.parameters()), allow_unused=True, materialize_grads=True)
        return SimpleNamespace(value=value.item(), grads=grads)

    trainer.slowly = slowly
    trainer.train()
    assert trainer.calls[0].slow.value == pytest.approx(0, abs=1e-6)
    assert trainer.calls[-1].slow.value > 1e-3
    for call in trainer.calls:
        assert call.added == pytest.approx(0.3 * call.slow.value, rel=1e-4, abs=1e-6)
        for found, wanted in zip(call.grads, call.slow.grads, strict=True):
            torch.testing.assert_close(found, 0.3 * wanted, rtol=2e-3, atol=2e-6)
    line = next(line for line in reversed(trainer.state.log_history) if "loss" in line)
    assert line["equipoise/kl"] == pytest.approx(trainer.calls[-1].added, rel=1e-3)


def test_a_head_that_is_more_than_linear_is_refused(tmp_path, monkeypatch):
    from transformers import Gemma2Config, Gemma2ForCausalLM

    def soft_capped(tokenizer):
        torch.manual_seed(0)
        sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
        more = {"num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 64, "vocab_size": len(tokenizer)}
        ends = {"bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0}
        model = Gemma2ForCausalLM(Gemma2Config(final_logit_softcapping=0.1, **sizes, **more, **ends))
        model.save_pretrained(tmp_path / "gemma")
        return Gemma2ForCausalLM.from_pretrained(tmp_path / "gemma")

    monkeypatch.setattr("tiny.tiny_model", soft_capped)
    with pytest.raises(UsageError, match=r"states · weight \+ bias"):
        exploring(tmp_path, "kl:kind=exact", max_steps=1).train()


def test_weights_in_shards_are_refused():
    model = torch.nn.Linear(2, 2)
    refuse_sharded(model, needed_by="an exact kl")
    model.weight.ds_id = 0  # as ZeRO-3 marks a parameter
    with pytest.raises(UsageError, match="an exact kl needs whole weights on every rank"):
        refuse_sharded(model, needed_by="an exact kl")


# ---------------------------------------------------------------- refused with one line


@pytest.mark.parametrize(
    ("asked", "settings", "told"),
    [
        (["rare_replay"], {"correct": None}, "rare_replay asks which completions are right"),
        (["base_anchor"], {"correct": None}, "base_anchor asks which completions are right"),
        (["critique_loop"], {}, "second tries"),
        (["critique_data"], {}, "before a run"),
        (["rare_replay", "rare_replay:coef=1"], {}, "choose one"),
        (Exploration(demonstrations=("critique_loop:coef=2",)), {}, "critique_loop:coef=2 cannot be added"),
        (["rare_replay:rows=0"], {}, "rows >= 1"),
        (Exploration(demonstrations=(f"{__name__}:Drawn",)), {}, "Drawn is no shelf"),
        ([], {"average": 1.0}, "0 < decay < 1"),
    ],
)  # fmt: skip
def test_what_cannot_act_is_refused_in_one_line(tmp_path, asked, settings, told):
    with pytest.raises(UsageError) as refused:
        exploring(tmp_path, exploration=asked, **settings)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


def test_tokens_of_tools_are_not_learnt_again(tmp_path):
    def rollout(prompts, trainer):
        ids = [trainer.processing_class(text=prompt)["input_ids"] for prompt in prompts]
        return {
            "prompt_ids": ids,
            "completion_ids": [[20, 21, 22] for _ in prompts],
            "logprobs": [[-1.0] * 3 for _ in prompts],
            "env_mask": [[1, 0, 1] for _ in prompts],
        }

    trainer = exploring(tmp_path, "rare_replay", rollout_func=rollout, max_steps=1)
    with pytest.raises(UsageError, match="tokens that a tool wrote"):
        trainer.train()
