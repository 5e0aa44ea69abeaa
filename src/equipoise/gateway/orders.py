"""How one request is answered: which model, strategy and budget. Decided once, from the request and the operator's settings.

The field `equipoise` of the request comes before the model's name (`MODEL@majority:n=8`, `MODEL@PRESET`), that before the
reasoning effort, and that before the server's default. No way leads past the limits of the server and of the key.
"""

from __future__ import annotations

from dataclasses import dataclass

from equipoise.errors import UsageError
from equipoise.gateway.asked import Asked, ChatAsked
from equipoise.gateway.auto import Auto
from equipoise.gateway.refusals import Refusal
from equipoise.gateway.settings import AUTO, EFFORTS, KeyRule, Preset, Settings
from equipoise.gateway.strategies import SINGLE, Strategy, build_strategy, check_spec
from equipoise.infer.policy import Policy
from equipoise.wire import one_line

SHARES = 16  # a completion's part of the budget, where the caller gives no max_tokens, is at least one of so many
LEAST = 64  # tokens of such a part


@dataclass(frozen=True, slots=True)
class Order:
    model: str  # the upstream's name
    name: str  # of the strategy
    spec: str  # with its settings
    strategy: Strategy | None  # None: what the upstream says is handed through
    width: int  # completions of one answer, at most
    budget: int | None  # generated tokens of all answers together
    max_tokens: int | None  # of one completion; None: the upstream's own limit
    n: int
    seconds: float
    progress: bool


def make_order(
    asked: Asked, model: str, suffix: str | None, settings: Settings, rule: KeyRule, policy: Policy | None
) -> Order:
    """`model`, `suffix`: what stands before and after the @ of the model's name."""
    limits = settings.limits
    preset = _choose(asked, suffix, settings)
    wanted = asked.equipoise
    budget = _least(
        wanted.budget if wanted is not None and wanted.budget is not None else preset.budget, limits.budget, rule.budget
    )
    width = min(limits.width, rule.width or limits.width)
    strategy, spec, drawn = _build(preset.strategy, width, limits.max_tokens, policy)
    name = spec.partition(":")[0]
    if rule.models is not None and model not in rule.models:
        raise Refusal(403, f"this key may not use the model {one_line(model, 100)}", code="model_not_allowed")
    if rule.strategies is not None and name not in rule.strategies:
        raise Refusal(403, f"this key may not use the strategy {name}", code="strategy_not_allowed")
    most = asked.limit or preset.max_tokens
    if name == SINGLE:
        n = asked.completions
        each = None if budget is None else max(1, budget // n)
        return Order(model, name, spec, None, 1, budget, _least(most, each), n, _seconds(asked, limits.seconds), False)
    n = asked.n or 1
    if asked.completions != n:
        raise Refusal(400, "a strategy answers one prompt, and without best_of", param="prompt", code="invalid_value")
    if most is None:
        share = None if budget is None else max(LEAST, budget // (n * min(drawn, SHARES)))
        most = _least(settings.max_tokens, share, limits.max_tokens)
    progress = wanted is None or wanted.progress
    return Order(
        model, name, spec, strategy, drawn, budget, _least(most, budget), n, _seconds(asked, limits.seconds), progress
    )


def _choose(asked: Asked, suffix: str | None, settings: Settings) -> Preset:
    own = Preset.model_construct(strategy=settings.strategy, budget=settings.budget, max_tokens=None)
    wanted = asked.equipoise.strategy if asked.equipoise is not None else None
    if wanted is not None or suffix is not None:
        return _named(wanted if wanted is not None else suffix or "", settings)
    effort = asked.reasoning_effort if isinstance(asked, ChatAsked) else None
    if effort is None:
        return own
    if effort in settings.effort:
        return settings.effort[effort]
    if effort not in EFFORTS or settings.strategy == SINGLE:  # it goes to the upstream, as all that is not ours
        return own
    if not EFFORTS[effort]:
        return own.model_copy(update={"strategy": SINGLE})
    scaled = None if own.budget is None else max(1, round(own.budget * EFFORTS[effort]))
    return own.model_copy(update={"budget": scaled})


def _named(name: str, settings: Settings) -> Preset:
    if name in settings.presets:
        found = settings.presets[name]
        return found if found.budget is not None else found.model_copy(update={"budget": settings.budget})
    if name != AUTO:
        try:
            check_spec(name)
        except UsageError as problem:
            raise Refusal(400, one_line(str(problem), 500), code="unknown_strategy", param="model") from None
    return Preset.model_construct(strategy=name, budget=settings.budget, max_tokens=None)


def check_operator(settings: Settings, policy: Policy | None) -> None:
    """Build what the operator named once, at the start: no caller is to be told of the operator's mistakes."""
    named = {"strategy": settings.strategy}
    named |= {f"presets.{name}.strategy": preset.strategy for name, preset in settings.presets.items()}
    named |= {f"effort.{name}.strategy": preset.strategy for name, preset in settings.effort.items()}
    for where, spec in named.items():
        if spec == AUTO and policy is None:
            raise UsageError(f'{where} = "{AUTO}" needs a plan: give --plan with the file that equipoise plan wrote')
        try:
            _build(spec, settings.limits.width, settings.limits.max_tokens, policy)
        except UsageError as problem:
            raise UsageError(f'{where} = "{spec}": {problem}') from problem


def _build(spec: str, width: int, tokens: int, policy: Policy | None) -> tuple[Strategy | None, str, int]:
    if spec != AUTO:
        return build_strategy(spec, width=width, tokens=tokens)
    if policy is None:
        raise Refusal(400, "the strategy 'auto' needs a plan, and this gateway has none", code="no_plan", param="model")
    return Auto(policy, width), AUTO, width


def _seconds(asked: Asked, most: float) -> float:
    wanted = asked.equipoise.seconds if asked.equipoise is not None else None
    return most if wanted is None else min(wanted, most)


def _least(*values: int | None) -> int | None:
    known = [value for value in values if value is not None]
    return min(known) if known else None
