"""Studies: arms on the same problems with equal rollouts, numbers that can be computed again, and runs that can be stopped."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from scipy.special import rel_entr

torch = pytest.importorskip("torch")

from html_tables import read_tables  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

from equipoise.cli.main import app  # noqa: E402
from equipoise.config import load_config  # noqa: E402
from equipoise.errors import UsageError  # noqa: E402
from equipoise.lab.study import Studied, study  # noqa: E402
from equipoise.lab.study_config import StudyConfig  # noqa: E402
from equipoise.lab.study_numbers import (  # noqa: E402
    Policies,
    difference,
    matched,
    matched_values,
    mean_over,
    reach,
    unsolved_by_both,
)
from equipoise.lab.study_outcomes import COUNTS, Outcomes  # noqa: E402
from equipoise.lab.study_page import page  # noqa: E402
from equipoise.models.characters import Characters  # noqa: E402
from equipoise.models.checkpoint import save_gpt  # noqa: E402
from equipoise.models.generate import generate  # noqa: E402
from equipoise.models.gpt import GPT, GPTConfig  # noqa: E402
from equipoise.training.notes import chosen_warnings  # noqa: E402
from equipoise.training.recipe import TrainConfig  # noqa: E402
from equipoise.training.update import reference_kl  # noqa: E402

ROOT = Path(__file__).parents[1]
P, G, STEPS, SEEDS = 24, 8, 2, (0, 1)
TIMED = ("seconds", "command")
TOKENS = Characters("0123456789+-*/()=,>")


def settings(out: Path, **changed) -> dict:
    """The packaged model solves some problems, so that differences are not all 0; the large step makes the arms differ."""
    return {
        "out": out,
        "seeds": SEEDS,
        "base": {
            "model": "packaged",
            "save_every": 1,
            "sampling": {"prompts": 4, "samples": 4},
            "learning": {"steps": STEPS, "lr": 5e-4, "warmup": 0},
            "evaluation": {"problems": P, "samples": G, "every": STEPS},
        },
        "evaluation": {"problems": P, "samples": G, "temperatures": (0.5, 1.0)},
        "arms": {"grpo": {}, "bonus": {"method": {"regularisers": ("entropy_bonus:coef=0.3",)}}},
        **changed,
    }


def tiny_model(folder: Path) -> Path:
    path = folder / "tiny.safetensors"
    save_gpt(path, GPT(GPTConfig(TOKENS.size, width=32, layers=1, heads=2)), TOKENS)
    return path


def tiny(folder: Path, **changed) -> StudyConfig:
    """The same study of a random model, which solves nothing and is done in a second."""
    made = settings(folder / "out", **changed)
    folder.mkdir(exist_ok=True)
    evaluation = {"problems": 8, "samples": 2, "every": STEPS}
    made["base"] |= {
        "model": str(tiny_model(folder)),
        "task": "countdown:numbers=3,largest=12",
        "evaluation": evaluation,
    }
    made["evaluation"] |= {"problems": 8, "samples": 4}
    return StudyConfig(**made)


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> tuple[Path, dict]:
    out = tmp_path_factory.mktemp("study") / "out"
    study(StudyConfig(**settings(out)), command="equipoise study x.toml")
    return out, json.loads((out / "results.json").read_text())


@pytest.fixture(scope="module")
def recorded(done) -> pd.DataFrame:
    """The evaluation rollouts that the trainer recorded of each run's last step, and those of the base model at step 0."""
    out, _ = done
    parts = []
    for arm, seed in [("grpo", 0), ("grpo", 1), ("bonus", 0), ("bonus", 1)]:
        rows = pd.read_parquet(out / "runs" / f"{arm}-{seed}" / "rollouts")
        rows["step"] = rows["step"].astype(int)
        parts.append(rows.assign(arm=arm, seed=seed))
    return pd.concat(parts)


def pass_at(right: pd.Series, k: int) -> float:
    """The share of all k-subsets that hold a right one."""
    subsets = list(combinations(right.astype(bool), k))
    return sum(map(any, subsets)) / len(subsets)


def entry(results: dict, arm: str, seed: int | None) -> dict:
    return next(row for row in results["arms"] if (row["arm"], row["seed"]) == (arm, seed))


# --- the config


