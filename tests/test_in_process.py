"""The in-process sampler against `generate`, whole forward passes and hand-made tokenizers."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from equipoise.base import Answer, Question, Sampling  # noqa: E402
from equipoise.errors import UsageError  # noqa: E402
from equipoise.infer.ledger import Ledger  # noqa: E402
from equipoise.infer.metered import Metered, join_chunks  # noqa: E402
from equipoise.infer.vote import Majority  # noqa: E402
from equipoise.models import rows as rows_file  # noqa: E402
from equipoise.models.characters import END, Characters  # noqa: E402
from equipoise.models.decoding import Decoding  # noqa: E402
from equipoise.models.generate import generate  # noqa: E402
from equipoise.models.gpt import GPT, GPTConfig  # noqa: E402
from equipoise.models.language_model import hidden_states  # noqa: E402
from equipoise.models.loaders import Loaded  # noqa: E402
from equipoise.models.samples import read_completions  # noqa: E402
from equipoise.samplers import in_process  # noqa: E402
from equipoise.samplers.growing_text import GrowingText  # noqa: E402
from equipoise.samplers.in_process import InProcess  # noqa: E402

LETTERS = Characters("abcd+=")


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    """In float64, with weights large enough that the next token depends on all before it."""
    model = GPT(GPTConfig(LETTERS.size, width=8, layers=2, heads=2, context=40), seed=4).double()
    draw = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.4 * torch.randn(weight.shape, generator=draw, dtype=torch.float64)
    return Loaded(model, LETTERS)


def drawn(sampler, prompt, how, *, n=4, seed=11, first=0):
    """All pieces of a draw, by completion."""

    async def go():
        pieces = {index: [] for index in range(n)}
        async for chunk in sampler.draw(prompt, how, n=n, seed=seed, first=first):
            pieces[chunk.index].append(chunk)
        return [pieces[index] for index in range(n)]

    return asyncio.run(go())


def joined(parts):
    assert [part.finish is not None for part in parts] == [False] * (len(parts) - 1) + [True]
    return join_chunks(parts, parts[-1].finish)


def made_by_generate(loaded, prompt, how, *, n, seed, stop=None):
    samples = generate(
        loaded.model,
        [loaded.tokens.encode(prompt)],
        seeds=[seed],
        samples=n,
        max_tokens=how.max_tokens,
        pad=loaded.tokens.pad,
        stop=loaded.tokens.stop if stop is None else stop,
        decoding=Decoding(temperature=how.temperature, top_p=how.top_p),
    )
    return read_completions(samples, loaded.tokens)


@pytest.mark.parametrize("piece", [1, 3, 64])
@pytest.mark.parametrize("how", [Sampling(max_tokens=20), Sampling(max_tokens=30, temperature=1.7, top_p=0.8)])
def test_completions_are_those_of_generate_whatever_the_pieces(loaded, piece, how, monkeypatch):
    monkeypatch.setattr(in_process, "ROOM", 2)  # the cache must grow several times
    expected = made_by_generate(loaded, "ab+", how, n=9, seed=11)
    found = [joined(parts) for parts in drawn(InProcess(loaded, piece=piece), "ab+", how, n=9)]
    assert len({c.finish for c in expected}) == 2  # some stop, some are cut
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.text, ours.finish, ours.n_tokens) == (theirs.text, theirs.finish, theirs.n_tokens)
        assert list(ours.token_ids) == list(theirs.token_ids)
        np.testing.assert_allclose(ours.logprobs, theirs.logprobs, atol=1e-6)
        np.testing.assert_allclose(ours.entropies, theirs.entropies, atol=1e-6)


def test_samples_of_a_seed_are_numbered(loaded):
    how, sampler = Sampling(max_tokens=12), InProcess(loaded)
    whole = [joined(p).text for p in drawn(sampler, "a+", how, n=5)]
    parts = [joined(p).text for p in drawn(sampler, "a+", how, n=2)]
    parts += [joined(p).text for p in drawn(sampler, "a+", how, n=3, first=2)]
    assert whole == parts
    assert whole != [joined(p).text for p in drawn(sampler, "a+", how, n=5, seed=12)]


def test_token_confidences_are_minus_the_mean_of_the_top_k_of_a_full_forward_pass(loaded):
    how = Sampling(max_tokens=10, temperature=2.0, top_logprobs=3)
    for parts in drawn(InProcess(loaded, piece=4), "ab", how, n=3):
        completion = joined(parts)
        ids = torch.tensor([[*LETTERS.encode("ab"), *completion.token_ids]])
        logits = (
            hidden_states(loaded.model, ids, torch.ones_like(ids, dtype=torch.bool))[0] @ loaded.model.embed.weight.T
        )
        logits[:, 0] = -torch.inf  # padding is never sampled
        at_1 = logits.detach().log_softmax(-1)[1:-1]  # the model's own softmax: temperature 1
        expected = [-np.mean(sorted(row.tolist(), reverse=True)[:3]) for row in at_1]
        np.testing.assert_allclose(completion.token_confidences, expected, atol=1e-5)
        at_2 = (logits.detach() / 2).log_softmax(-1)[1:-1]
        chosen = at_2.gather(1, torch.tensor(list(completion.token_ids))[:, None])[:, 0]
        np.testing.assert_allclose(completion.logprobs, chosen, atol=1e-5)


def test_k_is_at_most_the_tokens_that_can_be_sampled(loaded):
    how = Sampling(max_tokens=6, top_logprobs=20)
    found = joined(drawn(InProcess(loaded), "ab", how, n=1)[0]).token_confidences
    assert np.isfinite(found).all()
    same = joined(drawn(InProcess(loaded), "ab", replace(how, top_logprobs=LETTERS.size - 1), n=1)[0])
    assert list(found) == list(same.token_confidences)
    assert joined(drawn(InProcess(loaded), "ab", Sampling(max_tokens=6), n=1)[0]).token_confidences is None


def test_prompts_are_told_once_and_run_once(loaded):
    pieces = drawn(InProcess(loaded, piece=2), "ab+", Sampling(max_tokens=9), n=3)
    for index, parts in enumerate(pieces):
        assert sum(part.prompt_tokens or 0 for part in parts) == 3
        assert sum(part.cached_tokens or 0 for part in parts) == (0 if index == 0 else 3)


def test_greedy_takes_the_likeliest_token(loaded):
    completion = joined(drawn(InProcess(loaded), "ab", Sampling(max_tokens=8, temperature=0), n=1)[0])
    ids = LETTERS.encode("ab")
    for token in completion.token_ids:
        whole = torch.tensor([ids])
        logits = (
            hidden_states(loaded.model, whole, torch.ones_like(whole, dtype=torch.bool))[0, -1]
            @ loaded.model.embed.weight.T
        )
        assert token == int(logits[1:].argmax()) + 1
        ids.append(token)


@pytest.mark.parametrize("piece", [1, 3, 7, 30])
def test_a_stop_text_ends_a_completion_before_it_and_whatever_the_pieces(loaded, piece):
    how = Sampling(max_tokens=25)
    plain = [joined(p) for p in drawn(InProcess(loaded), "ab+", how, n=12)]
    stops = ("aa", "=d")
    met = 0
    for parts, whole in zip(
        drawn(InProcess(loaded, piece=piece), "ab+", replace(how, stop=stops), n=12), plain, strict=True
    ):
        completion = joined(parts)
        places = [whole.text.find(stop) for stop in stops if stop in whole.text]
        if not places:
            assert (completion.text, completion.finish) == (whole.text, whole.finish)
            continue
        # The stop text is known when it is complete; of several, the one that is complete first.
        end = min(whole.text.find(stop) + len(stop) for stop in stops if stop in whole.text)
        met += 1
        assert completion.text == whole.text[: end - 2]
        assert (completion.finish, completion.n_tokens) == ("stop", end)
        assert len(completion.logprobs) == len(completion.token_ids) == end
    assert met >= 3


def test_a_cancelled_row_ends_at_the_next_piece_and_the_others_do_not_notice(loaded):
    how = Sampling(max_tokens=30)
    alone = [joined(p).text for p in drawn(InProcess(loaded), "ab+", how, n=6)]

    async def go():
        pieces = {index: [] for index in range(6)}
        draw = InProcess(loaded, piece=2).draw("ab+", how, n=6, seed=11)
        async for chunk in draw:
            pieces[chunk.index].append(chunk)
            if chunk.index == 1 and chunk.finish is None:
                draw.cancel(1, "consensus")
                draw.cancel(1, "confidence")
        return [joined(pieces[index]) for index in range(6)]

    found = asyncio.run(go())
    assert (found[1].finish, found[1].n_tokens) == ("consensus", 2)
    assert alone[1].startswith(found[1].text)
    assert [c.text for i, c in enumerate(found) if i != 1] == [text for i, text in enumerate(alone) if i != 1]


def test_what_was_cancelled_makes_no_more_tokens(loaded):
    async def go():
        rows = []
        sampler = InProcess(loaded, piece=1)
        draw = sampler.draw("ab+", Sampling(max_tokens=30), n=8, seed=11)
        async for chunk in draw:
            if chunk.index == 0 and draw._rows is not None:
                rows.append(len(draw._rows.index_R))
            for index in range(1, 8):
                draw.cancel(index, "cancelled")
        return rows

    assert asyncio.run(go())[1:] == [1] * (len(asyncio.run(go())) - 1)


def test_the_event_loop_lives_while_the_model_runs(loaded, monkeypatch):
    """The model waits for an event that only the event loop sets: on the loop's own thread that would never come."""
    free, threads = threading.Event(), set()
    real = rows_file.step

    def waiting_step(*args):
        threads.add(threading.current_thread())
        assert free.wait(10)
        return real(*args)

    monkeypatch.setattr(rows_file, "step", waiting_step)

    async def go():
        asyncio.get_running_loop().call_later(0.01, free.set)
        return [chunk async for chunk in InProcess(loaded).draw("ab", Sampling(max_tokens=5), n=2, seed=1)]

    assert asyncio.run(go())
    assert threading.main_thread() not in threads
    assert len(threads) == 1


