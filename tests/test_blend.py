"""Blending: the line between two models, the rule that picks a point of it, and the command from files to files."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors", reason="needs safetensors: pip install 'equipoise[train]'")

from html_tables import read_tables  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from equipoise.base import Answer, Completion, Grade, Problem  # noqa: E402
from equipoise.cli import main  # noqa: E402
from equipoise.errors import UsageError  # noqa: E402
from equipoise.lab import blend as blend_file  # noqa: E402
from equipoise.lab.blend import blend  # noqa: E402
from equipoise.lab.blend_pick import choose_point, rule_of  # noqa: E402
from equipoise.lab.interpolation import Line, weights_of  # noqa: E402
from equipoise.models.blending import interpolate  # noqa: E402
from equipoise.models.characters import Characters  # noqa: E402
from equipoise.models.checkpoint import load_gpt, save_gpt  # noqa: E402
from equipoise.models.gpt import GPT, GPTConfig  # noqa: E402
from equipoise.tasks.task import Draft, Seed, pick_problems, right_or_wrong, unparsable  # noqa: E402
from equipoise.training.checkpoints import save_checkpoint  # noqa: E402
from equipoise.training.evaluate import evaluate  # noqa: E402
from equipoise.training.opening import OpenModel, open_model  # noqa: E402
from equipoise.training.recipe import Evaluation  # noqa: E402

TOKENS = Characters("0123456789=")
CONFIG = GPTConfig(TOKENS.size, width=16, layers=1, heads=2, context=16)
TASK = "test_blend:Parity"


@dataclass(frozen=True, slots=True)
class Parity:
    """Answer with a digit that is even or odd as the number asked about: even a random model is right now and then."""

    env: str = "parity"

    def problems(self, seed: Seed, n: int, *, split: str = "train") -> list[Problem]:
        drafts = (Draft(str(i), Problem(f"parity:{i}", self.env, f"{i}=")) for i in range(400))
        return pick_problems(drafts, seed=seed, n=n, split=split)

    def read(self, problem: Problem, text: str) -> Answer | None:
        return Answer(text[0]) if text and text[0].isdigit() else None

    def grade(self, problem: Problem, completion: Completion) -> Grade:
        answer = self.read(problem, completion.text or "")
        if answer is None:
            return unparsable()
        return right_or_wrong(answer, int(answer.text) % 2 == int(problem.id.split(":")[1]) % 2)


def load_end(path: Path) -> OpenModel:
    return open_model(path, dtype=None)


def gpt(seed: int, config: GPTConfig = CONFIG) -> GPT:
    """Random, with embeddings large enough that its next token is far from uniform."""
    model = GPT(config, seed=seed)
    with torch.no_grad():
        model.embed.weight *= 20
    return model


def saved(path: Path, model: GPT, tokens: Characters = TOKENS) -> Path:
    save_gpt(path, model, tokens)
    return path


@pytest.fixture
def ends(tmp_path: Path) -> tuple[Path, Path]:
    return saved(tmp_path / "base.safetensors", gpt(1)), saved(tmp_path / "trained.safetensors", gpt(2))


def same_bits(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return list(a) == list(b) and all(
        a[name].dtype == b[name].dtype and a[name].numpy().tobytes() == b[name].numpy().tobytes() for name in a
    )


# --- the line --------------------------------------------------------------------------------------------------------------


def test_between_two_weights_worked_by_hand() -> None:
    base, trained = {"w": torch.tensor([1.0, -2.0, 5.0])}, {"w": torch.tensor([3.0, 2.0, 5.0])}
    assert interpolate(base, trained, 0.5)["w"].tolist() == [2.0, 0.0, 5.0]
    assert interpolate(base, trained, 0.25)["w"].tolist() == [1.5, -1.0, 5.0]


def test_half_precision_is_added_up_in_float32_and_rounded_once() -> None:
    draw = torch.Generator().manual_seed(0)
    base, trained = (torch.randn(500, generator=draw).bfloat16() for _ in range(2))
    slow = torch.tensor([a + 0.375 * (b - a) for a, b in zip(base.tolist(), trained.tolist(), strict=True)]).bfloat16()
    found = interpolate({"w": base}, {"w": trained}, 0.375)["w"]
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, slow)
    assert not torch.equal(base + 0.375 * (trained - base), slow)  # what adding up in bfloat16 would give


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_ends_are_the_inputs_bit_for_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    base, trained = gpt(1).to(dtype), gpt(2).to(dtype)
    with torch.no_grad():
        base.norm.weight[0], trained.norm.weight[0] = 0.0, -0.0
    paths = [saved(tmp_path / f"{i}.safetensors", model) for i, model in enumerate((base, trained))]
    line = Line(*(load_end(path) for path in paths))
    line.at(0.5)
    for point, model in ((0.0, base), (1.0, trained), (0.0, base)):
        found = {name: tensor.view(torch.uint8) for name, tensor in line.at(point).state_dict().items()}
        assert same_bits(found, {name: tensor.view(torch.uint8) for name, tensor in model.state_dict().items()})


def test_ends_of_two_dtypes_meet_in_the_wider_one(tmp_path: Path) -> None:
    half, single = gpt(1).bfloat16(), gpt(2)
    line = Line(load_end(saved(tmp_path / "a.safetensors", half)), load_end(saved(tmp_path / "b.safetensors", single)))
    assert same_bits(line.at(0).state_dict(), {name: w.float() for name, w in half.state_dict().items()})
    assert same_bits(line.at(1).state_dict(), single.state_dict())
    backwards = Line(load_end(tmp_path / "b.safetensors"), load_end(tmp_path / "a.safetensors"))
    # Angles that had once been rounded to bfloat16 would be left coarse by widening.
    assert torch.equal(backwards.model.turns_CK, single.turns_CK)  # type: ignore[attr-defined]


class Odd(nn.Module):
    """A tied weight, an integer buffer, a constant with −∞."""

    def __init__(self, value: float, count: int = 3) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
        nn.init.constant_(self.first.weight, value)
        self.second.weight = self.first.weight
        self.register_buffer("count", torch.tensor(count))
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))


def test_tied_weights_are_one_and_integers_and_constants_stay() -> None:
    base, trained = weights_of(Odd(1.0)), weights_of(Odd(2.0))
    assert list(base) == ["count", "mask", "first.weight"]
    found = interpolate(base, trained, 0.5)
    assert found["first.weight"].tolist() == [[1.5, 1.5], [1.5, 1.5]]
    assert (found["count"].dtype, int(found["count"])) == (torch.int64, 3)
    assert found["mask"].tolist() == [0.0, -torch.inf]


# --- refusals --------------------------------------------------------------------------------------------------------------


def refused(base: Path, trained: Path) -> str:
    with pytest.raises(UsageError) as problem:
        Line(load_end(base), load_end(trained))
    assert "\n" not in str(problem.value)
    return str(problem.value)


@pytest.mark.parametrize(
    ("config", "alphabet", "said"),
    [
        (GPTConfig(13, width=16, layers=2, heads=4, context=16), "0123456789=", "layers is 1 in the first and 2 in"),
        (GPTConfig(13, width=16, layers=1, heads=4, context=16), "0123456789=", "heads is 2 in the first and 4 in"),
        (
            GPTConfig(14, width=16, layers=1, heads=2, context=16),
            "0123456789=>",
            "vocabulary is 13 in the first and 14",
        ),
        # Ids 0 and 1 pad and end, so '5' has id 7 in the one alphabet and '6' has it in the other.
        (CONFIG, "0123465789=", "the vocabulary's token 7 is '5' in the first and '6' in"),
    ],
)
def test_another_model_is_refused_by_its_first_difference(
    ends: tuple[Path, Path], tmp_path: Path, config: GPTConfig, alphabet: str, said: str
) -> None:
    other = saved(tmp_path / "other.safetensors", gpt(3, config), Characters(alphabet))
    assert said in refused(ends[0], other)


def test_weights_that_are_not_finite_are_refused(ends: tuple[Path, Path], tmp_path: Path) -> None:
    broken = gpt(2)
    with torch.no_grad():
        broken.norm.weight[0] = torch.nan
    assert "broken.safetensors holds nan or infinity in norm.weight" in refused(
        ends[0], saved(tmp_path / "broken.safetensors", broken)
    )


def test_integers_that_differ_are_refused(ends: tuple[Path, Path]) -> None:
    base, trained = (load_end(path) for path in ends)
    for end, count in ((base, 1), (trained, 2)):
        end.loaded.model.register_buffer("count", torch.tensor(count))  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="count, whole numbers that have no in-between"):
        Line(base, trained)


# --- the rule --------------------------------------------------------------------------------------------------------------

SWING = np.tile([-0.1, 0.1], 20)  # 40 problems; a difference of SWING has mean 0


def test_the_peak_is_picked_where_it_stands_out() -> None:
    # Means .25, .40, .34; differences .15 ± .2 and .06 ± .02 a problem, with standard errors of .2/√39 and .02/√39.
    values = np.stack([0.25 + SWING, 0.40 - SWING, 0.34 - SWING * 1.2])
    second = np.stack([np.full(40, share) for share in (0.9, 0.1, 0.5)])  # has no say: nothing is tied
    pick = choose_point([0, 0.5, 1], values, second)
    assert (pick.point, pick.best, pick.tied, pick.n) == (0.5, 0.5, (0.5,), 40)


@pytest.mark.parametrize(("second", "picked"), [((0.9, 0.3, 0.4), 0.5), ((0.9, 0.4, 0.3), 1), ((0.9, 0.4, 0.4), 1)])
def test_of_points_that_are_not_told_apart_the_second_measure_picks(second: tuple[float, ...], picked: float) -> None:
    # .50 and .51 differ by .01 ± 2 · .032, .20 and .51 by .31: BASE is out, however good its second measure is. Where the
    # second measure is equal too, the first decides.
    values = np.stack([0.20 + SWING * 0.5, 0.51 + SWING, 0.50 - SWING])
    pick = choose_point([0, 1, 0.5], values, np.stack([np.full(40, share) for share in second]))
    assert (pick.point, pick.best, pick.tied) == (picked, 1, (0.5, 1))


def outcomes(*solved_LP: tuple[int, ...], drawn: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """pass@1 and pass@2 (L, P) of problems with this many right of two: 0, ½, 1 and 0, 1, 1."""
    correct_LP = np.array(solved_LP)
    return correct_LP / drawn, (correct_LP > 0).astype(float)


def test_a_search_takes_the_best_single_answers_among_equals_and_an_answer_the_widest_search() -> None:
    # 20 problems, two samples of each. λ 0 solves 16 of them, once each; λ ½ 16, ten of them twice; λ 1 solves 10, all twice.
    # pass@2: .8, .8, .5. pass@1: .4, .65, .5. λ 1 lacks six of twenty: .3, standard error √(.3 · .7 / 19) = .105.
    first, both = outcomes((1,) * 16 + (0,) * 4, (2,) * 10 + (1,) * 6 + (0,) * 4, (2,) * 10 + (0,) * 10)
    search = choose_point([0, 0.5, 1], both, first)
    assert (search.best, search.tied, search.point) == (0, (0, 0.5), 0.5)
    # λ 1 lacks one of two on those six: .15, standard error .053. λ 0 lacks one of two on ten.
    answer = choose_point([0, 0.5, 1], first, both)
    assert (answer.best, answer.tied, answer.point) == (0.5, (0.5,), 0.5)
    # Of λ 0 and another that solves eight problems, all twice, neither has surely more single answers: .4 and .4.
    first, both = outcomes((1,) * 16 + (0,) * 4, (0,) * 12 + (2,) * 8)
    answer = choose_point([1, 0], first, both)
    assert (answer.tied, answer.point) == ((0, 1), 1)  # pass@2 .8 against .4


def test_without_any_difference_it_is_base() -> None:
    assert choose_point([0.5, 0, 1], np.zeros((3, 30)), np.zeros((3, 30))).point == 0
    few = np.zeros((2, 40))
    few[1, :3] = 1.0  # three problems of forty: no interval, and no case against BASE
    pick = choose_point([0, 1], few, np.stack([np.full(40, 0.2), np.full(40, 0.1)]))
    assert (pick.point, pick.best) == (0, 1)


def test_a_difference_that_is_the_same_on_every_problem_counts() -> None:
    second = np.stack([np.ones(10), np.zeros(10)])
    assert choose_point([0, 1], np.stack([np.zeros(10), np.ones(10)]), second).point == 1
    five = np.stack([np.zeros(5), np.ones(5)])
    assert choose_point([0, 1], five, 1 - five).point == 0  # by chance once in 16: not sure


def test_a_problem_that_one_point_lacks_counts_for_none() -> None:
    values = np.stack([np.full(20, 0.2) + SWING[:20], np.full(20, 0.6) - SWING[:20]])
    values[0, 0] = np.nan
    values[1, 1:3] = np.nan
    assert choose_point([0, 1], values, values).n == 17
    with pytest.raises(UsageError, match="no problem has enough judged completions"):
        choose_point([0, 1], np.full((2, 4), np.nan), values)
    # The second measure of point 0 looks better only on problems that point 1 lacks; without any problem it has no say.
    second = np.stack([np.array([1.0] * 20 + [0.2] * 20), np.array([np.nan] * 20 + [0.3] * 20)])
    equal = np.stack([0.5 + SWING, 0.5 - SWING])
    assert choose_point([0, 1], equal, second).point == 1
    assert choose_point([1, 0], equal, np.full((2, 40), np.nan)).point == 0


def test_the_rule_in_words() -> None:
    assert rule_of("search", 64).startswith("the best by pass@64; of the points that are not told apart from it")
    assert rule_of("search", 64).endswith("the one with the highest pass@1")
    assert rule_of("answer", 64).startswith("the best by pass@1;")
    assert rule_of("answer", 64).endswith("the one with the highest pass@64")
    assert rule_of("search", 1) == "the best by pass@1"


# --- the sweep -------------------------------------------------------------------------------------------------------------

FEW = {"task": TASK, "samples": 8, "problems": 24, "max_tokens": 3}


def test_the_sweep_measures_the_models_between_on_the_same_problems(ends: tuple[Path, Path], tmp_path: Path) -> None:
    found = blend(*ends, points=[0.5], use="search", k=5, out=tmp_path / "out", **FEW)  # type: ignore[arg-type]
    assert [one.point for one in found.sweep] == [0, 0.5, 1]
    assert [one.point for one in found.test] == sorted({0, found.pick.point, 1})
    middle = GPT(CONFIG)
    weights = [load_gpt(path)[0].state_dict() for path in ends]
    middle.load_state_dict({name: (weights[0][name] + weights[1][name]) / 2 for name in weights[0]})
    how = Evaluation(problems=24, samples=8, split="tune")
    (alone,) = evaluate(middle, TOKENS, Parity(), how, max_tokens=3, seed="blend 0")
    for name in ("pass@1", "pass@2", "pass@8", "distinct_solved", "entropy"):
        assert found.sweep[1].find(name).value == pytest.approx(alone.value(name), rel=1e-6)
    # pass@5 from its definition, over the counts that blend.json holds.
    told = json.loads((tmp_path / "out" / "blend.json").read_text())
    counts = told["counts"]["tune"][1]
    assert counts["correct"] == alone.batch.groups.correct_PG.sum(1).tolist()  # type: ignore[union-attr]
    missed = [np.prod([max(8 - c - i, 0) / (8 - i) for i in range(5)]) for c in counts["correct"]]
    assert found.sweep[1].find("pass@5").value == pytest.approx(1 - np.mean(missed))
    assert told["settings"]["k"] == 5
    assert [row["point"] for row in told["sweep"]] == [0, 0.5, 1]


def test_the_pick_is_compared_with_both_ends_on_test_problems(
    ends: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blend_file, "choose_point", lambda points, *values: blend_file.Pick(0.4, 0.4, (0.4,), 24))
    found = blend(*ends, points=[0.4], out=tmp_path / "out", **FEW)  # type: ignore[arg-type]
    assert [one.point for one in found.test] == [0, 0.4, 1]
    counts = {one.point: one.correct_P / 8 for one in found.test}
    told = {number.name: number for number in found.against}
    assert set(told) == {"pass@1_vs_base", "pass@8_vs_base", "pass@1_vs_trained", "pass@8_vs_trained"}
    assert told["pass@1_vs_base"].value == pytest.approx(float(np.mean(counts[0.4] - counts[0])))
    assert told["pass@8_vs_trained"].value == pytest.approx(
        float(np.mean((counts[0.4] > 0).astype(float) - (counts[1] > 0)))
    )
    # What was written is the point, and loads by its name.
    model, tokens = load_gpt(Path(found.model or ""))
    a, b = (load_gpt(path)[0].state_dict() for path in ends)
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(weight, 0.6 * a[name] + 0.4 * b[name])
    assert tokens.alphabet == TOKENS.alphabet


def test_a_notebook_shows_the_sweep_and_the_test_escaped(ends: tuple[Path, Path]) -> None:
    found = replace(blend(*ends, points=[0.5], **FEW), base="<b>&")  # type: ignore[arg-type]
    html = found._repr_html_()
    assert "<p>&lt;b&gt;&amp; (λ 0) to " in html
    sweep, test = read_tables(html)
    assert sweep.index.tolist() == ["0", "0.5", "1"]
    assert test.index.astype(float).tolist() == sorted({0, found.pick.point, 1})
    assert sweep.index[sweep.iloc[:, -1] == "pick"].tolist() == [f"{found.pick.point:g}"]
    for table, part in ((sweep, found.sweep), (test, found.test)):
        shown = [float(cell.split(" ")[0]) for cell in table["pass@1"]]
        assert shown == pytest.approx([one.correct_P.sum() / (24 * 8) for one in part], abs=5.1e-4)


def test_a_model_with_itself_gives_one_row_over_and_over(ends: tuple[Path, Path]) -> None:
    found = blend(ends[0], ends[0], points=[0.3], **FEW)  # type: ignore[arg-type]
    assert found.pick.point == 0
    assert 0 < found.sweep[0].correct_P.sum() < 24 * 8
    assert {tuple(one.correct_P) for one in found.sweep} == {tuple(found.sweep[0].correct_P)}
    assert all(number.value == 0 for number in found.against)


def test_a_run_folder_stands_for_its_newest_complete_checkpoint(ends: tuple[Path, Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    for step in (1, 2, 3):
        save_checkpoint(run, step, model=gpt(10 + step).state_dict(), optimiser={}, state={}, keep=3)
    (run / "checkpoints" / "step=000003" / "complete").unlink()
    settings = {"task": TASK, "sampling": {"max_tokens": 2}}
    about = {"schema_version": 1, "source": "equipoise", "model": str(ends[0]), "settings": settings}
    (run / "run.json").write_text(json.dumps(about))
    end = load_end(run)
    assert end.step == 2
    assert same_bits(end.loaded.model.state_dict(), dict(gpt(12).state_dict()))
    found = blend(ends[0], run, points=[], samples=2, problems=4)
    assert (found.settings["task"], found.settings["max_tokens"], found.settings["trained_step"]) == (TASK, 2, 2)
    (run / "run.json").write_text(json.dumps(about | {"model": "gone.safetensors"}))
    with pytest.raises(UsageError, match=r"was trained from 'gone.safetensors', which cannot be loaded"):
        load_end(run)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"points": [0.5, 1.5]}, "found 1.5"),
        ({"k": 9}, "pass@9 from 8 samples"),
        ({"use": "serch"}, "did you mean 'search'"),
        ({"problems": 1}, "needs 2 problems"),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    ends: tuple[Path, Path], settings: dict[str, object], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        blend(*ends, **(FEW | settings))  # type: ignore[arg-type]


# --- transformers ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Two tiny Llamas with tied embeddings, base in bfloat16 and trained in float32, with a tokenizer of single characters."""
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'equipoise[train]'")
    tokenizers = pytest.importorskip(
        "tokenizers", reason="needs tokenizers, which comes with transformers: pip install 'equipoise[train]'"
    )
    words = {word: i for i, word in enumerate(["<pad>", "<end>", *"0123456789="])}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<pad>"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    inner.decoder = tokenizers.decoders.Fuse()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<end>", pad_token="<pad>")
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    paths = []
    for seed, dtype in ((0, torch.bfloat16), (1, torch.float32)):
        torch.manual_seed(seed)
        config = transformers.LlamaConfig(
            vocab_size=len(words), eos_token_id=1, pad_token_id=0, bos_token_id=None, tie_word_embeddings=True, **sizes
        )
        paths.append(tmp_path / f"llama-{seed}")
        transformers.LlamaForCausalLM(config).to(dtype).save_pretrained(paths[-1])
        tokenizer.save_pretrained(paths[-1])
    return paths[0], paths[1]


