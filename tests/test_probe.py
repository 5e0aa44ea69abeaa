"""The variance probe on samplers with known truth: an optimum inside, the arms at equal tokens, and what it tells one to use."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import defaultdict
from hashlib import blake2b
from itertools import combinations, pairwise

import numpy as np
import pandas as pd
import pytest
from making import run_of
from scipy import stats
from scipy.integrate import quad
from scipy.optimize import minimize_scalar

from equipoise.base import Answer, Chunk, Grade, Problem, Question, Sampling
from equipoise.catalogue.build import build
from equipoise.diagnosis.verdict import diagnose
from equipoise.errors import UsageError
from equipoise.infer.ledger import Ledger
from equipoise.infer.metered import Metered
from equipoise.lab.probe import probe
from equipoise.lab.probe_forcing import Forcing
from equipoise.lab.probe_numbers import Setting
from equipoise.lab.probe_pool import probe_pool
from equipoise.measures.widening import widening_optimum
from equipoise.rollouts.folder import info_of
from equipoise.samplers.scripted import Scripted

BUDGETS = (10, 20, 40, 80, 160)
RIGHT = {10: 0.3, 20: 0.55, 40: 0.75, 80: 0.6, 160: 0.4}  # share of right answers, highest inside
KINDS = {10: 1, 20: 1, 40: 8, 80: 16, 160: 32}  # different wrong answers: the spread grows with the length


class Numbers:
    """A task whose right answer is 0."""

    env = "numbers"

    def problems(self, seed, n, *, split="train"):
        return [Problem(f"n{i}", "numbers", f"problem {i}", reference="0") for i in range(n)]

    def read(self, problem, text):
        return Answer(text) if text.isdigit() else None

    def grade(self, problem, completion):
        answer = self.read(problem, completion.text or "")
        outcome = "unparsable" if answer is None else "right" if answer.text == "0" else "wrong"
        return Grade(answer, outcome, float(outcome == "right"))


class Widening:
    """Thinks for as long as it may. What it answers is drawn from a distribution that widens with the length."""

    def __init__(self, kill_at=None):
        self.kill_at, self.drawn = kill_at, 0

    def draw(self, prompt, how, *, n, seed, first=0):
        return WideningDraw(self, how.max_tokens, [(seed, first + i) for i in range(n)])

    def answer(self, length, seed, number):
        self.drawn += 1
        if self.drawn == self.kill_at:
            os.kill(os.getpid(), signal.SIGINT)
        u, v = (
            np.frombuffer(blake2b(f"{length},{seed},{number}".encode(), digest_size=16).digest(), np.uint64) / 2.0**64
        )
        return "0" if u < RIGHT[length] else str(1 + int(v * KINDS[length]))


class WideningDraw:
    def __init__(self, sampler, length, numbers):
        self.sampler, self.length, self.left, self.why = sampler, length, dict(enumerate(numbers)), {}

    def __aiter__(self):
        return self

    def cancel(self, index, why):
        self.why[index] = why

    async def __anext__(self):
        if not self.left:
            raise StopAsyncIteration
        index = min(self.left)
        number = self.left.pop(index)
        if index in self.why:
            return Chunk(index, finish=self.why[index])
        return Chunk(index, self.sampler.answer(self.length, *number), n_tokens=self.length, finish="stop")


def table_of(folder):
    return pd.concat([pd.read_parquet(path) for path in sorted(folder.glob("rollouts/*/*.parquet"))])


def at(found, name):
    return {int(n.at["budget"]): n for n in found.estimates if n.name == name and "budget" in n.at}


@pytest.fixture(scope="module")
def widening(tmp_path_factory):
    out = tmp_path_factory.mktemp("probe") / "run"
    return probe(Widening(), Numbers(), out, budgets=BUDGETS, samples=16, problems=60, chat=False), out


# --- a distribution that widens --------------------------------------------------------------------------------------------


def test_an_optimum_inside_is_found_and_called_by_its_name(widening):
    found, _ = widening
    best = next(number for number in found.estimates if number.name == "best_budget")
    assert (best.value, best.low, best.high) == (40, 40, 40)
    assert found.inflated is True
    assert found.says().startswith("Variance inflation is present")
    spread = [number.value for number in at(found, "answer_entropy").values()]
    assert spread == sorted(spread)
    assert spread[-1] > 2 * spread[0]


def test_the_folder_is_one_that_diagnose_reads(widening):
    _, out = widening
    assert diagnose(out).verdict == "inference-time variance inflation"


def test_every_number_of_the_table_is_what_pandas_counts(widening):
    found, out = widening
    rows = table_of(out)
    assert (
        (found.rollouts, found.problems, found.tokens) == (len(rows), 60, rows["n_tokens"].sum()) == (4800, 60, 297600)
    )
    means = rows.groupby("budget")["correct"].mean()
    for budget, number in at(found, "accuracy").items():
        assert number.value == pytest.approx(means[budget])
        assert number.at["tokens"] == rows[rows["budget"] == budget]["n_tokens"].mean()
    cells = dict(zip(found.heads(), found.rows()[2], strict=True))
    assert (cells["budget"], cells["tokens"], cells["samples"]) == ("40", "40.0", "1")


def test_the_parallel_arm_grows_with_the_tokens_and_beats_the_sequential_one(widening):
    found, _ = widening
    parallel, gain = at(found, "parallel_accuracy"), at(found, "parallel_minus_sequential")
    values = [parallel[budget].value for budget in BUDGETS]
    assert all(later >= earlier - 1e-9 for earlier, later in pairwise(values))
    assert [parallel[budget].at["samples"] for budget in BUDGETS] == [1, 1, 1, 2, 4]
    assert [gain[budget].value for budget in BUDGETS[:3]] == [0, 0, 0]
    assert gain[160].low > 0.2


def test_a_vote_at_equal_tokens_is_that_over_every_four_of_the_samples(widening):
    found, out = widening
    rows, right = table_of(out), []
    for _, answers in rows[rows["budget"] == 40].groupby("prompt_id")["answer"]:
        for four in combinations(answers.tolist(), 4):
            most = max(four.count(answer) for answer in four)
            leaders = {answer for answer in four if four.count(answer) == most}
            right.append(("0" in leaders) / len(leaders))
    assert at(found, "parallel_accuracy")[160].value == pytest.approx(np.mean(right), abs=1e-9)


def test_what_it_tells_one_to_use_can_be_built_and_keeps_to_its_tokens(widening):
    found, _ = widening
    use = found.advice
    assert (use.setting.spec, use.spend, use.tokens) == ("parallel:n=4,budget=160", 160, 160)
    assert use.setting.openai == {"max_completion_tokens": 40, "n": 4}
    assert use.gain.low > 0.2
    assert "max_completion_tokens=40, n=4" in found.about()[-1]
    assert found.to_dict()["use"]["strategy"] == use.setting.spec
    question = Question("q", "x", lambda c: Answer(c.text), Sampling(max_tokens=1000))
    ledger = Ledger(160)
    choice = asyncio.run(build(use.setting.spec)(question, Metered(Widening(), ledger)))
    assert (len(choice.drawn), ledger.spent.generated) == (4, 160)


@pytest.mark.parametrize("length", [1, 13, 39, 40, 41, 500])
def test_a_split_budget_is_never_overspent(length):
    """Whatever the completions' lengths, and the last is cut rather than let over."""
    question = Question("q", "x", lambda c: Answer(c.text or ""), Sampling(max_tokens=1000))
    for budget in (40, 100, 159, 160):
        ledger = Ledger(budget)
        sampler = Scripted(lambda p, i: "7" * length)
        asyncio.run(build("parallel:n=4,budget=160")(question, Metered(sampler, ledger)))
        assert ledger.spent.generated == sampler.generated <= min(budget, 4 * length)


