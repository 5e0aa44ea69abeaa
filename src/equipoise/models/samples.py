"""Sampled completions with the prompts they share, and their token statistics under a model, with gradients.

Axes: P prompts, B completions, L prompt columns, T sampled columns, S = L + T, D width.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.base import Completion, Finish
from equipoise.models.cache import SharedPrompts
from equipoise.models.language_model import LanguageModel, Tokens, causal_bias, positions_of
from equipoise.models.thinking import Parted, marks_of, part_thinking
from equipoise.models.token_stats import MaskedTokenStats, masked_token_stats


@dataclass(frozen=True, slots=True)
class Samples:
    """Prompts are padded on the left, completions on the right. Log-probs and entropies are float32 nats, 0 where masked."""

    prompt_ids_PL: Tensor
    prompt_mask_PL: Tensor  # True at real tokens
    prompt_B: Tensor  # which prompt each completion answers
    ids_BT: Tensor
    mask_BT: Tensor  # True at sampled tokens, the one that ended a completion included
    logp_BT: Tensor  # of the sampled tokens, at the sampling temperature, before truncation
    entropy_BT: Tensor  # of the full softmax at the sampling temperature
    finish: tuple[Finish, ...]  # stop or length, one per completion

    def take(self, rows: Tensor) -> Samples:
        """Only these completions, in this order, with the prompts and columns that they need."""
        prompts, prompt_B = torch.unique(self.prompt_B[rows], return_inverse=True)
        columns = slice(0, max(1, int(self.mask_BT[rows].sum(1).max())))
        return Samples(
            self.prompt_ids_PL[prompts],
            self.prompt_mask_PL[prompts],
            prompt_B,
            self.ids_BT[rows, columns],
            self.mask_BT[rows, columns],
            self.logp_BT[rows, columns],
            self.entropy_BT[rows, columns],
            tuple(self.finish[row] for row in rows.tolist()),
        )

    def sequences(self) -> tuple[Tensor, Tensor]:
        """Ids and mask (B, S) of prompt and completion in one."""
        return (
            torch.cat([self.prompt_ids_PL[self.prompt_B], self.ids_BT], dim=1),
            torch.cat([self.prompt_mask_PL[self.prompt_B], self.mask_BT], dim=1),
        )


def score_samples(model: LanguageModel, samples: Samples, *, temperature: float = 1.0) -> MaskedTokenStats:
    """Log-prob, entropy and drift of every sampled token, with gradients.

    Equal to `score_tokens` over `sequences()`. Each prompt runs once, whatever the number of its completions, and their gradients
    meet in its keys and values; with 16 completions as long as their prompt that is almost half the work. It is twice the
    kernels: on a GPU that waits for launches, as with the small GPT, `score_tokens` is as fast or faster.
    """
    head = model.head
    mask_PL, mask_BT = samples.prompt_mask_PL, samples.mask_BT[:, :-1]  # nothing follows the last column
    prompts = SharedPrompts(samples.prompt_B)
    prompt_PLD = model(
        samples.prompt_ids_PL, positions_of(mask_PL), causal_bias(mask_PL, head.weight_VD.dtype), prompts
    )
    hidden_BTD = prompt_PLD[:, -1:].index_select(0, samples.prompt_B)
    if mask_BT.shape[1]:
        whole_BS = torch.cat([mask_PL[samples.prompt_B], mask_BT], dim=1)
        n_prompt = mask_PL.shape[1]
        bias_B1TS = causal_bias(whole_BS, head.weight_VD.dtype, first=n_prompt)
        rest_BTD = model(samples.ids_BT[:, :-1], positions_of(whole_BS)[:, n_prompt:], bias_B1TS, prompts)
        hidden_BTD = torch.cat([hidden_BTD, rest_BTD], dim=1)
    return masked_token_stats(
        hidden_BTD, head.weight_VD, samples.ids_BT, samples.mask_BT, temperature=temperature, bias_V=head.bias_V
    )


def read_completions(samples: Samples, tokens: Tokens) -> list[Completion]:
    """The same as nouns, a Completion per row: what is graded and recorded. Thinking stands apart, where the tokenizer has marks."""
    n_tokens_B = samples.mask_BT.sum(1).tolist()
    ids_B, logp_B, entropy_B = (values.tolist() for values in (samples.ids_BT, samples.logp_BT, samples.entropy_BT))
    parted_B = part_samples(samples, tokens)
    return [
        Completion(
            text=tokens.decode(ids[:n] if parted is None else parted.text),
            thinking=None if parted is None or parted.thinking is None else tokens.decode(parted.thinking),
            n_tokens=n,
            finish=finish,
            token_ids=array("i", ids[:n]),
            logprobs=array("f", logp[:n]),
            entropies=array("f", entropy[:n]),
        )
        for n, ids, logp, entropy, finish, parted in zip(
            n_tokens_B, ids_B, logp_B, entropy_B, samples.finish, parted_B, strict=True
        )
    ]


def part_samples(samples: Samples, tokens: Tokens) -> list[Parted] | list[None]:
    """The tokens of every row, thinking and text apart; None for each where the tokenizer has no marks."""
    marks = marks_of(tokens)
    if marks is None:
        return [None] * len(samples.finish)
    prompts = zip(samples.prompt_ids_PL.tolist(), samples.prompt_mask_PL.tolist(), strict=True)
    open_P = [marks.open_after([token for token, real in zip(ids, mask, strict=True) if real]) for ids, mask in prompts]
    rows = zip(samples.ids_BT.tolist(), samples.mask_BT.sum(1).tolist(), samples.prompt_B.tolist(), strict=True)
    return [part_thinking(ids[:n], marks, inside=open_P[prompt]) for ids, n, prompt in rows]
