"""The TRL examples run as they are pasted, only shorter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="needs trl: pip install 'equipoise[trl]'")
pytestmark = pytest.mark.integration

EXAMPLES = Path(__file__).parents[2] / "examples"


def printed(script: str, *words: object) -> str:
    done = subprocess.run(
        [sys.executable, EXAMPLES / script, *map(str, words)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_example_trains_two_arms_and_diagnoses_both(tmp_path):
    shown = printed("trl_grpo.py", tmp_path, 2)
    assert "plain  step   1  right" in shown
    for name in ("plain", "held"):
        assert f"$ equipoise diagnose {tmp_path / name / 'run'}" in shown
    assert shown.count("(25 problems, 400 rollouts)") == 2


def test_the_example_that_preserves_hands_over_an_average(tmp_path):
    shown = printed("trl_preserve.py", tmp_path, 2, 20)
    for name in ("base", "plain", "preserved", "preserved, average"):
        assert f"{name:19}  at 1 right 0." in shown
    assert shown.count("different right answers") == 8
