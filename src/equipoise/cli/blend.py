"""`equipoise blend BASE TRAINED`: the point between two models that suits a use, measured and written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from equipoise.base import Estimate
    from equipoise.lab.blend import Blended


def blend(
    base: Annotated[
        str,
        typer.Argument(help="the model before training: a small GPT file, a run folder, or what transformers loads"),
    ],
    trained: Annotated[
        str, typer.Argument(help="the same model after it; of a run folder what its newest checkpoint hands over")
    ],
    task: Annotated[
        str | None,
        typer.Option(help="problems to measure on, e.g. countdown:numbers=4; default: the run's own, else countdown"),
    ] = None,
    use: Annotated[
        str,
        typer.Option(
            help="what the model is for: answer (one sample: the best pass@1, of equals the best pass@k) or "
            "search (any of k: the best pass@k, of equals the best pass@1)"
        ),
    ] = "answer",
    k: Annotated[int | None, typer.Option("-k", help="samples per problem in a search; default: all drawn")] = None,
    points: Annotated[
        str | None,
        typer.Option(help="shares of the way from BASE (0) to TRAINED (1), with commas; default: 0,0.1,…,1"),
    ] = None,
    at: Annotated[
        float | None,
        typer.Option(help="write this share of the way into -o and measure nothing: neither task nor points"),
    ] = None,
    problems: Annotated[int, typer.Option(help="problems of the sweep, and as many others of the test", min=2)] = 256,
    samples: Annotated[int, typer.Option(help="completions of each", min=1)] = 64,
    temperature: Annotated[float, typer.Option(help="of sampling")] = 1.0,
    max_tokens: Annotated[
        int | None, typer.Option(help="of a completion; default: the run's own, else 20 (transformers: 256)", min=1)
    ] = None,
    seed: Annotated[int, typer.Option(help="seed of problems and completions", min=0)] = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    rows: Annotated[
        int, typer.Option(help="completions sampled at once: fewer need less memory and change no result", min=1)
    ] = 8192,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="new folder for the model and blend.json; default: write nothing")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print only JSON on stdout")] = False,
) -> None:
    """Repair a collapsed model: blend its weights with those it was trained from, as far as its use wants.

    Equals are the points whose paired difference from the best, over the same problems, has a 95 % interval that includes 0.

    Example: equipoise blend base.safetensors runs/grpo --use search -k 64 -o blended

    Example: equipoise blend base-model checkpoint-800/average --at 0.7 -o blended
    """
    from importlib.util import find_spec

    from equipoise.cli.show import print_json
    from equipoise.errors import MissingExtra
    from equipoise.text.display import safe_text

    chosen = None if points is None else _shares(points)
    if find_spec("torch") is None:
        raise MissingExtra("train", needed_for="equipoise blend")
    from equipoise.lab.blend import POINTS, blend_at
    from equipoise.lab.blend import blend as run

    if at is not None:
        model = blend_at(base, trained, at, out=_only_out(out, task=task, points=points))
        if as_json:
            print_json({"point": at, "model": model})
        else:
            typer.echo(f"wrote {safe_text(model, 300)}: λ = {at:g} of the way, nothing measured")
        return
    found = run(
        base,
        trained,
        task=task,
        use=use,
        k=k,
        points=POINTS if chosen is None else chosen,
        samples=samples,
        problems=problems,
        temperature=temperature,
        max_tokens=max_tokens,
        seed=seed,
        device=device,
        rows=rows,
        out=out,
        say=lambda line: typer.echo(safe_text(line, 1000), err=True),
    )
    if as_json:
        print_json(found.to_dict())
    else:
        for line in _page(found):
            typer.echo(line)


def _only_out(out: Path | None, **measured: str | None) -> Path:
    from equipoise.errors import UsageError

    asked = [f"--{name}" for name, value in measured.items() if value is not None]
    if asked:
        raise UsageError(
            f"--at writes one point and measures nothing, and {' and '.join(asked)} ask for a sweep: choose one"
        )
    if out is None:
        raise UsageError("--at writes a model and has no folder to write it into: add -o FOLDER")
    return out


def _shares(text: str) -> list[float]:
    from equipoise.errors import UsageError

    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"--points takes numbers from 0 to 1 with commas, as 0,0.25,0.5; found '{text}'") from None


def _page(found: Blended) -> list[str]:
    from equipoise.text.display import many, safe_text

    names = list(dict.fromkeys(("pass@1", f"pass@{found.k}", "distinct_unsolved", "entropy")))
    heads = ["λ", *(name.replace("distinct_unsolved", "distinct on unsolved") for name in names)]
    rows = [[f"{one.point:g}", *(_cell(one.find(name)) for name in names)] for one in found.sweep]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = [
        f"BASE (λ 0) {safe_text(found.base, 300)}, TRAINED (λ 1) {safe_text(found.trained, 300)}: "
        f"{many(found.settings['problems'], 'problem')} of {safe_text(found.settings['task'], 300)} × {many(found.settings['samples'], 'sample')}, [95% interval]"
    ]
    for cells, one in ((heads, None), *zip(rows, found.sweep, strict=True)):
        told = "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True))
        lines.append(told.rstrip() if one is None or one.point != found.pick.point else f"{told}  ← pick")
    pick = found.pick
    use = "one answer" if found.settings["use"] == "answer" else f"a search with {many(found.k, 'sample')}"
    lines += [
        "",
        f"pick for {use}: λ = {pick.point:g}. By {found.goal} the best is λ = {pick.best:g}, and not told apart from it "
        f"{'is no other' if len(pick.tied) == 1 else 'are λ = ' + ', '.join(f'{p:g}' for p in pick.tied if p != pick.best)}.",
        f"rule: {found.rule}.",
        f"on {found.settings['problems']:,} test problems, which had no part in the choice:",
    ]
    picked = next(one for one in found.test if one.point == pick.point)
    for name in dict.fromkeys(("pass@1", f"pass@{found.k}")):
        beside = [
            f"{_cell(number, signed=True)} against {str(number.at['against']).upper()}, {_reading(number)}"
            for number in found.against
            if number.name.startswith(f"{name}_vs_")
        ]
        lines.append("  " + ";  ".join([f"{name} {_cell(picked.find(name))}", *beside]))
    if found.model is not None:
        lines.append(f"wrote {safe_text(found.model, 300)}, with blend.json")
    elif pick.point not in (0, 1):
        lines.append("nothing was written: -o FOLDER writes the picked model")
    return lines


def _cell(number: Estimate, *, signed: bool = False) -> str:
    if number.value is None:
        return "–"
    form = f"{'+' if signed else ''}.3f" if number.name.startswith(("pass@", "entropy")) else ".1f"
    if number.low is None or number.high is None:
        return format(number.value, form)
    return f"{number.value:{form}} [{number.low:{form}}, {number.high:{form}}]"


def _reading(number: Estimate) -> str:
    if number.low is None or number.high is None:
        return "no interval"
    return "better" if number.low > 0 else "worse" if number.high < 0 else "not told apart"
