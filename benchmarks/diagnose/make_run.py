"""A run folder of any size, the same every time, made in the memory of one step.

A step is 50 problems × 10 completions of about 1,900 tokens. Token ids follow Zipf's law over 50,000 token strings whose
concatenation is the completion, English-like text with strategic grams and a boxed answer. Half of the entropies are nearly 0
and the rest fall over the run; log-probs are those of a sampler and, with a little noise, of a trainer.
"""

from __future__ import annotations

from itertools import islice, product
from pathlib import Path

import numpy as np
import pyarrow as pa

from equipoise.rollouts.batch import Rollouts
from equipoise.rollouts.run import RunInfo
from equipoise.rollouts.writer import RunWriter
from equipoise.text.planning import GRAMS

VOCABULARY = 50_000
PROBLEMS, SAMPLES = 50, 10  # of a step
POOL = 200  # problems of the run
PHRASES = 8  # strategic grams in a completion
COMMON = (
    "the of to and a is in we that so it then for this be as can with let have are on by if from not which now at an or but get will all "
    "number numbers sum product equation value values case cases step steps total times equal equals divide multiply add subtract "
    "first second next last since because there need find answer solution problem given two three four five one zero each both "
    "only also more less than into over under between right left side same different check again using gives would could should"
)


class Vocabulary:
    """Token strings, frequent ones first, and the ids of phrases."""

    def __init__(self) -> None:
        marks = [",", ".", "\n", " =", " +", " -", " *", "(", ")"]
        closing = [" \\boxed{", "}"]  # last, so that only the end of a completion holds them
        grams = [word for phrases in GRAMS.values() for phrase in phrases for word in phrase.split()]
        words = [f" {word}" for word in dict.fromkeys(COMMON.split() + grams)]
        parts = ["a", "b", "c", "d", "e", "f", "h", "i", "l", "m", "n", "o", "p", "re", "st", "u"]
        made = ("".join(syllables) for size in (1, 2, 3, 4) for syllables in product(parts, repeat=size))
        frequent = dict.fromkeys([*marks, *words, *map(str, range(100)), *(f" {word}" for word in made)])
        self.texts = [*islice(frequent, VOCABULARY - len(closing)), *closing]
        ids = {text: i for i, text in enumerate(self.texts)}
        self.phrases = [
            [ids[f" {word}"] for word in phrase.split()] for phrases in GRAMS.values() for phrase in phrases
        ]
        self.closing = [ids[" answer"], ids[" is"], ids[" \\boxed{"]], [ids["}"], ids["."]]
        self.number = [ids[str(n)] for n in range(100)]
        share = 1 / np.arange(1, VOCABULARY + 1)
        self.cumulative = np.cumsum(share / share.sum())


def make_steps(folder: Path, first: int, last: int, *, steps: int, tokens: int) -> None:
    """Write the steps `first` to `last` of a run that is `steps` long; each depends on its own number only."""
    vocabulary = Vocabulary()
    info = RunInfo(
        "benchmark",
        run_id="benchmark",
        model="none",
        provenance={"entropies": {"estimator": "simulated", "temperature": 1.0}},
    )
    writer = RunWriter(folder, info)
    if first == 0:
        writer.vocab(dict(enumerate(vocabulary.texts)))
    for step in range(first, last):
        batch, entropy = _step(step, step / max(1, steps - 1), tokens, vocabulary)
        writer.write_batches([batch])
        writer.log(step, {"entropy": entropy})


def _step(step: int, done: float, tokens: int, vocabulary: Vocabulary) -> tuple[Rollouts, float]:
    rng = np.random.default_rng([7, step])
    n_rows = PROBLEMS * SAMPLES
    problem = np.repeat((step * PROBLEMS + np.arange(PROBLEMS)) % POOL, SAMPLES)
    lengths = rng.normal(tokens, tokens / 4, n_rows).clip(tokens / 8, 4 * tokens).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    total = int(offsets[-1])
    ids = np.searchsorted(vocabulary.cumulative, rng.random(total)).astype(np.int32)
    fork = rng.random(total) < 0.5
    entropy = np.where(fork, rng.exponential(0.6 * (1 - 0.6 * done), total), rng.exponential(1e-3, total))
    solve = 0.1 + 0.8 * np.modf(np.sqrt(2) * problem)[0]
    right = rng.random(n_rows) < solve + (1 - solve) * 0.5 * done
    reference = problem % 100
    answer = np.where(right, reference, (reference + 1 + rng.integers(0, 6, n_rows)) % 100)
    for row in range(n_rows):
        start, stop = int(offsets[row]), int(offsets[row + 1])
        for phrase in rng.integers(0, len(vocabulary.phrases), PHRASES):
            gram = vocabulary.phrases[phrase]
            at = int(rng.integers(start, stop - 16))
            ids[at : at + len(gram)] = gram
            entropy[at : at + len(gram)] += 0.3
        opening, ending = vocabulary.closing
        ids[stop - 6 : stop] = [*opening, vocabulary.number[answer[row]], *ending]
    logp = (-rng.exponential(1.0, total) * (entropy + 1e-4)).astype(np.float32)
    texts = [vocabulary.texts[i] for i in ids.tolist()]
    arrays = {
        "run_id": pa.array(["benchmark"] * n_rows),
        "split": pa.array(["train"] * n_rows),
        "step": pa.array(np.full(n_rows, step)),
        "group_id": pa.array([f"{step}-{p}" for p in problem]),
        "sample_index": pa.array(np.tile(np.arange(SAMPLES, dtype=np.int32), PROBLEMS)),
        "prompt_id": pa.array([f"problem-{p}" for p in problem]),
        "env": pa.array(["arithmetic"] * n_rows),
        "prompt": pa.array([f"Problem {p}: combine the numbers so that the result is {p % 100}." for p in problem]),
        "completion": pa.array(["".join(texts[offsets[row] : offsets[row + 1]]) for row in range(n_rows)]),
        "reference_answer": pa.array([str(r) for r in reference]),
        "answer": pa.array([str(a) for a in answer]),
        "outcome": pa.array(np.where(right, "right", "wrong").tolist()),
        "correct": pa.array(right),
        "reward": pa.array(right.astype(np.float64)),
        "finish_reason": pa.array(["stop"] * n_rows),
        "temperature": pa.array(np.ones(n_rows)),
        "n_tokens": pa.array(lengths),
    }
    for name, values in {
        "token_ids": ids,
        "logprobs_rollout": logp,
        "logprobs_train": logp + rng.normal(0, 0.01, total).astype(np.float32),
        "entropies": entropy.astype(np.float16),
    }.items():
        arrays[name] = pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))
    return Rollouts.of_arrays(arrays, n_rows), float(entropy.mean())