def test_a_smaller_purse_buys_a_smaller_setting(widening):
    _, out = widening
    assert probe_pool(out, spend=80).advice.setting == Setting(40, 2, None) or probe_pool(out, spend=80).advice.setting == Setting(40, 1, None)  # fmt: skip
    assert probe_pool(out, spend=25).advice.setting.cap == 20
    with pytest.raises(UsageError, match="pay for no completion of any budget; the cheapest takes 10"):
        probe_pool(out, spend=5)


def test_the_accuracy_of_the_setting_is_not_the_one_that_chose_it():
    """Six budgets that are all alike: the best of them looks better than it is, measured on the problems that chose it."""
    rng = np.random.default_rng(0)
    gains = []
    for _ in range(60):
        rows = [
            {
                "prompt_id": f"p{p}",
                "answer": str(int(right)),
                "correct": bool(right),
                "budget": b,
                "n_tokens": 10,
                "sample_index": 0,
            }
            for p in range(16)
            for b, right in zip((1, 2, 3, 4, 5, 6), rng.random(6) < 0.5, strict=True)
        ]
        gains.append(probe_pool(run_of(rows)).advice.accuracy.value - 0.5)
    assert abs(np.mean(gains)) < 3 * np.std(gains) / len(gains) ** 0.5
    assert np.mean(gains) < 0.05  # the best of six has +0.16 on the problems that chose it


