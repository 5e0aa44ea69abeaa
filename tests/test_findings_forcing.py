"""Thoughts made to go on past their end, a language model's tokenizer spelt out, and the table of both."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from benchmarks.findings import inflation_smollm2, thinking  # noqa: E402
from benchmarks.findings.forcing import GoOn, think_on  # noqa: E402
from benchmarks.findings.policies import Policy  # noqa: E402
from benchmarks.findings.spelt import Spelt  # noqa: E402
from benchmarks.findings.thinking import Thinking, think  # noqa: E402
from equipoise.base import Problem  # noqa: E402
from equipoise.config import load_config  # noqa: E402
from equipoise.errors import UsageError  # noqa: E402
from equipoise.lab.make_thinker import TOKENS, Recipe, encode  # noqa: E402
from equipoise.lab.search_traces import Piece, Trace  # noqa: E402
from equipoise.models.gpt import GPT  # noqa: E402
from equipoise.models.language_model import hidden_states  # noqa: E402
from equipoise.models.rows import Rows  # noqa: E402

TASK = "countdown:numbers=3"


# --- going on ----------------------------------------------------------------------------------------------------------------


def test_an_end_becomes_other_words_which_nothing_interrupts():
    # 8 and 9 end; 5 6 7 stand for an end. Two rows, what is sampled column by column:
    sampled = [(1, 8), (9, 2), (3, 9), (9, 3), (4, 4), (9, 9)]
    wanted = [(1, 5), (5, 6), (6, 7), (7, 3), (4, 4), (5, 5)]
    rows = Rows.start(None, torch.zeros(2, 6), pad=0)  # type: ignore[arg-type]
    going = GoOn((8, 9), (5, 6, 7), 2, device=torch.device("cpu"))
    for column, (ids, instead) in enumerate(zip(sampled, wanted, strict=True)):
        rows.last_R = torch.tensor(ids)
        rows.ids_BT[:, column] = rows.last_R
        rows.column_1 += 1
        going.pass_over(rows)
        assert tuple(rows.last_R.tolist()) == instead  # what the model reads next
    assert rows.ids_BT.T.tolist() == [list(each) for each in wanted]
    assert going.ended_R.tolist() == [1, 0]


@pytest.fixture(scope="module")
def wild():
    """Closes its thinking often."""
    model = GPT(Recipe(width=16, layers=1, heads=2, context=80).config, seed=1)
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.2 * torch.randn(weight.shape, generator=draw)
    return model


def slow_thought(model: GPT, prompt: str, again: str, most: int) -> tuple[list[int], int | None]:
    """The most likely token, one at a time, over the whole text."""
    ids, thought, ended, due = TOKENS.encode(prompt + "["), [], None, []
    while len(thought) < most:
        if not due:
            ids_1S = torch.tensor([ids + thought])
            hidden_D = hidden_states(model, ids_1S, torch.ones_like(ids_1S, dtype=torch.bool))[0, -1]
            token = int(model.head.logits(hidden_D[None])[0].argmax())
            if token in (TOKENS.encode("]")[0], *TOKENS.stop):
                ended = len(thought) if ended is None else ended
                due = TOKENS.encode(again)
            else:
                due = [token]
        thought.append(due.pop(0))
    return thought, ended


def test_a_cold_thought_is_that_of_a_slow_loop(wild):
    prompts = [f"{a},{b},3={c}>" for a in (1, 4) for b in (2, 7) for c in (6, 8, 9)]
    for again in (",", ":*,"):
        found = think_on(wild, TOKENS, prompts, samples=2, most=25, seed=0, temperature=1e-4, again=again, batch=6)
        slow = [slow_thought(wild, prompt, again, 25) for prompt in prompts for _ in range(2)]
        assert list(found.ids) == [ids for ids, _ in slow]
        assert list(found.ended) == [ended for _, ended in slow]
        assert any(ended is not None for ended in found.ended)
        assert found.prompts == tuple(prompt for prompt in prompts for _ in range(2))


def test_up_to_its_own_end_a_thought_is_the_same(wild):
    prompts = ["1,2,3=6>"] * 8
    comma, other = (think_on(wild, TOKENS, prompts, samples=3, most=40, seed=0, again=a) for a in (",", ":,"))
    assert comma.ended == other.ended
    for one, two, end in zip(comma.ids, other.ids, comma.ended, strict=True):
        assert one[:end] == two[:end]
        assert end is None or TOKENS.decode(two)[end : end + 2] in (":,", ":")
    assert len({tuple(ids) for ids in comma.ids}) > 20  # every prompt and sample has numbers of its own
    parts = think_on(wild, TOKENS, prompts, samples=3, most=40, seed=0, batch=7)
    assert parts == comma
    with pytest.raises(UsageError, match="exceed this model's 80"):
        think_on(wild, TOKENS, prompts, samples=1, most=72, seed=0)


def test_before_any_end_waiting_changes_nothing(monkeypatch):
    monkeypatch.setattr(thinking, "WAIT", "=,")  # the small model has no letters
    how = Thinking(problems=3, tune=1, samples=2, temperatures=(1.0,), capped=(4,), forced=(4, 40), wait=(4, 40))
    rows = think(Policy("taught", 0, "packaged:thinker", TASK, "cpu", 20), how)
    of = {
        mode: {(row["split"], row["problem"], row["budget"]): row for row in rows if row["mode"] == mode}
        for mode in ("own", "capped", "forced", "wait")
    }
    assert [len(each) for each in of.values()] == [4, 4, 8, 8]
    for key, row in of["wait"].items():
        counts = [
            {name: each[name] for name in ("correct", "distinct", "tokens", "had")} for each in (row, of["forced"][key])
        ]
        if key[2] == 4:
            assert counts[0] == counts[1]
    assert all(row["had"] == 0 for row in of["capped"].values())  # no attempt is done in four characters
    assert all(row["tokens"] >= 43 for key, row in of["wait"].items() if key[2] == 40)
    assert "maj@2" in next(iter(of["own"].values()))


# --- a tokenizer that joins --------------------------------------------------------------------------------------------------


class Joining:
    """Characters by their code, and )* as one token; every text begins with 999."""

    pad, stop = 0, (1,)

    def encode(self, prompt):
        joined = prompt.replace(")*", "\u0100")
        return [999, *map(ord, joined)]

    def decode(self, ids):
        return "".join(")*" if token == 0x100 else chr(token) for token in ids)


def test_a_spelt_text_has_a_token_for_every_character():
    tokens = Spelt(Joining())
    assert tokens.encode("(1)*2") == [*map(ord, "(1)*2")]
    assert tokens.encode("7:0Wait,4") == [*map(ord, "7:0Wait,4")]
    assert tokens.decode([ord("1"), 0x100]) == "1)*"
    assert tokens.thinking == ("[", "]")
    with pytest.raises(UsageError, match="no single token for é"):
        Spelt(TwoBytes(), alphabet="1é")


class TwoBytes(Joining):
    def encode(self, prompt):
        return list(prompt.encode())


def test_a_demonstration_is_spelt_with_what_is_learnt():
    problem = Problem("p", "countdown", "1,2,3=9>")
    trace = Trace(problem, (Piece("[", True), Piece("(1+2)", False), Piece("*3=9]", True), Piece("(1+2)*3", True)))
    ids, learnt = encode(trace, Spelt(Joining()))
    assert [*map(chr, ids[:-1])] == list("1,2,3=9>[(1+2)*3=9](1+2)*3")
    assert ids[-1] == 1
    assert "".join(chr(token) for token, is_learnt in zip(ids, learnt, strict=True) if is_learnt) == "[*3=9](1+2)*3\x01"


# --- the table ---------------------------------------------------------------------------------------------------------------


def make_rows() -> list[dict]:
    """Two problems of four samples, at the same numbers on both splits."""
    rows = []
    #        mode, budget: right answers to each problem, entropies, tokens, had
    cells = {
        ("own", 64): ((3, 3), (0.5, 0.7), 20, 0.8),
        ("capped", 8): ((1, 2), (1.0, 1.0), 10, 0.1),
        ("forced", 16): ((2, 2), (1.0, 1.2), 25, 0.2),
        ("forced", 64): ((0, 1), (1.5, 2.1), 70, 0.9),
        ("wait", 64): ((1, 1), (1.5, 2.0), 70, 0.5),
    }
    for split in ("tune", "test"):
        for (mode, budget), (right, entropy, tokens, had) in cells.items():
            for place, problem in enumerate("pq"):
                row = {"arm": "taught", "seed": 0, "temperature": 1.0, "split": split, "mode": mode, "budget": budget}
                row |= {"problem": problem, "drawn": 4, "correct": right[place], "entropy": entropy[place]}
                votes = {f"maj@{n}": 0.7 + n / 100 if mode == "own" else 0.25 for n in (1, 2, 3, 4)}
                rows.append(row | {"tokens": tokens, "had": had} | (votes if mode in ("own", "capped") else {}))
    return rows


def test_every_way_is_held_against_the_own_end_and_a_vote():
    found = inflation_smollm2.Asked(make_rows(), 1.0)
    forced = found.row("forced", 64)
    assert forced[0] == "forced to 64"
    assert forced[2].startswith("0.125")
    assert forced[3].startswith("1.80 [")
    assert forced[4] == "0.90"
    assert forced[5].startswith("-0.625 [")
    # three thoughts of 20 tokens in 70
    assert forced[6:8] == ("3 × own end", "0.730")
    assert forced[8].startswith("-0.605 [")
    assert found.row("forced", 16)[6] == "1 × own end"
    longer = [row | {"tokens": 30} if (row["split"], row["mode"]) == ("test", "own") else row for row in make_rows()]
    assert inflation_smollm2.Asked(longer, 1.0).row("forced", 64)[6:8] == ("2 × own end", "0.720")
    assert found.row("own", 64)[5:] == ("", "", "", "")
    assert found.row("capped", 8)[0] == "ended at 8"


def test_a_fall_is_from_the_best_budget_and_both_ways_are_compared():
    found = inflation_smollm2.Asked(make_rows(), 1.0)
    fall = found.fall("forced")
    assert fall[0] == "forced to 16 → 64"
    assert fall[1].startswith("-0.375 [")
    assert fall[2].startswith("+0.70 [")
    assert fall[3] == "0.20 → 0.90"
    between = found.between()
    assert between[1].startswith("+0.125 [")
    assert between[2].startswith("-0.05 [")
    beyond = found.beyond_own_end("forced")
    # 1 of 8 answers right where 6 were, entropies 1.5 and 2.1 where they were .5 and .7
    assert (beyond[0], beyond[3]) == ("own end → forced to 64", "0.80 → 0.90")
    assert beyond[1].startswith("-0.625 [")
    assert beyond[2].startswith("+1.20 [")
    shown = inflation_smollm2.tables(make_rows())
    assert shown.count("\n| ") == (2 + 5) + (2 + 7) + (2 + 1)  # heads and rows of the three
    without = [row for row in make_rows() if row["mode"] != "wait"]
    assert "Wait" not in inflation_smollm2.tables(without)


def test_every_taught_model_is_shown_by_itself_and_what_it_passed_over():
    # of the second, one answer more is right to every problem wherever it is forced
    other = [row | {"seed": 7, "correct": row["correct"] + (row["mode"] == "forced")} for row in make_rows()]
    found = inflation_smollm2.Asked(make_rows() + other, 1.0)
    (first, second) = found.by_seed()
    assert first[:5] == ("0", "0.750", "0.500", "0.125", "0.250")  # of 8 answers: 6, 4, 1 and, with “Wait,”, 2
    assert second[:5] == ("7", "0.750", "0.750", "0.375", "0.250")
    assert first[5].startswith("-0.375 [")
    assert second[5].startswith("-0.375 [")
    # a right expression in .9 of the thoughts, right answers .125 and .375
    assert found.passed_over("forced")[1].startswith("-0.650 [")


def test_settings_of_the_lesson(tmp_path):
    config = load_config(inflation_smollm2.Taught, overrides=["steps=7", "lr=0.1", "seeds=[3]"])
    lesson = config.lesson(3)
    assert (lesson.steps, lesson.lr, lesson.seed, lesson.batch_tokens) == (7, 0.1, 3, 8192)
    as_it_is = config.model_copy(update={"steps": 0, "model": "packaged:thinker"})
    assert inflation_smollm2.teach(as_it_is, 0).model == "packaged:thinker"
    small = as_it_is.model_copy(update={"steps": 1, "device": "cpu", "out": tmp_path})
    with pytest.raises(UsageError, match="steps=0"):
        inflation_smollm2.teach(small, 0)
