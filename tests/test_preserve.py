"""A whole recipe by its name, and a run that hands over a blend of its base and its weights."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs the extra train: pip install 'equipoise[train]'")

from safetensors.torch import load_file  # noqa: E402
from slow_training import newest  # noqa: E402
from tiny_training import TASK, config_of, read_metrics, read_rollouts  # noqa: E402
from torch import nn  # noqa: E402

import equipoise as eq  # noqa: E402
from equipoise.config import load_config  # noqa: E402
from equipoise.errors import UsageError, UsageErrors  # noqa: E402
from equipoise.lab.sample import sample  # noqa: E402
from equipoise.models.blending import wearing  # noqa: E402
from equipoise.models.checkpoint import load_gpt, save_gpt  # noqa: E402
from equipoise.tasks.table import find_task  # noqa: E402
from equipoise.training.evaluate import evaluate  # noqa: E402
from equipoise.training.loop import train  # noqa: E402
from equipoise.training.opening import open_model  # noqa: E402
from equipoise.training.recipe import TrainConfig  # noqa: E402

PRESERVE = {"regularisers": ("kl:coef=0.05,kind=exact",)}


def between(base, trained, share):
    """By hand, in float64: (1 − share) base + share trained."""
    return {name: (1 - share) * base[name].double() + share * end.double() for name, end in trained.items()}


def assert_weights(found, wanted, *, apart_from=None):
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name].double(), tensor, rtol=0, atol=1e-6)
    if apart_from is not None:
        assert max(float((found[name] - apart_from[name]).abs().max()) for name in found) > 1e-5


def assert_evaluated(folder: Path, weights: Path, *, step: int, how):
    """The log of a step is what an evaluation of a model file says."""
    model, tokens = load_gpt(weights)
    (found,) = evaluate(model, tokens, find_task(TASK), how, max_tokens=9)
    (line,) = (line for line in read_metrics(folder) if line["step"] == step and "eval/pass@1" in line)
    for name, value in found.metrics().items():
        if value is None or line[name] is None:
            assert value is line[name] is None
        else:
            assert math.isclose(line[name], value, rel_tol=1e-5), name
    return found


# ---------------------------------------------------------------- what a run hands over


@pytest.mark.parametrize(("ema", "end"), [(0.8, "ema"), (None, "model")])
def test_a_run_hands_over_a_share_of_the_way_from_its_base_and_trains_as_without(tmp_path, run, model, ema, end):
    settings = {"steps": 4, "lr": 1e-2, "ema": ema}
    plain, folder = run(learning=settings), run(learning={**settings, "blend": 0.7})
    for name in ("model", "optimiser"):
        assert all(torch.equal(tensor, newest(folder, name)[key]) for key, tensor in newest(plain, name).items())
    assert not any(path.name == "blend.safetensors" for path in plain.rglob("*"))

    base, tokens = load_gpt(model)
    how = config_of(tmp_path, model).evaluation
    for step in (2, 4):
        checkpoint = folder / "checkpoints" / f"step={step:06d}"
        blend = load_file(checkpoint / "blend.safetensors")
        wanted = between(base.state_dict(), load_file(checkpoint / f"{end}.safetensors"), 0.7)
        assert_weights(blend, wanted, apart_from=load_file(checkpoint / "model.safetensors"))
        handed = load_gpt(model)[0]
        handed.load_state_dict(blend)
        save_gpt(tmp_path / f"{step}.safetensors", handed, tokens)
        found = assert_evaluated(folder, tmp_path / f"{step}.safetensors", step=step, how=how)
    drawn = [row for row in read_rollouts(folder) if row["split"] == "test" and row["step"] == 4]
    assert [row["completion"] for row in drawn] == [
        tokens.decode([int(token) for token, there in zip(ids, mask, strict=True) if there])
        for ids, mask in zip(found.batch.samples.ids_BT, found.batch.samples.mask_BT, strict=True)
    ]
    # What training drew and logged is the plain run's.
    of_training = [[row for row in read_rollouts(each) if row["split"] == "train"] for each in (plain, folder)]
    assert [row["completion"] for row in of_training[0]] == [row["completion"] for row in of_training[1]]
    logged = [[line["loss"] for line in read_metrics(each) if "loss" in line] for each in (plain, folder)]
    assert logged[0] == logged[1]


def test_whoever_opens_the_run_gets_what_it_handed_over_and_the_next_run_begins_with_it(tmp_path, run):
    folder = run(learning={"steps": 2, "lr": 1e-2, "ema": 0.5, "blend": 0.7})
    blend = newest(folder, "blend")
    opened = open_model(folder)
    assert opened.step == 2
    assert all(torch.equal(tensor, blend[name]) for name, tensor in opened.loaded.model.state_dict().items())
    after = config_of(tmp_path / "next", folder, learning={"steps": 0})
    train(after)
    alone = config_of(tmp_path / "alone", tmp_path / "alone.safetensors", learning={"steps": 0})
    save_gpt(tmp_path / "alone.safetensors", opened.loaded.model, opened.loaded.tokens)
    train(alone)
    assert read_metrics(after.out) == read_metrics(alone.out)
    texts = []
    for name in (folder, alone.model):
        out = tmp_path / f"pool{len(texts)}"
        sample(name, TASK, out, problems=3, samples=4, max_tokens=9)
        texts.append([row["completion"] for row in read_rollouts(out)])
    assert texts[0] == texts[1]


def test_a_blend_begins_at_what_supervised_training_left(run):
    taught = {"problems": 16, "steps": 3, "batch": 8, "warmup": 1, "lr": 1e-2}
    folder = run(sft=taught, learning={"steps": 2, "lr": 1e-2, "blend": 0.5})
    first = load_file(folder / "checkpoints" / "step=000000" / "model.safetensors")
    assert not (folder / "checkpoints" / "step=000000" / "blend.safetensors").exists()
    assert_weights(newest(folder, "blend"), between(first, newest(folder), 0.5), apart_from=newest(folder))


def test_a_run_resumed_at_its_end_tells_of_what_it_hands_over(tmp_path, model):
    config = config_of(tmp_path / "run", model, learning={"steps": 2, "lr": 1e-2, "ema": 0.5, "blend": 0.7})
    once, again = train(config), train(config, resume=True)
    assert once.to_dict()["after"] == again.to_dict()["after"]
    other = config_of(tmp_path / "run", model, learning={"steps": 2, "lr": 1e-2, "ema": 0.5, "blend": 0.8})
    with pytest.raises(UsageError, match=r"learning\.blend was 0\.7 and is 0\.8"):
        train(other, resume=True)


def test_a_model_wears_other_weights_for_a_while_and_then_its_own_again():
    model = nn.Linear(2, 1, bias=False)
    own, place = model.weight.detach().clone(), model.weight.data_ptr()
    with wearing(model, {"weight": torch.tensor([[3.0, 4.0]])}):
        assert model(torch.tensor([1.0, 2.0])).item() == 11
        assert model.weight.data_ptr() == place
    assert torch.equal(model.weight, own)

    def fail():
        with wearing(model, {"weight": torch.tensor([[3.0, 4.0]])}):
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert torch.equal(model.weight, own)
    with wearing(model, None):
        assert torch.equal(model.weight, own)


# ---------------------------------------------------------------- a whole recipe by its name


def test_a_recipe_is_its_methods_its_temperature_and_its_average(tmp_path):
    config = TrainConfig(out=tmp_path, recipe="preserve")
    assert {name: getattr(config.method, name) for name in PRESERVE} == PRESERVE
    assert (config.learning.ema, config.learning.blend) == (0.99, 1)  # all of the way: the average itself
    assert config.sampling.temperature == 0.5
    assert config.method == eq.recipe("preserve")
    spelled = TrainConfig(
        out=tmp_path, method=PRESERVE, sampling={"temperature": 0.5}, learning={"ema": 0.99, "blend": 1}
    )
    assert spelled == config.model_copy(update={"recipe": None})
    assert TrainConfig.model_validate_json(config.model_dump_json()) == config
    plain = TrainConfig(out=tmp_path)
    assert (plain.recipe, plain.learning.ema, plain.learning.blend, plain.sampling.temperature) == (None, None, None, 1)
    grpo = TrainConfig(out=tmp_path, recipe="grpo")
    assert (grpo.learning, grpo.sampling) == (plain.learning, plain.sampling)


def test_settings_that_are_given_win_over_the_recipe(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text(
        'out = "a"\nrecipe = "preserve"\n[method]\nregularisers = ["kl:coef=0.2"]\n[learning]\nsteps = 7\nema = 0.9\n'
        "[sampling]\nsamples = 8\n"
    )
    config = load_config(TrainConfig, path=path, overrides=["learning.lr=1e-3"])
    assert config.method.regularisers == ("kl:coef=0.2",)
    assert (config.learning.steps, config.learning.lr) == (7, 1e-3)
    assert (config.learning.ema, config.learning.blend) == (0.9, 1)
    assert (config.sampling.samples, config.sampling.temperature) == (8, 0.5)
    off = ["learning.ema=none", "learning.blend=none", "method.regularisers=[]", "sampling.temperature=0.8"]
    bare = load_config(TrainConfig, path=path, overrides=off)
    assert (bare.learning.ema, bare.learning.blend, bare.method.regularisers) == (None, None, ())
    assert bare.sampling.temperature == 0.8
    none = load_config(TrainConfig, path=path, overrides=["recipe=none"])
    assert (none.learning.blend, none.sampling.temperature) == (None, 1)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["recipe=presrve"], "recipe = \"presrve\": unknown recipe 'presrve': did you mean 'preserve'?"),
        (["recipe=preserve", "learning.updates=99"], "learning.updates 99 must not exceed sampling.prompts 64"),
        (["learning.blend=0"], "learning.blend = 0: needs a number or \"none\" > 0 and <= 1"),
        (["learning.blend=1.5"], "learning.blend = 1.5: needs a number or \"none\" > 0 and <= 1"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_in_one_line(words, told):
    with pytest.raises(UsageErrors) as caught:
        load_config(TrainConfig, overrides=["out=a", *words])
    (line,) = str(caught.value).splitlines()
    assert told in line


def test_the_command_trains_a_recipe_and_says_what_it_hands_over(equipoise, tmp_path, model):
    words = [
        *("recipe=preserve", f"out={tmp_path / 'run'}", f"model={model}", f"task={TASK}", "learning.steps=2"),
        *("sampling.prompts=6", "sampling.samples=6", "sampling.max_tokens=9", "evaluation.problems=6"),
        *("evaluation.samples=6", "learning.ema=0.5"),
    ]
    done = equipoise("train", *words)
    assert done.code == 0, done.err
    assert done.out.splitlines()[-1] == "handed over: the average of the weights (0.5)"
    settings = json.loads((tmp_path / "run" / "run.json").read_text())["settings"]
    assert (settings["recipe"], settings["learning"]["blend"], settings["sampling"]["temperature"]) == (
        "preserve", 1, 0.5
    )  # fmt: skip
    folder = tmp_path / "run"
    average = {name: tensor.double() for name, tensor in newest(folder, "ema").items()}
    assert_weights(newest(folder, "blend"), average, apart_from=newest(folder))
    # Spelled out it is the same run, which may go on without the recipe's name.
    spelled = [word for word in words if not word.startswith("recipe=")]
    more = ["method.regularisers=[\"kl:coef=0.05,kind=exact\"]", "sampling.temperature=0.5"]  # fmt: skip
    assert equipoise("train", *spelled, *more, "learning.blend=1", "--resume").code == 0
    part = equipoise("train", *spelled, "learning.blend=0.7", f"out={tmp_path / 'part'}")
    assert part.out.splitlines()[-1] == "handed over: 0.7 of the way from the base to the average of the weights (0.5)"
    none = equipoise("train", *spelled, f"out={tmp_path / 'none'}")
    assert "handed over" not in none.out
