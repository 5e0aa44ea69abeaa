"""What many tests share."""

from __future__ import annotations

import json
import sys
from typing import Any, NamedTuple

import pytest

from equipoise.cli import main


class Printed(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def equipoise(monkeypatch, capfd):
    """Run the program in this process: exit code, stdout and stderr."""

    def run(*words) -> Printed:
        monkeypatch.setattr(sys, "argv", ["equipoise", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            main.run()
        return Printed(left.value.code or 0, *capfd.readouterr())

    monkeypatch.delenv("EQUIPOISE_DEBUG", raising=False)
    return run
