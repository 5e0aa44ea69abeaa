"""Runs that are stopped, killed, damaged or refused: what is resumed equals what was never stopped, bit for bit."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from tiny_training import config_of, make_model, read_metrics, read_rollouts

from equipoise import files
from equipoise.config import load_config
from equipoise.errors import UsageError, UsageErrors
from equipoise.rollouts.folder import open_folder
from equipoise.training.checkpoints import complete_checkpoints, load_checkpoint, save_checkpoint
from equipoise.training.loop import train
from equipoise.training.recipe import TrainConfig
from equipoise.views.live.state import Live

# All that keeps a state from step to step: controllers and a schedule, the outcome counter, the curriculum, the optimiser, draws of
# tokens, completions that are kept to be imitated, the average of the weights, of which a blend is handed over; and steps that are
# refilled from the same curriculum, and refined.
SETTINGS = {
    "method": {
        "surrogate": "clip_cov_step:share=0.1,low=0.01,high=9",
        "regularisers": ["kl:coef=0.05,kind=exact"],
        "bonuses": ["ucb_mean"],
        "bonus_on_answer": True,
        "controllers": [
            *("band:low=1,high=2", "adaptive_clip", "entropy_budget:target=0.5"),
            "anneal_kl:start=0.2,end=0.1,over=5",
        ],
        "filters": ["dynamic_sampling"],
        "curriculum": "curriculum:draws=4,defer_for=2",
        "demonstrations": [
            *("critique_loop:tries=2", "base_anchor:problems=6,rows=3"),
            "rare_replay:rows=3,most_rate=0.9,size=9",
        ],
    },
    "sampling": {"prompts": 4, "samples": 4, "pool": 16, "refills": 2, "most_prompts": 7},
    "evaluation": {"problems": 4, "samples": 4, "every": 2},
    "learning": {"updates": 2, "rows": 7, "steps": 6, "ema": 0.5, "blend": 0.7},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model") / "tiny.safetensors")


@pytest.fixture
def config(tmp_path, model):
    def config(**changes):
        sections = {name: {**SETTINGS[name], **changes.pop(name, {})} for name in SETTINGS}
        return config_of(tmp_path / "run", model, **sections, **changes)

    return config


@pytest.fixture(scope="module")
def whole(tmp_path_factory, model):
    """The run that nothing stopped."""
    out = tmp_path_factory.mktemp("whole") / "run"
    train(config_of(out, model, **SETTINGS))
    return out


def assert_same(folder, whole, *, rollouts=True):
    assert read_metrics(folder) == read_metrics(whole)
    if rollouts:
        assert read_rollouts(folder) == read_rollouts(whole)
    (step, found), (last, expected) = complete_checkpoints(folder)[-1], complete_checkpoints(whole)[-1]
    assert step == last
    for name in (
        *("model.safetensors", "optimiser.safetensors", "ema.safetensors", "blend.safetensors"),
        "state.json",
    ):
        assert (found / name).read_bytes() == (expected / name).read_bytes(), name


def look_at(folder):
    """The run as a dash shows it."""
    live = Live(folder)
    live.refresh()
    return live.runs.values()


class Stop(Exception):
    pass


def stop_at(step):
    def say(line):
        if line.startswith(f"step {step}/"):
            raise Stop

    return say


def test_the_state_that_is_saved_is_not_trivial(whole):
    saved = json.loads((complete_checkpoints(whole)[-1][1] / "state.json").read_text())
    state, curriculum = saved["shaper"], saved["problems"]["curriculum"]
    assert (curriculum["step"], len(curriculum["prompt_ids"])) == (6, 16)
    assert max(curriculum["deferrals"]) > 0 < max(curriculum["right"])
    assert len({line["rollouts"] for line in read_metrics(whole)[1:]}) > 1
    assert state["controllers"]["band"]["coef"] > 0
    assert state["controllers"]["adaptive_clip"]["initial"] is not None
    assert state["controllers"]["entropy_budget"]["step"] == 6
    assert sum(map(len, state["counter"]["counts"].values())) > 10
    assert state["controllers"]["anneal_kl"]["seen"] == 6
    assert len(saved["shelves"]["rare_replay"]["kept"]) == 9
    assert len(saved["shelves"]["base_anchor"]["kept"]) > 2


@pytest.mark.parametrize("step", [1, 2, 3, 5, 6])
def test_a_run_that_was_stopped_and_resumed_is_the_run_that_was_not(config, whole, step):
    with pytest.raises(Stop):
        train(config(), say=stop_at(step))
    trained = train(config(), resume=True)
    assert_same(config().out, whole)
    assert (trained.before == ()) == (step > 1)  # before step 2 there is no checkpoint: it began again
    assert trained.to_dict()["after"] == {k: v for k, v in read_metrics(whole)[6].items() if k.startswith("eval")}


def test_a_longer_run_goes_on_from_a_finished_one(config, whole):
    train(config(learning={"steps": 4}))
    train(config(learning={"steps": 6}), resume=True)
    assert_same(config().out, whole, rollouts=False)

    def but_for_its_old_end(rows):  # a run records what it answered to held-out problems at its first and its last step
        return [row for row in rows if (row["split"], row["step"]) != ("test", 4)]

    assert but_for_its_old_end(read_rollouts(config().out)) == read_rollouts(whole)
    assert open_folder(config().out).info.settings["learning"]["steps"] == 6
    (run,) = look_at(config().out)
    assert (run.curves.last, run.planned) == (6, 6)


def test_a_finished_run_is_resumed_to_its_numbers_and_left_as_it_is(config, whole):
    trained = train(config())
    again = train(config(), resume=True)
    assert again.to_dict()["after"] == trained.to_dict()["after"]
    assert_same(config().out, whole)


# ---------------------------------------------------------------- kill -9

# Forks a trainer, kills it after some time or before its n-th change on the disk, and again, until so many were killed and the
# last run is done. Each time a valid checkpoint must be found, none older than the one before.
KILLER = """
import json, os, random, shutil, signal, sys, time
from pathlib import Path
import torch
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[1])
from tiny_training import config_of
from equipoise.training import checkpoints
from equipoise.training.loop import train