@pytest.mark.integration
@pytest.mark.integration
def test_transformers_folders_blend_into_one(folders: tuple[Path, Path], tmp_path: Path) -> None:
    import transformers

    out = tmp_path / "out"
    found = blend(*folders, points=[], samples=2, problems=4, max_tokens=2, task=TASK, out=out)
    assert found.model == str(out)
    assert (out / "blend.json").is_file()
    ends = [transformers.AutoModelForCausalLM.from_pretrained(path, dtype="auto") for path in folders]
    assert [end.dtype for end in ends] == [torch.bfloat16, torch.float32]
    line = Line(*(load_end(path) for path in folders))
    assert "inner.lm_head.weight" not in weights_of(line.model)
    for point in (0, 0.5, 1):
        line.at(point)
        line.save(tmp_path / f"at-{point}")
        model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / f"at-{point}", dtype="auto")
        assert model.lm_head.weight is model.model.embed_tokens.weight
        for name, weight in model.named_parameters():
            assert weight.dtype == torch.float32
            a, b = (end.get_parameter(name).float() for end in ends)
            expected = {0: a, 0.5: (a + b) / 2, 1: b}[point]
            torch.testing.assert_close(weight, expected, rtol=0, atol=1e-7 if point == 0.5 else 0)


@pytest.mark.integration
@pytest.mark.integration
def test_transformers_models_of_other_settings_are_refused(folders: tuple[Path, Path], ends: tuple[Path, Path]) -> None:
    assert "the architecture is GPT in the first and LlamaForCausalLM in the second" in refused(ends[0], folders[0])
    config = json.loads((folders[1] / "config.json").read_text())
    config |= {"pad_token_id": 1, "attention_dropout": 0.1, "use_cache": False}  # what a trainer may leave behind
    (folders[1] / "config.json").write_text(json.dumps(config))
    Line(load_end(folders[0]), load_end(folders[1]))
    config["rope_parameters"]["rope_theta"] = 5e5
    (folders[1] / "config.json").write_text(json.dumps(config))
    assert "rope_parameters.rope_theta is 10000.0 in the first and 500000.0 in the second" in refused(*folders)


