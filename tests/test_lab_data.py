"""Builders of supervised data: a critic in the loop, and demonstrations of different approaches."""

from __future__ import annotations

import json
import random
from itertools import permutations

import pytest

from equipoise.base import Answer, Completion, Grade, Problem, Rollout
from equipoise.errors import UsageError
from equipoise.lab import diverse_demos
from equipoise.lab.critique_data import harvest, harvest_problem, hide_answer
from equipoise.lab.demonstrations import as_demonstration, write_demonstrations
from equipoise.lab.diverse_demos import choose_demonstrations

GOLD = "31415926"


def problem(name: str = "p", **more) -> Problem:
    return Problem(name, "sums", f"What is {name}?", GOLD, **({"params": {"answer": GOLD}} | more))


def grade(problem: Problem, completion: Completion) -> Grade:
    """Right where the text ends in the reference; a text that ends in '?' breaks the checker."""
    if completion.text is None or completion.text.endswith("?"):
        return Grade(None, "timeout", None)
    right = completion.text.endswith(problem.reference)
    return Grade(Answer(completion.text.split()[-1]), "right" if right else "wrong", float(right), feedback=GOLD)


def scripted(*texts: str | None):
    return lambda problem, /, *, n, seed: [Completion(text) for text in texts][:n]


# A critic in the loop.


def test_wrong_solutions_are_criticised_and_right_refinements_kept():
    asked = []

    def critique(problem, completion, /, *, seed):
        asked.append(completion.text)
        return f"look again at {completion.text}"

    def refine(problem, completion, critique, /, *, seed):
        return Completion(f"{completion.text} mended {GOLD}" if completion.text == "b 1" else "still 2")

    found = harvest_problem(
        problem(),
        sample=scripted(f"a {GOLD}", "b 1", "c 2", "d ?"),
        grade=grade,
        critique=critique,
        refine=refine,
        draws=4,
    )
    assert asked == ["b 1", "c 2"]  # neither the right one nor the one that could not be checked
    assert [r.completion.text for r in found.rollouts] == [f"a {GOLD}", f"b 1 mended {GOLD}"]
    assert [r.strategy for r in found.rollouts] == ["sampled", "refined"]
    assert found.rollouts[1].extra == {"critique": "look again at b 1", "turn": 1, "parent_id": "1"}
    assert (found.drawn, found.checked, found.right, found.refined, found.repaired) == (4, 3, 1, 2, 1)
    assert found.pass_rate == pytest.approx(1 / 3)
    assert all(r.grade.correct for r in found.rollouts)


def test_a_second_turn_criticises_the_refinement():
    seen = []

    def critique(problem, completion, /, *, seed):
        seen.append((completion.text, seed))
        return "no"

    def refine(problem, completion, critique, /, *, seed):
        return Completion(f"{completion.text}x" if completion.text != "1x" else f"then {GOLD}")

    how = {"sample": scripted("1"), "grade": grade, "critique": critique, "refine": refine, "draws": 1}
    assert not harvest_problem(problem(), **how).rollouts
    found = harvest_problem(problem(), **how, turns=5)
    assert [text for text, _ in seen] == ["1", "1", "1x"]
    assert len({seed for _, seed in seen[1:]}) == 2
    assert (found.refined, found.repaired, found.rollouts[0].extra["turn"]) == (2, 1, 2)


def test_nobody_but_the_grader_sees_the_answer():
    shown = []

    def sample(problem, /, *, n, seed):
        shown.append(problem)
        return [Completion("wrong 1")] * n

    def critique(problem, completion, /, *, seed):
        shown.extend([problem, completion])
        return "no"

    def refine(problem, completion, critique, /, *, seed):
        shown.extend([problem, completion, critique])
        return Completion("wrong 2")

    list(
        harvest(
            [problem("p"), problem("q")], sample=sample, grade=grade, critique=critique, refine=refine, draws=2, turns=2
        )
    )
    assert len(shown) == 2 * (1 + 2 * 2 * 5)
    assert not [thing for thing in shown if GOLD in repr(thing)]
    assert hide_answer(problem()).prompt == problem().prompt


def test_without_a_critic_it_is_rejection_sampling():
    texts = [f"a {GOLD}", "b 1", f"\na  {GOLD}", f"c {GOLD}", None, "d ?"]
    found = harvest_problem(problem(), sample=scripted(*texts), grade=grade, critique=None, draws=6)
    # By hand: the right ones, and the third is the first with other spaces.
    assert [r.completion.text for r in found.rollouts] == [f"a {GOLD}", f"c {GOLD}"]
    assert (found.refined, found.repaired, found.right, found.checked) == (0, 0, 3, 4)


