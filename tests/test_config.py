"""Settings out of TOML: layers, strict values, every problem at once with its line, and text that loads back equal."""

from __future__ import annotations

import math
import sys
import tomllib
from contextlib import suppress
from datetime import date
from enum import Enum
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from equipoise.cli import main
from equipoise.config import MAX_BYTES, MAX_TOLD, dump_config, load_config
from equipoise.config_lines import Scan
from equipoise.errors import UsageError, unknown_name


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Learning(Strict):
    lr: float = Field(1e-4, gt=0, le=10)
    steps: int = Field(400, ge=0)
    decay: float | None = 0.1
    schedule: Literal["constant", "cosine"] = "constant"


class Arm(Strict):
    name: str
    seeds: tuple[int, ...] = (1,)
    learning: Learning = Learning()


class Settings(Strict):
    out: Path = Path("runs")
    note: str | None = None
    rate: int | Literal["auto"] = "auto"
    big: bool = False
    colour: Colour = Colour.RED
    names: list[str] = []
    sizes: tuple[Annotated[int, Field(ge=1)], ...] = ()
    extra: dict[str, float | None] = {}
    day: date | None = None
    method: str = "grpo"
    learning: Learning = Learning()
    arms: list[Arm] = []

    @field_validator("method")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in ("grpo", "dapo"):
            raise unknown_name("method", name, ("grpo", "dapo"))
        return name

    @model_validator(mode="after")
    def _fits(self) -> Settings:
        if self.big and self.learning.steps < 10:
            raise ValueError(f"a big run needs 10 steps, found {self.learning.steps}")
        return self


class Modes(Strict):
    mode: Literal["none", "some"] | None = None


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Load settings from a text saved as run.toml in the current folder."""
    monkeypatch.chdir(tmp_path)

    def run(text: str | bytes, *overrides: str, **more: Any) -> Settings:
        Path("run.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
        return load_config(Settings, path=Path("run.toml"), overrides=overrides, **more)

    return run


@pytest.fixture
def problems(load):
    """The lines that a bad text gets."""

    def run(text: str | bytes, *overrides: str) -> list[str]:
        with pytest.raises(UsageError) as raised:
            load(text, *overrides)
        return str(raised.value).split("\n")

    return run


# --- layers and values -----------------------------------------------------------------------------------------------------


def test_overrides_lie_over_the_file_over_the_base_over_the_defaults(load):
    base = {"learning": {"lr": 0.1, "steps": 1, "decay": 0.3}, "names": ["a", "b"], "out": Path("x"), "sizes": (1, 2)}
    found = load('names = ["c"]\n[learning]\nlr = 0.2\nsteps = 2\n', "learning.lr=0.3", base=base)
    assert found == Settings(
        names=["c"], out=Path("x"), sizes=(1, 2), learning=Learning(lr=0.3, steps=2, decay=0.3, schedule="constant")
    )
    assert base["learning"] == {"lr": 0.1, "steps": 1, "decay": 0.3}
    assert load_config(Settings) == Settings()
    assert load_config(Settings, overrides=["learning.lr=1", "learning.lr=2"]).learning.lr == 2


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("note=word", "note", "word"),
        ("note = two words ", "note", "two words"),
        ("note=band:low=0.2,high=0.6", "note", "band:low=0.2,high=0.6"),
        ("note=run#3", "note", "run#3"),
        ("note=1 # one", "note", "1 # one"),
        ('note=""', "note", ""),
        ("note='#1'", "note", "#1"),
        ("note=5", "note", "5"),
        ("note=true", "note", "true"),
        ("note=none", "note", None),
        ("out=2024-01-31", "out", Path("2024-01-31")),
        ("day=2024-01-31", "day", date(2024, 1, 31)),
        ("rate=3", "rate", 3),
        ("rate=1_000", "rate", 1000),
        ("rate=auto", "rate", "auto"),
        ("big=true", "big", True),
        ("colour=blue", "colour", Colour.BLUE),
        ("names=[]", "names", []),
        ("names=[a, 'b,c', \"d]\", e:f=1]", "names", ["a", "b,c", "d]", "e:f=1"]),
        ("sizes=[3, 4,]", "sizes", (3, 4)),
        ("extra.x=1e-3", "extra", {"x": 0.001}),
        ('extra."a b".=1', None, None),
        ('extra."a b"=inf', "extra", {"a b": math.inf}),
        ("extra={a = 1, b = 'none'}", "extra", {"a": 1.0, "b": None}),
        ("arms=[{name = 'x', seeds = [1, 2]}]", "arms", [Arm(name="x", seeds=(1, 2))]),
    ],
)
def test_an_override_is_a_toml_value_or_a_bare_word(override, key, value):
    if key is None:
        with pytest.raises(UsageError, match="needs the form"):
            load_config(Settings, overrides=[override])
    else:
        assert getattr(load_config(Settings, overrides=[override]), key) == value


@pytest.mark.parametrize("value", ["true", '"3"', "3.0", "1e3", "[3]", "2024-01-01"])
def test_a_whole_number_is_nothing_else(problems, value):
    (line,) = problems(f"[learning]\nsteps = {value}\n")
    assert line.startswith("run.toml:2: learning.steps = ")
    assert line.endswith(": needs a whole number >= 0")


def test_none_is_told_apart_by_what_a_setting_allows(load, problems):
    assert load('note = "none"\n[learning]\ndecay = "none"').learning.decay is None
    assert load('method = "dapo"\nnames = ["none"]').names == ["none"]  # a list of texts: "none" is a text
    assert load_config(Modes, overrides=["mode=none"]).mode == "none"
    assert problems('[learning]\nlr = "none"') == ['run.toml:2: learning.lr = "none": needs a number > 0 and <= 10']


# --- problems --------------------------------------------------------------------------------------------------------------


def test_all_problems_are_told_at_once_in_the_order_of_the_file(problems):
    text = """\
