"""A run folder with a few long rollouts whose every number is known."""

from __future__ import annotations

from array import array
from math import log
from pathlib import Path

from equipoise.base import Answer, Completion, Grade, Problem, Rollout
from equipoise.rollouts.run import RunInfo
from equipoise.rollouts.writer import RunWriter

WORDS = 50


def long_run(
    folder: Path, *, tokens: int, rollouts: int = 1, differ_at: int | None = None, word: str = "word{} "
) -> Path:
    """Token i is word i % 50 with entropy (i % 10) / 8, probability 1/4 and one alternative with 1/8.

    With `differ_at`, later rollouts have another word from there on.
    """
    writer = RunWriter(folder, RunInfo("test", run_id=folder.name))
    writer.write(
        Rollout(
            run_id=folder.name,
            split="train",
            step=1,
            group_id="problem",
            sample_index=number,
            problem=Problem("problem", "test", "Say words."),
            completion=Completion(
                "words",
                n_tokens=tokens,
                finish="stop",
                token_ids=array("i", ids),
                logprobs=array("f", [log(1 / 4)] * tokens),
                entropies=array("f", [(i % 10) / 8 for i in range(tokens)]),
            ),
            grade=Grade(Answer("words"), "right", 1.0),
            extra={
                "topk_ids": [[i, (i + 1) % WORDS] for i in ids],
                "topk_logprobs": [[log(1 / 4), log(1 / 8)]] * tokens,
            },
        )
        for number in range(rollouts)
        for ids in [[(i + (number if differ_at is not None and i >= differ_at else 0)) % WORDS for i in range(tokens)]]
    )
    writer.vocab({i: word.format(i) for i in range(WORDS)})
    return folder
