"""`equipoise watch` and `equipoise dash` on the command line."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from growing import append, curve, rollouts, write_log, writer
from rich.console import Console

from equipoise.cli import watch as command
from equipoise.cli.watch_screen import BARS, one_line, screen, sparkline
from equipoise.views.live.state import Live
from equipoise.views.live.summary import summarise_run

HOSTILE = "\x1b[31mred\x1b[0m [bold]x[/bold]\n\x1b]0;title\x07\u202eback"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Ten recorded steps of forty logged ones, of a hundred planned; its entropy drains."""
    folder = tmp_path_factory.mktemp("watched") / "grpo"
    written = writer(folder, steps=100, model="small")
    for step in range(1, 11):
        written.write(rollouts(step, entropy=1.0 if step <= 3 else 0.1))
    write_log(folder, [*curve(40), {"step": 40, "eval/pass@1": 0.25, "eval/pass@8": 0.5}])
    return folder


# --- sparklines ------------------------------------------------------------------------------------------------------------


def test_a_sparkline_worked_by_hand():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == BARS
    assert sparkline([5, 5, 5]) == "▄▄▄"
    assert sparkline([]) == ""
    assert sparkline([0.0, 7.0], width=40) == "▁█"
    assert sparkline([9, 0, 9, 7, 9, 0], width=3) == "▁█▁"  # of two in one place, the last


# --- once ------------------------------------------------------------------------------------------------------------------


def test_once_prints_what_was_logged_and_what_was_measured(equipoise, run):
    result = equipoise("watch", run, "--once")
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert lines[0] == "grpo  step 40/100, about 2 min left by its logged step times"  # 60 steps of 2 s each
    assert any(line.split()[:2] == ["entropy", "0.025"] for line in lines)
    assert any(line.startswith("reward_mean (reward)") and "0.04" in line for line in lines)
    assert any(line.startswith("pass@8 (eval/pass@8)") and "0.5" in line for line in lines)
    assert any("25.0% of the groups give no gradient" in line and "95% interval" in line for line in lines)
    assert any("mean token entropy changed by" in line for line in lines)


def test_once_as_json_holds_the_same_numbers(equipoise, run):
    found = equipoise("watch", run, "--once", "--json").json
    assert found["schema"] == "equipoise.watch/1"
    assert (found["step"], found["planned"], found["run"]) == (40, 100, "grpo")
    assert found["logged"]["entropy"]["value"] == 1 / 40
    assert found["logged"]["entropy"]["recent"] == [1 / step for step in range(21, 41)]
    assert found["logged"]["reward_mean"]["key"] == "reward"
    assert found["left"]["value"] == pytest.approx(60 * 2.0)
    assert found["left"]["how"]
    assert {finding["name"] for finding in found["findings"] if finding["severity"] in ("failing", "watch")}
    assert found["judged_step"] == 10


def test_the_file_inside_a_run_names_the_run(equipoise, run):
    assert equipoise("watch", run / "metrics.jsonl", "--once", "--json").json["run"] == "grpo"


def test_a_log_alone_is_enough(equipoise, tmp_path):
    write_log(
        tmp_path / "bare", [{"step": s, "data": {"actor/entropy": 0.5, "critic/score/mean": s / 10}} for s in (1, 2)]
    )
    found = equipoise("watch", tmp_path / "bare", "--once", "--json").json
    assert found["logged"]["entropy"] == {"key": "actor/entropy", "step": 2, "value": 0.5, "recent": [0.5, 0.5]}
    assert found["verdict"] == "not enough data"
    assert found["left"]["value"] is None
    assert found["left"]["missing"]


@pytest.mark.parametrize(
    ("make", "says"),
    [(lambda p: None, "does not exist"), (lambda p: p.mkdir(), "holds no run"), (lambda p: [write_log(p / n, curve(1)) for n in "ab"], "holds 2 runs")],
)  # fmt: skip
def test_what_is_no_single_run_is_one_line(equipoise, tmp_path, make, says):
    make(tmp_path / "x")
    result = equipoise("watch", tmp_path / "x", "--once")
    assert result.code == 2
    assert says in result.err
    assert result.err.count("\n") == 1


def test_hostile_names_cannot_touch_the_terminal(equipoise, tmp_path):
    folder = writer(tmp_path / "h", model=HOSTILE).folder
    key = f"val-core/{HOSTILE.replace(chr(10), ' ')}/acc/best@4/mean"
    write_log(folder, [{"step": 1, "entropy": 0.5, key: 0.5, "actor/pg_loss": 0.1}])
    for words in (["--once"], ["--once", "--json"]):
        result = equipoise("watch", folder, *words)
        assert result.code == 0
        assert "\x1b" not in result.out
        assert "\u202e" not in result.out
    assert "[bold]x[/bold]" in equipoise("watch", folder, "--once").out


# --- while it grows --------------------------------------------------------------------------------------------------------


def watched(folder):
    live = Live(folder)
    live.refresh()
    (run,) = live.runs.values()
    return live, run


