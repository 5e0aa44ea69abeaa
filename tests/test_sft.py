"""Supervised training against a slow loop, and the packaged models against what is written of them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors", reason="needs safetensors: pip install 'equipoise[train]'")

from torch import Tensor  # noqa: E402

from equipoise.base import Answer, Completion, Grade, Problem  # noqa: E402
from equipoise.errors import UsageError  # noqa: E402
from equipoise.lab import make_packaged as recipe  # noqa: E402
from equipoise.models.characters import END, Characters  # noqa: E402
from equipoise.models.checkpoint import load_gpt  # noqa: E402
from equipoise.models.decoding import Decoding  # noqa: E402
from equipoise.models.generate import generate  # noqa: E402
from equipoise.models.gpt import GPT, GPTConfig  # noqa: E402
from equipoise.models.loaders import load_model  # noqa: E402
from equipoise.models.packaged import SIZES, packaged_model  # noqa: E402
from equipoise.models.samples import read_completions  # noqa: E402
from equipoise.tasks.table import find_task  # noqa: E402
from equipoise.tasks.task import in_split  # noqa: E402
from equipoise.training.sft import _draw_rows, _encode, fine_tune, make_pairs, share_of_rate  # noqa: E402

TOKENS = Characters("abcd>")
PAIRS = [("a>", "bc"), ("abc>", "d"), ("d>", "aabb"), ("bb>", "a")]  # prompts and completions of several lengths
RESULTS = Path(__file__).parents[1] / "benchmarks" / "packaged_model" / "results.json"


def tiny(context: int = 12) -> GPT:
    return GPT(GPTConfig(TOKENS.size, width=16, layers=1, heads=2, context=context)).double()


def weights(model: GPT) -> list[Tensor]:
    return [weight.detach().clone() for weight in model.parameters()]


# --- the loop --------------------------------------------------------------------------------------------------------------


def slow_loss(model: GPT, pairs: Sequence[tuple[str, str]]) -> Tensor:
    """One pair at a time and no padding; log-probs from plain logits."""
    total, count = torch.zeros((), dtype=torch.float64), 0
    for prompt, text in pairs:
        asked, answer = TOKENS.encode(prompt), [*TOKENS.encode(text), END]
        ids = torch.tensor([[*asked, *answer]])
        n = ids.shape[1]
        causal = torch.full((n, n), -torch.inf, dtype=torch.float64).triu(1)[None, None]
        hidden = model(ids, torch.arange(n)[None], causal)[0]
        logits = hidden @ model.embed.weight.T
        logits[:, 0] = -torch.inf  # padding is never a token
        for position, token in enumerate(answer, start=len(asked)):
            total = total - logits[position - 1].log_softmax(-1)[token]
            count += 1
    return total / count


def test_three_steps_equal_a_slow_loop_with_adam_written_out() -> None:
    fast, slow = tiny(), tiny()
    heard = fine_tune(
        fast, TOKENS, PAIRS, steps=3, batch=4, lr=0.05, seed=1, warmup=2, weight_decay=0.3, clip_norm=0.5, every=1
    )
    first = [torch.zeros_like(w) for w in slow.parameters()]
    second = [torch.zeros_like(w) for w in slow.parameters()]
    rates = [0.025, 0.05, 0.05 * (1 + math.cos(math.pi / 2)) / 2]  # 1/2 and 2/2 of the warm-up, then half of the cosine
    for step, rate in enumerate(rates, start=1):
        slow.zero_grad()
        loss = slow_loss(slow, PAIRS)
        loss.backward()
        assert heard[step - 1].loss == pytest.approx(loss.item(), rel=1e-7)  # torch clips by norm + 1e-6
        assert heard[step - 1].lr == pytest.approx(rate)
        norm = math.sqrt(sum(float((w.grad**2).sum()) for w in slow.parameters()))
        with torch.no_grad():
            for i, weight in enumerate(slow.parameters()):
                gradient = weight.grad * min(1.0, 0.5 / norm)
                first[i] = 0.9 * first[i] + 0.1 * gradient
                second[i] = 0.95 * second[i] + 0.05 * gradient**2
                if weight.dim() == 2:
                    weight *= 1 - rate * 0.3
                step_size = rate / (1 - 0.9**step)
                weight -= step_size * first[i] / ((second[i] / (1 - 0.95**step)).sqrt() + 1e-8)
    for one, other in zip(weights(fast), weights(slow), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


def test_learning_rates_by_hand() -> None:
    cosine = [share_of_rate(step, steps=11, warmup=4, schedule="cosine") for step in (1, 4, 6, 8, 10)]
    assert cosine == pytest.approx([0.25, 1.0, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2])
    assert [share_of_rate(step, steps=11, warmup=2, schedule="constant") for step in (1, 2, 3, 11)] == [0.5, 1, 1, 1]
    assert share_of_rate(1, steps=3, warmup=0, schedule="constant") == 1


def test_the_seed_decides_everything_and_the_callers_random_numbers_stay() -> None:
    made = {}
    for run, seed in {"first": 3, "again": 3, "other": 4}.items():
        model = tiny()
        torch.manual_seed(99)
        fine_tune(model, TOKENS, PAIRS, steps=5, batch=2, lr=0.01, seed=seed, warmup=0)
        made[run] = weights(model)
        assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(99)))
    assert all(map(torch.equal, made["first"], made["again"]))
    assert not all(map(torch.equal, made["first"], made["other"]))


class Dropping(GPT):
    """Drops hidden states at random while it is trained."""

    def forward(self, *given: Tensor) -> Tensor:
        return torch.nn.functional.dropout(super().forward(*given), 0.5, self.training)


def test_dropout_follows_the_seed_and_the_mode_of_the_model_comes_back() -> None:
    made = []
    for callers in (1, 2):
        torch.manual_seed(callers)
        model = Dropping(tiny().config).double().train(False)
        fine_tune(model, TOKENS, PAIRS, steps=2, batch=4, lr=0.01, seed=3, warmup=0)
        assert not model.training
        made.append(weights(model))
    assert all(map(torch.equal, *made))
    plain = tiny()
    fine_tune(plain, TOKENS, PAIRS, steps=2, batch=4, lr=0.01, seed=3, warmup=0)
    assert not all(map(torch.equal, made[0], weights(plain)))


@pytest.mark.parametrize(("n", "batch"), [(7, 2), (7, 7), (3, 8)])
def test_every_pair_is_seen_once_before_one_is_seen_twice(n: int, batch: int) -> None:
    rows = _draw_rows(n, batch, seed=0)
    seen = torch.cat([next(rows) for _ in range(3 * n)]).tolist()
    rounds = [seen[i * n : (i + 1) * n] for i in range(len(seen) // n)]
    assert all(sorted(each) == list(range(n)) for each in rounds)
    assert len({tuple(each) for each in rounds}) > 1


def test_a_model_learns_what_it_is_shown() -> None:
    model = GPT(GPTConfig(TOKENS.size, width=32, layers=1, heads=2, context=12))
    said = []
    heard = fine_tune(model, TOKENS, PAIRS, steps=120, batch=4, lr=0.02, seed=0, warmup=5, every=50, say=said.append)
    assert [at.step for at in said] == [50, 100, 120]
    assert heard == tuple(said)
    assert said[0].loss > said[1].loss > said[2].loss
    prompts = [TOKENS.encode(prompt) for prompt, _ in PAIRS]
    greedy = Decoding(top_k=1)
    drawn = generate(model, prompts, seeds=[0] * 4, samples=1, max_tokens=6, pad=0, stop=(END,), decoding=greedy)
    assert [completion.text for completion in read_completions(drawn, TOKENS)] == [text for _, text in PAIRS]


class Opening:
    """A tokenizer that begins every text with a token of its own, as Llama's does."""

    pad, stop = 0, (END,)

    def encode(self, prompt: str) -> list[int]:
        return [6, *TOKENS.encode(prompt)]

    def decode(self, ids: Sequence[int]) -> str:
        return TOKENS.decode(ids)


