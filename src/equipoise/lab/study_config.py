"""What a study is, as data: one base run, arms that change it, seeds, temperatures. No torch here, so it is checked at once."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from equipoise.training.recipe import Learning, Method, Sampling, Strict, Supervised, TrainConfig

BASE = "base"  # the model that every run begins with is an arm of every study
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")
_TABLES = ("method", "learning", "sampling")  # of a run, that an arm may change

Temperature = Annotated[float, Field(gt=0, le=10)]


class BaseRun(TrainConfig):
    """A training run without what the study gives: folder, seed, supervised training. `evaluation` is watched during training only."""

    out: Path = Path()

    @model_validator(mode="after")
    def _no_place(self) -> BaseRun:
        for name, instead in (("out", "out"), ("seed", "seeds"), ("sft", "[sft]")):
            if name in self.model_fields_set:
                raise ValueError(f"{name} is set by the study: use {instead} at the top of the file")
        return self


class Arm(Strict):
    """What an arm changes of the base run: only the settings that are given here. Or, with `of`, other weights of another arm's runs."""

    about: str = ""
    against: str = ""  # the arm it is compared with, where that is not the study's `plain`
    of: str = ""  # the arm whose runs it looks at, with weights made of theirs: nothing is trained
    blend: float = Field(1.0, gt=0, le=1)  # base + blend · (trained − base)
    ema: bool = False  # the moving average of the weights, which that arm's `learning.ema` keeps, in place of the last
    method: Method = Method()
    learning: Learning = Learning()
    sampling: Sampling = Sampling()


class Look(Strict):
    """The evaluation that the results are made of: every arm, every temperature, on the same problems."""

    problems: int = Field(512, ge=8)
    samples: int = Field(64, ge=1)
    temperatures: tuple[Temperature, ...] = (0.3, 0.6, 0.8, 1.0, 1.3, 1.6)
    rows: int = Field(8192, ge=1)  # completions sampled at once; changes memory, not the result
    seed: str = (
        "evaluation"  # of problems and completions alike: another one for problems that no earlier study has seen
    )


class Tune(Strict):
    """Learning rate and temperature of every arm, each the one with the best score on the tuning split, whose problems no result uses.

    The rate is chosen before the real seeds run: every arm trains with every rate, with `seed`, and counts at its best
    temperature. The temperature is then chosen for the policies of the real seeds, scores averaged over them.
    """

    lr: tuple[Annotated[float, Field(gt=0)], ...] = ()  # none: every arm keeps its own, and nothing more is trained
    temperature: tuple[Temperature, ...] = ()  # none: all of evaluation.temperatures
    by: Literal["pass@1", "pass@max", "mean"] = "pass@1"  # mean: of pass@k over k = 1, 2, 4, …
    seed: int = 1000
    problems: int = Field(256, ge=8)
    samples: int = Field(64, ge=1)


