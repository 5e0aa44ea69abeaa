"""Makes the recorded pools beside this file: `python -m benchmarks.infer.make_pools [NAME …]`.

Every pool is one call of `equipoise.lab.sample.sample` (on the command line: `equipoise sample`) and comes with a README that says
how it was made and what is in it. A pool that is there and whole is left as it is.
"""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from equipoise.files import atomic_write
from equipoise.lab.sample import sample
from equipoise.lab.sample_record import Sampled

HERE = Path(__file__).parent / "recorded"
SEED = 0

# Settings of `sample`. Token lists of a tenth of the problems: more would not stay below 10 MB.
POOLS: dict[str, dict[str, Any]] = {
    "thinker": {
        "model": "packaged:thinker",
        "task": "countdown:numbers=3",
        "problems": 500,
        "samples": 64,
        "budgets": (0, 16, 32, 64, 128),
        "answer_tokens": 16,
        "tokens": 0.1,
    },
    "small": {
        "model": "packaged",
        "task": "countdown",
        "problems": 500,
        "samples": 64,
        "temperature": 0.3,
        "tokens": 0.1,
    },
}
ABOUT = {
    "thinker": "A small GPT that tries expressions and then answers, at five limits on its thinking.",
    "small": "The small GPT that answers at once, cooled to temperature 0.3. The target may be reached by several expressions.",
}


def command(name: str) -> str:
    """What a shell would be given for the same pool."""
    settings = dict(POOLS[name])
    parts = ["equipoise", "sample", settings.pop("model"), settings.pop("task"), "-o", f"recorded/{name}"]
    for option, value in settings.items():
        flag = "--budget" if option == "budgets" else f"--{option.replace('_', '-')}"
        for one in value if isinstance(value, tuple) else (value,):
            parts += [flag, str(one)]
    return shlex.join([*parts, "--seed", str(SEED)])


def make_pool(name: str, folder: Path, *, device: str = "cpu") -> Sampled:
    found = sample(**POOLS[name], out=folder, seed=SEED, device=device, say=print)
    pack(folder)
    size = sum(path.stat().st_size for path in folder.rglob("*.parquet"))
    with atomic_write(folder / "README.md") as handle:
        handle.write(readme(name, found.to_dict(), size).encode())
    return found


def pack(folder: Path) -> None:
    """All parts as one, packed tighter: what is written once and kept need not be fast to write."""
    home = folder / "rollouts" / "step=none"
    parts = sorted(home.glob("part-*.parquet"))
    table = pa.concat_tables([pq.ParquetFile(part).read() for part in parts])
    floats = [f"{field.name}.list.element" for field in table.schema if field.type == pa.list_(pa.float32())]
    words = [field.name for field in table.schema if pa.types.is_string(field.type)] + ["token_ids.list.element"]
    with atomic_write(parts[0]) as handle:
        pq.write_table(
            table,
            handle,
            row_group_size=8192,
            compression="zstd",
            compression_level=19,
            use_dictionary=words,
            use_byte_stream_split=floats,
            store_schema=False,
        )
    for part in parts[1:]:
        part.unlink()


def readme(name: str, told: Mapping[str, Any], size: int) -> str:
    by: dict[int | None, dict[str, Any]] = {}
    for number in told["estimates"]:
        by.setdefault(number["at"].get("budget"), {})[number["name"]] = number
    rows = [
        f"| {'none' if budget is None else budget} | {_shown(each['pass@1'])} | {each['tokens']['value']:.1f} | "
        f"{each['no_answer']['value']:.1%} |"
        for budget, each in by.items()
    ]
    pool = POOLS[name]
    return "\n".join(
        [
            f"# {name}",
            "",
            f"{ABOUT[name]} {told['problems']} problems × {pool['samples']} samples"
            + (f" × {len(by)} budgets" if len(by) > 1 else "")
            + f": {told['n']:,} completions, {told['tokens']:,} tokens, {size / 1e6:.1f} MB.",
            "",
            f"    {command(name)}",
            "",
            f"Model `{pool['model']}`, task `{pool['task']}`, split test, seed {SEED}, temperature {pool.get('temperature', 1.0)}; "
            "made again by `python -m benchmarks.infer.make_pools`.",
            "Scalars, texts and trace confidences of all; token lists (ids, log-probs, entropies, confidences) of a tenth of the problems.",
            "",
            "| thinking budget | pass@1 | tokens | no answer |",
            "| ---: | ---: | ---: | ---: |",
            *rows,
            "",
            "Intervals: 95 %, over problems. Problems are made from a seed and completions by a model of this package, so all of it "
            "comes under the licence of this repository.",
            "",
        ]
    )


def _shown(number: Mapping[str, Any]) -> str:
    return f"{number['value']:.3f} [{number['low']:.3f}, {number['high']:.3f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(POOLS), help=f"of {', '.join(POOLS)}")
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    for name in asked.names:
        found = make_pool(name, asked.out / name, device=asked.device)
        print(json.dumps({"pool": name, "pass@1": [n["value"] for n in found.to_dict()["pass@1"]]}))


if __name__ == "__main__":
    main()
