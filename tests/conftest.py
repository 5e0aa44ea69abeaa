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


@pytest.fixture
def figure(request):
    """`figure(name, value, most=…)`: what was measured, checked against what is promised and kept in build/figures.json."""

    def note(name: str, value: float, *, most: float | None = None, least: float | None = None) -> None:
        file = request.config.rootpath / "build" / "figures.json"
        file.parent.mkdir(exist_ok=True)
        known = json.loads(file.read_text()) if file.exists() else {}
        known[name] = {"value": value, "most": most, "least": least, "test": request.node.nodeid}
        file.write_text(json.dumps(known, indent=1) + "\n")
        assert most is None or value <= most, name
        assert least is None or value >= least, name

    return note


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The file of a tiny GPT that solves some problems."""
    from tiny_training import make_model

    return make_model(tmp_path_factory.mktemp("model") / "tiny.safetensors")


@pytest.fixture
def run(tmp_path, model):
    """Train `model` with these settings; the run's folder."""
    from tiny_training import config_of

    from equipoise.training.loop import train

    made = []

    def run(**changes):
        out = tmp_path / f"run{len(made)}" / "run"
        made.append(out)
        train(config_of(out, model, **changes))
        return out

    return run
