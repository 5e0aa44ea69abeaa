"""The curriculum: its rule by hand, its promise that none starves, and that a restored one goes on as the first."""

from __future__ import annotations

import json
from math import ceil

import numpy as np
import pytest

from equipoise.errors import UsageError
from equipoise.shaping.curriculum import Curriculum

NAMES = [f"p{i}" for i in range(12)]


def made(names=NAMES, **settings) -> Curriculum:
    curriculum = Curriculum(**settings)
    curriculum.add(names)
    return curriculum


def see(curriculum, **right_of):
    """Verdicts by problem, as (right, checked)."""
    width = max(n for _, n in right_of.values())
    correct = np.array([[1.0] * c + [0.0] * (n - c) + [np.nan] * (width - n) for c, n in right_of.values()])
    curriculum.observe(prompt_ids_P=tuple(right_of), correct_PG=correct, keep_PG=np.ones(correct.shape, dtype=bool))


def simulate(curriculum, chance, steps, n, size=8):
    """Draw, answer by chance, observe; the batches drawn."""
    batches = []
    for _ in range(steps):
        batch = curriculum.draw(n)
        rng = np.random.default_rng([7, curriculum.step])
        correct = np.array([rng.random(size) < chance[name] for name in batch], dtype=float)
        curriculum.observe(prompt_ids_P=batch, correct_PG=correct, keep_PG=np.ones(correct.shape, dtype=bool))
        batches.append(batch)
    return batches


def test_the_estimate_by_hand():
    curriculum = made(["a", "b", "c"], prior=4.0)
    assert set(curriculum.rates().values()) == {0.5}  # (0 + 1) / (0 + 2)
    see(curriculum, a=(8, 8), b=(2, 8))
    overall = 11 / 18  # (10 + 1) / (16 + 2)
    expected = {"a": (4 * overall + 8) / 12, "b": (4 * overall + 2) / 12, "c": overall}
    assert curriculum.rates() == pytest.approx(expected)


def test_old_verdicts_lose_half_their_weight_every_half_life():
    curriculum = made(["a", "b"], prior=1.0, half_life=2.0)
    see(curriculum, a=(4, 4))
    for _ in range(4):  # two half-lives: 4 of 4 count as 1 of 1
        curriculum.draw(1)
    overall = (1 + 1) / (1 + 2)
    assert curriculum.rates() == pytest.approx({"a": (overall + 1) / 2, "b": overall})
    see(curriculum, a=(0, 3))  # 1 of 1 and 0 of 3
    overall = (1 + 1) / (4 + 2)
    assert curriculum.rates()["a"] == pytest.approx((overall + 1) / 5)


def test_a_problem_twice_in_a_batch_and_unchecked_completions_are_counted_right():
    twice, once = made(["a", "b"]), made(["a", "b"])
    correct = np.array([[1, 0, np.nan], [1, 1, 0], [np.nan, np.nan, 1.0]])
    keep = np.array([[True, True, True], [True, True, True], [True, True, False]])
    twice.observe(prompt_ids_P=("a", "a", "b"), correct_PG=correct, keep_PG=keep)
    see(once, a=(3, 5))
    assert twice.state() == once.state()
    assert twice.tiers() == {"new": 1, "deferred": 0, "easy": 0, "middle": 1}


def test_draws_follow_the_weights():
    # Of four problems d is reviewed (the first due of those left); the second place goes by weight p̂(1 − p̂).
    counts = dict.fromkeys("abc", 0)
    for seed in range(3000):
        curriculum = made(["d", "a", "b", "c"], seed=seed, prior=1.0)
        see(curriculum, a=(4, 8), b=(7, 8), c=(1, 8))
        reviewed, drawn = curriculum.draw(2)
        assert reviewed == "d"
        counts[drawn] += 1
    overall = 13 / 26
    rate = {name: (overall + c) / 9 for name, c in {"a": 4, "b": 7, "c": 1}.items()}
    weight = {name: p * (1 - p) for name, p in rate.items()}  # step 0: the easy one has not faded yet
    for name, count in counts.items():
        share = weight[name] / sum(weight.values())
        assert count / 3000 == pytest.approx(share, abs=4 * np.sqrt(share * (1 - share) / 3000))