# --- started again, stopped early ------------------------------------------------------------------------------------------


def test_started_again_it_draws_only_what_is_missing(widening):
    found, out = widening
    sampler = Widening()
    again = probe(sampler, Numbers(), out, budgets=BUDGETS, samples=16, problems=60, chat=False)
    assert sampler.drawn == 0
    assert again.to_dict() == found.to_dict()


def test_ctrl_c_keeps_problems_that_can_be_compared(tmp_path):
    sampler = Widening(kill_at=4 * 5 * 12 + 3)
    found = probe(sampler, Numbers(), tmp_path / "s", budgets=BUDGETS, samples=4, problems=60, chat=False, at_once=1)
    assert found.interrupted
    assert 10 <= found.problems <= 13
    assert len(found.rows()) == 5


def test_nothing_drawn_is_not_enough_data(tmp_path):
    found = probe(Widening(kill_at=1), Numbers(), tmp_path / "n", budgets=BUDGETS, samples=2, problems=9, chat=False, at_once=1)  # fmt: skip
    assert found.inflated is None
    assert "Not enough data" in found.says()
    assert found.to_dict()["use"] is None or found.problems > 1


# --- a limit on thinking, held from outside --------------------------------------------------------------------------------


def thinker(thought, answer="0"):
    """Thinks as long as it likes in one text; continued after an end marker, it answers."""

    def say(prompt, number):
        return answer if "</think>" in prompt else f"{'x' * thought}</think>{answer}"

    return Scripted(say, chunk=3)


def forced(sampler, budget, *, n=1, seed=0, first=0, answer=8):
    how = Sampling(max_tokens=budget + answer, thinking_budget=budget)

    async def go():
        draw = Forcing(sampler, name="it").draw("2+2=", how, n=n, seed=seed, first=first)
        return [chunk async for chunk in draw]

    return sorted(asyncio.run(go()), key=lambda chunk: chunk.index)


@pytest.mark.parametrize("budget", [0, 5, 20, 30])
def test_thinking_ends_at_its_budget_and_an_answer_follows(budget):
    sampler = thinker(20)
    (made,) = forced(sampler, budget)
    assert (made.text, made.finish) == ("0", "stop")
    assert made.n_tokens == sampler.generated
    assert len(made.thinking) == min(budget, 20)
    if budget == 0:
        assert "</think>" in sampler.prompts[0]  # the end marker at once


def test_a_completion_is_the_same_whichever_draw_it_comes_from():
    class Seeded:
        def draw(self, prompt, how, *, n, seed, first=0):
            return Scripted([f"</think>{seed % 1000}{first + i}" for i in range(first + n)]).draw(prompt, how, n=n, seed=seed, first=first)  # fmt: skip

    whole = [chunk.text for chunk in forced(Seeded(), 20, n=3)]
    assert len(set(whole)) == 3
    assert [forced(Seeded(), 20, first=i)[0].text for i in range(3)] == whole


def test_a_cancelled_completion_ends_with_its_word():
    async def go():
        how = Sampling(max_tokens=2000, thinking_budget=1000)
        draw = Forcing(thinker(1500), name="it").draw("2+2=", how, n=2, seed=0)
        draw.cancel(1, "cancelled")
        return {chunk.index: chunk.finish async for chunk in draw}

    assert asyncio.run(go()) == {0: "stop", 1: "cancelled"}


