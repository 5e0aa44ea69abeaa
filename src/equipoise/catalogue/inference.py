"""Methods that act on the inference loop: how a token budget is spent."""

from __future__ import annotations

from equipoise.catalogue.base import Method

INFERENCE: tuple[Method, ...] = (
    Method(
        "cap",
        kind="cap",
        loop="inference",
        about="an upper limit on the thinking tokens of one completion",
        target="equipoise.infer.capped:Capped",
        settings={"tokens": 4096},
        paper="2506.04210",
        hosts={"openai": {}},
        traps=(
            "the limit is yours to measure: accuracy peaks at a length that differs by model and problem",
            "leave room for the answer: where the cap eats it, there is none to read",
            "a reasoning_effort is a hint to the template, not a limit",
        ),
    ),
    Method(
        "majority",
        kind="strategy",
        loop="inference",
        about="the most common answer of n (self-consistency)",
        target="equipoise.infer.vote:Majority",
        settings={"n": 16},
        paper="2203.11171",
        hosts={"openai": {}},
        traps=(
            "an OpenAI-compatible server draws the n completions; the vote over them is the client's",
            "completions without an answer abstain; they must never form a class of their own",
            "on problems where the wrong answer leads, more votes make it surer",
        ),
    ),
    Method(
        "parallel",
        kind="strategy",
        loop="inference",
        about="the token budget split over independent shorter completions and a vote, instead of one long one",
        target="equipoise.infer.parallel:Parallel",
        settings={"n": 8, "budget": 16384},
        paper="2506.04210",
        traps=("compare at equal tokens, those of cancelled completions included",),
    ),
)
