"""The rules of diagnosis, in one table. A rule reads one estimate against two numbers:

    neutral   no effect: an interval that holds it proves nothing
    limit     the effect from which it matters in practice

A rule *fails* when the value is past the limit and the interval lies wholly past neutral; it is *ok* when the interval
lies wholly short of the limit; else it is *unclear*. So a small effect measured well is ok, a large effect measured
badly is unclear, and more data moves either way.

Outcomes decide; a process decides only where no outcome is clear; signs never decide, they are shown as evidence.
Entropy that fell while the answers kept their breadth is worth a watch, not an alarm, and mean entropy falls in every
run that learns: routine tokens sharpen. A loop fails by one failing outcome or, with no clear outcome, one failing
process. It is ok when one of that weight is ok and none fails or leans past its limit. In all other cases there is not enough data, and
the rules that found nothing say what would supply it.

How much diversity is right depends on the use: one `answer` needs pass@1, a `vote` needs maj@k, `search` (any method
that checks many samples) needs pass@k and breadth on the problems that are still unsolved.

The limits were set before any simulated run was made; `benchmarks/verdicts` measures what they catch and miss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from equipoise.base import Loop

USES = ("answer", "vote", "search")
MIN_PROMPTS = 10  # problems, or steps of a curve: below this no rule is read at all

Weight = Literal["outcome", "process", "sign"]


@dataclass(frozen=True, slots=True)
class Rule:
    """`estimates` are tried in order, the first that was measured is read; `{k}` is the k of the use."""

    name: str
    loop: Loop
    weight: Weight
    uses: tuple[str, ...]
    measure: str
    estimates: tuple[str, ...]
    limit: float
    reading: str  # {value} and {k} are filled in
    supply: str  # what to give when nothing was measured
    neutral: float = 0.0
    problems: str | None = None  # read the estimate for this class of problems

    @property
    def harm_is_down(self) -> bool:
        return self.limit < self.neutral


BASELINE = "the base model's rollouts on the same problems (--baseline PATH), or rollouts of several training steps"
_TOKENS = "token entropies over several training steps (column entropies; a capture in the trainer writes them)"
_BUDGETS = "rollouts of the same problems at three or more thinking budgets (column budget)"

RULES: tuple[Rule, ...] = (
    # --- training loop: outcomes --------------------------------------------------------------------------------------
    Rule(
        "pass@k lost", "training", "outcome", ("search",), "passk", ("pass@{k}_vs_baseline", "pass@{k}_change"), -0.05,
        "pass@{k} changed by {value:+.1%} of the problems", BASELINE,
    ),
    Rule(
        "vote lost", "training", "outcome", ("vote",), "majk", ("maj@{k}_vs_baseline", "maj@{k}_change"), -0.05,
        "maj@{k} changed by {value:+.1%} of the problems", BASELINE,
    ),
    Rule(
        "single answer lost", "training", "outcome", ("answer",), "passk", ("pass@1_vs_baseline", "pass@1_change"), -0.03,
        "pass@1 changed by {value:+.1%}", BASELINE,
    ),
    Rule(
        "unsolved problems grow alike", "training", "outcome", ("search",), "diversity",
        ("distinct@{k}_vs_baseline_rel", "distinct@{k}_change_rel"), -0.25,
        "distinct answers on unsolved problems changed by {value:+.0%}", BASELINE, problems="unsolved",
    ),
    # --- training loop: processes and signs ---------------------------------------------------------------------------
    Rule(
        "forks lost their entropy", "training", "process", ("search", "vote"), "forks",
        ("fork_entropy_change_rel", "fork_entropy_vs_baseline_rel"), -0.5,
        "entropy at forking tokens changed by {value:+.0%} since the first steps", _TOKENS,
    ),
    Rule(
        "mean entropy fell", "training", "sign", USES, "entropy", ("entropy_change_rel", "entropy_vs_baseline_rel"), -0.7,
        "mean token entropy changed by {value:+.0%} since the first steps", _TOKENS,
    ),
    Rule(
        "groups without a gradient", "training", "sign", USES, "health", ("dead_groups_change",), 0.3,
        "the share of groups whose rewards are all equal changed by {value:+.1%}", "rewards and group ids over several steps",
    ),
    Rule(
        "answers repeat", "training", "sign", ("search", "vote"), "diversity", ("collision_change",), 0.3,
        "two answers to an unsolved problem agree {value:+.1%} more often than at the start", BASELINE, problems="unsolved",
    ),
    Rule(
        "training explores less than sampling", "training", "sign", ("search",), "transfer", ("transfer_gap",), -0.25,
        "training reached {value:+.0%} distinct answers on unsolved problems against as many samples of the base model", BASELINE,
    ),
    # --- inference loop -----------------------------------------------------------------------------------------------
    Rule(
        "longer thinking costs accuracy", "inference", "outcome", USES, "budget", ("overthinking_loss",), -0.04,
        "accuracy at the largest budget is {value:+.1%} against the best budget", _BUDGETS,
    ),
    Rule(
        "right answers flip to wrong", "inference", "sign", USES, "budget", ("net_flips",), 0.02,
        "past the best budget, right→wrong flips exceed wrong→right by {value:.1%} of the samples", _BUDGETS,
    ),
    Rule(
        "answers oscillate", "inference", "sign", USES, "budget", ("disagreement_rise",), 0.05,
        "past the best budget, two samples of a problem disagree {value:+.1%} more often", _BUDGETS,
    ),
)  # fmt: skip

MEASURES = tuple(dict.fromkeys(rule.measure for rule in RULES))
