"""The models inside the package: small GPTs that can do four-number Countdown a little, and so have something to learn.

How they were made: `lab.make_packaged`, and `lab.make_thinker` for the one that thinks before it answers. What the first can do:
`benchmarks/packaged_model`.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from equipoise.errors import UsageError, unknown_name

SIZES = ("small", "medium")
THINKER = "thinker"  # tries expressions, in up to a few hundred tokens, and then answers
MAX_TOKENS = 20  # of a completion: the longest solution has 15 characters and its end


def packaged_model(size: str = "small") -> Path:
    """The checkpoint of this name, for `load_model`: small has 0.33 M parameters, for a CPU, medium 1.8 M, thinker 0.45 M."""
    if size not in (*SIZES, THINKER):
        raise unknown_name("packaged model", size, (*SIZES, THINKER))
    path = Path(str(files("equipoise.models") / "weights" / file_name(size)))
    if not path.is_file():
        made_by = "make_thinker" if size == THINKER else f"make_packaged --size {size}"
        raise UsageError(
            f"the packaged model is not at {path}: install equipoise again, or python -m equipoise.lab.{made_by}"
        )
    return path


def file_name(size: str) -> str:
    return f"countdown-{size}.safetensors"
