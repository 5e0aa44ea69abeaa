"""The variance probe: the same problems drawn at several budgets, and the sweep read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from equipoise.base import Sampler
from equipoise.errors import UsageError
from equipoise.lab.open_model import open_sampler
from equipoise.lab.probe_forcing import Forcing, Named
from equipoise.lab.probe_pool import Probed, probe_pool
from equipoise.lab.sample import sample
from equipoise.lab.sample_record import Say
from equipoise.tasks.task import AtMost, Task

SAMPLES = 8


def probe(
    model: str | Path | Sampler,
    task: str | Task,
    out: str | Path,
    *,
    budgets: Sequence[int],
    samples: int = SAMPLES,
    problems: int = AtMost(50),
    answer_tokens: int | None = None,
    thinking_field: str | None = None,
    markers: tuple[str, str] = ("<think>", "</think>"),
    cue: str | None = None,
    spend: float | None = None,
    temperature: float = 1.0,
    top_p: float = 1.0,
    split: str | None = None,
    seed: int = 0,
    chat: bool | None = None,
    served: str | None = None,
    device: str = "cpu",
    rows: int | None = None,
    at_once: int = 16,
    say: Say = lambda line: None,
) -> Probed:
    """Draw `samples` completions of each problem at every budget, record them in `out`, and read the sweep.

    A budget limits a whole completion; with `answer_tokens` it limits the thinking, and so many more are for the answer. The limit on
    thinking is then the model's own, where it has marks for it in this process or is a server that takes it in the request field
    `thinking_field`; else it is held from outside, by `markers` and with `cue` after a forced end. The other settings are those of `sample`: started again, it goes on with what is missing, and Ctrl-C
    keeps what was drawn. `spend`: tokens a question that the setting to use may take, see `probe_pool`.
    """
    if not budgets:
        raise UsageError("a probe needs budgets to compare: three or more, for example 64,128,256,512")
    if answer_tokens is None and thinking_field is not None:
        raise UsageError(
            f"{thinking_field} limits the thinking: say with answer_tokens=… how many tokens are for the answer"
        )
    drawn_from, chat, native = _with_limit(model, answer_tokens, thinking_field, markers, cue, chat, served, device)
    told = sample(
        drawn_from,
        task,
        out,
        problems=problems,
        samples=samples,
        budgets=sorted(budgets),
        answer_tokens=answer_tokens,
        temperature=temperature,
        top_p=top_p,
        split=split,
        seed=seed,
        tokens=0.0,
        top_logprobs=None,
        chat=chat,
        served=served if drawn_from is model else None,
        device=device,
        rows=rows,
        at_once=at_once,
        say=say,
    )
    found = probe_pool(out, spend=spend, answer_tokens=answer_tokens, native=native, seed=seed)
    if found.advice is not None and isinstance(drawn_from, Forcing):
        setting = replace(found.advice.setting, forced_by=drawn_from.unusual)
        found = replace(found, advice=replace(found.advice, setting=setting))
    warnings = tuple(dict.fromkeys((*told.warnings, *found.warnings)))
    return replace(found, interrupted=told.interrupted, warnings=warnings)


def _with_limit(
    model: str | Path | Sampler,
    answer_tokens: int | None,
    thinking_field: str | None,
    markers: tuple[str, str],
    cue: str | None,
    chat: bool | None,
    served: str | None,
    device: str,
) -> tuple[str | Path | Sampler, bool | None, bool]:
    """The model as it can be asked with these budgets, whether in chat, and whether the limit is its own."""
    if answer_tokens is None:
        return model, chat, False
    if thinking_field is not None:
        if not isinstance(model, str) or not model.startswith(("http://", "https://")):
            raise UsageError(
                f"only a server takes a request field such as {thinking_field}: leave it out to have the limit held here"
            )
        from equipoise.samplers.http import connect  # inside: aiohttp is an extra

        name = model if served is None else f"{model} ({served})"
        server = connect(model, model=served, thinking_field=thinking_field)
        return Named(server, name=name), True if chat is None else chat, True
    opened = open_sampler(model, served=served, device=device)
    chat = opened.chat if chat is None else chat
    if getattr(opened.sampler, "marks", None) is not None:  # a model in this process that knows where its thinking ends
        return model, chat, True
    start, end = markers
    return Forcing(opened.sampler, name=opened.name, start=start, end=end, cue=cue), chat, False
