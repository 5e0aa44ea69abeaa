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
from equipoise.models.language_model import LanguageModel, Tokens, causal_bias, hidden_states, positions_of
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
    """Log-prob, entropy and drift of every sampled token, with gradients: equal to `score_tokens` over `sequences()`."""
    return score_states(shared_states(model, samples), model, samples, temperature=temperature)


def score_states(
    hidden_BTD: Tensor, model: LanguageModel, samples: Samples, *, temperature: float = 1.0
) -> MaskedTokenStats:
    """The same from the states that predict the sampled tokens."""
    head = model.head
    return masked_token_stats(
        hidden_BTD, head.weight_VD, samples.ids_BT, samples.mask_BT, temperature=temperature, bias_V=head.bias_V
    )


def states_of(model: LanguageModel, samples: Samples) -> Tensor:
    """(B, T, D): the states that predict the sampled tokens, with gradients, in the way that is fast on the samples' device."""
    if samples.ids_BT.device.type == "cpu":
        return shared_states(model, samples)
    return hidden_states(model, *samples.sequences())[:, samples.prompt_ids_PL.shape[1] - 1 : -1]


def shared_states(model: LanguageModel, samples: Samples) -> Tensor:
    """The same, each prompt run once, whatever the number of its completions: their gradients meet in its keys and values.

    With 16 completions as long as their prompt that is almost half the work. It is twice the kernels: a GPU that waits for
    launches, as with the small GPT, takes longer.
    """
    dtype = model.head.weight_VD.dtype
    mask_PL, mask_BT = samples.prompt_mask_PL, samples.mask_BT[:, :-1]  # nothing follows the last column
    prompts = SharedPrompts(samples.prompt_B)
    prompt_PLD = model(samples.prompt_ids_PL, positions_of(mask_PL), causal_bias(mask_PL, dtype), prompts)
    first_B1D = prompt_PLD[:, -1:].index_select(0, samples.prompt_B)
    if not mask_BT.shape[1]:
        return first_B1D
    whole_BS = torch.cat([mask_PL[samples.prompt_B], mask_BT], dim=1)
    n_prompt = mask_PL.shape[1]
    bias_B1TS = causal_bias(whole_BS, dtype, first=n_prompt)
    rest_BTD = model(samples.ids_BT[:, :-1], positions_of(whole_BS)[:, n_prompt:], bias_B1TS, prompts)
    return torch.cat([first_B1D, rest_BTD], dim=1)


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