def test_equal_solutions_are_kept_once_refined_or_not():
    def refine(problem, completion, critique, /, *, seed):
        return Completion(f"a {GOLD}")

    found = harvest_problem(
        problem(),
        sample=scripted(f"a {GOLD}", "b 1", "c 1"),
        grade=grade,
        critique=lambda *a, seed: "no",
        refine=refine,
        draws=3,
    )
    assert [r.strategy for r in found.rollouts] == ["sampled"]
    assert found.repaired == 2
    quiet = harvest_problem(
        problem(), sample=scripted("b 1"), grade=grade, critique=lambda *a, seed: None, refine=refine, draws=1
    )
    assert (quiet.refined, quiet.rollouts) == (0, ())
    assert harvest_problem(problem(), sample=scripted("?"), grade=grade, critique=None, draws=1).pass_rate is None


def test_a_critic_moves_the_data_towards_hard_problems():
    problems = [problem(f"p{i}", params={"rate": (i + 1) / 20}) for i in range(20)]
    rate_of = {p.id: p.params["rate"] for p in problems}

    def sample(problem, /, *, n, seed):
        rng = random.Random(seed)
        return [Completion(f"{rng.random()} {GOLD if rng.random() < rate_of[problem.id] else 0}") for _ in range(n)]

    def refine(problem, completion, critique, /, *, seed):
        rng = random.Random(seed)
        return Completion(f"{rng.random()} {GOLD if rng.random() < 0.5 else 0}")

    how = {"sample": sample, "grade": grade, "draws": 16}
    plain = list(harvest(problems, **how, critique=None))
    helped = list(harvest(problems, **how, critique=lambda *a, seed: "no", refine=refine))

    def hard_share(harvests) -> float:
        sizes = {h.problem_id: len(h.rollouts) for h in harvests}
        return sum(n for name, n in sizes.items() if rate_of[name] <= 0.3) / sum(sizes.values())

    # In expectation 1.05 of 10.5 parts without, and with half of the wrong ones repaired 3.525 of 15.25.
    assert hard_share(plain) < 0.165 < hard_share(helped)
    assert [h.right for h in plain] == [h.right for h in helped]  # the draws are the same
    backwards = list(harvest(problems[::-1], **how, critique=lambda *a, seed: "no", refine=refine))
    assert backwards[::-1] == helped  # nor does the order of problems matter
    other = list(harvest(problems, **how, critique=None, seed=1))
    assert [h.right for h in other] != [h.right for h in plain]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"critique": lambda *a, seed: "no"}, "a critic needs a refiner"),
        ({"critique": None, "refine": lambda *a, seed: Completion("")}, "a critic needs a refiner"),
        ({"critique": None, "draws": 0}, "draws=0"),
        ({"critique": None, "turns": 0}, "turns=0"),
    ],
)
def test_bad_settings(more, message):
    with pytest.raises(UsageError, match=message):
        harvest_problem(problem(), **({"sample": scripted("1"), "grade": grade, "draws": 1} | more))


# Different approaches.

WORDS = ["alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel", "india", "juliet", "kilo", "lima"]


def approach(number: int, variant: int = 0, length: int = 120) -> str:
    """A text of its own words; variants of it differ in their last few."""
    words = [f"{word}{number}" for word in random.Random(number).choices(WORDS, k=length)]
    return " ".join(words[:-3] + [f"{word}-{variant}" for word in words[-3:]])


def solved(text: str | None, name: str = "p", *, right: bool = True, thinking: str | None = None) -> Rollout:
    outcome = "right" if right else "wrong"
    return Rollout(
        "r", "train", 0, name, 0, problem(name), Completion(text, thinking), Grade(None, outcome, float(right))
    )


def numbers(chosen) -> list[int]:
    """The approaches that the chosen texts belong to."""
    return [int(r.completion.text.split()[0].lstrip("abcdefghijklmnopqrstuvwxyz")) for r in chosen]


def test_one_of_each_approach_however_common():
    rollouts = (
        [solved(approach(1, v)) for v in range(20)] + [solved(approach(2, v)) for v in range(3)] + [solved(approach(3))]
    )
    (found,) = choose_demonstrations(rollouts, most_per_problem=8)
    assert (found.right, found.distinct, found.approaches) == (24, 24, 3)
    assert numbers(found.chosen)[0] == 1  # the most common first
    assert sorted(numbers(found.chosen)) == [1, 2, 3]
    (one,) = choose_demonstrations(rollouts, most_per_problem=1)
    assert numbers(one.chosen) == [1]


