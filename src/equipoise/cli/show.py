"""Printing: rich on a terminal, plain when piped, JSON alone on stdout with `--json`. All text is made safe first."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from equipoise.files import plain
from equipoise.text.display import safe_text

if TYPE_CHECKING:
    from rich.console import Console


def console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    # Piped, nothing is cut: a table is as wide as it must be.
    return Console(
        stderr=stderr, width=None if stream.isatty() else 1000, highlight=False, soft_wrap=not stream.isatty()
    )


# What JSON leaves as it is and a terminal may obey or cannot be sent: C1 controls, marks that turn or hide text, surrogates.
_UNSAFE = re.compile(
    "[\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)


def print_json(value: Any) -> None:
    """Only JSON. A character that is unsafe in a terminal, or that the stream cannot encode, is written as an escape."""
    unicode = (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")
    text = json.dumps(plain(value), ensure_ascii=not unicode, indent=2, allow_nan=False)
    print(_UNSAFE.sub(lambda found: json.dumps(found.group())[1:-1], text))


def print_warnings(lines: Iterable[str]) -> None:
    """Named warnings go to stderr, so that stdout stays clean."""
    for line in lines:
        print(f"warning: {safe_text(line, 500)}", file=sys.stderr)


@contextmanager
def counting(what: str, *, quiet: bool = False) -> Iterator[Callable[[int], None] | None]:
    """A running count on a terminal's stderr while files are read; nothing when piped."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    with Progress(
        SpinnerColumn(), TextColumn("{task.description}"), TextColumn("{task.completed:,.0f} rollouts"), TimeElapsedColumn(),
        console=console(stderr=True), transient=True,
    ) as bar:  # fmt: skip
        task = bar.add_task(what, total=None)
        yield lambda seen: bar.update(task, completed=seen)
