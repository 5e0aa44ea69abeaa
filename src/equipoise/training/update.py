"""The optimiser's part of a step: token statistics, objective, gradient. Axes: B completions in rows, T tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.catalogue.build import build
from equipoise.errors import UsageError
from equipoise.models.decoding import seed_of
from equipoise.models.exact_kl import exact_kl
from equipoise.models.language_model import LanguageModel
from equipoise.models.samples import Samples, score_states, states_of
from equipoise.models.token_stats import MaskedTokenStats
from equipoise.objectives.batch import FIELDS, TokenBatch, missing
from equipoise.objectives.compose import Chosen, Objective, compose
from equipoise.shaping.controllers import tally_tokens
from equipoise.shaping.entropy_budget import Plan
from equipoise.training.recipe import Learning
from equipoise.training.shape import Shaped, Shaper

GIVEN = "given_weights"  # the weight under which a controller's own token weights enter the objective
# Regularisers that controllers move: they are there, at 0, where a controller is and nobody names them.
MOVED: Mapping[str, Mapping[str, Any]] = {"entropy_bonus": {"coef": 0.0}, "kl": {"coef": 0.0, "kind": "exact"}}
MARKS = ("planning_BT", "answer_BT")  # tokens that are marked where some part asks for it
MEASURED = FIELDS - {"top_logp_BTK"}  # what a batch has here, or gets where it is asked for


class Means:
    """Sums over the tokens of a step, for the log. They stay on the device until they are read: nothing waits for it before."""

    def __init__(self) -> None:
        self._added: list[dict[str, Tensor]] = []

    def add(self, **sums: Tensor) -> None:
        """Sums over some tokens, their number among them."""
        self._added.append(sums)

    def read(self) -> dict[str, float]:
        total: Counter[str] = Counter()
        for sums in self._added:
            total.update(
                dict(zip(sums, torch.stack([value.double() for value in sums.values()]).tolist(), strict=True))
            )
        n = total.pop("tokens", 0)
        return {name: value / max(n, 1) for name, value in total.items()}


@dataclass(frozen=True, slots=True)
class Taught:
    """Completions to imitate: each update takes its share of them.

    L += coef · Σ −ln π over their tokens, divided by the tokens of the update, theirs included
    """

    name: str  # under which the log has −ln π per token
    samples: Samples
    coef: float


class Updater:
    """The policy, its reference and its optimiser."""

    def __init__(
        self,
        model: LanguageModel,
        reference: LanguageModel,
        shaper: Shaper,
        learning: Learning,
        *,
        temperature: float,
        seed: int,
    ) -> None:
        self.model, self.reference, self.shaper, self.learning = model, reference, shaper, learning
        self.temperature, self.seed = temperature, seed
        self.objective = _objective(shaper)
        self.needs = _needs(self.objective)
        self.marks = tuple(name for name in MARKS if any(name in part.inputs for part in self.objective.parts))
        self.draws = {
            f"{part.name}.seed": part.settings["seed"] for part in self.objective.parts if "seed" in part.settings
        }
        self.optimiser = torch.optim.AdamW(
            [p for p in model.parameters() if p.requires_grad],
            lr=learning.lr,
            betas=(0.9, 0.95),
            weight_decay=learning.weight_decay,
        )

    def step(
        self,
        samples: Samples,
        shaped: Shaped,
        *,
        step: int,
        marks: Mapping[str, np.ndarray] = MappingProxyType({}),
        lessons: Sequence[Taught] = (),
    ) -> dict[str, float]:
        """All updates on one batch of completions; what to log of them. `marks` has the tokens that `self.marks` names."""
        for group in self.optimiser.param_groups:
            group["lr"] = self.learning.lr * min(1.0, step / max(self.learning.warmup, 1))
        device = samples.ids_BT.device
        logged = settings = self.shaper.settings()
        weights_BT = None
        if (plan := self._plan(samples, shaped)) is not None:
            weights_BT = torch.as_tensor(plan.weights_BT, dtype=torch.float32, device=device)
            logged = logged | {"entropy_budget.weight": plan.weight}
        adv_BT = torch.as_tensor(shaped.adv_BT, dtype=torch.float32, device=device)
        marked = {name: torch.as_tensor(marks[name], device=device) for name in self.marks}
        shares = [self._shares(lesson.samples) for lesson in lessons]
        first, means, taught = Means(), Means(), {lesson.name: Means() for lesson in lessons}
        norms: list[Tensor] = []
        losses: list[Tensor] = []
        for number, rows in enumerate(self._mini_batches(shaped, step)):
            learnt = [
                (lesson, of[number]) for lesson, of in zip(lessons, shares, strict=True) if of[number] is not None
            ]
            if not len(rows) and not learnt:
                continue
            self.optimiser.zero_grad(set_to_none=True)
            total = torch.zeros((), dtype=torch.float64, device=device)
            at = rows.to(device)
            if len(rows):
                mini = samples.take(at)
                width = mini.ids_BT.shape[1]
                tensors = {name: tensor_BT[at, :width] for name, tensor_BT in {"adv_BT": adv_BT, **marked}.items()}
                given = {} if weights_BT is None else {GIVEN: weights_BT[at, :width]}
                # Some parts draw tokens: others in every update.
                drawn = {key: seed_of(self.seed, key, start, step, number) for key, start in self.draws.items()}
                counted = means if losses else first
                total += self._reinforce(mini, tensors, given, settings | drawn, counted, moved=bool(losses))
            for lesson, share in learnt:
                assert share is not None
                n_tokens = int(samples.mask_BT[at].sum()) + int(share.mask_BT.sum())
                total += self._imitate(share, lesson.coef / n_tokens, taught[lesson.name])
            norms.append(torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.learning.clip_norm))
            self.optimiser.step()
            losses.append(total)
        if not losses:  # every completion was filtered out
            return logged
        if not bool(torch.stack(norms).isfinite().all()):  # before weights that are nan now are saved
            raise FloatingPointError(f"the gradient of step {step} is not finite: lower learning.lr or a coefficient")
        found = {"loss": float(torch.stack(losses).mean()), "grad_norm": float(torch.stack(norms).mean())}
        before, after = first.read(), means.read() or first.read()
        read = {
            "mismatch": before.get("gap"),
            "kl_to_sampler": after.get("k3"),
            "kl_to_reference": before.get("ref_kl"),
        }
        read |= {f"{name}/nll": means.read().get("nll") for name, means in taught.items()}
        return found | {name: value for name, value in read.items() if value is not None} | logged

    def _reinforce(
        self,
        mini: Samples,
        tensors: Mapping[str, Tensor],
        given: Mapping[str, Tensor],
        settings: Mapping[str, Any],
        means: Means,
        *,
        moved: bool,
    ) -> Tensor:
        """Adds the gradient of the objective on one update's completions; the loss."""
        known: dict[str, Any] = {"mask_BT": mini.mask_BT, "entropy_BT": mini.entropy_BT, **tensors}
        whole = TokenBatch(mini.logp_BT, mini.logp_BT, **known)
        chosen = self.objective.prepare(whole, settings=settings, given=given)
        total = torch.zeros((), dtype=torch.float64, device=mini.ids_BT.device)
        for part in _parts(len(mini.finish), self.learning.rows, mini.ids_BT.device):
            taken = mini if len(part) == len(mini.finish) else mini.take(part)
            batch = self._batch(taken, whole.rows(part), moved=moved)
            cut = _cut(chosen.rows(part), batch.logp_BT.shape[1])
            loss = self.objective(batch, settings=settings, chosen=cut)
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
            _count(means, batch, taken.logp_BT)
        return total

    def _shares(self, lesson: Samples) -> list[Samples | None]:
        """A lesson dealt out over the updates, in turn."""
        n = self.learning.updates
        places_B = torch.arange(len(lesson.finish), device=lesson.ids_BT.device)
        return [lesson.take(places_B[number::n]) if len(places_B[number::n]) else None for number in range(n)]

    def _imitate(self, share: Samples, scale: float, taught: Means) -> Tensor:
        """Adds the gradient of `scale` · Σ −ln π; the loss."""
        total = torch.zeros((), dtype=torch.float64, device=share.ids_BT.device)
        for part in _parts(len(share.finish), self.learning.rows, share.ids_BT.device):
            taken = share.take(part)
            nll = -self._stats(self.model, taken).logp_BT.sum()
            (scale * nll).backward()  # type: ignore[no-untyped-call]
            total += scale * nll.detach().double()
            taught.add(tokens=taken.mask_BT.sum(), nll=nll.detach())
        return total

    def _plan(self, samples: Samples, shaped: Shaped) -> Plan | None:
        """The entropy budget's weights, from a pass over the whole step; None where there is no such controller."""
        budget = self.shaper.budget
        if budget is None:
            return None
        with torch.no_grad():
            parts = _parts(len(samples.ids_BT), self.learning.rows, samples.ids_BT.device)
            width = samples.ids_BT.shape[1]
            drift_BT = torch.cat([_wide(self._stats(self.model, samples.take(part)).drift_BT, width) for part in parts])
        logp, entropy, drift = (t.cpu().double().numpy() for t in (samples.logp_BT, samples.entropy_BT, drift_BT))
        mask = samples.mask_BT.cpu().numpy()
        plan = budget.plan(logp, entropy, drift, shaped.adv_BT, mask)
        budget.observe(tally_tokens(entropy, mask), plan.predicted)
        return plan

    def _mini_batches(self, shaped: Shaped, step: int) -> Iterator[Tensor]:
        """Rows of the kept completions, problems dealt out at random over the updates."""
        keep_PG = shaped.keep_PG
        order = np.random.default_rng(seed_of(self.seed, "updates", step)).permutation(shaped.dealt_P)
        rows_PG = np.arange(keep_PG.size).reshape(keep_PG.shape)
        for problems in np.array_split(order, self.learning.updates):
            problems = np.sort(problems)
            yield torch.as_tensor(rows_PG[problems][keep_PG[problems]])

    def _stats(self, model: LanguageModel, samples: Samples) -> MaskedTokenStats:
        return score_states(states_of(model, samples), model, samples, temperature=self.temperature)

    def _batch(self, samples: Samples, rows: TokenBatch, *, moved: bool) -> TokenBatch:
        """The statistics of these completions under the policy, with gradients, and under the reference where asked for.

        Until the policy has `moved` from the one that sampled, their ratio is exactly 1. The rounding in which sampler and
        trainer differ is logged as mismatch; in the ratio it would decide the sign of an |ln r|.
        """
        states_BTD = states_of(self.model, samples)
        stats = score_states(states_BTD, self.model, samples, temperature=self.temperature)
        width = samples.ids_BT.shape[1]
        extra: dict[str, Any] = {name: getattr(rows, name)[:, :width] for name in self.marks}
        if "ref_logp_BT" in self.needs:
            with torch.no_grad():
                extra["ref_logp_BT"] = self._stats(self.reference, samples).logp_BT
        if "ref_kl_BT" in self.needs:
            extra["ref_kl_BT"] = reference_kl(
                self.model, self.reference, samples, temperature=self.temperature, states_BTD=states_BTD
            )
        return replace(
            rows,
            logp_BT=stats.logp_BT,
            old_logp_BT=samples.logp_BT if moved else stats.logp_BT.detach(),
            adv_BT=rows.adv_BT[:, :width],
            mask_BT=samples.mask_BT,
            entropy_BT=stats.entropy_BT,
            drift_BT=stats.drift_BT,
            **extra,
        )


