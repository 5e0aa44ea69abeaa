"""Strategies compared on a pool: against exact maj@k, enumeration, and pandas over the answers that were written."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from dataclasses import dataclass
from itertools import permutations
from math import sqrt
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import pytest
from making import pool, run_of
from scipy.stats import t
from typer.testing import CliRunner

from equipoise.base import Answer, Choice, Grade, Question, Sampling
from equipoise.cli.main import app
from equipoise.errors import UsageError
from equipoise.infer.vote import Majority
from equipoise.lab.compare import compare, label_of, split_specs
from equipoise.lab.compare_files import draw_frontier, write_compared
from equipoise.lab.compare_run import Live, repeat_seeds
from equipoise.samplers.recorded import RecordedPool
from equipoise.samplers.scripted import Reply, Scripted
from equipoise.text.answers import canonical

REAL = Path(__file__).parent / "data" / "real"


def small_pool(**cells):
    """Three problems. Votes of all: a (right); b (wrong, tied with c, which is right); none has an answer."""
    cells = {"n_tokens": 10, **cells}
    return [
        *pool("p1", ["a", "a", "a", "b"], ["a"], **cells),
        *pool("p2", ["b", "b", "c", "c"], ["c"], **cells),
        *pool("p3", [None, None, None, None], [], **cells),
    ]


@dataclass(frozen=True, slots=True)
class Stubborn:
    """Two samples, and always the same answer, that of nobody where `says` is not among them."""

    says: str

    async def __call__(self, question, metered) -> Choice:
        drawn = await metered.draw(question, n=2).completions()
        return metered.choice(Answer(self.says), drawn)


def test_the_vote_over_all_is_exact():
    found = compare(run_of(small_pool()), ["majority:n=1"], repeats=1)
    whole = found.find("majority of all 4")
    # p1 right, p2 right in one of two ways to break its tie, p3 has no answer: (1 + 1/2 + 0)/3.
    assert whole.accuracy.value == pytest.approx(0.5)
    assert (whole.tokens.value, whole.samples.value) == (40, 4)
    assert whole.abstained == pytest.approx(4 / 12)
    assert whole.unanswered == whole.tied == pytest.approx(1 / 3)
    assert whole.agreement.value == 1
    assert found.reference == "majority of all 4"


def test_exact_is_the_mean_over_every_order():
    found = compare(run_of(small_pool()), ["majority:n=3"], repeats=1)

    def right(answers, truth):  # of the first three, ties shared
        share = 0.0
        for order in permutations(answers):
            cast = [a for a in order[:3] if a is not None]
            leaders = {a for a in cast if cast.count(a) == max(map(cast.count, cast))}
            share += (truth in leaders) / max(1, len(leaders)) / 24
        return share

    expected = (right("aaab", "a") + right("bbcc", "c") + right([None] * 4, "x")) / 3
    assert found.find("majority:n=3").exact == pytest.approx(expected)


def test_means_over_repeats_agree_with_exact_majority_within_their_error():
    found = compare(
        RecordedPool.of(REAL / "game24.parquet", count="samples"),
        ["majority:n=1", "majority:n=4", "majority:n=15"],
        repeats=24,
        seed=3,
        count="samples",
    )
    for arm in found.arms[1:]:
        assert 0 < arm.shuffle_error < 0.02
        assert abs(arm.accuracy.value - arm.exact) < 4 * arm.shuffle_error
    # Another oracle: maj@1 is the share of right samples.
    rows = pd.read_parquet(REAL / "game24.parquet")
    assert found.find("majority:n=1").exact == pytest.approx(rows["correct"].mean())
    assert found.find("majority:n=15").tokens.value == found.find("majority:n=15").samples.value == 15


def test_the_table_is_what_the_written_answers_say(tmp_path):
    # 40 problems, lengths that differ, some samples without an answer.
    rows = []
    for p in range(40):
        answers = ["a" if (p * 7 + i * i) % 5 < 2 else None if (p + i) % 7 == 0 else f"b{i % 2}" for i in range(9)]
        rows += [row | {"n_tokens": 5 + (p * 3 + i) % 11} for i, row in enumerate(pool(f"p{p}", answers, ["a"]))]
    found = compare(run_of(rows), ["majority:n=3", "majority:n=5"], repeats=4, reference="majority:n=3")
    write_compared(found, tmp_path)
    ran = pd.read_json(tmp_path / "choices.jsonl", lines=True)
    told = json.loads((tmp_path / "compare.json").read_text())
    assert told["schema"] == "equipoise.compare/1"
    assert [row["strategy"] for row in told["results"]] == ["majority:n=3", "majority:n=5"]
    per_problem = ran.groupby(["strategy", "question"])[["correct", "tokens", "samples"]].mean()
    for row in told["results"]:
        mine = per_problem.loc[row["strategy"]]
        assert row["accuracy"] == pytest.approx(mine["correct"].mean())
        assert row["low"] < row["accuracy"] < row["high"]
        assert (row["tokens_mean"], row["samples_mean"]) == pytest.approx(
            (mine["tokens"].mean(), mine["samples"].mean())
        )
        each = ran[ran["strategy"] == row["strategy"]]
        assert row["abstained"] == pytest.approx(each["abstained"].sum() / each["samples"].sum())
        assert row["tied"] == pytest.approx(each["tied"].mean())
        right = each.pivot_table(index="question", columns="repeat", values="correct", aggfunc="first").astype(float)
        assert row["shuffle_error"] == pytest.approx(sqrt((right.var(axis=1) / 4).sum()) / 40)
    differences = (per_problem.loc["majority:n=5"] - per_problem.loc["majority:n=3"])["correct"]
    five = told["results"][1]
    assert five["difference"] == pytest.approx(differences.mean())
    # The interval is symmetric, and at least as wide as Student's with n − 1 degrees of freedom.
    half = t.ppf(0.975, 39) * differences.std() / sqrt(40)
    assert five["difference_high"] - five["difference"] == pytest.approx(five["difference"] - five["difference_low"])
    assert five["difference_high"] - five["difference"] >= half * (1 - 1e-9)
    tokens = ran.groupby("strategy")["tokens"].sum()
    assert five["tokens_share"] == pytest.approx(tokens["majority:n=5"] / tokens["majority:n=3"])


def test_every_strategy_sees_the_same_samples_in_the_same_order():
    drawn = {}

    @dataclass(frozen=True, slots=True)
    class Noting:
        name: str
        n: int

        async def __call__(self, question, metered) -> Choice:
            got = await metered.draw(question, n=self.n).completions()
            drawn.setdefault((self.name, question.id), []).append([c.n_tokens for c in got])
            return metered.choice(None, got)

    rows = [row | {"n_tokens": i + 1} for i, row in enumerate(pool("p", ["a"] * 8, ["a"]))]
    compare(run_of(rows), [Noting("two", 2), Noting("all", 8)], repeats=5)
    pairs = list(zip(drawn["two", "p"], drawn["all", "p"], strict=True))
    assert all(two == whole[:2] and sorted(whole) == list(range(1, 9)) for two, whole in pairs)
    assert len({tuple(whole) for _, whole in pairs}) == 5  # another order every time


def test_agreement_is_with_the_leaders_of_all_samples():
    found = compare(run_of(small_pool()), [Stubborn("a"), Stubborn("c"), Stubborn("z")], repeats=2)
    # p1: a leads. p2: b and c are tied, and either agrees. p3: nobody answers, so no answer agrees.
    agreement = {arm.strategy: arm.agreement.value for arm in found.arms[1:]}
    assert agreement == {
        "Stubborn:says=a": pytest.approx(1 / 3),
        "Stubborn:says=c": pytest.approx(1 / 3),
        "Stubborn:says=z": 0,
    }


def test_no_answer_agrees_where_no_sample_has_one():
    found = compare(run_of(small_pool()), ["majority:n=4"], repeats=2)
    arm = found.find("majority:n=4")
    assert (arm.agreement.value, arm.unanswered) == (1, pytest.approx(1 / 3))


def test_an_answer_that_nobody_judged_is_neither_right_nor_wrong():
    found = compare(run_of(small_pool()), [Stubborn("z")], repeats=2)
    assert found.find("Stubborn:says=z").accuracy.value is None
    assert "verdicts" in found.find("Stubborn:says=z").accuracy.missing
    assert draw_frontier(found) is not None  # the reference has an accuracy


def test_pool_without_verdicts_has_tokens_and_agreement_only():
    rows = [{k: v for k, v in row.items() if k != "correct"} for row in small_pool()]
    found = compare(run_of(rows), ["majority:n=2"], repeats=2)
    arm = found.find("majority:n=2")
    # p3 has no answer at all, which counts as wrong whatever a checker would say.
    assert arm.accuracy.n in (0, 1, None)
    assert arm.tokens.value == 20
    assert arm.exact is None


def test_budget_is_per_question_and_hard():
    found = compare(run_of(small_pool()), ["majority:n=4"], repeats=2, budget=25)
    arm = found.find("majority:n=4")
    assert arm.tokens.value == 25  # the third sample is cut: it casts no vote
    assert arm.stopped_by == {"budget": 1.0}
    assert arm.exact is None


def test_cancelled_tokens_are_counted():
    spent = []

    @dataclass(frozen=True, slots=True)
    class Hasty:
        async def __call__(self, question, metered) -> Choice:
            async with metered.draw(question, n=4) as draw:
                async for _ in draw.finished():
                    draw.cancel_rest("consensus")
            choice = metered.choice(None, list(draw.done.values()))
            spent.append(choice.spent)
            return choice

    rows = [row | {"n_tokens": 10 if i == 0 else 500} for i, row in enumerate(pool("p", ["a"] * 4, ["a"]))]
    arm = compare(run_of(rows), [Hasty()], repeats=1).find("Hasty")
    (only,) = spent
    assert only.cancelled > 0
    assert arm.tokens.value == only.answer + only.cancelled


def test_counting_samples_needs_no_lengths():
    rows = [{k: v for k, v in row.items() if k != "n_tokens"} for row in small_pool()]
    with pytest.raises(UsageError, match="n_tokens"):
        compare(run_of(rows), ["majority:n=2"])
    found = compare(run_of(rows), ["majority:n=2"], count="samples", repeats=1)
    assert found.find("majority:n=2").tokens.value == 2
    assert "samples share" in found.heads()


def test_asking_for_more_than_recorded_is_an_error_unless_resampled():
    with pytest.raises(UsageError, match="4 were recorded"):
        compare(run_of(small_pool()), ["majority:n=5"], repeats=1)
    found = compare(run_of(small_pool()), ["majority:n=5"], repeats=1, resample=True)
    assert found.find("majority:n=5").samples.value == 5
    assert found.find("majority:n=5").exact is None
    assert compare(run_of(small_pool()), ["majority:n=2"], repeats=1, resample=True).arms[1].exact is None


def test_frontier_marks_what_nobody_beats():
    found = compare(run_of(small_pool()), ["majority:n=1", Stubborn("b")], repeats=8)
    marks = {arm.strategy: arm.on_frontier for arm in found.arms}
    # The stubborn one spends 2 samples and is never right; one sample costs less and sometimes is.
    assert marks == {"majority of all 4": True, "majority:n=1": True, "Stubborn:says=b": False}


def test_live_model_is_compared_with_its_first_strategy():
    def say(prompt, index):
        return Reply("7" if (index + len(prompt)) % 3 else "8", n_tokens=6)

    def ask(seed):
        def read(completion):
            return Answer(completion.text)

        def judge(completion):
            return Grade(Answer(completion.text), "right" if completion.text == "7" else "wrong", None)

        return [Question(f"q{i}", "x" * i, read, Sampling(max_tokens=8), judge, seed=seed) for i in range(6)]

    found = compare(Live("script", Scripted(say), ask), ["majority:n=3", "majority:n=1"])
    assert (found.repeats, found.samples, found.reference) == (1, None, "majority:n=3")
    # Of any three in a row two are right; of the first ones those with an odd remainder.
    assert found.find("majority:n=3").accuracy.value == 1
    assert found.find("majority:n=1").accuracy.value == pytest.approx(4 / 6)
    assert found.find("majority:n=1").agreement.value == pytest.approx(4 / 6)
    assert found.find("majority:n=1").tokens_share.value == pytest.approx(1 / 3)


def test_inside_a_running_loop():
    async def notebook():
        return compare(run_of(small_pool()), [Majority(2)], repeats=1)

    assert asyncio.run(notebook()).find("Majority:n=2").samples.value == 2


def test_ctrl_c_keeps_the_repeats_that_are_whole():
    def interrupt(done, total):
        assert total == 40 * 2 * 3
        if done == 3 * 5:  # the first strategy of the third repeat
            os.kill(os.getpid(), signal.SIGINT)

    found = compare(run_of(small_pool()), ["majority:n=1", "majority:n=2"], repeats=40, tick=interrupt)
    assert found.repeats == 2
    assert found.warnings == ("stopped after 2 of 40 repeats",)
    assert len(found.ran) == 2 * 2 * 3


def test_same_seed_same_table_and_other_seeds_share_no_order():
    one, two, other = (compare(run_of(small_pool()), ["majority:n=1"], repeats=6, seed=s) for s in (0, 0, 1))
    assert one.to_dict() == two.to_dict()
    assert [r.answer for r in one.ran] != [r.answer for r in other.ran]
    assert not set(repeat_seeds(0, 50)) & set(repeat_seeds(1, 50))
    assert repeat_seeds(0, 50)[:3] == repeat_seeds(0, 3)


@pytest.mark.parametrize(
    ("text", "specs"),
    [
        ("single", ["single"]),
        ("majority:n=8,single", ["majority:n=8", "single"]),
        ("esc:window=5,cap=40,majority:n=8", ["esc:window=5,cap=40", "majority:n=8"]),
        ("my.module:Mine:a=1,b=x, single", ["my.module:Mine:a=1,b=x", "single"]),
    ],
)
def test_specs_are_split_where_a_name_begins(text, specs):
    assert split_specs(text) == specs


@pytest.mark.parametrize("text", ["n=8", "single,n=8", "majority:n=8,,single", ""])
def test_settings_of_no_strategy_are_refused(text):
    with pytest.raises(UsageError, match="write"):
        split_specs(text)


def test_refusals_name_what_would_work():
    run = run_of(small_pool())
    with pytest.raises(UsageError, match=r"not a strategy: known are .*majority"):
        compare(run, ["gspo"])
    with pytest.raises(UsageError, match="no strategy was named"):
        compare(run, [])
    with pytest.raises(UsageError, match="1 or more"):
        compare(run, ["majority:n=2"], repeats=0)
    assert label_of(Majority(3)) == "Majority:n=3"


# --- Game of 24, computed again by a script that imports nothing of ours

FULL = Path(__file__).parents[2] / "shared" / "data"


def check_game24(path, folder, *, ns, repeats):
    from benchmarks.infer.check_game24 import check, read_pool

    found = compare(path, [f"majority:n={n}" for n in ns], repeats=repeats)
    write_compared(found, folder)
    compared = json.loads((folder / "compare.json").read_text())
    fine, lines = check(read_pool(path), compared)
    assert fine, "\n".join(lines)
    compared["results"][1]["exact"] += 0.001
    assert not check(read_pool(path), compared)[0]


def test_game24_excerpt_is_reproduced_by_the_independent_script(tmp_path):
    rows = pd.read_parquet(REAL / "game24.parquet")
    path = tmp_path / "game24.jsonl"
    with path.open("w") as handle:
        for row in rows.to_dict("records"):
            answer = canonical(row["answer"]) if isinstance(row["answer"], str) else None
            kept = {"prompt_id": row["prompt_id"], "answer": answer, "correct": row["correct"]}
            handle.write(json.dumps(kept | {"n_tokens": len(row["completion"].split())}) + "\n")
    check_game24(path, tmp_path, ns=(1, 8, 100), repeats=6)


@pytest.mark.slow
@pytest.mark.skipif(not FULL.is_dir(), reason="the full Game-of-24 rollouts are not beside this checkout")
def test_game24_pool_is_reproduced_by_the_independent_script(tmp_path):
    from benchmarks.infer.pools import write_pool

    path = tmp_path / "game24.jsonl"
    assert write_pool("game24", FULL, path) == 10_000
    check_game24(path, tmp_path, ns=(1, 8, 32), repeats=20)


# --- the command


@pytest.fixture
def pool_file(tmp_path):
    path = tmp_path / "pool.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in small_pool()))
    return path


def run_cli(*arguments):
    return CliRunner().invoke(app, ["compare", *map(str, arguments)])


def test_command_prints_only_json_with_json(pool_file, tmp_path):
    out = tmp_path / "out"
    told = run_cli(
        "--pool", pool_file, "--strategies", "majority:n=1,majority:n=3", "--json", "-o", out, "--repeats", 3
    )
    assert told.exit_code == 0, told.output
    found = json.loads(told.stdout)
    assert [row["strategy"] for row in found["results"]] == ["majority of all 4", "majority:n=1", "majority:n=3"]
    assert {"accuracy", "low", "high", "tokens_mean", "samples_mean", "abstained", "agreement"} <= set(
        found["results"][0]
    )
    assert found["repeats"] == 3
    assert len((out / "choices.jsonl").read_text().splitlines()) == 2 * 3 * 3
    labels = [text.text for text in ElementTree.parse(out / "frontier.svg").iter() if text.tag.endswith("text")]
    assert {"majority:n=1", "majority:n=3", "tokens a question", "accuracy"} <= set(labels)


def test_command_prints_a_table(pool_file):
    told = run_cli("--pool", pool_file, "--strategies", "majority:n=1", "--strategy", "majority:n=3", "--budget", 30)
    lines = told.stdout.splitlines()
    assert "3 problems × 4 samples, at most 30 tokens a question" in lines[0]
    assert lines[1].split()[:3] == ["strategy", "accuracy", "difference"]
    assert re.match(r"majority of all 4  0.500 \(no interval\) +\(reference\)  ", lines[2])
    assert "40.0" in lines[2]
    assert [line.split()[0] for line in lines[3:5]] == ["majority:n=1", "majority:n=3"]


def test_numbers_without_an_interval_say_why(pool_file):
    # Half of three problems is right by the vote over all, four ninths or so by fewer: too few for an interval, and the costs have theirs in the JSON.
    found = compare(pool_file, ["majority:n=1"], repeats=3)
    whole, first = found.rows()
    assert (whole[1], whole[2]) == ("0.500 (no interval)", "(reference)")
    assert re.fullmatch(r"0\.\d{3} \(no interval\)", first[1])
    assert re.fullmatch(r"[+-]0\.\d{3} \[.*\]", first[2])
    told = found.without_interval()
    assert re.fullmatch(
        r"no interval: 3 prompts are too few so close to \d to cover 95 % \(accuracy of majority of all 4\b.*\)",
        told[0],
    )
    assert " accuracy of majority:n=1" in told[0] or "(accuracy of majority:n=1)" in told[1]
    assert told[-1].startswith("tokens, tokens share and drawn have their intervals in the JSON")
    assert not any("difference of majority of all 4" in line for line in told)  # it is the reference
    assert all(line in found._repr_html_() for line in told)
    row = found.to_dict()["results"][1]
    assert all(row[f"{name}_low"] is not None or row["how"][name] for name in ("tokens", "tokens_share", "samples"))


def test_command_compares_on_a_model():
    pytest.importorskip("torch")
    told = run_cli(
        "--model", "packaged", "--task", "countdown", "--problems", 3, "--strategies", "majority:n=2,single", "--json"
    )
    assert told.exit_code == 0, told.output
    found = json.loads(told.stdout)
    assert (found["problems"], found["recorded"], found["reference"]) == (3, None, "majority:n=2")
    assert found["results"][1]["samples_mean"] == 1
    assert found["results"][1]["tokens_mean"] < found["results"][0]["tokens_mean"]


@pytest.mark.parametrize("arguments", [[], ["--model", "packaged"], ["--task", "countdown"]])
def test_command_needs_a_pool_or_a_model_with_a_task(arguments):
    told = run_cli("--strategies", "single", *arguments)
    assert "--pool" in str(told.exception)
    assert "--task" in str(told.exception)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--strategies", "nonsense"], "unknown method"),
        (["--strategies", "majority:n=9"], "were recorded"),
        (["--strategies", "majority:n=2", "--where", "env"], "COLUMN=VALUE"),
        (["--strategies", "majority:n=2", "--where", "run_id=other"], "run_id=other"),
    ],
)
def test_command_refuses_in_one_line(pool_file, arguments, says):
    told = run_cli("--pool", pool_file, *arguments)
    assert told.exit_code != 0
    assert isinstance(told.exception, UsageError)
    assert says in str(told.exception)
    assert "\n" not in str(told.exception)