lr = 3
colour = "bleu"
method = "gpro"
[learning]
lr = "fast"
stepps = 4
schedule = "cosin"
[optimiser]
x = 1
[[arms]]
name = "a"
[[arms]]
seeds = [1,
  2.5]
"""
    known = "arms, big, colour, day, extra, learning, method, names, note, out, rate, sizes"
    assert problems(text, "rate=often", "sizes=[0, 5]", "sizes", "names=x", "learnin.lr=2", "big=") == [
        f"run.toml:1: lr is no setting: did you mean learning.lr? known are {known}",
        'run.toml:2: colour = "bleu": did you mean "blue"? needs one of "red", "blue"',
        "run.toml:3: method = \"gpro\": unknown method 'gpro': did you mean 'grpo'? known are dapo, grpo",
        'run.toml:5: learning.lr = "fast": needs a number > 0 and <= 10',
        "run.toml:6: learning.stepps is no setting: did you mean learning.steps? learning has decay, lr, schedule, steps",
        'run.toml:7: learning.schedule = "cosin": did you mean "cosine"? needs one of "constant", "cosine"',
        f"run.toml:8: optimiser is no setting: known are {known}",
        "run.toml:12: arms[1].name is missing: needs a text",
        "run.toml:14: arms[1].seeds[1] = 2.5: needs a whole number",
        'override: rate = "often": needs a whole number or "auto"',
        "override: sizes[0] = 0: needs a whole number >= 1",
        'override "sizes": needs the form section.key=value, as in learning.lr=1e-4',
        'override: names = "x": needs a list, each entry a text',
        f"override: learnin is no setting: did you mean learning? known are {known}",
        'override "big=": has no value; the empty text is written big=\'""\'',
    ]


def test_a_check_of_several_settings_has_the_file_for_its_place(problems):
    assert problems("big = true", "learning.steps=9") == ["run.toml: a big run needs 10 steps, found 9"]


@pytest.mark.parametrize(
    "text",
    [
        "learning.bad = 1  # here",
        "# bad = 1\n\n  bad  =  1  # here",
        "'bad' = 1 # here",
        '[learning] # [bad]\nlr = 1.5\n\n"b\\u0061d" = [ # here\n1,\n2]\nsteps = 1',
        'note = """\nbad = 1\n[learning]\n\\""" \n""""" # "\nbad = 1 # here',
        "note = '''\nbad = 1\n'''''\nbad = 1 # here",
        "note = 'it # is'\nnames = ['#', \"]\", # ]\n'=',\n]\nbad = 1 # here",
        "extra = {a = 1, b = 2.5}\nlearning = {lr = 1.0, bad = {c = [1]}} # here",
        "[learning]\nlr = 1.0\n[[arms]]\nname = 'a'\n[[arms]]\nname = 'b'\n[arms.learning]\nsteps = 1\nbad = 1 # here",
        "day = 2024-01-01\n[[arms]]\nname = 'a'\nlearning.lr = 1e-3\nlearning.bad = 1 # here\n[extra]\n",
        "arms = [\n  {name = 'a'},\n  {name = 'b',\n seeds = [1, 2], bad = 1}, # here\n]".replace("'b',\n", "'b',"),
        "sizes = [\n  1,\n  # no\n\n  [2], # here\n  3]",
        "sizes = [1, 2,\n'x', # here\n]",
        "names = [['a'], # here\n]",
        "[learning.bad] # here\nx = 1\ny = 2",
        "[[bad]] # here\nx = 1\n[[bad]]\nx = 2",
        "bad.very.deep = 1 # here",
        "[extra]\na = 1\n\n[ learning ]\r\nlr = 1.0\r\nbad = 1 # here\r\n",
        "note = 'é \u2028 \x85 …'\nbad = 1 # here",
    ],
)
@pytest.mark.parametrize("top", ["", "\n", "# first\nout = 'x'\n"])
def test_a_problem_has_the_line_of_its_key(problems, text, top):
    marked = [at for at, line in enumerate((top + text).split("\n"), 1) if line.rstrip().endswith("# here")]
    (line,) = problems(top + text)
    assert line.startswith(f"run.toml:{marked[0]}: ")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("out = 'x'\n\nout = 'y'\n", "run.toml:3: out is set a second time, first in line 1: keep one"),
        ("[learning]\nlr = 1\n[extra]\n[learning]\n", "run.toml:4: learning is set a second time, first in line 1: keep one"),
        ("extra = {a = 1,  a = 2}", "run.toml:1: extra.a is set a second time, first in line 1: keep one"),
        ("extra.a = 1\n'extra'.\"a\" = 2", "run.toml:2: extra.a is set a second time, first in line 1: keep one"),
        ("extra = {a = 1}\n[extra.b]\n", "run.toml:2: extra.b cannot be set beside extra, which has its whole value in line 1: keep one"),
        ("note = 1\nnote.x = 2", "run.toml:2: note.x cannot be set beside note, which has its whole value in line 1: keep one"),
        ("[[arms]]\nname = 'a'\n[[arms]]\nname = 'b'\nname = 'c'", "run.toml:5: arms[1].name is set a second time, first in line 4: keep one"),
        ("out = x", "run.toml:1:7: not TOML: Invalid value; text goes in quotes, and true and false are written small"),
        ("\nbig = True", "run.toml:2:7: not TOML: Invalid value; text goes in quotes, and true and false are written small"),
        ("[learning\nlr = 1", "run.toml:1:10: not TOML: Expected ']' at the end of a table declaration"),
        (b"out = 'x'\n\xff\xfe", "run.toml:2: the file is not UTF-8; save it as UTF-8"),
        ("out = 'x'\n".encode("utf-16"), "run.toml:1: the file is not UTF-8; save it as UTF-8"),
        (b"#" * (10 * 2**20), f"run.toml is over {MAX_BYTES // 2**20} MB: no config is that long; give a TOML file of settings"),
        ("names = " + "[" * 100_000, "run.toml: lists or tables are nested too deeply to be read"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_gets_one_line(problems, text, line):
    assert problems(text) == [line]


def test_numbers_without_end_are_refused(problems):
    for digits in ("1" * 5000, "0x" + "f" * 5000):
        (line,) = problems(f"rate = {digits}")
        assert "Exceeds the limit" in line


def test_a_path_that_is_no_file_gets_one_line(tmp_path):
    for path, why in ((tmp_path / "no.toml", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(UsageError) as raised:
            load_config(Settings, path=path)
        assert str(raised.value) == f"cannot read {path}: {why}; give a TOML file"


def test_a_byte_order_mark_is_no_problem(load):
    assert load(b"\xef\xbb\xbfnote = 'x'").note == "x"


def test_of_very_many_problems_the_first_are_told(problems):
    lines = problems("".join(f"k{i} = 1\n" for i in range(3000)))
    assert len(lines) == MAX_TOLD + 1
    assert lines[-1] == f"and more problems: these are the first {MAX_TOLD}"


@pytest.mark.parametrize("word", ["", "=", "=1", "x", "a..b=1", "a b=1", "[a]\nb=1", "note='x", "names=[[", "names=[a,,b]", "names=[,]", 'extra.a={"', "note='a' b", 'extra."\\z"=1', "note=\udcff"])  # fmt: skip
def test_a_word_that_is_no_override_gets_one_line(word):
    with pytest.raises(UsageError) as raised:
        load_config(Settings, overrides=[word])
    (line,) = str(raised.value).split("\n")
    assert line.startswith("override ")
    line.encode()


@settings(max_examples=300, deadline=None)
@given(st.text("[]{}=.,#\"'\\\n\r ab10_-true", max_size=40) | st.text(max_size=40))
def test_no_text_makes_it_fail_in_another_way(text):
    """As a file, and as an override."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("equipoise.config._read", lambda _: text.replace("\r\n", "\n"))
        for more in (
            {"path": Path("run.toml")},
            {"overrides": [text]},
            {"overrides": [f"note={text}"]},
            {"overrides": [f"names=[{text}]"]},
        ):
            with suppress(UsageError):
                load_config(Settings, **more)


# --- writing ---------------------------------------------------------------------------------------------------------------

NUMBERS = st.floats(allow_nan=False)
TEXTS = st.text(max_size=8)
LEARNING = st.builds(Learning, lr=st.floats(1e-300, 10), steps=st.integers(0, 2**70), decay=NUMBERS | st.none())
ARMS = st.builds(Arm, name=TEXTS, seeds=st.lists(st.integers(), max_size=3).map(tuple), learning=LEARNING)
SETTINGS = st.builds(
    Settings,
    out=st.text("ab/. \"'", min_size=1).map(Path),
    note=TEXTS.filter(lambda text: text != "none") | st.none(),
    rate=st.integers() | st.just("auto"),
    colour=st.sampled_from(Colour),
    names=st.lists(TEXTS, max_size=3),
    sizes=st.lists(st.integers(1, 9), max_size=3).map(tuple),
    extra=st.dictionaries(TEXTS, NUMBERS | st.none(), max_size=3),
    day=st.dates() | st.none(),
    learning=LEARNING,
    arms=st.lists(ARMS, max_size=3),
)


@settings(max_examples=150, deadline=None)
@given(SETTINGS)
def test_what_is_written_loads_back_equal(tmp_path_factory, chosen):
    path = tmp_path_factory.getbasetemp() / "written.toml"
    path.write_bytes(dump_config(chosen).encode())
    assert load_config(Settings, path=path) == chosen


@settings(max_examples=100, deadline=None)
@given(SETTINGS)
def test_a_key_is_gone_when_its_line_is(chosen):
    """`tomllib` itself confirms the lines that the scan finds: without line n, the key of line n is missing, no other."""
    text = dump_config(chosen)
    lines, whole = text.split("\n"), dict(leaves(tomllib.loads(text)))
    found = Scan(text).lines
    for key in whole:
        at = found[key]
        without = tomllib.loads("\n".join([*lines[: at - 1], "", *lines[at:]]))
        assert set(whole) - set(dict(leaves(without))) == {key}


def leaves(value, key=()):
    """Settings with the key of their table; a list of plain values is one setting."""
    if isinstance(value, dict):
        for name, inside in value.items():
            yield from leaves(inside, (*key, name))
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for at, inside in enumerate(value):
            yield from leaves(inside, (*key, at))
    else:
        yield key, value


def test_the_written_text_reads_well():
    chosen = Settings(
        note="a\n\x7f", extra={"a b": math.inf}, learning=Learning(decay=None, lr=1e-5), arms=[Arm(name="x")]
    )
    assert dump_config(chosen) == (
        'out = "runs"\nnote = "a\\n\\u007f"\nrate = "auto"\nbig = false\ncolour = "red"\nnames = []\nsizes = []\nmethod = "grpo"\n'
        '\n[extra]\n"a b" = inf\n\n[learning]\nlr = 1e-05\nsteps = 400\ndecay = "none"\nschedule = "constant"\n'
        '\n[[arms]]\nname = "x"\nseeds = [1]\n\n[arms.learning]\nlr = 0.0001\nsteps = 400\ndecay = 0.1\nschedule = "constant"\n'
    )


# --- equipoise train -------------------------------------------------------------------------------------------------------


@pytest.fixture
def equipoise_train(monkeypatch, capfd, tmp_path):
    """The command with a training loop that only notes how it was called."""
    calls = []

    def train(config, *, resume, say):
        calls.append((config, resume))
        say("step 1/1\x1b[31m")
        told = {"schema": "equipoise.train/1", "run": str(config.out)}
        return SimpleNamespace(before=(), after=(), steps=1, seconds=2.0, folder=str(config.out), to_dict=lambda: told)

    loop = ModuleType("equipoise.training.loop")
    loop.train = train
    monkeypatch.setitem(sys.modules, "equipoise.training.loop", loop)
    monkeypatch.chdir(tmp_path)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["equipoise", "train", *words])
        with pytest.raises(SystemExit) as left:
            main.run()
        return (left.value.code or 0, *capfd.readouterr(), calls)

    return run


def test_train_takes_a_file_and_settings_or_settings_alone(equipoise_train):
    Path("a=b.toml").write_text('out = "runs/a"\n[learning]\nsteps = 3\n')
    code, out, err, calls = equipoise_train("a=b.toml", "learning.lr=0.5", "--resume")
    assert (code, out, err) == (0, "1 step, 2 s: runs/a\n", "step 1/1\n")
    config, resume = calls[-1]
    assert (config.learning.steps, config.learning.lr, resume) == (3, 0.5, True)
    code, out, err, calls = equipoise_train("out=b", "learning.steps=4", "--json")
    assert code == 0
    assert out.split() == ["{", '"schema":', '"equipoise.train/1",', '"run":', '"b"', "}"]
    assert (calls[-1][0].learning.steps, calls[-1][1]) == (4, False)


def test_train_prints_a_line_for_each_problem_and_leaves_with_2(equipoise_train):
    Path("c.toml").write_text('"o\\u001b[31m\\nt" = 1\n[learning]\nlrr = 2\n')
    code, out, err, calls = equipoise_train("c.toml", "learning.steps=x", "nothing")
    lines = err.splitlines()
    assert (code, out, calls) == (2, "", [])
    assert [line.split(" ")[:2] for line in lines] == [
        ["equipoise:", "c.toml:1:"],
        ["equipoise:", "c.toml:3:"],
        ["equipoise:", "override:"],
        ["equipoise:", "override"],
        ["equipoise:", "c.toml:"],
    ]
    assert "\x1b" not in err
    assert "did you mean learning.lr?" in lines[1]
    assert (
        equipoise_train("no.toml")[2] == "equipoise: cannot read no.toml: No such file or directory; give a TOML file\n"
    )