home, model, settings, kills = Path(sys.argv[2]), Path(sys.argv[3]), json.loads(sys.argv[4]), int(sys.argv[5])
rng = random.Random(kills)


def kill_before(n):
    left = [n]

    def counted(call):
        def wrapped(*args, **kwargs):
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **kwargs)
        return wrapped

    for owner, name in ((os, "fsync"), (os, "replace"), (os, "rename"), (os, "link"), (os, "write"), (os, "unlink"),
                        (os, "mkdir"), (shutil, "rmtree")):
        setattr(owner, name, counted(getattr(owner, name)))


def slow_save(tensors):
    data = real_save(tensors)
    time.sleep(0.03)
    return data


real_save = checkpoints.save
killed, run = 0, 0
while True:
    out, newest = home / str(run) / "run", 0
    while True:
        by_time = rng.random() < 0.5
        pid = os.fork()
        if not pid:
            checkpoints.save = slow_save
            if killed < kills and not by_time:
                kill_before(rng.randrange(1, 150))
            train(config_of(out, model, **settings), resume=True)
            os._exit(0)
        chance = rng.random()
        if killed < kills and by_time:
            time.sleep(1.2 * chance)
            os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
        found = checkpoints.load_checkpoint(out)
        step = 0 if found is None else found.step
        assert step >= newest, (step, newest)
        newest = step
        if status == 0:
            break
        assert os.WTERMSIG(status) == signal.SIGKILL, status
        killed += 1
    run += 1
    if killed >= kills:
        print(run, killed)
        sys.exit()
