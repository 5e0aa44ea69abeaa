"""The training benchmark on a batch that takes moments: both trainers do the same work, and what is told adds up."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="needs trl: pip install 'equipoise[trl]'")

from benchmarks.train.arms import count
from benchmarks.train.case import Case, prompts_of, save_model
from benchmarks.train.run import check_work, main, times_trl, total

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[2]
SMALL = ["--prompts", "2", "--samples", "2", "--tokens", "5", "--rows", "2", "--warmup", "1", "--repeats", "1"]


def step(seconds: float, **counts: int) -> dict:
    known = {"prompt_tokens": 80, "generated": 20, "trained": 20, "passes": 2, "updates": 1}
    parts = {"sampling": seconds / 2, "scoring": 0.0, "update": seconds / 2, "rest": 0.0}
    return {"seconds": parts, "cpu_seconds": parts, "counts": known | counts, "entropy": 1.0, "peak_mb": 1}


def test_both_trainers_do_the_work_that_was_asked_for(tmp_path: Path) -> None:
    result = main([*SMALL, "--kl", "0.1", "--json", str(tmp_path / "results.json")])
    assert result["work"] == {
        "prompt_tokens": result["work"]["prompt_tokens"],
        "generated": 2 * 2 * 5,
        "trained": 2 * 2 * 5,
        "passes": 2,
        "updates": 1,
    }
    assert 60 <= result["work"]["prompt_tokens"] <= 120  # two questions of 30 to 60 words, numbers and signs
    for side in result["sides"].values():
        assert side["seconds"] == pytest.approx(sum(side["seconds_of"].values()), abs=1e-3)  # one step: medians add up
        assert all(side["seconds_of"][part] > 0 for part in ("sampling", "scoring", "update", "rest"))
        assert side["entropy"] == pytest.approx(8.27, abs=0.05)  # nearly uniform over 4,096: ln 4096 = 8.318
    assert result["times_trl"]["n"] == 1
    assert json.loads((tmp_path / "results.json").read_text())["results"] == [result]


def test_one_side_alone_leaves_the_other_null() -> None:
    result = main([*SMALL, "--only", "equipoise"])
    assert result["sides"]["trl"] is result["times_trl"] is None
    assert result["sides"]["equipoise"]["seconds_of"]["scoring"] == 0  # no KL, no reference


@pytest.mark.parametrize("name", ["generated", "trained", "passes", "updates"])
def test_unequal_work_is_refused(name: str) -> None:
    case = Case("small", prompts=2, samples=2, tokens=5, rows=2)
    equal = {"equipoise": [step(1.0)], "trl": [step(2.0)]}
    assert check_work(case, equal)["prompt_tokens"] == 80
    with pytest.raises(SystemExit, match="nothing to compare"):
        check_work(case, equal | {"trl": [step(2.0, **{name: 3})]})
    with pytest.raises(SystemExit, match="prompts of different lengths"):
        check_work(case, equal | {"trl": [step(2.0, prompt_tokens=81)]})


def test_ratios_are_paired_by_round() -> None:
    found = {"equipoise": [step(1.0), step(2.0), step(4.0)], "trl": [step(2.0), step(2.0), step(12.0)]}
    assert total(found["trl"][2]) == 12
    ratios = times_trl(found, "seconds")  # 2, 1, 3
    assert ratios is not None
    assert (ratios["median"], ratios["least"], ratios["most"], ratios["n"]) == (2, 1, 3, 3)
    assert (ratios["low"], ratios["high"]) == (1, 3)  # two of three draws are the least in 7 of 27 samples


def test_no_completion_can_end_early(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    save_model("small", tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id == len(model.lm_head.weight)
    for prompt in prompts_of(Case("small"), step=3):
        assert tokenizer.unk_token_id not in tokenizer(prompt)["input_ids"]


def test_a_study_is_counted_in_its_folders(tmp_path: Path) -> None:
    small = ["base.learning.steps=2", "base.sampling.prompts=2", "base.sampling.samples=4", "seeds=[0]"]
    small += ["evaluation.problems=8", "evaluation.samples=2", "evaluation.temperatures=[0.6,1.0]"]
    small += ["base.evaluation.problems=2", "base.evaluation.samples=2", f"out={tmp_path / 'study'}"]
    run = "from equipoise.cli.main import run; run()"
    subprocess.run([sys.executable, "-c", run, "study", "studies/quick.toml", *small], cwd=ROOT, check=True)
    # Two arms of one seed, 2 steps of 2 × 4 each; they and the base are evaluated on 8 × 2 at two temperatures.
    expected = {"runs": 2, "arms": 2, "seeds": 1, "steps": 4, "trained_on": 32, "evaluated": 96}
    assert count(tmp_path / "study") == expected
