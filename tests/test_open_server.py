"""A server's address on the command line: refused before anything is drawn where no completion could come from it."""

from __future__ import annotations

import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

pytest.importorskip("aiohttp", reason="needs the extra infer: pip install 'equipoise[infer]'")

PAGE = b"<html><body>\x1b[31mWelcome</body></html>"


@contextmanager
def answering(status, body):
    """The address of a server that says one thing to everybody."""

    class Says(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Says) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


@pytest.fixture
def problems(tmp_path):
    file = tmp_path / "problems.jsonl"
    file.write_text("".join(json.dumps({"question": f"{n}+{n}?", "answer": str(2 * n)}) + "\n" for n in (1, 2)))
    return file


@pytest.mark.parametrize("command", ["question", "task", "sample", "compare", "probe"])
def test_a_page_where_a_server_should_be_is_one_line_and_no_accuracy(equipoise, tmp_path, problems, command):
    out = tmp_path / "out"
    with answering(200, PAGE) as url:
        words = {
            "question": ("solve", "2+2?", "--model", url),
            "task": ("solve", "--task", problems, "--problems", "2", "--model", url),
            "sample": ("sample", url, problems, "--problems", "2", "-o", out),
            "compare": ("compare", "--model", url, "--task", problems, "--problems", "2", "--strategies", "single"),
            "probe": ("probe", "--upstream", url, "--task", problems, "--problems", "2", "--budgets", "8,16", "--out", out),
        }[command]  # fmt: skip
        found = equipoise(*words)
    assert (found.code, found.out) == (2, "")
    assert found.err.startswith(f"equipoise: {url} cannot be used: the server sent not JSON")
    assert found.err.count("\n") == 1
    assert "\x1b" not in found.err
    assert not out.exists()


def test_a_server_that_is_not_up_is_one_line(equipoise):
    with answering(503, b'{"error": {"message": "loading the model"}}') as url:
        loading = equipoise("solve", "2+2?", "--model", url)
    assert (loading.code, loading.out) == (2, "")
    assert "loading the model" in loading.err
    gone = equipoise("solve", "2+2?", "--model", url)  # its port is closed by now
    assert (gone.code, gone.out) == (2, "")
    assert gone.err.startswith(f"equipoise: {url} cannot be used: no reply from {url}")


def test_more_problems_than_a_file_has_names_the_flag(equipoise, problems):
    with answering(404, b"{}") as url:  # lists no models, as some servers do: that is no fault
        found = equipoise("compare", "--model", url, "--task", problems, "--problems", "3", "--strategies", "single")
    assert found.code == 2
    assert (
        "3 different problems were asked for, and this task has 2 in split 'all': ask for fewer (--problems"
        in found.err
    )