def test_a_probe_of_thinking_records_budgets_from_none(tmp_path):
    sampler = thinker(20)
    found = probe(
        sampler, Numbers(), tmp_path / "t", budgets=(0, 10, 30), answer_tokens=8, samples=2, problems=12, chat=False
    )
    rows = table_of(tmp_path / "t")
    assert rows.groupby("budget")["n_thinking"].max().fillna(0).tolist()[:2] == [0, 10]
    assert rows["correct"].all()
    assert rows["n_tokens"].sum() == sampler.generated == found.tokens
    assert info_of(tmp_path / "t" / "run.json").model == "Scripted"
    # All are right: the cheapest is as good as any.
    assert found.advice.setting.spec == "cap:tokens=0,answer=8"
    strategy = build(found.advice.setting.spec)
    assert (strategy.tokens, strategy.answer) == (0, 8)


def test_other_marks_of_thinking_are_said_in_the_spec(tmp_path):
    def say(prompt, number):
        return "0" if "|" in prompt else "xxxxxx|0"

    found = probe(
        Scripted(say), Numbers(), tmp_path / "t", budgets=(2, 4, 9), answer_tokens=8, samples=2, problems=12, chat=False,
        markers=("{", "|"), cue="Answer:",
    )  # fmt: skip
    strategy = build(found.advice.setting.spec)
    assert (strategy.end, strategy.cue, strategy.answer) == ("|", "Answer:", 8)
    with pytest.raises(UsageError, match="comma"):
        Forcing(Scripted([]), name="it", cue="So, finally")


@pytest.mark.parametrize(
    ("setting", "spec", "fields"),
    [
        (Setting(64, 1, None), "parallel:n=1,budget=64", {"max_completion_tokens": 64, "n": 1}),
        (
            Setting(64, 3, 16),
            "parallel:n=3,budget=240,answer=16",
            {"max_completion_tokens": 80, "extra_body.thinking_token_budget": 64, "n": 3},
        ),
        (
            Setting(64, 1, 16, native=True),
            "cap:tokens=64,answer=16,native=true",
            {"max_completion_tokens": 80, "extra_body.thinking_token_budget": 64, "n": 1},
        ),
    ],
)
def test_a_setting_in_the_words_of_a_strategy_and_of_a_request(setting, spec, fields):
    assert (setting.spec, setting.openai) == (spec, fields)
    build(setting.spec)


# --- pools -----------------------------------------------------------------------------------------------------------------


def sweep_rows(budgets=(1, 2, 3), problems=12, samples=3, **cells):
    return [
        {"prompt_id": f"p{p}", "answer": "a", "correct": True, "budget": b, "n_tokens": 1, "sample_index": i, **cells}
        for p in range(problems)
        for b in budgets
        for i in range(samples)
    ]


def test_too_few_budgets_are_a_table_without_a_verdict():
    found = probe_pool(run_of(sweep_rows(budgets=(1, 2))))
    assert found.inflated is None
    assert [row[0] for row in found.rows()] == ["1", "2"]
    assert "three budgets or more" in found.says()


def test_pools_that_cannot_be_swept_are_refused():
    with pytest.raises(UsageError, match="names no budgets"):
        probe_pool(run_of([row | {"budget": None} for row in sweep_rows()]))
    both = [*sweep_rows(run_id="one"), *sweep_rows(run_id="two")]
    with pytest.raises(UsageError, match="2 kinds of rollouts"):
        probe_pool(run_of(both))


def test_completions_longer_than_their_budgets_were_limited_in_their_thinking():
    found = probe_pool(run_of([row | {"n_tokens": 40} for row in sweep_rows()]))
    assert found.advice.setting.answer == 512
    assert any("limits on the thinking" in line for line in found.warnings)
    assert probe_pool(run_of(sweep_rows())).advice.setting.answer is None
    assert probe_pool(run_of(sweep_rows()), answer_tokens=7).advice.setting.answer == 7


