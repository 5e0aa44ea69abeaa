"""What would let an unknown loop be judged, said of the data at hand: what was given already is not asked for again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from math import isfinite

from equipoise.base import Estimate, Finding
from equipoise.diagnosis.judge import Judgement, Read, alike
from equipoise.diagnosis.rules import BASELINE, MIN_PROMPTS
from equipoise.errors import UsageError
from equipoise.measures.answers import AnswerTable
from equipoise.measures.evidence import Evidence
from equipoise.text.display import many

REWARDS_NAMED = 4


def what_is_missing(
    found: Judgement, numbers: Mapping[str, Sequence[Estimate]], evidence: Evidence, baseline: Evidence | None
) -> tuple[str, ...]:
    """For an unknown loop all that could decide it, verdicts first: no outcome is read without them."""
    if "unknown" not in found.states.values():
        return ()
    verdicts = [
        *_without_verdicts(evidence, ""),
        *([] if baseline is None else _without_verdicts(baseline, "of the baseline ")),
    ]
    lines = list(verdicts)
    for loop, state in found.states.items():
        if state != "unknown":
            continue
        mine = [read for read in found.reads if read.rule.loop == loop and read.rule.weight != "sign"]
        for read in (read for read in mine if read.finding is None):
            if read.missing != BASELINE:
                lines.append(f"{loop} loop: {read.missing}")
            elif baseline is None or not verdicts or not _shared(evidence.answers, baseline.answers):
                lines.append(f"{loop} loop: {_comparison(read, numbers, evidence.answers, baseline)}")
        lines += [f"{loop} loop: {line}" for line in _unclear(mine)]
    return tuple(dict.fromkeys(lines))


def _without_verdicts(evidence: Evidence, whose: str) -> list[str]:
    """How to say which rollouts are right, where none has a verdict."""
    table = evidence.answers
    if not len(table) or table.has("correct"):
        return []
    names = _reward_names(evidence)
    named = shlex.quote(names[0]) if names else "COLUMN"
    total = "" if table.has("reward") else f"--column reward={named} "
    listed = f" (rewards: {', '.join(names[:REWARDS_NAMED])})" if names else ""
    return [
        f"verdicts (right or wrong), which no rollout {whose}has: --column correct={named} if it is 0 or 1, "
        f"or {total}--solved-at NUMBER{listed}"
    ]


def _reward_names(evidence: Evidence) -> list[str]:
    """The parts of the reward in the first rollouts, those of only 0 and 1 first: they may well be verdicts."""
    try:
        first = next(evidence.run.rollouts(["rewards"]), None)
    except UsageError:  # a part that is damaged, or still being written: the diagnosis stands without the names
        return []
    values: dict[str, set[float]] = {}
    for row in [] if first is None else first.rows():
        for name, value in row.get("rewards") or ():
            values.setdefault(name, set()).add(value)
    return sorted(values, key=lambda name: not values[name] <= {0.0, 1.0})


def _comparison(
    read: Read, numbers: Mapping[str, Sequence[Estimate]], table: AnswerTable, baseline: Evidence | None
) -> str:
    """What a comparison with the base model, or of last steps with first ones, still lacks."""
    if baseline is None:
        return BASELINE + _recurrence(table)
    if shared := _shared(table, baseline.answers):
        rule = read.rule
        reasons = (
            number.missing
            for number in numbers.get(rule.measure, ())
            if number.name.endswith("_vs_baseline") and number.at.get("problems") in (None, rule.problems)
        )
        few = f"more samples of the {many(shared, 'problem')} that the run and the baseline share"
        return next(filter(None, reasons), few)
    return (
        f"a baseline of the same problems: none of its {len(_problems(baseline.answers)):,} prompt ids is among the "
        f"run's {len(_problems(table)):,} (--column prompt_id=COLUMN, if both have such ids), "
        f"or rollouts of several training steps{_recurrence(table)}"
    )


def _problems(table: AnswerTable) -> set[str]:
    texts = table.names["prompt_id"].texts
    return {texts[code] for code in set(table.prompt_R.tolist()) if code >= 0}


def _shared(a: AnswerTable, b: AnswerTable) -> int:
    return len(_problems(a) & _problems(b))


def _recurrence(table: AnswerTable) -> str:
    """That the run has several steps and no problem in two of them, in words; empty where it is not so."""
    pairs = set(zip(table.prompt_R.tolist(), table.numbers["step"].tolist(), strict=True))
    visits = [(problem, step) for problem, step in pairs if problem >= 0 and isfinite(step)]
    problems, steps = len({problem for problem, _ in visits}), len({step for _, step in visits})
    if steps < 2 or len(visits) > problems:
        return ""
    return f" in which problems recur (of {many(problems, 'problem')} in {many(steps, 'step')}, none does)"


def _unclear(reads: Sequence[Read]) -> list[str]:
    """What would make an unclear finding clear: more problems, or rollouts that are not the same."""
    unclear = [read.finding for read in reads if read.finding is not None and read.finding.severity == "unclear"]
    same = [finding for finding in unclear if alike(finding.estimate) and (finding.estimate.n or 0) >= MIN_PROMPTS]
    wide = [finding for finding in unclear if finding not in same]
    lines = []
    if wide:
        lines.append(f"more problems; the intervals are too wide to tell ({', '.join(map(_interval, wide))})")
    if same:
        two = "run and baseline" if same[0].estimate.at.get("against") == "baseline" else "last and first steps"
        seen = ", ".join(f"{finding.name}: n = {finding.estimate.n}" for finding in same)
        lines.append(f"{two} that are not the same: there is no difference on any problem ({seen})")
    return lines


def _interval(finding: Finding) -> str:
    return f"{finding.name}: {finding.interval or 'no interval'}, n = {finding.estimate.n}"