def reference_kl(
    model: LanguageModel,
    reference: LanguageModel,
    samples: Samples,
    *,
    temperature: float,
    ref_temperature: float | None = None,
    states_BTD: Tensor | None = None,
) -> Tensor:
    """(B, T): exact KL of the model from the reference at every sampled token, 0 where masked; gradients to the model.

    `ref_temperature`: the reference's own, where it is another than the policy's. `states_BTD`: `states_of(model, samples)`, where
    somebody has them already.
    """
    if states_BTD is None:
        states_BTD = states_of(model, samples)
    with torch.no_grad():
        ref_BTD = states_of(reference, samples)
    mask_BT = samples.mask_BT
    kl_N = exact_kl(
        states_BTD[mask_BT],
        model.head,
        ref_BTD[mask_BT],
        reference.head,
        temperature=temperature,
        ref_temperature=ref_temperature,
    )
    return torch.zeros(mask_BT.shape, dtype=kl_N.dtype, device=kl_N.device).masked_scatter(mask_BT, kl_N)


def _objective(shaper: Shaper) -> Objective:
    """The recipe's, with what its controllers act on: the budget's weights, and terms whose coefficient they move."""
    method, moved = shaper.method, shaper.settings()
    weights = list(map(build, method.weights))
    if shaper.budget is not None:
        weights.append(build(f"equipoise.objectives.weights:{GIVEN}"))
    regularisers = list(map(build, method.regularisers))
    for name, settings in MOVED.items():
        if f"{name}.coef" in moved and name not in [part.__name__ for part in regularisers]:
            regularisers.append(build(name, **settings))
    objective = compose(
        build(method.surrogate), weights=weights, regularisers=regularisers, reduction=build(method.reduction)
    )
    for part in objective.parts:
        for name, required in part.inputs.items():
            if required and name not in MEASURED:
                raise missing(name, needed_by=part.name)
    for key in moved:
        owner, _, name = key.rpartition(".")
        if not any(name in part.taken and owner in ("", part.name) for part in objective.parts):
            raise UsageError(
                f"a controller of {', '.join(method.controllers)} moves {key}, and no part of this method takes it: "
                f"choose one that does, say surrogate clip for clip_high"
            )
    return objective