def test_an_arm_changes_only_what_it_sets(tmp_path):
    arms = {"plain": {}, "four": {"learning": {"updates": 4}, "method": {"surrogate": "clip_higher"}}}
    config = StudyConfig(**settings(tmp_path, arms=arms))
    plain, four = (config.train_config(arm, seed=5, out=tmp_path / arm) for arm in arms)
    assert (four.learning.updates, four.learning.lr, four.method.surrogate) == (4, 5e-4, "clip_higher")
    assert (plain.learning.updates, plain.method.surrogate, plain.seed) == (1, "clip", 5)
    assert four.sampling == plain.sampling
    assert config.train_config("four", seed=5, out=tmp_path, lr=1e-5).learning.lr == 1e-5


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"arms": {"a": {}, "b": {}, "c": {"sampling": {"samples": 8}}}},
            "arms must draw equal rollouts: c draws 64 of up to 20 tokens, others 32 of up to 20",
        ),
        ({"arms": {"a": {}, "b": {}, "c": {"sampling": {"max_tokens": 9}}}}, "equal rollouts: c draws 32 of up to 9"),
        ({"arms": {"base": {}}}, "'base' cannot name an arm"),
        ({"arms": {"a/b": {}}}, "cannot name an arm"),
        ({"arms": {"a": {"against": "b"}}}, "a is compared with 'b', which is no arm"),
        ({"only": ("bonus", "other")}, "only names other, and the arms are grpo, bonus"),
        ({"only": ("bonus",)}, "only has bonus, which is compared with grpo: name that too"),
        ({"arms": {"a": {"learning": {"updates": 9}}}}, "arm a: learning.updates 9 must not exceed"),
        ({"seeds": (1, 1)}, "different seeds"),
        ({"base": {"seed": 3}}, "seed is set by the study"),
        ({"base": {"out": "x"}}, "out is set by the study"),
        ({"evaluation": {"temperatures": (0.5,)}}, "evaluation.temperatures needs each once, and 1"),
        ({"tune": {"seed": 1}}, "tune.seed 1 is one of seeds"),
        ({"tune": {"temperature": (0.7,)}}, "is not in evaluation.temperatures"),
    ],
)
def test_what_cannot_be_compared_is_refused(tmp_path, changed, words):
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        StudyConfig(**settings(tmp_path, **changed))


