"""Reward functions in TRL's signature, from `shaping`. Axes: P groups, G completions each, J tokens of a reference answer.

    GRPOTrainer(…, reward_funcs=[brier_reward(correct=accuracy_reward), overlong_reward(limit=4096, buffer=512)])

`correct` is itself a reward function of TRL's kind, 1 for a right completion and 0 for a wrong one. An exploration term is meant to
be added to the advantage: as a reward it is divided by the group's standard deviation with the rest, so the mixin's
`exploration="ucb_mean"` is the better place wherever the mixin can be used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from equipoise.adapters.trl_reward_base import Call, RewardFunction, numbers, prompt_name, text_of
from equipoise.adapters.trl_step import rows_at_once
from equipoise.adapters.trl_texts import Read, TokenTexts, answer_tokens
from equipoise.catalogue.build import build
from equipoise.errors import UsageError
from equipoise.shaping.brier import Malformed, brier
from equipoise.shaping.counter import OutcomeCounter
from equipoise.shaping.overlong import soft_overlong
from equipoise.shaping.reference_likelihood import reference_likelihood
from equipoise.text.answers import read_answer, read_confidence


def brier_reward(
    correct: RewardFunction,
    *,
    weight: float = 1.0,
    malformed: Malformed = "worst",
    confidence: Callable[[str], float | None] = read_confidence,
) -> RewardFunction:
    """y − weight · (q − y)² of the confidence q that a completion states (RLCR, https://arxiv.org/abs/2507.16806).

    The paper divides by no standard deviation: scale_rewards="none". None where `correct` does not say.
    """

    def brier_score(prompts: Any, completions: Any, **columns: Any) -> list[float | None]:
        call = Call(prompts, completions, columns)
        right_1B = np.array([numbers(call.ask(correct))])
        stated_1B = np.array([numbers([confidence(text_of(text)) for text in completions])])
        score_1B = brier(right_1B, stated_1B, np.ones(right_1B.shape, bool), weight=weight, malformed=malformed)
        return [None if np.isnan(value) else float(value) for value in score_1B[0]]

    return brier_score


def overlong_reward(*, limit: int, buffer: int, penalty: float = 1.0) -> RewardFunction:
    """0 up to limit − buffer tokens, then falling to −penalty at the limit (DAPO, https://arxiv.org/abs/2503.14476)."""

    def overlong(prompts: Any, completions: Any, completion_ids: Any, **columns: Any) -> list[float | None]:
        n_tokens_1B = np.array([[float(len(ids)) for ids in completion_ids]])
        keep_1B = np.ones(n_tokens_1B.shape, bool)
        return list(map(float, soft_overlong(n_tokens_1B, keep_1B, limit=limit, buffer=buffer, penalty=penalty)[0]))

    return overlong


def batch_reward(
    spec: str = "batch_exploration",
    *,
    correct: RewardFunction | None = None,
    read: Read = read_answer,
    group_size: int | None = None,
) -> RewardFunction:
    """Minus the share of the group that gave the same answer (https://arxiv.org/abs/2509.06941).

    Groups that are all right are left alone, for which `correct` must be given, or `"batch_exploration:unless_all_right=False"`.
    """
    term = build(spec)

    def batch_exploration(prompts: Any, completions: Any, **columns: Any) -> list[float | None]:
        call = Call(prompts, completions, columns, group_size)
        answers = call.grouped([_answer(read, text) for text in completions], dtype=object)
        code_of: dict[str, int] = {}
        codes = [-1 if text is None else code_of.setdefault(text, len(code_of)) for text in answers.flat]
        answer_PG = np.array(codes).reshape(answers.shape)
        return call.own(term(answer_PG, np.ones(answers.shape, bool), _verdicts(call, correct)))

    return batch_exploration


class UCBReward:
    """Rarity of an answer over the training so far. `counter` has state: `trainer.add_callback(KeepState(counter=reward.counter))`.

    A step reads the counts of the steps before it, of all ranks; evaluations read them and add nothing.
    """

    __name__ = "ucb"

    def __init__(self, spec: str, correct: RewardFunction | None, read: Read, group_size: int | None) -> None:
        self.counter = OutcomeCounter()
        self._term, self._correct, self._read, self._group_size = build(spec), correct, read, group_size

    def __call__(self, prompts: Any, completions: Any, **columns: Any) -> list[float | None]:
        call = Call(prompts, completions, columns, self._group_size)
        answers_PG = call.grouped([_answer(self._read, text) for text in completions], dtype=object)
        names_P = call.everyone([prompt_name(prompt) for prompt in prompts])[:: call.size]
        visits_PG = self.counter.count(names_P, answers_PG)
        if call.training:
            self.counter.observe(names_P, answers_PG)
        return call.own(self._term(visits_PG, np.ones(answers_PG.shape, bool), _verdicts(call, self._correct)))


def ucb_reward(
    spec: str = "ucb_mean",
    *,
    correct: RewardFunction | None = None,
    read: Read = read_answer,
    group_size: int | None = None,
) -> UCBReward:
    """`ucb_naive`, `ucb_mean` or `ucb_constant`, with settings as in the catalogue (https://arxiv.org/abs/2509.06941)."""
    return UCBReward(spec, correct, read, group_size)


def reference_reward(column: str = "answer", *, power: float = 1.0, read: Read = read_answer) -> RewardFunction:
    """How likely a chain of thought makes the reference answer, by the tokens that it can move (R3, https://arxiv.org/abs/2506.13351).

    The reference stands in the dataset's `column`. It is scored under the policy in training, at TRL's temperature, in the place of
    the answer that the completion states, or after the completion where it states none: one forward pass more.
    """

    def reference_likelihood_r3(
        prompts: Any, completions: Any, completion_ids: Any, **columns: Any
    ) -> list[float | None]:
        call = Call(prompts, completions, columns)
        if call.trainer is None:
            raise UsageError(
                "the likelihood of a reference needs TRL's trainer, which hands over log_metric: use it as a reward function of a trainer"
            )
        if column not in columns:
            raise UsageError(
                f"the dataset has no column '{column}' with the reference answers: name the one that has, reference_reward('…')"
            )
        tokenizer, texts = call.trainer._tokenizer, TokenTexts(call.trainer._tokenizer)
        wanted = [tokenizer(str(text), add_special_tokens=False)["input_ids"] for text in columns[column]]
        before = [
            [*prompt, *_chain(ids, texts.of(ids), read)]
            for prompt, ids in zip(call.trainer._tokenize_prompts(list(prompts))[0], completion_ids, strict=True)
        ]
        logp = call.grouped(_score(call.trainer, before, wanted), dtype=object)
        lengths_P = np.array([[len(row) for row in group] for group in logp])[:, 0]
        token_PJ = np.arange(max(lengths_P)) < lengths_P[:, None]
        logp_PGJ = np.zeros((*logp.shape, token_PJ.shape[1]))
        for place in np.ndindex(logp.shape):
            logp_PGJ[place][: len(logp[place])] = logp[place]
        return call.own(reference_likelihood(logp_PGJ, token_PJ, np.ones(logp.shape, bool), power=power))

    return reference_likelihood_r3


def _score(trainer: Any, before: list[list[int]], wanted: list[list[int]]) -> list[tuple[float, ...]]:
    """ln π of each reference token after what stands before it, by TRL's own pass: references end the rows."""
    width = max(map(len, wanted))
    pad, longest = trainer._tokenizer.pad_token_id, max(map(len, before))
    ids, mask = [], []
    for start, end in zip(before, wanted, strict=True):
        left, right = longest - len(start), width - len(end)
        ids.append([pad] * left + start + end + [pad] * right)
        mask.append([0] * left + [1] * (len(start) + len(end)) + [0] * right)
    device = trainer.accelerator.device
    with torch.no_grad():
        logp_BJ = trainer._get_per_token_logps_and_entropies(
            trainer.model,
            torch.tensor(ids, device=device),
            torch.tensor(mask, device=device),
            width,
            batch_size=rows_at_once(trainer),
        )[0]
    rows = logp_BJ.float().cpu().clamp(max=0.0).tolist()
    return [tuple(row[: len(end)]) for row, end in zip(rows, wanted, strict=True)]


def _chain(ids: list[int], texts: list[str], read: Read) -> list[int]:
    """The tokens before the answer; without one, all but those at the end that have no text."""
    marks = answer_tokens(texts, read("".join(texts)))
    end = marks.index(True) if True in marks else max((n + 1 for n, text in enumerate(texts) if text), default=0)
    return list(ids[:end])


def _answer(read: Read, completion: Any) -> str | None:
    answer = read(text_of(completion))
    return None if answer is None else answer.text


def _verdicts(call: Call, correct: RewardFunction | None) -> np.ndarray | None:
    return None if correct is None else call.grouped(numbers(call.ask(correct)))
