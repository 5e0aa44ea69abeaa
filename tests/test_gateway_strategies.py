"""How costly a request may be made by the strategy that it names: every count of the catalogue is capped, alone and multiplied."""

from __future__ import annotations

import pytest

from equipoise.catalogue.table import find_method
from equipoise.errors import UsageError

strategies = pytest.importorskip("equipoise.gateway.strategies", reason="needs the extra serve")

# Counts that cost no more however large they are, with what holds them.
HARMLESS = {
    "tokens": "a part of a completion, and within its max_tokens",
    "budget": "shared out over the completions, each within max_tokens",
    "width": "ways of a step: no more than n are drawn",
    "wordings": "no more than n are used",
    "every": "the larger, the fewer trial answers",
    "stable": "trial answers that come anyway",
    "patience": "trial answers that come anyway",
    "window": "tokens or votes that are looked at",
    "k": "alternatives of a token: the server has its own limit",
    "ballots": "votes that must be there, within n or cap",
    "parents": "no more than there are on an island",
    "emigrants": "no more than there are on an island",
    "reset_every": "the larger, the rarer",
    "reset_islands": "no more than there are islands",
    "elites": "no more than there are solutions",
    "candidates": "no more than there are solutions",
    "call_tokens": "a price, not a length",
}


def build(spec: str, width: int = 64, tokens: int = 32768):
    return strategies.build_strategy(spec, width=width, tokens=tokens)


def counts() -> list[tuple[str, str]]:
    found = []
    for name in strategies.strategy_names():
        whole = [key for key, value in find_method(name).settings.items() if type(value) is int]
        found += [(name, key) for key in whole]
    return found


@pytest.mark.parametrize(("name", "key"), [pair for pair in counts() if pair[1] not in HARMLESS])
def test_no_count_of_any_strategy_can_be_asked_for_without_end(name, key):
    with pytest.raises(
        UsageError, match=rf"{key}=1000000000 of {name} is more than this gateway .*: (64|32768) at most"
    ):
        build(f"{name}:{key}=1000000000")


def test_what_is_harmless_is_a_setting_of_some_strategy():
    assert set(HARMLESS) <= {key for _, key in counts()}


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("beam:rounds=65", "rounds=65 of beam is more than this gateway draws for an answer: 64 at most"),
        ("particles:rollouts=65", "64 at most"),
        ("agent:probes=65", "64 at most"),
        ("agent:calls=65", "64 at most"),
        ("best_of_n:judge_tokens=32769", "is more than this gateway allows for a completion: 32768 at most"),
        # 4 × 40 × 4 are the catalogue's own, 640; what does not roll out has no roll-outs to multiply.
        ("beam:n=8,by=rollouts", "n=8 × rounds=40 × rollouts=4 of beam are 1,280, more than this gateway draws for an answer: 640 at"),
        ("agent:calls=10,probes=7", "calls=10 × probes=7 of agent are 70, more than this gateway draws for an answer: 64 at most"),
        # 10 × 4 × 5 × 4 × 5 are the catalogue's own.
        ("mind_evolution:generations=11", "4,000 at most"),
        ("revision_threads:islands=2", "640 at most"),  # 10 conversations of 64 turns: the catalogue's 80 are lowered
        ("mars:every=19", "every=19 of mars is less than its probe_tokens=20: trial answers would cost more than the traces"),
        ("majority:every=1", "unknown setting"),
        ("majority:rounds=2,rollouts=9,by=rollouts", "unknown setting"),
        ("agent:probes=-1", "probes of agent is a whole number of 0 or more, found -1"),
    ],
)  # fmt: skip
def test_what_multiplies_the_cost_is_refused_beyond_the_width(spec, told):
    with pytest.raises(UsageError) as refused:
        build(spec)
    assert told in str(refused.value)


@pytest.mark.parametrize(
    "spec",
    [
        *(
            "beam:n=16",
            "beam:n=64,rounds=64",
            "beam:n=8,by=rollouts,rounds=20",
            "beam:by=rollouts,rounds=10,rollouts=16",
        ),
        *("agent:calls=10,probes=6", "agent:calls=64", "agent:calls=0", "mind_evolution:generations=5,turns=8"),
        *("mars:every=20", "best_of_n:judge_tokens=32768", "mind_evolution:retries=0"),
    ],
)
def test_what_stays_within_it_is_built_as_it_was_asked_for(spec):
    _, told, _ = build(spec)
    assert set(spec.partition(":")[2].split(",")) <= set(told.partition(":")[2].split(","))


def test_the_catalogues_own_settings_are_lowered_to_the_limits():
    assert build("beam", width=8)[1:] == ("beam:rounds=8", 4)
    assert build("agent", width=8, tokens=32)[1] == "agent:calls=8,answer=32"
    assert build("mind_evolution", width=2, tokens=100)[1:] == (
        "mind_evolution:turns=2,generations=2,islands=2,conversations=2,retries=2,critic_tokens=100,selector_tokens=100", 2,
    )  # fmt: skip
    assert build("beam")[1:] == ("beam", 4)  # rounds are no completions: a progress line counts four