def test_an_opening_token_stands_before_the_prompt_only() -> None:
    data = _encode(tiny(), Opening(), [("a", "bc"), ("ab", "d")])
    assert data.ids_NS.tolist() == [[0, 6, 2, 3, 4, END], [6, 2, 3, 5, END, 0]]
    assert data.mask_NS.int().tolist() == [[0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0]]
    ids, mask, n_prompt = data.take(torch.tensor([0]))
    assert (ids.tolist(), n_prompt) == ([[6, 2, 3, 4, END]], 2)
    assert mask.all()


@pytest.mark.parametrize(
    ("pairs", "settings", "said"),
    [
        ([], {}, "at least one pair"),
        ([("", "a")], {}, "'a' has no tokens"),
        ([("a" * 8, "b" * 4)], {}, "8 \\+ 5 tokens, but this model reads at most 12"),
        ([("a" * 10, "b"), ("a", "b" * 6)], {}, "longest prompt has 10 tokens, the longest completion 7"),
        (PAIRS, {"lr": math.nan}, "lr is nan"),
        (PAIRS, {"steps": 0}, "must be 1 or more"),
        (PAIRS, {"schedule": "linear"}, "use cosine or constant"),
    ],
)
def test_bad_input_is_one_line(pairs: list[tuple[str, str]], settings: dict, said: str) -> None:
    with pytest.raises(UsageError, match=said) as problem:
        fine_tune(tiny(), TOKENS, pairs, **({"steps": 1, "batch": 2, "lr": 0.1, "seed": 0} | settings))
    assert "\n" not in str(problem.value)


