"""Baselines of a real TRL run: by TRL before training, and by `equipoise sample` from the run folder, problem for problem."""

from __future__ import annotations

from collections import Counter

import pytest

pytest.importorskip("trl", reason="needs trl: pip install 'equipoise[trl]'")
pytestmark = pytest.mark.integration

from trl_runs import PROMPTS, exploring, make, right  # noqa: E402

import equipoise as eq  # noqa: E402
from equipoise.adapters.trl import probe_reward  # noqa: E402
from equipoise.lab.sample import sample  # noqa: E402
from equipoise.models.pretrained import TransformersTokens  # noqa: E402


def rows_of(folder):
    return [row for batch in eq.read(folder).rollouts() for row in batch.rows()]


def ids_of(folder):
    return {row["prompt_id"]: row["prompt"] for row in rows_of(folder)}


def test_the_untrained_model_answers_the_prompts_of_a_capture_under_its_ids(tmp_path):
    trainer = exploring(tmp_path / "trl", capture=tmp_path / "run", max_completion_length=5, temperature=0.8)
    trainer.save_model(str(tmp_path / "model"))
    trainer.train()
    told = sample(str(tmp_path / "model"), str(tmp_path / "run"), tmp_path / "base", samples=3)
    assert ids_of(tmp_path / "base") == ids_of(tmp_path / "run")
    drawn = rows_of(tmp_path / "base")
    assert {row["temperature"] for row in drawn} == {0.8}
    assert max(row["n_tokens"] for row in drawn) <= 5
    # The prompts came back to the run's tokens, and only who judges is not known.
    assert [line.split(":")[0] for line in told.warnings] == ["no-verdicts"]


def test_an_evaluation_before_training_is_a_baseline_with_the_run_s_own_verdicts(tmp_path):
    exploring(tmp_path / "trl", capture=tmp_path / "run").train()
    base = exploring(tmp_path / "trl", capture=tmp_path / "base", num_generations_eval=8)
    base.evaluate(base.train_dataset)
    drawn = rows_of(tmp_path / "base")
    assert Counter(row["prompt"] for row in drawn) == dict.fromkeys(PROMPTS, 16)  # the dataset has each twice
    assert [row["correct"] for row in drawn] == [value == 1 for value in right([row["completion"] for row in drawn])]
    assert set(ids_of(tmp_path / "run")) <= set(ids_of(tmp_path / "base"))
    last = {row["prompt_id"]: row for row in rows_of(tmp_path / "run") if row["step"] == 3}
    against = {
        finding["measure"]: finding["n"]
        for finding in eq.diagnose(tmp_path / "run", baseline=tmp_path / "base", k=1).to_dict()["findings"]
        if finding["at"].get("against") == "baseline"
    }
    assert against["pass@1_vs_baseline"] == len(last)


def test_a_probe_keeps_the_messages_of_a_chat(tmp_path):
    from datasets import Dataset

    probe = probe_reward(tmp_path / "run", correct="said")

    def said(completions, **columns):
        return [float(completion[0]["content"][-1:] > "a") for completion in completions]

    chats = [[{"role": "system", "content": "Add."}, {"role": "user", "content": prompt}] for prompt in PROMPTS]
    trainer = make(tmp_path / "trl", rewards=[probe.watch(said), probe], max_steps=1, reward_weights=[1.0, 0.0])
    trainer.processing_class.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    trainer.train_dataset = Dataset.from_dict({"prompt": chats})
    trainer.train()
    rows = rows_of(tmp_path / "run")
    assert len(rows) == 16
    for row in rows:
        assert row["messages"] in chats
        assert row["prompt"] == "\n".join(message["content"] for message in row["messages"])


def test_a_text_that_begins_as_the_tokenizer_begins_texts_is_not_begun_twice():
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1, "a": 2, "b": 3}, unk_token="</s>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokens = TransformersTokens(
        PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>"), stop=[1]
    )
    assert tokens.encode("a b") == [0, 2, 3]
    assert tokens.encode("<s>a b") == [0, 2, 3]