def test_the_easy_tier_fades_and_the_middle_stays():
    chance = {name: 0.97 if i < 6 else 0.5 for i, name in enumerate(NAMES)}
    batches = simulate(made(easy_half_life=10.0, half_life=1e6), chance, 120, 4)
    easy = [sum(chance[name] > 0.9 for name in batch) for batch in batches]
    assert np.mean(easy[:10]) > 1.2
    assert max(easy[-40:]) == 1  # the one place of four that is for review
    assert min(map(len, map(set, batches))) == 4


def test_deferral_doubles_up_to_its_limit_and_ends_with_a_success():
    curriculum = made(["a", *NAMES], half_life=1e9, defer_for=3, defer_most=10, draws=8)
    waits = []
    for _ in range(4):
        see(curriculum, a=(0, 8))
        waits.append(curriculum.state()["due"][0] - curriculum.step)
    assert waits == [3, 6, 10, 10]
    see(curriculum, a=(32, 32))
    assert curriculum.state()["deferrals"][0] == 0


def test_none_right_in_too_few_draws_defers_nothing():
    curriculum = made(draws=8)
    see(curriculum, p0=(0, 7), p1=(0, 8), p2=(1, 8))
    assert curriculum.tiers()["deferred"] == 1
    assert [name for name, due in zip(NAMES, curriculum.state()["due"], strict=True) if due > 0] == ["p1"]


def test_deferred_problems_stay_away_until_due_unless_nothing_else_is_left():
    curriculum = made(defer_for=5, half_life=1e9)
    see(curriculum, **dict.fromkeys(NAMES[:8], (0, 8)))
    for _ in range(5):
        assert not set(curriculum.draw(4)) & set(NAMES[:8])
    assert set(curriculum.draw(4)) & set(NAMES[:8])
    crowded = made(defer_for=50)
    see(crowded, **dict.fromkeys(NAMES, (0, 8)))
    assert len(set(crowded.draw(12))) == 12


