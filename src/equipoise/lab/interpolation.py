"""Two models of one architecture, and the models on the straight line between their weights (`models.blending`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equipoise.errors import UsageError
from equipoise.models.blending import interpolate
from equipoise.models.characters import FIRST
from equipoise.models.checkpoint import save_gpt
from equipoise.models.gpt import GPT
from equipoise.models.language_model import LanguageModel
from equipoise.models.loaders import Loaded
from equipoise.training.opening import OpenModel

# Keys of a transformers config that do not change what the network computes when it samples; nor does a dropout.
_IDLE = frozenset(
    {"_name_or_path", "architectures", "bos_token_id", "chunk_size_feed_forward", "dtype", "eos_token_id", "id2label"}
    | {"initializer_range", "label2id", "output_attentions", "output_hidden_states", "pad_token_id", "pretraining_tp"}
    | {
        "gradient_checkpointing",
        "problem_type",
        "return_dict",
        "torch_dtype",
        "transformers_version",
        "use_cache",
        "quantization_config",
    }
)


class Line:
    """The models between two ends. `at(λ)` puts the weights of that point into `model`, in place, and gives it back.

    Everything but the weights is TRAINED's: tokenizer, chat template, tokens that end a text. A transformers model of TRAINED is
    used up: `model` is that object.
    """

    def __init__(self, base: OpenModel, trained: OpenModel, *, device: str = "cpu") -> None:
        check_alike(base, trained)
        theirs, ours = weights_of(base.loaded.model), weights_of(trained.loaded.model)
        # A trainer may store float32 where its base is bfloat16: widening changes no number.
        kinds = {name: torch.promote_types(theirs[name].dtype, ours[name].dtype) for name in ours}
        self.tokens = trained.loaded.tokens
        self._base = {name: tensor.to(device, kinds[name]) for name, tensor in theirs.items()}
        self._trained = {name: tensor.to(device, kinds[name], copy=True) for name, tensor in ours.items()}
        self.model = _model_of(trained.loaded.model, kinds, device)

    @torch.no_grad()
    def at(self, point: float) -> LanguageModel:
        # In place: on a GPU captured graphs read the weights where they were.
        blended = interpolate(self._base, self._trained, point)
        for name, weight in weights_of(self.model).items():
            weight.copy_(blended[name])
        return self.model

    def save(self, folder: Path) -> Path:
        """The model as it is now: `model.safetensors` for the small GPT, else transformers' layout. Returns what loads it."""
        if isinstance(self.model, GPT):
            path = folder / "model.safetensors"
            save_gpt(path, self.model, self.tokens)  # type: ignore[arg-type]
            return path
        from equipoise.models import pretrained

        pretrained.save_transformers(folder, self.model, self.tokens)  # type: ignore[arg-type]
        return folder


def weights_of(model: Any) -> dict[str, Tensor]:
    """Parameters and stored buffers, each once, under the first of its names: tied weights are one tensor."""
    found: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        found.setdefault(id(tensor), (name, tensor))
    return {name: tensor.detach() for name, tensor in found.values()}


def _model_of(like: LanguageModel, kinds: Mapping[str, torch.dtype], device: str) -> LanguageModel:
    """A model to be filled, its weights of these dtypes."""
    if isinstance(like, GPT):
        # Anew: its rotary angles, once rounded to half precision, could not be widened.
        return GPT(like.config).to(device, next(iter(kinds.values())))
    like.to(device)  # type: ignore[attr-defined]
    for name, weight in like.state_dict(keep_vars=True).items():  # type: ignore[call-arg]
        weight.data = weight.data.to(kinds.get(name, weight.dtype))
    return like


# --- one architecture ------------------------------------------------------------------------------------------------------


def check_alike(base: OpenModel, trained: OpenModel) -> None:
    """Refuse two models that no line joins, naming the first difference."""
    for what, a, b in _differences(base.loaded, trained.loaded):
        raise UsageError(
            f"{base.name} and {trained.name} cannot be blended: {what} is {a} in the first and {b} in the second; "
            "give a model and one trained from it"
        )
    theirs, ours = weights_of(base.loaded.model), weights_of(trained.loaded.model)
    for name in theirs:
        for end, tensor in ((base, theirs[name]), (trained, ours[name])):
            if not bool(tensor.isfinite().all()) and not torch.equal(theirs[name], ours[name]):
                raise UsageError(
                    f"{end.name} holds nan or infinity in {name}: did its training diverge? Give an earlier checkpoint"
                )


def _differences(base: Loaded, trained: Loaded) -> Iterator[tuple[str, object, object]]:
    """(what, in base, in trained), from the coarsest to the finest, as far as someone reads on."""
    kinds = [type(getattr(loaded.model, "inner", loaded.model)).__name__ for loaded in (base, trained)]
    if kinds[0] != kinds[1]:
        yield "the architecture", kinds[0], kinds[1]
    yield from _unlike("", _config(base.model), _config(trained.model))
    yield from _unlike("the vocabulary's ", _vocabulary(base), _vocabulary(trained))
    a, b = weights_of(base.model), weights_of(trained.model)
    yield from _unlike("the shape of ", _shapes(a), _shapes(b))
    for name in a:
        floats = a[name].is_floating_point()
        if floats != b[name].is_floating_point():
            yield f"the dtype of {name}", a[name].dtype, b[name].dtype
        if not floats and not torch.equal(a[name], b[name]):
            yield f"{name}, whole numbers that have no in-between,", "one", "another"


def _unlike(prefix: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[tuple[str, object, object]]:
    for key in [*a, *(key for key in b if key not in a)]:
        if key not in a or key not in b or a[key] != b[key]:
            yield f"{prefix}{key}", a.get(key, "absent"), b.get(key, "absent")


def _config(model: Any) -> dict[str, Any]:
    if isinstance(model, GPT):
        return {name: getattr(model.config, name) for name in model.config.__dataclass_fields__}
    return dict(_leaves("", model.inner.config.to_dict()))


def _leaves(prefix: str, config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if key in _IDLE or "drop" in key:
            continue
        if isinstance(value, dict):
            yield from _leaves(f"{prefix}{key}.", value)
        else:
            yield f"{prefix}{key}", value


def _vocabulary(loaded: Loaded) -> dict[str, Any]:
    tokens: Any = loaded.tokens
    if isinstance(loaded.model, GPT):
        return {f"token {id}": repr(character) for id, character in enumerate(tokens.alphabet, FIRST)}
    return {
        f"token {id}": repr(word) for id, word in sorted((id, word) for word, id in tokens.inner.get_vocab().items())
    }


def _shapes(weights: Mapping[str, Tensor]) -> dict[str, Any]:
    return {name: tuple(tensor.shape) for name, tensor in weights.items()}