def test_half_precision_is_refused_and_divergence_reported() -> None:
    with pytest.raises(UsageError, match=r"float16.*train in float32"):
        fine_tune(tiny().half(), TOKENS, PAIRS, steps=1, batch=2, lr=0.1, seed=0)
    broken = tiny()
    with torch.no_grad():
        broken.embed.weight[3] = torch.nan
    with pytest.raises(FloatingPointError, match="at step 2 of 4"):
        fine_tune(broken, TOKENS, PAIRS, steps=4, batch=4, lr=0.1, seed=0, every=2)


# --- demonstrations --------------------------------------------------------------------------------------------------------


def test_pairs_are_right_and_of_their_split() -> None:
    task = find_task("countdown")
    pairs = make_pairs(task, seed=5, n=50)
    problems = task.problems(5, 50)
    assert [prompt for prompt, _ in pairs] == [problem.prompt for problem in problems]
    for problem, (_, text) in zip(problems, pairs, strict=True):
        assert task.grade(problem, Completion(text, finish="stop")).correct
        numbers = ",".join(map(str, sorted(problem.params["numbers"])))
        assert in_split(f"countdown:{numbers}={problem.params['target']}", "train")


def test_several_seeds_show_a_problem_with_several_solutions() -> None:
    task = find_task("countdown", numbers=3, largest=3)  # few problems, so that seeds meet
    shown: dict[str, set[str]] = {}
    for seed in range(8):
        for prompt, text in make_pairs(task, seed=seed, n=10):
            shown.setdefault(prompt, set()).add(text)
    assert max(map(len, shown.values())) > 1


def test_a_template_must_leave_the_solution_right() -> None:
    task = find_task("countdown", prompt="words")
    [(_, text)] = make_pairs(task, seed=0, n=1, template="<answer>{reference}</answer>")
    assert text.startswith("<answer>")
    with pytest.raises(UsageError, match=r"is graded wrong: change the template"):
        make_pairs(task, seed=0, n=1, template="{reference}+1")


# --- the packaged models ---------------------------------------------------------------------------------------------------


def documented(size: str) -> dict:
    [found] = [model for model in json.loads(RESULTS.read_text())["models"] if model["size"] == size]
    return found


@pytest.mark.parametrize("size", SIZES)
def test_a_packaged_model_is_what_is_written_of_it(size: str) -> None:
    model, tokens = load_gpt(packaged_model(size))
    found = documented(size)
    assert model.head.weight_VD.dtype == torch.float16
    assert tokens == recipe.TOKENS
    assert model.config == recipe.SIZES[size].config
    # 12 · layers · width² in the blocks, the embedding, and 2 · layers + 1 norms.
    width, layers, vocabulary = {"small": (96, 3, 21), "medium": (192, 4, 21)}[size]
    counted = 12 * layers * width**2 + vocabulary * width + (2 * layers + 1) * width
    assert sum(p.numel() for p in model.parameters()) == counted == found["parameters"]
    assert packaged_model(size).stat().st_size == found["bytes"]
    assert found["recipe"]["steps"] == recipe.SIZES[size].steps


