"""Evaluation in parts: the same completions and numbers as all at once, from batches that stay small."""

from __future__ import annotations

import re
from dataclasses import fields

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra train: pip install 'equipoise[train]'")

from tiny_training import TASK, TOKENS, Unjudged, make_model  # noqa: E402

from equipoise.base import Estimate  # noqa: E402
from equipoise.models.checkpoint import load_gpt  # noqa: E402
from equipoise.models.gpt import GPT  # noqa: E402
from equipoise.tasks.table import find_task  # noqa: E402
from equipoise.training import collect as collect_file  # noqa: E402
from equipoise.training.evaluate import Evaluated, evaluate, html_of_evaluations  # noqa: E402
from equipoise.training.recipe import Evaluation  # noqa: E402

HOW = Evaluation(problems=11, samples=6, temperatures=(1.0, 0.5))


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return load_gpt(make_model(tmp_path_factory.mktemp("model") / "tiny.safetensors", steps=150))[0]


@pytest.fixture
def drawn(monkeypatch):
    """How many completions every call of the sampler draws."""
    counts = []
    real = collect_file.generate

    def spy(model, prompts, **settings):
        counts.append(len(prompts) * settings["samples"])
        return real(model, prompts, **settings)

    monkeypatch.setattr(collect_file, "generate", spy)
    return counts


@pytest.mark.parametrize("task", [find_task(TASK), Unjudged(every=3)], ids=["countdown", "unjudged"])
def test_parts_find_what_one_draw_finds(policy, drawn, task):
    base = GPT(policy.config, seed=5)
    whole = evaluate(policy, TOKENS, task, HOW, max_tokens=9, reference=base)
    assert drawn == [66, 66]
    split = HOW.model_copy(update={"rows": 25})
    parts = evaluate(policy, TOKENS, task, split, max_tokens=9, reference=base)
    assert drawn[2:] == [24, 24, 18] * 2  # four problems of six at once
    for one, other in zip(whole, parts, strict=True):
        a, b = one.batch, other.batch
        assert (
            len({len(p.prompt) for p in a.problems[:4]} | {len(p.prompt) for p in a.problems[4:]}) > 1
        )  # some padding
        assert a.problems == b.problems
        assert [c.text for c in a.completions] == [c.text for c in b.completions]
        assert [c.token_ids for c in a.completions] == [c.token_ids for c in b.completions]
        assert a.grades == b.grades
        for name in (field.name for field in fields(a.groups)):
            np.testing.assert_array_equal(getattr(a.groups, name), getattr(b.groups, name), err_msg=name)
        assert a.answers_PG.tolist() == b.answers_PG.tolist()
        for name in ("prompt_ids_PL", "prompt_mask_PL", "prompt_B", "ids_BT", "mask_BT"):
            assert torch.equal(getattr(a.samples, name), getattr(b.samples, name)), name
        torch.testing.assert_close(a.samples.logp_BT, b.samples.logp_BT, rtol=0, atol=1e-4)
        torch.testing.assert_close(a.samples.entropy_BT, b.samples.entropy_BT, rtol=0, atol=1e-4)
        assert a.samples.finish == b.samples.finish
        assert [e.name for e in one.estimates] == [e.name for e in other.estimates]
        for e, f in zip(one.estimates, other.estimates, strict=True):
            assert (e.at, e.n) == (f.at, f.n)
            assert [e.value, e.low, e.high] == [
                v if v is None else pytest.approx(v, rel=1e-4) for v in (f.value, f.low, f.high)
            ]
    assert whole[0].value("kl_to_base") > 0.1


def test_a_part_is_never_less_than_a_problem(policy, drawn):
    how = Evaluation(problems=3, samples=6, rows=1)
    evaluate(policy, TOKENS, find_task(TASK), how, max_tokens=9)
    assert drawn == [6, 6, 6]


def test_evaluations_stand_beside_each_other_in_a_notebook():
    def at(temperature: float, *numbers: Estimate) -> Evaluated:
        return Evaluated(temperature, numbers, batch=None)

    before = [at(1.0, Estimate("pass@1", 0.25, 0.2, 0.3, 9), Estimate("distinct", 12.34))]
    after = [
        at(1.0, Estimate("pass@1", 0.5), Estimate("distinct", None), Estimate("<i>&", 1.0)),
        at(0.6, Estimate("pass@1", 0.75)),
    ]
    html = html_of_evaluations({"before": before, "<after>": after, "none": []}, title="run <1>")
    assert html.startswith("<p>run &lt;1&gt;</p><table><tr><th></th><th>before</th><th>&lt;after&gt;</th></tr>")
    assert [re.findall("<td>(.*?)</td>", row) for row in html.split("<tr>")[2:]] == [
        ["pass@1 at 1", "0.250 [0.200, 0.300]", "0.500"],
        ["distinct at 1", "12.3", "–"],
        ["&lt;i&gt;&amp; at 1", "–", "1.000"],
        ["pass@1 at 0.6", "–", "0.750"],
    ]
    assert "<td>pass@1</td>" in html_of_evaluations({"before": before})