def test_several_draws_take_turns_and_each_gets_its_own(loaded):
    how, sampler = Sampling(max_tokens=15), InProcess(loaded, piece=2)
    prompts = ["a", "b+", "ab+c", "d="]
    expected = [[joined(p).text for p in drawn(sampler, prompt, how, n=3, seed=5)] for prompt in prompts]

    async def one(prompt):
        return [c.text for c in await Metered(sampler, Ledger()).draw(_question(prompt, how), n=3).completions()]

    async def go():
        found = await asyncio.gather(*map(one, prompts))
        assert len(asyncio.all_tasks()) == 1
        return found

    assert asyncio.run(go()) == expected


def _question(prompt, how, seed=5):
    return Question(prompt, prompt, lambda c: Answer(c.text) if c.text else None, how, seed=seed)


def test_a_waiter_that_is_cancelled_loses_no_piece(loaded):
    how = Sampling(max_tokens=12)
    expected = [joined(p).text for p in drawn(InProcess(loaded), "ab+", how, n=3)]

    async def go():
        pieces = {index: [] for index in range(3)}
        draw = InProcess(loaded, piece=2).draw("ab+", how, n=3, seed=11)
        while True:
            waiting = asyncio.ensure_future(anext(draw, None))
            await asyncio.sleep(0)
            if not waiting.done():
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
            if waiting.cancelled():
                chunk = await anext(draw, None)
            else:
                chunk = waiting.result()
            if chunk is None:
                return [joined(pieces[index]).text for index in range(3)]
            pieces[chunk.index].append(chunk)

    assert asyncio.run(go()) == expected


