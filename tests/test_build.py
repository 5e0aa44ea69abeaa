"""From a spec to code with its settings bound, and what is said of a spec that means nothing."""

from __future__ import annotations

import sys
from functools import partial

import pytest

from equipoise.catalogue import build as module
from equipoise.catalogue.base import Method
from equipoise.catalogue.build import build, read_spec
from equipoise.catalogue.table import find_method, methods
from equipoise.errors import MissingExtra, UsageError


def test_a_name_has_the_settings_of_its_row():
    made = build("clip_cov")
    assert isinstance(made, partial)
    assert made.func.__name__ == "clip_cov"
    assert made.keywords == dict(find_method("clip_cov").settings)
    assert made.__name__ == "clip_cov"


def test_a_row_that_shares_its_code_keeps_its_own_name_and_settings():
    assert build("clip").func is build("clip_higher").func
    assert (build("clip_higher").__name__, build("clip_higher").keywords["clip_high"]) == ("clip_higher", 0.28)


def test_a_spec_changes_settings_and_keywords_come_last():
    made = build("clip-cov:share=0.0002,low=1", low=2.5)
    assert made.func is build("clip_cov").func
    assert (made.keywords["share"], made.keywords["low"], made.keywords["high"]) == (0.0002, 2.5, 5.0)
    assert find_method("clip_cov").settings["low"] == 1.0  # the row is as it was


def test_settings_of_the_code_that_the_row_leaves_alone():
    assert build("clip_cov:at_least=1,seed=7").keywords["seed"] == 7
    assert build("kl:kind=k2").keywords["kind"] == "k2"


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("clip", ("clip", {})),
        ("clip:clip_low=0.1, clip_high=3e-4", ("clip", {"clip_low": 0.1, "clip_high": 3e-4})),
        ("kl:kind=k2,coef=1", ("kl", {"kind": "k2", "coef": 1})),
        ("x:a=true,b=False,c=none,d=-2,e=1e-3", ("x", {"a": True, "b": False, "c": None, "d": -2, "e": 1e-3})),
        ("my.code:thing", ("my.code:thing", {})),
        ("my.code:thing:n=3", ("my.code:thing", {"n": 3})),
    ],
)
def test_reading_a_spec(spec, expected):
    name, settings = read_spec(spec)
    assert (name, settings) == expected
    assert [type(value) for value in settings.values()] == [type(value) for value in expected[1].values()]


def test_outside_code_is_named_by_its_module():
    made = build("outside_method:scaled:scale=3")
    assert made.keywords == {"scale": 3}
    assert made.__name__ == "scaled"
    assert build("outside_method:Keeper:rate=0.25", n=4).__dict__ == {"n": 4, "rate": 0.25}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("clip_cv", "unknown method 'clip_cv': did you mean 'clip_cov'"),
        ("clip_cv:share=1", "unknown method 'clip_cv'"),
        ("clip_cov:shar=1", "unknown setting of clip_cov 'shar': did you mean 'share'"),
        ("clip_cov:share", "'share' in 'clip_cov:share' is no setting"),
        ("clip_cov:share=", "is no setting"),
        ("clip_cov:share=1,,low=2", "is no setting"),
        ("clip_cov:share=1,share=2", "sets 'share' twice"),
        ("clip_cov:share=many", "share of clip_cov takes a value such as 0.0002, found 'many'"),
        ("", "names no method"),
        ("clip_cov:", "names no method"),
        (":thing", "names no method"),
        ("no_such_module:thing", "names the module 'no_such_module', which is not installed"),
        ("json.nothing:thing", "names the module 'json.nothing', which is not installed"),
        ("outside_method:nothing", "names 'nothing', which the module outside_method does not have"),
        ("outside_method:NOT_CALLABLE", "names a int, not a function or class"),
        ("outside_method:scaled:size=3", "unknown setting of scaled 'size': known are scale"),
        ("outside_method:Keeper:size=3", "unknown setting of Keeper 'size': known are n, rate"),
    ],
)
def test_a_spec_that_means_nothing_is_told_in_one_line(spec, message):
    with pytest.raises(UsageError, match=message) as caught:
        build(spec)
    assert "\n" not in str(caught.value)


def test_a_method_that_is_not_there_yet(monkeypatch):
    later = Method("later", "strategy", "inference", "", "equipoise.nowhere:Later", {"n": 1}, "2203.11171")
    monkeypatch.setattr(module, "find_method", lambda name: later)
    with pytest.raises(UsageError, match="later is in the catalogue, but not in this release"):
        build("later")


def test_a_missing_extra_is_named_with_its_pip_line(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("equipoise.objectives")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtra, match=r"pip install 'equipoise\[train\]'"):
        build("clip")


def test_a_module_that_lacks_what_it_imports_says_so_itself(tmp_path, monkeypatch):
    (tmp_path / "needs_more.py").write_text("import a_package_that_is_not_there\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="a_package_that_is_not_there"):
        build("needs_more:thing")


OBJECTIVES = [m.name for m in methods() if m.target.startswith("equipoise.objectives")]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_of_the_catalogue_builds(name):
    assert callable(build(name).func)
