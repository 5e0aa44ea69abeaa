"""Attention of a transformers model to our cache, where several query heads share a key-value head.

Read with transformers 5.10. Axes: B sequences, Q query heads, H key-value heads, T tokens of this call, S slots, K width of a head.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

NAME = "equipoise_sdpa"


def share_heads(inner: PreTrainedModel) -> None:
    """Let a model with PyTorch's attention (`sdpa`) use ours, which gives the same results; any other attention is kept."""
    if inner.config.get_text_config()._attn_implementation == "sdpa":
        inner.set_attn_implementation(NAME)


def attend(
    module: Any,
    query_BQTK: Tensor,
    keys_BHSK: Tensor,
    values_BHSK: Tensor,
    bias_B1TS: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **settings: Any,
) -> tuple[Tensor, None]:
    """Transformers' `sdpa` but for the one token of a sampling step. Returns (B, T, Q, K).

    With a mask, `sdpa` writes the whole cache out once for every query head. A step's query heads that share a key-value head
    look at the same slots, so they are as well that head's Q / H queries, and the cache is read as it is.
    """
    n_rows, n_queries, n_tokens, width = query_BQTK.shape
    n_heads = keys_BHSK.shape[1]
    if n_tokens > 1 or n_heads == n_queries or bias_B1TS is None or bias_B1TS.shape[1] > 1:
        given = (query_BQTK, keys_BHSK, values_BHSK, bias_B1TS)
        return sdpa_attention_forward(module, *given, dropout=dropout, scaling=scaling, **settings)  # type: ignore[no-any-return]
    found_BHGK = scaled_dot_product_attention(
        query_BQTK.reshape(n_rows, n_heads, n_queries // n_heads, width),
        keys_BHSK,
        values_BHSK,
        attn_mask=bias_B1TS,
        dropout_p=dropout,
        scale=scaling,
    )
    return found_BHGK.reshape(n_rows, 1, n_queries, width), None


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, sdpa_mask)