# --- the command -----------------------------------------------------------------------------------------------------------


def command(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["equipoise", "blend", *map(str, words)])
    monkeypatch.delenv("EQUIPOISE_DEBUG", raising=False)
    with pytest.raises(SystemExit) as left:
        main.run()
    return int(left.value.code or 0)


OPTIONS = ("--task", TASK, "--problems", 8, "--samples", 4, "--max-tokens", 3, "--points", "0,0.5,1")


def test_the_command_prints_a_table_and_writes_the_model(
    ends: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "out"
    assert command(monkeypatch, *ends, *OPTIONS, "--use", "search", "-k", 3, "-o", out) == 0
    shown, progress = capsys.readouterr()
    lines = shown.splitlines()
    assert lines[1].split() == ["λ", "pass@1", "pass@3", "distinct", "on", "unsolved", "entropy"]
    assert [line.split()[0] for line in lines[2:5]] == ["0", "0.5", "1"]
    assert sum("← pick" in line for line in lines) == 1
    assert "rule: the best by pass@3; of the points that are not told apart from it" in shown
    assert progress.count(" s left") == 3
    told = json.loads((out / "blend.json").read_text())
    model, _ = load_gpt(out / "model.safetensors")
    assert told["model"] == str(out / "model.safetensors")
    a, b = (load_gpt(path)[0].state_dict() for path in ends)
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(weight, torch.lerp(a[name], b[name], told["pick"]["point"]))
    assert command(monkeypatch, *ends, *OPTIONS, "-o", out) == 2
    assert "exists: give a folder that does not" in capsys.readouterr().err


def test_json_is_alone_on_stdout_and_repeats_itself(
    ends: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = []
    for seed in (0, 0, 1):
        assert command(monkeypatch, *ends, *OPTIONS, "--json", "--seed", seed) == 0
        told.append(json.loads(capsys.readouterr().out))
    assert told[0] == told[1]
    assert told[0]["sweep"] != told[2]["sweep"]
    assert told[0]["schema"] == "equipoise.blend/1"
    assert {number["at"]["split"] for row in told[0]["sweep"] for number in row["estimates"]} == {"tune"}
    assert {number["at"]["split"] for row in told[0]["test"] for number in row["estimates"]} == {"test"}


def test_bad_input_is_one_line(
    ends: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wide = saved(tmp_path / "wide.safetensors", gpt(1, GPTConfig(13, width=32, layers=1, heads=2, context=16)))
    for words, said in (
        ((ends[0], wide), "width is 16 in the first and 32 in the second"),
        ((*ends, "--points", "0,half"), "found '0,half'"),
        ((ends[0], tmp_path / "none.safetensors"), "cannot read"),
    ):
        assert command(monkeypatch, *words) == 2
        err = capsys.readouterr().err
        assert said in err
        assert err.count("\n") == 1


def test_the_use_decides_which_measure_leads(
    ends: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = []

    def choose(points: list[float], goal_LP: np.ndarray, second_LP: np.ndarray) -> blend_file.Pick:
        given.append((goal_LP, second_LP))
        return blend_file.Pick(0, 1, (0, 0.5, 1), 8)

    monkeypatch.setattr(blend_file, "choose_point", choose)
    for use, said in (("search", "highest pass@1."), ("answer", "highest pass@4.")):
        assert command(monkeypatch, *ends, *OPTIONS, "--use", use) == 0
        shown = capsys.readouterr().out
        assert said in shown
        assert "the best is λ = 1, and not told apart from it are λ = 0, 0.5." in shown
    (any_LP, one_LP), (one_again_LP, any_again_LP) = given
    assert set(np.unique(any_LP)) == {0, 1}  # pass@4 of four samples: some right, or none
    assert ((one_LP > 0) == any_LP).all()
    assert set(np.unique(one_LP)) - {0, 1}
    np.testing.assert_array_equal(any_LP, any_again_LP)
    np.testing.assert_array_equal(one_LP, one_again_LP)


def test_sampling_in_parts_changes_no_number(ends: tuple[Path, Path]) -> None:
    whole, parts = (blend(*ends, points=[], rows=rows, **FEW) for rows in (10_000, 16))  # type: ignore[arg-type]
    for one, other in zip(whole.sweep + whole.test, parts.sweep + parts.test, strict=True):
        np.testing.assert_array_equal(one.correct_P, other.correct_P)


def test_a_point_that_is_known_is_written_and_nothing_measured(
    ends: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert command(monkeypatch, *ends, "--at", 0.25, "-o", out) == 0
    shown, progress = capsys.readouterr()
    assert shown == f"wrote {out / 'model.safetensors'}: λ = 0.25 of the way, nothing measured\n"
    assert not progress
    a, b = (load_gpt(path)[0].state_dict() for path in ends)
    for name, weight in load_gpt(out / "model.safetensors")[0].state_dict().items():
        torch.testing.assert_close(weight, 0.75 * a[name] + 0.25 * b[name], rtol=0, atol=1e-6)
    told = json.loads((out / "blend.json").read_text())
    assert (told["base"], told["trained"], told["point"]) == (*map(str, ends), 0.25)
    for words, why in (
        (("--at", 0.25), "add -o FOLDER"),
        (
            ("--at", 0.25, "-o", tmp_path / "b", "--task", TASK, "--points", "0.5"),
            "--task and --points ask for a sweep",
        ),
        (("--at", 1.5, "-o", tmp_path / "b"), "a point is a share from 0 (BASE) to 1 (TRAINED), found 1.5"),
        (("--at", 0.25, "-o", out), "exists"),
    ):
        assert command(monkeypatch, *ends, *words) == 2
        assert why in capsys.readouterr().err
