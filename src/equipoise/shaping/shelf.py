"""Right completions that are kept, to be imitated beside the policy gradient in later steps: what is kept, and what a step draws.

    L += coef · Σ −ln π(y | q) / tokens of the update, over `rows` completions drawn from those that are kept

It is supervised: no ratio, hence none to clip, however old a completion is. Trainers make the loss of it (`training.lessons`,
`adapters.trl_lessons`). Axes: P problems, G completions each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from equipoise.errors import UsageError
from equipoise.shaping.bounds import check_state
from equipoise.shaping.inputs import verdicts

Kept = tuple[str, list[int], list[int]]  # id of the problem, tokens of its prompt, tokens of the completion


class Shelf:
    """Completions that are kept, and some of them for a step. What is kept and when: the two below."""

    name = "shelf"

    def __init__(self, *, rows: int, coef: float) -> None:
        if rows < 1 or not coef >= 0:
            raise UsageError(f"{self.name} needs rows >= 1 and coef >= 0, found rows={rows}, coef={coef:g}")
        self.rows, self.coef = rows, coef
        self.kept: list[Kept] = []

    def draw(self, seed: int) -> list[Kept]:
        """`rows` of them, each at most once; none where nothing is kept, or nothing is asked for."""
        if not (self.coef and self.kept):
            return []
        order = np.random.default_rng(seed).permutation(len(self.kept))
        return [self.kept[place] for place in order[: self.rows]]

    def state(self) -> dict[str, Any]:
        return {"kept": [list(each) for each in self.kept]}

    def restore(self, state: Mapping[str, Any]) -> None:
        check_state(self.name, state, self.state())
        self.kept = [(str(name), list(prompt), list(ids)) for name, prompt, ids in state["kept"]]


class BaseAnchor(Shelf):
    """Right completions of the base model, drawn once before the first step on `problems` training problems.

    On them cross-entropy is, but for a constant, the forward KL of the policy from the base model among its right completions,
    each as often as it was drawn: mass that the policy takes away from what the base could solve costs −ln of what is left. With
    `once`, every text of a problem counts once, so that rare solutions weigh as much as common ones. Ours.
    """

    name = "base_anchor"

    def __init__(self, *, problems: int = 1024, rows: int = 64, coef: float = 0.5, once: bool = False) -> None:
        super().__init__(rows=rows, coef=coef)
        if problems < 1:
            raise UsageError(f"base_anchor needs problems >= 1, found {problems}")
        self.problems, self.once = problems, once
        self.drawn = self.tokens_drawn = 0  # rollouts of this process's collection, for the log

    def keep(self, found: Sequence[Kept]) -> None:
        """Right completions of the base model, as they were drawn."""
        self.kept += unseen(found, self.kept) if self.once else found


class RareReplay(Shelf):
    """Right completions of problems of which at most `most_rate` of a group was right, the newest `size` of them, each text once.

    They are replayed in the steps after the one that drew them. With `most_rate` 1 every right completion is kept. Ours.
    """

    name = "rare_replay"

    def __init__(self, *, most_rate: float = 0.25, size: int = 2048, rows: int = 64, coef: float = 0.5) -> None:
        super().__init__(rows=rows, coef=coef)
        if not 0 < most_rate <= 1 or size < 1:
            raise UsageError(
                f"rare_replay needs 0 < most_rate <= 1 and size >= 1, found most_rate={most_rate:g}, size={size}"
            )
        self.most_rate, self.size = most_rate, size

    def keep(self, found: Sequence[Kept]) -> None:
        """What `rare_right` chose of a step. Call it after `draw`: nothing is replayed in its own step."""
        self.kept += unseen(found, self.kept)
        del self.kept[: -self.size]


def rare_right(correct_PG: np.ndarray, *, most_rate: float) -> np.ndarray:
    """(P, G) bool: right completions of the problems with at most this share of right ones among those that were judged."""
    correct_PG = verdicts(np.ones(correct_PG.shape, dtype=bool), correct_PG=correct_PG)
    right_PG = correct_PG == 1
    judged_P = np.isfinite(correct_PG).sum(axis=1)
    rare_PG: np.ndarray = right_PG & (right_PG.sum(axis=1) <= most_rate * judged_P)[:, None]
    return rare_PG


def unseen(found: Sequence[Kept], kept: Sequence[Kept]) -> list[Kept]:
    """Those of other problems or texts than what is kept, each once, in their order."""
    seen = {(name, tuple(ids)) for name, _, ids in kept}
    new: list[Kept] = []
    for each in found:
        key = (each[0], tuple(each[2]))
        if key not in seen:
            seen.add(key)
            new.append(each)
    return new
