"""Trip planning: the checker against hand-worked plans, and all solutions against every order of the cities."""

from __future__ import annotations

from itertools import pairwise, permutations

import pytest

from equipoise.base import Completion, Problem, Sampling
from equipoise.tasks.again import ask_again, own_form
from equipoise.tasks.asking import ask, posed_as_chat
from equipoise.tasks.table import find_task
from equipoise.tasks.trips import find_faults

# A for 2 days, B for 1, C for 3, D for 2; flights A-B, B-C, C-D, A-D; B on day 3, D on day 8.
PARAMS = {
    "stays": {"A": 2, "B": 1, "C": 3, "D": 2},
    "flights": [["A", "B"], ["A", "D"], ["B", "C"], ["C", "D"]],
    "dates": [["B", 3], ["D", 8]],
}
PROBLEM = Problem("trips:test", "trips", "A2BD,B1AC,C3BD,D2AC|B3,D8>", "ABCD", PARAMS)


def grade(text, **more):
    return find_task("trips").grade(PROBLEM, Completion(text, **more))


@pytest.mark.parametrize(
    ("plan", "faults", "reward"),
    [
        # Five rules: three flights and two dates. A 1-2, B 3, C 4-6, D 7-8.
        ("ABCD", [], 1.0),
        # A 1-2, B 3, D 4-5, C 6-8: no flight from B to D, and D two days early at the latest.
        ("ABDC", ["there is no flight from B to D", "D is visited on days 4 to 5, not on day 8"], 0.6),
        # B 1, A 2-3, D 4-5, C 6-8: every flight is there, and no date is kept.
        ("BADC", ["B is visited on day 1, not on day 3", "D is visited on days 4 to 5, not on day 8"], 0.6),
        # A 1-2, B 3, C 4-6, and nothing on day 8.
        ("ABC", ["D is not visited"], 0.8),
        # A 1-2, B 3, A again 4-5, D 6-7: D misses its day by one, C is left out.
        ("ABAD", ["A is visited 2 times", "C is not visited", "D is visited on days 6 to 7, not on day 8"], 0.4),
        # J takes no time: A 1-2, B 3, C 4-6, D 7-8. Neither flight of J is there.
        ("ABCJD", ["there is no flight from C to J", "there is no flight from J to D", "there is no city J"], 0.4),
        ("DDDDDDDD", None, 0.0),
    ],
)
def test_plans_worked_by_hand(plan, faults, reward):
    found = grade(plan)
    if faults is not None:
        assert [fault.words for fault in find_faults(plan, PARAMS)] == faults
        assert found.feedback == ("; ".join(faults) or None)
    assert found.reward == pytest.approx(reward)
    assert found.outcome == ("right" if reward == 1 else "wrong")
    assert found.answer.text == plan


@pytest.mark.parametrize(
    "text",
    ["A, B, C, D", "A B C D", "A -> B -> C -> D", "A → B → C → D", r"\boxed{A, B, C, D}", "<answer>ABCD</answer>"],
)
def test_ways_to_write_a_plan(text):
    assert grade(text).answer.text == "ABCD"


@pytest.mark.parametrize("text", ["", "A", "Berlin, Rome", "abcd", "ABCDABCDA", "A" * 300, "A1B", "I do not know"])
def test_what_is_no_plan(text):
    assert grade(text).outcome == "unparsable"


@pytest.mark.parametrize(
    "spec", ["trips", "trips:cities=5,flights=6,dates=0,least_solutions=1", "trips:cities=7,flights=12,dates=4"]
)
def test_solutions_are_all_orders_that_break_no_rule(spec):
    task = find_task(spec)
    for problem in task.problems(3, 6):
        params = problem.params
        joined = {frozenset(leg) for leg in params["flights"]}

        def holds(order, params=params, joined=joined):
            # Day by day: a city's name for every day that it lasts.
            diary = [name for name in order for _ in range(params["stays"][name])]
            flies = all(frozenset(leg) in joined for leg in pairwise(order))
            return flies and all(day <= len(diary) and diary[day - 1] == name for name, day in params["dates"])

        orders = {"".join(order) for order in permutations(params["stays"]) if holds(order)}
        assert task.solutions(problem) == orders
        assert len(orders) >= task.least_solutions
        assert {order for order in orders if task.grade(problem, Completion(order)).outcome == "right"} == orders


def test_the_short_prompt_and_the_words_pose_the_same():
    short, words = (find_task("trips", prompt=prompt).problems(0, 1)[0] for prompt in ("short", "words"))
    assert short.params["stays"] == words.params["stays"]
    assert short.params["flights"] == words.params["flights"]
    cities, dates = short.prompt[:-1].split("|")
    assert [block[:2] for block in cities.split(",")] == [
        f"{name}{days}" for name, days in words.params["stays"].items()
    ]
    joined = {tuple(sorted((block[0], other))) for block in cities.split(",") for other in block[2:]}
    assert joined == {tuple(leg) for leg in words.params["flights"]}
    assert dates == ",".join(f"{name}{day}" for name, day in words.params["dates"])
    for a, b in joined:
        assert f"{a} and {b}" in words.prompt
    for name, day in words.params["dates"]:
        assert f"in {name} on day {day}" in words.prompt


def test_tries_in_the_short_form():
    task = find_task("trips")
    tries = [(Completion(text), grade(text)) for text in ("ABDC", "B A D C", "?")]
    # ABDC lacks the flight BD and misses D's day; BADC misses both days; the third is no plan.
    assert task.ask_again(PROBLEM, tries) == f"{PROBLEM.prompt}ABDC!BD!D>BADC!B!D>"
    assert task.ask_again(PROBLEM, tries[2:]) is None
    assert ask_again(task, PROBLEM, *tries[0]) == f"{PROBLEM.prompt}ABDC!BD!D>"
    assert ask_again(task, PROBLEM, Completion("ABCD"), grade("ABCD")) is None  # right


def test_a_question_has_the_short_form_only_where_its_prompt_is_short():
    task, how = find_task("trips"), Sampling(max_tokens=12)
    tries = [(Completion("ABDC"), grade("ABDC"))]
    assert ask(task, PROBLEM, how).again(tries) == f"{PROBLEM.prompt}ABDC!BD!D>"
    assert ask(task, posed_as_chat(PROBLEM), how).again is None
    assert own_form(find_task("trips:prompt=words"), PROBLEM) is None
    assert own_form(find_task("queens"), PROBLEM) is None
    countdown = find_task("countdown")
    problem = countdown.pose([3, 7, 2, 9], 24)
    wrong = [(found := Completion(text), countdown.grade(problem, found)) for text in ("3*7+2-9", "3+7+2+9")]
    assert ask(countdown, problem, how).again(wrong) == "3,7,2,9=24>3*7+2-9=14>3+7+2+9=21>"


def test_the_reward_may_be_that_of_a_right_plan_alone():
    strict = find_task("trips:reward=right")
    assert [strict.grade(PROBLEM, Completion(text)).reward for text in ("ABCD", "ABC", "?")] == [1.0, 0.0, 0.0]
    assert strict.grade(PROBLEM, Completion("ABC")).parts == {"rules": pytest.approx(0.8)}
    assert strict.problems(0, 3) == find_task("trips").problems(0, 3)