"""


def survive(tmp_path, model, whole, kills):
    done = subprocess.run(
        [sys.executable, "-c", KILLER, Path(__file__).parent, tmp_path, model, json.dumps(SETTINGS), str(kills)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    runs, killed = map(int, done.stdout.split())
    assert killed >= kills
    for run in range(runs):
        assert_same(tmp_path / str(run) / "run", whole)
        assert not set(open_folder(tmp_path / str(run) / "run").warnings.entries) - {"truncated", "bad-line"}


def test_a_run_killed_at_any_moment_comes_to_the_same_end(tmp_path, model, whole):
    survive(tmp_path, model, whole, 8)


@pytest.mark.slow
def test_a_run_killed_at_fifty_moments_comes_to_the_same_end(tmp_path, model, whole):
    survive(tmp_path, model, whole, 50)


# ---------------------------------------------------------------- what is refused


def test_a_folder_with_a_run_is_not_trained_into(config):
    train(config(learning={"steps": 0}))
    before = read_metrics(config().out)
    with pytest.raises(UsageError, match=r"holds a run already: name another folder, or resume it \(--resume\)$"):
        train(config(learning={"steps": 0}))
    assert read_metrics(config().out) == before


@pytest.mark.parametrize("steps", [1, 2])  # without a checkpoint and with one
def test_resuming_with_other_settings_names_them_and_changes_nothing(config, steps):
    with pytest.raises(Stop):
        train(config(), say=stop_at(steps))
    before = (config().out / "metrics.jsonl").read_bytes()
    with pytest.raises(UsageError) as told:
        train(config(seed=3, sampling={"temperature": 0.5}), resume=True)
    assert "(sampling.temperature was 1.0 and is 0.5, seed was 0 and is 3)" in str(told.value)
    assert "\n" not in str(told.value)
    assert (config().out / "metrics.jsonl").read_bytes() == before


def test_what_only_costs_time_and_memory_may_change(config, whole):
    with pytest.raises(Stop):
        train(config(), say=stop_at(3))
    train(config(learning={"rows": 3}, save_every=5), resume=True)
    found, expected = load_checkpoint(config().out), load_checkpoint(whole)
    for name, tensor in expected.model.items():
        torch.testing.assert_close(found.model[name], tensor, rtol=0, atol=1e-4)


def test_fewer_steps_than_were_made_are_refused(config):
    train(config(learning={"steps": 2}))
    with pytest.raises(UsageError, match=r"is at step 2 already, and learning\.steps is 1: ask for more"):
        train(config(learning={"steps": 1}), resume=True)


def test_checkpoints_without_a_run_are_not_mixed_with_a_new_one(config):
    train(config(learning={"steps": 2}))
    (config().out / "run.json").unlink()
    for resume in (False, True):
        with pytest.raises(UsageError, match=r"holds checkpoints and no run\.json: name another folder"):
            train(config(), resume=resume)


def test_a_device_that_is_not_there_is_one_line(config):
    with pytest.raises(UsageError, match=r"^device 'nowhere' cannot be used here \(.*\): use cpu") as told:
        train(config(device="nowhere"))
    assert "\n" not in str(told.value)
    assert not config().out.exists()


def test_a_bad_config_tells_all_that_is_wrong_with_it(tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text(
        'out = "run"\ntask = "countdwn"\n[learning]\nlr = inf\nstep = 3\n[evaluation]\nsplit = "train"\n'
        '[method]\nregularisers = ["clip"]\ncontrollers = ["band", "band:low=0.1"]\n'
    )
    with pytest.raises(UsageErrors) as told:
        load_config(TrainConfig, path=path)
    text = str(told.value)
    assert len(told.value.lines) >= 6
    for wrong in (
        "countdwn",
        "learning.lr",
        "learning.step",
        "evaluation.split",
        "method.regularisers",
        "method.controllers",
    ):
        assert wrong in text
    assert "band stands twice" in text


# ---------------------------------------------------------------- damage


def checkpoint_of(step):
    return {"model": {"w": torch.full((4,), float(step))}, "optimiser": {}, "state": {"shaper": {}, "step": step}}


@pytest.mark.parametrize("name", ["model.safetensors", "optimiser.safetensors", "state.json"])
@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_serves(config, whole, name, damage):
    with pytest.raises(Stop):
        train(config(), say=stop_at(5))
    step, folder = complete_checkpoints(config().out)[-1]
    assert step == 4
    if damage == "cut":
        (folder / name).write_bytes((folder / name).read_bytes()[:-7])
    else:
        (folder / name).unlink()
    with pytest.raises(UsageError, match="remove that folder to go on from the one before it") as told:
        train(config(), resume=True)
    assert str(folder) in str(told.value)
    assert "\n" not in str(told.value)
    shutil.rmtree(folder)
    train(config(), resume=True)
    assert_same(config().out, whole)


def test_a_checkpoint_without_its_marker_is_passed_over_and_cleared_away(tmp_path):
    save_checkpoint(tmp_path, 2, **checkpoint_of(2))
    save_checkpoint(tmp_path, 4, **checkpoint_of(4))
    folder = tmp_path / "checkpoints" / "step=000004"
    (folder / "complete").unlink()
    (tmp_path / "checkpoints" / "step=000001").mkdir()  # one whose removal was interrupted
    assert load_checkpoint(tmp_path).step == 2
    (folder / "model.safetensors").write_bytes(b"torn")
    save_checkpoint(tmp_path, 4, **checkpoint_of(4))
    assert load_checkpoint(tmp_path).model["w"].tolist() == [4.0] * 4
    assert sorted(f.name for f in (tmp_path / "checkpoints").iterdir()) == ["step=000002", "step=000004"]


def test_only_the_newest_checkpoints_are_kept_and_no_checkpoint_is_none(tmp_path):
    assert load_checkpoint(tmp_path) is None
    for step in (1, 2, 3, 1_000_000):
        save_checkpoint(tmp_path, step, **checkpoint_of(step))
    assert [step for step, _ in complete_checkpoints(tmp_path)] == [3, 1_000_000]


def test_tied_weights_are_saved(tmp_path):
    tied = torch.arange(6.0).view(2, 3)
    save_checkpoint(tmp_path, 1, model={"embed": tied, "head": tied, "turned": tied.T}, optimiser={}, state={})
    found = load_checkpoint(tmp_path).model
    assert all(torch.equal(found[name], tied) for name in ("embed", "head"))
    assert torch.equal(found["turned"], tied.T)


@pytest.mark.parametrize(("call", "after"), [("fsync", 0), ("fsync", 3), *(("replace", n) for n in range(4))])
def test_a_full_disk_is_one_line_and_the_checkpoint_before_it_serves(tmp_path, monkeypatch, call, after):
    save_checkpoint(tmp_path, 1, **checkpoint_of(1))
    real, left = getattr(os, call), [after]

    def full(*args):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*args)

    monkeypatch.setattr(files.os, call, full)
    with pytest.raises(OSError, match="No space left on device") as told:
        save_checkpoint(tmp_path, 2, **checkpoint_of(2))
    monkeypatch.undo()
    assert told.value.errno == errno.ENOSPC
    assert "cannot write the checkpoint" in str(told.value)
    assert "step=000002" in str(told.value)
    assert "\n" not in str(told.value)
    assert not list(tmp_path.rglob("*.tmp"))
    assert load_checkpoint(tmp_path).step == 1


def test_a_run_that_filled_the_disk_goes_on_when_there_is_room(config, whole, monkeypatch):
    real, left = os.fsync, [60]

    def full(descriptor):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor)

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match=r"cannot write .*No space left on device") as told:
        train(config())
    assert "\n" not in str(told.value)
    monkeypatch.undo()
    assert complete_checkpoints(config().out)
    train(config(), resume=True)
    assert_same(config().out, whole)


# As an ordinary user, whom a folder's permissions bind, and with a limit on the size of a file, which ends a write half-way.
BOUND = """
import os, resource, signal, sys
from pathlib import Path
import numpy.ctypeslib  # safetensors imports it when it first writes; that user might not be allowed to read it
import torch
from equipoise.errors import UsageError
from equipoise.rollouts.run import RunInfo
from equipoise.rollouts.writer import RunWriter
from equipoise.training.checkpoints import load_checkpoint, save_checkpoint
closed, open_ = Path(sys.argv[1]), Path(sys.argv[2])
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
try:
    RunWriter(closed / "run", RunInfo("equipoise"))  # what a training run starts with
