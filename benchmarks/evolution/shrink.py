"""The collapsed policy as it is kept here: a run's last checkpoint in half precision.

equipoise train benchmarks/evolution/collapse.toml
python -m benchmarks.evolution.shrink runs/evolution-collapse
"""

from __future__ import annotations

import argparse
from pathlib import Path

from equipoise.models.characters import Characters
from equipoise.models.checkpoint import save_gpt
from equipoise.models.gpt import GPT
from equipoise.training.opening import open_model

HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, default=HERE / "planner-grpo.safetensors")
    asked = parser.parse_args()
    loaded = open_model(asked.run).loaded
    assert isinstance(loaded.model, GPT)
    assert isinstance(loaded.tokens, Characters)
    save_gpt(asked.out, loaded.model.half(), loaded.tokens)


if __name__ == "__main__":
    main()
