"""Log-prob and entropy from hidden states, forward and backward: our kernel, TRL's, verl's two, plain logits, bare matmuls.

    pip install --no-deps --target rivals trl==1.16.0 verl==0.9.1
    PYTHONPATH=src:rivals python benchmarks/token_stats/run.py

Needs an NVIDIA GPU with 80 GB, torch 2.8 or later, triton and transformers; of TRL and verl only the files of their kernels are loaded.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from equipoise.models.tiles import CHUNK
from equipoise.models.token_confidence import token_confidence
from equipoise.models.token_stats import token_stats

HERE = Path(__file__).parent
SHAPES = [(8_192, 2_048, 151_936), (16_384, 1_024, 151_936), (16_384, 576, 49_152)]  # tokens, width, vocabulary
ARMS = {
    "matmuls": "the four bare products that any of these must make (logits, logits again, two gradients), all logits held",
    "equipoise": "`token_stats`, which gives drift as well; logits in float32",
    "trl": "TRL's `ChunkedLogProbFunction` as its trainers call it (entropy asked for); logits in bfloat16",
    "verl_triton": "verl's `linear_cross_entropy`; logits in float32; refuses a width that is not a multiple of 128",
    "verl_torch": "verl's `FusedLinearForPPO`, chunks of 512; logits in bfloat16",
    "plain": "`(hidden @ weight.T).float().log_softmax(-1)` and autograd; logits in bfloat16",
}
CHUNKS = [2**power for power in range(23, 29)]
Arm = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


# --- the arms --------------------------------------------------------------------------------------------------------------


def ours(hidden_ND: Tensor, weight_VD: Tensor, ids_N: Tensor, *, chunk: int = CHUNK) -> tuple[Tensor, Tensor]:
    stats = token_stats(hidden_ND, weight_VD, ids_N, chunk=chunk)
    return stats.logp_N, stats.entropy_N


def plain(hidden_ND: Tensor, weight_VD: Tensor, ids_N: Tensor) -> tuple[Tensor, Tensor]:
    log_p_NV = (hidden_ND @ weight_VD.T).float().log_softmax(-1)
    entropy_N = -(log_p_NV.exp() * log_p_NV).sum(-1)
    return log_p_NV.gather(1, ids_N[:, None])[:, 0], entropy_N


def plain_confidence(hidden_ND: Tensor, weight_VD: Tensor) -> Tensor:
    return -(hidden_ND @ weight_VD.T).float().log_softmax(-1).topk(20).values.mean(-1)


def rival_arms() -> dict[str, Arm]:
    for package in ("trl", "trl.trainer", "verl", "verl.utils", "verl.utils.kernel", "verl.utils.experimental"):
        skip_init(package)
    # TRL's backward pass asks its trainer utilities for this context, which does nothing without DeepSpeed ZeRO-3.
    utilities = ModuleType("trl.trainer.utils")
    utilities.maybe_gather_lm_head_ctx = lambda *_: nullcontext()  # type: ignore[attr-defined]
    sys.modules["trl.trainer.utils"] = utilities
    trl = import_module("trl.kernels.chunked_logprob").ChunkedLogProbFunction
    verl_triton = import_module("verl.utils.kernel.linear_cross_entropy").linear_cross_entropy
    verl_torch = import_module("verl.utils.experimental.torch_functional").FusedLinearForPPO()
    return {
        "trl": lambda h, w, ids: trl.apply(h, w, None, ids, 1.0, 32_768, None, 1.0, ("entropy",))[:2],
        "verl_triton": lambda h, w, ids: verl_triton(h, w, ids, 1.0, "none"),
        "verl_torch": lambda h, w, ids: verl_torch(h, w, ids, 1.0),
    }


def skip_init(name: str) -> None:
    """Make a package importable without running its `__init__`, which wants ray, datasets and more."""
    parent, _, last = name.rpartition(".")
    if parent:
        folders = [str(Path(folder) / last) for folder in sys.modules[parent].__path__]
    else:
        spec = find_spec(name)
        if spec is None or spec.submodule_search_locations is None:
            raise SystemExit(f"{name} is not on the path: see the head of this file")
        folders = list(spec.submodule_search_locations)
    package = ModuleType(name)
    package.__path__ = folders
    sys.modules[name] = package


# --- measuring -------------------------------------------------------------------------------------------------------------


class Case:
    """One shape: inputs with tokens from certain to nearly uniform, gradients to send back, and the float64 answer."""

    def __init__(self, n: int, d: int, v: int) -> None:
        draw = torch.Generator("cuda").manual_seed(n + d + v)
        randn = partial(torch.randn, generator=draw, device="cuda")
        weight_VD = 2 * torch.nn.functional.normalize(randn(v, d), dim=1)
        self.ids_N = torch.randint(v, (n,), generator=draw, device="cuda")
        pull_N = 12 * torch.rand(
            n, 1, generator=draw, device="cuda"
        )  # moves the chosen token's logit up by twice as much
        hidden_ND = randn(n, d) + pull_N * torch.nn.functional.normalize(weight_VD[self.ids_N], dim=1)
        self.hidden_ND = hidden_ND.bfloat16().requires_grad_()
        self.weight_VD = weight_VD.bfloat16().requires_grad_()
        self.grads = (randn(n), 0.1 * randn(n))

    def forward(self, arm: Arm) -> None:
        with torch.no_grad():
            arm(self.hidden_ND, self.weight_VD, self.ids_N)

    def both(self, arm: Arm) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Log-prob, entropy, and the gradients of hidden states and weight."""
        self.hidden_ND.grad = self.weight_VD.grad = None
        results = arm(self.hidden_ND, self.weight_VD, self.ids_N)
        torch.autograd.backward(results, [g.to(r.dtype) for g, r in zip(self.grads, results, strict=True)])
        assert self.hidden_ND.grad is not None
        assert self.weight_VD.grad is not None
        return (*(r.detach() for r in results), self.hidden_ND.grad, self.weight_VD.grad)

    def matmuls(self, products: int) -> None:
        with torch.no_grad():
            logits_NV = self.hidden_ND @ self.weight_VD.T
            if products == 4:
                torch.mm(self.hidden_ND, self.weight_VD.T, out=logits_NV)
                _ = logits_NV @ self.weight_VD
                _ = logits_NV.T @ self.hidden_ND

    def exact(self, rows: int = 512) -> tuple[Tensor, ...]:
        """What `both` gives, in float64 throughout, a few tokens at a time."""
        weight_VD = self.weight_VD.detach().double().requires_grad_()
        found: list[tuple[Tensor, ...]] = []
        for first in range(0, len(self.ids_N), rows):
            part = slice(first, first + rows)
            hidden_RD = self.hidden_ND.detach()[part].double().requires_grad_()
            log_p_RV = (hidden_RD @ weight_VD.T).log_softmax(-1)
            logp_R = log_p_RV.gather(1, self.ids_N[part, None])[:, 0]
            entropy_R = -(log_p_RV.exp() * log_p_RV).sum(-1)
            torch.autograd.backward((logp_R, entropy_R), [g[part].double() for g in self.grads])
            assert hidden_RD.grad is not None
            found.append((logp_R.detach(), entropy_R.detach(), hidden_RD.grad))
        assert weight_VD.grad is not None
        return (*(torch.cat(parts) for parts in zip(*found, strict=True)), weight_VD.grad)


