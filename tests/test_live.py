"""Runs while they are written: what a look finds, what travels to a page, and who may read it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil

import pytest
from growing import append, curve, rollouts, write_log, writer

from equipoise.diagnosis.verdict import diagnose
from equipoise.errors import UsageError
from equipoise.measures.pace import estimate_time_left
from equipoise.rollouts.readers.table import open_source
from equipoise.views.live import follow
from equipoise.views.live.curves import Curves, shared_pass
from equipoise.views.live.follow import Follower, find_runs
from equipoise.views.live.guard import HEADERS, allowed_hosts, choose_token, host_ok, is_loopback, token_ok
from equipoise.views.live.judging import Judge
from equipoise.views.live.server import Ticker, make_app
from equipoise.views.live.state import PAGE, Live

testclient = pytest.importorskip(
    "starlette.testclient", reason="needs starlette: pip install 'equipoise[serve,report]'"
)


# --- a log that grows ------------------------------------------------------------------------------------------------------


def test_a_look_tells_each_line_once(tmp_path):
    log = Follower(write_log(tmp_path, curve(3)))
    assert [line["step"] for line in log.look().lines] == [1, 2, 3]
    assert log.look().lines == ()
    append(tmp_path, '{"step": 4}\n{"step": 5}\n')
    assert [line["step"] for line in log.look().lines] == [4, 5]
    assert log.look() == log.look()


def test_a_torn_line_waits_for_its_end(tmp_path):
    log = Follower(write_log(tmp_path, curve(1)))
    log.look()
    append(tmp_path, '{"step": 2, "loss": 1.2')
    assert log.look().lines == ()
    append(tmp_path, '5, "entropy": 0.5}')
    assert [line["loss"] for line in log.look().lines] == [1.25]  # whole, though no line end came yet
    append(tmp_path, '\n{"step": 3, "nested": {"a": 1}')
    assert log.look().lines == ()
    append(tmp_path, "}\n")
    assert [line["step"] for line in log.look().lines] == [3]
    assert log.warnings.lines() == []


def test_a_line_torn_by_a_crash_is_said_and_passed_over(tmp_path):
    log = Follower(write_log(tmp_path, curve(1)))
    append(tmp_path, '{"step": 2, "entr\n[1, 2]\n\n{"step": 3}\n')
    assert [line["step"] for line in log.look().lines] == [1, 3]
    assert "bad-line" in log.warnings.entries
    assert log.warnings.entries["bad-line"][1] == 2


def test_a_log_that_is_written_whole_each_time_only_grows(tmp_path):
    log = Follower(write_log(tmp_path, curve(5)))
    log.look()
    write_log(tmp_path / "new", curve(7))
    os.replace(tmp_path / "new" / "metrics.jsonl", tmp_path / "metrics.jsonl")
    news = log.look()
    assert not news.again
    assert [line["step"] for line in news.lines] == [6, 7]


@pytest.mark.parametrize("how", ["replaced", "cut", "rewritten", "removed"])
def test_a_log_that_begins_anew_is_told_as_such(tmp_path, how):
    log = Follower(write_log(tmp_path, curve(5)))
    log.look()
    path = tmp_path / "metrics.jsonl"
    if how == "replaced":  # as a rotation does: another file under the name
        (tmp_path / "new").write_text("".join(json.dumps(line) + "\n" for line in curve(9, first=101)))
        os.replace(tmp_path / "new", path)
    elif how == "removed":
        path.unlink()
    else:
        lines = curve(2 if how == "cut" else 9, first=101)  # in place, shorter or longer than it was
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    news = log.look()
    assert news.again
    assert [line["step"] for line in news.lines] == {"cut": [101, 102], "removed": []}.get(how, [*range(101, 110)])
    assert not log.look().again


def test_what_is_no_log_is_said(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "metrics.jsonl").mkdir()
    (problem,) = Follower(tmp_path).look().problems
    assert "metrics.jsonl" in problem
    (tmp_path / "metrics.jsonl").rmdir()
    os.mkfifo(tmp_path / "metrics.jsonl")  # a plain open would wait for a writer for ever
    (problem,) = Follower(tmp_path).look().problems
    assert "not a file" in problem


# --- parts that appear -----------------------------------------------------------------------------------------------------


def test_parts_are_told_once_each_and_temporary_files_never(tmp_path):
    run = writer(tmp_path)
    run.write(rollouts(1, prompts=2))
    look = Follower(tmp_path).look
    assert [(part.step, part.path.name) for part in look().parts] == [(1, "part-0000.parquet")]
    run.write(rollouts(1, prompts=2))  # a second part of a step that is known
    run.write(rollouts(2, prompts=2))
    (tmp_path / "rollouts" / "step=000002" / ".part-0001.parquet.1-ab.tmp").write_bytes(b"PAR1")
    assert [(part.step, part.path.name) for part in look().parts] == [
        (1, "part-0001.parquet"),
        (2, "part-0000.parquet"),
    ]
    assert look().parts == ()


def test_a_late_part_of_an_old_step_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(follow, "SETTLED", -1.0)  # as if every folder had been still for long
    run = writer(tmp_path)
    for step in range(follow.NEWEST + 3):
        run.write(rollouts(step, prompts=1, samples=2))
    log = Follower(tmp_path)
    assert len(log.look().parts) == follow.NEWEST + 3
    os.utime(tmp_path / "rollouts" / "step=000000", (1, 1))
    run.write(rollouts(0, prompts=1, samples=2))
    found = [part for _ in range(follow.FULL) for part in log.look().parts]
    assert [(part.step, part.path.name) for part in found] == [(0, "part-0001.parquet")]


def test_a_rewound_run_tells_its_parts_anew(tmp_path):
    run = writer(tmp_path)
    for step in (1, 2, 3):
        run.write(rollouts(step, prompts=1, samples=2))
    log = Follower(tmp_path)
    log.look()
    run.rewind(1)
    news = log.look()
    assert news.lost
    assert [part.step for part in news.parts] == [1]


# --- folders ---------------------------------------------------------------------------------------------------------------


def test_runs_are_found_below_the_folder_and_links_are_not_followed(tmp_path):
    write_log(tmp_path / "a", curve(1))
    write_log(tmp_path / "deep" / "er" / "b", curve(1))
    write_log(tmp_path / "too" / "deep" / "to" / "find", curve(1))
    write_log(tmp_path / ".hidden", curve(1))
    write_log(tmp_path / "a" / "inner", curve(1))  # inside a run: part of it
    (tmp_path / "notes").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    found, left_out = find_runs(tmp_path)
    assert list(found) == ["a", "deep/er/b"]
    assert left_out is None
    assert list(find_runs(tmp_path / "a")[0]) == ["a"]


def test_more_runs_than_can_be_followed_are_said(tmp_path, monkeypatch):
    monkeypatch.setattr(follow, "MOST_RUNS", 2)
    for name in "abc":
        write_log(tmp_path / name, curve(1))
    found, left_out = find_runs(tmp_path)
    assert list(found) == ["a", "b"]
    assert "2 runs" in left_out


def test_a_folder_that_vanishes_or_is_malformed_is_said_and_the_others_go_on(tmp_path):
    for name in ("good", "gone", "bad"):
        write_log(tmp_path / name, curve(2))
    (tmp_path / "bad" / "run.json").write_text("{not json")
    (tmp_path / "bad" / "rollouts" / "step=000001").mkdir(parents=True)
    (tmp_path / "bad" / "rollouts" / "step=000001" / "part-0000.parquet").write_bytes(b"PAR1 nothing")
    live = Live(tmp_path)
    live.refresh()
    shutil.rmtree(tmp_path / "gone")
    append(tmp_path / "good", json.dumps(curve(1, first=3)[0]) + "\n")
    live.refresh()
    while (run := live.due()) is not None:
        live.judge(run)
    heads = {block["head"]["name"]: block["head"] for block in live.since(None)["runs"]}
    assert heads["good"]["step"] == 3
    assert heads["good"]["notes"] == []
    assert heads["gone"]["gone"]
    assert heads["gone"]["notes"] == ["the folder is gone"]
    told = " ".join(heads["bad"]["notes"])
    assert "run.json is not JSON" in told
    assert "part-0000.parquet" in told
    assert str(tmp_path) not in json.dumps(heads)


def test_a_folder_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(UsageError, match="does not exist"):
        Live(tmp_path / "nowhere")


# --- curves and their roles ------------------------------------------------------------------------------------------------


def points(answer, name, *, run=0, role=True):
    """{step: value} of a metric in an answer."""
    number = next(one["id"] for one in answer["series"] if one["name"] == name and one["role"] == role)
    block = next(block for block in answer["runs"] if block["id"] == run)
    return {
        s: v
        for at, steps, values in block.get("points", [])
        if at == number
        for s, v in zip(steps, values, strict=True)
    }


@pytest.mark.parametrize(
    ("line", "role", "value"),
    [
        ({"step": 1, "entropy": 0.5, "reward": 0.25}, "reward_mean", 0.25),
        ({"step": 1, "data": {"actor/entropy": 0.5, "critic/score/mean": 0.25, "actor/pg_loss": 0.0}}, "entropy", 0.5),
        ({"step": 1, "completions/mean_length": 9.0, "frac_reward_zero_std": 0.375}, "group_zero_std_frac", 0.375),
        (
            {"step": 1, "optim/entropy": 0.5, "env/all/by_group/frac_mixed": 0.75},
            "group_zero_std_frac",
            0.25,
        ),  # 1 − 0.75
        ({"step": 1, "eval/pass@1": 0.25, "eval/pass@64": 0.75}, "pass@64", 0.75),
    ],
)
def test_a_role_is_found_under_the_key_of_each_trainer(tmp_path, line, role, value):
    live = Live(write_log(tmp_path, [line]))
    live.refresh()
    assert points(live.since(None), role) == {1: value}


def test_a_role_that_moves_to_another_key_is_told_anew(tmp_path):
    live = Live(write_log(tmp_path, [{"step": 1, "score": 1.0}]))
    live.refresh()
    first = live.since(None)
    assert points(first, "reward_mean") == {1: 1.0}
    append(tmp_path, '{"step": 2, "reward_mean": 5.0, "score": 2.0}\n')
    live.refresh()
    (block,) = live.since(first["cursor"])["runs"]
    assert block["again"]
    assert points(live.since(None), "reward_mean") == {2: 5.0}


def test_a_rewound_log_takes_back_its_later_steps(tmp_path):
    live = Live(write_log(tmp_path, curve(5)))
    live.refresh()
    cursor = live.since(None)["cursor"]
    append(tmp_path, '{"rewind": 2}\n{"step": 3, "entropy": 9.0}\n')
    live.refresh()
    (block,) = live.since(cursor)["runs"]
    assert block["again"]
    whole = live.since(None)
    assert points(whole, "entropy") == {1: 1.0, 2: 0.5, 3: 9.0}
    assert points(whole, "reward_mean") == {1: 0.001, 2: 0.002}
    assert block["head"]["step"] == 3


def test_lines_without_a_usable_step_and_too_many_keys_are_said(tmp_path):
    many = {f"m{i}": 1.0 for i in range(600)}
    lines = [{"entropy": 1.0}, {"step": 1.5, "entropy": 1.0}, {"step": 10**300}, {"step": 1} | many]
    live = Live(write_log(tmp_path, lines))
    live.refresh()
    notes = " ".join(live.since(None)["runs"][0]["head"]["notes"])
    assert "without a whole step" in notes
    assert "more than 500 metrics" in notes


def test_the_k_that_most_runs_share():
    assert shared_pass([[1, 8, 64], [1, 8], [1, 8, 32]]) == 8
    assert shared_pass([[1, 8, 64], [1, 8, 64]]) == 64
    assert shared_pass([[1], []]) is None


def test_curves_by_stamps_worked_by_hand():
    curves = Curves(lambda kind, message: None)
    for step, stamp in ((1, 10), (2, 20), (3, 30)):
        curves.add({"step": step, "entropy": float(step)}, stamp)
    held = curves.by_key["entropy"]
    assert held.between(10, 20) == ([2], [2.0])
    assert held.between(0, 30) == ([1, 2, 3], [1.0, 2.0, 3.0])
    assert held.between(30, 99) == ([], [])


# --- what travels ----------------------------------------------------------------------------------------------------------


def fifty(tmp_path, steps=2000):
    for number in range(50):
        write_log(tmp_path / f"run-{number:02d}", curve(steps))
    live = Live(tmp_path)
    live.refresh()
    return live


def read_all(live, cursor=None):
    answers = []
    while not answers or answers[-1]["more"]:
        answers.append(live.since(answers[-1]["cursor"] if answers else cursor))
    return answers


def test_fifty_runs_of_two_thousand_points_travel_once(tmp_path):
    live = fifty(tmp_path)
    client = testclient.TestClient(make_app(live), base_url="http://localhost")
    cursor, seen, sizes = "", {}, []
    while True:
        answer = client.get("/state", params={"after": cursor})
        told = answer.json()
        sizes.append(len(answer.content))
        for block in told["runs"]:
            for number, steps, _ in block.get("points", []):
                seen.setdefault((block["id"], number), []).extend(steps)
        cursor = told["cursor"]
        if not told["more"]:
            break
    assert len(seen) == 50 * 2  # entropy and reward; the step times travel only when they are asked for
    assert all(steps == [*range(1, 2001)] for steps in seen.values())
    assert len(sizes) >= 50 * 2000 / PAGE
    assert max(sizes) < 4_000_000
    assert live.refresh() is False
    assert len(client.get("/state", params={"after": cursor}).content) <= 5_000  # nothing new
    append(tmp_path / "run-07", json.dumps(curve(1, first=2001)[0]) + "\n")
    live.refresh()
    answer = client.get("/state", params={"after": cursor})
    assert len(answer.content) <= 5_000  # one new line
    (block,) = answer.json()["runs"]
    assert block["head"]["name"] == "run-07"
    assert sorted(value for _, steps, values in block["points"] for value in values) == [pytest.approx(1 / 2001), 2.001]


def test_one_metric_by_number_and_its_news(tmp_path):
    live = Live(write_log(tmp_path, curve(3)))
    live.refresh()
    first = live.since(None)
    number = next(one["id"] for one in first["series"] if one["name"] == "seconds/sample")
    assert all(at != number for block in first["runs"] for at, _, _ in block["points"])
    whole = live.since(None, only=number)
    assert whole["runs"] == [{"id": 0, "points": [[number, [1, 2, 3], [1.5, 1.5, 1.5]]]}]
    append(tmp_path, '{"step": 4, "seconds/sample": 2.5}\n')
    live.refresh()
    (block,) = live.since(first["cursor"], also=[number])["runs"]
    assert block["points"] == [[number, [4], [2.5]]]


def test_a_cursor_of_another_process_gets_everything(tmp_path):
    live = Live(write_log(tmp_path, curve(3)))
    live.refresh()
    told = live.since("00000000.999999")
    assert told["whole"]
    assert points(told, "entropy") == {1: 1.0, 2: 0.5, 3: pytest.approx(1 / 3)}
    with pytest.raises(UsageError, match="cursor"):
        live.since("../../etc/passwd")


def test_time_left_worked_by_hand():
    steps = [{"seconds/sample": 3.0, "seconds/update": 1.0}] * 30 + [
        {"seconds/sample": 2.0, "seconds/update": 0.0}
    ] * 10
    found = estimate_time_left(steps, last=40, planned=100)
    assert found.value == pytest.approx((10 * 4.0 + 10 * 2.0) / 20 * 60)  # the last 20 steps, 60 to go
    assert found.n == 20
    assert estimate_time_left([{"step_time": 2.0}], last=99, planned=100).value == 2.0
    assert estimate_time_left([{"loss": 2.0}], last=1, planned=10).value is None
    assert estimate_time_left(steps, last=40, planned=None).missing


def test_a_run_past_its_plan_has_none_until_it_says_how_far_it_goes_on(tmp_path):
    writer(tmp_path, steps=2)
    write_log(tmp_path, curve(2))
    live = Live(tmp_path)
    live.refresh()
    (run,) = live.runs.values()
    assert (run.head()["step"], run.head()["planned"]) == (2, 2)
    append(tmp_path, '{"step": 3}\n')
    live.refresh()
    assert (run.head()["step"], run.head()["planned"]) == (3, None)  # not 3 of 2
    longer = writer(tmp_path, steps=5)
    longer.restate()
    os.utime(tmp_path / "run.json", (1, 1))  # surely another time of change
    live.refresh()
    assert (run.head()["step"], run.head()["planned"]) == (3, 5)
    before = (tmp_path / "run.json").stat().st_mtime
    longer.restate()
    assert (tmp_path / "run.json").stat().st_mtime == before  # nothing to say anew


# --- judging ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def drained(tmp_path_factory):
    """A run whose entropy falls to a tenth while it trains."""
    folder = tmp_path_factory.mktemp("drained")
    run = writer(folder, steps=100)
    for step in range(1, 11):
        run.write(rollouts(step, entropy=1.0 if step <= 3 else 0.1))
    write_log(folder, curve(10))
    return folder


def test_the_live_judgement_is_that_of_diagnose(drained):
    judge, follower = Judge(drained), Follower(drained)
    parts = follower.look().parts
    judge.read(parts[:4])
    judge.judge()  # what was counted so far must not disturb what comes
    judge.read(parts[4:])
    found, whole = judge.judge(), diagnose(drained)
    assert found.diagnosis.verdict == whole.verdict
    assert [f.to_dict() for f in found.diagnosis.findings] == [f.to_dict() for f in whole.findings]
    assert {f.name for f in found.alerts} >= {"mean entropy fell"}
    assert found.step == 10


def test_group_health_along_the_steps(drained):
    judge = Judge(drained)
    judge.read(Follower(drained).look().parts)
    told = judge.judge().to_dict()["groups"]
    assert [row[:3] for row in told] == [[step, step, 0.25] for step in range(1, 11)]  # every fourth group is all wrong
    assert all(low < 0.25 < high and n == 20 for _, _, _, low, high, n in told)


def test_group_health_is_that_of_the_training_rollouts(tmp_path):
    run = writer(tmp_path)
    run.write(rollouts(1))
    run.write([row | {"split": "test", "reward": 1.0, "correct": True} for row in rollouts(1)])  # all equal: all dead
    judge = Judge(tmp_path)
    judge.read(Follower(tmp_path).look().parts)
    assert [row[:3] for row in judge.judge().to_dict()["groups"]] == [[1, 1, 0.25]]


def test_lost_parts_count_no_longer(drained, tmp_path):
    folder = shutil.copytree(drained, tmp_path / "run")
    live = Live(folder)
    live.refresh()
    run = live.due()
    live.judge(run)
    assert run.judged.diagnosis.n_rollouts == 10 * 160
    writer(folder).rewind(4)
    live.refresh()
    run.not_before = 0
    live.judge(live.due())
    assert run.judged.diagnosis.n_rollouts == 4 * 160
    assert run.judged.step == 4


def test_a_damaged_part_is_left_out_whole(drained, tmp_path):
    folder = shutil.copytree(drained, tmp_path / "run")
    part = folder / "rollouts" / "step=000005" / "part-0000.parquet"
    part.write_bytes(part.read_bytes()[:-200])
    live = Live(folder)
    live.refresh()
    run = live.due()
    live.judge(run)
    assert run.judged.diagnosis.n_rollouts == 9 * 160
    assert any("step=000005/part-0000.parquet was left out" in note for note in run.notes)


def test_a_run_is_judged_again_only_after_a_while_and_the_newest_first(tmp_path):
    for name, when in (("a", 100), ("b", 200)):
        os.utime(write_log(tmp_path / name, curve(3)) / "metrics.jsonl", (when, when))
    now = [1000.0]
    live = Live(tmp_path, clock=lambda: now[0])
    live.refresh()
    order = []
    while (run := live.due()) is not None:
        order.append(run.name)
        live.judge(run)
    assert order == ["b", "a"]
    append(tmp_path / "a", '{"step": 4, "entropy": 0.1}\n')
    live.refresh()
    assert live.due() is None
    now[0] += 5.1
    assert live.due().name == "a"


def test_a_judgement_that_breaks_is_said_and_the_page_lives(tmp_path, monkeypatch):
    live = Live(write_log(tmp_path, curve(3)))
    monkeypatch.setattr(Judge, "judge", lambda self, ks: 1 / 0)

    async def tick():
        async with Ticker(live, 0.01).running():
            while not live.runs or live.runs[tmp_path].trouble is None:
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(tick(), 20))
    assert "not judged: ZeroDivisionError" in live.since(None)["runs"][0]["head"]["notes"][0]


def test_after_a_judgement_that_broke_off_every_rollout_counts_once(drained):
    live = Live(drained)
    live.refresh()
    run = live.due()
    live.judge(run)
    live.fail(run, ValueError("something odd"))
    live.judge(run)
    assert run.judged.diagnosis.n_rollouts == 10 * 160
    assert run.trouble is None


# --- who may read it -------------------------------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path):
    live = Live(write_log(tmp_path / "runs" / "a", curve(2)).parent)
    live.refresh()
    return live


def client(live, base="http://localhost", **how):
    return testclient.TestClient(make_app(live, **how), base_url=base)


TOKEN = "a-token-of-some-length"


def test_every_answer_keeps_the_page_to_itself(small):
    for path in ("/", "/state", "/assets/live.js", "/assets/plotly.js", "/nothing"):
        answer = client(small).get(path)
        assert answer.status_code == (404 if path == "/nothing" else 200)
        for name, value in HEADERS.items():
            assert answer.headers[name] == value
        assert "access-control-allow-origin" not in answer.headers
    policy = HEADERS["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "unsafe-eval" not in policy


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "", "a b", "localhost:99999999", "[::1", "localhost@evil.example"])  # fmt: skip
def test_a_foreign_host_header_is_refused(small, host):
    answer = client(small).get("/state", headers={"host": host})
    assert answer.status_code == 421
    assert "entropy" not in answer.text


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:9000", "127.0.0.1:8765", "[::1]:8765", "LOCALHOST", "localhost."]
)
def test_the_names_of_loopback_are_served_on_any_port(small, host):
    assert client(small).get("/state", headers={"host": host}).status_code == 200


def test_hosts_elsewhere_than_on_loopback():
    names = allowed_hosts("0.0.0.0", ["box.lan"])
    assert host_ok("box.lan:80", names, loopback=False)
    assert host_ok("192.168.1.5:80", names, loopback=False)  # an address cannot be rebound
    assert not host_ok("evil.example", names, loopback=False)
    assert is_loopback("127.0.0.1")
    assert is_loopback("::1")
    assert not is_loopback("0.0.0.0")
    assert not is_loopback("evil.localhost.example")


def test_nothing_is_read_without_the_token(small):
    guarded = client(small, "http://10.0.0.1", bound="0.0.0.0", token=TOKEN)
    for path in ("/", "/state", "/events", "/assets/live.js", "/nothing", "/?token=wrong", "/state?token=" + TOKEN):
        answer = guarded.get(path, follow_redirects=False)
        assert answer.status_code == 401, path
        assert TOKEN not in answer.text
    assert guarded.get("/state", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
    for wrong in (TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "", "Bearer", "é" * 20):
        assert guarded.get("/state", headers={"authorization": f"Bearer {wrong}".encode()}).status_code == 401


def test_the_address_with_the_token_leaves_a_cookie_and_no_trace(small):
    guarded = client(small, "http://10.0.0.1", bound="0.0.0.0", token=TOKEN)
    first = guarded.get(f"/?token={TOKEN}", follow_redirects=False)
    assert (first.status_code, first.headers["location"]) == (303, "/")
    cookie = first.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert guarded.get("/state").status_code == 200  # the client keeps the cookie
    again = guarded.get(
        "/?token=something-else", follow_redirects=False
    )  # a known visitor cannot be given another token
    assert "something-else" not in again.headers["set-cookie"]


def test_the_token_is_compared_in_even_time(monkeypatch):
    seen = []
    monkeypatch.setattr("hmac.compare_digest", lambda a, b: seen.append((a, b)) or a == b)
    assert token_ok("right", ["wrong", None, "right"])
    assert seen == [(b"wrong", b"right"), (b"right", b"right")]
    assert token_ok(None, [])
    assert not token_ok("right", [None])


def test_tokens_are_made_except_on_loopback_and_short_ones_refused():
    assert choose_token("127.0.0.1", {}) is None
    assert choose_token("localhost", {"EQUIPOISE_DASH_TOKEN": TOKEN}) == TOKEN
    made = {choose_token("0.0.0.0", {}) for _ in range(3)}
    assert len(made) == 3
    assert all(len(token) >= 32 for token in made)
    for bad in ("", "short", "spaces in a long token", "x" * 20 + "\n"):
        with pytest.raises(UsageError, match="EQUIPOISE_DASH_TOKEN"):
            choose_token("0.0.0.0", {"EQUIPOISE_DASH_TOKEN": bad})


@pytest.mark.parametrize("path", ["/assets/../state.py", "/assets/..%2f..%2fguard.py", "/assets/%2e%2e/live/guard.py", "/assets//etc/passwd", "/assets/report.js", "/assets/", "/a/metrics.jsonl", "/runs/a/run.json"])  # fmt: skip
def test_no_path_of_a_request_reaches_a_file(small, path):
    answer = client(small).get(path)
    assert answer.status_code == 404
    assert "import" not in answer.text


@pytest.mark.parametrize("query", ["after=../../etc", "after=zz.1", "also=1,2,3,4,5", "also=a", "only=1,2", "only=-1", "also=1;2"])  # fmt: skip
def test_a_query_that_is_not_understood_is_one_line(small, query):
    answer = client(small).get(f"/state?{query}")
    assert answer.status_code == 400
    assert answer.text.count("\n") == 1


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "HEAD"])
def test_nothing_can_be_changed(small, method):
    assert client(small).request(method, "/state").status_code == 405


def test_hostile_names_come_as_text_and_as_labels_without_markup(tmp_path):
    hostile = "<img src=x onerror=alert(1)>$x$%{y}"
    write_log(tmp_path / hostile, [{"step": 1, "entropy": 1.0, hostile: 2.0, "\x1b[31m\u202e": 3.0}])
    live = Live(tmp_path)
    live.refresh()
    told = live.since(None)
    head = told["runs"][0]["head"]
    assert head["name"] == hostile
    assert not set("<>$%") & set(head["label"])
    names = [one["name"] for one in told["series"]]
    assert hostile in names
    assert not any("\x1b" in name or "\u202e" in name for name in names)
    assert all(not set("<>$%") & set(one["label"]) - {"%"} or "&" in one["label"] for one in told["series"])


def test_news_wakes_the_stream_of_events(tmp_path):
    live = Live(write_log(tmp_path, curve(2)))

    async def listen():
        ticker = Ticker(live, 0.01)
        heard = []
        async with ticker.running():
            stream = ticker.stream()
            heard.append(await anext(stream))
            while "." not in heard[-1] or heard[-1].split(".")[1].strip() == "0":
                heard.append(await anext(stream))
            append(tmp_path, '{"step": 3, "entropy": 0.5}\n')
            heard.append(await anext(stream))
            assert ticker.streams == 1
            await stream.aclose()
            assert ticker.streams == 0
        return heard

    heard = asyncio.run(asyncio.wait_for(listen(), 30))
    assert all(event.startswith("data: ") and event.endswith("\n\n") for event in heard)
    assert heard[-1] != heard[-2]


def test_the_run_folder_is_read_as_the_reader_reads_it(drained):
    assert len(list(open_source(drained).metrics())) == 10
