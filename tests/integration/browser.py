"""Headless Chromium for tests of pages. It is part of `make test-integration`: where it is missing, these tests fail."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# Told to the test as they happen: what a policy stopped, and whether a payload ran.
WATCH = "addEventListener('securitypolicyviolation', (event) => { (window.stopped ??= []).push(event.violatedDirective + ' ' + event.blockedURI); });"


def chromium_path() -> str:
    found = os.environ.get("CHROMIUM") or next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if found is None:
        pytest.fail(
            "no chromium on the path: `make test-integration` installs it; or name one in CHROMIUM", pytrace=False
        )
    return found


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """Playwright's browser object. For one module: while it is open its event loop runs here, and no other can."""
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        pytest.fail("playwright is not installed: `make test-integration` installs it", pytrace=False)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=FLAGS)
        yield browser
        browser.close()


@dataclass
class Visit:
    """A page in its tab, with all that it said, asked for and popped up."""

    tab: Any
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    popped: list[str] = field(default_factory=list)

    def stopped(self) -> list[str]:
        """What the page's policy had to stop."""
        found: list[str] = self.tab.evaluate("window.stopped ?? []")
        return found

    def quiet(self) -> None:
        """Nothing was said, stopped or popped up, and nothing was asked of a network."""
        assert self.said == []
        assert self.popped == []
        assert self.stopped() == []
        assert [url for url in self.asked if not url.startswith(("file:", "blob:", "data:"))] == []
        assert self.tab.evaluate("window.pwned") is None


@pytest.fixture
def visit(chromium: Any) -> Iterator[Callable[..., Visit]]:
    """`visit(path, **context)` opens a file with the network off."""
    contexts = []

    def open_page(path: Path | str, **settings: Any) -> Visit:
        context = chromium.new_context(**{"viewport": {"width": 1360, "height": 900}, "offline": True, **settings})
        contexts.append(context)
        found = Visit(context.new_page())
        found.tab.add_init_script(WATCH)
        found.tab.on("console", lambda message: found.said.append(f"{message.type}: {message.text}"))
        found.tab.on("pageerror", lambda problem: found.said.append(f"error: {problem}"))
        found.tab.on("request", lambda request: found.asked.append(request.url))
        found.tab.on("dialog", lambda dialog: (found.popped.append(dialog.message), dialog.dismiss()))
        found.tab.goto(path if str(path).startswith("http") else Path(path).resolve().as_uri())
        return found

    yield open_page
    for context in contexts:
        context.close()


def serious_faults(tab: Any) -> list[str]:
    """What axe-core calls serious or critical, as `rule: element` lines."""
    import axe_playwright_python

    script = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
    tab.evaluate(script + "; undefined")
    found = tab.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{fault['id']}: {node['html'][:160]} {node['any'][0]['message'][:160] if node['any'] else ''}"
        for fault in found["violations"]
        if fault["impact"] in ("serious", "critical")
        for node in fault["nodes"]
    ]