def clock(steps: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Milliseconds on the GPU of every step, once a round, in an order drawn anew.

    A turn is four runs of a step, of which the last three are timed: the clock rate depends on what ran just before.
    """
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for count in range(rounds + 1):  # the first round is not counted
        for name in random.Random(count).sample(list(steps), len(steps)):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            steps[name]()
            start.record()
            for _ in range(3):
                steps[name]()
            end.record()
            torch.cuda.synchronize()
            if count:
                taken[name].append(start.elapsed_time(end) / 3)
    return taken


def peak_megabytes(step: Callable[[], Any]) -> int:
    """Memory that a step takes at its worst, beyond what was there before; its results and gradients included."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return round((torch.cuda.max_memory_allocated() - before) / 1e6)


def errors(found: tuple[Tensor, ...], exact: tuple[Tensor, ...]) -> dict[str, float]:
    """Largest absolute error of the values; for the gradients ‖found − exact‖ / ‖exact‖."""
    result = {}
    for name, mine, true in zip(("logp", "entropy", "grad_hidden", "grad_weight"), found, exact, strict=True):
        gap = mine.double() - true
        value = gap.norm() / true.norm() if name.startswith("grad") else gap.abs().max()
        result[name] = float(f"{value.item():.2e}")
    return result


def measure_shape(shape: tuple[int, int, int], arms: dict[str, Arm], rounds: int) -> dict[str, Any]:
    case = Case(*shape)
    exact = case.exact()
    result: dict[str, Any] = {"tokens": shape[0], "width": shape[1], "vocabulary": shape[2]}
    result["median_entropy"] = round(exact[1].median().item(), 2)
    rounded = (*exact[:2], *(g.bfloat16() for g in exact[2:]))
    result["rounding_alone"] = errors(rounded, exact)
    if shape[1] % 128:
        arms = {name: arm for name, arm in arms.items() if name != "verl_triton"}  # its kernel refuses such a width
    rows: dict[str, dict[str, Any]] = {name: {} for name in ("matmuls", *arms)}
    for name, arm in arms.items():
        found = case.both(arm)
        rows[name]["errors"] = errors(found, exact)
        rows[name]["dtypes"] = [str(tensor.dtype).removeprefix("torch.") for tensor in found]
        del found
        case.hidden_ND.grad = case.weight_VD.grad = None
        rows[name]["peak_mb"] = peak_megabytes(partial(case.both, arm))
    del exact, rounded
    both = clock({"matmuls": partial(case.matmuls, 4)} | {n: partial(case.both, a) for n, a in arms.items()}, rounds)
    forward = clock(
        {"matmuls": partial(case.matmuls, 1)} | {n: partial(case.forward, a) for n, a in arms.items()}, rounds
    )
    for name, row in rows.items():
        row["both_ms"], row["all_both_ms"] = round(median(both[name]), 2), [round(t, 2) for t in both[name]]
        row["forward_ms"] = round(median(forward[name]), 2)
        row["times_matmuls"] = round(median(both[name]) / median(both["matmuls"]), 2)
        row["times_trl"] = round(median(both[name]) / median(both["trl"]), 2)
    chunks = clock({str(chunk): partial(case.both, partial(ours, chunk=chunk)) for chunk in CHUNKS}, rounds // 2)
    result["chunk_ms"] = {chunk: round(median(taken), 2) for chunk, taken in chunks.items()}
    return result | {"arms": rows, "confidence": measure_confidence(case, rounds)}


@torch.no_grad()
def measure_confidence(case: Case, rounds: int) -> dict[str, Any]:
    hidden_ND, weight_VD = case.hidden_ND.detach(), case.weight_VD.detach()
    exact_R = -(hidden_ND[:512].double() @ weight_VD.double().T).log_softmax(-1).topk(20).values.mean(-1)
    arms = {"equipoise": token_confidence, "plain": plain_confidence}
    steps = {name: partial(arm, hidden_ND, weight_VD) for name, arm in arms.items()}
    rows = {
        name: {"error": float(f"{(step()[:512] - exact_R).abs().max().item():.2e}")} for name, step in steps.items()
    }
    for name, step in steps.items():
        rows[name]["peak_mb"] = peak_megabytes(step)
    for name, taken in clock(steps, rounds).items():
        rows[name]["ms"] = round(median(taken), 2)
    return rows


# --- writing ---------------------------------------------------------------------------------------------------------------


def machine() -> dict[str, str]:
    gpu = torch.cuda.get_device_properties(0)
    found = {"gpu": f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB", "cuda": str(torch.version.cuda)}
    found |= {"python": platform.python_version(), "torch": torch.__version__}
    return found | {name: version(name) for name in ("triton", "transformers", "trl", "verl")}


def write_results(results: list[dict[str, Any]], about: dict[str, str], rounds: int, out: Path) -> None:
    data = {"command": f"python benchmarks/token_stats/run.py --rounds {rounds}", "machine": about, "results": results}
    (out / "results.json").write_text(json.dumps(data, indent=1) + "\n")
    (out / "README.md").write_text("\n".join(describe(results, about, rounds)) + "\n")


def describe(results: list[dict[str, Any]], about: dict[str, str], rounds: int) -> list[str]:
    versions = ", ".join(f"{name} {number}" for name, number in about.items() if name != "gpu")
    return [
        "# Log-prob and entropy of a token from its hidden state",
        "",
        "How long the head of a model takes in a policy update, from hidden states and output weight (bfloat16) to the log-prob of",
        "the chosen token and the entropy, and back to both gradients; and how exact that is.",
        "",
        *(summary(found) for found in results),
        "",
        *(f"- **{name}**: {text}" for name, text in ARMS.items()),
        "",
        f"All arms in one process, in an order drawn anew each round; medians of {rounds} rounds of three timed runs (every",
        "round is in `results.json`), × is their ratio. Memory: the peak beyond the inputs, gradients included. Errors: against float64 on the same inputs,",
        "largest absolute for the values, ‖gap‖/‖exact‖ for the gradients. All gradients come as bfloat16, whose rounding alone costs",
        "the error in the last row. Ours and TRL's are summed in float32 and rounded once (ours writes the weight's directly where all",
        "tokens fit one block of 16,384, so there is no float32 copy of it); verl_triton adds the parts of hidden's up in bfloat16,",
        "verl_torch those of the weight's.",
        *(line for found in results for line in arm_table(found)),
        *chunk_table(results),
        *confidence_table(results),
        "",
        f"Machine: {about['gpu']}; {versions}. Ours with its default chunk of {CHUNK:,} logits, TRL and verl with theirs.",
        "",
        "```",
        "pip install --no-deps --target rivals trl==1.16.0 verl==0.9.1",
        f"PYTHONPATH=src:rivals python benchmarks/token_stats/run.py --rounds {rounds}",
        "```",
    ]


def shape_of(found: dict[str, Any]) -> str:
    return f"{found['tokens']:,} tokens × {found['width']:,} × {found['vocabulary']:,}"


def summary(found: dict[str, Any]) -> str:
    mine, trl, plain_ = (found["arms"][name] for name in ("equipoise", "trl", "plain"))
    return (
        f"- {shape_of(found)}: **{mine['times_trl']:.2f} × TRL's time**, {mine['times_matmuls']:.2f} × the bare matmuls,"
        f" {plain_['both_ms'] / mine['both_ms']:.1f} times faster than plain logits; largest error of a log-prob"
        f" {mine['errors']['logp']:.0e} against TRL's {trl['errors']['logp']:.0e}."
    )


def arm_table(found: dict[str, Any]) -> list[str]:
    lines = ["", f"## {shape_of(found)}", "", f"Median entropy of the tokens: {found['median_entropy']} nats.", ""]
    lines += [
        "| arm | forward + backward ms | × matmuls | × TRL | forward ms | peak MB | logp error | entropy error | grad hidden | grad weight |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, row in found["arms"].items():
        cells = [f"{row[key]:.2f}" for key in ("both_ms", "times_matmuls", "times_trl", "forward_ms")]
        cells += [f"{row['peak_mb']:,}" if "peak_mb" in row else ""]
        cells += [f"{error:.1e}" for error in row["errors"].values()] if "errors" in row else [""] * 4
        lines.append(f"| {name} | {' | '.join(cells)} |")
    alone = found["rounding_alone"]
    return [*lines, f"| rounding alone | | | | | | | | {alone['grad_hidden']:.1e} | {alone['grad_weight']:.1e} |"]


def chunk_table(results: list[dict[str, Any]]) -> list[str]:
    """Why the default chunk is what it is."""
    lines = [
        "",
        "## Logits held at a time",
        "",
        "Forward + backward ms of ours; a logit takes 4 bytes, and 2 more on the way back.",
    ]
    lines += ["", f"| tokens × width × vocabulary | {' | '.join(f'2^{chunk.bit_length() - 1}' for chunk in CHUNKS)} |"]
    lines += ["| --- " + "| ---: " * len(CHUNKS) + "|"]
    return lines + [
        f"| {shape_of(found)} | {' | '.join(f'{ms:.2f}' for ms in found['chunk_ms'].values())} |" for found in results
    ]


def confidence_table(results: list[dict[str, Any]]) -> list[str]:
    lines = ["", "## Token confidence", ""]
    lines += [
        "DeepConf's negative mean log-prob of the 20 most likely tokens, forward only: `token_confidence` against",
        "`-(hidden @ weight.T).float().log_softmax(-1).topk(20).values.mean(-1)`.",
        "",
        "| tokens × width × vocabulary | arm | ms | × matmul | peak MB | error |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for found in results:
        floor = found["arms"]["matmuls"]["forward_ms"]
        for name, row in found["confidence"].items():
            cells = f"{row['ms']:.2f} | {row['ms'] / floor:.2f} | {row['peak_mb']:,} | {row['error']:.1e}"
            lines.append(f"| {shape_of(found)} | {name} | {cells} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument(
        "--shapes", type=lambda text: [int(i) for i in text.split(",")], default=[0, 1, 2], help="0,1,2"
    )
    parser.add_argument("--out", type=Path, default=HERE, help="folder for results.json and README.md")
    args = parser.parse_args()
    arms = {"equipoise": ours} | rival_arms() | {"plain": plain}
    results: list[dict[str, Any]] = []
    for index in args.shapes:
        results.append(measure_shape(SHAPES[index], arms, args.rounds))
        print(json.dumps(results[-1]), file=sys.stderr)
        write_results(results, machine(), args.rounds, args.out)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
