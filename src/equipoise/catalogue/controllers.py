"""Controllers: methods that move a setting of another method from step to step, by the entropy of the step or by a schedule."""

from __future__ import annotations

from equipoise.catalogue.base import Method

_ENTROPY = ("entropy_BT", "mask_BT")
_TEMPERATURE = "entropy moves with the sampling temperature too: a target holds for one temperature"

CONTROLLERS: tuple[Method, ...] = (
    Method(
        "adaptive_entropy",
        kind="controller",
        loop="training",
        about="an entropy bonus that grows while entropy is below a target and is off above it",
        target="equipoise.shaping.controllers:AdaptiveEntropy",
        settings={"target": 0.2, "step": 1e-4, "max": 5e-3, "min": 0.0, "start": 0.0},
        paper="2505.22312",
        hosts={"trl": {"use_adaptive_entropy": True}},
        traps=(
            "set target, step and max together: TRL's defaults for step and max are 50 and 200 times larger",
            "TRL's documentation speaks of 2 to 10 nats per token; reasoning models have 0.1 to 1, where such a target keeps the bonus on for good",
            "TRL gates on the entropy of the step before, so the first step has no bonus",
            "TRL counts an entropy equal to the target as below it, Skywork-OR1 and we do not (inclusive)",
            _TEMPERATURE,
        ),
        equation="c ← clip(c ± step, min, max), + where H < target; entropy_bonus.coef = c where H < target, else 0",
        inputs=_ENTROPY,
        status="mixed",
        results=("studies/results/collapse",),
    ),
    Method(
        "band",
        kind="controller",
        loop="training",
        about="an entropy bonus that grows below a band and shrinks above it, to a penalty if need be",
        target="equipoise.shaping.controllers:EntropyBand",
        settings={"low": 0.2, "high": 0.6, "step": 1e-4, "max": 5e-3, "min": -5e-3, "start": 0.0},
        paper="2602.09782",
        traps=(
            "ours, after the paper's hysteresis between two bounds, which moves the clip; numbers are ours too",
            "the coefficient stays where it is inside the band, so it may hold a bonus on for long",
            _TEMPERATURE,
        ),
        equation="entropy_bonus.coef ← clip(coef ± step, min, max) from leaving [low, high] until back in its middle",
        inputs=_ENTROPY,
        status="mixed",
        results=("studies/results/collapse",),
    ),
    Method(
        "adaptive_clip",
        kind="controller",
        loop="training",
        about="the upper clip bound, doubled while entropy is below where it began and halved while above (ADAPO)",
        target="equipoise.shaping.controllers:AdaptiveClip",
        settings={"start": 0.28, "min": 0.05, "max": 1.0, "factor": 2.0},
        paper="2603.11682",
        acts_only=("off_policy",),
        traps=(
            "moves clip_high, which does nothing on strictly on-policy updates and under KL-Cov, which has no clip",
            "doubles or halves at every step, however near the entropy is; the bounds are ours",
            "the first step observed is the reference: start it on an untrained model, or give initial",
            _TEMPERATURE,
        ),
        equation="clip_high ← clip(clip_high · factor, min, max) where H < H_0, clip(clip_high / factor, min, max) where H > H_0",
        inputs=_ENTROPY,
    ),
    Method(
        "entropy_budget",
        kind="controller",
        loop="training",
        about="one weight for the tokens that spend entropy, so that no step spends more than a target schedule allows",
        target="equipoise.shaping.entropy_budget:EntropyBudget",
        settings={"target": 0.3, "band": 0.05, "gain": 0.3},
        paper="2505.22617",
        traps=(
            "ours, on the paper's identity: exact for one softmax, in a network a proxy; look at the correlation that it reports",
            "limits spending only: entropy that rises by itself is left alone",
            "needs the sum Σp²(ln p + H) at every position, which no host gives: our TRL adapter makes one more forward pass for it",
            "free for the first steps, until the scale between predicted and realised change is known",
            _TEMPERATURE,
        ),
        equation="dH = −A [p (ln p + H) − Σ p² (ln p + H)]; w = max w in [0, 1] with mean of dH⁺ + w dH⁻ ≥ floor(target − H)",
        inputs=("logp_BT", "entropy_BT", "drift_BT", "adv_BT", "mask_BT"),
        status="mixed",
        results=("studies/results/collapse",),
    ),
    Method(
        "anneal_k",
        kind="controller",
        loop="training",
        about="k of Pass@k training, from 16 down to 1 by a constant factor over the run",
        target="equipoise.shaping.anneal:Anneal",
        settings={"setting": "passk_training.k", "start": 16, "end": 1, "over": 300, "by": "factor", "whole": True},
        paper="2505.15201",
        traps=(
            "needs the advantage passk_training, or setting=pkpo.k with pkpo, and groups of at least `start`",
            "`over` counts steps: set it to the run's, or to less for a last part at `end`; k = 1 is GRPO with the population's std",
            "the paper anneals PKPO's k from 8 to 1 in two stages; the factor and the numbers are ours",
        ),
        equation="k = round(start^(1−t) · end^t), t = min((step − 1)/over, 1)",
    ),
    Method(
        "anneal_kl",
        kind="controller",
        loop="training",
        about="the coefficient of the KL to the reference model, on a line over the run",
        target="equipoise.shaping.anneal:Anneal",
        settings={"setting": "kl.coef", "start": 0.1, "end": 0.01, "over": 400, "by": "line"},
        paper="2504.07912",
        traps=(
            "moves the regulariser kl; where none is named, the exact KL enters the loss",
            "`over` counts steps: set it to the run's",
            "ours: the paper compares constant coefficients",
        ),
        equation="coef = start + t (end − start), t = min((step − 1)/over, 1)",
    ),
)
