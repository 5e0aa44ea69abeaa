"""The recipe of the model that thinks, and the rule by which it is measured."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from equipoise.base import Answer, Problem  # noqa: E402
from equipoise.lab import make_thinker as recipe  # noqa: E402
from equipoise.lab import measure_thinker as measuring  # noqa: E402
from equipoise.lab.make_thinker import TASK, TOKENS, Recipe, draw_batches, encode, pad_right, train_thinker  # noqa: E402
from equipoise.lab.measure_thinker import (  # noqa: E402
    _against_parallel,
    _entropy,
    _fall,
    _votes,
    answer_after,
    found_at,
    measure_thinker,
    think_long,
)
from equipoise.lab.search_traces import Piece, Trace  # noqa: E402
from equipoise.models.checkpoint import load_gpt  # noqa: E402
from equipoise.models.gpt import GPT  # noqa: E402
from equipoise.models.language_model import hidden_states  # noqa: E402
from equipoise.models.packaged import packaged_model  # noqa: E402
from equipoise.tasks.table import find_task  # noqa: E402

SMALL = Recipe(width=16, layers=1, heads=2, traces=60, steps=3, warmup=1, batch_tokens=600)


def test_a_demonstration_is_encoded_with_what_is_learnt():
    problem = Problem("p", "countdown", "1,2,3=6>")
    trace = Trace(problem, (Piece("[", True), Piece("1*2*3", False), Piece("]", False), Piece("3+2", True)))
    ids, learnt = encode(trace)
    assert TOKENS.decode(ids) == "1,2,3=6>[1*2*3]3+2"
    assert ids[-1] == TOKENS.stop[0]
    assert "".join(c for c, is_learnt in zip("1,2,3=6>[1*2*3]3+2", learnt, strict=False) if is_learnt) == "[3+2"
    assert learnt[-1]  # the end of the completion


def test_rows_are_padded_on_the_right_and_padding_is_not_learnt():
    ids_BS, real_BS, learnt_BS = pad_right([([5, 6], [False, True]), ([7], [True])])
    assert ids_BS.tolist() == [[5, 6], [7, TOKENS.pad]]
    assert real_BS.tolist() == [[True, True], [True, False]]
    assert learnt_BS.tolist() == [[False, True], [True, False]]


def test_every_demonstration_comes_once_before_one_comes_twice_in_batches_of_a_bounded_size():
    expected = sorted(tuple(encode(trace)[0]) for trace in recipe.all_traces(SMALL))
    seen, batches = [], draw_batches(SMALL, TOKENS, context=SMALL.context)
    while len(seen) < 60:
        ids_BS, real_BS, _ = next(batches)
        assert ids_BS.numel() <= 600 or len(ids_BS) == 1
        seen += [tuple(ids[:n]) for ids, n in zip(ids_BS.tolist(), real_BS.sum(1).tolist(), strict=True)]
    assert sorted(seen) == expected


def test_equal_recipes_give_equal_weights_and_only_what_is_learnt_moves_them(monkeypatch):
    first, heard = train_thinker(SMALL, every=1)
    again, _ = train_thinker(SMALL)
    assert all(torch.equal(a, b) for a, b in zip(first.state_dict().values(), again.state_dict().values(), strict=True))
    assert [at.step for at in heard] == [1, 2, 3]
    # At the start every token is about as likely as any other.
    assert heard[0].loss == pytest.approx(math.log(TOKENS.size - 1), abs=0.15)
    rows = [([5, 6, 7, 8], [False, False, True, False])]
    monkeypatch.setattr(recipe, "draw_batches", lambda *_, **__: iter([pad_right(rows)] * 30))
    model, losses = train_thinker(replace(SMALL, steps=30, lr=1e-2), every=1)
    assert losses[-1].loss < 0.3  # one token to learn, and it is learnt
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        logits = hidden_states(model, ids, torch.ones_like(ids, dtype=torch.bool)) @ model.embed.weight.T
    logits[..., TOKENS.pad] = -torch.inf
    logp = logits.log_softmax(-1)
    assert float(logp[0, 1, 7]) > -0.3  # after 5, 6
    assert float(logp[0, 2, 8]) < -1.0  # nobody asked for this one


# --- measuring ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wild():
    """Closes its thinking often."""
    model = GPT(replace(SMALL, context=80).config, seed=1)
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.2 * torch.randn(weight.shape, generator=draw)
    return model


def test_a_long_thought_passes_over_its_ends(wild):
    prompts = ["1,2,3=6>"] * 30
    thoughts = think_long(wild, TOKENS, prompts, most=40, seed=0)
    assert {len(ids) for ids in thoughts.ids} == {40}
    text = [TOKENS.decode(ids) for ids in thoughts.ids]
    assert not any("]" in thought for thought in text)
    ended = [end for end in thoughts.ended if end is not None]
    assert len(ended) > 10
    for thought, end in zip(text, thoughts.ended, strict=True):
        assert end is None or thought[end] == ","  # stands where the end stood
    shorter = think_long(wild, TOKENS, prompts, most=20, seed=0)
    first = [min(end if end is not None else 20, 20) for end in shorter.ended]
    for long, short, n in zip(thoughts.ids, shorter.ids, first, strict=True):
        assert long[:n] == short[:n]  # up to its own end a thought does not depend on the budget


def test_answers_come_after_so_much_of_the_thought(wild, monkeypatch):
    asked = []

    def spy(model, prompts, **settings):
        asked.extend(TOKENS.decode(prompt) for prompt in prompts)
        return real(model, prompts, **settings)

    real = measuring.generate
    thoughts = think_long(wild, TOKENS, ["1,2,3=6>"], most=12, seed=0)
    monkeypatch.setattr(measuring, "generate", spy)
    answer_after(wild, TOKENS, thoughts, [(0, 0), (0, 5)], seed=0)
    assert asked == ["1,2,3=6>[]", f"1,2,3=6>[{TOKENS.decode(thoughts.ids[0][:5])}]"]


def test_where_a_right_expression_first_stood():
    task = find_task(TASK)
    problem = task.pose([1, 2, 3], 6)
    assert found_at(task, problem, "1+2=3,1*2*3=7,3+2+1=6") == len("1+2=3,1*2*3=7")  # its value was misread
    assert found_at(task, problem, "3+2+1") is None  # it never said what it comes to
    assert found_at(task, problem, "3-2+1=2,") is None


def test_entropy_and_votes_by_hand():
    a, b = Answer("1+2+3"), Answer("1*2*3+1")
    # ln 2 of two answers, 0 of one; the abstention is left out.
    assert _entropy([a, b, a, b, a, a, None, a], 4).value == pytest.approx(math.log(2) / 2)
    task = find_task(TASK)
    posed = [task.pose([1, 2, 3], 6), task.pose([1, 2, 3], 6)]
    votes = _votes(task, posed, [a, b, a, a, b, b, b, None], 4)
    assert votes["1"] == [0.75, 0.0]
    assert votes["4"] == [1.0, 0.0]
    assert "8" not in votes


def test_a_fall_is_paired_and_parallel_takes_no_more_tokens():
    rows = [
        {"budget": 0, "right_P": [1, 1, 1, 1], "tokens": 10.0, "vote": {"1": [0.2, 0.4], "2": [0.5, 0.5]}},
        {"budget": 8, "right_P": [4, 2, 4, 3], "tokens": 19.0, "vote": {"1": [0.6, 0.6], "2": [0.7, 0.7]}},
        {"budget": 16, "right_P": [0, 4, 0, 4], "tokens": 20.0, "vote": {"1": [0.5, 0.5], "2": [0.5, 0.5]}},
        {"budget": 32, "right_P": [2, 1, 2, 0], "tokens": 21.0, "vote": {"1": [0.5, 0.7], "2": [0.5, 0.5]}},
    ]
    fall = _fall(rows, 4)  # 8 is best on the first and third problem; on the others 32 has 1 and 0 of 4 for its 2 and 3
    assert (fall["best_budget"], fall["last_budget"]) == (8, 32)
    assert fall["last_minus_best"]["value"] == pytest.approx(-0.5)
    first, second = _against_parallel(rows)  # two of 10 tokens are no more than 20 or 21; two of 19 are
    for only, budget, gap in ((first, 16, 0.0), (second, 32, 0.1)):
        assert (only["budget"], only["of"], only["of_budget"], only["of_tokens"]) == (budget, 2, 0, 20.0)
        assert only["one_minus_vote"]["value"] == pytest.approx(gap)


def test_measuring_holds_together(wild):
    told = measure_thinker(wild, TOKENS, find_task(TASK), problems=6, samples=4, budgets=(0, 8, 30))
    assert [row["budget"] for row in told["capped"]] == [row["budget"] for row in told["forced"]] == [0, 8, 30]
    assert told["capped"][0]["right_P"] == told["forced"][0]["right_P"]
    assert told["forced"][2]["tokens"] >= told["capped"][2]["tokens"] >= told["capped"][0]["tokens"]
    assert all(row["tokens"] >= 3 for row in told["capped"])
    assert np.isfinite(told["capped"][2]["answer_entropy"]["value"])


def test_the_packaged_thinker_is_of_this_recipe_and_thinking_pays():
    path = packaged_model("thinker")
    assert path.stat().st_size < 3_000_000
    model, tokens = load_gpt(path)
    assert model.config == Recipe().config
    assert tokens == TOKENS
    told = measure_thinker(model.float(), tokens, find_task(TASK), problems=40, samples=4, budgets=(0, 96))
    at_once, later = (row["accuracy"]["value"] for row in told["capped"])
    # Shares near .34 and .7 of 160 draws each.
    assert later - at_once > 0.15
    assert told["forced"][1]["accuracy"]["value"] < later  # made to go on, it loses what it had