class StudyConfig(Strict):
    out: Path
    about: str = ""
    sft: Supervised | None = None  # done once: what it makes of the model is the base, with which every run begins
    base: BaseRun = BaseRun()
    arms: dict[str, Arm] = Field(min_length=1)
    only: tuple[
        str, ...
    ] = ()  # of the arms; none: all of them. Finished runs of others stay, for a study that has more
    plain: str = ""  # the arm the others are compared with; "": the first
    seeds: tuple[int, ...] = (0, 1, 2)
    evaluation: Look = Look()
    tune: Tune | None = None

    @model_validator(mode="after")
    def _fits(self) -> StudyConfig:
        for name in self.arms:
            if not _NAME.fullmatch(name) or name == BASE:
                raise ValueError(f"'{name}' cannot name an arm: use letters, digits and _ . + -, and not '{BASE}'")
        for name, arm in self.arms.items():
            if (arm.against or self.plain_arm) not in self.arms:
                raise ValueError(f"{name} is compared with '{arm.against or self.plain}', which is no arm")
        self._check_made()
        unknown = [name for name in self.only if name not in self.arms]
        if unknown:
            raise ValueError(f"only names {', '.join(unknown)}, and the arms are {', '.join(self.arms)}")
        for name in self.only:
            if self.against(name) not in self.only:
                raise ValueError(f"only has {name}, which is compared with {self.against(name)}: name that too")
            if self.trained_by(name) not in self.only:
                raise ValueError(f"only has {name}, which is made of {self.trained_by(name)}: name that too")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds needs one or more different seeds, found {list(self.seeds)}")
        temperatures = self.evaluation.temperatures
        if self.headline not in temperatures or len(set(temperatures)) < len(temperatures):
            raise ValueError(
                f"evaluation.temperatures needs each once, and {self.headline:g}, at which the base run samples: found {list(temperatures)}"
            )
        self._check_tune()
        self._check_equal()
        return self

    @property
    def plain_arm(self) -> str:
        return self.plain or next(iter(self.arms))

    @property
    def headline(self) -> float:
        """The temperature of the numbers that stand first: the one at which the base run samples."""
        return self.base.sampling.temperature

    def chosen(self) -> StudyConfig:
        """With the arms that `only` names, and no other."""
        arms = {name: arm for name, arm in self.arms.items() if not self.only or name in self.only}
        return self.model_copy(update={"arms": arms, "plain": self.plain_arm})

    def against(self, arm: str) -> str:
        return self.arms[arm].against or self.plain_arm

    def trained_by(self, arm: str) -> str:
        """The arm that trains: itself, or the one that it is made of."""
        return self.arms[arm].of or arm

    def train_config(self, arm: str, *, seed: int, out: Path, lr: float | None = None) -> TrainConfig:
        """The base run with what the arm sets, table by table; by itself it would do the study's supervised training too."""
        settings: dict[str, Any] = self.base.model_dump() | {"out": out, "seed": seed, "sft": self.sft}
        given_tables = self.arms[self.trained_by(arm)].model_dump(exclude_unset=True, include=set(_TABLES))
        for table, given in given_tables.items():
            settings[table] = {**settings[table], **given}
        if lr is not None:
            settings["learning"] = {**settings["learning"], "lr": lr}
        return TrainConfig(**settings)

    def _check_made(self) -> None:
        for name, arm in self.arms.items():
            if not arm.of:
                if arm.blend != 1 or arm.ema:
                    raise ValueError(f"{name} has blend or ema and no arm to make it of: set of")
                continue
            if arm.of not in self.arms or self.arms[arm.of].of:
                raise ValueError(f"{name} is made of '{arm.of}', which is no arm that trains")
            if arm.model_fields_set & set(_TABLES):
                raise ValueError(
                    f"{name} is made of {arm.of} and trains nothing: set its method, learning and sampling there"
                )
            if arm.blend == 1 and not arm.ema:
                raise ValueError(f"{name} is {arm.of} itself: set blend below 1, or ema")
            if arm.ema and self.train_config(name, seed=0, out=Path()).learning.ema is None:
                raise ValueError(f"{name} looks at a moving average that {arm.of} does not keep: set its learning.ema")

    def _check_tune(self) -> None:
        if self.tune is None:
            return
        if self.tune.seed in self.seeds:
            raise ValueError(f"tune.seed {self.tune.seed} is one of seeds: choose with a seed that no result uses")
        missing = [t for t in self.tune.temperature if t not in self.evaluation.temperatures]
        if missing:
            raise ValueError(f"tune.temperature {missing} is not in evaluation.temperatures: add it there")

    def _check_equal(self) -> None:
        """Every arm has as many rollouts, of the same length."""
        counts = {}
        for name in self.arms:
            try:
                config = self.train_config(name, seed=0, out=Path())
            except ValidationError as problem:
                raise ValueError(f"arm {name}: {problem.errors()[0]['msg'].removeprefix('Value error, ')}") from problem
            if config.learning.blend is not None:
                raise ValueError(
                    f"arm {name} has learning.blend, and a study looks at the weights that were trained: leave it out "
                    f'("none" with a recipe), and add an arm with of = "{name}" and blend'
                )
            counts[name] = (rollouts_of(config), config.sampling.max_tokens)
        usual = Counter(counts.values()).most_common(1)[0][0]
        for name, found in counts.items():
            if found != usual:
                raise ValueError(
                    f"arms must draw equal rollouts: {name} draws {found[0]:,} of up to {found[1]} tokens, "
                    f"others {usual[0]:,} of up to {usual[1]}; change its steps, prompts, samples or max_tokens"
                )


def rollouts_of(config: TrainConfig) -> int:
    """What a run may draw; a run whose steps are refilled or refined as needed draws fewer, and never more."""
    return config.most_rollouts