except UsageError as problem:
    print(problem)
try:
    save_checkpoint(closed, 1, model={}, optimiser={}, state={})
except PermissionError as problem:
    print(problem)
save_checkpoint(open_, 1, model={}, optimiser={}, state={})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    save_checkpoint(open_, 2, model={"w": torch.zeros(50_000)}, optimiser={}, state={})
except OSError as problem:
    print(problem)
print(load_checkpoint(open_).step, [path.name for path in open_.rglob("*.tmp")])
"""


@pytest.fixture
def anyones_folder():
    """A folder that another user can enter; pytest keeps its own to the user who runs it."""
    with TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_folders_that_cannot_be_written_and_writes_that_end_half_way(anyones_folder):
    closed, opened = anyones_folder / "closed", anyones_folder / "open"
    for folder, mode in ((closed, 0o555), (opened, 0o777)):
        folder.mkdir()
        folder.chmod(mode)
    done = subprocess.run([sys.executable, "-c", BOUND, closed, opened], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    run, checkpoint, half, left = done.stdout.splitlines()
    assert f"cannot write a run into {closed / 'run'}: Permission denied" in run
    assert f"cannot write the checkpoint {closed / 'checkpoints' / 'step=000001'}: Permission denied" in checkpoint
    assert "step=000002: File too large; those written before are intact" in half
    assert left == "1 []"
