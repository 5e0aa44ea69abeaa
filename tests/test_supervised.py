"""Supervised training inside a run and a study: its gradient in parts, its checkpoint, what begins with it, and run folders as models."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors", reason="needs safetensors: pip install 'equipoise[train]'")

from test_training_resume import KILLER  # noqa: E402
from tiny_training import TASK, TOKENS, config_of, read_metrics, read_rollouts  # noqa: E402

from equipoise.base import Completion, Grade, Problem, Rollout  # noqa: E402
from equipoise.config import load_config  # noqa: E402
from equipoise.errors import UsageError  # noqa: E402
from equipoise.lab.blend import blend  # noqa: E402
from equipoise.lab.demonstrations import write_demonstrations  # noqa: E402
from equipoise.lab.open_model import open_sampler  # noqa: E402
from equipoise.lab.study import study  # noqa: E402
from equipoise.lab.study_config import StudyConfig  # noqa: E402
from equipoise.lab.study_page import page  # noqa: E402
from equipoise.models.characters import END, Characters  # noqa: E402
from equipoise.models.checkpoint import save_gpt  # noqa: E402
from equipoise.models.gpt import GPT, GPTConfig  # noqa: E402
from equipoise.rollouts.folder import open_folder  # noqa: E402
from equipoise.tasks.table import find_task  # noqa: E402
from equipoise.training.checkpoints import complete_checkpoints, load_checkpoint, load_weights  # noqa: E402
from equipoise.training.loop import train  # noqa: E402
from equipoise.training.opening import open_model  # noqa: E402
from equipoise.training.recipe import Supervised, TrainConfig  # noqa: E402
from equipoise.training.sft import _add_gradient, _encode, fine_tune, make_pairs  # noqa: E402
from equipoise.training.supervise import pairs_of, read_pairs  # noqa: E402

SFT = {"problems": 64, "steps": 40, "batch": 32, "lr": 1e-2, "warmup": 5, "rows": 32}
PAIRS = [("1,2=3>", "1+2"), ("9>", "9"), ("4,5=1>", "5-4"), ("7=7>", "7"), ("1,1,2=4>", "1+1+2")]


@pytest.fixture(scope="module")
def random_model(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("model") / "random.safetensors"
    save_gpt(path, GPT(GPTConfig(TOKENS.size, width=32, layers=1, heads=2, context=32)), TOKENS)
    return path


def config(out: Path, model: Path, **changes) -> TrainConfig:
    changes = {"method": {"regularisers": ["kl:coef=0.1,kind=exact"]}, **changes}
    return config_of(out, model, sft={**SFT, **changes.pop("sft", {})}, **changes)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, random_model) -> Path:
    """Supervised training and four steps of RL that nothing stopped."""
    out = tmp_path_factory.mktemp("whole") / "run"
    train(config(out, random_model, learning={"steps": 4}))
    return out


def equal(one: dict, other: dict) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def by_hand(random_model: Path) -> dict:
    """The same supervised training, called directly."""
    loaded = open_model(random_model).loaded
    pairs = make_pairs(find_task(TASK), seed=("sft", 0), n=64)
    fine_tune(loaded.model, loaded.tokens, pairs, steps=40, batch=32, lr=1e-2, seed=0, warmup=5)
    return loaded.model.state_dict()


# --- the gradient


def slow_gradient(model: GPT) -> list:
    """Pair by pair without padding, log-probs from plain logits."""
    total, count = torch.zeros((), dtype=torch.float64), 0
    for prompt, text in PAIRS:
        asked, answer = TOKENS.encode(prompt), [*TOKENS.encode(text), END]
        ids = torch.tensor([[*asked, *answer]])
        n = ids.shape[1]
        causal = torch.full((n, n), -torch.inf, dtype=torch.float64).triu(1)[None, None]
        logits = model(ids, torch.arange(n)[None], causal)[0] @ model.embed.weight.T
        logits[:, 0] = -torch.inf  # padding is never a token
        for position, token in enumerate(answer, start=len(asked)):
            total = total - logits[position - 1].log_softmax(-1)[token]
            count += 1
    loss = total / count
    return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))]


@pytest.mark.parametrize("rows", [1, 2, 4, 5, 9])
def test_the_gradient_of_a_batch_is_the_same_in_parts(rows):
    model = GPT(GPTConfig(TOKENS.size, width=16, layers=1, heads=2, context=32)).double()
    loss = _add_gradient(model, _encode(model, TOKENS, PAIRS), torch.arange(len(PAIRS)), rows=rows)
    expected, *gradients = slow_gradient(model)
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-12)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=0, atol=1e-12)


# --- in a run


def test_a_run_begins_with_the_supervised_model_and_it_is_the_reference(whole, random_model):
    assert [step for step, _ in complete_checkpoints(whole)] == [0, 2, 4]
    taught = by_hand(random_model)
    assert equal(load_weights(whole, step=0)[1], dict(taught))
    start, *steps = read_metrics(whole)
    assert start["step"] == 0
    assert start["sft/pairs"] == 64
    assert [key for key in start if key.startswith("sft/loss@")] == [f"sft/loss@{n}" for n in range(2, 41, 2)]
    assert start["sft/loss"] == start["sft/loss@40"] < start["sft/loss@2"] == pytest.approx(math.log(20), abs=0.5)
    assert start["eval/kl_to_base"] == 0  # the base is what was made, not what was given
    assert steps[-1]["eval/kl_to_base"] > 0
    assert steps[0]["kl_to_reference"] == pytest.approx(0, abs=1e-6)
    assert not open_folder(whole).warnings.entries
    untaught = GPT(GPTConfig(TOKENS.size, width=32, layers=1, heads=2, context=32)).state_dict()
    assert not equal(load_weights(whole, step=0)[1], dict(untaught))


class Stop(Exception):
    pass


def stopping(words: str):
    def say(line: str) -> None:
        if line.startswith(words):
            raise Stop(line)

    return say


def assert_same(folder: Path, whole: Path) -> None:
    assert read_metrics(folder) == read_metrics(whole)
    assert read_rollouts(folder) == read_rollouts(whole)
    (step, found), (last, expected) = complete_checkpoints(folder)[-1], complete_checkpoints(whole)[-1]
    assert step == last
    for name in ("model.safetensors", "optimiser.safetensors", "state.json"):
        assert (found / name).read_bytes() == (expected / name).read_bytes(), name


@pytest.mark.parametrize("words", ["supervised step 20/", "supervised step 40/", "step 1/", "step 3/", "step 4/"])
def test_a_run_stopped_anywhere_and_resumed_is_the_run_that_was_not(tmp_path, random_model, whole, words):
    asked = config(tmp_path / "run", random_model, learning={"steps": 4})
    with pytest.raises(Stop):
        train(asked, say=stopping(words))
    said: list[str] = []
    train(asked, resume=True, say=said.append)
    taught_again = any(line.startswith("supervised") for line in said)
    assert taught_again == words.startswith("supervised")  # before its checkpoint there is nothing to go on from
    assert_same(asked.out, whole)


def test_a_run_killed_at_any_moment_comes_to_the_same_end(tmp_path, random_model, whole):
    settings = {"sft": SFT, "method": {"regularisers": ["kl:coef=0.1,kind=exact"]}, "learning": {"steps": 4}}
    given = [Path(__file__).parent, tmp_path, random_model, json.dumps(settings), "5"]
    done = subprocess.run([sys.executable, "-c", KILLER, *map(str, given)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    runs, killed = map(int, done.stdout.split())
    assert killed >= 5
    for run in range(runs):
        assert_same(tmp_path / str(run) / "run", whole)


def test_killed_between_the_checkpoint_and_the_log_it_is_not_taught_again(tmp_path, random_model, whole, monkeypatch):
    from equipoise.training import loop

    asked = config(tmp_path / "run", random_model, learning={"steps": 4})

    def die(*given, **settings):
        raise Stop

    with monkeypatch.context() as patched:
        patched.setattr(loop, "evaluate", die)
        with pytest.raises(Stop):
            train(asked)
    monkeypatch.setattr(loop, "supervise", die)
    train(asked, resume=True)
    assert_same(asked.out, whole)


def test_nothing_but_supervised_training_and_steps_added_to_it(tmp_path, random_model, whole):
    asked = config(tmp_path / "run", random_model, learning={"steps": 0})
    trained = train(asked)
    assert trained.before == trained.after
    assert equal(load_weights(asked.out)[1], dict(by_hand(random_model)))
    train(config(tmp_path / "run", random_model, learning={"steps": 4}), resume=True)
    assert_same(asked.out, whole)


def test_every_seed_of_a_run_begins_with_the_same_model_and_other_supervised_seeds_with_others(tmp_path, random_model):
    made = []
    for name, changes in {"a": {"seed": 1}, "b": {"seed": 2}, "c": {"sft": {"seed": 3}}}.items():
        asked = config(tmp_path / name, random_model, learning={"steps": 0}, **changes)
        train(asked)
        made.append(load_weights(asked.out)[1])
    assert equal(made[0], made[1])
    assert not equal(made[0], made[2])


def test_settings_that_change_the_supervised_model_may_not_change(tmp_path, random_model):
    asked = config(tmp_path / "run", random_model, learning={"steps": 0})
    train(asked)
    with pytest.raises(UsageError, match=r"\(sft\.lr was 0\.01 and is 0\.02\)"):
        train(config(tmp_path / "run", random_model, learning={"steps": 1}, sft={"lr": 0.02}), resume=True)
    train(config(tmp_path / "run", random_model, learning={"steps": 0}, sft={"rows": 7}), resume=True)


def test_a_run_that_lost_its_reference_is_not_resumed(tmp_path, random_model, whole):
    shutil.copytree(whole, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step=000000")
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    with pytest.raises(UsageError, match="has lost its checkpoint of step 0") as told:
        train(config(tmp_path / "run", random_model, learning={"steps": 6}), resume=True)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before
    assert "\n" not in str(told.value)


# --- what it learns from


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"problems": None}, "problems or a file to learn from, found neither"),
        ({"file": "x.jsonl"}, "problems or a file to learn from, found both"),
        ({"template": "x"}, r"with \{reference\} in its place, found 'x'"),
        ({"problems": None, "file": "x.jsonl", "template": "={reference}"}, "pairs of a file are learnt as they are"),
    ],
)
def test_a_source_that_is_not_one_is_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        Supervised(**{**SFT, **changes})


def test_settings_come_from_words(tmp_path):
    found = load_config(TrainConfig, overrides=["out=x", "sft.problems=8", "sft.template='{reference}'"])
    assert found.sft == Supervised(problems=8)
    assert load_config(TrainConfig, overrides=["out=x"]).sft is None


def rollout(prompt, text: str, thinking: str | None = None) -> Rollout:
    completion = Completion(text, thinking=thinking, finish="stop")
    return Rollout(
        run_id="r",
        split="train",
        step=0,
        group_id="p",
        sample_index=0,
        problem=Problem("p", "x", prompt),
        completion=completion,
        grade=Grade(None, "right", 1.0),
    )


def test_demonstrations_are_read_as_they_are_written(tmp_path):
    chat = [{"role": "user", "content": "one and two?"}]
    path = tmp_path / "shown.jsonl"
    write_demonstrations(path, [rollout("1,2=3>", "1+2"), rollout(chat, "three")])
    assert read_pairs(path, TOKENS) == [("1,2=3>", "1+2"), (chat, "three")]
    how = Supervised(file=path)
    assert pairs_of(how, find_task(TASK), TOKENS) == read_pairs(path, TOKENS)


def test_thinking_stands_between_the_marks_and_is_opened_once(tmp_path):
    path = tmp_path / "shown.jsonl"
    thinker = Characters("123+=>[]", thinking=("[", "]"))
    write_demonstrations(path, [rollout("1,2=3>".replace(",", "+"), "1+2", "2+1"), rollout("3=[", "3", "1")])
    assert read_pairs(path, thinker) == [("1+2=3>", "[2+1]1+2"), ("3=[", "1]3")]
    with pytest.raises(UsageError, match="line 1 has thinking, and this tokenizer no marks"):
        read_pairs(path, Characters("123+=>[]"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no line to learn from"),
        ('{"prompt": "a"}\n', "line 1 needs a prompt and a completion"),
        ('{"prompt": "", "completion": "b"}\n', "line 1 needs a prompt"),
        ('{"prompt": "a", "completion": "b"}\n[1]\n', "cannot be learnt from"),
        ('{"prompt": [{"role": "user"}], "completion": "b"}\n', "line 1 needs a prompt"),
        (
            '{"prompt": "a", "completion": [{"role": "user", "content": "b"}]}\n',
            "the completion one of the assistant's",
        ),
    ],
)
def test_a_file_that_cannot_be_learnt_from_is_one_line_and_leaves_no_run(tmp_path, random_model, text, words):
    path = tmp_path / "shown.jsonl"
    path.write_text(text)
    with pytest.raises(UsageError, match=words) as told:
        train(config(tmp_path / "run", random_model, sft={"problems": None, "file": path}))
    assert "\n" not in str(told.value)
    assert not (tmp_path / "run").exists()


def test_a_run_learns_from_a_file(tmp_path, random_model):
    path = tmp_path / "shown.jsonl"
    pairs = make_pairs(find_task(TASK), seed=("sft", 0), n=64)
    write_demonstrations(path, [rollout(prompt, text) for prompt, text in pairs])
    asked = config(tmp_path / "run", random_model, sft={"problems": None, "file": path}, learning={"steps": 0})
    train(asked)
    assert equal(load_weights(asked.out)[1], dict(by_hand(random_model)))


# --- a run folder as a model


def test_every_command_opens_a_run_folder_at_its_newest_checkpoint(tmp_path, whole, random_model):
    newest = load_checkpoint(whole).model
    opened = open_model(whole)
    assert (opened.step, opened.settings["task"]) == (4, TASK)
    assert equal(dict(opened.loaded.model.state_dict()), newest)
    sampler = open_sampler(str(whole))
    assert (sampler.max_tokens, sampler.settings["task"]) == (9, TASK)
    assert equal(dict(sampler.loaded.model.state_dict()), newest)
    train(config_of(tmp_path / "next", whole, learning={"steps": 1}))
    assert read_metrics(tmp_path / "next")[0]["eval/pass@1"] == read_metrics(whole)[4]["eval/pass@1"]
    second = open_model(tmp_path / "next")  # a run of a run: the first one's model gives what is not in a checkpoint
    assert equal(dict(second.loaded.model.state_dict()), load_checkpoint(tmp_path / "next").model)
    found = blend(whole, tmp_path / "next", points=[], samples=2, problems=4)
    assert (found.settings["task"], found.settings["trained_step"]) == (TASK, 1)


def test_run_folders_that_are_no_models_are_refused(tmp_path, random_model):
    train(config_of(tmp_path / "no-steps", random_model, learning={"steps": 0}))
    with pytest.raises(UsageError, match="a run folder without a complete checkpoint"):
        open_model(tmp_path / "no-steps")
    about = {"schema_version": 1, "source": "equipoise"}
    for name, model in (("a", tmp_path / "b"), ("b", tmp_path / "a"), ("nameless", None)):
        (tmp_path / name).mkdir()
        known = about if model is None else {**about, "model": str(model)}
        (tmp_path / name / "run.json").write_text(json.dumps(known))
    with pytest.raises(UsageError, match="was trained from itself"):
        open_model(tmp_path / "a")
    with pytest.raises(UsageError, match=r"does not say in its run\.json which model"):
        open_model(tmp_path / "nameless")


# --- in a study


def study_of(out: Path, model: Path, **changes) -> StudyConfig:
    settings = {
        "out": out,
        "seeds": (0, 1),
        "sft": SFT,
        "base": {
            "model": str(model),
            "task": TASK,
            "sampling": {"prompts": 4, "samples": 4, "max_tokens": 9},
            "learning": {"steps": 1, "lr": 1e-3, "warmup": 0},
            "evaluation": {"problems": 8, "samples": 4},
        },
        "evaluation": {"problems": 8, "samples": 4, "temperatures": (0.5, 1.0)},
        "arms": {"grpo": {}, "bonus": {"method": {"regularisers": ("entropy_bonus:coef=0.3",)}}},
        **changes,
    }
    return StudyConfig(**settings)


@pytest.fixture(scope="module")
def studied(tmp_path_factory, random_model) -> tuple[Path, dict, list[str]]:
    out, said = tmp_path_factory.mktemp("study") / "out", []
    tune = {"problems": 8, "samples": 4, "lr": (1e-3, 2e-3)}
    results = study(study_of(out, random_model, tune=tune), tick=said.append).to_dict()
    return out, results, said


def test_a_study_is_taught_once_and_all_begin_with_that_model(studied, random_model):
    out, results, said = studied
    taught = [line for line in said if "supervised step 40/" in line]
    assert [line.partition(":")[0] for line in taught] == ["base"]
    base = dict(by_hand(random_model))
    assert equal(load_weights(out / "runs" / "base")[1], base)
    start = read_metrics(out / "runs" / "base")[0]
    for run in ("runs/grpo-0", "runs/grpo-1", "runs/bonus-0", "runs/bonus-1", "tune/bonus-lr=0.001"):
        assert open_folder(out / run).info.model == str(out / "runs" / "base")
        lines = read_metrics(out / run)
        assert not [key for line in lines for key in line if key.startswith("sft")]
        assert lines[0]["eval/pass@1"] == start["eval/pass@1"]
        assert lines[0]["eval/entropy"] == start["eval/entropy"]
    rows = {(row["arm"], row["seed"]): row for row in results["arms"]}
    assert rows["base", None]["kl_to_base"] == pytest.approx(0, abs=1e-6)
    assert rows["base", None]["entropy_end"] < 0.8 * math.log(20)  # a random model's is near ln 20
    assert 0 < rows["bonus", 0]["kl_to_base"] < 0.1  # to the model that was given it would be above 1


def test_results_and_page_tell_of_it(studied, random_model):
    out, results, _ = studied
    told = results["sft"]
    assert (told["model"], told["pairs"], told["run"]) == (str(random_model), 64, "runs/base")
    assert told["settings"]["steps"] == 40
    start = read_metrics(out / "runs" / "base")[0]
    assert told["loss"] == start["sft/loss"] == told["losses"][-1]["loss"]
    assert [each["step"] for each in told["losses"]] == list(range(2, 41, 2))
    assert results["recipes"]["bonus"]["settings"]["sft"]["problems"] == 64
    assert results["recipes"]["bonus"]["settings"]["model"] == str(random_model)
    words = (out / "README.md").read_text()
    assert (
        f"`{random_model}` after supervised training on 64 solved problems (40 steps of 32, learning rate 0.01" in words
    )
    assert "supervised" not in page({**results, "sft": None})


def test_a_study_started_again_teaches_nothing_and_moved_it_still_counts(studied, random_model, tmp_path):
    out, results, _ = studied
    moved = tmp_path / "moved"
    shutil.copytree(out, moved)
    tune = {"problems": 8, "samples": 4, "lr": (1e-3, 2e-3)}
    said: list[str] = []
    again = study(study_of(moved, random_model, tune=tune), tick=said.append).to_dict()
    assert said == []
    assert again["summary"] == results["summary"]
    other = study_of(moved, random_model, tune=tune, sft={**SFT, "lr": 5e-3})
    with pytest.raises(UsageError, match="base was made with other settings"):
        study(other)


def test_arms_of_another_supervised_model_do_not_count(studied, random_model, tmp_path):
    out, _, _ = studied
    moved = tmp_path / "moved"
    shutil.copytree(out, moved)
    shutil.rmtree(moved / "runs" / "base")
    shutil.rmtree(moved / "tune")
    with pytest.raises(UsageError, match="grpo-0 was made with other settings"):
        study(study_of(moved, random_model, sft={**SFT, "steps": 2}))


def test_a_study_stopped_while_it_is_taught_goes_on(tmp_path, random_model):
    asked = study_of(tmp_path / "out", random_model, seeds=(0,), arms={"grpo": {}})

    with pytest.raises(Stop):
        study(asked, tick=stopping("base: evaluating"))
    said: list[str] = []
    study(asked, tick=said.append)
    assert not [line for line in said if "supervised" in line]
    assert equal(load_weights(tmp_path / "out" / "runs" / "base")[1], dict(by_hand(random_model)))


def test_side_by_side_runs_begin_with_the_same_model(tmp_path, random_model):
    arms = {"bonus": {"method": {"regularisers": ("entropy_bonus:coef=0.3",)}}}
    asked, alone = (study_of(tmp_path / name, random_model, seeds=(0,), arms=arms) for name in ("two", "one"))
    study(asked, jobs=2)
    study(alone)
    for run in ("base", "bonus-0"):
        one, two = (load_weights(folder / "runs" / run)[1] for folder in (asked.out, alone.out))
        assert equal(one, two)


def test_a_study_without_it_has_settings_as_before_there_was_any(tmp_path, random_model):
    from equipoise.lab.study_run import base_job

    plain = study_of(tmp_path, random_model, sft=None)
    found = base_job(plain, tmp_path, plain.evaluation, "test").settings()["config"]
    assert "sft" not in found
    assert "rows" not in {**found["learning"], **found["evaluation"]}
    with pytest.raises(ValueError, match=r"sft is set by the study: use \[sft\] at the top of the file"):
        study_of(tmp_path, random_model, base={"sft": SFT})
