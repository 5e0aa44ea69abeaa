"""What a draw gives when a search has written more than the model can read: nothing, and the reason."""

from __future__ import annotations

from equipoise.base import Chunk, Finish


def not_begun(index: int, why: str) -> Chunk:
    """A completion that failed before its prompt was read: it cost nothing."""
    return Chunk(index, prompt_tokens=0, cached_tokens=0, finish="error", error=why)


class NothingDrawn:
    """`n` completions that failed before their first token."""

    def __init__(self, n: int, why: str) -> None:
        self._chunks = iter([not_begun(index, why) for index in range(n)])

    def __aiter__(self) -> NothingDrawn:
        return self

    def cancel(self, index: int, why: Finish) -> None:
        """They have ended already."""

    async def __anext__(self) -> Chunk:
        for chunk in self._chunks:
            return chunk
        raise StopAsyncIteration