def test_a_line_for_every_refresh_that_brings_something(tmp_path, monkeypatch):
    live, run = watched(write_log(tmp_path / "r", curve(2)))
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        if len(slept) == 2:  # the first sleep brings nothing new
            append(tmp_path / "r", json.dumps(curve(1, first=3)[0]) + "\n")
        if len(slept) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", sleep)
    lines = []

    def follow():
        for _ in command._changes(live, run, 0.7):
            lines.append(one_line(summarise_run(run, now=time.time())))

    with pytest.raises(KeyboardInterrupt):
        follow()
    assert slept == [0.7, 0.7, 0.7]
    assert [line.split(" · ")[1] for line in lines] == ["step 2", "step 3"]
    assert "entropy 0.3333 (logged)" in lines[1]


def test_a_run_that_is_done_silent_or_gone_says_so(tmp_path):
    live, run = watched(writer(tmp_path / "r", steps=10).folder)
    write_log(tmp_path / "r", curve(5))
    live.refresh()
    now = run.written
    assert "step 5/10, about 10 s left" in one_line(summarise_run(run, now=now))
    assert "step 5/10, silent for 83 min" in one_line(summarise_run(run, now=now + 5000))  # steps of 2 s
    append(tmp_path / "r", "".join(json.dumps(line) + "\n" for line in curve(5, first=6)))
    live.refresh()
    assert "step 10/10, done" in one_line(summarise_run(run, now=now + 5000))
    (tmp_path / "r" / "metrics.jsonl").unlink()
    (tmp_path / "r" / "run.json").unlink()
    (tmp_path / "r").rmdir()
    live.refresh()
    assert "the folder is gone" in one_line(summarise_run(run, now=now))


def test_the_screen_fits_a_narrow_terminal(run):
    live, watched_run = watched(run)
    live.judge(watched_run)
    out = io.StringIO()
    Console(file=out, width=60, force_terminal=False).print(screen(summarise_run(watched_run, now=0.0)))
    assert max(map(len, out.getvalue().splitlines())) <= 60


def test_piped_it_prints_lines_until_it_is_interrupted(tmp_path):
    folder = write_log(tmp_path / "r", curve(2))
    code = "import sys; from equipoise.cli.main import run; sys.argv = ['equipoise', 'watch', sys.argv[1], '--every', '0.2', '--json']; run()"
    words = [sys.executable, "-c", code, str(folder)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        first = json.loads(process.stdout.readline())
        append(folder, json.dumps(curve(1, first=3)[0]) + "\n")
        while (found := json.loads(process.stdout.readline()))["step"] == 2:
            pass
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert first["step"] == 2
    assert found["step"] == 3
    assert process.returncode == 0, err
    assert err == ""


# --- dash ------------------------------------------------------------------------------------------------------------------


def test_dash_says_what_is_wrong_in_one_line(equipoise, tmp_path, monkeypatch):
    assert "does not exist" in equipoise("dash", tmp_path / "nowhere").err
    assert "unknown use" in equipoise("dash", tmp_path, "--use", "nonsense").err
    monkeypatch.setenv("EQUIPOISE_DASH_TOKEN", "short")
    assert "EQUIPOISE_DASH_TOKEN" in equipoise("dash", tmp_path).err
    monkeypatch.delenv("EQUIPOISE_DASH_TOKEN")
    result = equipoise("dash", tmp_path, "--host", "256.1.1.1", "--port", "0")
    assert result.code == 2
    assert result.err.count("\n") == 1
    assert "cannot listen" in result.err


def test_dash_without_its_packages_names_the_extra(equipoise, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "starlette", None)
    result = equipoise("dash", tmp_path)
    assert result.code == 2
    assert "pip install 'equipoise[serve,report]'" in result.err


def test_dash_prints_its_address_and_serves_until_interrupted(tmp_path):
    pytest.importorskip("uvicorn", reason="needs uvicorn: pip install 'equipoise[serve,report]'")
    import httpx

    write_log(tmp_path / "r", curve(2))
    code = "import sys; from equipoise.cli.main import run; sys.argv = ['equipoise', 'dash', *sys.argv[1:]]; run()"
    words = [sys.executable, "-c", code, str(tmp_path), "--port", "0", "--json", "--host", "0.0.0.0"]
    environment = {name: value for name, value in os.environ.items() if name != "EQUIPOISE_DASH_TOKEN"}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
        address = json.loads(process.stdout.readline())["address"]
        start, _, token = address.partition("?token=")
        port = start.rstrip("/").rpartition(":")[2]
        here = f"http://127.0.0.1:{port}/state"
        with httpx.Client(transport=httpx.HTTPTransport(retries=5), trust_env=False) as client:
            assert client.get(here).status_code == 401
            answer = client.get(here, headers={"authorization": f"Bearer {token}"})
            assert answer.status_code == 200
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert len(token) >= 32
    assert process.returncode == 0
    assert err == ""