def test_a_hard_budget_holds_to_the_token(loaded):
    question = _question("ab+", Sampling(max_tokens=30))
    choice = asyncio.run(Majority(8)(question, Metered(InProcess(loaded, piece=4), Ledger(70))))
    assert choice.spent.generated <= 70
    assert choice.spent.generated == sum(c.n_tokens for c in choice.drawn)
    assert choice.spent.prompt == 3 * len(choice.drawn)


def test_the_context_is_a_limit_too(loaded):
    prompt = "ab+" * 10
    found = [joined(p) for p in drawn(InProcess(loaded), prompt, Sampling(max_tokens=1000), n=6)]
    assert max(c.n_tokens for c in found) == 10  # of 40
    assert all((c.finish == "length") == (END not in c.token_ids) for c in found)


@pytest.mark.parametrize(
    ("prompt", "how", "words"),
    [
        ("", Sampling(), "1 token or more"),
        ("ab" * 20, Sampling(), "leaves room"),
        ("ab", Sampling(thinking_budget=5), "strategy cap"),
        ("ab", Sampling(extra={"top_q": 1}), "top_k"),
        ("ab", Sampling(temperature=-1), "temperature"),
        ([{"role": "user", "content": "ab"}], Sampling(), "plain text"),
    ],
)
def test_what_cannot_be_sampled_is_refused_in_one_line(loaded, prompt, how, words):
    with pytest.raises(UsageError, match=words) as refused:
        InProcess(loaded).draw(prompt, how, n=1, seed=0)
    assert "\n" not in str(refused.value)