def test_a_wrong_setting_of_an_arm_is_told_with_its_line(tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text('out = "x"\n[arms.a]\nmethod.surrogat = "clip"\n[arms.b]\nlearning.steps = 2.5\n')
    with pytest.raises(UsageError) as caught:
        load_config(StudyConfig, path=path)
    assert "bad.toml:3: arms.a.method.surrogat is no setting: did you mean arms.a.method.surrogate?" in str(
        caught.value
    )
    assert "bad.toml:5: arms.b.learning.steps = 2.5" in str(caught.value)


@pytest.mark.parametrize("path", sorted((ROOT / "studies").glob("*.toml")), ids=lambda path: path.stem)
def test_the_committed_recipes_are_whole(path):
    config = load_config(StudyConfig, path=path)
    assert config.plain_arm in config.arms
    assert all(arm.about for arm in config.arms.values())
    for name in config.arms:  # an arm that acts only off-policy is compared with a plain arm of as many updates
        mine, other = (config.train_config(arm, seed=0, out=Path()) for arm in (name, config.against(name)))
        assert mine.learning.updates == other.learning.updates or name == "grpo_4"


@pytest.mark.parametrize("path", sorted((ROOT / "studies").glob("held-out-*.toml")), ids=lambda path: path.stem)
def test_a_held_out_task_tries_the_arms_of_the_frontier_as_they_are(path):
    names = ("frontier", "frontier-cooler-medium", "frontier-cooler-medium-rivals")
    files = (path, *(ROOT / "studies" / f"{name}.toml" for name in names))
    held, *others = (load_config(StudyConfig, path=each) for each in files)
    tuned = others[0]
    assert held.base.task.split(":")[0] not in {each.base.task.split(":")[0] for each in others}
    of = {name: each for each in others for name in each.arms}
    assert {"grpo", "clip_cov_more", "kl_exact", "cool_kl_exact_ema"} < set(held.arms) <= set(of)
    assert (held.seeds, held.plain) == (tuned.seeds, tuned.plain)
    assert held.evaluation.model_copy(update={"seed": tuned.evaluation.seed}) == tuned.evaluation
    for name, arm in held.arms.items():
        mine, other = (each.train_config(name, seed=0, out=Path()) for each in (held, of[name]))
        assert (arm.of, arm.blend, arm.ema) == tuple(getattr(of[name].arms[name], k) for k in ("of", "blend", "ema"))
        assert mine.method == other.method
        assert mine.sampling.model_copy(update={"max_tokens": other.sampling.max_tokens}) == other.sampling
        assert mine.learning.model_copy(update={"steps": other.learning.steps}) == other.learning


# --- a whole study


def test_results_have_an_entry_for_the_base_and_every_arm_and_seed(done):
    out, results = done
    assert results["schema"] == "equipoise.study/1"
    assert results["command"] == "equipoise study x.toml"
    assert set(results["versions"]) == {"python", "equipoise", "torch", "numpy"}
    found = [(row["arm"], row["seed"], row["steps"]) for row in results["arms"]]
    assert found == [("base", None, 0), ("grpo", 0, 2), ("grpo", 1, 2), ("bonus", 0, 2), ("bonus", 1, 2)]
    for row in results["arms"]:
        names = {"entropy_start", "entropy_end", "distinct_solved", "distinct_unsolved", "kl_to_base", "seconds"}
        assert names | {f"pass@{k}" for k in (1, 2, 4, 8)} <= set(row)
        assert set(row["temperatures"]) == {"0.5", "1"}
        assert row["temperatures"]["1"]["pass@1"] == row["pass@1"]
        assert row["temperatures"]["0.5"]["entropy"] < row["temperatures"]["1"]["entropy"]
        assert row["rollouts"] == (0 if row["arm"] == "base" else STEPS * 4 * 4)
        assert row["entropy_start"] == entry(results, "base", None)["entropy_end"]
    base = entry(results, "base", None)
    assert base["kl_to_base"] == pytest.approx(0, abs=1e-6)
    assert base["temperatures"]["0.5"]["kl_to_base"] > 0.01  # a cooled base has left the base
    assert entry(results, "grpo", 0)["kl_to_base"] > 0
    assert {law["arm"] for law in results["law"]} == {"grpo", "bonus"}
    assert results["law"][0]["reason"].startswith("2 steps")
    assert results["at_chosen"] is None
    assert (out / "README.md").read_text() == page(results)
    assert all(f"| {arm} |" in page(results) for arm in ("base", "grpo", "bonus"))


def test_the_page_links_figures_of_the_results_and_of_the_logs(done):
    out, _ = done
    told = (out / "README.md").read_text()
    for name in ("frontier.svg", "entropy.svg"):
        assert f"]({name})" in told
    curves = {}
    for name in ("frontier.svg", "entropy.svg"):
        root = ElementTree.fromstring((out / name).read_text())
        assert {"grpo", "bonus"} <= {node.text for node in root.iter() if node.tag.endswith("}text")}
        curves[name] = [node.get("d").count("L") for node in root.iter() if node.get("stroke-linejoin")]
    assert curves == {"frontier.svg": [1], "entropy.svg": [STEPS - 1] * 2}  # two temperatures; two arms


def test_the_linter_speaks_of_what_an_arm_chose_and_the_page_of_all(tmp_path):
    said: list[str] = []
    bound = {"method": {"surrogate": "clip:clip_high=0.3"}}
    config = tiny(
        tmp_path, seeds=(0,), arms={"grpo": {}, "higher": {"method": {"surrogate": "clip_higher"}}, "bound": bound}
    )
    results = study(config, say=said.append).to_dict()
    spoken = [line for line in said if line.startswith("inert")]
    assert [line.partition(": strictly")[0] for line in spoken] == ["inert: clip_higher", "inert: clip"]
    assert [line.rpartition(" (")[2] for line in spoken] == ["higher)", "bound)"]
    assert results["recipes"]["grpo"]["warnings"] == results["recipes"]["bound"]["warnings"] != []
    told = (config.out / "README.md").read_text()
    assert [line.rpartition(" (")[2] for line in told.splitlines() if line.startswith("- inert")] == [
        "grpo, bound)",
        "higher)",
    ]


def test_only_the_idle_clip_of_the_default_is_passed_over(tmp_path):
    def spoken(**method) -> list[tuple[str, str]]:
        found = TrainConfig(out=tmp_path, method=method, sampling={"samples": 1})
        return [(each.method, each.verdict) for each in chosen_warnings(found)]

    assert ("clip", "inert") not in spoken()
    assert (
        spoken() == [(e.method, e.verdict) for e in TrainConfig(out=tmp_path, sampling={"samples": 1}).warnings()][1:]
    )
    assert ("kl", "inert") in spoken(regularisers=("kl:coef=0",))
    assert ("clip_higher", "inert") in spoken(surrogate="clip_higher")


def test_a_notebook_shows_the_table_of_arms_escaped(done):
    _, results = done
    html = Studied("a<b>", results | {"about": "<script>"})._repr_html_()
    assert "<p>&lt;script&gt; (a&lt;b&gt;)</p>" in html
    (table,) = read_tables(html)
    assert table.index.tolist() == ["base", "grpo", "bonus"]
    shown = table["pass@1"].str.extract(r"^([\d.]+) \[([\d.]+), ([\d.]+)\]$").astype(float).to_numpy()
    wanted = [[r["pass@1"][name] for name in ("value", "low", "high")] for r in results["summary"]]
    assert shown == pytest.approx(np.array(wanted), abs=5.1e-4)
    assert "**" not in html


def test_arms_of_a_seed_train_on_the_same_problems_and_all_are_evaluated_on_the_same(recorded):
    train = recorded[recorded["split"] == "train"].groupby(["arm", "seed", "step"])["prompt_id"].agg(set)
    for step in (1, 2):
        assert train["grpo", 0, step] == train["bonus", 0, step]
        assert train["grpo", 0, step].isdisjoint(train["grpo", 1, step])
    held_out = recorded[recorded["split"] == "test"].groupby(["arm", "seed", "step"])["prompt_id"].agg(frozenset)
    assert held_out.nunique() == 1
    assert len(held_out.iloc[0]) == P
    assert held_out.iloc[0].isdisjoint(set().union(*train))


def test_every_arm_drew_the_rollouts_that_are_reported(done, recorded):
    counted = (
        recorded[recorded["split"] == "train"]
        .groupby(["arm", "seed"])
        .agg(n=("reward", "size"), tokens=("n_tokens", "sum"))
    )
    for (arm, seed), row in counted.iterrows():
        assert entry(done[1], arm, seed)["rollouts"] == row["n"]
        assert entry(done[1], arm, seed)["tokens"] == row["tokens"]


def test_numbers_of_a_run_follow_from_its_recorded_rollouts(done, recorded):
    last = recorded[(recorded["split"] == "test") & (recorded["step"] == STEPS)]
    for (arm, seed), rows in last.groupby(["arm", "seed"]):
        told = entry(done[1], arm, seed)
        by_problem = rows.groupby("prompt_id")
        for k in (1, 2, 4, 8):
            assert told[f"pass@{k}"] == pytest.approx(by_problem["correct"].agg(pass_at, k=k).mean())
        distinct, solved = by_problem["answer"].nunique(), by_problem["correct"].any()
        assert told["distinct_solved"] == pytest.approx(distinct[solved].mean())
        assert told["distinct_unsolved"] == pytest.approx(distinct[~solved].mean())
        entropies = np.concatenate(rows["entropies"].to_numpy()).astype(float)  # recorded in half precision
        assert told["entropy_end"] == pytest.approx(entropies.mean(), rel=1e-3)


@pytest.mark.parametrize("against", ["base", "grpo"])
@pytest.mark.parametrize("k", [1, 8])
def test_paired_differences_follow_from_the_recorded_rollouts(done, recorded, against, k):
    held_out = recorded[recorded["split"] == "test"]
    passes = held_out.groupby(["arm", "seed", "step", "prompt_id"])["correct"].agg(pass_at, k=k)
    gaps = []
    for seed in SEEDS:
        other = ("bonus", seed, 0) if against == "base" else ("grpo", seed, STEPS)
        gaps.append(passes.loc["bonus", seed, STEPS] - passes.loc[other])  # aligned by problem
    told = next(
        row
        for row in done[1]["differences"]
        if (row["arm"], row["against"], row["name"], row["temperature"]) == ("bonus", against, f"pass@{k}", 1.0)
    )
    assert told["per_seed"] == pytest.approx([gap.mean() for gap in gaps])
    gap = pd.concat(gaps, axis=1).mean(axis=1)
    assert told["value"] == pytest.approx(gap.mean())
    # Heavy tails leave fewer degrees of freedom: 2n / (kurtosis − 1).
    degrees = min(P - 1, 2 * P / (stats.kurtosis(gap, fisher=False) - 1))
    low, high = stats.t.interval(0.95, degrees, loc=gap.mean(), scale=stats.sem(gap))
    assert gap.abs().max() > 0
    assert (told["low"], told["high"]) == (pytest.approx(low), pytest.approx(high))
    assert "these seeds alone" in told["how"]


def test_the_table_of_problems_holds_every_policy_at_every_temperature(done, recorded):
    out, _ = done
    table = pd.read_parquet(out / "problems.parquet")
    assert len(table) == 5 * 2 * P
    assert (table["drawn"] == G).all()
    right = recorded[(recorded["split"] == "test") & (recorded["step"] == STEPS)].groupby(["arm", "seed", "prompt_id"])
    kept = table[(table["temperature"] == 1) & table["seed"].notna()].set_index(["arm", "seed", "problem"])["correct"]
    for key, count in right["correct"].sum().items():
        assert kept[key] == count


# --- stopped and started again


def without_times(results: dict) -> dict:
    found = {name: value for name, value in results.items() if name not in TIMED}
    del found["recipes"]  # they name the model's path
    found["arms"] = [{name: value for name, value in row.items() if name not in TIMED} for row in found["arms"]]
    return found


@pytest.mark.parametrize("where", ["between runs", "within a run"])
def test_a_stopped_study_goes_on_and_ends_as_if_it_had_not_stopped(tmp_path, where):
    def stop(line: str) -> None:
        # The fourth of the five runs, or the second step's line of the second seed.
        if line.startswith("3/5" if where == "between runs" else "grpo-1: step 1/2"):
            raise KeyboardInterrupt

    config = tiny(tmp_path / "stopped")
    with pytest.raises(KeyboardInterrupt):
        study(config, say=stop, tick=stop)
    finished = sorted((config.out / "runs").glob("*/finished.json"))
    assert [path.parent.name for path in finished] == ["base", "bonus-0", "grpo-0"]
    assert not (config.out / "results.json").exists()
    before = {path: path.stat().st_mtime_ns for path in finished}
    said: list[str] = []
    results = study(config, say=said.append).to_dict()
    assert before == {path: path.stat().st_mtime_ns for path in finished}  # not run again
    assert "finished already: 3 of 5 runs" in said
    whole = study(tiny(tmp_path / "whole")).to_dict()
    assert without_times(results) == without_times(whole)


@pytest.mark.parametrize("jobs", [1, 2])
def test_when_its_minutes_are_over_the_seeds_that_are_whole_make_the_results(tmp_path, monkeypatch, jobs):
    config, said = tiny(tmp_path / "cut", seeds=(0, 1, 2)), []

    def clock() -> float:
        runs = config.out / "runs"
        return 1e6 if all((runs / name / "finished.json").exists() for name in ("bonus-0", "grpo-0", "grpo-1")) else 0.0

    with monkeypatch.context() as patched:
        patched.setattr("equipoise.lab.study.time.perf_counter", clock)
        patched.setattr("equipoise.lab.study.LOOK_AGAIN", 0.0)
        cut = study(config, jobs=jobs, minutes=5, command="equipoise study x.toml", say=said.append).to_dict()
    assert not (config.out / "runs" / "bonus-2" / "finished.json").exists()
    seeds = [0, 1] if (config.out / "runs" / "bonus-1" / "finished.json").exists() else [0]
    assert jobs == 2 or seeds == [0]  # in turn, nothing begins after the clock has struck
    assert cut["seeds"] == seeds
    assert f"5 minutes are over: results of {'1 seed, 0' if len(seeds) == 1 else '2 seeds, 0, 1'}" in said
    assert cut["command"] == f"equipoise study x.toml 'seeds={seeds}'"
    assert {row["seed"] for row in cut["arms"]} == {None, *seeds}
    assert study(config).to_dict()["seeds"] == [0, 1, 2]


def test_without_a_whole_seed_the_minutes_leave_no_results(tmp_path):
    config = tiny(tmp_path)
    with pytest.raises(UsageError, match="no seed is finished after 0 minutes; finished runs are kept"):
        study(config, minutes=0)
    assert not (config.out / "results.json").exists()


def test_a_study_of_some_arms_can_be_widened_without_the_weights_of_the_runs_it_has(tmp_path):
    tuned = {"tune": {"problems": 8, "samples": 4}, "seeds": (0,)}
    some = study(tiny(tmp_path / "grown", only=("grpo",), **tuned)).to_dict()
    assert {row["arm"] for row in some["arms"]} == {"base", "grpo"}
    for weights in (tmp_path / "grown").rglob("*.safetensors"):
        weights.unlink()
    grown = study(tiny(tmp_path / "grown", **tuned)).to_dict()
    assert without_times(grown) == without_times(study(tiny(tmp_path / "whole", **tuned)).to_dict())


def test_a_finished_run_of_other_settings_is_not_taken_for_this_one(done):
    out, _ = done
    base = settings(out)["base"]
    changed = StudyConfig(**settings(out, base=base | {"learning": base["learning"] | {"lr": 1e-5}}))
    with pytest.raises(UsageError, match="was made with other settings: name another out"):
        study(changed)


def test_a_run_that_drew_fewer_rollouts_is_refused(tmp_path):
    config = tiny(tmp_path, seeds=(0,), arms={"grpo": {}})
    study(config)
    log = config.out / "runs" / "grpo-0" / "metrics.jsonl"
    log.write_text(log.read_text() + '{"rewind": 1}\n')
    with pytest.raises(UsageError, match="has 1 step in its log and was to have 2: arms must draw equal rollouts"):
        study(config)


def test_runs_side_by_side_find_what_runs_in_turn_find(tmp_path):
    found, expected = (
        study(tiny(tmp_path / name, seeds=(0,), arms={"grpo": {}}), jobs=jobs).to_dict()
        for name, jobs in (("beside", 2), ("in turn", 1))
    )
    # Another number of threads may round a product otherwise.
    for row, alone in zip(found["arms"], expected["arms"], strict=True):
        assert (row["arm"], row["seed"]) == (alone["arm"], alone["seed"])
        assert row["entropy_end"] == pytest.approx(alone["entropy_end"], rel=1e-3)
        assert row["rollouts"] == alone["rollouts"]


def test_a_run_that_fails_beside_others_is_told_in_one_line_and_stops_them(tmp_path, monkeypatch):
    script = tmp_path / "python"  # instead of the interpreter: the base fails, all others would run for long
    script.write_text(
        '#!/bin/sh\ncase "$3" in *base*) echo started; echo no such model; exit 2;; *) exec sleep 60;; esac\n'
    )
    script.chmod(0o755)
    monkeypatch.setattr("equipoise.lab.study.sys.executable", str(script))
    with pytest.raises(UsageError) as caught:
        study(tiny(tmp_path / "study"), jobs=2)
    folder = tmp_path / "study" / "out" / "runs" / "base"
    assert (
        str(caught.value) == f"the run {folder} failed: no such model; finished runs are kept, the same command goes on"
    )


def test_a_run_that_dies_beside_others_begins_no_more_and_takes_none_of_their_work(tmp_path, monkeypatch):
    script = tmp_path / "python"  # instead of the interpreter: the first arm dies at once, the base takes a while
    script.write_text(
        '#!/bin/sh\nhere=$(dirname "$3")\ntouch "$here/begun"\n'
        'case "$here" in */grpo-0) echo out of memory; exit 1;; */base) sleep 1; touch "$here/ended";; esac\n'
    )
    script.chmod(0o755)
    monkeypatch.setattr("equipoise.lab.study.sys.executable", str(script))
    with pytest.raises(ChildProcessError, match=r"runs/grpo-0 failed: out of memory; finished runs are kept"):
        study(tiny(tmp_path / "study"), jobs=2)
    runs = tmp_path / "study" / "out" / "runs"
    assert (runs / "base" / "ended").exists()
    assert {path.parent.name for path in runs.glob("*/begun")} == {"base", "grpo-0"}


def test_learning_rate_and_temperature_are_chosen_on_the_tuning_split(tmp_path):
    made = settings(tmp_path, tune={"lr": (0.3, 1e-6), "problems": 16, "samples": 4})
    made["base"]["evaluation"] = {"problems": 2, "samples": 1}
    results = study(StudyConfig(**made)).to_dict()

    def shares(folder: str) -> pd.Series:
        table = pd.read_parquet(tmp_path / "tune" / folder / "outcomes.parquet")
        return table.assign(share=table["correct"] / table["drawn"]).groupby("temperature")["share"].mean()

    assert [row["arm"] for row in results["tuned"]] == ["base", "grpo", "bonus"]
    for row in results["tuned"]:
        arm = row["arm"]
        folders = ["base"] if arm == "base" else [f"{arm}-0", f"{arm}-1"]
        share = pd.concat(map(shares, folders), axis=1).mean(axis=1)
        assert (row["temperature"], row["score"]) == (share.idxmax(), pytest.approx(share.max()))
        if arm != "base":
            assert [each["score"] for each in row["rates"]] == pytest.approx(
                [shares(f"{arm}-lr={lr}").max() for lr in ("0.3", "1e-06")]
            )
            assert row["lr"] == 1e-6  # a step of 0.3 destroys the model
            assert entry(results, arm, 0)["lr"] == 1e-6
    tuned_on = set(pd.read_parquet(tmp_path / "tune" / "base" / "outcomes.parquet")["problem"])
    assert tuned_on.isdisjoint(pd.read_parquet(tmp_path / "problems.parquet")["problem"])
    compared = {(row["arm"], row["against"]) for row in results["at_chosen"]}
    assert compared == {("grpo", "base"), ("bonus", "base"), ("bonus", "grpo")}
    assert "Chosen on the tuning split, by pass@1" in page(results)


# --- the numbers


def outcomes_of(correct_TP, *, temperatures=(0.5, 1.0), drawn=10, kl_TP=None, distinct_TP=None) -> Outcomes:
    correct = np.asarray(correct_TP, dtype=float)
    values = {name: np.ones_like(correct) for name in COUNTS} | {
        "correct": correct,
        "drawn": np.full_like(correct, drawn),
    }
    if kl_TP is not None:
        values["kl_sum"] = np.asarray(kl_TP, dtype=float)
    if distinct_TP is not None:
        values["distinct"] = np.asarray(distinct_TP, dtype=float)
    return Outcomes(temperatures, tuple(f"p{i}" for i in range(correct.shape[1])), values)


def policies_of(*outcomes: Outcomes, arm: str = "a") -> Policies:
    return Policies(arm, tuple(range(len(outcomes))), outcomes)


def test_a_difference_over_three_seeds_worked_by_hand():
    # Seeds' means 1, 2, 3; problems' means 1 and 3. Variance over problems: 2 / 2 = 1, over seeds 1 / 3.
    a_SP = np.array([[0.0, 2.0], [1.0, 3.0], [2.0, 4.0]])
    found = difference(a_SP, np.zeros((1, 2)))
    degrees = (4 / 3) ** 2 / (1 / 1 + (1 / 9) / 2)
    half = stats.t.ppf(0.975, degrees) * (4 / 3) ** 0.5
    assert found.value == pytest.approx(2)
    assert found.per_seed == (1, 2, 3)
    assert (found.low, found.high) == (pytest.approx(2 - half), pytest.approx(2 + half))
    assert "problems and seeds both vary" in found.how


@pytest.mark.parametrize("of_seed", [0.0, 0.05, 0.3])
def test_the_interval_over_three_seeds_covers_the_truth(of_seed):
    random, n = np.random.default_rng(1), 800
    hits = 0
    for _ in range(n):
        values_SP = random.normal(0, 0.5, (3, 128)) + random.normal(0, 1, 128) + random.normal(0, of_seed, (3, 1))
        found = difference(values_SP, np.zeros((1, 128)))
        hits += found.low < 0 < found.high
    assert 0.92 <= hits / n <= 0.98


def test_equal_arms_have_no_interval():
    found = difference(np.full((3, 9), 0.5), np.full((3, 9), 0.5))
    assert (found.value, found.low, found.high) == (0, None, None)


def test_a_mean_of_shares_stays_between_0_and_1():
    values_SP = np.zeros((3, 40))
    values_SP[:, 0] = 1
    assert mean_over(values_SP, bounded=True).low >= 0


def test_the_curve_is_read_on_straight_lines_and_at_its_best():
    xs, ys = np.array([[0.1, 0.3, 0.2]]), np.array([[0.2, 0.6, 0.9]])
    assert reach(np.array([0.15]), xs, ys)[0] == pytest.approx(0.3)
    assert reach(np.array([0.25]), xs, ys)[0] == pytest.approx(0.75)  # 0.5 on the first line, 0.75 on the second
    assert reach(np.array([0.25]), xs[:, ::-1], ys[:, ::-1])[0] == pytest.approx(0.75)
    assert np.isnan(reach(np.array([0.31]), xs, ys)[0])
    assert reach(np.array([0.3]), np.array([[0.3, 0.3]]), np.array([[0.1, 0.4]]))[0] == 0.4


def test_matched_pass_at_1_worked_by_hand():
    # Two problems, 10 samples. The base: pass@1 0.2 at T = 0.5 (4 and 0 right), 0.1 at T = 1 (1 and 1). The arm: 0.15 (2, 1).
    # pass@2 of c right in 10: c = 1: 0.2, c = 2: 17/45, c = 4: 2/3. Halfway on the base's curve: (1/3 + 0.2) / 2 = 4/15.
    base = policies_of(outcomes_of([[4, 0], [1, 1]]), arm="base")
    arm = policies_of(outcomes_of([[0, 0], [2, 1]]))
    found = matched(arm, base, by="pass@1", k=2, at=1)
    assert found.value == pytest.approx((17 / 45 + 0.2) / 2 - 4 / 15)
    assert found.per_seed == (pytest.approx(found.value),)


def test_matched_kl_worked_by_hand():
    # KL per token: sums over sums of tokens, all 1 here. The base's is 0.4 at T = 0.5 and 0 at T = 1, the arm's 0.1.
    base = policies_of(outcomes_of([[4, 4], [2, 2]], kl_TP=[[0.4, 0.4], [0, 0]]), arm="base")
    arm = policies_of(outcomes_of([[0, 0], [3, 5]], kl_TP=[[9, 9], [0.05, 0.15]]))
    found = matched(arm, base, by="kl_to_base", k=1, at=1)
    assert found.value == pytest.approx(0.4 - (0.2 + 0.25 * 0.2))


def test_matched_different_answers_worked_by_hand():
    # The base: pass@1 0.2 with 4 answers at T = 0.5, 0.1 with 8 at T = 1, so 6 at the arm's 0.15; the arm has 9.
    base = policies_of(outcomes_of([[4, 0], [1, 1]], distinct_TP=[[3, 5], [7, 9]]), arm="base")
    arm = policies_of(outcomes_of([[0, 0], [2, 1]], distinct_TP=[[1, 1], [8, 10]]))
    assert matched_values(arm, base, "distinct", by="pass@1", at=1).value == pytest.approx(9 - 6)


def test_an_arm_beyond_the_curve_says_so():
    base = policies_of(outcomes_of([[4, 0], [1, 1]]), arm="base")
    found = matched(policies_of(outcomes_of([[0, 0], [9, 9]])), base, by="pass@1", k=2, at=1)
    assert found.value is None
    assert found.missing == "a temperature at which base has pass@1 0.900: that is above its 0.100 to 0.200"


def test_an_arm_that_is_its_reference_gains_nothing_at_its_own_pass_at_1():
    random = np.random.default_rng(0)
    many = [outcomes_of(random.integers(0, 11, (2, 60)) // [[1], [2]]) for _ in range(3)]
    found = matched(policies_of(*many), policies_of(*many, arm="b"), by="pass@1", k=4, at=1)
    assert found.value == pytest.approx(0, abs=1e-12)


def test_unsolved_by_both_is_unsolved_in_every_seed_of_both():
    a = policies_of(outcomes_of([[0, 0, 0, 1]], temperatures=(1.0,)), outcomes_of([[0, 1, 0, 0]], temperatures=(1.0,)))
    b = policies_of(outcomes_of([[0, 0, 2, 0]], temperatures=(1.0,)))
    assert unsolved_by_both(a, b, 0).tolist() == [True, False, False, False]


def test_outcomes_come_back_from_their_file(tmp_path):
    made = outcomes_of(np.arange(6).reshape(2, 3), kl_TP=np.ones((2, 3)))
    made.save(tmp_path / "x.parquet")
    found = Outcomes.load(tmp_path / "x.parquet")
    assert (found.temperatures, found.problems) == (made.temperatures, made.problems)
    assert all((found.values_TP[name] == made.values_TP[name]).all() for name in COUNTS)


def test_the_kl_to_the_base_is_that_of_two_softmaxes_at_two_temperatures(tmp_path):
    model, base = (GPT(GPTConfig(TOKENS.size, width=16, layers=1, heads=2), seed=seed).double() for seed in (0, 1))
    with torch.no_grad():
        for weight in (*model.parameters(), *base.parameters()):
            weight.mul_(8)  # fresh weights are so small that all softmaxes are flat
    tokens = TOKENS
    prompts = [tokens.encode("1,2=3>"), tokens.encode("4,5,6=15>")]
    samples = generate(model, prompts, seeds=[1, 2], samples=2, max_tokens=5, pad=tokens.pad, stop=tokens.stop)
    found = reference_kl(model, base, samples, temperature=0.5, ref_temperature=2.0).detach()

    def logits(net: GPT, ids: list[int]) -> torch.Tensor:
        """Of the last position, by a plain pass over one unpadded sequence."""
        n = len(ids)
        bias = torch.full((n, n), -torch.inf, dtype=torch.float64).triu(1)[None, None]
        with torch.no_grad():
            hidden = net(torch.tensor([ids]), torch.arange(n)[None], bias)[0, -1]
            return hidden @ net.head.weight_VD.T + net.head.bias_V

    for row in range(4):
        ids = list(prompts[row // 2])
        for t in range(int(samples.mask_BT[row].sum())):
            p, q = (torch.softmax(logits(net, ids) / at, -1).numpy() for net, at in ((model, 0.5), (base, 2.0)))
            assert float(found[row, t]) == pytest.approx(rel_entr(p, q).sum(), rel=1e-6)
            ids.append(int(samples.ids_BT[row, t]))


# --- the page and the command


def test_the_page_marks_what_is_sure(done):
    _, results = done
    row = next(
        r
        for r in results["differences"]
        if (r["arm"], r["against"], r["name"], r["temperature"]) == ("bonus", "grpo", "pass@1", 1.0)
    )
    sure = json.loads(json.dumps(results))
    told = next(r for r in sure["differences"] if r == row)
    told |= {"value": 0.125, "low": 0.05, "high": 0.2}
    assert "**+0.125** [+0.050, +0.200]" in page(sure)
    told |= {"low": -0.05}
    assert "| +0.125 [-0.050, +0.200]" in page(sure)
    told |= {"value": -0.125, "low": -0.2, "high": -0.05}
    assert "**-0.125** [-0.200, -0.050]" in page(sure)


def test_the_page_sums_up_the_law_by_arm(done):
    def fit(arm: str, ceiling: float, error: float | None) -> dict:
        past = [{"share": 0.4, "state": "no fit" if error is None else "fit", "error": error}]
        return {"arm": arm, "state": "fit", "ceiling": {"value": ceiling}, "r2": 0.8, "backtest": past, "reason": ""}

    fits = [fit("grpo", 0.4, -0.2), fit("grpo", 0.5, 0.1), fit("bonus", 0.3, None), {"arm": "bonus", "state": "no fit"}]
    told = page(done[1] | {"law": fits})
    assert "| grpo | 2 of 2 | 0.450 | 0.80 | 0.150 (2 runs) |" in told
    assert "| bonus | 1 of 2 | 0.300 | 0.80 | – |" in told


def toml(path: Path, out: Path, model: Path) -> Path:
    path.write_text(
        f"""out = "{out}"
seeds = [0]
evaluation = {{problems = 8, samples = 2, temperatures = [1.0]}}
[base]
model = "{model}"
task = "countdown:numbers=3,largest=12"
sampling = {{prompts = 2, samples = 2, max_tokens = 8}}
learning = {{steps = 1}}
evaluation = {{problems = 4, samples = 1}}
[arms.grpo]
[arms.mean]
method.advantage = "group_mean"
"""
    )
    return path


def test_the_command_prints_json_alone_or_the_page(tmp_path):
    path = toml(tmp_path / "study.toml", tmp_path / "out", tiny_model(tmp_path))
    found = CliRunner().invoke(app, ["study", str(path), "base.learning.lr=0.01", "--json"])
    results = json.loads(found.stdout)
    assert results == json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["recipes"]["mean"]["settings"]["learning"]["lr"] == 0.01
    assert results["recipes"]["mean"]["settings"]["method"]["advantage"] == "group_mean"
    assert results["command"] == f"equipoise study {path} base.learning.lr=0.01"
    assert "3/3 mean-0 finished" in found.stderr
    again = CliRunner().invoke(app, ["study", str(path), "base.learning.lr=0.01"])
    assert "| grpo | " in again.stdout


def test_the_command_refuses_unequal_arms_in_one_line(tmp_path):
    path = toml(tmp_path / "study.toml", tmp_path / "out", tmp_path / "m.safetensors")
    found = CliRunner().invoke(app, ["study", str(path), "arms.mean.learning.steps=2"])
    assert isinstance(found.exception, UsageError)
    assert "arms must draw equal rollouts" in str(found.exception)
    assert not (tmp_path / "out").exists()
