"""The TRL example runs as it is pasted, only shorter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="needs trl: pip install 'equipoise[trl]'")
pytestmark = pytest.mark.integration

EXAMPLE = Path(__file__).parents[2] / "examples" / "trl_grpo.py"


def test_the_example_trains_two_arms_and_diagnoses_both(tmp_path):
    done = subprocess.run(
        [sys.executable, EXAMPLE, tmp_path, "2"],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "plain  step   1  right" in done.stdout
    for name in ("plain", "held"):
        assert f"$ equipoise diagnose {tmp_path / name / 'run'}" in done.stdout
    assert done.stdout.count("(25 problems, 400 rollouts)") == 2