def test_a_diverged_model_is_an_error_not_a_text(loaded):
    broken = GPT(GPTConfig(LETTERS.size, width=8, layers=1, heads=1, context=20))
    with torch.no_grad():
        broken.norm.weight.fill_(torch.nan)
    with pytest.raises(FloatingPointError, match="diverged"):
        drawn(InProcess(Loaded(broken, LETTERS)), "ab", Sampling(max_tokens=4), n=2)


def test_a_model_in_training_stays_so_and_is_sampled_without_dropout(loaded):
    loaded.model.train(True)
    try:
        drawn(InProcess(loaded), "ab", Sampling(max_tokens=4), n=2)
        assert loaded.model.training
    finally:
        loaded.model.train(False)


# --- text out of tokens ----------------------------------------------------------------------------------------------------


class Bytes:
    """A token is a byte; 0 pads, 255 ends."""

    pad, stop = 0, (255,)

    def encode(self, prompt):
        return list(prompt.encode())

    def decode(self, ids):
        end = ids.index(255) if 255 in ids else len(ids)
        return bytes(ids[:end]).decode("utf-8", "replace")


@pytest.mark.parametrize("piece", [1, 2, 3, 5, 100])
def test_no_piece_ends_within_a_character(piece):
    text = "naïve — 山 🙂🙂 end"
    ids = [*text.encode(), 255]
    growing, told = GrowingText(Bytes()), []
    for start in range(0, len(ids), piece):
        last = start + piece >= len(ids)
        told.append(growing.add(ids[start : start + piece], last=last).text)
    assert "".join(told) == text
    assert not any("\ufffd" in part for part in told)


def test_bytes_that_are_no_character_are_told_and_do_not_hold_up_the_rest():
    growing = GrowingText(Bytes())
    told = [growing.add([0x80], last=False).text for _ in range(6)] + [growing.add(list(b"ok"), last=True).text]
    assert "".join(told) == "\ufffd" * 6 + "ok"
    assert "".join(told[:6])  # some of them before the text went on
    assert GrowingText(Bytes()).add([0xF0, 0x9F], last=True).text == "\ufffd"


@pytest.mark.parametrize("piece", [1, 2, 4, 50])
def test_what_may_begin_a_stop_text_is_held_back(piece):
    text, stop = "x </thi </think> more", ("</think>",)
    ids = list(text.encode())
    growing, told, n = GrowingText(Bytes(), stop), "", 0
    for start in range(0, len(ids), piece):
        grown = growing.add(ids[start : start + piece], last=False)
        told += grown.text
        assert "x </thi ".startswith(told)
        if grown.stopped_at is not None:
            n = start + grown.stopped_at
            break
    assert (told, n) == ("x </thi ", len("x </thi </think>"))
    tail = GrowingText(Bytes(), stop)
    assert tail.add(list(b"a</thi"), last=True).text == "a</thi"


def test_a_search_that_fills_the_context_goes_on_with_what_it_has(loaded):
    """40 tokens fit: a prompt of 40 that a strategy made of the question leaves no room, and costs nothing."""
    question = Question("q", "ab+", how=Sampling(max_tokens=4), read=lambda said: Answer(said.text or ""))
    metered = Metered(InProcess(loaded), Ledger(100))

    async def go():
        return await metered.draw(question, n=2, prompt="a" * 40).completions()

    given = asyncio.run(go())
    assert [(done.finish, done.n_tokens) for done in given] == [("error", 0)] * 2
    assert (metered.ledger.spent.generated, metered.ledger.left) == (0, 100)
    (note,) = metered.notes
    assert "a prompt of 40 tokens for a model that reads 40" in note


def test_a_question_that_fills_the_context_is_refused(loaded):
    question = Question("q", "a" * 40, how=Sampling(max_tokens=4), read=lambda said: Answer(said.text or ""))
    ledger = Ledger(100)
    with pytest.raises(UsageError, match="a prompt of 40 tokens for a model that reads 40"):
        asyncio.run(Metered(InProcess(loaded), ledger).draw(question, prompt="a" * 40).completions())
    assert ledger.left == 100
