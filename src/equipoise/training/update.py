"""The optimiser's part of a step: token statistics, objective, gradient. Axes: B completions in rows, T tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.catalogue.build import build
from equipoise.errors import UsageError
from equipoise.models.decoding import seed_of
from equipoise.models.exact_kl import exact_kl
from equipoise.models.language_model import LanguageModel, hidden_states, score_tokens
from equipoise.models.samples import Samples, score_samples
from equipoise.models.token_stats import MaskedTokenStats
from equipoise.objectives.batch import FIELDS, TokenBatch, missing
from equipoise.objectives.compose import Chosen, Objective, compose
from equipoise.shaping.controllers import tally_tokens
from equipoise.shaping.entropy_budget import Plan
from equipoise.training.recipe import Learning
from equipoise.training.shape import Shaped, Shaper

GIVEN = "given_weights"  # the weight under which a controller's own token weights enter the objective
BONUS = "entropy_bonus"  # the regulariser that controllers move
MEASURED = FIELDS - {"planning_BT", "answer_BT", "top_logp_BTK"}  # what a batch has here, or gets where it is asked for


@dataclass(slots=True)
class Means:
    """Sums over the tokens of a step, for the log."""

    tokens: int = 0
    sums: dict[str, float] | None = None

    def add(self, tokens: int, **sums: Tensor) -> None:
        self.tokens += tokens
        self.sums = self.sums or {}
        for name, value in sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + float(value)

    def read(self) -> dict[str, float]:
        return {name: value / max(self.tokens, 1) for name, value in (self.sums or {}).items()}


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
        self.draws = {
            f"{part.name}.seed": part.settings["seed"] for part in self.objective.parts if "seed" in part.settings
        }
        self.optimiser = torch.optim.AdamW(
            [p for p in model.parameters() if p.requires_grad],
            lr=learning.lr,
            betas=(0.9, 0.95),
            weight_decay=learning.weight_decay,
        )

    def step(self, samples: Samples, shaped: Shaped, *, step: int) -> dict[str, float]:
        """All updates on one batch of completions; what to log of them."""
        for group in self.optimiser.param_groups:
            group["lr"] = self.learning.lr * min(1.0, step / max(self.learning.warmup, 1))
        device = samples.ids_BT.device
        logged = settings = self.shaper.settings()
        weights_BT = None
        if (plan := self._plan(samples, shaped)) is not None:
            weights_BT = torch.as_tensor(plan.weights_BT, dtype=torch.float32, device=device)
            logged = logged | {"entropy_budget.weight": plan.weight}
        adv_BT = torch.as_tensor(shaped.adv_BT, dtype=torch.float32, device=device)
        first, means = Means(), Means()
        norms: list[Tensor] = []
        losses: list[float] = []
        for number, rows in enumerate(self._mini_batches(shaped.keep_PG, step)):
            if not len(rows):
                continue
            at = rows.to(device)
            mini = samples.take(at)
            width = mini.ids_BT.shape[1]
            whole = TokenBatch(mini.logp_BT, mini.logp_BT, adv_BT[at, :width], mini.mask_BT, entropy_BT=mini.entropy_BT)
            given = {} if weights_BT is None else {GIVEN: weights_BT[at, :width]}
            # Some parts draw tokens: others in every update.
            drawn = {key: seed_of(self.seed, key, start, step, number) for key, start in self.draws.items()}
            chosen = self.objective.prepare(whole, settings=settings | drawn, given=given)
            self.optimiser.zero_grad(set_to_none=True)
            total = 0.0
            for part in _parts(len(rows), self.learning.rows, device):
                taken = mini.take(part)
                batch = self._batch(taken, whole.rows(part), moved=bool(losses))
                cut = _cut(chosen.rows(part), batch.logp_BT.shape[1])
                loss = self.objective(batch, settings=settings | drawn, chosen=cut)
                loss.backward()  # type: ignore[no-untyped-call]
                total += float(loss.detach())
                _count(means if losses else first, batch, taken.logp_BT)
            norms.append(torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.learning.clip_norm))
            if not bool(norms[-1].isfinite()):  # before the weights are nan, and saved
                raise FloatingPointError(
                    f"the gradient of step {step} is not finite: lower learning.lr or a coefficient"
                )
            self.optimiser.step()
            losses.append(total)
        if not losses:  # every completion was filtered out
            return logged
        before, after = first.read(), means.read() or first.read()
        found = {"loss": float(np.mean(losses)), "grad_norm": float(torch.stack(norms).mean())}
        found |= {"mismatch": before["gap"], "kl_to_sampler": after["k3"]}
        return found | ({"kl_to_reference": before["ref_kl"]} if "ref_kl" in before else {}) | logged

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

    def _mini_batches(self, keep_PG: np.ndarray, step: int) -> Iterator[Tensor]:
        """Rows of the kept completions, problems dealt out at random over the updates."""
        order = np.random.default_rng(seed_of(self.seed, "updates", step)).permutation(len(keep_PG))
        rows_PG = np.arange(keep_PG.size).reshape(keep_PG.shape)
        for problems in np.array_split(order, self.learning.updates):
            problems = np.sort(problems)
            yield torch.as_tensor(rows_PG[problems][keep_PG[problems]])

    def _stats(self, model: LanguageModel, samples: Samples) -> MaskedTokenStats:
        # Each prompt runs once; on a GPU the launches would cost more than that saves.
        if samples.ids_BT.device.type == "cpu":
            return score_samples(model, samples, temperature=self.temperature)
        ids_BS, mask_BS = samples.sequences()
        n_prompt = samples.prompt_ids_PL.shape[1]
        return score_tokens(model, ids_BS, mask_BS, n_prompt=n_prompt, temperature=self.temperature)

    def _batch(self, samples: Samples, rows: TokenBatch, *, moved: bool) -> TokenBatch:
        """The statistics of these completions under the policy, with gradients, and under the reference where asked for.

        Until the policy has `moved` from the one that sampled, their ratio is exactly 1. The rounding in which sampler and
        trainer differ is logged as mismatch; in the ratio it would decide the sign of an |ln r|.
        """
        stats = self._stats(self.model, samples)
        width = samples.ids_BT.shape[1]
        extra: dict[str, Any] = {}
        if "ref_logp_BT" in self.needs:
            with torch.no_grad():
                extra["ref_logp_BT"] = self._stats(self.reference, samples).logp_BT
        if "ref_kl_BT" in self.needs:
            extra["ref_kl_BT"] = reference_kl(self.model, self.reference, samples, temperature=self.temperature)
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
) -> Tensor:
    """(B, T): exact KL of the model from the reference at every sampled token, 0 where masked; gradients to the model.

    `ref_temperature`: the reference's own, where it is another than the policy's.
    """
    ids_BS, mask_BS = samples.sequences()
    before = slice(samples.prompt_ids_PL.shape[1] - 1, -1)  # the position that predicts a token is the one before it
    hidden_BTD = hidden_states(model, ids_BS, mask_BS)[:, before]
    with torch.no_grad():
        ref_BTD = hidden_states(reference, ids_BS, mask_BS)[:, before]
    mask_BT = samples.mask_BT
    kl_N = exact_kl(
        hidden_BTD[mask_BT],
        model.head,
        ref_BTD[mask_BT],
        reference.head,
        temperature=temperature,
        ref_temperature=ref_temperature,
    )
    return torch.zeros(mask_BT.shape, dtype=kl_N.dtype, device=kl_N.device).masked_scatter(mask_BT, kl_N)


def _objective(shaper: Shaper) -> Objective:
    """The recipe's, with what its controllers act on: the budget's weights, and a bonus whose coefficient they move."""
    method, moved = shaper.method, shaper.settings()
    weights = list(map(build, method.weights))
    if shaper.budget is not None:
        weights.append(build(f"equipoise.objectives.weights:{GIVEN}"))
    regularisers = list(map(build, method.regularisers))
    if f"{BONUS}.coef" in moved and BONUS not in [part.__name__ for part in regularisers]:
        regularisers.append(build(BONUS, coef=0.0))
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
        means.add(int(batch.mask_BT.sum()), **found)


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
