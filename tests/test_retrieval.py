"""The retrieval task: its search by hand, its chain followed by a slow reader."""

from __future__ import annotations

import re

from equipoise.base import Completion
from equipoise.tasks.asking import ask
from equipoise.tasks.retrieval import NOTHING, Retrieval, search_facts

FACTS = [
    "Mirela lives in Dova.",
    "The teacher of Mirela is Kabo.",
    "The friend of Mirela is Tuna.",
    "The teacher of Kabo is Tuna.",
]


def test_the_rarer_shared_word_counts_for_more():
    # mirela stands in 3 facts, the pair "of mirela" in 2, teacher in 2, "teacher of" in 2.
    assert search_facts("teacher of Mirela", FACTS) == FACTS[1]  # 1/2 + 1/2 + 1/2 + 1/3, all others less
    assert search_facts("Mirela", FACTS) == FACTS[0]  # all equal: the first
    assert search_facts("Mirela lives", FACTS) == FACTS[0]
    # "kabo is": only the last. Kabo alone: 1/2 for both, the second first.
    assert search_facts("Kabo is", FACTS) == FACTS[3]
    assert search_facts("Kabo", FACTS, shown=2) == f"{FACTS[1]}\n{FACTS[3]}"
    assert search_facts("the of is", FACTS) == NOTHING
    assert search_facts("", FACTS) == NOTHING


def test_hop_by_hop_every_chain_ends_at_the_reference():
    """Reads the sentences with its own pattern, not with the task's."""
    for hops in (1, 2, 4):
        task = Retrieval(hops=hops)
        for problem in task.problems(3, 20, split="test"):
            search = ask(task, problem).tools["search"]
            relations = re.findall(r"the (\w+) of", problem.params["question"])[::-1]
            who = re.search(r"(\w+) live\?", problem.params["question"])[1]
            for relation in relations:
                fact = search(f"{relation} of {who}")
                assert f" of {who} is " in fact
                who = fact.rstrip(".").split(" is ")[1]
            home = search(f"{who} lives").rstrip(".").split(" in ")[1]
            # A person has one home and one fact of each relation.
            assert len(relations) == hops - 1
            found = [fact for fact in problem.params["facts"] if fact.startswith(f"{who} lives in ")]
            assert len(found) == 1
            assert home.lower() == problem.reference
            assert task.grade(problem, Completion(f"<answer>{problem.reference}</answer>")).correct


def test_nobody_is_met_twice_on_the_way():
    for problem in Retrieval(hops=6, people=8).problems(0, 20):
        assert len(set(problem.params["chain"])) == 6