@pytest.mark.parametrize("review", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("seed", range(3))
def test_none_starves(review, seed):
    rng = np.random.default_rng(seed)
    names = [f"p{i}" for i in range(40)]
    chance = {name: float(p) for name, p in zip(names, rng.choice([0.0, 0.02, 0.5, 0.99, 1.0], 40), strict=True)}
    n, most = 6, 16
    curriculum = made(names, seed=seed, review=review, defer_for=2, defer_most=most)
    batches = simulate(curriculum, chance, 200, n)
    bound = most + ceil(40 / max(1, ceil(review * n)))
    for name in names:
        drawn = [-1, *(step for step, batch in enumerate(batches) if name in batch), len(batches)]
        assert max(np.diff(drawn)) <= bound + 1, name
    assert all(len(set(batch)) == n for batch in batches)


def test_one_problem_at_a_time_is_a_queue():
    curriculum = made()
    assert [curriculum.draw(1)[0] for _ in range(24)] == NAMES * 2


def test_equal_seeds_draw_alike_and_others_do_not():
    chance = dict.fromkeys(NAMES, 0.4)
    first, second, other = (simulate(made(seed=s), chance, 20, 5) for s in (3, 3, 4))
    assert first == second != other


def test_every_batch_is_a_fresh_draw():
    # With one review and four by weight, six batches that repeated their draw would hold at most 4 + 6 problems.
    curriculum = made([f"p{i}" for i in range(40)])
    assert len(set().union(*(curriculum.draw(5) for _ in range(6)))) > 15


def test_a_restored_curriculum_goes_on_as_the_first_would_have():
    chance = {name: i / 11 for i, name in enumerate(NAMES)}
    first = made(seed=5)
    simulate(first, chance, 15, 5)
    second = Curriculum(seed=5)
    second.restore(json.loads(json.dumps(first.state())))
    assert second.state() == first.state()
    assert simulate(second, chance, 15, 5) == simulate(first, chance, 15, 5)
    assert second.state() == first.state()


def test_reading_changes_nothing():
    curriculum = made()
    simulate(curriculum, dict.fromkeys(NAMES, 0.3), 5, 4)
    before = json.dumps(curriculum.state())
    curriculum.rates(), curriculum.tiers()
    curriculum.state()["right"].append(7)
    assert json.dumps(curriculum.state()) == before


def test_new_problems_join_and_known_ones_keep_what_is_known():
    curriculum = made(["a", "b"])
    see(curriculum, a=(8, 8))
    rate = curriculum.rates()["a"]
    curriculum.add(["b", "c", "a", "c"])
    assert list(curriculum.rates()) == ["a", "b", "c"]
    assert curriculum.rates()["a"] == rate
    assert set(curriculum.draw(3)) == {"a", "b", "c"}


def test_reprofiling_forgets_the_verdicts_and_brings_the_deferred_back():
    curriculum = made(half_life=1e9)
    see(curriculum, p0=(0, 8), p1=(8, 8))
    curriculum.reprofile()
    assert curriculum.tiers() == {"new": 12, "deferred": 0, "easy": 0, "middle": 0}
    assert set(curriculum.rates().values()) == {0.5}


def test_it_runs_on_for_a_very_long_time():
    curriculum = made(easy_half_life=1.0, half_life=1.0, prior=0.01)
    see(curriculum, p0=(400, 400))
    state = curriculum.state() | {"step": 10**7}
    curriculum.restore(state)
    see(curriculum, p0=(400, 400), p1=(0, 8))
    assert len(set(curriculum.draw(12))) == 12


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: made().draw(13), "13 problems were asked of 12"),
        (lambda: made().draw(0), "0 problems were asked of 12"),
        (lambda: Curriculum().draw(1), "1 problems were asked of 0"),
        (lambda: see(made(), z=(1, 2)), "does not know the problem 'z': add it first"),
        (lambda: made().observe(prompt_ids_P=("p0",), correct_PG=np.array([[0.5]]), keep_PG=np.array([[True]])), "never a shaped reward"),
        (lambda: made().observe(prompt_ids_P=(None,), correct_PG=np.array([[1]]), keep_PG=np.array([[True]])), "problem None"),
        (lambda: made().observe(prompt_ids_P=(), correct_PG=np.array([[1]]), keep_PG=np.array([[True]])), "0 prompt ids were given for 1 groups"),
        (lambda: Curriculum(half_life=0), "above 0"),
        (lambda: Curriculum(defer_for=0), "1 <= defer_for"),
        (lambda: Curriculum(defer_below=0.8), "defer_below < easy_above"),
        (lambda: made().restore(made().state() | {"due": [1]}), "columns differ in length"),
        (lambda: made().restore(made().state() | {"prompt_ids": ["a"] * 12}), "does not hold together"),
    ],
)  # fmt: skip
def test_bad_input_is_told_in_one_line(call, message):
    with pytest.raises(UsageError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_more_problems_for_a_batch_are_others_by_the_same_rule_and_no_new_batch():
    settings = {"draws": 4, "defer_for": 3, "review": 0.5}
    curriculum, alone = made(**settings), made(**settings)
    first = curriculum.draw(4)
    assert alone.draw(4) == first
    assert curriculum.state() == alone.state()
    more = curriculum.draw(3, beside=first)
    assert len({*first, *more}) == 7
    assert curriculum.step == 1
    assert curriculum.draw(5, beside=[*first, *more]) != ()  # all twelve are in the batch now
    with pytest.raises(UsageError, match="1 problems were asked of 0"):
        curriculum.draw(1, beside=NAMES)
    see(curriculum, **dict.fromkeys(NAMES[:6], (0, 4)))
    away = {name for name, due in zip(NAMES, curriculum.state()["due"], strict=True) if due > 1}
    assert away == set(NAMES[:6])
    batch = curriculum.draw(2)
    assert not away & {*batch, *curriculum.draw(4, beside=batch)}  # put off, also for what is added


def test_what_is_added_to_a_batch_follows_the_weights():
    """No share for review: of 60 problems that are never right, and 12 of even chance, those of even chance are added."""
    names = [f"n{i}" for i in range(72)]
    curriculum = made(names, draws=100, prior=0.01, review=1.0)
    see(curriculum, **dict.fromkeys(names[:60], (0, 4)), **dict.fromkeys(names[60:], (2, 4)))
    first = curriculum.draw(1)
    added = curriculum.draw(8, beside=first)
    assert sum(name in names[60:] for name in added) >= 7