def _needs(objective: Objective) -> set[str]:
    """The reference tensors that some part reads: an exact KL has its own, all others take log-probs."""
    needs = set()
    for part in objective.parts:
        if part.settings.get("kind") == "exact":
            needs.add("ref_kl_BT")
        elif "ref_logp_BT" in part.inputs:
            needs.add("ref_logp_BT")
    return needs


def _parts(n: int, most: int, device: torch.device) -> list[Tensor]:
    return [torch.arange(first, min(first + most, n), device=device) for first in range(0, n, most)]


def _cut(chosen: Chosen, width: int) -> Chosen:
    return Chosen({name: values_BT[:, :width] for name, values_BT in chosen.by_part.items()})


def _wide(values_BT: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(values_BT, (0, width - values_BT.shape[1]))


def _count(means: Means, batch: TokenBatch, sampled_logp_BT: Tensor) -> None:
    with torch.no_grad():
        gap_BT = torch.where(batch.mask_BT, batch.logp_BT - sampled_logp_BT, 0.0)
        found = {"gap": gap_BT.abs().sum(), "k3": (gap_BT.exp() - 1 - gap_BT).sum()}
        if batch.ref_kl_BT is not None:
            found["ref_kl"] = batch.ref_kl_BT.sum()
        means.add(tokens=batch.mask_BT.sum(), **found)


def optimiser_state(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's tensors by name; its settings come from the config."""
    state: Mapping[int, Mapping[str, Tensor]] = optimiser.state_dict()["state"]
    return {f"{number}.{name}": value for number, values in state.items() for name, value in values.items()}


def restore_optimiser(optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        number, name = key.split(".", 1)
        state.setdefault(int(number), {})[name] = value
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