def test_the_entropy_of_known_answers_is_within_its_bootstrap_interval():
    share = np.asarray([0.5, 0.25, 0.125, 0.125])
    rng, rows, by_problem = np.random.default_rng(11), [], defaultdict(list)
    for p in range(60):
        for b in (1, 2, 3):
            answers = rng.choice(list("abcd"), size=64, p=share)
            if b == 2:
                by_problem[p] = answers
            rows += [
                {"prompt_id": f"p{p}", "answer": a, "correct": a == "a", "budget": b, "n_tokens": 1, "sample_index": i}
                for i, a in enumerate(answers)
            ]
    value = at(probe_pool(run_of(rows)), "answer_entropy")[2].value
    each = []
    for answers in by_problem.values():
        counts = pd.Series(answers).value_counts().to_numpy()
        each.append(stats.entropy(counts) + (len(counts) - 1) / (2 * counts.sum()))
    assert value == pytest.approx(np.mean(each))
    interval = stats.bootstrap((each,), np.mean, rng=np.random.default_rng(0), n_resamples=2000).confidence_interval
    assert interval.low < stats.entropy(share) < interval.high


# --- the Gaussian picture --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("gap", "reward_sd"), [(3.0, 1.0), (2.0, 1.5), (1.2, 1.0), (0.5, 1.0), (-3.0, 1.0)])
def test_the_best_width_is_where_the_integral_is_largest(gap, reward_sd):
    def expected_reward(variance):
        policy, reward = stats.norm(0, variance**0.5), stats.norm(gap, reward_sd)
        return quad(lambda x: policy.pdf(x) * reward.pdf(x), -30, 30, points=(0, gap), limit=200)[0]

    found = minimize_scalar(lambda v: -expected_reward(v), bounds=(1e-3, 20), method="bounded")
    assert widening_optimum(gap, reward_sd=reward_sd) == pytest.approx(found.x, abs=0.02)


def test_the_worked_case_and_bad_numbers():
    assert widening_optimum(3, reward_sd=1) == 8
    with pytest.raises(UsageError, match="above 0"):
        widening_optimum(1, reward_sd=0)


# --- the command -----------------------------------------------------------------------------------------------------------


def test_the_command_reads_a_pool(widening, equipoise):
    found, out = widening
    code, shown, _ = equipoise("probe", "--pool", out)
    assert code == 0
    assert "Variance inflation is present" in shown
    assert "parallel:n=4,budget=160" in shown
    code, shown, _ = equipoise("probe", "--pool", out, "--json")
    assert (code, json.loads(shown)) == (0, json.loads(json.dumps(found.to_dict())))


def test_the_command_draws_from_the_packaged_model(equipoise, tmp_path):
    pytest.importorskip("torch")
    words = ("probe", "--model", "packaged", "--task", "countdown:numbers=3", "--budgets", "6,9,20", "--problems", 12)
    code, shown, problem = equipoise(*words, "-n", 4, "-o", tmp_path / "r", "--json")
    told = json.loads(shown)
    assert (code, told["n"], told["budgets"]) == (0, 144, [6, 9, 20])
    assert "completions" in problem  # progress
    assert info_of(tmp_path / "r" / "run.json").model == "packaged"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "found none"),
        (("--model", "packaged", "--pool", "x"), "found --model and --pool"),
        (("--model", "packaged", "--budgets", "1,2"), "--out"),
        (("--model", "packaged", "-o", "x", "--budgets", "1,two"), "whole numbers"),
        (("--model", "packaged", "-o", "x"), "needs budgets"),
        (("--model", "packaged", "-o", "x", "--budgets", "1,2", "--thinking-field", "f"), "answer_tokens"),
        (
            ("--model", "packaged", "-o", "x", "--budgets", "1,2", "--thinking-field", "f", "--answer-tokens", 4),
            "only a server",
        ),
    ],
)
def test_the_command_tells_in_one_line_what_is_wrong(equipoise, tmp_path, monkeypatch, words, says):
    monkeypatch.chdir(tmp_path)
    code, shown, problem = equipoise("probe", *words)
    assert (code, shown) == (2, "")
    assert problem.count("\n") == 1
    assert says in problem
    assert not list(tmp_path.iterdir())
