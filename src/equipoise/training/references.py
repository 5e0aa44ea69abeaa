"""How likely each chain of thought makes the reference answer, under the policy that is trained: what R3 of DRO reads.

Axes: P problems, G completions each, B = P · G rows, J tokens of a reference answer, S columns of a sequence.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from equipoise.base import Completion, Grade, Problem
from equipoise.errors import UsageError
from equipoise.models.generate import pad_left
from equipoise.models.language_model import LanguageModel, Tokens, score_tokens
from equipoise.text.planning import token_offsets
from equipoise.training.collect import Batch


@torch.no_grad()
def score_references(
    model: LanguageModel, tokens: Tokens, batch: Batch, *, temperature: float, rows: int
) -> dict[str, np.ndarray]:
    """`logp_PGJ`: ln π(y_j | q, c_i, y_<j), nan under padding, and `token_PJ`, True at real tokens.

    c_i is a completion up to its final answer, or all of it where no answer could be read, without the token that ends it. π is
    the policy at the sampling temperature (https://arxiv.org/abs/2506.13351). `rows` go through the model at once.
    """
    references = [_reference(problem, tokens) for problem in batch.problems]
    n_samples = batch.answers_PG.shape[1]
    chains = [
        [*tokens.encode(batch.problems[row // n_samples].prompt), *_chain(completion, grade, tokens)]
        for row, (completion, grade) in enumerate(zip(batch.completions, batch.grades, strict=True))
    ]
    before, after = max(map(len, chains)), max(map(len, references))
    if before + after > model.context:
        raise UsageError(
            f"a chain of thought of {before} tokens with its prompt and a reference of {after} exceed this model's "
            f"{model.context}: lower sampling.max_tokens, or use a model that reads more"
        )
    device = model.head.weight_VD.device
    token_PJ = np.arange(after) < np.array([len(reference) for reference in references])[:, None]
    padded_PJ = torch.tensor([[*ids, *[tokens.pad] * (after - len(ids))] for ids in references], device=device)
    mask_PJ = torch.as_tensor(token_PJ, device=device)
    parts = []
    for first in range(0, len(chains), rows):
        ids_BS, mask_BS = pad_left(chains[first : first + rows], before, pad=tokens.pad, device=device)
        problem_B = torch.arange(first, first + len(ids_BS), device=device) // n_samples
        whole_BS = torch.cat([ids_BS, padded_PJ[problem_B]], dim=1)
        mask_BS = torch.cat([mask_BS, mask_PJ[problem_B]], dim=1)
        parts.append(score_tokens(model, whole_BS, mask_BS, n_prompt=before, temperature=temperature).logp_BT)
    logp_PGJ = torch.cat(parts).double().cpu().numpy().reshape(len(references), n_samples, after)
    return {"logp_PGJ": np.where(token_PJ[:, None], logp_PGJ, np.nan), "token_PJ": token_PJ}


def _reference(problem: Problem, tokens: Tokens) -> Sequence[int]:
    if not problem.reference:
        raise UsageError(
            f"problem {problem.id} has no reference answer to score: choose a task that gives one, or another reward"
        )
    # A tokenizer may begin every text with a token of its own, which does not belong in the middle.
    return tokens.encode(problem.reference)[len(tokens.encode("")) :]


def _chain(completion: Completion, grade: Grade, tokens: Tokens) -> list[int]:
    assert completion.token_ids is not None
    ids = [token for token in completion.token_ids if token not in tokens.stop]
    if grade.answer is None or grade.answer.span is None:
        return ids
    offsets = token_offsets([tokens.decode([token]) for token in ids])
    return [token for token, (start, _) in zip(ids, offsets, strict=True) if start < grade.answer.span[0]]