@pytest.mark.parametrize("size", SIZES)
def test_a_packaged_model_solves_as_often_as_is_written(size: str) -> None:
    task = find_task(recipe.TASK)
    loaded = load_model(packaged_model(size))
    problems = task.problems(("near", size), 64, split="test")
    prompts = [loaded.tokens.encode(problem.prompt) for problem in problems]
    drawn = generate(
        loaded.model, prompts, seeds=range(64), samples=8, max_tokens=20, pad=loaded.tokens.pad, stop=loaded.tokens.stop
    )
    graded = [
        task.grade(problems[i // 8], completion) for i, completion in enumerate(read_completions(drawn, loaded.tokens))
    ]
    [at_one] = [row for row in documented(size)["evaluation"]["test"] if row["temperature"] == 1]
    # One such mean has a standard error of 0.03: problems differ by 0.17, eight samples of one by 0.15.
    assert sum(bool(grade.correct) for grade in graded) / 512 == pytest.approx(at_one["pass@1"]["value"], abs=0.09)


def test_packaged_models_are_small_and_an_unknown_size_names_the_known() -> None:
    assert sum(packaged_model(size).stat().st_size for size in SIZES) < 5_000_000
    with pytest.raises(UsageError, match="did you mean 'small'"):
        packaged_model("smal")


# --- the recipe ------------------------------------------------------------------------------------------------------------


class Scripted:
    """Grades a problem's samples as written: a capital letter is right, `-` is no answer."""

    def __init__(self, scripts: dict[str, str]) -> None:
        self.left = {name: iter(script) for name, script in scripts.items()}

    def grade(self, problem: Problem, completion: Completion) -> Grade:
        letter = next(self.left[problem.id])
        if letter == "-":
            return Grade(None, "unparsable", 0.0)
        return Grade(Answer(letter), "right" if letter.isupper() else "wrong", float(letter.isupper()))


def test_numbers_of_an_evaluation_by_enumeration() -> None:
    scripts = {"one": "AAbcd", "two": "aa-bc", "three": "ABCDE", "four": "-----"}
    problems = [Problem(name, "x", "ab>") for name in scripts]
    found = recipe.evaluate(
        tiny(context=40), TOKENS, Scripted(scripts), problems, samples=5, temperature=1.0, seed=0, rows=10
    )
    for k in (1, 4):
        solved = [any(map(str.isupper, subset)) for script in scripts.values() for subset in combinations(script, k)]
        assert found[f"pass@{k}"]["value"] == pytest.approx(sum(solved) / len(solved))
    assert "pass@16" not in found
    assert (found["distinct_unsolved"]["value"], found["distinct_unsolved"]["n"]) == (1.5, 2)  # a b c; none
    assert (found["distinct_solved"]["value"], found["distinct_solved"]["n"]) == (4.5, 2)  # A b c d; A B C D E
    assert found["unparsable"] == pytest.approx(6 / 20)


def test_entropy_of_an_evaluation_is_that_of_a_uniform_model_and_splits_change_nothing() -> None:
    problems = [Problem(str(i), "x", "ab>" * (i + 1)) for i in range(3)]
    model = tiny(context=40)
    with torch.no_grad():
        model.embed.weight.zero_()  # every logit is 0, and padding is banned
    made = [
        recipe.evaluate(
            model,
            TOKENS,
            Scripted(dict.fromkeys("012", "abcd")),
            problems,
            samples=4,
            temperature=0.7,
            seed=1,
            rows=rows,
        )
        for rows in (4, 100)
    ]
    assert made[0] == made[1]
    assert made[0]["entropy"]["value"] == pytest.approx(math.log(TOKENS.size - 1), rel=1e-6)


def test_the_recipe_runs_from_end_to_end_and_again_the_same(tmp_path: Path) -> None:
    size = replace(recipe.SIZES["small"], width=16, layers=1, heads=2, steps=3, batch=8, pairs=40)
    for folder, jobs in (("one", 1), ("two", 2)):
        found = recipe.make_packaged(
            "small",
            tmp_path / folder,
            size=size,
            device="cpu",
            jobs=jobs,
            problems=4,
            samples=2,
            temperatures=(0.6, 1.0),
        )
        assert json.loads((tmp_path / folder / "countdown-small.json").read_text()) == found
    one, two = (load_gpt(tmp_path / folder / "countdown-small.safetensors")[0] for folder in ("one", "two"))
    assert all(map(torch.equal, weights(one), weights(two)))
    assert [row["temperature"] for row in found["evaluation"]["test"]] == [0.6, 1.0]
    assert found["parameters"] == 12 * 16**2 + 21 * 16 + 3 * 16
