"""Thinking between two tokens: told apart by hand-made rows, held to a budget in every way that completions are drawn."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from equipoise.base import Answer, Question, Sampling  # noqa: E402
from equipoise.errors import UsageError  # noqa: E402
from equipoise.infer.capped import Capped  # noqa: E402
from equipoise.infer.ledger import Ledger  # noqa: E402
from equipoise.infer.metered import Metered, join_chunks  # noqa: E402
from equipoise.models.characters import Characters  # noqa: E402
from equipoise.models.checkpoint import load_gpt, save_gpt  # noqa: E402
from equipoise.models.decoding import Decoding, pick_tokens  # noqa: E402
from equipoise.models.generate import generate  # noqa: E402
from equipoise.models.gpt import GPT, GPTConfig  # noqa: E402
from equipoise.models.language_model import Head  # noqa: E402
from equipoise.models.loaders import Loaded  # noqa: E402
from equipoise.models.samples import read_completions  # noqa: E402
from equipoise.models.thinking import Marks, ThinkingCap, marks_of, part_thinking  # noqa: E402
from equipoise.samplers.in_process import InProcess  # noqa: E402
from equipoise.samplers.split_text import SplitText  # noqa: E402

LETTERS = Characters("abc[]", thinking=("[", "]"))
A, B, C, OPEN, CLOSE = range(2, 7)
MARKS = Marks(OPEN, CLOSE)


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    """In float64; opens, closes and ends often enough that every case occurs."""
    model = GPT(GPTConfig(LETTERS.size, width=8, layers=2, heads=2, context=60), seed=4).double()
    draw = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.3 * torch.randn(weight.shape, generator=draw, dtype=torch.float64)
    return Loaded(model, LETTERS)


def drawn(sampler, prompt, how, *, n=4, seed=11):
    async def go():
        pieces = {index: [] for index in range(n)}
        async for chunk in sampler.draw(prompt, how, n=n, seed=seed):
            pieces[chunk.index].append(chunk)
        return [pieces[index] for index in range(n)]

    return asyncio.run(go())


# --- told apart --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "inside", "thinking", "answer"),
    [
        ("ab", False, None, "ab"),
        ("[ab]c", False, "ab", "c"),
        ("[]c", False, "", "c"),
        ("a[b]c", False, "b", "ac"),
        ("[ab", False, "ab", ""),
        ("ab]c", True, "ab", "c"),
        ("ab]c", False, None, "ab]c"),  # an end of nothing is text
        ("[a]b[c]", False, "a", "b[c]"),  # one block alone
        ("[a[b]c", False, "a[b", "c"),
        ("", True, "", ""),
    ],
)
def test_tokens_are_parted_at_the_marks(text, inside, thinking, answer):
    found = part_thinking(LETTERS.encode(text), MARKS, inside=inside)
    assert (None if found.thinking is None else LETTERS.decode(found.thinking)) == thinking
    assert LETTERS.decode(found.text) == answer
    for piece in (1, 2, 5):  # and the same as they come
        split, ids = SplitText(LETTERS, marks=MARKS, inside=inside), LETTERS.encode(text)
        got = [split.add(ids[at : at + piece], last=at + piece >= len(ids)) for at in range(0, len(ids), piece)]
        assert "".join(g.thinking for g in got) == (thinking or "")
        assert "".join(g.text for g in got) == answer
        assert sum(g.n_thinking for g in got) == len(thinking or "")


@pytest.mark.parametrize(
    ("prompt", "inside"),
    [("ab", False), ("ab[", True), ("ab[c", True), ("ab[c]", False), ("[a]b[", True), ("]", False)],
)
def test_a_prompt_may_open_the_thinking(prompt, inside):
    assert MARKS.open_after(LETTERS.encode(prompt)) == inside


@pytest.mark.parametrize("piece", [1, 2, 9])
def test_stop_texts_count_in_each_part_and_a_mark_can_be_one(piece):
    def run(text, stop):
        split, ids, told = SplitText(LETTERS, stop, marks=MARKS), LETTERS.encode(text), []
        for at in range(0, len(ids), piece):
            told.append(split.add(ids[at : at + piece], last=at + piece >= len(ids)))
            if told[-1].stopped_at is not None:
                return "".join(t.thinking for t in told), "".join(t.text for t in told), at + told[-1].stopped_at
        return "".join(t.thinking for t in told), "".join(t.text for t in told), None

    assert run("[abc]ab", ("]",)) == ("abc", "", 5)
    assert run("[abc]ab", ("bc",)) == ("a", "", 4)
    assert run("[ab]cab", ("ca",)) == ("ab", "", 6)
    assert run("[ab]ca", ("bc",)) == ("ab", "ca", None)  # not across the mark
    assert run("ab[c", ("bc",)) == ("c", "ab", None)  # what was held back is told in the end


def test_marks_are_one_token_each():
    assert marks_of(LETTERS) == MARKS
    assert marks_of(Characters("ab")) is None
    assert marks_of(Characters("ab[]"), ("[", "]")) == Marks(4, 5)
    with pytest.raises(UsageError, match="are 2 and 1 of this tokenizer's"):
        marks_of(Characters("ab[]"), ("ab", "]"))
    for wrong in (("[", "["), ("[", "?"), ("ab", "]")):
        with pytest.raises(UsageError, match="two characters of the alphabet"):
            Characters("ab[]", thinking=wrong)


def test_a_file_keeps_the_marks(tmp_path):
    for tokens in (LETTERS, Characters("abc[]")):
        save_gpt(tmp_path / "m.safetensors", GPT(GPTConfig(tokens.size, width=8, layers=1, heads=2)), tokens)
        assert load_gpt(tmp_path / "m.safetensors")[1] == tokens


# --- held to a budget --------------------------------------------------------------------------------------------------------


def test_a_forced_token_replaces_the_draw_and_has_its_own_log_prob():
    head = Head(torch.tensor([[1.0], [2.0], [0.0]]))
    hidden, uniform = torch.ones(2, 1), torch.tensor([0.99, 0.99])
    plain = pick_tokens(hidden, head, uniform, Decoding())
    picks = pick_tokens(hidden, head, uniform, Decoding(), forced_B=torch.tensor([-1, 0]))
    assert picks.ids_B.tolist() == [int(plain.ids_B[0]), 0]
    expected = torch.tensor([1.0, 2.0, 0.0]).log_softmax(0)
    assert float(picks.logp_B[1]) == pytest.approx(float(expected[0]))
    torch.testing.assert_close(picks.entropy_B, plain.entropy_B)


def generated(loaded, prompts, *, budget, samples=40, max_tokens=24):
    ids = [LETTERS.encode(prompt) for prompt in prompts]
    inside = [MARKS.open_after(prompt) for prompt in ids for _ in range(samples)]
    cap = None if budget is None else ThinkingCap(MARKS, budget, inside, device="cpu")
    made = generate(
        loaded.model,
        ids,
        seeds=range(len(ids)),
        samples=samples,
        max_tokens=max_tokens,
        pad=LETTERS.pad,
        stop=LETTERS.stop,
        cap=cap,
    )
    return read_completions(made, LETTERS)


@pytest.mark.parametrize("budget", [0, 1, 4])
def test_a_cap_closes_the_thinking_after_its_budget_and_changes_nothing_before(loaded, budget):
    prompts = ["ab", "c[a"]
    free, held = (generated(loaded, prompts, budget=b) for b in (None, budget))
    cut = whole = 0
    for row, (before, after) in enumerate(zip(free, held, strict=True)):
        inside = row >= 40
        ids, capped = list(before.token_ids), list(after.token_ids)
        opened = 0 if inside else ids.index(OPEN) + 1 if OPEN in ids else len(ids)
        limit = opened + budget
        if CLOSE in ids[opened : limit + 1] or len(ids) <= limit:  # closed in time, or never came so far
            assert capped == ids
            whole += 1
        else:
            assert capped[: limit + 1] == [*ids[:limit], CLOSE]
            assert len(after.thinking) == budget
            cut += 1
    assert cut > 10
    assert whole > 5


def test_the_sampler_and_generate_hold_the_same_budget(loaded):
    expected = generated(loaded, ["ab"], budget=3)
    how = Sampling(max_tokens=24, thinking_budget=3)
    for piece in (1, 5, 64):
        got = drawn(InProcess(loaded, piece=piece), "ab", how, n=40, seed=0)
        for parts, theirs in zip(got, expected, strict=True):
            ours = join_chunks(parts, parts[-1].finish)
            assert (ours.text, ours.thinking or "") == (theirs.text, theirs.thinking or "")
            assert list(ours.token_ids) == list(theirs.token_ids)
            thought = part_thinking(theirs.token_ids, MARKS).thinking or []
            assert sum(part.n_thinking for part in parts) == len(thought) <= 3


def test_marks_may_be_named_and_a_budget_needs_them(loaded):
    bare = Loaded(loaded.model, Characters("abc[]"))
    how = Sampling(max_tokens=24)
    told = drawn(InProcess(bare, thinking=("[", "]")), "ab", how, n=20, seed=0)
    own = drawn(InProcess(loaded), "ab", how, n=20, seed=0)
    assert [[p.thinking for p in parts] for parts in told] == [[p.thinking for p in parts] for parts in own]
    assert any(p.thinking for parts in own for p in parts)
    assert not any(p.thinking for parts in drawn(InProcess(bare), "ab", how, n=20, seed=0) for p in parts)
    with pytest.raises(UsageError, match="no marks"):
        InProcess(bare).draw("ab", replace(how, thinking_budget=3), n=1, seed=0)
    with pytest.raises(UsageError, match="0 tokens or more"):
        InProcess(loaded).draw("ab", replace(how, thinking_budget=-1), n=1, seed=0)


def read(completion):
    return Answer(completion.text) if completion.text else None


@pytest.mark.parametrize(
    "cap", [Capped(tokens=6, answer=8), Capped(tokens=6, answer=8, wait=2, word="a"), Capped(tokens=0, answer=8)]
)
def test_the_strategy_cap_continues_a_character_model_at_its_markers(loaded, cap):
    """No line break comes into the prompt, which such a model could not read, and the ledger tells thinking from answer."""
    cap = replace(cap, start="[", end="]")
    thought = answered = 0
    for seed in range(12):
        question = Question("q", "ab", read, Sampling(max_tokens=20), seed=seed)
        ledger = Ledger(200)
        choice = asyncio.run(cap(question, Metered(InProcess(loaded), ledger)))
        (completion,) = choice.drawn
        assert "\n" not in completion.text
        assert len(completion.thinking or "") <= cap.tokens + cap.wait * len(cap.word)
        assert choice.spent.thinking + choice.spent.answer == choice.spent.generated == completion.n_tokens
        thought += bool(completion.thinking)
        answered += choice.answer is not None
    assert answered > 6
    assert thought > 2 or cap.tokens == 0
