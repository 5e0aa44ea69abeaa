"""Sampling steps as CUDA graphs: a small model's step is a hundred tiny kernels, and launching them costs more than running them."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass

import torch

from equipoise.errors import UsageError
from equipoise.models.rows import Rows, Rules

CHECK_EVERY = 8  # steps between two looks at whether all rows are done; a look waits for the GPU
COLUMNS = 16  # prompts are padded to a multiple of this, so that most calls share a graph
MOST = 3  # graphs kept, each with a cache of its own: two widths of prompts in training, and the evaluation under way


@dataclass(frozen=True, slots=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    rows: Rows  # the graph reads and writes these very tensors
    rules: Rules


class StepGraphs:
    """Captured steps by shape and rules. A model's weights may change in place between calls, but not move."""

    def __init__(self) -> None:
        self._captured: dict[tuple[object, ...], _Captured] = {}

    def columns(self, longest: int) -> int:
        """To how many columns prompts are padded."""
        return -(-longest // COLUMNS) * COLUMNS

    def run(self, rows: Rows, rules: Rules) -> Rows:
        """Sample every column after the first. The result is overwritten by the next run."""
        if rows.last_R.device.type != "cuda":
            raise UsageError(
                f"CUDA graphs need a model on a GPU, this one is on {rows.last_R.device}: leave graphs out"
            )
        shapes = tuple(tensor.shape for tensor in rows.tensors())
        key = (id(rules.model), rules.stop, rules.decoding, rules.siblings, rows.cache.keys[0].dtype, shapes)
        captured = self._captured.pop(key, None)
        if captured is None:
            while len(self._captured) >= MOST:
                self._captured.pop(next(iter(self._captured)))
                torch.cuda.empty_cache()  # other processes on this device cannot use what this one keeps
            captured = _capture(rows, rules)
        self._captured[key] = captured  # the last is the one used last
        for fixed, given in zip(captured.rows.tensors(), rows.tensors(), strict=True):
            fixed.copy_(given)
        for column in range(1, rows.ids_BT.shape[1]):
            if column % CHECK_EVERY == 0 and bool(captured.rows.done_R.all()):
                break
            captured.graph.replay()
        return captured.rows


def _capture(rows: Rows, rules: Rules) -> _Captured:
    fixed = deepcopy(rows)
    fixed.cache.reach = fixed.cache.bias_BS.shape[1]  # the same slots every time; the bias hides the free ones
    before = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    before.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(before):  # libraries set themselves up in a first run, which a capture must not contain
        deepcopy(fixed).advance(rules)
    torch.cuda.current_stream().wait_stream(before)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fixed.advance(rules)
    return _Captured(graph, fixed, rules)
