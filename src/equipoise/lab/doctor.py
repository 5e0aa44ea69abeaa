"""What is installed, whether the plug-ins load, and which controls of a config are live: `equipoise doctor`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from equipoise.adapters.versions import fits, installed, supported
from equipoise.config import load_config
from equipoise.errors import UsageError
from equipoise.lab.doctor_asked import Control, control_of, judge
from equipoise.lab.doctor_config import HostConfig, read_host_config
from equipoise.lab.doctor_trl import asked_of_trl
from equipoise.lab.doctor_verl import asked_of_verl

# What our rooms and adapters run on, and hosts that take a function of ours by its import path with the release that was read.
PACKAGES = ("torch", "transformers", "trl", "verl", "ray")
BY_PATH = {
    "skyrl": "0.3.0",
    "openrlhf": "0.11.2",
    "tinker": "0.36.0",
    "prime-rl": "August 2026",
    "nemo-rl": "August 2026",
    "slime": "August 2026",
}
REPLACED = {"unsloth": "it rewrites TRL's trainer, so that only reward functions and callbacks reach it there"}


@dataclass(frozen=True, slots=True)
class Package:
    name: str
    version: str | None  # None: not installed
    supported: str  # a range, or the release that was read
    ok: bool | None  # None: not installed, or no range is kept
    note: str = ""


@dataclass(frozen=True, slots=True)
class Plugin:
    host: str
    where: str  # "this process" or "a Ray worker"
    ok: bool
    found: str


@dataclass(frozen=True, slots=True)
class Examination:
    packages: tuple[Package, ...]
    plugins: tuple[Plugin, ...]
    host: str | None  # whose config was given
    controls: tuple[Control, ...]

    @property
    def broken(self) -> bool:
        """Something installed does not work. A control that does nothing is a matter of the config, not of the machine."""
        return any(one.ok is False for one in self.packages) or any(not one.ok for one in self.plugins)

    def to_dict(self) -> dict[str, Any]:
        return {"schema": "equipoise.doctor/1", **asdict(self), "broken": self.broken}


def examine(config: Path | None = None, *, in_ray: bool = False) -> Examination:
    """Look at this environment and, where given, at a config of TRL, verl or ours."""
    given = None if config is None else read_host_config(config)
    return Examination(
        tuple(_packages()),
        tuple(_plugins(in_ray=in_ray)),
        None if given is None else given.host,
        () if given is None else tuple(_controls(given)),
    )


def _packages() -> Iterator[Package]:
    for name in PACKAGES:
        found, wanted = installed(name), supported(name)
        yield Package(name, found, wanted or "any", None if found is None or wanted is None else fits(found, wanted))
    for name, read in BY_PATH.items():
        yield Package(name, installed(name), f"read: {read}", None)
    for name, note in REPLACED.items():
        if (found := installed(name)) is not None:
            yield Package(name, found, "no", False, note)


def _plugins(*, in_ray: bool) -> Iterator[Plugin]:
    if installed("trl") is not None:
        yield _loads("trl", "equipoise.adapters.trl")
    if installed("verl") is None:
        return
    if "equipoise" not in {point.name for point in entry_points(group="verl.plugins")}:
        yield Plugin(
            "verl", "this process", False, "the entry point verl.plugins is not registered: install equipoise again"
        )
        return
    yield _verl("this process", _names)
    if in_ray:
        yield _verl("a Ray worker", _names_in_ray)


def _loads(host: str, module: str) -> Plugin:
    try:
        with redirect_stdout(sys.stderr):  # what a host prints on import is not ours to put beside JSON
            import_module(module)
    except (ImportError, UsageError) as problem:
        return Plugin(host, "this process", False, str(problem))
    return Plugin(host, "this process", True, f"{module} loads")


def _verl(where: str, names: Any) -> Plugin:
    try:
        with redirect_stdout(sys.stderr):
            losses, estimators = names()
    except (ImportError, UsageError, RuntimeError) as problem:
        return Plugin("verl", where, False, " ".join(str(problem).split()))
    if not losses:
        return Plugin(
            "verl",
            where,
            False,
            "verl has no equipoise_* names: VERL_USE_EXTERNAL_PLUGINS keeps the plug-in out, or it failed",
        )
    return Plugin("verl", where, True, f"{len(losses)} losses and {len(estimators)} advantages registered")


def _names() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Loud: the plug-in's own registration runs, whatever verl made of it on import."""
    import_module("verl")
    host = import_module("equipoise.adapters.verl")
    before = host.registered()
    host.register()  # raises what verl has swallowed
    return before.losses, before.estimators


def _names_in_ray() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The same in a process that Ray started: an own cluster on this machine, unless one runs here already."""
    ray = import_module("ray")
    ours = not ray.is_initialized()
    if ours:
        ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="error")
    try:
        found: tuple[tuple[str, ...], tuple[str, ...]] = ray.get(ray.remote(_names).remote())
        return found
    except ray.exceptions.RayError as problem:
        raise RuntimeError(str(problem).strip().splitlines()[-1]) from problem
    finally:
        if ours:
            ray.shutdown()


def _controls(config: HostConfig) -> list[Control]:
    if config.host == "trl":
        return judge(asked_of_trl(config.settings))
    if config.host == "verl":
        return judge(asked_of_verl(config.settings))
    from equipoise.catalogue.build import read_spec
    from equipoise.training.recipe import TrainConfig

    ours = load_config(TrainConfig, path=config.path)
    lints = ours.warnings()
    names = [read_spec(spec)[0] for spec in ours.method.specs()]
    whole = [control_of(name, [each for each in lints if each.method == name]) for name in names]
    return [*whole, *(control_of(each.method, [each]) for each in lints if each.method not in names)]
