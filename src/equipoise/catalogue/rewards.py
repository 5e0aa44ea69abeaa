"""Methods that act through what a completion earns: exploration terms, scoring rules, likelihood and vector rewards, and data.

Settings are those of the paper or its released code unless a trap says that they are ours.
"""

from __future__ import annotations

from equipoise.catalogue.base import Method

_HISTORY = "needs an OutcomeCounter over canonical answers (1/2 and 0.5 are one), saved with every checkpoint and never fed by evaluation"
_BESIDE = (
    "added to the advantage, not to the reward: a reward that is divided by the group's std would drown or blow it up"
)
_GUARDS = "keep both guards: off where the whole group is right, and off the tokens of the final answer (shaping.tokens:spread_bonus)"
_ALL_ANSWER = (
    "where a completion is all answer, as in Countdown, the guard of the answer tokens removes the whole term: "
    "let the model reason first, or spread it over all tokens knowingly"
)
_UNREADABLE = (
    "an answer that cannot be read gets 0, which beats a punished one: let the reward pay for readable answers"
)
_REVIEW = "rejected at ICLR 2026 for want of ablations of weight and baseline; no code was released"
_OPEN = "the paper gives no value: this one is ours"

REWARDS: tuple[Method, ...] = (
    Method(
        "ucb_naive",
        kind="bonus",
        loop="training",
        about="a bonus for answers that training has rarely seen for this problem",
        target="equipoise.shaping.exploration:ucb_naive",
        settings={"weight": 0.2, "unless_all_right": True},
        paper="2509.06941",
        equation="weight · b_i, b = min(1, √(1/N(x, a_i))), N before this step",
        inputs=("visits_PG", "keep_PG", "correct_PG"),
        traps=(
            "never negative: it pushes up whatever was sampled; reported to widen the answers in training but not on test problems",
            _HISTORY,
            _BESIDE,
            _GUARDS,
            _ALL_ANSWER,
        ),
    ),
    Method(
        "ucb_mean",
        kind="bonus",
        loop="training",
        about="rarity of an answer over training, minus the mean rarity of the group's others",
        target="equipoise.shaping.exploration:ucb_mean",
        settings={"weight": 0.2, "unless_all_right": True},
        paper="2509.06941",
        equation="weight · (b_i − mean of b_j, j ≠ i), b = min(1, √(1/N)), N before this step",
        inputs=("visits_PG", "keep_PG", "correct_PG"),
        traps=(
            "zero for a group whose answers are equally rare: on a fresh problem it does nothing until one was seen twice",
            _HISTORY,
            _BESIDE,
            _GUARDS,
            _ALL_ANSWER,
            _UNREADABLE,
        ),
    ),
    Method(
        "ucb_constant",
        kind="bonus",
        loop="training",
        about="rarity of an answer over training, minus a constant: pays for new answers, punishes worn ones",
        target="equipoise.shaping.exploration:ucb_constant",
        settings={"weight": 0.2, "baseline": 0.5, "unless_all_right": True},
        paper="2509.06941",
        equation="weight · (b_i − baseline), b = min(1, √(1/N)), N before this step",
        inputs=("visits_PG", "keep_PG", "correct_PG"),
        traps=(
            "a baseline of 0.5 turns negative past 4 visits; one of 1, the paper's for its easy set, is purely punitive",
            "a constant has no expected gradient by itself: it acts through the guards, clipping and small groups",
            _HISTORY,
            _BESIDE,
            _GUARDS,
            _ALL_ANSWER,
            _UNREADABLE,
            _REVIEW,
        ),
    ),
    Method(
        "batch_exploration",
        kind="bonus",
        loop="training",
        about="minus the share of the group that gave the same final answer",
        target="equipoise.shaping.exploration:batch_exploration",
        settings={"weight": 0.2, "unless_all_right": True},
        paper="2509.06941",
        equation="−weight · (1/G) Σ_{j≠i} 1[a_j = a_i]; expected −weight · ((G−1)/G) Σ p(a)²",
        inputs=("answer_PG", "keep_PG", "correct_PG"),
        traps=(
            "needs answers in canonical form: 1/2 and 0.5 must be one",
            "also spreads wrong answers, whose variety may be worth nothing",
            _BESIDE,
            _GUARDS,
            _ALL_ANSWER,
            _UNREADABLE,
            _REVIEW,
        ),
        status="neutral",
    ),
    Method(
        "brier",
        kind="reward",
        loop="training",
        about="correctness minus the squared error of a stated confidence (RLCR)",
        target="equipoise.shaping.brier:brier",
        settings={"weight": 1.0, "malformed": "worst"},
        paper="2507.16806",
        equation="R = y − weight · (q − y)²; the best q is the chance p of being right, and is worth p² at weight 1",
        inputs=("correct_PG", "confidence_PG", "keep_PG"),
        traps=(
            "the prompt must ask for a confidence; one outside 0 to 1 is malformed, and what that costs is ours",
            "a log score instead pays for a deliberately wrong answer; so does a weight above 1, which is refused",
            "advantages without division by the group's standard deviation, as in the paper: group_mean",
            "responses grew from 415 to 1170 tokens on HotpotQA; on GSM8K the calibration error got worse, .048 to .119",
        ),
    ),
    Method(
        "brier_with_format",
        kind="reward",
        loop="training",
        about="the Brier reward as its authors shipped it: 1 + 0.5 R for a well-formed output, else 0",
        target="equipoise.shaping.brier:brier_with_format",
        settings={},
        paper="2507.16806",
        equation="0.5 format + 0.5 y + 0.5 (1 − (q − y)²), and 0 where the format is broken",
        inputs=("correct_PG", "confidence_PG", "keep_PG", "format_ok_PG"),
        traps=("not the paper's formula: an affine map of it with a bonus of at least 0.5 for the format",),
    ),
    Method(
        "reference_likelihood",
        kind="reward",
        loop="training",
        about="how likely a chain of thought makes a reference answer, by the tokens that it can move (R3 of DRO)",
        target="equipoise.shaping.reference_likelihood:reference_likelihood",
        settings={"power": 1.0},
        paper="2506.13351",
        equation="R_i = Σ_j σ_j^power ln π(y_j | q, c_i, y_<j), σ_j its std over the group",
        inputs=("logp_PGJ", "token_PJ", "keep_PG", "masked_logp_PGJ"),
        traps=(
            f"w(σ) = σ^power, with power 1: {_OPEN}, and so is the form",
            "verl's loss mode 'dro' is another method",
            "a power of 0, the plain likelihood, was seen to shrink chains of thought below 100 tokens",
            "without a length term (length_term) answers grow verbose",
            "the reference's first tokens give away the next ones: subtract a masked chain, each completion's own, or use propagate",
        ),
    ),
    Method(
        "reference_within_reach",
        kind="filter",
        loop="training",
        about="leave out prompts whose reference no sampled chain of thought makes likely (first filter of DRO)",
        target="equipoise.shaping.reference_filter:within_reach",
        settings={"worst_share": 0.1, "top": 20},
        paper="2506.13351",
        equation="keep where min over completions of the mean rank of the worst tokens ≤ top",
        inputs=("rank_PGJ", "token_PJ", "keep_PG"),
        lacking="a set of problems that is filtered before training and between its stages; a step here draws its own",
        traps=(f"worst_share and top: {_OPEN}", "a prompt without any score is kept"),
    ),
    Method(
        "reference_spread",
        kind="filter",
        loop="training",
        about="leave out the prompts whose reference likelihood varies least over chains of thought (second filter of DRO)",
        target="equipoise.shaping.reference_filter:varied",
        settings={"drop_share": 0.2},
        paper="2506.13351",
        equation="drop the lowest share by max_j σ_j; 10 % of the previous set is carried over",
        inputs=("sigma_PJ", "token_PJ"),
        lacking="a set of problems that is ranked as a whole between stages; a step here sees only those it drew",
        traps=(
            f"drop_share: {_OPEN}",
            "filter again as the model changes, and bring a tenth of what was dropped back (carry_over)",
        ),
    ),
    Method(
        "vector_rewards",
        kind="advantage",
        loop="training",
        about="several answers in one completion, worth their best one under random weightings of the reward's parts (VPO)",
        target="equipoise.shaping.vector_rewards:vector_advantage",
        settings={"draws": 100, "alpha": 1.0, "how": "random", "missing": "zero", "eps": 1e-6},
        paper="2605.22817",
        equation="R(S) = mean over w ∼ Dir(alpha) of max_{s∈S} w·r_s, then (R − mean) / (std + eps) in the group",
        inputs=("reward_PGMK", "answer_PGM", "keep_PG", "prompt_ids_P", "seed"),
        lacking="a task that asks for several answers in one completion and grades each of them in parts; none here does",
        traps=(
            "the prompt must ask for several answers, or there is one; rewriting it after length filtering needs left truncation",
            "it normalises by itself: switch the host's scaling off (TRL: scale_rewards)",
            "parts that rise and fall together put no pressure on variety; an advantage that is always 0 means equal matrices",
            "draws belong to the group: the authors' walkthrough draws per completion, their code does not",
            "an answer cut off by the length limit scores 0",
        ),
    ),
    Method(
        "critique_data",
        kind="data",
        loop="training",
        about="self-training data in which wrong solutions get a critique and a second try",
        target="equipoise.lab.critique_data:harvest_problem",
        settings={"draws": 5, "turns": 1},
        paper="2411.16579",
        equation="keep right solutions, and right refinements of wrong ones",
        inputs=("problem", "sample", "grade", "critique", "refine"),
        lacking="a file between two rounds of training, and a critic of the caller's; critique_loop is its step",
        traps=(
            "the critic should be another model: critiques of one's own work are unreliable",
            "costs a critique and a refinement per wrong solution: compare with rejection sampling at equal tokens",
        ),
    ),
    Method(
        "critique_loop",
        kind="data",
        loop="training",
        about="problems without a right completion are tried again with the checker's words, and right second tries are learnt",
        target="equipoise.training.critique:CritiqueLoop",
        settings={"tries": 4, "coef": 1.0},
        paper="2411.16579",
        equation="L += coef · Σ −ln π(y | q) / tokens of the update, over right refinements y of wrong completions of q",
        traps=(
            "the policy must have learnt to read such a prompt: a model that has not refines nothing (lab.make_refiner makes one that does)",
            "no gain can come of it where second tries are right no more often than as many first ones: measure that first (lab.make_refiner)",
            "learnt within the step, beside the policy gradient: the paper fine-tunes between rounds, on right first tries too",
            "the critic is the task's own checker; tries and coef are ours",
            "up to `tries` more rollouts for every problem that fails: compare at equal rollouts, which the log counts",
            "refinements are off-policy for the problem as posed, and no ratio corrects for it",
        ),
    ),
    Method(
        "diverse_demonstrations",
        kind="data",
        loop="training",
        about="supervised data that holds one solution of each correct approach to a problem",
        target="equipoise.lab.diverse_demos:choose_demonstrations",
        settings={"most_per_problem": 4, "cut": 0.27},
        paper="2509.21128",
        equation="one text per average-linkage cluster, the least alike first",
        inputs=("rollouts",),
        lacking="rollouts that are recorded already: it makes the data of supervised training, which comes before a run",
        traps=(
            "most_per_problem is ours; the paper measures such clusters, it does not choose data by them",
            "alike is meant of the wording: two approaches in the same words are one",
        ),
    ),
)