def test_with_few_places_the_least_alike_are_chosen():
    # 2 is half like 1, 3 is like neither: after 1 comes 3, though 2 is more common.
    half = approach(1, length=120).split()[:60]
    two = " ".join(["two2", *half, *approach(2).split()[:60]])
    rollouts = [solved(approach(1, v)) for v in range(5)]
    rollouts += [solved(f"{two} {v}") for v in range(3)] + [solved(approach(3))]
    for most, expected in ((2, [1, 3]), (3, [1, 3, 2])):
        (found,) = choose_demonstrations(rollouts, most_per_problem=most, cut=0.6)
        assert found.approaches == 3
        assert numbers(found.chosen) == expected


def test_the_choice_does_not_depend_on_the_order_and_equal_texts_are_one():
    rollouts = [solved(approach(a, v)) for a, v in ((1, 0), (1, 1), (2, 0), (3, 0))]
    found = {
        tuple(r.completion.text for r in choose_demonstrations(order, most_per_problem=2)[0].chosen)
        for order in permutations(rollouts)
    }
    assert len(found) == 1
    (same,) = choose_demonstrations([solved("x  y"), solved("x y"), solved(" x y\n")], most_per_problem=5)
    assert (same.right, same.distinct, same.approaches, len(same.chosen)) == (3, 1, 1, 1)


def test_only_right_solutions_with_a_text_count_and_thinking_is_part_of_the_way():
    rollouts = [solved(approach(1), right=False), solved(None), solved(approach(2), "q"), solved(approach(3), "q")]
    (found,) = choose_demonstrations(rollouts, most_per_problem=3)
    assert (found.problem_id, found.approaches) == ("q", 2)
    apart = [solved(f"so {GOLD}", thinking=approach(n)) for n in (1, 2)]
    assert choose_demonstrations(apart, most_per_problem=3)[0].approaches == 2
    assert choose_demonstrations([], most_per_problem=3) == ()
    with pytest.raises(UsageError, match="at least 1 demonstration"):
        choose_demonstrations([], most_per_problem=0)


def test_of_very_many_texts_a_fixed_part_is_compared(monkeypatch):
    monkeypatch.setattr(diverse_demos, "MOST_TEXTS", 6)
    rollouts = [solved(approach(n)) for n in range(1, 13)]
    (found,) = choose_demonstrations(rollouts, most_per_problem=20)
    assert (found.distinct, found.approaches, len(found.chosen)) == (12, 6, 6)
    assert choose_demonstrations(rollouts[::-1], most_per_problem=20)[0].chosen == found.chosen


# Lines of a training set.


def test_lines_hold_prompt_and_completion_and_no_reference(tmp_path):
    chat = Problem("chat", None, [{"role": "user", "content": "hé?"}], GOLD)
    rollouts = [
        Rollout("r", None, None, None, 0, problem(), Completion("so 4\ud800"), Grade(None, "right", 1.0), strategy="refined", extra={"turn": 1, "gold": GOLD}),
        Rollout("r", None, None, None, 0, chat, Completion("so 5", "hm"), Grade(None, "right", 1.0)),
    ]  # fmt: skip
    path = tmp_path / "new" / "sft.jsonl"
    assert write_demonstrations(path, rollouts) == 2
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert lines == [
        {
            "prompt": "What is p?",
            "completion": "so 4?",
            "prompt_id": "p",
            "env": "sums",
            "source": "refined",
            "turn": 1,
        },
        {
            "prompt": [{"role": "user", "content": "hé?"}],
            "completion": [{"role": "assistant", "content": "so 5"}],
            "prompt_id": "chat",
            "env": None,
            "source": None,
            "thinking": "hm",
        },
    ]
    assert GOLD not in path.read_text("utf-8")
    assert write_demonstrations(path, []) == 0
    assert path.read_text() == ""
    with pytest.raises(UsageError, match="has no text"):
        as_demonstration(solved(None))


def test_a_build_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "sft.jsonl"
    write_demonstrations(path, [solved("a")])
    before = path.read_bytes()
    with pytest.raises(UsageError):
        write_demonstrations(path, [solved("b"), solved(None)])
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["sft.jsonl"]
