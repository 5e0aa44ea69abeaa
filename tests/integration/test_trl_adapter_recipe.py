"""A whole recipe by its name in a real TRL run: its methods, its temperature and its average, where none is given."""

from __future__ import annotations

import logging

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("trl", reason="needs trl: pip install 'equipoise[trl]'")
pytestmark = pytest.mark.integration

from trl_runs import exploring, trained, weights  # noqa: E402

from equipoise.catalogue.paste import recipe_pastes  # noqa: E402
from equipoise.catalogue.table import recipes  # noqa: E402
from equipoise.errors import UsageError  # noqa: E402

SAVED = {"save_strategy": "steps", "save_steps": 3}
KL = "kl:coef=0.05,kind=exact"


def averaged(folder):
    return load_file(folder / "checkpoint-3" / "average" / "model.safetensors")


def warned(caplog):
    return [record.getMessage() for record in caplog.records]


def test_a_recipe_is_the_run_with_its_parts_spelled_out_and_says_what_it_sets_and_hands_over(tmp_path, caplog):
    spelled = exploring(tmp_path / "spelled", KL, average=0.99, temperature=0.5, **SAVED)
    wanted = trained(spelled)
    with caplog.at_level(logging.WARNING, "equipoise"):
        ours = exploring(tmp_path / "ours", recipe="preserve", **SAVED)
    found = trained(ours)
    assert found == wanted
    assert torch.equal(weights(ours), weights(spelled))
    plain = averaged(tmp_path / "spelled")
    assert all(torch.equal(tensor, plain[name]) for name, tensor in averaged(tmp_path / "ours").items())
    told = [line for line in warned(caplog) if "preserve" in line]
    assert told == [
        "equipoise: preserve samples and learns at temperature 0.5 in place of TRL's 1",
        f"equipoise: preserve hands over the average: {tmp_path / 'ours' / 'checkpoint-N' / 'average'}",
    ]
    assert (ours.temperature, ours.args.temperature) == (0.5, 0.5)
    hot = trained(exploring(tmp_path / "hot", KL, average=0.99, **SAVED))
    assert hot != wanted


def test_what_is_given_wins_over_the_recipe(tmp_path, caplog):
    own = exploring(tmp_path, "rare_replay:rows=8,coef=0.25", "batch_exploration", recipe="preserve", average=0.5)
    (lessons,) = own._exploring.lessons
    assert (lessons.shelf.rows, lessons.shelf.coef) == (8, 0.25)
    assert own._exploring.exact_kl is not None  # the recipe's own
    assert own.average.decay == 0.5
    with caplog.at_level(logging.WARNING, "equipoise"):
        kl = exploring(tmp_path, "kl:coef=0.3,kind=k2", recipe="preserve", temperature=0.8)
    assert kl._exploring.exact_kl is None
    assert (kl.average.decay, kl.temperature) == (0.99, 0.8)
    assert "equipoise: preserve was measured at temperature 0.5, and this run has 0.8, which stays" in warned(caplog)
    grpo = exploring(tmp_path, recipe="grpo")
    assert (grpo.average, grpo.temperature) == (None, 1)


def test_a_recipe_without_its_average_has_the_rest_of_it(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "equipoise"):
        own = exploring(tmp_path, recipe="preserve", average="none")
    assert own.average is None
    assert own._exploring.exact_kl is not None
    assert own.temperature == 0.5
    assert not any("hands over" in line for line in warned(caplog))


@pytest.mark.parametrize("recipe", recipes(), ids=lambda recipe: recipe.name)
def test_the_adapter_takes_every_recipe_that_has_a_line_and_refuses_the_others(tmp_path, recipe):
    found = next((each for each in recipe_pastes(recipe) if each.host == "trl"), None)
    if found is None:
        with pytest.raises(UsageError, match="cannot be added to a TRL run"):
            exploring(tmp_path, recipe=recipe.name)
        return
    trainer = exploring(tmp_path, recipe=recipe.name, correct="right" if "correct=" in found.lines[0] else None)
    assert trainer._exploring is not None


def test_an_unknown_recipe_is_one_line(tmp_path):
    with pytest.raises(UsageError, match="unknown recipe 'presrve': did you mean 'preserve'"):
        exploring(tmp_path, recipe="presrve")
    assert exploring(tmp_path, recipe="preserve", correct=None)._exploring is not None  # it asks for no verdicts
